//! The rings of one queue, in memory that Lunar and the handler share: commands in one, answers in the other.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 | magic u32, version u32, depth u32, generation u32 |
//! | 64 | commands that Lunar has submitted, u32 |
//! | 128 | answers that the handler has given, u32 |
//! | 192 | 1: the handler sleeps, and waits for its eventfd, u32 |
//! | 256 | 1: Lunar sleeps, and waits for its eventfd, u32 |
//! | 4096 | `depth` commands of 64 bytes, then `depth` answers of 32 bytes |
//!
//! Counters run freely; entry N of a ring is at N modulo `depth`. A side writes an entry, then the counter with release
//! order; then it looks, behind a full fence, whether the other side sleeps. To sleep, a side writes 1, and looks for
//! entries once more behind a full fence. Answers come in any order.
//!
//! There are at most `depth` commands without an answer, so neither ring overflows: a side needs no counter of the
//! entries that the other side has taken.

use crate::wire::{Completion, Operation, Status, Submission};
use lunar_core::io::Extent;
use lunar_core::mem::Region;
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use zerocopy::{FromBytes, IntoBytes};

/// The first bytes of the rings: `LNRH`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"LNRH");
/// The version of the layout.
pub const VERSION: u32 = 1;
/// Where the parts are: see the table.
pub mod at {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`].
    pub const VERSION: usize = 4;
    /// Slots.
    pub const DEPTH: usize = 8;
    /// The generation of the queue.
    pub const GENERATION: usize = 12;
    /// Commands submitted.
    pub const SUBMITTED: usize = 64;
    /// Commands answered.
    pub const COMPLETED: usize = 128;
    /// Whether the handler sleeps.
    pub const HANDLER_SLEEPS: usize = 192;
    /// Whether Lunar sleeps.
    pub const LUNAR_SLEEPS: usize = 256;
    /// The first command.
    pub const SUBMISSIONS: usize = 4096;
}
/// Most slots of a queue: one core has no more commands in progress at one volume, and slot numbers are small.
pub const DEPTH_MAX: u32 = 1024;
/// Bytes of a command in the ring.
pub const SUBMISSION_BYTES: usize = size_of::<Submission>();
/// Bytes of an answer in the ring.
pub const COMPLETION_BYTES: usize = size_of::<Completion>();

const PAGE: usize = 4096;
/// Entries ahead that are fetched before they are written: the other processor has read them.
const AHEAD: u32 = 2;
/// So many commands are published without waiting for further ones: the handler executes them meanwhile.
const PUBLISHED_AT_ONCE: u32 = 8;

/// Bytes of the memory of rings with so many slots.
#[must_use]
pub const fn ring_bytes(depth: u32) -> usize {
    (at::SUBMISSIONS + depth as usize * (SUBMISSION_BYTES + COMPLETION_BYTES)).next_multiple_of(PAGE)
}

/// The memory, and where the entries are in it.
#[derive(Debug)]
struct Rings {
    memory: Region,
    depth: u32,
}

/// The memory of rings always has the parts: its length is checked when an end is made.
const INSIDE: &str = "the memory is as long as its rings";

impl Rings {
    fn load(&self, at: usize) -> u32 {
        self.memory.load(at).expect(INSIDE)
    }

    fn store(&self, at: usize, value: u32) {
        assert!(self.memory.store(at, value), "{INSIDE}");
    }

    fn submission(&self, index: u32) -> usize {
        at::SUBMISSIONS + (index & (self.depth - 1)) as usize * SUBMISSION_BYTES
    }

    fn completion(&self, index: u32) -> usize {
        let first = at::SUBMISSIONS + self.depth as usize * SUBMISSION_BYTES;
        first + (index & (self.depth - 1)) as usize * COMPLETION_BYTES
    }

    fn read<T: FromBytes + IntoBytes>(&self, at: usize) -> T {
        let mut entry = T::new_zeroed();
        assert!(self.memory.read(at, entry.as_mut_bytes()), "{INSIDE}");
        entry
    }

    fn write(&self, at: usize, entry: &[u8]) {
        assert!(self.memory.write(at, entry), "{INSIDE}");
    }

    fn prefetch(&self, at: usize, is_written: bool) {
        self.memory.prefetch(at, is_written);
    }

    /// Whether the other side, whose word this is, must be woken after something was published for it.
    fn must_wake(&self, sleeps: usize) -> bool {
        fence(Ordering::SeqCst);
        let is_asleep = self.load(sleeps) == 1;
        if is_asleep {
            self.store(sleeps, 0);
        }
        is_asleep
    }

    /// Says that this side, whose word this is, is about to sleep; whether it may, because the other side has
    /// published nothing since `seen`.
    fn may_sleep(&self, sleeps: usize, counter: usize, seen: u32) -> bool {
        self.store(sleeps, 1);
        fence(Ordering::SeqCst);
        let may = self.load(counter) == seen;
        if !may {
            self.store(sleeps, 0);
        }
        may
    }
}

/// A command that Lunar submits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The operation.
    pub operation: Operation,
    /// [`crate::wire::flags`].
    pub flags: u8,
    /// The first byte on the volume, or the number that the operation has in its place: see [`Submission`].
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The first byte of the data, or of the frame, in the memory of the data.
    pub data: u64,
    /// The time after which Lunar reports a failure.
    pub timeout_milliseconds: u32,
}

/// The answer to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The slot of the command, which is free now.
    pub slot: u16,
    /// How the command ended.
    pub status: Status,
    /// The end of a SCSI command.
    pub scsi: ScsiEnd,
    /// The answer to EXTENT as the handler says it. Zero bytes for other commands.
    pub extent: Extent,
}

/// The end of a SCSI command that was executed, without the sense data themselves. Zeroes for other commands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScsiEnd {
    /// The SCSI status.
    pub status: u8,
    /// Bytes of the data that were moved.
    pub moved: u32,
    /// Bytes of the sense data in the frame.
    pub sense_length: u16,
}

/// A breach of the protocol by the handler: nothing that it writes is trusted any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The counter of answers says that there are so many more, and fewer commands are in progress.
    TooMany(u32),
    /// There is no slot of this number.
    NoSlot(u16),
    /// The slot of this number has no command: it was answered before, or never used.
    FreeSlot(u16),
    /// The answer names another command than the slot of this number has.
    OtherCommand(u16),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(count) => write!(f, "its counter of answers advanced by {count}, beyond all commands"),
            Self::NoSlot(slot) => write!(f, "it answered slot {slot}, which does not exist"),
            Self::FreeSlot(slot) => write!(f, "it answered slot {slot}, which has no command (answered twice?)"),
            Self::OtherCommand(slot) => write!(f, "its answer to slot {slot} names another command"),
        }
    }
}

impl std::error::Error for Violation {}

/// Lunar's end. Lunar makes the memory; the other process may write anything to it at any time.
#[derive(Debug)]
pub struct TargetEnd {
    rings: Rings,
    generation: u32,
    submitted: u32,
    /// The commands that the handler can see.
    published: u32,
    completed: u32,
    /// The answers that the handler had given when it was looked last: looking takes the line from its processor.
    answered: u32,
    sequence: u64,
    /// The number of the command in each slot; zero: the slot is free.
    slots: Vec<u64>,
    free: Vec<u16>,
}

impl TargetEnd {
    /// Rings of `depth` slots in zeroed memory of [`ring_bytes`].
    ///
    /// # Panics
    /// When `depth` is not a power of two or above [`DEPTH_MAX`], or the memory is too short.
    #[must_use]
    pub fn new(memory: Region, depth: u32, generation: u32) -> Self {
        assert!(depth.is_power_of_two() && depth <= DEPTH_MAX && memory.len() >= ring_bytes(depth), "{depth}");
        let rings = Rings { memory, depth };
        let words = [
            (at::MAGIC, MAGIC),
            (at::VERSION, VERSION),
            (at::DEPTH, depth),
            (at::GENERATION, generation),
            (at::SUBMITTED, 0),
            (at::COMPLETED, 0),
        ];
        words.iter().for_each(|(at, word)| rings.store(*at, *word));
        let free = (0..depth as u16).rev().collect();
        let slots = vec![0; depth as usize];
        Self { rings, generation, submitted: 0, published: 0, completed: 0, answered: 0, sequence: 0, slots, free }
    }

    /// Commands without an answer.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The number of the command in a slot, for [`Operation::ABORT`]; `None`: the slot is free.
    #[must_use]
    pub fn number_in(&self, slot: u16) -> Option<u64> {
        self.slots.get(usize::from(slot)).copied().filter(|number| *number != 0)
    }

    /// Whether [`TargetEnd::submit`] has a slot.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Submits a command; returns its slot, `None` if all are in use. The handler sees it after [`TargetEnd::publish`].
    pub fn submit(&mut self, command: &Command) -> Option<u16> {
        let slot = self.free.pop()?;
        self.sequence += 1;
        self.slots[usize::from(slot)] = self.sequence;
        let entry = Submission {
            slot: slot.into(),
            operation: command.operation.0,
            flags: command.flags,
            generation: self.generation.into(),
            sequence: self.sequence.into(),
            offset: command.offset.into(),
            length: command.length.into(),
            data: command.data.into(),
            timeout_milliseconds: command.timeout_milliseconds.into(),
            reserved: [0; 20],
        };
        self.rings.write(self.rings.submission(self.submitted), entry.as_bytes());
        self.submitted = self.submitted.wrapping_add(1);
        self.rings.prefetch(self.rings.submission(self.submitted.wrapping_add(AHEAD)), true);
        if self.submitted.wrapping_sub(self.published) >= PUBLISHED_AT_ONCE {
            self.publish();
        }
        Some(slot)
    }

    /// Shows the handler the commands that were submitted. It may sleep: see [`TargetEnd::must_wake`].
    pub fn publish(&mut self) {
        if self.published != self.submitted {
            self.published = self.submitted;
            self.rings.store(at::SUBMITTED, self.submitted);
        }
    }

    /// Whether the handler sleeps, and its eventfd must be signalled.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.rings.must_wake(at::HANDLER_SLEEPS)
    }

    /// Whether there seem to be answers.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.answered != self.completed || self.rings.load(at::COMPLETED) != self.completed
    }

    /// The next answer.
    ///
    /// # Errors
    /// A breach of the protocol. The rings must not be used any more.
    pub fn take(&mut self) -> Result<Option<Answer>, Violation> {
        if self.answered == self.completed {
            self.answered = self.rings.load(at::COMPLETED);
        }
        let waiting = self.answered.wrapping_sub(self.completed);
        if waiting == 0 {
            return Ok(None);
        }
        // Commands that were submitted since the counter was read only make more room.
        if waiting as usize > self.in_progress() {
            return Err(Violation::TooMany(waiting));
        }
        let entry: Completion = self.rings.read(self.rings.completion(self.completed));
        let number = entry.slot.get();
        let slot = self.slots.get_mut(usize::from(number)).ok_or(Violation::NoSlot(number))?;
        match *slot {
            0 => return Err(Violation::FreeSlot(number)),
            sequence if sequence != entry.sequence.get() || entry.generation.get() != self.generation => {
                return Err(Violation::OtherCommand(number));
            }
            _ => *slot = 0,
        }
        self.free.push(number);
        self.completed = self.completed.wrapping_add(1);
        let Completion { scsi_status, moved, sense_length, extent_mapped, extent_length, .. } = entry;
        let scsi = ScsiEnd { status: scsi_status, moved: moved.get(), sense_length: sense_length.get() };
        let extent = Extent { len: extent_length.get(), mapped: extent_mapped != 0 };
        Ok(Some(Answer { slot: number, status: Status(entry.status), scsi, extent }))
    }

    /// Asks the handler to signal the eventfd of Lunar from now on; whether Lunar may sleep, because there is no
    /// answer.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.answered == self.completed && self.rings.may_sleep(at::LUNAR_SLEEPS, at::COMPLETED, self.completed)
    }

    /// Lunar polls from now on.
    pub fn rise(&self) {
        self.rings.store(at::LUNAR_SLEEPS, 0);
    }
}

/// Rings that a handler cannot use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unusable;

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rings that Lunar made have another layout: is it a later version?")
    }
}

impl std::error::Error for Unusable {}

/// The handler's end.
#[derive(Debug)]
pub struct HandlerEnd {
    rings: Rings,
    taken: u32,
    /// The commands that Lunar had published when it was looked last.
    published: u32,
    completed: u32,
}

impl HandlerEnd {
    /// The rings that Lunar made in this memory.
    ///
    /// # Errors
    /// When they have another layout.
    pub fn open(memory: Region) -> Result<Self, Unusable> {
        let word = |at| memory.load(at).ok_or(Unusable);
        let depth = word(at::DEPTH)?;
        let is_ours = word(at::MAGIC)? == MAGIC && word(at::VERSION)? == VERSION;
        if !is_ours || !depth.is_power_of_two() || depth > DEPTH_MAX || memory.len() < ring_bytes(depth) {
            return Err(Unusable);
        }
        Ok(Self { rings: Rings { memory, depth }, taken: 0, published: 0, completed: 0 })
    }

    /// Slots of the rings: the most commands that Lunar has in this queue at a time.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.rings.depth
    }

    /// The next command.
    ///
    /// # Errors
    /// When there are more than the rings have slots.
    pub fn take(&mut self) -> Result<Option<Submission>, Unusable> {
        if self.published == self.taken {
            self.published = self.rings.load(at::SUBMITTED);
        }
        match self.published.wrapping_sub(self.taken) {
            0 => return Ok(None),
            waiting if waiting > self.rings.depth => return Err(Unusable),
            _ => {}
        }
        let entry = self.rings.read(self.rings.submission(self.taken));
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Answers a command that was taken.
    pub fn complete(&mut self, command: &Submission, status: Status) {
        self.complete_scsi(command, status, ScsiEnd::default());
    }

    /// Answers a SCSI command that was taken; its sense data are in its frame.
    pub fn complete_scsi(&mut self, command: &Submission, status: Status, end: ScsiEnd) {
        self.answer(command, status, end, Extent::default());
    }

    /// Answers an EXTENT that was taken.
    pub fn complete_extent(&mut self, command: &Submission, extent: Extent) {
        self.answer(command, Status::GOOD, ScsiEnd::default(), extent);
    }

    fn answer(&mut self, command: &Submission, status: Status, end: ScsiEnd, extent: Extent) {
        let Submission { slot, generation, sequence, .. } = *command;
        let ScsiEnd { status: scsi_status, moved, sense_length } = end;
        let entry = Completion {
            slot,
            status: status.0,
            scsi_status,
            generation,
            sequence,
            moved: moved.into(),
            sense_length: sense_length.into(),
            extent_mapped: extent.mapped.into(),
            reserved: 0,
            extent_length: extent.len.into(),
        };
        self.rings.write(self.rings.completion(self.completed), entry.as_bytes());
        self.completed = self.completed.wrapping_add(1);
        self.rings.store(at::COMPLETED, self.completed);
    }

    /// Whether Lunar sleeps, and its eventfd must be signalled.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.rings.must_wake(at::LUNAR_SLEEPS)
    }

    /// Asks Lunar to signal the eventfd of the handler from now on; whether the handler may sleep, because there is no
    /// command.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.published == self.taken && self.rings.may_sleep(at::HANDLER_SLEEPS, at::SUBMITTED, self.taken)
    }

    /// The handler polls from now on.
    pub fn rise(&self) {
        self.rings.store(at::HANDLER_SLEEPS, 0);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
