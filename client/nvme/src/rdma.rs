//! Capsules and private data of NVMe over RDMA, the host's side (NVMe RDMA Transport 1.0).

use crate::Error;
use lunar_core::wire::le;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_rdma::wire::{Accepted, Completion, RejectReason, Rejected, Request};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a response capsule.
pub const RESPONSE_LEN: usize = size_of::<Completion>();
/// Submission queue entry flags (PSDT): the data pointer is an SGL descriptor.
const BY_LIST: u8 = 0x40;
/// SGL descriptor types: data block at an offset in the capsule; keyed data block; the same whose key is invalidated
/// with the response.
const AT_OFFSET: u8 = 0x01;
const KEYED: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4f;
/// The longest keyed data block: its length has three bytes.
pub const KEYED_MAX: u32 = 0x00ff_ffff;
/// Completion status: do not retry (DNR).
const DO_NOT_RETRY: u16 = 0x4000;

/// The private data of a request for the connection of a queue with so many entries; `controller`: that of an I/O
/// queue.
#[must_use]
pub fn request(queue: u16, entries: u16, controller: u16) -> [u8; size_of::<Request>()] {
    let request = Request {
        format: 0.into(),
        queue: queue.into(),
        responses: entries.into(),
        commands: entries.saturating_sub(1).into(),
        controller: if queue == 0 { 0.into() } else { controller.into() },
        reserved: [0; 22],
    };
    zerocopy::transmute!(request)
}

/// The commands that a controller has room for, from the private data of its reply.
///
/// # Errors
/// The private data has another format.
pub fn accepted(private: &[u8]) -> Result<u16, Error> {
    match Accepted::read_from_prefix(private) {
        Ok((accepted, _)) if accepted.format == 0 && accepted.commands > le::U16::ZERO => Ok(accepted.commands.get()),
        _ => Err(Error::InvalidData("the private data of its reply")),
    }
}

/// The reason of a rejection, from its private data; `None`: it names none.
#[must_use]
pub fn rejected(private: &[u8]) -> Option<RejectReason> {
    let (rejected, _) = Rejected::read_from_prefix(private).ok()?;
    (rejected.format == 0 && rejected.reason > le::U16::ZERO).then(|| RejectReason(rejected.reason.get()))
}

/// The same entry whose data is so many bytes of the memory with this key, from its beginning.
#[must_use]
pub fn keyed(mut sqe: Sqe, key: u32, len: u32) -> Sqe {
    let ([l0, l1, l2, _], [k0, k1, k2, k3]) = (len.min(KEYED_MAX).to_le_bytes(), key.to_le_bytes());
    sqe.flags |= BY_LIST;
    sqe.sgl.address = 0.into();
    sqe.sgl.length = u32::from_le_bytes([l0, l1, l2, k0]).into();
    (sqe.sgl.reserved, sqe.sgl.kind) = ([k1, k2, k3], KEYED_INVALIDATE);
    sqe
}

/// The same entry whose data is so many bytes behind it in its capsule.
#[must_use]
pub fn in_capsule(mut sqe: Sqe, len: u32) -> Sqe {
    sqe.flags |= BY_LIST;
    (sqe.sgl.address, sqe.sgl.length) = (0.into(), len.into());
    (sqe.sgl.reserved, sqe.sgl.kind) = ([0; 3], AT_OFFSET);
    sqe
}

/// The same entry without data: its pointer is a keyed data block without bytes, as Linux writes it.
#[must_use]
pub fn without_data(mut sqe: Sqe) -> Sqe {
    sqe.flags |= BY_LIST;
    sqe.sgl.kind = KEYED;
    sqe
}

/// The completion of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapsuleResponse {
    /// The command identifier.
    pub cid: u16,
    /// The status.
    pub status: Status,
    /// Whether the command may succeed when it is sent again (DNR is 0).
    pub retry: bool,
    /// Dwords 0 and 1.
    pub result: u64,
}

/// Takes a response capsule apart.
///
/// # Errors
/// The capsule has another length.
pub fn response(bytes: &[u8]) -> Result<CapsuleResponse, Error> {
    let completion = Completion::ref_from_bytes(bytes).map_err(|_| Error::Protocol("a response has a wrong length"))?;
    let field = completion.status.get() >> 1;
    Ok(CapsuleResponse {
        cid: completion.cid.get(),
        status: Status(field & 0x7ff),
        retry: field & DO_NOT_RETRY == 0,
        result: completion.result.get(),
    })
}

/// The bytes of an entry.
#[must_use]
pub fn bytes(sqe: &Sqe) -> &[u8] {
    sqe.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use lunar_nvme_rdma::wire::{self, connect_fields, invalidated, pointed};

    #[test]
    fn the_controller_takes_requests_and_capsules_apart() {
        let parsed = Request::parse(&request(3, 128, 7)).expect("whole");
        let fields = [parsed.format, parsed.queue, parsed.responses, parsed.commands, parsed.controller];
        assert_eq!(fields.map(le::U16::get), [0, 3, 128, 127, 7]);
        assert_eq!(Request::parse(&request(0, 32, 7)).map(|request| request.controller.get()), Some(0));
        let read = keyed(command::read(1, 5, 8, false), 0x1234_5678, 4096);
        let found = pointed(&read, 0).expect("right");
        assert_eq!(found.memory.map(|memory| (memory.address, memory.key)), Some((0, 0x1234_5678)));
        assert_eq!((found.command.room, invalidated(&read)), (4096, Some(0x1234_5678)));
        let write = in_capsule(command::write(1, 5, 8, false), 4096);
        assert_eq!(pointed(&write, 4096).expect("right").in_capsule, Some(0..4096));
        let flush = without_data(command::flush(1));
        assert_eq!(pointed(&flush, 0).map(|found| (found.memory, found.in_capsule)), Ok((None, None)));
        let (sqe, behind) = wire::capsule(bytes(&flush)).expect("a capsule");
        assert_eq!((sqe, behind.len()), (flush, 0));
        assert_eq!(connect_fields(&command::with(0x7f, 1, &[3 << 16, 127])), (3, 127));
    }

    #[test]
    fn answers_of_the_controller_are_taken_apart() {
        assert_eq!(accepted(Accepted::new(128).as_bytes()), Ok(128));
        assert!(accepted(&[0; 32]).is_err() && accepted(&[1; 32]).is_err() && accepted(&[0; 3]).is_err());
        assert_eq!(rejected(Rejected::new(RejectReason::COMMANDS).as_bytes()), Some(RejectReason::COMMANDS));
        assert_eq!((rejected(&[0; 4]), rejected(&[9])), (None, None));
        let completion = Completion {
            result: 7.into(),
            sq_head: 1.into(),
            sq_id: 2.into(),
            cid: 3.into(),
            status: Status::INVALID_OPCODE.field().into(),
        };
        let wanted = CapsuleResponse { cid: 3, status: Status::INVALID_OPCODE, retry: false, result: 7 };
        assert_eq!(response(completion.as_bytes()), Ok(wanted));
        assert!(response(&[0; 15]).is_err() && response(&[0; 17]).is_err());
    }
}
