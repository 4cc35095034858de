//! The Error Information log of a controller (NVMe Base 2.0 5.16.1.2): the last failed commands.

use crate::command::{Refusal, Sqe, Status};
use lunar_core::wire::le;
use std::collections::VecDeque;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries at most; the oldest go first. All of them fit a page of memory, which hosts read at once.
pub const ERRORS_MAX: usize = 64;
/// The location of the wrong parameter is unknown.
pub const UNKNOWN_PLACE: u16 = 0xffff;

/// An entry, as the log page has it (NVMe Base 2.0 5.16.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// The number of the entry since the controller was made; the first is one.
    pub count: le::U64,
    /// The submission queue.
    pub queue: le::U16,
    /// The command.
    pub cid: le::U16,
    /// The status field of its completion, with a phase of zero.
    pub status: le::U16,
    /// Parameter Error Location: byte of the command's entry, and its bit in bits 10:8; else [`UNKNOWN_PLACE`].
    pub place: le::U16,
    /// The first logical block that failed; zero if there is none.
    pub block: le::U64,
    /// The namespace that the command names.
    pub namespace: le::U32,
    /// Vendor specific information: none.
    pub vendor: u8,
    /// The transport type (TRTYPE); zero: queues in host memory.
    pub transport: u8,
    /// Reserved.
    pub reserved: [u8; 34],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// The location of the wrong parameter for this status, if it is always the same.
fn place(sqe: &Sqe, status: Status) -> u16 {
    /// Its list has namespace identifiers, too.
    const COPY: u8 = 0x19;
    /// NSID, the length and the type of the data's descriptor.
    const NSID: u16 = 4;
    const SGL_LENGTH: u16 = 32;
    const SGL_TYPE: u16 = 39;
    /// Dword 10, its higher half, its highest bit; the higher half of dword 11.
    const DWORD: u16 = 40;
    const HIGH: u16 = 42;
    const SAVE: u16 = 43 | 7 << 8;
    const DWORD_11_HIGH: u16 = 46;
    match status {
        Status::INVALID_OPCODE => 0,
        Status::FUSED_MISSING => 1,
        Status::ID_CONFLICT => 2,
        Status::INVALID_NAMESPACE if sqe.opcode != COPY => NSID,
        Status::SGL_LENGTH => SGL_LENGTH,
        Status::SGL_TYPE => SGL_TYPE,
        Status::INVALID_LOG_PAGE | Status::NOT_CHANGEABLE | Status::INVALID_QUEUE => DWORD,
        Status::QUEUE_SIZE => HIGH,
        Status::NOT_SAVEABLE => SAVE,
        Status::INVALID_COMPLETION_QUEUE | Status::INVALID_VECTOR => DWORD_11_HIGH,
        _ => UNKNOWN_PLACE,
    }
}

/// The log of one controller.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    /// The number of entries so far.
    count: u64,
    /// The newest first.
    last: VecDeque<ErrorEntry>,
}

impl Errors {
    /// Logs a failed command. Returns the status of its completion, with the bit M if the entry has more information.
    pub(crate) fn note(&mut self, (queue, transport): (u16, u8), sqe: &Sqe, refusal: &Refusal) -> Status {
        let place = place(sqe, refusal.status);
        let tells_more = place != UNKNOWN_PLACE || refusal.block.is_some();
        let status = if tells_more { refusal.status.with_more() } else { refusal.status };
        // Zero is no count (NVMe Base 2.0 5.16.1.2). A migration record may say any other.
        self.count = self.count.checked_add(1).unwrap_or(1);
        self.last.truncate(ERRORS_MAX - 1);
        self.last.push_front(ErrorEntry {
            count: self.count.into(),
            queue: queue.into(),
            cid: sqe.cid,
            status: status.field().into(),
            place: place.into(),
            block: refusal.block.unwrap_or(0).into(),
            namespace: sqe.nsid,
            vendor: 0,
            transport,
            reserved: [0; 34],
        });
        status
    }

    /// A reset removes the entries and keeps their number.
    pub(crate) fn clear(&mut self) {
        self.last.clear();
    }

    /// The number of entries so far, and the last of them, the newest first.
    pub(crate) fn all(&self) -> (u64, Vec<ErrorEntry>) {
        (self.count, self.last.iter().copied().collect())
    }

