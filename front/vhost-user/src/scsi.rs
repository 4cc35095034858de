//! virtio-scsi (virtio 1.3, 5.6): requests, task management, events.

use crate::bytes;
use crate::ring::{Broken, Chain};
use lunar_core::codes;
use lunar_core::wire::le;
use lunar_guest::memory::Memory;
use lunar_scsi::{Asc, Cdb, Command, Lun, SenseKey, TaskAttribute, TaskFunction, TaskResponse};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Features of the device.
pub mod feature {
    /// Logical units come and go.
    pub const HOTPLUG: u64 = 1 << 1;
    /// Changes of parameters are reported.
    pub const CHANGE: u64 = 1 << 2;
}

/// The features of every device.
pub const FEATURES: u64 = feature::HOTPLUG | feature::CHANGE;

/// The ring of task management.
pub const CONTROL: usize = 0;
/// The ring of events.
pub const EVENTS: usize = 1;
/// The first ring of commands.
pub const COMMANDS: usize = 2;

/// Bytes of sense data in an answer: what QEMU and drivers do not change.
pub const SENSE_MAX: usize = 96;
/// Bytes of a CDB.
const CDB_LEN: usize = 32;

codes! {
    /// The answer of the device to a request.
    pub struct Response(u8) {
        OK = 0, ABORTED = 2, BAD_TARGET = 3, BUSY = 5, FAILURE = 9, FUNCTION_SUCCEEDED = 10, FUNCTION_REJECTED = 11,
        INCORRECT_LUN = 12,
    }
}

codes! {
    /// The type of a control request.
    pub struct ControlType(u32) { TASK_MANAGEMENT = 0, NOTIFICATION_QUERY = 1, NOTIFICATION_SUBSCRIBE = 2 }
}

codes! {
    /// The kind of an event.
    pub struct EventKind(u32) { NO_EVENT = 0, TRANSPORT_RESET = 1, PARAMETER_CHANGE = 3 }
}

/// The bit of an event that says that others were missed before it.
pub const EVENTS_MISSED: u32 = 1 << 31;
/// Reason of a transport reset: a logical unit is new.
pub const RESCAN: u32 = 1;
/// Reason of a transport reset: a logical unit is gone.
pub const REMOVED: u32 = 2;

/// A command (virtio 1.3 5.6.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandHeader {
    /// See [`lun_of`].
    pub lun: [u8; 8],
    /// The task tag.
    pub tag: le::U64,
    /// The task attribute.
    pub attribute: u8,
    /// The priority: not used.
    pub priority: u8,
    /// The command reference number: not used.
    pub reference: u8,
    /// The CDB.
    pub cdb: [u8; CDB_LEN],
}

/// Bytes before the data of a command.
pub const HEADER_LEN: usize = size_of::<CommandHeader>();

/// The answer to a command (virtio 1.3 5.6.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandAnswer {
    /// Bytes of sense data.
    pub sense_len: le::U32,
    /// Bytes that were expected and not moved.
    pub residual: le::U32,
    /// Unused.
    pub qualifier: le::U16,
    /// The status of the command.
    pub status: u8,
    /// A [`Response`].
    pub response: u8,
    /// Sense data.
    pub sense: [u8; SENSE_MAX],
}

/// Bytes before the data that a command returns.
pub const ANSWER_LEN: usize = size_of::<CommandAnswer>();

/// A task management function (virtio 1.3 5.6.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TaskManagement {
    /// [`ControlType::TASK_MANAGEMENT`].
    pub kind: le::U32,
    /// The function.
    pub function: le::U32,
    /// See [`lun_of`].
    pub lun: [u8; 8],
    /// The task tag.
    pub tag: le::U64,
}

/// A query of, or subscription to, asynchronous notifications (virtio 1.3 5.6.6.2); the answer is a number of events
/// and a [`Response`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Notification {
    /// [`ControlType::NOTIFICATION_QUERY`] or [`ControlType::NOTIFICATION_SUBSCRIBE`].
    pub kind: le::U32,
    /// See [`lun_of`].
    pub lun: [u8; 8],
    /// The events that the driver wants to learn.
    pub events: le::U32,
}

