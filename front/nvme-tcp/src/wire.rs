//! PDU formats of the NVMe/TCP Transport Specification 1.0, clause 3.6: each is a struct that lies over the bytes of
//! its header.
//!
//! A struct can express every nonsense that a peer may send; what is legal is decided by the session. Emitting writes a
//! header only: data stays an I/O vector of its own.

use lunar_core::codes;
use lunar_core::wire::le::{U16, U32, U64};
use lunar_nvme::Sqe;
pub use lunar_stream::digest::{DIGEST_LEN, Digest, digest};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the common header.
pub const COMMON_LEN: usize = 8;
/// Bytes of a refused header that a termination request tells at most.
pub const TOLD_MAX: usize = 128;

codes! {
    /// What a PDU is.
    pub struct PduType(u8) {
        IC_REQ = 0x00, IC_RESP = 0x01, H2C_TERM_REQ = 0x02, C2H_TERM_REQ = 0x03, CAPSULE_CMD = 0x04,
        CAPSULE_RESP = 0x05, H2C_DATA = 0x06, C2H_DATA = 0x07, R2T = 0x09,
    }
}

codes! {
    /// Fatal error status: why a connection ends.
    pub struct FatalStatus(u16) {
        INVALID_HEADER = 0x01, SEQUENCE = 0x02, HEADER_DIGEST = 0x03, OUT_OF_RANGE = 0x04, LIMIT = 0x05,
        UNSUPPORTED = 0x06,
    }
}

/// Flags: a header digest follows.
pub const HEADER_DIGEST: u8 = 0x01;
/// Flags: a data digest follows.
pub const DATA_DIGEST: u8 = 0x02;
/// Flags: the last PDU of a transfer.
pub const LAST: u8 = 0x04;
/// Flags: the command has ended well, and no response follows.
pub const SUCCESS: u8 = 0x08;

/// What every header begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Common {
    /// What it is.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Bytes of the header.
    pub header_len: u8,
    /// Where the data begins.
    pub data_offset: u8,
    /// Bytes of it all.
    pub len: U32,
}

impl Common {
    /// The header of a format without data.
    fn of<T: Pdu>(flags: u8) -> Self {
        // Headers have at most 128 bytes.
        let len = size_of::<T>() as u8;
        Self { kind: T::TYPE.0, flags, header_len: len, data_offset: 0, len: U32::new(len.into()) }
    }
}

/// A format.
pub trait Pdu: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy {
    /// What it is.
    const TYPE: PduType;

    /// The view of a header, whatever it says it is.
    #[must_use]
    fn of(header: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(header).ok().map(|(pdu, _)| pdu)
    }

    /// A header of zeroes but for what all have.
    #[must_use]
    fn blank(flags: u8) -> Self {
        let mut pdu = Self::new_zeroed();
        let common = Common::of::<Self>(flags);
        pdu.as_mut_bytes()[..COMMON_LEN].copy_from_slice(common.as_bytes());
        pdu
    }
}

macro_rules! pdu {
    ($(#[$meta:meta])* $name:ident = $kind:ident, $len:literal { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name {
            /// What every header begins with.
            pub common: Common,
            $($(#[$fmeta])* pub $field: $ty,)*
        }
        const _: () = assert!(size_of::<$name>() == $len);
        impl Pdu for $name {
            const TYPE: PduType = PduType::$kind;
        }
    };
}

pdu! {
    /// Initialize Connection Request
    IcReq = IC_REQ, 128 {
        /// Format version: zero.
        version: U16,
        /// Alignment of data to the host (HPDA): words, 0-based.
        alignment: u8,
        /// Digests that are asked for.
        digests: u8,
        /// R2Ts that a command may have outstanding, 0-based.
        max_r2t: U32,
        /// Reserved.
        reserved: [u8; 112],
    }
}
pdu! {
    /// Initialize Connection Response
    IcResp = IC_RESP, 128 {
        /// Format version: zero.
        version: U16,
        /// Alignment of data to the controller (CPDA): words, 0-based.
        alignment: u8,
        /// Digests that are on.
        digests: u8,
        /// Bytes of an H2CData PDU at most.
        max_h2c_data: U32,
        /// Reserved.
        reserved: [u8; 112],
    }
}
pdu! {
    /// Termination Request, of either side
    TermReq = C2H_TERM_REQ, 24 {
        /// Why.
        status: U16,
        /// Where.
        information: U32,
        /// Reserved.
        reserved: [u8; 10],
    }
}
pdu! {
    /// Command Capsule
    CapsuleCmd = CAPSULE_CMD, 72 {
        /// The command.
        sqe: Sqe,
    }
}
pdu! {
    /// Response Capsule
    CapsuleResp = CAPSULE_RESP, 24 {
        /// Dwords 0 and 1.
        result: U64,
        /// How far the submission queue was read.
        sq_head: U16,
        /// The submission queue.
        sq_id: U16,
        /// The command.
        cid: U16,
        /// Status.
        status: U16,
    }
}
pdu! {
    /// Host to Controller Data Transfer
    H2cData = H2C_DATA, 24 {
        /// The command.
        cid: U16,
        /// The R2T.
        tag: U16,
        /// First byte.
        offset: U32,
        /// Bytes.
        data_len: U32,
        /// Reserved.
        reserved: [u8; 4],
    }
}
pdu! {
    /// Controller to Host Data Transfer
    C2hData = C2H_DATA, 24 {
        /// The command.
        cid: U16,
        /// Reserved.
        reserved: [u8; 2],
        /// First byte.
        offset: U32,
        /// Bytes.
        data_len: U32,
        /// Reserved.
        reserved2: [u8; 4],
    }
}
pdu! {
    /// Ready to Transfer
    R2t = R2T, 24 {
        /// The command.
        cid: U16,
        /// Names it.
        tag: U16,
        /// First byte.
        offset: U32,
        /// Bytes.
        data_len: U32,
        /// Reserved.
        reserved: [u8; 4],
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
