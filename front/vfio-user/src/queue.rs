//! Submission and completion queues in the guest's memory (NVMe Base 2.0 3.3.1).

use crate::record::{CompletionQueue, SubmissionQueue};
use lunar_core::wire::le;
use lunar_guest::window::Window;
use lunar_nvme::Sqe;
use lunar_nvme::command::SQE_LEN;
use std::cell::Cell;
use std::collections::VecDeque;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A completion queue entry, but for its last word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Dwords 0 and 1.
    pub result: le::U64,
    /// How far the submission queue was read.
    pub head: le::U16,
    /// Which submission queue.
    pub queue: le::U16,
    /// Which command.
    pub cid: le::U16,
    /// How it ended, without the phase.
    pub status: le::U16,
}

/// Bytes of a completion queue entry.
pub const CQE_LEN: usize = size_of::<Completion>();

/// The place `count` behind `at`, round the end: neither is more than there are entries.
#[inline]
fn behind(at: u16, count: u16, entries: u16) -> u16 {
    let (sum, entries) = (u32::from(at) + u32::from(count), u32::from(entries));
    // Less than there are entries, again.
    (if sum < entries { sum } else { sum - entries }) as u16
}

/// How far it is from one place to another, round the end.
#[inline]
pub(crate) fn distance(from: u16, to: u16, entries: u16) -> u16 {
    if to >= from { to - from } else { entries - (from - to) }
}

/// Where the host shows how far it came, and is told how far it may go without ringing: one word of each.
#[derive(Clone, Debug)]
pub struct Shadow {
    doorbell: Window,
    event: Window,
    at: usize,
}

impl Shadow {
    /// The words of a doorbell, by its number, in the two pages.
    #[must_use]
    pub fn new(doorbell: &Window, event: &Window, number: usize) -> Self {
        Self { doorbell: doorbell.clone(), event: event.clone(), at: number * 4 }
    }

    #[inline]
    fn value(&self) -> Option<u16> {
        // The rest of the word means nothing.
        self.doorbell.load(self.at).map(|value| value as u16)
    }

    /// The host rings when it goes beyond `value`.
    #[inline]
    fn ring_beyond(&self, value: u16) {
        // Read-only pages are the guest's own mistake: then it is not polled for, but rings.
        let _ = self.event.store(self.at, value.into());
    }
}

/// How the device hears how far a host came.
#[derive(Clone, Debug)]
pub enum Doorbell {
    /// It is told.
    Told,
    /// It looks into pages of the guest's, and can be told.
    Shadow(Shadow),
    /// It looks into a page that the client has mapped: nothing is told.
    Mapped(Window, usize),
}

impl Doorbell {
    #[inline]
    fn value(&self, told: u16) -> u16 {
        match self {
            Self::Told => told,
            Self::Shadow(shadow) => shadow.value().unwrap_or(told),
            Self::Mapped(page, at) => page.load(*at).map_or(told, |value| value as u16),
        }
    }
}

/// A submission queue.
#[derive(Debug)]
pub struct Submission {
    /// Its identifier.
    pub id: u16,
    /// Where its completions go.
    pub completions: u16,
    /// Where it is in the guest's memory, in bytes.
    pub address: u64,
    /// Commands of it that have not been completed.
    pub under_way: u16,
    /// How it is rung.
    pub doorbell: Doorbell,
    ring: Option<Window>,
    entries: u16,
    head: u16,
    /// What the host told last.
    told: u16,
    /// How far the host had come when that was looked up last: it is looked up again when all before is taken.
    seen: u16,
    /// Most commands that the host had under way or waiting.
    most: u16,
    /// Where the host rings, if that was said.
    bell: Cell<Option<u16>>,
    /// How far the host had come when half of a fused operation was there: until it comes farther nothing can begin.
    half: Option<u16>,
}

/// What a look at a submission queue finds.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A command.
    Command(Sqe),
    /// It cannot be read: its memory is gone, or what the host tells is nonsense.
    Broken,
}

impl Submission {
    /// A queue of `entries`, which is empty.
    #[must_use]
    pub fn new(id: u16, completions: u16, address: u64, entries: u16) -> Self {
        let doorbell = Doorbell::Told;
        Self {
            id,
            completions,
            address,
            under_way: 0,
            doorbell,
            ring: None,
            entries,
            head: 0,
            told: 0,
            seen: 0,
            most: 0,
            bell: Cell::default(),
            half: None,
        }
    }

