//! A submission queue: commands are taken from it.

use super::{Doorbell, ShadowDoorbell, advanced, distance};
use lunar_core::wire::le;
use lunar_guest::window::Window;
use lunar_nvme::Sqe;
use lunar_nvme::command::SQE_LEN;
use std::cell::Cell;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A submission queue in a migration record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SavedSubmissionQueue {
    /// Queue identifier.
    pub id: le::U16,
    /// Identifier of its completion queue.
    pub completion_queue: le::U16,
    /// Number of entries.
    pub entries: le::U16,
    /// Entry that is read next.
    pub head: le::U16,
    /// Entry that the host writes next.
    pub tail: le::U16,
    /// Reserved.
    pub reserved: le::U16,
    /// Guest address.
    pub address: le::U64,
}

const _: () = assert!(size_of::<SavedSubmissionQueue>() == 20, "part of the record's format");

/// The result of a poll of a submission queue.
#[derive(Debug)]
pub enum Found {
    /// No command.
    Nothing,
    /// A command.
    Command(Sqe),
    /// The queue cannot be read: its memory is gone, or the doorbell is out of range.
    Broken,
}

/// A submission queue.
#[derive(Debug)]
pub struct SubmissionQueue {
    /// Queue identifier.
    pub id: u16,
    /// Identifier of its completion queue.
    pub completion_queue: u16,
    /// Guest address.
    pub address: u64,
    /// Commands that were taken and have not been completed.
    pub in_progress: u16,
    doorbell: Doorbell,
    ring: Option<Window>,
    entries: u16,
    head: u16,
    /// The last value that was written to the doorbell register.
    register: u16,
    /// The tail when the doorbell was read last. It is read again when all entries before it are taken: each look at a
    /// line of memory that the host writes costs both sides.
    tail: u16,
    /// Most commands that the host had in progress or waiting at one time.
    depth_max: u16,
    /// Where the host was asked to write the register, if the event index was set since the queue was located.
    event: Cell<Option<u16>>,
    /// The tail when only the first half of a fused operation was there: nothing can begin until it changes.
    half_at: Option<u16>,
}

impl SubmissionQueue {
    /// An empty queue of `entries`.
    #[must_use]
    pub fn new(id: u16, completion_queue: u16, address: u64, entries: u16) -> Self {
        Self {
            id,
            completion_queue,
            address,
            in_progress: 0,
            doorbell: Doorbell::Register,
            ring: None,
            entries,
            head: 0,
            register: 0,
            tail: 0,
            depth_max: 0,
            event: Cell::default(),
            half_at: None,
        }
    }

    /// The queue as a record has it. No command of it may be in progress.
    #[must_use]
    pub fn save(&self) -> SavedSubmissionQueue {
        SavedSubmissionQueue {
            id: self.id.into(),
            completion_queue: self.completion_queue.into(),
            entries: self.entries.into(),
            head: self.head.into(),
            tail: self.doorbell_value().into(),
            reserved: 0.into(),
            address: self.address.into(),
        }
    }

    /// The queue of a record, with `entries_max` entries at most. `None` when no queue can be so.
    #[must_use]
    pub fn restore(saved: &SavedSubmissionQueue, entries_max: u16) -> Option<Self> {
        let (entries, head, tail) = (saved.entries.get(), saved.head.get(), saved.tail.get());
        let fits = (2..=entries_max).contains(&entries) && head < entries;
        let mut queue = Self::new(saved.id.get(), saved.completion_queue.get(), saved.address.get(), entries);
        // A tail out of range was a doorbell value that the source had not accepted.
        (queue.head, queue.tail, queue.register) = (head, head, if tail < entries { tail } else { head });
        fits.then_some(queue)
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::from(self.entries) * SQE_LEN
    }

    /// Sets where the ring is now and where the doorbell is read.
    pub fn locate(&mut self, ring: Option<Window>, doorbell: Doorbell) {
        // The value of the old place holds where there is no new one. Otherwise old entries would be taken again.
        let value = self.doorbell_value();
        if value < self.entries {
            self.register = value;
        }
        (self.ring, self.doorbell) = (ring, doorbell);
        self.event.set(None);
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Entry that is read next.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// The doorbell register is written. `false` when the value is out of range: then the queue is as it was.
    #[must_use]
    pub fn write_doorbell(&mut self, tail: u16) -> bool {
        let fits = tail < self.entries;
        if fits {
            self.register = tail;
        }
        fits
    }

    /// The tail of the host, unchecked.
    #[inline]
    #[must_use]
    pub fn doorbell_value(&self) -> u16 {
        self.doorbell.value(self.register)
    }

    /// Whether there is a command that may begin. No more commands are in progress than the queue has entries:
    /// otherwise a host that waits for none of them could have any number.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.in_progress < self.entries
            && match self.half_at {
                None => self.tail != self.head || self.doorbell_value() != self.head,
                Some(tail) => self.doorbell_value() != tail,
            }
    }

    /// The next command waits for the second half of its fused operation.
    pub fn await_second(&mut self) {
        // As far as the queue was looked at. The second half may have come since.
        self.half_at = Some(self.tail);
    }

    /// The entry `ahead` of the next one, if it is there.
    #[inline]
    fn peek(&mut self, ahead: u16) -> Found {
        if distance(self.head, self.tail, self.entries) <= ahead {
            let tail = self.doorbell_value();
            if tail >= self.entries {
                return Found::Broken;
            }
            self.tail = tail;
            if distance(self.head, tail, self.entries) <= ahead {
                return Found::Nothing;
            }
        }
        let at = usize::from(advanced(self.head, ahead, self.entries)) * SQE_LEN;
        let mut bytes = [0; SQE_LEN];
        match &self.ring {
            Some(ring) if ring.read(at, &mut bytes) => Found::Command(zerocopy::transmute!(bytes)),
            _ => Found::Broken,
        }
    }

