//! Information units of SRP (INCITS 365), as Linux has them over the RDMA connection manager.

use crate::buffers::{Buffer, Refused};
use crate::limits::SENSE_MAX;
use crate::names::PortId;
use lunar_core::codes;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

codes! {
    /// The type of an information unit.
    pub struct UnitType(u8) {
        LOGIN_REQUEST = 0x00, TASK_MANAGEMENT = 0x01, COMMAND = 0x02, LOGOUT = 0x03, CREDIT_RESPONSE = 0x41,
        EVENT_RESPONSE = 0x42, LOGIN_RESPONSE = 0xc0, RESPONSE = 0xc1, LOGIN_REJECT = 0xc2, TARGET_LOGOUT = 0x80,
        CREDIT_REQUEST = 0x81,
    }
}

codes! {
    /// Why a login is rejected.
    pub struct RejectReason(u32) {
        UNABLE = 0x0001_0000, INSUFFICIENT_RESOURCES = 0x0001_0001, UNIT_TOO_LARGE = 0x0001_0002,
        UNKNOWN_PORT = 0x0001_0003, UNSUPPORTED_FORMAT = 0x0001_0004, CHANNEL_LIMIT = 0x0001_0006,
    }
}

codes! {
    /// The multi-channel result of a login: what happened to an existing session (SRP).
    pub struct Multichannel(u8) { NEW = 0x00, TERMINATED = 0x01, MAINTAINED = 0x02 }
}

codes! {
    /// The function of a task management request.
    pub struct Function(u8) {
        ABORT_TASK = 0x01, ABORT_TASK_SET = 0x02, CLEAR_TASK_SET = 0x04, LOGICAL_UNIT_RESET = 0x08, CLEAR_ACA = 0x40,
    }
}

codes! {
    /// The code of the response data.
    pub struct ResponseCode(u8) { COMPLETE = 0, INVALID_FIELDS = 1, NOT_SUPPORTED = 4, FAILED = 5 }
}

/// The tag of an information unit, which is returned as it was received.
pub type Tag = [u8; 8];

/// The formats of a command whose data is in it.
const IMMEDIATE_OUT: u8 = 0x30;
/// Direct and indirect descriptors.
pub const FORMATS: u16 = 0x06;
/// The bits of a login that say what becomes of other channels, and their value for one more channel.
const MULTICHANNEL_BITS: u8 = 0x03;
const ANOTHER_CHANNEL: u8 = 0x01;
/// The bit of a login that says that data in commands is wanted, and of its response that it may be sent.
const IMMEDIATE: u8 = 0x80;
/// Bytes of the shortest units.
const CDB_LEN: usize = 16;
/// The first place for data in a command: behind its length.
const IMMEDIATE_MIN: usize = size_of::<CommandHead>() + 4;

/// SRP_LOGIN_REQ, in the order that the RDMA connection manager has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LoginBody {
    tag: Tag,
    formats: U16,
    flags: u8,
    kind: u8,
    unit_max: U32,
    initiator: [u8; 16],
    target: [u8; 16],
    immediate_offset: U16,
    reserved: [u8; 6],
}

/// A request to log in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Login {
    /// Its tag.
    pub tag: Tag,
    /// The formats of descriptors that are wanted.
    pub formats: u16,
    /// Whether this channel is added to the session of the initiator; otherwise it ends that session.
    pub is_another_channel: bool,
    /// The bytes of information units that the initiator wants to send.
    pub unit_max: u32,
    /// Where data in commands begins, if the initiator wants to send some.
    pub immediate_offset: Option<u16>,
    /// The port of the initiator.
    pub initiator: PortId,
    /// The port of the target.
    pub target: PortId,
}

impl Login {
    /// The request in the private data of a connection.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let body: &LoginBody = Cursor::new(bytes).take().ok()?;
        (UnitType(body.kind) == UnitType::LOGIN_REQUEST).then(|| Self {
            tag: body.tag,
            formats: body.formats.get(),
            is_another_channel: body.flags & MULTICHANNEL_BITS == ANOTHER_CHANNEL,
            unit_max: body.unit_max.get(),
            immediate_offset: Some(body.immediate_offset.get())
                .filter(|offset| body.flags & IMMEDIATE != 0 && usize::from(*offset) >= IMMEDIATE_MIN),
            initiator: PortId(body.initiator),
            target: PortId(body.target),
        })
    }
}

