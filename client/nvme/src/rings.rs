//! The host's side of a submission queue and a completion queue in memory that is shared with the controller (NVMe Base
//! 2.0 3.3.1), and the PRP lists of a command's data. The caller maps the memory and writes the registers.

use crate::Error;
use lunar_core::mem::Region;
use lunar_guest::window::Window;
use lunar_nvme::command::SQE_LEN;
use lunar_nvme::{Sqe, Status};
use lunar_vfio_user::queue::completion::CQE_LEN;
use lunar_vfio_user::registers::DOORBELLS;
use std::sync::atomic::{Ordering, fence};
use zerocopy::IntoBytes;

/// The memory page size, in bytes.
pub const PAGE: usize = 4096;
/// The length of a PRP entry, in bytes.
const POINTER: usize = 8;
/// Dword 3 of a completion: the phase tag.
const PHASE: u32 = 1 << 16;
/// Completion status: do not retry (DNR).
const DO_NOT_RETRY: u16 = 0x4000;

/// How doorbells are rung.
#[derive(Clone, Debug)]
pub enum DoorbellMode {
    /// By writing the doorbell registers.
    Registers,
    /// By writing shadow doorbells in memory; the registers are written only if the controller asks for it with its
    /// event index. Holds both pages of Doorbell Buffer Config.
    Shadow(Window, Window),
    /// By writing the doorbell registers through a mapping of their page.
    Mapped(Window),
}

/// A completed command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletedCommand {
    /// The command identifier.
    pub cid: u16,
    /// The status.
    pub status: Status,
    /// Whether the command may succeed when it is retried (DNR is 0).
    pub retry: bool,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
}

/// A register write: offset in BAR0, and value.
pub type Write = (u32, u32);

/// A submission queue and its completion queue.
#[derive(Debug)]
pub struct Pair {
    id: u16,
    entries: u16,
    submissions: Window,
    completions: Window,
    mode: DoorbellMode,
    tail: u16,
    head: u16,
    phase: bool,
    /// The doorbell values that the controller was last given.
    rung: [u16; 2],
    outstanding: u16,
}

impl Pair {
    /// The lengths of the submission queue and of the completion queue, in bytes, rounded up to pages.
    #[must_use]
    pub fn bytes(entries: u16) -> [usize; 2] {
        [SQE_LEN, CQE_LEN].map(|entry| (usize::from(entries) * entry).next_multiple_of(PAGE))
    }

    /// Creates empty queues of `entries`, one after the other from `at` on. `None` if they do not fit in `memory`.
    #[must_use]
    pub fn new(id: u16, entries: u16, memory: &Region, at: usize, mode: DoorbellMode) -> Option<Self> {
        let [submissions, completions] = Self::bytes(entries);
        Some(Self {
            id,
            entries,
            submissions: Window::new(memory, at, submissions)?,
            completions: Window::new(memory, at + submissions, completions)?,
            mode,
            tail: 0,
            head: 0,
            phase: true,
            rung: [0; 2],
            outstanding: 0,
        })
    }

    /// The number of commands that may start now: a queue is full when one entry is left.
    #[must_use]
    pub fn room(&self) -> u16 {
        self.entries - 1 - self.outstanding
    }

    /// Writes a submission queue entry; [`Pair::ring`] notifies the controller. `false` if the queue is full.
    #[must_use]
    pub fn submit(&mut self, sqe: &Sqe) -> bool {
        if self.room() == 0 || !self.submissions.write(usize::from(self.tail) * SQE_LEN, sqe.as_bytes()) {
            return false;
        }
        self.tail = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
        self.outstanding += 1;
        true
    }

    /// Takes the next completion, if there is one.
    #[inline]
    pub fn take(&mut self) -> Option<CompletedCommand> {
        let at = usize::from(self.head) * CQE_LEN;
        let last = self.completions.load(at + CQE_LEN - 4)?;
        if (last & PHASE != 0) != self.phase || self.outstanding == 0 {
            return None;
        }
        let word = |number: usize| u64::from(self.completions.load(at + 4 * number).unwrap_or(0));
        let field = (last >> 17) as u16;
        let result = word(0) | word(1) << 32;
        self.head += 1;
        if self.head == self.entries {
            (self.head, self.phase) = (0, !self.phase);
        }
        self.outstanding -= 1;
        let status = Status(field & 0x7ff);
        Some(CompletedCommand { cid: last as u16, status, retry: field & DO_NOT_RETRY == 0, result })
    }