    /// The next command, if it may begin. It stays in the queue until [`SubmissionQueue::advance`].
    #[inline]
    #[must_use]
    pub fn first(&mut self) -> Found {
        if self.in_progress < self.entries { self.peek(0) } else { Found::Nothing }
    }

    /// The command after the next one.
    #[must_use]
    pub fn second(&mut self) -> Found {
        self.peek(1)
    }

    /// Takes the next `count` commands, which were looked at.
    #[inline]
    pub fn advance(&mut self, count: u16) {
        let there = distance(self.head, self.tail, self.entries);
        if there > count
            && let Some(ring) = &self.ring
        {
            // The entry after them is read while they are carried out.
            ring.prefetch(usize::from(advanced(self.head, count, self.entries)) * SQE_LEN, false);
        }
        debug_assert!(count <= there, "only polled commands are taken");
        self.depth_max = self.depth_max.max(self.in_progress.saturating_add(there));
        self.head = advanced(self.head, count, self.entries);
        self.in_progress += count;
        self.half_at = None;
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            self.suppress(shadow);
        }
    }

    /// Keeps the host from writing the register, while the queue is polled: sets the event index just behind the tail,
    /// which the host passes only when it comes round the end of the ring. The index is written again only when the
    /// host could come there before the next look, because each write costs both sides.
    #[inline]
    fn suppress(&self, shadow: &ShadowDoorbell) {
        // With the index at `event`, the host writes the register when it goes from `event` to the entry after it.
        let gone = self.event.get().map(|event| distance(advanced(event, 1, self.entries), self.tail, self.entries));
        if gone.is_none_or(|gone| u32::from(gone) + u32::from(self.depth_max) >= u32::from(self.entries) - 1) {
            let event = self.tail.checked_sub(1).unwrap_or(self.entries - 1);
            shadow.set_event(event);
            self.event.set(Some(event));
        }
    }

    /// Has the host write the register with its next command. The write to memory may still be under way: a fence and
    /// another look must follow.
    pub fn arm(&self) {
        if let Doorbell::Shadow(shadow) = &self.doorbell {
            shadow.set_event(self.doorbell_value());
            self.event.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Region;
    use lunar_guest::memory::Memory;

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.map(0, 0x10000, Some(Region::zeroed(0x10000))).expect("free");
        memory
    }

    #[test]
    fn commands_are_read_once_and_counted() {
        let memory = memory();
        let mut queue = SubmissionQueue::new(1, 1, 0x2000, 4);
        queue.locate(memory.window(0x2000, queue.bytes()), Doorbell::Register);
        assert!(memory.write(0x2000 + 64, &[0x5a; 64]));
        assert!(matches!(queue.first(), Found::Nothing) && !queue.write_doorbell(4) && queue.write_doorbell(2));
        assert!(matches!((queue.first(), queue.second()), (Found::Command(_), Found::Command(b)) if b.opcode == 0x5a));
        queue.advance(2);
        assert!(matches!(queue.first(), Found::Nothing));
        assert!(queue.write_doorbell(0) && queue.has_work() && matches!(queue.first(), Found::Command(_)));
        queue.advance(2);
        assert!(queue.write_doorbell(1) && !queue.has_work(), "four are in progress");
        assert!(matches!(queue.first(), Found::Nothing));
        queue.in_progress = 0;
        queue.locate(None, Doorbell::Register);
        assert!(matches!(queue.first(), Found::Broken));
    }

    #[test]
    fn a_host_writes_the_register_only_when_it_is_asked_to() {
        let memory = memory();
        let (doorbells, events) = (memory.window(0x3000, 4096), memory.window(0x4000, 4096));
        let shadow = ShadowDoorbell::new(&doorbells.expect("there"), &events.expect("there"), 2);
        let mut queue = SubmissionQueue::new(1, 1, 0x2000, 4);
        queue.locate(memory.window(0x2000, queue.bytes()), Doorbell::Shadow(shadow));
        // As a host does it: writes its shadow doorbell, and the register when it passes the event index.
        let mut last = 0_u16;
        let mut writes_register = |new: u16| {
            let mut event = [0; 4];
            assert!(memory.read(0x4008, &mut event) && memory.write(0x3008, &u32::from(new).to_le_bytes()));
            let event = u32::from_le_bytes(event) as u16;
            let (passed, gone) = (new.wrapping_sub(event).wrapping_sub(1), new.wrapping_sub(last));
            last = new;
            passed < gone
        };
        let take = |queue: &mut SubmissionQueue, count| {
            for _ in 0..count {
                assert!(matches!(queue.first(), Found::Command(_)));
                queue.advance(1);
                queue.in_progress -= 1;
            }
        };
        queue.arm();
        assert!(writes_register(1) && queue.has_work());
        take(&mut queue, 1);
        assert!(!writes_register(2) && !writes_register(3));
        take(&mut queue, 2);
        queue.arm();
        assert!(writes_register(0) && queue.has_work());
        take(&mut queue, 1);
        // Round the end of the ring many times, with one command at a time and with as many as there is room for.
        for tail in (1..40).map(|tail| tail % 4) {
            assert!(!writes_register(tail));
            take(&mut queue, 1);
        }
        for tail in (0..40).map(|turn| (2 + turn * 3) % 4) {
            assert!(!writes_register(tail));
            take(&mut queue, 3);
        }
        assert!(memory.write(0x3008, &[99, 0, 0, 0]));
        assert!(matches!(queue.peek(0), Found::Broken));
    }
}