/// An event (virtio 1.3 5.6.6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Event {
    /// An [`EventKind`], and [`EVENTS_MISSED`].
    pub kind: le::U32,
    /// See [`lun_of`].
    pub lun: [u8; 8],
    /// More about it.
    pub reason: le::U32,
}

/// The well-known logical unit REPORT LUNS, in the addressing of virtio.
const REPORT_LUNS: [u8; 8] = [0xc1, 0x01, 0, 0, 0, 0, 0, 0];

/// The logical unit that eight bytes address: one, the target, the logical unit. `None`: another target than zero, the
/// only one of a device.
#[must_use]
pub fn lun_of(bytes: [u8; 8]) -> Option<Lun> {
    match bytes {
        REPORT_LUNS => Some(Lun::REPORT_LUNS),
        [1, 0, high, low, 0, 0, 0, 0] => Some(Lun::from_number(u16::from_be_bytes([high & 0x3f, low]))),
        _ => None,
    }
}

/// The eight bytes of a logical unit in an event. Drivers compare them with the answer of REPORT LUNS, so the
/// addressing method is the same.
#[must_use]
pub fn address_of(lun: u16) -> [u8; 8] {
    let [high, low, ..] = Lun::from_number(lun).0;
    [1, 0, high, low, 0, 0, 0, 0]
}

/// A request that was taken from a ring of commands.
#[derive(Clone, Copy, Debug)]
pub enum Parsed {
    /// It goes to the device server.
    Command(Command),
    /// It is answered at once.
    Refused(Response),
    /// It was in progress when a process before this one ended, and must not be executed twice.
    Unsure,
}

/// Operation codes that change something more than data: COMPARE AND WRITE, PERSISTENT RESERVE OUT, EXTENDED COPY.
const NOT_REPEATABLE: [u8; 3] = [0x89, 0x5f, 0x83];

/// Takes a command apart. It is copied once.
///
/// # Errors
/// [`Broken::Short`] without the whole request or without room for the answer: the ring ends.
pub fn parse(memory: &Memory, chain: &Chain) -> Result<Parsed, Broken> {
    let header: CommandHeader = read(memory, chain, ANSWER_LEN)?;
    let len = |len: u64, before: usize| u32::try_from(len - before as u64).unwrap_or(u32::MAX);
    let (data_out, data_in) = (len(chain.readable_len, HEADER_LEN), len(chain.writable_len, ANSWER_LEN));
    if chain.is_repeated && NOT_REPEATABLE.contains(&header.cdb[0]) {
        return Ok(Parsed::Unsure);
    }
    let attribute = match header.attribute {
        1 => TaskAttribute::ORDERED,
        2 => TaskAttribute::HEAD_OF_QUEUE,
        3 => TaskAttribute::ACA,
        _ => TaskAttribute::SIMPLE,
    };
    let (lun, cdb) = (lun_of(header.lun), Cdb::new(&header.cdb));
    let (Some(lun), Some(cdb)) = (lun, cdb) else { return Ok(Parsed::Refused(Response::BAD_TARGET)) };
    Ok(Parsed::Command(Command { lun, cdb, attribute, tag: header.tag.get(), data_in, data_out }))
}

/// Reads the front of a request, with room for an answer of so many bytes.
fn read<T: FromBytes + IntoBytes>(memory: &Memory, chain: &Chain, answer_len: usize) -> Result<T, Broken> {
    let mut value = T::new_zeroed();
    let is_there = bytes::read(memory, &chain.readable, 0, value.as_mut_bytes());
    if is_there && chain.writable_len >= answer_len as u64 { Ok(value) } else { Err(Broken::Short) }
}

