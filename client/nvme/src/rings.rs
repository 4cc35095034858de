//! A submission queue with its completion queue in memory that is shared with the controller (NVMe Base 2.0 3.3.1),
//! seen from the host; and the pages of a command's data. It knows neither how the memory came to be shared, nor how
//! registers are written.

use crate::Error;
use lunar_core::mem::Region;
use lunar_nvme::command::SQE_LEN;
use lunar_nvme::{Sqe, Status};
use lunar_vfio_user::machine::DOORBELLS;
use lunar_vfio_user::memory::Window;
use lunar_vfio_user::queue::CQE_LEN;
use std::sync::atomic::{Ordering, fence};
use zerocopy::IntoBytes;

/// Bytes of a page of memory.
pub const PAGE: usize = 4096;
/// Bytes of an entry of a list of pages.
const POINTER: usize = 8;
/// Of the last word of a completion: its phase, and how the command ended.
const PHASE: u32 = 1 << 16;
/// Status: do not retry.
const DO_NOT_RETRY: u16 = 0x4000;

/// How the controller is told how far this side came.
#[derive(Clone, Debug)]
pub enum Bell {
    /// By writes to its registers.
    Told,
    /// By words in memory, and by writes when it wants to be woken: both pages of Doorbell Buffer Config.
    Shadow(Window, Window),
    /// By words of its registers' page.
    Mapped(Window),
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Which.
    pub cid: u16,
    /// How.
    pub status: Status,
    /// Whether it may end better when it is sent again.
    pub retry: bool,
    /// Dwords 0 and 1.
    pub result: u64,
}

/// A write to a register: its offset, and its value.
pub type Write = (u32, u32);

/// Both queues.
#[derive(Debug)]
pub struct Pair {
    id: u16,
    entries: u16,
    submissions: Window,
    completions: Window,
    bell: Bell,
    tail: u16,
    head: u16,
    phase: bool,
    /// How far the controller was told.
    told: [u16; 2],
    under_way: u16,
}

impl Pair {
    /// Bytes of the submission queue and of the completion queue, in whole pages.
    #[must_use]
    pub fn bytes(entries: u16) -> [usize; 2] {
        [SQE_LEN, CQE_LEN].map(|entry| (usize::from(entries) * entry).next_multiple_of(PAGE))
    }

    /// Empty queues of `entries`, one behind the other from `at` on. `None` when they do not lie within the memory.
    #[must_use]
    pub fn new(id: u16, entries: u16, memory: &Region, at: usize, bell: Bell) -> Option<Self> {
        let [submissions, completions] = Self::bytes(entries);
        Some(Self {
            id,
            entries,
            submissions: Window::new(memory, at, submissions)?,
            completions: Window::new(memory, at + submissions, completions)?,
            bell,
            tail: 0,
            head: 0,
            phase: true,
            told: [0; 2],
            under_way: 0,
        })
    }

    /// Commands that may start now: a queue is full with one entry left.
    #[must_use]
    pub fn room(&self) -> u16 {
        self.entries - 1 - self.under_way
    }

    /// Puts a command into its queue; the controller is not told yet. `false`: there is no room.
    #[must_use]
    pub fn submit(&mut self, sqe: &Sqe) -> bool {
        if self.room() == 0 || !self.submissions.write(usize::from(self.tail) * SQE_LEN, sqe.as_bytes()) {
            return false;
        }
        self.tail = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
        self.under_way += 1;
        true
    }

    /// The next command that has ended.
    #[inline]
    pub fn take(&mut self) -> Option<Ended> {
        let at = usize::from(self.head) * CQE_LEN;
        let last = self.completions.load(at + CQE_LEN - 4)?;
        if (last & PHASE != 0) != self.phase || self.under_way == 0 {
            return None;
        }
        let word = |number: usize| u64::from(self.completions.load(at + 4 * number).unwrap_or(0));
        let field = (last >> 17) as u16;
        let result = word(0) | word(1) << 32;
        self.head += 1;
        if self.head == self.entries {
            (self.head, self.phase) = (0, !self.phase);
        }
        self.under_way -= 1;
        let status = Status(field & 0x7ff);
        Some(Ended { cid: last as u16, status, retry: field & DO_NOT_RETRY == 0, result })
    }

