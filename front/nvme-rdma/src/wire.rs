//! The formats of NVMe over RDMA (NVMe RDMA Transport 1.0): private data of the connection manager, command and
//! response capsules, and the data pointers of commands.

use crate::limits::IN_CAPSULE_MAX;
use lunar_core::codes;
use lunar_core::wire::le;
use lunar_nvme::command::SQE_LEN;
use lunar_nvme::{Command, Direction, Sqe, Status};
use lunar_rdma::wire::Remote;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The private data of a request for a connection (NVMe RDMA Transport 1.0 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Request {
    /// The format of the record (RECFMT).
    pub format: le::U16,
    /// The queue (QID).
    pub queue: le::U16,
    /// Responses that the host has room for (HRQSIZE).
    pub responses: le::U16,
    /// Commands that it may have outstanding (HSQSIZE), 0's based.
    pub commands: le::U16,
    /// The controller (CNTLID), of an I/O queue.
    pub controller: le::U16,
    /// Reserved.
    pub reserved: [u8; 22],
}

/// The private data of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Accepted {
    /// The format of the record (RECFMT).
    pub format: le::U16,
    /// Commands that the controller has room for (CRQSIZE).
    pub commands: le::U16,
    /// Reserved.
    pub reserved: [u8; 28],
}

/// The private data of a rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Rejected {
    /// The format of the record (RECFMT).
    pub format: le::U16,
    /// The reason (STS).
    pub reason: le::U16,
}

const _: () = assert!(size_of::<Request>() == 32 && size_of::<Accepted>() == 32 && size_of::<Rejected>() == 4);

codes! {
    /// Why a request for a connection is rejected (NVMe RDMA Transport 1.0 3.2).
    pub struct RejectReason(u16) {
        LENGTH = 1, FORMAT = 2, QUEUE = 3, COMMANDS = 4, RESPONSES = 5, NO_RESOURCES = 6, RESPONDER_READS = 7,
        INITIATOR_READS = 8, CONTROLLER = 9,
    }
}

impl Request {
    /// The request in private data; `None`: the data is too short.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(request, _)| request)
    }
}

impl Accepted {
    /// The reply of a controller that has room for so many commands.
    #[must_use]
    pub fn new(commands: u16) -> Self {
        Self { format: 0.into(), commands: commands.into(), reserved: [0; 28] }
    }
}

impl Rejected {
    /// A rejection for this reason.
    #[must_use]
    pub fn new(reason: RejectReason) -> Self {
        Self { format: 0.into(), reason: reason.0.into() }
    }
}

/// A response capsule: a completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Dwords 0 and 1.
    pub result: le::U64,
    /// Submission queue head pointer.
    pub sq_head: le::U16,
    /// Submission queue identifier.
    pub sq_id: le::U16,
    /// Command identifier.
    pub cid: le::U16,
    /// Status, without a phase.
    pub status: le::U16,
}

const _: () = assert!(size_of::<Completion>() == 16);

/// A command capsule: the submission queue entry, and what follows it. `None`: it is too short or too long.
#[must_use]
pub fn capsule(bytes: &[u8]) -> Option<(Sqe, &[u8])> {
    let (sqe, data) = Sqe::read_from_prefix(bytes).ok()?;
    (data.len() <= IN_CAPSULE_MAX as usize).then_some((sqe, data))
}

const _: () = assert!(size_of::<Sqe>() == SQE_LEN);

/// The data of a command, as its data pointer describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pointed {
    /// The amount of its data.
    pub command: Command,
    /// The memory of the host.
    pub memory: Option<Remote>,
    /// The place of its data in the capsule, behind the entry.
    pub in_capsule: Option<Range<usize>>,
}

/// The memory and the length of a keyed data block, and whether its key is invalidated with the response.
fn keyed(sqe: &Sqe) -> Option<(Remote, u32, bool)> {
    /// SGL descriptor types with their subtypes: keyed data block, and the same with invalidation.
    const KEYED: u8 = 0x40;
    const KEYED_INVALIDATE: u8 = 0x4f;
    let invalidates = match sqe.sgl.kind {
        KEYED => false,
        KEYED_INVALIDATE => true,
        _ => return None,
    };
    // The length has three bytes, and the key four.
    let [l0, l1, l2, k0] = sqe.sgl.length.get().to_le_bytes();
    let [k1, k2, k3] = sqe.sgl.reserved;
    let memory = Remote { address: sqe.sgl.address.get(), key: u32::from_le_bytes([k0, k1, k2, k3]) };
    Some((memory, u32::from_le_bytes([l0, l1, l2, 0]), invalidates))
}

/// The R_Key that the host wants to be invalidated with the response.
#[must_use]
pub fn invalidated(sqe: &Sqe) -> Option<u32> {
    keyed(sqe).filter(|(.., invalidates)| *invalidates).map(|(memory, ..)| memory.key)
}

/// The data of a command whose capsule has so many bytes behind the entry.
///
/// # Errors
/// The status of a command whose data pointer is wrong.
pub fn pointed(sqe: &Sqe, behind: usize) -> Result<Pointed, Status> {
    /// PSDT: how the data is described. Only SGLs are allowed.
    const PSDT_MASK: u8 = 0xc0;
    const PSDT_SGL: u8 = 0x40;
    /// SGL descriptor type and subtype: data block at an offset of the capsule.
    const IN_CAPSULE: u8 = 0x01;
    let direction = sqe.direction();
    let mut pointed = Pointed { command: Command { sqe: *sqe, sent: 0, room: 0 }, memory: None, in_capsule: None };
    let block = keyed(sqe);
    let len = block.map_or_else(|| sqe.sgl.length.get(), |(_, len, _)| len);
    if direction == Direction::None || len == 0 {
        return Ok(pointed);
    }
    if sqe.flags & PSDT_MASK != PSDT_SGL {
        return Err(Status::INVALID_FIELD);
    }
    match (block, direction, sqe.sgl.kind) {
        (Some((memory, ..)), Direction::In, _) => (pointed.command.room, pointed.memory) = (len, Some(memory)),
        (Some((memory, ..)), _, _) => (pointed.command.sent, pointed.memory) = (len, Some(memory)),
        (None, Direction::Out, IN_CAPSULE) => {
            let start = usize::try_from(sqe.sgl.address.get()).map_err(|_| Status::SGL_OFFSET)?;
            let end = start.checked_add(len as usize).filter(|end| *end <= behind).ok_or(Status::SGL_OFFSET)?;
            (pointed.command.sent, pointed.in_capsule) = (len, Some(start..end));
        }
        _ => return Err(Status::SGL_TYPE),
    }
    Ok(pointed)
}

/// The queue and the size, 0's based, that Connect asks for (NVMe Base 2.0 6.3).
#[must_use]
pub fn connect_fields(sqe: &Sqe) -> (u16, u16) {
    let (queue, size) = ((sqe.cdw(10) >> 16) as u16, sqe.cdw(11) as u16);
    (queue, size)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
