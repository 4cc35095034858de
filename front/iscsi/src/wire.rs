//! PDU formats of RFC 7143 clause 11: each is a 48-byte struct over the bytes of its header.
//!
//! A struct can express anything that a peer may send; the session decides what is valid. An unknown code is a value
//! that can be printed. Sending writes a header only: a data segment stays in its own buffers.

use lunar_core::codes;
use lunar_core::wire::be::{U16, U32};
use lunar_core::wire::round_up;
pub use lunar_stream::digest::{DIGEST_LEN, Digest, digest};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod formats;

pub use formats::{
    AsyncMessage, DataIn, DataOut, LoginRequest, LoginResponse, LogoutRequest, LogoutResponse, NopIn, NopOut, R2t,
    Reject, ScsiCommand, ScsiResponse, Snack, TaskManagementRequest, TaskManagementResponse, TextRequest, TextResponse,
    login_flags,
};

/// Bytes of a basic header segment.
pub const BHS_LEN: usize = 48;
/// Bytes of the longest additional header segments: TotalAHSLength has one byte.
pub const AHS_MAX: usize = 255 * 4;
/// The reserved tag: the ITT of unsolicited PDUs, and the TTT of PDUs that belong to no transfer.
pub const NO_TAG: u32 = 0xffff_ffff;

/// Byte 1: the last PDU of a sequence (F); set in PDUs that have no sequences.
pub const FINAL: u8 = 0x80;
/// Byte 1 of text and login PDUs: the text continues in the next PDU (C).
pub const CONTINUE: u8 = 0x40;
/// Byte 1 of login PDUs: requests or grants the transition to the next stage (T).
pub const TRANSIT: u8 = 0x80;
/// Byte 1 of a SCSI Command: the initiator expects to receive data (R).
pub const READ: u8 = 0x40;
/// Byte 1 of a SCSI Command: the initiator expects to send data (W).
pub const WRITE: u8 = 0x20;
/// Byte 1 of a SCSI Command: the task attribute.
pub const ATTRIBUTE_MASK: u8 = 0x07;
/// Byte 1 of Data-In: requests an acknowledgement (A); only at recovery levels above 0.
pub const ACKNOWLEDGE: u8 = 0x40;
/// Byte 1 of a SCSI Response: residual overflow of the read half of a bidirectional command.
pub const BIDI_OVERFLOW: u8 = 0x10;
/// Byte 1 of a SCSI Response: residual underflow of the read half of a bidirectional command.
pub const BIDI_UNDERFLOW: u8 = 0x08;
/// Byte 1 of a SCSI Response or Data-In: residual overflow (O).
pub const OVERFLOW: u8 = 0x04;
/// Byte 1 of a SCSI Response or Data-In: residual underflow (U).
pub const UNDERFLOW: u8 = 0x02;
/// Byte 1 of Data-In: the PDU carries the SCSI status (S).
pub const STATUS: u8 = 0x01;
/// Byte 1 of TMF requests, logout requests and SNACKs: the function, reason or type.
pub const FUNCTION_MASK: u8 = 0x7f;

