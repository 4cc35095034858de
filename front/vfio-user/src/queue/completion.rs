//! A completion queue: completions are written to it.

use super::{Doorbell, advanced};
use lunar_core::wire::le;
use lunar_guest::window::Window;
use std::collections::VecDeque;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A completion queue entry (NVMe Base 2.0 3.3.3.2). The phase tag is added when the entry is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// Dwords 0 and 1.
    pub result: le::U64,
    /// Head of the submission queue.
    pub head: le::U16,
    /// Identifier of the submission queue.
    pub queue: le::U16,
    /// Command identifier.
    pub cid: le::U16,
    /// Status field; bit 0 is the phase tag.
    pub status: le::U16,
}

/// Bytes of a completion queue entry.
pub const CQE_LEN: usize = 16;

const _: () = assert!(size_of::<Cqe>() == CQE_LEN && std::mem::offset_of!(Cqe, cid) == CQE_LEN - 4);

/// A completion queue in a migration record. The completions that found no room follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SavedCompletionQueue {
    /// Queue identifier.
    pub id: le::U16,
    /// Number of entries.
    pub entries: le::U16,
    /// Entry that the host reads next.
    pub head: le::U16,
    /// Entry that is written next.
    pub tail: le::U16,
    /// [`SavedCompletionQueue::PHASE`], [`SavedCompletionQueue::INTERRUPTS`].
    pub flags: le::U16,
    /// Interrupt vector.
    pub vector: le::U16,
    /// Completions that follow.
    pub deferred: le::U32,
    /// Guest address.
    pub address: le::U64,
}

const _: () = assert!(size_of::<SavedCompletionQueue>() == 24, "part of the record's format");

impl SavedCompletionQueue {
    /// Phase tag of the next completion.
    pub const PHASE: u16 = 0x01;
    /// The queue raises interrupts.
    pub const INTERRUPTS: u16 = 0x02;
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    /// Interrupt vector; `None`: the queue raises no interrupts.
    pub vector: Option<u16>,
    /// Guest address.
    pub address: u64,
    /// Submission queues that complete here.
    pub users: u16,
    doorbell: Doorbell,
    ring: Option<Window>,
    entries: u16,
    tail: u16,
    /// The head when the doorbell was read last, or what was written to the register.
    head: u16,
    phase: bool,
    /// Where the host was asked to write the register, if the event index was set since the queue was located.
    event: Option<u16>,
    /// Completions that found no room. No more than there are commands in progress.
    deferred: VecDeque<Cqe>,
}

impl CompletionQueue {
    /// An empty queue of `entries`.
    #[must_use]
    pub fn new(address: u64, entries: u16, vector: Option<u16>) -> Self {
        Self {
            vector,
            address,
            users: 0,
            doorbell: Doorbell::Register,
            ring: None,
            entries,
            tail: 0,
            head: 0,
            phase: true,
            event: None,
            deferred: VecDeque::new(),
        }
    }

    /// The queue as a record has it, and the completions that found no room.
    #[must_use]
    pub fn save(&self, id: u16) -> (SavedCompletionQueue, Vec<Cqe>) {
        let phase = if self.phase { SavedCompletionQueue::PHASE } else { 0 };
        let interrupts = self.vector.map_or(0, |_| SavedCompletionQueue::INTERRUPTS);
        let saved = SavedCompletionQueue {
            id: id.into(),
            entries: self.entries.into(),
            head: self.doorbell_value().into(),
            tail: self.tail.into(),
            flags: (phase | interrupts).into(),
            vector: self.vector.unwrap_or(0).into(),
            // No more than there are commands.
            deferred: (self.deferred.len() as u32).into(),
            address: self.address.into(),
        };
        (saved, self.deferred.iter().copied().collect())
    }

