//! Registers and queues on their way to another process.

use super::queues::{Doorbells, PAGE, Queues};
use super::{NvmeRegisters, State};
use crate::config::VECTORS;
use crate::queue::completion::{CompletionQueue, Cqe, SavedCompletionQueue};
use crate::queue::submission::{SavedSubmissionQueue, SubmissionQueue};
use lunar_core::wire::le;
use lunar_nvme::Status;
use lunar_nvme::controller::{ADMIN_ENTRIES_MAX, QUEUE_ENTRIES_MAX};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The registers in a migration record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegisterRecord {
    /// CC as it was written last.
    pub cc: le::U32,
    /// INTMS.
    pub interrupt_mask: le::U32,
    /// AQA.
    pub aqa: le::U32,
    /// [`RegisterRecord::FATAL`], [`RegisterRecord::SHADOW`].
    pub flags: le::U32,
    /// ASQ.
    pub asq: le::U64,
    /// ACQ.
    pub acq: le::U64,
    /// Guest addresses of both pages of Doorbell Buffer Config.
    pub doorbell_buffers: [le::U64; 2],
}

const _: () = assert!(size_of::<RegisterRecord>() == 48, "part of the record's format");

impl RegisterRecord {
    /// CSTS.CFS.
    pub const FATAL: u32 = 0x01;
    /// There are doorbell buffers.
    pub const SHADOW: u32 = 0x02;
}

/// Registers and queues, while no command is in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedRegisters {
    /// Registers.
    pub registers: RegisterRecord,
    /// Submission queues.
    pub submissions: Vec<SavedSubmissionQueue>,
    /// Completion queues, and the completions that found no room in them.
    pub completions: Vec<(SavedCompletionQueue, Vec<Cqe>)>,
}

impl SavedRegisters {
    /// Whether the controller cannot go on (CSTS.CFS).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.registers.flags.get() & RegisterRecord::FATAL != 0
    }

    /// Whether there are any queues.
    #[must_use]
    pub fn has_queues(&self) -> bool {
        !self.submissions.is_empty() || !self.completions.is_empty()
    }

    /// The I/O submission queues: their identifiers and numbers of entries.
    pub fn io_queues(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.submissions.iter().map(|queue| (queue.id.get(), queue.entries.get())).filter(|(id, _)| *id > 0)
    }
}

/// Entries of a queue at most.
fn entries_max(id: u16) -> u16 {
    if id == 0 { ADMIN_ENTRIES_MAX } else { QUEUE_ENTRIES_MAX }
}

impl NvmeRegisters {
    /// Registers and queues. No command may be in progress but Asynchronous Event Requests.
    #[must_use]
    pub fn save(&self) -> SavedRegisters {
        let fatal = if self.has_failed() { RegisterRecord::FATAL } else { 0 };
        let (shadow, pages) = match self.doorbells {
            Doorbells::Shadow(pages) => (RegisterRecord::SHADOW, pages),
            _ => (0, [0; 2]),
        };
        let registers = RegisterRecord {
            cc: self.cc.into(),
            interrupt_mask: self.interrupt_mask.into(),
            aqa: self.aqa.into(),
            flags: (fatal | shadow).into(),
            asq: self.asq.into(),
            acq: self.acq.into(),
            doorbell_buffers: pages.map(Into::into),
        };
        let (submissions, completions) = self.queues().map(Queues::save).unwrap_or_default();
        SavedRegisters { registers, submissions, completions }
    }

    /// Restores registers and queues of a controller of which `waiting` Asynchronous Event Requests are not completed.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] when the controller has queues, and for registers and queues that cannot be so.
    pub fn restore(&mut self, saved: &SavedRegisters, waiting: u16) -> Result<(), Status> {
        let queues = restored(saved, waiting).filter(|_| matches!(self.state, State::Disabled));
        let queues = queues.ok_or(Status::INVALID_FIELD)?;
        let registers = &saved.registers;
        if registers.flags.get() & RegisterRecord::SHADOW != 0 {
            let pages = registers.doorbell_buffers.map(le::U64::get);
            // A client that has mapped the doorbells does not look into doorbell buffers.
            if self.has_mapped_doorbells() || pages.iter().any(|page| !page.is_multiple_of(PAGE)) {
                return Err(Status::INVALID_FIELD);
            }
            self.doorbells = Doorbells::Shadow(pages);
        }
        self.state = match (saved.is_fatal(), saved.has_queues()) {
            (true, _) => State::Failed(queues),
            (false, true) => State::Enabled(queues),
            (false, false) => State::Disabled,
        };
        self.cc = registers.cc.get();
        self.interrupt_mask = registers.interrupt_mask.get();
        self.aqa = registers.aqa.get();
        (self.asq, self.acq) = (registers.asq.get(), registers.acq.get());
        if let Doorbells::Mapped(page) = &self.doorbells {
            self.show_doorbells(page);
        }
        self.apply_coalescing();
        self.locate();
        Ok(())
    }
}