    /// What it is, when none of its commands is under way.
    #[must_use]
    pub fn save(&self) -> SubmissionQueue {
        SubmissionQueue {
            id: self.id.into(),
            completions: self.completions.into(),
            entries: self.entries.into(),
            head: self.head.into(),
            tail: self.told_tail().into(),
            reserved: 0.into(),
            address: self.address.into(),
        }
    }

    /// What it was, of `entries_max` at most. `None`: none can be so.
    #[must_use]
    pub fn restore(saved: &SubmissionQueue, entries_max: u16) -> Option<Self> {
        let (entries, head, tail) = (saved.entries.get(), saved.head.get(), saved.tail.get());
        let fits = (2..=entries_max).contains(&entries) && head < entries;
        let mut queue = Self::new(saved.id.get(), saved.completions.get(), saved.address.get(), entries);
        // A tail that is nonsense is one that was not heard.
        (queue.head, queue.seen, queue.told) = (head, head, if tail < entries { tail } else { head });
        fits.then_some(queue)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.entries) * SQE_LEN
    }

    /// Whether it has no entries: no queue is so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Where its bytes are now, and how it is rung.
    pub fn lie(&mut self, ring: Option<Window>, doorbell: Doorbell) {
        // What was shown holds where it is shown no more, or entries of long ago would come again.
        let shown = self.told_tail();
        if shown < self.entries {
            self.told = shown;
        }
        (self.ring, self.doorbell) = (ring, doorbell);
        self.bell.set(None);
    }

    /// How many entries it has.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// How far it was read.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// The host tells how far it came. `false`: it cannot be.
    #[must_use]
    pub fn ring(&mut self, tail: u16) -> bool {
        let fits = tail < self.entries;
        if fits {
            self.told = tail;
        }
        fits
    }

    /// How far the host has come, as it was told or has shown.
    #[inline]
    #[must_use]
    pub fn told_tail(&self) -> u16 {
        self.doorbell.value(self.told)
    }

    /// Whether there is a command that may begin. Commands under way are as many as there are entries at most, or a
    /// host that does not wait for any would have them without end.
    #[inline]
    #[must_use]
    pub fn is_ripe(&self) -> bool {
        self.under_way < self.entries
            && match self.half {
                None => self.seen != self.head || self.told_tail() != self.head,
                Some(tail) => self.told_tail() != tail,
            }
    }

    /// The first command waits for its other half.
    pub fn wait(&mut self) {
        // As far as was looked: the other half may have come since.
        self.half = Some(self.seen);
    }

    /// The entry `ahead` of the first, if it is there.
    #[inline]
    fn peek(&mut self, ahead: u16) -> Found {
        if distance(self.head, self.seen, self.entries) <= ahead {
            let tail = self.told_tail();
            if tail >= self.entries {
                return Found::Broken;
            }
            self.seen = tail;
            if distance(self.head, tail, self.entries) <= ahead {
                return Found::Nothing;
            }
        }
        let at = usize::from(behind(self.head, ahead, self.entries)) * SQE_LEN;
        let mut bytes = [0; SQE_LEN];
        match &self.ring {
            Some(ring) if ring.read(at, &mut bytes) => Found::Command(zerocopy::transmute!(bytes)),
            _ => Found::Broken,
        }
    }

    /// The next command, if it may begin. It stays in the queue until [`Submission::advance`].
    #[inline]
    #[must_use]
    pub fn first(&mut self) -> Found {
        if self.under_way < self.entries { self.peek(0) } else { Found::Nothing }
    }

    /// The one behind it.
    #[must_use]
    pub fn second(&mut self) -> Found {
        self.peek(1)
    }

    /// The next commands are under way.
    #[inline]
    pub fn advance(&mut self, count: u16) {
        let there = distance(self.head, self.seen, self.entries);
        if there > count
            && let Some(ring) = &self.ring
        {
            // The next one, while this one is carried out.
            ring.prefetch(usize::from(behind(self.head, count, self.entries)) * SQE_LEN, false);
        }
        debug_assert!(count <= there, "what begins was looked at");
        self.most = self.most.max(self.under_way.saturating_add(there));
        self.head = behind(self.head, count, self.entries);
        self.under_way += count;
        self.half = None;
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            self.quieten(shadow);
        }
    }

    /// Has the host ring where it does not come soon. Just behind where it is: it goes there only when it comes round
    /// the end, and rings in vain then. Its memory is written to only when it may come there before the next look, for
    /// each time costs both sides.
    #[inline]
    fn quieten(&self, shadow: &Shadow) {
        // Behind the first entry is what no queue has.
        let gone = self.bell.get().map(|bell| distance(behind(bell, 1, self.entries), self.seen, self.entries));
        if gone.is_none_or(|gone| u32::from(gone) + u32::from(self.most) >= u32::from(self.entries) - 1) {
            let bell = self.seen.checked_sub(1).unwrap_or(self.entries - 1);
            shadow.ring_beyond(bell);
            self.bell.set(Some(bell));
        }
    }

    /// The host rings from now on when there is more than it has shown. Memory may not have it yet.
    pub fn arm(&self) {
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            shadow.ring_beyond(self.told_tail());
            self.bell.set(None);
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Completions {
    /// Which interrupt it raises.
    pub vector: Option<u16>,
    /// Where it is in the guest's memory, in bytes.
    pub address: u64,
    /// Submission queues that complete here.
    pub users: u16,
    /// How it is rung.
    pub doorbell: Doorbell,
    ring: Option<Window>,
    entries: u16,
    tail: u16,
    /// How far the host came.
    head: u16,
    phase: bool,
    /// Where the host rings, if that was said.
    bell: Option<u16>,
    /// What found no room. No more than there are commands under way.
    held: VecDeque<Completion>,
}

impl Completions {
    /// A queue of `entries`, which is empty.
    #[must_use]
    pub fn new(address: u64, entries: u16, vector: Option<u16>) -> Self {
        let (doorbell, held) = (Doorbell::Told, VecDeque::new());
        Self {
            vector,
            address,
            users: 0,
            doorbell,
            ring: None,
            entries,
            tail: 0,
            head: 0,
            phase: true,
            bell: None,
            held,
        }
    }

    /// What it is, and what waits for room.
    #[must_use]
    pub fn save(&self, id: u16) -> (CompletionQueue, Vec<Completion>) {
        let phase = if self.phase { CompletionQueue::PHASE } else { 0 };
        let interrupts = self.vector.map_or(0, |_| CompletionQueue::INTERRUPTS);
        let saved = CompletionQueue {
            id: id.into(),
            entries: self.entries.into(),
            head: self.told_head().into(),
            tail: self.tail.into(),
            flags: (phase | interrupts).into(),
            vector: self.vector.unwrap_or(0).into(),
            // No more than there are commands.
            held: (self.held.len() as u32).into(),
            address: self.address.into(),
        };
        (saved, self.held.iter().copied().collect())
    }

    /// What it was, of `entries_max` at most. `None`: none can be so.
    #[must_use]
    pub fn restore(saved: &CompletionQueue, held: &[Completion], entries_max: u16) -> Option<Self> {
        let (entries, head, tail) = (saved.entries.get(), saved.head.get(), saved.tail.get());
        let has = |flag: u16| saved.flags.get() & flag != 0;
        let vector = has(CompletionQueue::INTERRUPTS).then(|| saved.vector.get());
        let mut queue = Self::new(saved.address.get(), entries, vector);
        queue.tail = tail;
        // A head that is nonsense is one that was not heard: then nothing was read.
        queue.head = if head < entries { head } else { (tail + 1).checked_rem(entries)? };
        queue.phase = has(CompletionQueue::PHASE);
        queue.held = held.iter().copied().collect();
        ((2..=entries_max).contains(&entries) && tail < entries).then_some(queue)
    }

    /// How far it was written.
    #[must_use]
    pub fn tail(&self) -> u16 {
        self.tail
    }

    /// How many entries it has.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.entries) * CQE_LEN
    }

    /// Whether it has no entries: no queue is so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Where its bytes are now, and how it is rung.
    pub fn lie(&mut self, ring: Option<Window>, doorbell: Doorbell) {
        self.look();
        (self.ring, self.doorbell, self.bell) = (ring, doorbell, None);
    }

    /// The host tells how far it came. `false`: it cannot be.
    #[must_use]
    pub fn ring(&mut self, head: u16) -> bool {
        let fits = head < self.entries;
        if fits {
            self.head = head;
        }
        fits
    }

    /// Whether the host has entries to read.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.doorbell.value(self.head) != self.tail
    }

    /// How far the host has come, as it was told or has shown.
    #[must_use]
    pub fn told_head(&self) -> u16 {
        self.doorbell.value(self.head)
    }

    /// Whether something waits for room.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    fn look(&mut self) {
        let head = self.doorbell.value(self.head);
        // Nonsense is not heard.
        if head < self.entries {
            self.head = head;
        }
    }

    /// Completions that wait.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Completes what waits, and `more`, as far as there is room; the rest waits. Tells whether the host has something
    /// to see.
    #[inline]
    pub fn flush(&mut self, more: Option<Completion>) -> bool {
        let mut seen = false;
        while let Some(completion) = self.held.front().copied() {
            if !self.put(&completion) {
                break;
            }
            self.held.pop_front();
            seen = true;
        }
        let Some(more) = more else { return seen };
        if self.held.is_empty() && self.put(&more) {
            return true;
        }
        self.held.push_back(more);
        seen
    }

    /// An entry will be written soon.
    #[inline]
    pub fn expect_entry(&self) {
        if let Some(ring) = &self.ring {
            ring.prefetch(usize::from(self.tail) * CQE_LEN, true);
        }
    }

    /// Writes an entry; `false`: there is no room.
    #[inline]
    fn put(&mut self, completion: &Completion) -> bool {
        let next = behind(self.tail, 1, self.entries);
        if next == self.head {
            self.look();
            if next == self.head {
                return false;
            }
        }
        let mut bytes: [u8; CQE_LEN] = zerocopy::transmute!(*completion);
        bytes[CQE_LEN - 2] |= u8::from(self.phase);
        let (body, last) = bytes.split_at(CQE_LEN - 4);
        let last = u32::from_le_bytes(*last.first_chunk().unwrap_or(&[0; 4]));
        let at = usize::from(self.tail) * CQE_LEN;
        // The word with the phase goes last. Memory that is gone has no host that would read it.
        if let Some(ring) = &self.ring {
            let _ = ring.write(at, body) && ring.store(at + CQE_LEN - 4, last);
        }
        self.phase ^= next == 0;
        if self.bell.is_none_or(|bell| bell == self.tail) {
            self.quieten();
        }
        self.tail = next;
        true
    }

    /// Has the host ring where it cannot come: it reads no more than there is, and it is said anew before there is as
    /// much as that.
    fn quieten(&mut self) {
        if !matches!(self.doorbell, Doorbell::Shadow(_)) {
            return;
        }
        self.look();
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            let bell = self.head.checked_sub(1).unwrap_or(self.entries - 1);
            shadow.ring_beyond(bell);
            self.bell = Some(bell);
        }
    }

    /// The host rings from now on when it has read something, if there is something that waits for that.
    pub fn arm(&mut self) {
        if let Doorbell::Shadow(shadow) = &self.doorbell
            && self.is_held()
        {
            shadow.ring_beyond(self.head);
            self.bell = None;
        }
    }

    /// Whether what waits has room now.
    #[must_use]
    pub fn is_ripe(&self) -> bool {
        if !self.is_held() {
            return false;
        }
        let head = self.doorbell.value(self.head);
        head < self.entries && head != behind(self.tail, 1, self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Region;
    use lunar_guest::memory::Memory;
    use zerocopy::FromZeros;

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.map(0, 0x10000, Some(Region::zeroed(0x10000))).expect("free");
        memory
    }

    fn completion(cid: u16) -> Completion {
        let mut completion = Completion::new_zeroed();
        (completion.cid, completion.status) = (cid.into(), 0x8002.into());
        completion
    }

    #[test]
    fn completions_turn_their_phase_and_wait_for_room() {
        let memory = memory();
        let mut queue = Completions::new(0x1000, 3, Some(1));
        queue.lie(memory.window(0x1000, queue.len()), Doorbell::Told);
        let last = |at: u64| {
            let mut word = [0; 4];
            assert!(memory.read(0x1000 + at * 16 + 12, &mut word));
            u32::from_le_bytes(word)
        };
        let push = |queue: &mut Completions, cid| queue.flush(Some(completion(cid)));
        assert!(push(&mut queue, 7) && push(&mut queue, 8) && !push(&mut queue, 9));
        assert_eq!([last(0), last(1), last(2)], [0x8003_0007, 0x8003_0008, 0]);
        assert!(queue.is_held() && !queue.is_ripe() && queue.has_unread());
        assert!(queue.ring(1) && !queue.ring(3) && queue.is_ripe() && queue.flush(None) && !queue.is_held());
        assert_eq!(last(2), 0x8003_0009);
        assert!(queue.ring(2) && push(&mut queue, 10));
        assert_eq!(last(0), 0x8002_000a, "the second time round");
    }

    #[test]
    fn a_host_that_reads_does_not_ring() {
        let memory = memory();
        let (doorbells, events) = (memory.window(0x3000, 4096), memory.window(0x4000, 4096));
        let shadow = Shadow::new(&doorbells.expect("there"), &events.expect("there"), 3);
        for read in 1..=3_u16 {
            let mut queue = Completions::new(0x1000, 4, Some(1));
            queue.lie(memory.window(0x1000, queue.len()), Doorbell::Shadow(shadow.clone()));
            assert!(memory.write(0x300c, &[0; 4]));
            let mut told = 0_u16;
            for turn in 0..40_u16 {
                for cid in 0..read {
                    assert!(queue.flush(Some(completion(cid))), "{read} at a time, turn {turn}");
                }
                let mut event = [0; 4];
                assert!(memory.read(0x400c, &mut event));
                let (event, new) = (u32::from_le_bytes(event) as u16, behind(told, read, 4));
                assert!(new.wrapping_sub(event).wrapping_sub(1) >= new.wrapping_sub(told), "{read} at a time");
                assert!(memory.write(0x300c, &u32::from(new).to_le_bytes()));
                told = new;
            }
        }
    }

    #[test]
    fn commands_are_read_once_and_counted() {
        let memory = memory();
        let mut queue = Submission::new(1, 1, 0x2000, 4);
        queue.lie(memory.window(0x2000, queue.len()), Doorbell::Told);
        assert!(memory.write(0x2000 + 64, &[0x5a; 64]));
        assert!(matches!(queue.first(), Found::Nothing) && !queue.ring(4) && queue.ring(2));
        assert!(matches!((queue.first(), queue.second()), (Found::Command(_), Found::Command(b)) if b.opcode == 0x5a));
        queue.advance(2);
        assert!(matches!(queue.first(), Found::Nothing));
        assert!(queue.ring(0) && queue.is_ripe() && matches!(queue.first(), Found::Command(_)));
        queue.advance(2);
        assert!(queue.ring(1) && !queue.is_ripe() && matches!(queue.first(), Found::Nothing), "four are under way");
        queue.under_way = 0;
        queue.lie(None, Doorbell::Told);
        assert!(matches!(queue.first(), Found::Broken));
    }

    #[test]
    fn a_host_rings_only_when_it_is_asked_to() {
        let memory = memory();
        let (doorbells, events) = (memory.window(0x3000, 4096), memory.window(0x4000, 4096));
        let shadow = Shadow::new(&doorbells.expect("there"), &events.expect("there"), 2);
        let mut queue = Submission::new(1, 1, 0x2000, 4);
        queue.lie(memory.window(0x2000, queue.len()), Doorbell::Shadow(shadow));
        // What the host does: it rings if it passes the event.
        let mut told = 0_u16;
        let mut rings = |new: u16| {
            let mut event = [0; 4];
            assert!(memory.read(0x4008, &mut event) && memory.write(0x3008, &u32::from(new).to_le_bytes()));
            let event = u32::from_le_bytes(event) as u16;
            let (passed, gone) = (new.wrapping_sub(event).wrapping_sub(1), new.wrapping_sub(told));
            told = new;
            passed < gone
        };
        let take = |queue: &mut Submission, count| {
            for _ in 0..count {
                assert!(matches!(queue.first(), Found::Command(_)));
                queue.advance(1);
                queue.under_way -= 1;
            }
        };
        queue.arm();
        assert!(rings(1) && queue.is_ripe());
        take(&mut queue, 1);
        assert!(!rings(2) && !rings(3));
        take(&mut queue, 2);
        queue.arm();
        assert!(rings(0) && queue.is_ripe());
        take(&mut queue, 1);
        // Round the end, again and again, one at a time and as many as there is room for.
        for tail in (1..40).map(|tail| tail % 4) {
            assert!(!rings(tail));
            take(&mut queue, 1);
        }
        for tail in (0..40).map(|turn| (2 + turn * 3) % 4) {
            assert!(!rings(tail));
            take(&mut queue, 3);
        }
        assert!(memory.write(0x3008, &[99, 0, 0, 0]));
        assert!(matches!(queue.peek(0), Found::Broken));
    }
}