    /// Rings the doorbells of both queues as far as memory writes do it. Returns the register writes that remain.
    #[inline]
    #[must_use]
    pub fn ring(&mut self) -> [Option<Write>; 2] {
        let now = [self.tail, self.head];
        let mut writes = [None; 2];
        for (which, write) in writes.iter_mut().enumerate() {
            let (new, old) = (now[which], self.rung[which]);
            if new == old {
                continue;
            }
            self.rung[which] = new;
            let at = (2 * usize::from(self.id) + which) * 4;
            let needs_write = match &self.mode {
                DoorbellMode::Registers => true,
                DoorbellMode::Mapped(page) => !page.store(at, new.into()),
                DoorbellMode::Shadow(doorbells, events) => {
                    let _ = doorbells.store(at, new.into());
                    // The controller writes the event index, then reads the doorbell; the host writes the doorbell,
                    // then reads the event index. The fence keeps that order, so that at least one side sees the
                    // other's write.
                    fence(Ordering::SeqCst);
                    let event = events.load(at).unwrap_or(0) as u16;
                    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
                }
            };
            // All doorbells lie within one page, so the offset fits.
            *write = needs_write.then_some((DOORBELLS + at as u32, new.into()));
        }
        writes
    }
}

/// The length of the PRP lists for `len` bytes of data, in bytes, rounded up to pages.
#[must_use]
pub fn list_bytes(len: usize) -> usize {
    const IN_PAGE: usize = PAGE / POINTER;
    match len.div_ceil(PAGE) {
        0..=2 => 0,
        // The last entry of a full list page points to the next list page.
        pages => (pages - 2).div_ceil(IN_PAGE - 1) * PAGE,
    }
}

/// PRP 1 and PRP 2 of a command whose `len` bytes of data lie at `address`, which is on a page boundary. A PRP list, if
/// one is needed, is written to `lists` at `at`; the controller finds it at `lists_address`.
///
/// # Errors
/// If the list does not fit in `lists`.
pub fn pointers(address: u64, len: usize, lists: &Region, at: usize, lists_address: u64) -> Result<[u64; 2], Error> {
    let (page, pages) = (PAGE as u64, len.div_ceil(PAGE));
    let rest = || (1..pages as u64).map(|number| address + number * page);
    if pages <= 2 {
        return Ok([address, rest().next().unwrap_or(0)]);
    }
    let mut place = 0;
    for (number, pointer) in rest().enumerate() {
        let is_last_of_list = (place + POINTER).is_multiple_of(PAGE);
        if is_last_of_list && number + 2 < pages {
            let next = lists_address + (place + POINTER) as u64;
            put(lists, at + place, next)?;
            place += POINTER;
        }
        put(lists, at + place, pointer)?;
        place += POINTER;
    }
    Ok([address, lists_address])
}