codes! {
    /// Opcodes (RFC 7143 11.2.1.2).
    pub struct Opcode(u8) {
        NOP_OUT = 0x00, SCSI_COMMAND = 0x01, TASK_MANAGEMENT_REQUEST = 0x02, LOGIN_REQUEST = 0x03, TEXT_REQUEST = 0x04,
        DATA_OUT = 0x05, LOGOUT_REQUEST = 0x06, SNACK = 0x10,
        NOP_IN = 0x20, SCSI_RESPONSE = 0x21, TASK_MANAGEMENT_RESPONSE = 0x22, LOGIN_RESPONSE = 0x23,
        TEXT_RESPONSE = 0x24, DATA_IN = 0x25, LOGOUT_RESPONSE = 0x26, R2T = 0x31, ASYNC_MESSAGE = 0x32, REJECT = 0x3f,
    }
}
codes! {
    /// iSCSI service responses (RFC 7143 11.4.3).
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    #[repr(transparent)]
    pub struct Response(u8) { COMPLETED = 0x00, TARGET_FAILURE = 0x01 }
}
codes! {
    /// Task management functions (RFC 7143 11.5.1; from [`Function::QUERY_TASK`] on RFC 7144 4.2).
    pub struct Function(u8) {
        ABORT_TASK = 1, ABORT_TASK_SET = 2, CLEAR_ACA = 3, CLEAR_TASK_SET = 4, LOGICAL_UNIT_RESET = 5,
        TARGET_WARM_RESET = 6, TARGET_COLD_RESET = 7, TASK_REASSIGN = 8,
        QUERY_TASK = 9, QUERY_TASK_SET = 10, I_T_NEXUS_RESET = 11, QUERY_ASYNCHRONOUS_EVENT = 12,
    }
}
codes! {
    /// Responses to task management functions (RFC 7143 11.6.1, RFC 7144).
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    #[repr(transparent)]
    pub struct FunctionResponse(u8) {
        COMPLETE = 0, NO_TASK = 1, NO_LUN = 2, STILL_ALLEGIANT = 3, REASSIGN_NOT_SUPPORTED = 4, NOT_SUPPORTED = 5,
        NOT_AUTHORIZED = 6, SUCCEEDED = 7, REJECTED = 255,
    }
}
codes! {
    /// Events of asynchronous messages (RFC 7143 11.9.1).
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    #[repr(transparent)]
    pub struct AsyncEvent(u8) {
        SCSI = 0, REQUEST_LOGOUT = 1, DROPS_CONNECTION = 2, DROPS_SESSION = 3, REQUEST_NEGOTIATION = 4,
        TASKS_TERMINATED = 5, VENDOR = 255,
    }
}
codes! {
    /// Reasons of a logout (RFC 7143 11.14.1).
    pub struct LogoutReason(u8) { CLOSE_SESSION = 0, CLOSE_CONNECTION = 1, RECOVER_CONNECTION = 2 }
}
codes! {
    /// Responses to a logout (RFC 7143 11.15.1).
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    #[repr(transparent)]
    pub struct LogoutOutcome(u8) { CLOSED = 0, NO_CONNECTION = 1, RECOVERY_NOT_SUPPORTED = 2, CLEANUP_FAILED = 3 }
}
codes! {
    /// Reasons of a Reject (RFC 7143 11.17.1).
    #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
    #[repr(transparent)]
    pub struct RejectReason(u8) {
        DATA_DIGEST = 0x02, SNACK = 0x03, PROTOCOL_ERROR = 0x04, NOT_SUPPORTED = 0x05, TOO_MANY_IMMEDIATE = 0x06,
        TASK_IN_PROGRESS = 0x07, INVALID_DATA_ACK = 0x08, INVALID_FIELD = 0x09, LONG_OPERATION = 0x0a,
        WAITING_FOR_LOGOUT = 0x0c,
    }
}
codes! {
    /// Status-Class and Status-Detail of a login response (RFC 7143 11.13.5).
    pub struct LoginStatus(u16) {
        SUCCESS = 0x0000, MOVED_TEMPORARILY = 0x0101, MOVED_PERMANENTLY = 0x0102,
        INITIATOR_ERROR = 0x0200, AUTHENTICATION_FAILURE = 0x0201, AUTHORIZATION_FAILURE = 0x0202, NOT_FOUND = 0x0203,
        REMOVED = 0x0204, UNSUPPORTED_VERSION = 0x0205, TOO_MANY_CONNECTIONS = 0x0206, MISSING_PARAMETER = 0x0207,
        CANNOT_INCLUDE = 0x0208, SESSION_TYPE_NOT_SUPPORTED = 0x0209, NO_SUCH_SESSION = 0x020a,
        INVALID_REQUEST = 0x020b,
        TARGET_ERROR = 0x0300, SERVICE_UNAVAILABLE = 0x0301, OUT_OF_RESOURCES = 0x0302,
    }
}
codes! {
    /// Login stages (RFC 7143 11.12.3).
    pub struct Stage(u8) { SECURITY = 0, OPERATIONAL = 1, FULL_FEATURE = 3 }
}

/// A big-endian number of three bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct U24([u8; 3]);

impl U24 {
    /// The largest value.
    pub const MAX: usize = 0xff_ffff;

    /// The field with this value.
    ///
    /// # Panics
    /// When `value` does not fit 24 bits: segment lengths are checked before.
    #[must_use]
    pub fn new(value: usize) -> Self {
        assert!(value <= Self::MAX, "{value} does not fit 24 bits");
        let [.., a, b, c] = value.to_be_bytes();
        Self([a, b, c])
    }

    /// The value.
    #[must_use]
    pub fn get(self) -> usize {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c]) as usize
    }
}

impl fmt::Debug for U24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// Byte 0 (RFC 7143 11.2.1): the opcode, and the I bit for immediate delivery.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct First(u8);

impl First {
    const IMMEDIATE: u8 = 0x40;
    const OPCODE: u8 = 0x3f;

    /// An opcode without the I bit.
    #[must_use]
    pub const fn new(opcode: Opcode) -> Self {
        Self(opcode.0 & Self::OPCODE)
    }

    /// The same with the I bit.
    #[must_use]
    pub const fn immediately(self) -> Self {
        Self(self.0 | Self::IMMEDIATE)
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(self) -> Opcode {
        Opcode(self.0 & Self::OPCODE)
    }

    /// Whether the I bit is set: an immediate request uses no CmdSN and does not wait for its turn.
    #[must_use]
    pub const fn is_immediate(self) -> bool {
        self.0 & Self::IMMEDIATE != 0
    }
}

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.opcode(), if self.is_immediate() { "!" } else { "" })
    }
}

/// A PDU format of RFC 7143 clause 11.
pub trait Pdu: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy {
    /// The opcode of the format.
    const OPCODE: Opcode;

    /// A header seen as this format, without a check of its opcode.
    #[must_use]
    fn of(header: &Bhs) -> &Self {
        // Every format has 48 bytes and no alignment, which is asserted at its declaration.
        Self::ref_from_bytes(header.as_bytes()).expect("formats have one size")
    }