/// SRP_LOGIN_RSP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LoginResponse {
    kind: u8,
    reserved: [u8; 3],
    request_limit: U32,
    tag: Tag,
    to_target_max: U32,
    to_initiator_max: U32,
    formats: U16,
    flags: u8,
    reserved2: [u8; 25],
}

impl LoginResponse {
    /// The response to a login. Data in commands (immediate data) is granted if it is wanted.
    #[must_use]
    pub fn new(login: &Login, request_limit: u32, to_target_max: usize, multichannel: Multichannel) -> Self {
        Self {
            kind: UnitType::LOGIN_RESPONSE.0,
            reserved: [0; 3],
            request_limit: request_limit.into(),
            tag: login.tag,
            // Limits of this crate: a few KiB.
            to_target_max: (to_target_max as u32).into(),
            to_initiator_max: (RESPONSE_MAX as u32).into(),
            formats: FORMATS.into(),
            flags: multichannel.0 | login.immediate_offset.map_or(0, |_| IMMEDIATE),
            reserved2: [0; 25],
        }
    }
}

/// SRP_LOGIN_REJ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LoginReject {
    kind: u8,
    reserved: [u8; 3],
    reason: U32,
    tag: Tag,
    reserved2: [u8; 8],
    formats: U16,
    reserved3: [u8; 6],
}

impl LoginReject {
    /// The refusal of a login with this tag.
    #[must_use]
    pub fn new(tag: Tag, reason: RejectReason) -> Self {
        Self {
            kind: UnitType::LOGIN_REJECT.0,
            reserved: [0; 3],
            reason: reason.0.into(),
            tag,
            reserved2: [0; 8],
            formats: FORMATS.into(),
            reserved3: [0; 6],
        }
    }
}

/// SRP_CMD before its additional CDB.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CommandHead {
    kind: u8,
    solicited: u8,
    reserved: [u8; 3],
    formats: u8,
    out_count: u8,
    in_count: u8,
    tag: Tag,
    reserved2: U32,
    lun: [u8; 8],
    reserved3: u8,
    attribute: u8,
    reserved4: u8,
    additional: u8,
    cdb: [u8; CDB_LEN],
}

/// SRP_TSK_MGMT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TaskManagementBody {
    kind: u8,
    solicited: u8,
    reserved: [u8; 6],
    tag: Tag,
    reserved2: U32,
    lun: [u8; 8],
    reserved3: U16,
    function: u8,
    reserved4: u8,
    task: Tag,
    reserved5: [u8; 8],
}

/// The units without fields of their own: logout, and the answers of an initiator.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Tagged {
    kind: u8,
    reserved: [u8; 7],
    tag: Tag,
}

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command<'a> {
    /// Its tag.
    pub tag: Tag,
    /// The LUN.
    pub lun: [u8; 8],
    /// The task attribute: 0 simple, 1 head of queue, 2 ordered, 4 ACA.
    pub attribute: u8,
    /// The CDB, without its additional bytes.
    pub cdb: [u8; CDB_LEN],
    /// The additional bytes of the CDB.
    pub additional: &'a [u8],
    /// The memory of the initiator for its data.
    pub buffer: Result<Option<Buffer>, Refused>,
    /// The data that has come with it: then there is no memory.
    pub immediate: Option<&'a [u8]>,
}

/// An information unit of an initiator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unit<'a> {
    /// A command.
    Command(Command<'a>),
    /// A task management request: tag, LUN, function, and the tag of a task.
    TaskManagement(Tag, [u8; 8], Function, Tag),
    /// The initiator logs out.
    Logout,
    /// An answer to a request of the target.
    Answer,
}

