//! PDU formats of the NVMe/TCP Transport Specification 1.0, clause 3.6: each is a struct over the bytes of its header.
//!
//! A struct can express anything that a peer may send; the session decides what is valid. Sending writes a header only:
//! data stays in its own buffers.

use lunar_core::codes;
use lunar_core::wire::le::{U16, U32, U64};
use lunar_nvme::Sqe;
pub use lunar_stream::digest::{DIGEST_LEN, Digest, digest};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the common header.
pub const COMMON_LEN: usize = 8;
/// Most bytes of an invalid header that a termination request returns.
pub const RETURNED_HEADER_MAX: usize = 128;

codes! {
    /// PDU types.
    pub struct PduType(u8) {
        IC_REQ = 0x00, IC_RESP = 0x01, H2C_TERM_REQ = 0x02, C2H_TERM_REQ = 0x03, CAPSULE_CMD = 0x04,
        CAPSULE_RESP = 0x05, H2C_DATA = 0x06, C2H_DATA = 0x07, R2T = 0x09,
    }
}

codes! {
    /// Fatal error status (FES) of a termination request.
    pub struct FatalStatus(u16) {
        INVALID_HEADER = 0x01, SEQUENCE = 0x02, HEADER_DIGEST = 0x03, OUT_OF_RANGE = 0x04, LIMIT = 0x05,
        UNSUPPORTED = 0x06,
    }
}

/// Flags: a header digest is present (HDGSTF).
pub const HEADER_DIGEST: u8 = 0x01;
/// Flags: a data digest is present (DDGSTF).
pub const DATA_DIGEST: u8 = 0x02;
/// Flags: the last PDU of a transfer (LAST_PDU).
pub const LAST: u8 = 0x04;
/// Flags: the command has succeeded, and no response capsule follows (SUCCESS).
pub const SUCCESS: u8 = 0x08;

/// The common header of all PDUs (NVMe/TCP 1.0 3.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Common {
    /// PDU-Type.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// HLEN: bytes of the header.
    pub header_len: u8,
    /// PDO: offset of the data.
    pub data_offset: u8,
    /// PLEN: bytes of the PDU.
    pub len: U32,
}

impl Common {
    /// The common header of a format without data.
    fn of<T: Pdu>(flags: u8) -> Self {
        // Headers have at most 128 bytes.
        let len = size_of::<T>() as u8;
        Self { kind: T::TYPE.0, flags, header_len: len, data_offset: 0, len: U32::new(len.into()) }
    }
}

/// A PDU format.
pub trait Pdu: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy {
    /// The type of the format.
    const TYPE: PduType;

    /// A header seen as this format, without a check of its type.
    #[must_use]
    fn of(header: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(header).ok().map(|(pdu, _)| pdu)
    }

    /// A header whose fields are zero, except the common header.
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
            /// The common header.
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
    /// Initialize Connection Request (ICReq).
    IcReq = IC_REQ, 128 {
        /// PFV: the PDU format version, zero.
        version: U16,
        /// HPDA: the alignment of data sent to the host, in words, 0's based.
        alignment: u8,
        /// DGST: the digests that the host requests.
        digests: u8,
        /// MAXR2T: R2Ts outstanding per command, 0's based.
        max_r2t: U32,
        /// Reserved.
        reserved: [u8; 112],
    }
}
pdu! {
    /// Initialize Connection Response (ICResp).
    IcResp = IC_RESP, 128 {
        /// PFV: the PDU format version, zero.
        version: U16,
        /// CPDA: the alignment of data sent to the controller, in words, 0's based.
        alignment: u8,
        /// DGST: the digests in use.
        digests: u8,
        /// MAXH2CDATA: most bytes of data in an H2CData PDU.
        max_h2c_data: U32,
        /// Reserved.
        reserved: [u8; 112],
    }
}
pdu! {
    /// Termination Request of the host or of the controller (H2CTermReq, C2HTermReq).
    TermReq = C2H_TERM_REQ, 24 {
        /// FES: the fatal error status.
        status: U16,
        /// FEI: fatal error information, such as the offset of the invalid field.
        information: U32,
        /// Reserved.
        reserved: [u8; 10],
    }
}
pdu! {
    /// Command Capsule (CapsuleCmd).
    CapsuleCmd = CAPSULE_CMD, 72 {
        /// The submission queue entry.
        sqe: Sqe,
    }
}
pdu! {
    /// Response Capsule (CapsuleResp).
    CapsuleResp = CAPSULE_RESP, 24 {
        /// Dwords 0 and 1 of the completion queue entry.
        result: U64,
        /// SQHD: the submission queue head pointer.
        sq_head: U16,
        /// SQID: the submission queue.
        sq_id: U16,
        /// CID: the command identifier.
        cid: U16,
        /// The status field.
        status: U16,
    }
}
pdu! {
    /// Host to Controller Data Transfer (H2CData).
    H2cData = H2C_DATA, 24 {
        /// CCCID: the command identifier.
        cid: U16,
        /// TTAG: the transfer tag of the R2T.
        tag: U16,
        /// DATAO: the offset of the data.
        offset: U32,
        /// DATAL: bytes of the data.
        data_len: U32,
        /// Reserved.
        reserved: [u8; 4],
    }
}
pdu! {
    /// Controller to Host Data Transfer (C2HData).
    C2hData = C2H_DATA, 24 {
        /// CCCID: the command identifier.
        cid: U16,
        /// Reserved.
        reserved: [u8; 2],
        /// DATAO: the offset of the data.
        offset: U32,
        /// DATAL: bytes of the data.
        data_len: U32,
        /// Reserved.
        reserved2: [u8; 4],
    }
}
pdu! {
    /// Ready to Transfer (R2T).
    R2t = R2T, 24 {
        /// CCCID: the command identifier.
        cid: U16,
        /// TTAG: the transfer tag.
        tag: U16,
        /// R2TO: the offset of the requested data.
        offset: U32,
        /// R2TL: bytes of the requested data.
        data_len: U32,
        /// Reserved.
        reserved: [u8; 4],
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