/// The queues of a record. `None` when there can be no such queues.
fn restored(saved: &SavedRegisters, waiting: u16) -> Option<Queues> {
    let mut queues = Queues::new();
    for (completions, deferred) in &saved.completions {
        let id = completions.id.get();
        let queue = CompletionQueue::restore(completions, deferred, entries_max(id))?;
        let is_vector = queue.vector.is_none_or(|vector| vector < VECTORS);
        if !is_vector || !queue.address.is_multiple_of(PAGE) {
            return None;
        }
        queues.add_completion(id, queue).ok()?;
    }
    for submissions in &saved.submissions {
        let queue = SubmissionQueue::restore(submissions, entries_max(submissions.id.get()))?;
        // The admin queues belong to each other.
        let is_pair = (queue.id == 0) == (queue.completion_queue == 0);
        if !is_pair || !queue.address.is_multiple_of(PAGE) {
            return None;
        }
        queues.add_submission(queue).ok()?;
    }
    if let Some(admin) = queues.submission(0) {
        admin.in_progress = waiting;
    }
    Some(queues)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{create_queues, enabled, registers, set_doorbell_buffers};
    use super::*;
    use lunar_core::mem::Region;
    use lunar_guest::memory::Memory;

    /// Gives `to` the same memory.
    fn share(from: &NvmeRegisters, to: &mut NvmeRegisters) {
        let mut whole = None;
        assert!(from.memory.each(0, 0x10000, |region, _, _| {
            whole = Some(region.clone());
            true
        }));
        to.memory = Memory::default();
        to.memory.map(0, 0x10000, whole).expect("free");
    }

    #[test]
    fn commands_that_were_not_fetched_are_fetched_at_the_destination() {
        let (mut source, ..) = enabled();
        create_queues(&mut source, 1, Some(5));
        (0..5).for_each(|at| assert!(source.memory.write(0x3000 + at * 64 + 2, &[at as u8, 9])));
        source.write(0x1008, &3_u32.to_le_bytes());
        for cid in 0..2 {
            assert_eq!(source.fetch().expect("three").first.cid.get(), 0x900 + cid);
            source.complete(1, 0x900 + cid, Status::SUCCESS, 0);
        }
        let saved = source.save();
        assert_eq!(saved.io_queues().collect::<Vec<_>>(), [(1, 8)]);
        let (mut destination, ..) = registers();
        share(&source, &mut destination);
        destination.restore(&saved, 3).expect("it was so");
        assert_eq!(destination.save(), saved);
        let admin = destination.queues_mut().and_then(|queues| queues.submission(0));
        assert_eq!(admin.map(|queue| queue.in_progress), Some(3));
        let fetched = destination.fetch().expect("one is left");
        assert_eq!((fetched.queue, fetched.first.cid.get()), (1, 0x902));
        destination.complete(1, 0x902, Status::SUCCESS, 0);
        let mut cids = [0; 48];
        assert!(destination.memory.read(0x4000, &mut cids));
        assert_eq!([cids[12], cids[28], cids[44]], [0, 1, 2], "they follow each other");
        destination.raise_unread();
        assert_eq!(destination.take_raised(), [5]);
        assert!(destination.restore(&saved, 0).is_err(), "it has queues");
    }

    #[test]
    fn deferred_completions_and_doorbell_buffers_migrate() {
        let (mut source, ..) = enabled();
        create_queues(&mut source, 1, Some(1));
        set_doorbell_buffers(&mut source, 0x5000, 0x6000).expect("memory");
        for tail in 1..=9_u32 {
            assert!(source.memory.write(0x5008, &(tail % 8).to_le_bytes()));
            let Some(fetched) = source.fetch() else { break };
            source.complete(1, fetched.first.cid.get(), Status::SUCCESS, tail.into());
        }
        assert!(!source.has_work(), "while a completion waits, nothing begins");
        let saved = source.save();
        assert_eq!(saved.completions[1].1.len(), 1, "seven have room");
        let (mut destination, ..) = registers();
        share(&source, &mut destination);
        destination.restore(&saved, 0).expect("it was so");
        assert!(destination.memory.write(0x500c, &3_u32.to_le_bytes()) && destination.has_work());
        destination.flush();
        let mut result = [0; 4];
        assert!(destination.memory.read(0x4000 + 7 * 16, &mut result));
        assert_eq!(result, [8, 0, 0, 0]);
        assert!(destination.fetch().is_some(), "the ninth");
        // With mapped doorbells the buffers would not be read.
        let (mut mapping, ..) = registers();
        mapping.map_doorbells(&Region::zeroed(0x2000), 0x1000);
        assert!(mapping.restore(&saved, 0).is_err());
    }

    #[test]
    fn mapped_doorbells_show_their_values_after_a_migration() {
        let (mut source, ..) = enabled();
        source.write(0x1000, &5_u32.to_le_bytes());
        let (mut destination, ..) = registers();
        let page = Region::zeroed(0x2000);
        destination.map_doorbells(&page, 0x1000);
        destination.restore(&source.save(), 0).expect("it was so");
        assert_eq!((page.load(0x1000), page.load(0x1004)), (Some(5), Some(0)));
    }

    #[test]
    fn a_failed_controller_stays_failed() {
        let (mut source, ..) = enabled();
        source.fail();
        let saved = source.save();
        assert!(saved.is_fatal() && saved.has_queues());
        let (mut destination, ..) = registers();
        share(&source, &mut destination);
        destination.restore(&saved, 0).expect("it was so");
        assert!(destination.has_failed() && destination.save() == saved);
        // Without queues: its configuration was refused.
        let (mut refused, ..) = registers();
        refused.fail();
        let (mut destination, ..) = registers();
        destination.restore(&refused.save(), 0).expect("it was so");
        assert!(destination.has_failed() && !destination.save().has_queues());
    }

    #[test]
    fn registers_and_queues_that_cannot_be_are_refused() {
        let (mut source, ..) = enabled();
        create_queues(&mut source, 1, Some(5));
        let saved = source.save();
        let refused = |what: &str, change: &dyn Fn(&mut SavedRegisters)| {
            let (mut destination, ..) = registers();
            let mut odd = saved.clone();
            change(&mut odd);
            assert!(destination.restore(&odd, 0).is_err(), "{what}");
            assert!(destination.restore(&saved, 0).is_ok(), "{what}: the failed restore left no state");
        };
        refused("an identifier that no queue has", &|odd| odd.submissions[1].id = 4000.into());
        refused("twice the same", &|odd| odd.submissions[1] = odd.submissions[0]);
        refused("one entry", &|odd| odd.submissions[1].entries = 1.into());
        refused("too many entries", &|odd| odd.completions[1].0.entries = 2000.into());
        refused("a head out of range", &|odd| odd.submissions[1].head = 8.into());
        refused("a tail out of range", &|odd| odd.completions[1].0.tail = 8.into());
        refused("head and tail out of range", &|odd| {
            (odd.completions[1].0.head, odd.completions[1].0.tail) = (u16::MAX.into(), u16::MAX.into());
        });
        refused("not on a page", &|odd| odd.completions[1].0.address = 4.into());
        refused("a vector that does not exist", &|odd| odd.completions[1].0.vector = 999.into());
        refused("a completion queue that does not exist", &|odd| odd.submissions[1].completion_queue = 7.into());
        refused("the completion queue of the admin queue", &|odd| odd.submissions[1].completion_queue = 0.into());
        refused("no entries", &|odd| (odd.completions[1].0.entries, odd.completions[1].0.head) = (0.into(), 9.into()));
        refused("doorbell buffers anywhere", &|odd| {
            odd.registers.flags = RegisterRecord::SHADOW.into();
            odd.registers.doorbell_buffers = [5.into(); 2];
        });
    }
}