    /// Restores the saved state; `false` if it is impossible.
    pub(crate) fn restore(&mut self, count: u64, last: &[ErrorEntry]) -> bool {
        let fits = last.len() <= ERRORS_MAX && last.iter().all(|entry| (1..=count).contains(&entry.count.get()));
        if fits {
            (self.count, self.last) = (count, last.iter().copied().collect());
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{Rig, entry};
    use lunar_core::io::Fault;

    /// The log page: count, queue, command, status, place, block and namespace of each entry.
    fn log(rig: &Rig) -> Vec<(u64, u16, u16, Status, u16, u64, u32)> {
        let page = rig.run(&rig.admin, &entry(0x02, 0, &[0x01 | 1023 << 16]), &[]).data;
        assert_eq!(page.len(), ERRORS_MAX * size_of::<ErrorEntry>());
        let entries = page.chunks(64).map(|bytes| ErrorEntry::read_from_bytes(bytes).expect("64 bytes"));
        entries
            .take_while(|one| one.count.get() > 0)
            .map(|one| {
                let status = Status(one.status.get() >> 1 & 0x7ff);
                let (place, block) = (one.place.get(), one.block.get());
                (one.count.get(), one.queue.get(), one.cid.get(), status, place, block, one.namespace.get())
            })
            .collect()
    }

    fn counted(rig: &Rig) -> u8 {
        rig.run(&rig.admin, &entry(0x02, 0, &[0x02 | 127 << 16]), &[]).data[176]
    }

    #[test]
    fn only_failed_commands_are_logged() {
        let rig = Rig::default();
        assert_eq!((log(&rig), counted(&rig)), (vec![], 0));
        let mut sqe = entry(0x02, 1, &[5, 0, 3]);
        sqe.cid = 0x1234.into();
        assert_eq!(rig.run(&rig.io, &sqe, &[]).status, Status::SUCCESS);
        for is_slow in [false, true] {
            rig.memories[0].is_slow.set(is_slow);
            rig.memories[0].fault.set(Some(Fault::Medium));
            assert_eq!(rig.run(&rig.io, &sqe, &[]).status, Status::READ_ERROR);
        }
        sqe.nsid = 9.into();
        assert_eq!(rig.run(&rig.io, &sqe, &[]).status, Status::INVALID_NAMESPACE);
        assert_eq!(rig.run(&rig.admin, &entry(0x7e, 0, &[]), &[]).status, Status::INVALID_OPCODE);
        let wanted = [
            (4, 0, 0, Status::INVALID_OPCODE, 0, 0, 0),
            (3, 1, 0x1234, Status::INVALID_NAMESPACE, 4, 0, 9),
            (2, 1, 0x1234, Status::READ_ERROR, UNKNOWN_PLACE, 5, 1),
            (1, 1, 0x1234, Status::READ_ERROR, UNKNOWN_PLACE, 5, 1),
        ];
        assert_eq!((log(&rig), counted(&rig)), (wanted.to_vec(), 4));
    }

    #[test]
    fn the_last_ones_stay_until_a_reset_and_all_are_counted() {
        let rig = Rig::default();
        let mut sqe = entry(0x7e, 1, &[]);
        for cid in 0..100 {
            sqe.cid = cid.into();
            assert_eq!(rig.run(&rig.io, &sqe, &[]).status, Status::INVALID_OPCODE);
        }
        let told = log(&rig);
        assert_eq!((told.len(), told[0].0, told[0].2, told[63].0), (ERRORS_MAX, 100, 99, 37));
        let page = rig.run(&rig.admin, &entry(0x06, 0, &[1]), &[]).data;
        assert_eq!(usize::from(page[262]) + 1, ERRORS_MAX, "ELPE");
        for value in [0x46_0000, 0x46_0001] {
            rig.admin.controller.set_property(0x14, false, value).expect("a reset");
        }
        assert_eq!((log(&rig), counted(&rig)), (vec![], 100));
    }

    #[test]
    fn a_completion_says_whether_its_entry_tells_more() {
        let mut errors = Errors::default();
        let sqe = entry(0, 0, &[]);
        let mut note = |refusal: Refusal| errors.note((0, 3), &sqe, &refusal);
        let more = note(Status::INVALID_OPCODE.into());
        assert_eq!((more.field(), more.code()), (0xc002, Status::INVALID_OPCODE));
        assert_eq!(note(Status::ABORTED.into()), Status::ABORTED);
        let at = note(Refusal { block: Some(0), ..Status::READ_ERROR.into() });
        assert_eq!(at.field(), (0x2000 | 0x281) << 1, "and it may be tried again");
        assert_eq!(errors.all().1[0].transport, 3);
    }
}