    /// The queue of a record, with `entries_max` entries at most. `None` when no queue can be so.
    #[must_use]
    pub fn restore(saved: &SavedCompletionQueue, deferred: &[Cqe], entries_max: u16) -> Option<Self> {
        let (entries, head, tail) = (saved.entries.get(), saved.head.get(), saved.tail.get());
        let has = |flag: u16| saved.flags.get() & flag != 0;
        let vector = has(SavedCompletionQueue::INTERRUPTS).then(|| saved.vector.get());
        let mut queue = Self::new(saved.address.get(), entries, vector);
        queue.tail = tail;
        // A head out of range was a doorbell value that the source had not accepted: assume that nothing was read.
        queue.head = if head < entries { head } else { tail.wrapping_add(1).checked_rem(entries)? };
        queue.phase = has(SavedCompletionQueue::PHASE);
        queue.deferred = deferred.iter().copied().collect();
        ((2..=entries_max).contains(&entries) && tail < entries).then_some(queue)
    }

    /// Entry that is written next.
    #[must_use]
    pub fn tail(&self) -> u16 {
        self.tail
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::from(self.entries) * CQE_LEN
    }

    /// Sets where the ring is now and where the doorbell is read.
    pub fn locate(&mut self, ring: Option<Window>, doorbell: Doorbell) {
        self.read_doorbell();
        (self.ring, self.doorbell, self.event) = (ring, doorbell, None);
    }

    /// The doorbell register is written. `false` when the value is out of range: then the queue is as it was.
    #[must_use]
    pub fn write_doorbell(&mut self, head: u16) -> bool {
        let fits = head < self.entries;
        if fits {
            self.head = head;
        }
        fits
    }