    /// This format seen as a basic header segment.
    #[must_use]
    fn bhs(&self) -> &Bhs {
        Bhs::ref_from_bytes(self.as_bytes()).expect("formats have one size")
    }

    /// A header with opcode and F bit; all other bytes are zero.
    #[must_use]
    fn blank() -> Self {
        let mut header = Self::new_zeroed();
        let bytes = header.as_mut_bytes();
        bytes[0] = First::new(Self::OPCODE).0;
        bytes[1] = FINAL;
        header
    }
}

/// A basic header segment: the fields of all formats (RFC 7143 11.2.1).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Bhs {
    /// Byte 0: opcode and the I bit.
    pub first: First,
    /// Byte 1: flags of the opcode.
    pub flags: u8,
    /// Bytes 2 and 3: they depend on the opcode.
    pub special: [u8; 2],
    /// TotalAHSLength, in words of four bytes.
    pub ahs_words: u8,
    /// DataSegmentLength, in bytes, without padding.
    pub data_len: U24,
    /// LUN, or other fields of the opcode.
    pub lun: [u8; 8],
    /// Initiator task tag.
    pub itt: U32,
    /// The remaining bytes: they depend on the opcode.
    pub rest: [u8; 28],
}

const _: () = assert!(size_of::<Bhs>() == BHS_LEN && align_of::<Bhs>() == 1);

impl Bhs {
    /// The header at the start of `bytes`, if it is complete.
    #[must_use]
    pub fn peek(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        self.first.opcode()
    }

    /// Bytes of all additional header segments.
    #[must_use]
    pub fn ahs_len(&self) -> usize {
        usize::from(self.ahs_words) * 4
    }

    /// Bytes of the data segment with its padding, without its digest.
    #[must_use]
    pub fn padded_len(&self) -> usize {
        padded(self.data_len.get())
    }

    /// The header as format `T`, if it has its opcode.
    #[must_use]
    pub fn as_pdu<T: Pdu>(&self) -> Option<&T> {
        (self.opcode() == T::OPCODE).then(|| T::of(self))
    }
}

impl fmt::Debug for Bhs {
    /// One line for logs: opcode, flags, task tag and lengths.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} flags={:02x} itt={:08x}", self.first, self.flags, self.itt)?;
        if self.ahs_words > 0 {
            write!(f, " ahs={}", self.ahs_len())?;
        }
        write!(f, " data={}", self.data_len.get())
    }
}

/// The length of a segment with its padding, a multiple of four.
#[must_use]
pub const fn padded(len: usize) -> usize {
    round_up(len, 4)
}

/// An additional header segment (RFC 7143 11.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahs<'a> {
    /// Extended CDB: the bytes of a CDB after its first 16 (RFC 7143 11.2.2.3).
    ExtendedCdb(&'a [u8]),
    /// Bidirectional read expected data transfer length, in bytes (RFC 7143 11.2.2.4).
    BidiReadLen(u32),
    /// An unknown type.
    Unknown(u8),
}

/// The lengths of additional header segments are wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAhs;

const AHS_HEAD_LEN: usize = 3;
const AHS_EXTENDED_CDB: u8 = 1;
const AHS_BIDI_READ_LEN: u8 = 2;

/// Iterates over additional header segments, and ends after an error.
#[derive(Clone, Debug)]
pub struct AhsWalk<'a>(&'a [u8]);

impl<'a> AhsWalk<'a> {
    /// Iterates over `bytes`, of which there are TotalAHSLength words.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn step(&mut self) -> Option<Ahs<'a>> {
        let (len, rest) = U16::read_from_prefix(self.0).ok()?;
        let (&kind, rest) = rest.split_first()?;
        let len = usize::from(len.get());
        let body = rest.get(..len)?;
        self.0 = self.0.get(padded(AHS_HEAD_LEN + len)..)?;
        // The first byte of both known types is reserved.
        Some(match kind {
            // An extended CDB is never empty.
            AHS_EXTENDED_CDB => Ahs::ExtendedCdb(body.get(1..).filter(|rest| !rest.is_empty())?),
            AHS_BIDI_READ_LEN => Ahs::BidiReadLen(U32::read_from_bytes(body.get(1..)?).ok()?.get()),
            other => Ahs::Unknown(other),
        })
    }
}

impl<'a> Iterator for AhsWalk<'a> {
    type Item = Result<Ahs<'a>, BadAhs>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let segment = self.step().ok_or(BadAhs);
        if segment.is_err() {
            self.0 = &[];
        }
        Some(segment)
    }
}

/// The additional header segment that carries the bytes of `cdb` after the first 16; empty if there are none.
#[must_use]
pub fn extended_cdb(cdb: &[u8]) -> Vec<u8> {
    let Some(rest @ [_, ..]) = cdb.get(16..) else { return Vec::new() };
    let len = u16::try_from(rest.len() + 1).expect("a CDB is at most 260 bytes");
    let mut bytes = Vec::from(len.to_be_bytes());
    bytes.extend([AHS_EXTENDED_CDB, 0]);
    bytes.extend_from_slice(rest);
    bytes.resize(padded(bytes.len()), 0);
    bytes
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
