//! Submission and completion queues in the guest's memory (NVMe Base 2.0 3.3.1).

use crate::memory::Window;
use crate::record::{CompletionQueue, SubmissionQueue};
use lunar_core::wire::le;
use lunar_nvme::Sqe;
use lunar_nvme::command::SQE_LEN;
use std::collections::VecDeque;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

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

    fn value(&self) -> Option<u16> {
        // The rest of the word means nothing.
        self.doorbell.load(self.at).map(|value| value as u16)
    }

    /// The host rings when it goes beyond `value`.
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
    /// How far the host had come when half of a fused operation was there: until it comes farther nothing can begin.
    half: Option<u16>,
}

/// What a look at a submission queue finds.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A command.
    Command(Box<Sqe>),
    /// It cannot be read: its memory is gone, or what the host tells is nonsense.
    Broken,
}

impl Submission {
    /// A queue of `entries`, which is empty.
    #[must_use]
    pub fn new(id: u16, completions: u16, address: u64, entries: u16) -> Self {
        let doorbell = Doorbell::Told;
        Self { id, completions, address, under_way: 0, doorbell, ring: None, entries, head: 0, told: 0, half: None }
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
        (queue.head, queue.told) = (head, if tail < entries { tail } else { head });
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

    /// Where its bytes are now.
    pub fn lie(&mut self, ring: Option<Window>) {
        self.ring = ring;
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
    #[must_use]
    pub fn told_tail(&self) -> u16 {
        self.doorbell.value(self.told)
    }

    /// Whether there is a command that may begin. Commands under way are as many as there are entries at most, or a
    /// host that does not wait for any would have them without end.
    #[must_use]
    pub fn is_ripe(&self) -> bool {
        let tail = self.told_tail();
        self.under_way < self.entries && tail != self.head && self.half != Some(tail)
    }

    /// The first command waits for its other half.
    pub fn wait(&mut self) {
        self.half = Some(self.told_tail());
    }

    /// The entry `ahead` of the first, if it is there.
    fn peek(&self, ahead: u16) -> Found {
        let tail = self.doorbell.value(self.told);
        if tail >= self.entries {
            return Found::Broken;
        }
        let there = (tail + self.entries - self.head) % self.entries;
        if ahead >= there {
            return Found::Nothing;
        }
        let at = usize::from((self.head + ahead) % self.entries) * SQE_LEN;
        let mut sqe = Box::new(Sqe::new_zeroed());
        match &self.ring {
            Some(ring) if ring.read(at, sqe.as_mut_bytes()) => Found::Command(sqe),
            _ => Found::Broken,
        }
    }

    /// The next command, if it may begin. It stays in the queue until [`Submission::advance`].
    #[must_use]
    pub fn next(&self) -> Found {
        if self.under_way < self.entries { self.peek(0) } else { Found::Nothing }
    }

    /// The one behind it.
    #[must_use]
    pub fn second(&self) -> Found {
        self.peek(1)
    }

    /// The next commands are under way.
    pub fn advance(&mut self, count: u16) {
        self.head = (self.head + count) % self.entries;
        self.under_way += count;
        self.half = None;
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            // Just behind: the host goes beyond it only when it comes round to it, and rings in vain.
            shadow.ring_beyond(self.doorbell.value(self.told).wrapping_sub(1));
        }
    }

    /// The host rings from now on when there is more than it has shown. Memory may not have it yet.
    pub fn arm(&self) {
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            shadow.ring_beyond(self.told_tail());
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
    /// What found no room. No more than there are commands under way.
    held: VecDeque<Completion>,
}

impl Completions {
    /// A queue of `entries`, which is empty.
    #[must_use]
    pub fn new(address: u64, entries: u16, vector: Option<u16>) -> Self {
        let (doorbell, held) = (Doorbell::Told, VecDeque::new());
        Self { vector, address, users: 0, doorbell, ring: None, entries, tail: 0, head: 0, phase: true, held }
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

    /// Where its bytes are now.
    pub fn lie(&mut self, ring: Option<Window>) {
        self.ring = ring;
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

    /// Completes a command with the next [`Completions::flush`].
    pub fn hold(&mut self, completion: Completion) {
        self.held.push_back(completion);
    }

    /// Completions that wait.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Completes what waits, as far as there is room. Tells whether the host has something to see.
    pub fn flush(&mut self) -> bool {
        let mut seen = false;
        while let Some(completion) = self.held.front().copied() {
            let next = (self.tail + 1) % self.entries;
            if next == self.head {
                self.look();
                if next == self.head {
                    break;
                }
            }
            let mut bytes = [0; CQE_LEN];
            bytes.copy_from_slice(completion.as_bytes());
            bytes[CQE_LEN - 2] |= u8::from(self.phase);
            let (body, last) = bytes.split_at(CQE_LEN - 4);
            let last = u32::from_le_bytes(*last.first_chunk().unwrap_or(&[0; 4]));
            let at = usize::from(self.tail) * CQE_LEN;
            // The word with the phase goes last. Memory that is gone has no host that would read it.
            if let Some(ring) = &self.ring {
                let _ = ring.write(at, body) && ring.store(at + CQE_LEN - 4, last);
            }
            self.held.pop_front();
            self.phase ^= next == 0;
            self.tail = next;
            seen = true;
        }
        seen
    }

    /// The host rings from now on when it has read something, if there is something that waits for that.
    pub fn arm(&self) {
        if let Doorbell::Shadow(shadow) = &self.doorbell
            && self.is_held()
        {
            shadow.ring_beyond(self.head);
        }
    }

    /// Whether what waits has room now.
    #[must_use]
    pub fn is_ripe(&self) -> bool {
        let head = self.doorbell.value(self.head);
        self.is_held() && head < self.entries && head != (self.tail + 1) % self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use lunar_core::mem::Region;

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
        queue.lie(memory.window(0x1000, queue.len()));
        let last = |at: u64| {
            let mut word = [0; 4];
            assert!(memory.read(0x1000 + at * 16 + 12, &mut word));
            u32::from_le_bytes(word)
        };
        let push = |queue: &mut Completions, cid| {
            queue.hold(completion(cid));
            queue.flush()
        };
        assert!(push(&mut queue, 7) && push(&mut queue, 8) && !push(&mut queue, 9));
        assert_eq!([last(0), last(1), last(2)], [0x8003_0007, 0x8003_0008, 0]);
        assert!(queue.is_held() && !queue.is_ripe() && queue.has_unread());
        assert!(queue.ring(1) && !queue.ring(3) && queue.is_ripe() && queue.flush() && !queue.is_held());
        assert_eq!(last(2), 0x8003_0009);
        assert!(queue.ring(2) && push(&mut queue, 10));
        assert_eq!(last(0), 0x8002_000a, "the second time round");
    }

    #[test]
    fn commands_are_read_once_and_counted() {
        let memory = memory();
        let mut queue = Submission::new(1, 1, 0x2000, 4);
        queue.lie(memory.window(0x2000, queue.len()));
        assert!(memory.write(0x2000 + 64, &[0x5a; 64]));
        assert!(matches!(queue.next(), Found::Nothing) && !queue.ring(4) && queue.ring(2));
        assert!(
            matches!((queue.next(), queue.second()), (Found::Command(_), Found::Command(other)) if other.opcode == 0x5a)
        );
        queue.advance(2);
        assert!(matches!(queue.next(), Found::Nothing));
        assert!(queue.ring(0) && queue.is_ripe());
        queue.advance(2);
        assert!(queue.ring(1) && !queue.is_ripe() && matches!(queue.next(), Found::Nothing), "four are under way");
        queue.under_way = 0;
        queue.lie(None);
        assert!(matches!(queue.next(), Found::Broken));
    }

    #[test]
    fn a_host_rings_only_when_it_is_asked_to() {
        let memory = memory();
        let (doorbells, events) = (memory.window(0x3000, 4096), memory.window(0x4000, 4096));
        let shadow = Shadow::new(&doorbells.expect("there"), &events.expect("there"), 2);
        let mut queue = Submission::new(1, 1, 0x2000, 4);
        queue.lie(memory.window(0x2000, queue.len()));
        queue.doorbell = Doorbell::Shadow(shadow);
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
        queue.arm();
        assert!(rings(1) && queue.is_ripe());
        queue.advance(1);
        assert!(!rings(2) && !rings(3));
        queue.advance(2);
        queue.arm();
        assert!(rings(0) && queue.is_ripe());
        assert!(memory.write(0x3008, &[99, 0, 0, 0]));
        assert!(matches!(queue.peek(0), Found::Broken));
    }
}