    /// Whether the host has entries to read.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.doorbell_value() != self.tail
    }

    /// The head of the host, unchecked.
    #[must_use]
    pub fn doorbell_value(&self) -> u16 {
        self.doorbell.value(self.head)
    }

    /// Whether completions wait for room.
    #[must_use]
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    fn read_doorbell(&mut self) {
        let head = self.doorbell_value();
        // A value out of range is ignored.
        if head < self.entries {
            self.head = head;
        }
    }

    /// Writes the deferred completions, and then `more`, as far as there is room; the rest is deferred. Returns whether
    /// anything was written.
    #[inline]
    pub fn flush(&mut self, more: Option<Cqe>) -> bool {
        let mut has_written = false;
        while let Some(cqe) = self.deferred.front().copied() {
            if !self.put(&cqe) {
                break;
            }
            self.deferred.pop_front();
            has_written = true;
        }
        let Some(more) = more else { return has_written };
        if self.deferred.is_empty() && self.put(&more) {
            return true;
        }
        self.deferred.push_back(more);
        has_written
    }

    /// An entry will be written soon.
    #[inline]
    pub fn expect_entry(&self) {
        if let Some(ring) = &self.ring {
            ring.prefetch(usize::from(self.tail) * CQE_LEN, true);
        }
    }

    /// Writes an entry; `false` when there is no room.
    #[inline]
    fn put(&mut self, cqe: &Cqe) -> bool {
        let next = advanced(self.tail, 1, self.entries);
        if next == self.head {
            self.read_doorbell();
            if next == self.head {
                return false;
            }
        }
        let mut bytes: [u8; CQE_LEN] = zerocopy::transmute!(*cqe);
        bytes[CQE_LEN - 2] |= u8::from(self.phase);
        let (body, last) = bytes.split_at(CQE_LEN - 4);
        let last = u32::from_le_bytes(*last.first_chunk().unwrap_or(&[0; 4]));
        let at = usize::from(self.tail) * CQE_LEN;
        // The word with the phase tag is written last. Where the memory is gone, there is no host to read the entry.
        if let Some(ring) = &self.ring {
            let _ = ring.write(at, body) && ring.store(at + CQE_LEN - 4, last);
        }
        self.phase ^= next == 0;
        if self.event.is_none_or(|event| event == self.tail) {
            self.suppress();
        }
        self.tail = next;
        true
    }

    /// Keeps the host from writing the register when it has read entries: sets the event index just behind the head.
    /// The host passes it only after a whole round, and the index is set again before there is as much to read.
    fn suppress(&mut self) {
        if !matches!(self.doorbell, Doorbell::Shadow(_)) {
            return;
        }
        self.read_doorbell();
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            let event = self.head.checked_sub(1).unwrap_or(self.entries - 1);
            shadow.set_event(event);
            self.event = Some(event);
        }
    }

    /// Has the host write the register when it has read an entry, if a completion waits for that. The write to memory
    /// may still be under way: a fence and another look must follow.
    pub fn arm(&mut self) {
        if let Doorbell::Shadow(shadow) = &self.doorbell
            && self.has_deferred()
        {
            shadow.set_event(self.head);
            self.event = None;
        }
    }

    /// Whether a deferred completion has room now.
    #[must_use]
    pub fn has_work(&self) -> bool {
        if !self.has_deferred() {
            return false;
        }
        let head = self.doorbell_value();
        head < self.entries && head != advanced(self.tail, 1, self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ShadowDoorbell;
    use super::*;
    use lunar_core::mem::Region;
    use lunar_guest::memory::Memory;
    use zerocopy::FromZeros;

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.map(0, 0x10000, Some(Region::zeroed(0x10000))).expect("free");
        memory
    }

    fn cqe(cid: u16) -> Cqe {
        let mut cqe = Cqe::new_zeroed();
        (cqe.cid, cqe.status) = (cid.into(), 0x8002.into());
        cqe
    }

    #[test]
    fn completions_change_their_phase_each_round_and_wait_for_room() {
        let memory = memory();
        let mut queue = CompletionQueue::new(0x1000, 3, Some(1));
        queue.locate(memory.window(0x1000, queue.bytes()), Doorbell::Register);
        let last = |at: u64| {
            let mut word = [0; 4];
            assert!(memory.read(0x1000 + at * 16 + 12, &mut word));
            u32::from_le_bytes(word)
        };
        let push = |queue: &mut CompletionQueue, cid| queue.flush(Some(cqe(cid)));
        assert!(push(&mut queue, 7) && push(&mut queue, 8) && !push(&mut queue, 9));
        assert_eq!([last(0), last(1), last(2)], [0x8003_0007, 0x8003_0008, 0]);
        assert!(queue.has_deferred() && !queue.has_work() && queue.has_unread());
        assert!(queue.write_doorbell(1) && !queue.write_doorbell(3) && queue.has_work());
        assert!(queue.flush(None) && !queue.has_deferred());
        assert_eq!(last(2), 0x8003_0009);
        assert!(queue.write_doorbell(2) && push(&mut queue, 10));
        assert_eq!(last(0), 0x8002_000a, "the second round");
    }

    #[test]
    fn a_host_that_reads_completions_does_not_write_the_register() {
        let memory = memory();
        let (doorbells, events) = (memory.window(0x3000, 4096), memory.window(0x4000, 4096));
        let shadow = ShadowDoorbell::new(&doorbells.expect("there"), &events.expect("there"), 3);
        for read in 1..=3_u16 {
            let mut queue = CompletionQueue::new(0x1000, 4, Some(1));
            queue.locate(memory.window(0x1000, queue.bytes()), Doorbell::Shadow(shadow.clone()));
            assert!(memory.write(0x300c, &[0; 4]));
            let mut last = 0_u16;
            for turn in 0..40_u16 {
                for cid in 0..read {
                    assert!(queue.flush(Some(cqe(cid))), "{read} at a time, turn {turn}");
                }
                let mut event = [0; 4];
                assert!(memory.read(0x400c, &mut event));
                let (event, new) = (u32::from_le_bytes(event) as u16, advanced(last, read, 4));
                assert!(new.wrapping_sub(event).wrapping_sub(1) >= new.wrapping_sub(last), "{read} at a time");
                assert!(memory.write(0x300c, &u32::from(new).to_le_bytes()));
                last = new;
            }
        }
    }
}