impl<'a> Unit<'a> {
    /// The unit of a message; `None`: it is none that an initiator may send. `immediate_offset` says where the data in
    /// commands begins, if it was granted.
    #[must_use]
    pub fn parse(bytes: &'a [u8], immediate_offset: Option<u16>) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        match UnitType(*bytes.first()?) {
            UnitType::COMMAND => {
                let head: &CommandHead = cursor.take().ok()?;
                // The length is in words, above two reserved bits.
                let additional = cursor.bytes(usize::from(head.additional & !3)).ok()?;
                let rest = cursor.rest();
                let of_descriptors = || Buffer::of_command(head.formats, (head.out_count, head.in_count), rest);
                let (buffer, immediate) = match (head.formats, immediate_offset) {
                    (IMMEDIATE_OUT, Some(offset)) => {
                        let len = Cursor::new(rest).take::<U32>().ok()?.get();
                        // Between the length and the data is anything.
                        let data = bytes.get(offset.into()..)?.get(..len as usize)?;
                        (Ok(Some(Buffer::immediate(len))), Some(data))
                    }
                    _ => (of_descriptors(), None),
                };
                Some(Self::Command(Command {
                    tag: head.tag,
                    lun: head.lun,
                    attribute: head.attribute & 7,
                    cdb: head.cdb,
                    additional,
                    buffer,
                    immediate,
                }))
            }
            UnitType::TASK_MANAGEMENT => {
                let body: &TaskManagementBody = cursor.take().ok()?;
                Some(Self::TaskManagement(body.tag, body.lun, Function(body.function), body.task))
            }
            UnitType::LOGOUT => cursor.take::<Tagged>().ok().map(|_| Self::Logout),
            UnitType::CREDIT_RESPONSE | UnitType::EVENT_RESPONSE => cursor.take::<Tagged>().ok().map(|_| Self::Answer),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ResponseHead {
    kind: u8,
    solicited: u8,
    reserved: U16,
    credit: U32,
    tag: Tag,
    reserved2: U16,
    flags: u8,
    status: u8,
    out_residual: U32,
    in_residual: U32,
    sense_len: U32,
    data_len: U32,
}

/// Bytes of response data.
const DATA_LEN: usize = 4;
/// The most bytes of SRP_RSP.
pub const RESPONSE_MAX: usize = size_of::<ResponseHead>() + DATA_LEN + SENSE_MAX;

const DATA_VALID: u8 = 0x01;
const SENSE_VALID: u8 = 0x02;
const OUT_OVER: u8 = 0x04;
const OUT_UNDER: u8 = 0x08;
const IN_OVER: u8 = 0x10;
const IN_UNDER: u8 = 0x20;

/// SRP_RSP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Response<'a> {
    /// The tag of the command.
    pub tag: Tag,
    /// Requests that the initiator may send besides those before.
    pub credit: u32,
    /// The SCSI status.
    pub status: u8,
    /// The bytes that the command would have transferred, minus those that the initiator expects.
    pub residual: i64,
    /// Whether the initiator expects to send data.
    pub is_out: bool,
    /// Sense data.
    pub sense: &'a [u8],
    /// The code of the response data.
    pub code: Option<ResponseCode>,
}

/// The bytes of a response.
#[derive(Clone, Copy)]
pub struct ResponseBytes {
    bytes: [u8; RESPONSE_MAX],
    len: usize,
}

impl std::ops::Deref for ResponseBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Response<'_> {
    /// The bytes of the response.
    #[must_use]
    pub fn bytes(&self) -> ResponseBytes {
        let sense = &self.sense[..self.sense.len().min(SENSE_MAX)];
        let residual = u32::try_from(self.residual.unsigned_abs()).unwrap_or(u32::MAX);
        let residual_flag = match (self.residual.signum(), self.is_out) {
            (1, true) => OUT_OVER,
            (-1, true) => OUT_UNDER,
            (1, false) => IN_OVER,
            (-1, false) => IN_UNDER,
            _ => 0,
        };
        let (out_residual, in_residual) = if self.is_out { (residual, 0) } else { (0, residual) };
        let data = self.code.map(|code| [0, 0, 0, code.0]);
        let valid = if data.is_some() { DATA_VALID } else { 0 } | if sense.is_empty() { 0 } else { SENSE_VALID };
        let head = ResponseHead {
            kind: UnitType::RESPONSE.0,
            solicited: 0,
            reserved: 0.into(),
            credit: self.credit.into(),
            tag: self.tag,
            reserved2: 0.into(),
            flags: residual_flag | valid,
            status: self.status,
            out_residual: out_residual.into(),
            in_residual: in_residual.into(),
            // At most 252 bytes.
            sense_len: (sense.len() as u32).into(),
            data_len: (data.map_or(0, |data| data.len()) as u32).into(),
        };
        let mut response = ResponseBytes { bytes: [0; RESPONSE_MAX], len: 0 };
        let parts = [head.as_bytes(), data.as_ref().map_or(&[][..], |data| data), sense];
        for part in parts {
            let end = response.len + part.len();
            response.bytes[response.len..end].copy_from_slice(part);
            response.len = end;
        }
        response
    }
}

/// SRP_CRED_REQ: more requests, without a response that could carry them.
#[must_use]
pub fn credit_request(credit: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = UnitType::CREDIT_REQUEST.0;
    bytes[4..8].copy_from_slice(&credit.to_be_bytes());
    bytes
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