fn put(lists: &Region, at: usize, pointer: u64) -> Result<(), Error> {
    let fits = lists.write(at, &pointer.to_le_bytes());
    if fits { Ok(()) } else { Err(Error::InvalidData("a PRP list that is longer than its memory")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use lunar_guest::memory::Memory;
    use lunar_vfio_user::pointer::resolve;
    use lunar_vfio_user::queue::completion::{CompletionQueue, Cqe};
    use lunar_vfio_user::queue::submission::{Found, SubmissionQueue};
    use lunar_vfio_user::queue::{Doorbell, ShadowDoorbell};
    use lunar_vfio_user::testing::entry;
    use zerocopy::FromZeros;

    /// Runs 100 commands through a host and a controller on the same memory; returns the number of register writes.
    fn round(mode: DoorbellMode, doorbells: [Doorbell; 2]) -> usize {
        let memory = Region::zeroed(4 * PAGE);
        let mut pair = Pair::new(1, 8, &memory, 0, mode).expect("within");
        let [submissions, _] = Pair::bytes(8);
        let mut queue = SubmissionQueue::new(1, 1, 0, 8);
        let mut completions = CompletionQueue::new(submissions as u64, 8, None);
        let [of_submissions, of_completions] = doorbells;
        queue.locate(Window::new(&memory, 0, 8 * SQE_LEN), of_submissions);
        completions.locate(Window::new(&memory, submissions, 8 * CQE_LEN), of_completions);
        let (mut started, mut ended, mut writes) = (0_u16, 0_u16, 0);
        while ended < 100 {
            while pair.room() > 0 && started < 100 {
                let mut sqe = command::read(1, u64::from(started), 1, false);
                sqe.cid = started.into();
                assert!(pair.submit(&sqe));
                started += 1;
            }
            for (offset, value) in pair.ring().into_iter().flatten() {
                writes += 1;
                assert!(if offset == 0x1008 {
                    queue.write_doorbell(value as u16)
                } else {
                    completions.write_doorbell(value as u16)
                });
            }
            while let Found::Command(sqe) = queue.first() {
                queue.advance(1);
                let mut done = Cqe::new_zeroed();
                (done.cid, done.status, done.result) = (sqe.cid, 0x4004.into(), 77.into());
                assert!(completions.flush(Some(done)));
                queue.in_progress -= 1;
            }
            while let Some(CompletedCommand { cid, status, retry, result }) = pair.take() {
                assert_eq!((cid, status, retry, result), (ended, Status(2), true, 77));
                ended += 1;
            }
        }
        writes
    }

    #[test]
    fn commands_and_completions_pass_with_each_kind_of_doorbell() {
        assert!(round(DoorbellMode::Registers, [Doorbell::Register, Doorbell::Register]) > 20);
        let page = Region::zeroed(PAGE);
        let window = || Window::new(&page, 0, PAGE).expect("within");
        let mapped = [Doorbell::Mapped(window(), 8), Doorbell::Mapped(window(), 12)];
        assert_eq!(round(DoorbellMode::Mapped(window()), mapped), 0);
        let pages = [Region::zeroed(PAGE), Region::zeroed(PAGE)];
        let [doorbells, events] = pages.each_ref().map(|page| Window::new(page, 0, PAGE).expect("within"));
        let shadows = [2, 3].map(|number| Doorbell::Shadow(ShadowDoorbell::new(&doorbells, &events, number)));
        let writes = round(DoorbellMode::Shadow(doorbells, events), shadows);
        assert!(writes < 30, "{writes}: a polling controller needs few register writes");
    }

    #[test]
    fn prp_lists_describe_all_pages_of_the_data() {
        let mut memory = Memory::default();
        let region = Region::zeroed(32 << 20);
        memory.map(0x10_0000, 32 << 20, Some(region.clone())).expect("free");
        for pages in [1, 2, 3, 100, 256] {
            let (len, at) = (pages * PAGE, 16 << 20);
            let [first, second] = pointers(0x10_0000, len, &region, at, 0x110_0000).expect("room");
            let ranges = resolve(&entry(first, second), len as u64, &memory).expect("there");
            let mut expected = 0x10_0000;
            for range in ranges.iter() {
                assert_eq!(range.address, expected, "{pages}");
                expected += range.len;
            }
            assert_eq!(expected - 0x10_0000, len as u64);
        }
        // Longer than this controller's largest transfer: the last entry of a list page points to the next one.
        for pages in [513, 514, 1024, 1025, 1500] {
            let [_, mut list] = pointers(0x10_0000, pages * PAGE, &region, 16 << 20, 0x110_0000).expect("room");
            for number in 1..pages as u64 {
                let next = |list| {
                    let mut bytes = [0; 8];
                    assert!(memory.read(list, &mut bytes));
                    u64::from_le_bytes(bytes)
                };
                if list % 4096 == 4088 && number + 1 < pages as u64 {
                    list = next(list);
                }
                assert_eq!(next(list), 0x10_0000 + number * 4096, "{pages}");
                list += 8;
            }
            assert!(list - 0x110_0000 <= list_bytes(pages * PAGE) as u64);
        }
        assert_eq!([PAGE, 2 * PAGE, 3 * PAGE, 514 * PAGE].map(list_bytes), [0, 0, PAGE, 2 * PAGE]);
        assert!(pointers(0, 3 * PAGE, &region, 32 << 20, 0).is_err());
    }
}