    /// Tells the controller how far both queues came, as far as memory does that: what is left to be written.
    #[inline]
    #[must_use]
    pub fn ring(&mut self) -> [Option<Write>; 2] {
        let now = [self.tail, self.head];
        let mut writes = [None; 2];
        for (which, write) in writes.iter_mut().enumerate() {
            let (new, old) = (now[which], self.told[which]);
            if new == old {
                continue;
            }
            self.told[which] = new;
            let at = (2 * usize::from(self.id) + which) * 4;
            let is_wanted = match &self.bell {
                Bell::Told => true,
                Bell::Mapped(page) => !page.store(at, new.into()),
                Bell::Shadow(doorbells, events) => {
                    let _ = doorbells.store(at, new.into());
                    // The controller writes its word, then looks here; this side does both the other way round.
                    fence(Ordering::SeqCst);
                    let event = events.load(at).unwrap_or(0) as u16;
                    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
                }
            };
            // All doorbells lie in one page.
            *write = is_wanted.then_some((DOORBELLS + at as u32, new.into()));
        }
        writes
    }
}

/// Bytes of the lists that the pages of `len` bytes need, in whole pages.
#[must_use]
pub fn list_bytes(len: usize) -> usize {
    const IN_PAGE: usize = PAGE / POINTER;
    match len.div_ceil(PAGE) {
        0..=2 => 0,
        // The last entry of a full page leads to the next.
        pages => (pages - 2).div_ceil(IN_PAGE - 1) * PAGE,
    }
}

/// The pointers of a command whose `len` bytes of data lie at `address`, on a page's boundary; a list of pages, if it
/// takes one, is written into `lists` at `at`, which the controller finds at `lists_address`.
///
/// # Errors
/// When the list does not lie within.
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
    if fits { Ok(()) } else { Err(Error::Nonsense("a list of pages is longer than its memory")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use lunar_vfio_user::memory::Memory;
    use lunar_vfio_user::pointer::{entry, resolve};
    use lunar_vfio_user::queue::{Completion, Completions, Doorbell, Found, Shadow, Submission};
    use zerocopy::FromZeros;

    /// This side and the controller's, over the same memory: commands and completions, many times round.
    fn round(bell: Bell, doorbells: [Doorbell; 2]) -> usize {
        let memory = Region::zeroed(4 * PAGE);
        let mut pair = Pair::new(1, 8, &memory, 0, bell).expect("within");
        let [submissions, _] = Pair::bytes(8);
        let mut queue = Submission::new(1, 1, 0, 8);
        let mut completions = Completions::new(submissions as u64, 8, None);
        let [of_submissions, of_completions] = doorbells;
        queue.lie(Window::new(&memory, 0, 8 * SQE_LEN), of_submissions);
        completions.lie(Window::new(&memory, submissions, 8 * CQE_LEN), of_completions);
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
                assert!(if offset == 0x1008 { queue.ring(value as u16) } else { completions.ring(value as u16) });
            }
            while let Found::Command(sqe) = queue.first() {
                queue.advance(1);
                let mut done = Completion::new_zeroed();
                (done.cid, done.status, done.result) = (sqe.cid, 0x4004.into(), 77.into());
                assert!(completions.flush(Some(done)));
                queue.under_way -= 1;
            }
            while let Some(Ended { cid, status, retry, result }) = pair.take() {
                assert_eq!((cid, status, retry, result), (ended, Status(2), true, 77));
                ended += 1;
            }
        }
        writes
    }

    #[test]
    fn both_sides_understand_each_other() {
        assert!(round(Bell::Told, [Doorbell::Told, Doorbell::Told]) > 20);
        let page = Region::zeroed(PAGE);
        let window = || Window::new(&page, 0, PAGE).expect("within");
        let mapped = [Doorbell::Mapped(window(), 8), Doorbell::Mapped(window(), 12)];
        assert_eq!(round(Bell::Mapped(window()), mapped), 0);
        let pages = [Region::zeroed(PAGE), Region::zeroed(PAGE)];
        let [doorbells, events] = pages.each_ref().map(|page| Window::new(page, 0, PAGE).expect("within"));
        let shadows = [2, 3].map(|number| Doorbell::Shadow(Shadow::new(&doorbells, &events, number)));
        let writes = round(Bell::Shadow(doorbells, events), shadows);
        assert!(writes < 30, "{writes}: a controller that is awake is seldom told");
    }

    #[test]
    fn pages_are_found_where_they_are() {
        let mut memory = Memory::default();
        let region = Region::zeroed(32 << 20);
        memory.map(0x10_0000, 32 << 20, Some(region.clone())).expect("free");
        for pages in [1, 2, 3, 100, 256] {
            let (len, at) = (pages * PAGE, 16 << 20);
            let [first, second] = pointers(0x10_0000, len, &region, at, 0x110_0000).expect("room");
            let ranges = resolve(&entry(first, second), len as u64, &memory).expect("there");
            let mut expected = 0x10_0000;
            for range in ranges {
                assert_eq!(range.address, expected, "{pages}");
                expected += u64::from(range.len);
            }
            assert_eq!(expected - 0x10_0000, len as u64);
        }
        // More than this controller takes at once: the last of a full page leads on.
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