/// A control request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// A task management function: function, logical unit, task tag.
    Function(TaskFunction, Lun, u64),
    /// It is answered with this response.
    Refused(Response),
    /// No asynchronous notification of this kind is supported.
    NoNotifications,
}

/// Takes a control request apart.
///
/// # Errors
/// [`Broken::Short`].
pub fn parse_control(memory: &Memory, chain: &Chain) -> Result<Control, Broken> {
    let kind: le::U32 = read(memory, chain, 1)?;
    match ControlType(kind.get()) {
        ControlType::TASK_MANAGEMENT => {
            let asked: TaskManagement = read(memory, chain, 1)?;
            let Some(lun) = lun_of(asked.lun) else { return Ok(Control::Refused(Response::BAD_TARGET)) };
            let function = match asked.function.get() {
                0 => TaskFunction::ABORT_TASK,
                1 => TaskFunction::ABORT_TASK_SET,
                2 => TaskFunction::CLEAR_ACA,
                3 => TaskFunction::CLEAR_TASK_SET,
                4 => TaskFunction::I_T_NEXUS_RESET,
                5 => TaskFunction::LOGICAL_UNIT_RESET,
                6 => TaskFunction::QUERY_TASK,
                7 => TaskFunction::QUERY_TASK_SET,
                _ => return Ok(Control::Refused(Response::FUNCTION_REJECTED)),
            };
            Ok(Control::Function(function, lun, asked.tag.get()))
        }
        ControlType::NOTIFICATION_QUERY | ControlType::NOTIFICATION_SUBSCRIBE => {
            let _: Notification = read(memory, chain, 5)?;
            Ok(Control::NoNotifications)
        }
        _ => Ok(Control::Refused(Response::FUNCTION_REJECTED)),
    }
}

/// The response to a task management function.
#[must_use]
pub fn response(response: TaskResponse) -> Response {
    match response {
        TaskResponse::Complete | TaskResponse::NoTask => Response::OK,
        TaskResponse::Succeeded(_) => Response::FUNCTION_SUCCEEDED,
        TaskResponse::IncorrectLun => Response::INCORRECT_LUN,
        TaskResponse::Rejected => Response::FUNCTION_REJECTED,
    }
}

/// The answer to a command with this status and sense data, of which `residual` bytes were not moved.
#[must_use]
pub fn answer(response: Response, status: u8, sense: &[u8], residual: u32) -> CommandAnswer {
    let len = sense.len().min(SENSE_MAX);
    let mut bytes = [0; SENSE_MAX];
    bytes[..len].copy_from_slice(&sense[..len]);
    CommandAnswer {
        // No more than 96.
        sense_len: (len as u32).into(),
        residual: residual.into(),
        qualifier: 0.into(),
        status,
        response: response.0,
        sense: bytes,
    }
}

/// The sense data of a command that must not be executed twice: the driver tries again, or asks.
#[must_use]
pub fn unsure() -> [u8; 18] {
    let mut sense = [0; 18];
    // Fixed format, SPC-4 4.5.3.
    (sense[0], sense[2], sense[7]) = (0x70, SenseKey::ABORTED_COMMAND.0, 10);
    sense
}

/// The event about a changed logical unit.
#[must_use]
pub fn changed(lun: u16, asc: Asc) -> Event {
    // The additional sense code is in the low byte, its qualifier in the next one.
    let [code, qualifier] = asc.0.to_be_bytes();
    let reason = u32::from(code) | u32::from(qualifier) << 8;
    Event { kind: EventKind::PARAMETER_CHANGE.0.into(), lun: address_of(lun), reason: reason.into() }
}

/// The event about a logical unit that is new ([`RESCAN`]) or gone ([`REMOVED`]).
#[must_use]
pub fn moved(lun: u16, reason: u32) -> Event {
    Event { kind: EventKind::TRANSPORT_RESET.0.into(), lun: address_of(lun), reason: reason.into() }
}

#[cfg(test)]
#[path = "scsi_tests.rs"]
mod tests;
