//! A machine that moves to another process: its registers and its queues.

use super::{Completions, FATAL, NvmeRegisters, PAGE, STRIDE, Submission, property, register};
use crate::config::VECTORS;
use crate::queue::Completion;
use crate::record::{CompletionQueue, Registers, SubmissionQueue};
use lunar_nvme::Status;
use lunar_nvme::controller::{ADMIN_ENTRIES_MAX, QUEUE_ENTRIES_MAX};

/// Registers and queues, when no command is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    /// Registers.
    pub registers: Registers,
    /// Submission queues.
    pub submissions: Vec<SubmissionQueue>,
    /// Completion queues, and what found no room in them.
    pub completions: Vec<(CompletionQueue, Vec<Completion>)>,
}

impl Saved {
    /// Whether it cannot go on (CSTS.CFS).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.registers.flags.get() & Registers::FATAL != 0
    }

    /// Whether there are any queues.
    #[must_use]
    pub fn has_queues(&self) -> bool {
        !self.submissions.is_empty() || !self.completions.is_empty()
    }

    /// The I/O submission queues: their identifiers and entries.
    pub fn io_queues(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.submissions.iter().map(|queue| (queue.id.get(), queue.entries.get())).filter(|(id, _)| *id > 0)
    }
}

/// Entries of a queue at most.
fn entries_max(id: u16) -> u16 {
    if id == 0 { ADMIN_ENTRIES_MAX } else { QUEUE_ENTRIES_MAX }
}

impl NvmeRegisters {
    /// What it is. No command is under way but asynchronous event requests.
    #[must_use]
    pub fn save(&self) -> Saved {
        let status = self.registers(register::STATUS) >> 32;
        let fatal = if status & u64::from(FATAL) != 0 { Registers::FATAL } else { 0 };
        let shadow = if self.shadow.is_some() { Registers::SHADOW } else { 0 };
        let registers = Registers {
            wanted: self.wanted.into(),
            interrupt_mask: self.interrupt_mask.into(),
            admin_entries: self.admin_entries.into(),
            flags: (fatal | shadow).into(),
            admin_submissions: self.admin_submissions.into(),
            admin_completions: self.admin_completions.into(),
            shadow: self.shadow.unwrap_or_default().map(Into::into),
        };
        let completions = (0..).zip(&self.completions);
        Saved {
            registers,
            submissions: self.submissions.iter().flatten().map(Submission::save).collect(),
            completions: completions.filter_map(|(id, queue)| queue.as_ref().map(|queue| queue.save(id))).collect(),
        }
    }

    /// Becomes what was saved, of which `waiting` asynchronous event requests have not been answered. It was disabled
    /// before; what lies in memory is looked at later.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] when no machine can be so; then it is to be reset.
    pub fn restore(&mut self, saved: &Saved, waiting: u16) -> Result<(), Status> {
        let Saved { registers, submissions, completions } = saved;
        for (queue, held) in completions {
            self.restore_completions(queue, held).ok_or(Status::INVALID_FIELD)?;
        }
        for queue in submissions {
            self.restore_submissions(queue).ok_or(Status::INVALID_FIELD)?;
        }
        let has_shadow = registers.flags.get() & Registers::SHADOW != 0;
        let shadow = has_shadow.then(|| registers.shadow.map(|page| page.get()));
        let is_aligned = shadow.iter().flatten().all(|page| page.is_multiple_of(PAGE));
        // Who has the doorbells mapped does not look into such pages.
        if !is_aligned || has_shadow && self.is_mapped() {
            return Err(Status::INVALID_FIELD);
        }
        if let Some(Some(admin)) = self.submissions.first_mut() {
            admin.under_way = waiting;
        }
        self.shadow = shadow;
        self.wanted = registers.wanted.get();
        self.fatal = saved.is_fatal();
        self.interrupt_mask = registers.interrupt_mask.get();
        self.admin_entries = registers.admin_entries.get();
        self.admin_submissions = registers.admin_submissions.get();
        self.admin_completions = registers.admin_completions.get();
        self.heed();
        self.show_doorbells();
        self.lie();
        Ok(())
    }

    fn restore_completions(&mut self, saved: &CompletionQueue, held: &[Completion]) -> Option<()> {
        let id = saved.id.get();
        let place = self.completions.get_mut(usize::from(id)).filter(|place| place.is_none())?;
        let queue = Completions::restore(saved, held, entries_max(id))?;
        let is_vector = queue.vector.is_none_or(|vector| vector < VECTORS);
        *place = Some(queue);
        (is_vector && saved.address.get().is_multiple_of(PAGE)).then_some(())
    }

    fn restore_submissions(&mut self, saved: &SubmissionQueue) -> Option<()> {
        let (id, completions) = (saved.id.get(), saved.completions.get());
        let place = self.submissions.get_mut(usize::from(id)).filter(|place| place.is_none())?;
        *place = Some(Submission::restore(saved, entries_max(id))?);
        // The admin queues belong to each other.
        let is_pair = (id == 0) == (completions == 0) && saved.address.get().is_multiple_of(PAGE);
        self.completion(completions.into()).filter(|_| is_pair)?.users += 1;
        Some(())
    }

    /// Who has the doorbells mapped finds them as they were rung.
    fn show_doorbells(&self) {
        let Some(page) = &self.mapped else { return };
        for (id, queue) in self.submissions.iter().enumerate() {
            let tail = queue.as_ref().map_or(0, Submission::told_tail);
            let _ = page.store(2 * id * STRIDE, tail.into());
        }
        for (id, queue) in self.completions.iter().enumerate() {
            let head = queue.as_ref().map_or(0, Completions::told_head);
            let _ = page.store((2 * id + 1) * STRIDE, head.into());
        }
    }
}

/// CSTS is in the word of eight bytes that begins here.
const _: () = assert!(register::STATUS + 4 == property::CSTS, "the status is the higher half of it");

#[cfg(test)]
mod tests {
    use super::super::tests::{about, enabled, machine};
    use super::*;
    use lunar_guest::memory::Memory;

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
    fn commands_that_were_not_fetched_are_fetched_elsewhere() {
        let (mut one, ..) = enabled();
        one.create_completions(&about(1, 5, 0x4000), 4).expect("room");
        one.create_submissions(&about(1, 1, 0x3000)).expect("room");
        (0..5).for_each(|at| assert!(one.memory.write(0x3000 + at * 64 + 2, &[at as u8, 9])));
        one.write(0x1008, &3_u32.to_le_bytes());
        for cid in 0..2 {
            assert_eq!(one.fetch().expect("three").first.cid.get(), 0x900 + cid);
            one.complete(1, 0x900 + cid, Status::SUCCESS, 0);
        }
        let saved = one.save();
        assert_eq!(saved.io_queues().collect::<Vec<_>>(), [(1, 8)]);
        let (mut other, ..) = machine();
        share(&one, &mut other);
        other.restore(&saved, 3).expect("it was so");
        assert_eq!(other.save(), saved);
        assert_eq!(other.submissions[0].as_ref().map(|queue| queue.under_way), Some(3));
        let fetched = other.fetch().expect("one is left");
        assert_eq!((fetched.queue, fetched.first.cid.get()), (1, 0x902));
        other.complete(1, 0x902, Status::SUCCESS, 0);
        let mut cids = [0; 48];
        assert!(other.memory.read(0x4000, &mut cids));
        assert_eq!([cids[12], cids[28], cids[44]], [0, 1, 2], "they follow each other");
        other.raise_unread();
        assert_eq!(other.take_raised(), [5]);
        assert!(other.restore(&saved, 0).is_err(), "it has queues");
    }

    #[test]
    fn completions_without_room_and_words_in_memory_move_along() {
        let (mut one, ..) = enabled();
        one.create_completions(&about(1, 1, 0x4000), 4).expect("room");
        one.create_submissions(&about(1, 1, 0x3000)).expect("room");
        one.set_shadow(&crate::pointer::entry(0x5000, 0x6000)).expect("memory");
        for tail in 1..=9_u32 {
            assert!(one.memory.write(0x5008, &(tail % 8).to_le_bytes()));
            let Some(fetched) = one.fetch() else { break };
            one.complete(1, fetched.first.cid.get(), Status::SUCCESS, tail.into());
        }
        assert!(!one.is_ripe(), "while a completion waits, nothing begins");
        let saved = one.save();
        assert_eq!(saved.completions[1].1.len(), 1, "seven have room");
        let (mut other, ..) = machine();
        share(&one, &mut other);
        other.restore(&saved, 0).expect("it was so");
        assert!(other.memory.write(0x500c, &3_u32.to_le_bytes()) && other.is_ripe());
        other.flush();
        let mut result = [0; 4];
        assert!(other.memory.read(0x4000 + 7 * 16, &mut result));
        assert_eq!(result, [8, 0, 0, 0]);
        assert!(other.fetch().is_some(), "the ninth");
        // Who has the doorbells mapped would never look there.
        let (mut mapping, ..) = machine();
        mapping.map_doorbells(&lunar_core::mem::Region::zeroed(0x2000), 0x1000);
        assert!(mapping.restore(&saved, 0).is_err());
    }

    #[test]
    fn mapped_doorbells_are_as_they_were_rung() {
        let (mut one, ..) = enabled();
        one.write(0x1000, &5_u32.to_le_bytes());
        let (mut other, ..) = machine();
        let page = lunar_core::mem::Region::zeroed(0x2000);
        other.map_doorbells(&page, 0x1000);
        other.restore(&one.save(), 0).expect("it was so");
        assert_eq!((page.load(0x1000), page.load(0x1004)), (Some(5), Some(0)));
    }

    #[test]
    fn machines_that_cannot_be_are_refused() {
        let (mut one, ..) = enabled();
        one.create_completions(&about(1, 5, 0x4000), 4).expect("room");
        one.create_submissions(&about(1, 1, 0x3000)).expect("room");
        let saved = one.save();
        let refused = |what: &str, change: &dyn Fn(&mut Saved)| {
            let (mut other, ..) = machine();
            let mut odd = saved.clone();
            change(&mut odd);
            assert!(other.restore(&odd, 0).is_err(), "{what}");
        };
        refused("a number that no queue has", &|odd| odd.submissions[1].id = 4000.into());
        refused("twice the same", &|odd| odd.submissions[1] = odd.submissions[0]);
        refused("one entry", &|odd| odd.submissions[1].entries = 1.into());
        refused("too many", &|odd| odd.completions[1].0.entries = 2000.into());
        refused("read beyond its end", &|odd| odd.submissions[1].head = 8.into());
        refused("written beyond its end", &|odd| odd.completions[1].0.tail = 8.into());
        refused("not on a page", &|odd| odd.completions[1].0.address = 4.into());
        refused("no such vector", &|odd| odd.completions[1].0.vector = 999.into());
        refused("completions to nowhere", &|odd| odd.submissions[1].completions = 7.into());
        refused("completions to the admin queue", &|odd| odd.submissions[1].completions = 0.into());
        refused("no entries", &|odd| (odd.completions[1].0.entries, odd.completions[1].0.head) = (0.into(), 9.into()));
        refused("words anywhere", &|odd| {
            odd.registers.flags = Registers::SHADOW.into();
            odd.registers.shadow = [5.into(); 2];
        });
    }
}
