//! Counters of a unit's commands: each core has its own, and a reader gets the sum.

use crate::stats::Count;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counted event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A read command.
    ReadCommand,
    /// A write command.
    WriteCommand,
    /// Bytes read.
    ReadBytes,
    /// Bytes written.
    WriteBytes,
    /// A read that failed with a medium error.
    ReadError,
    /// A write that failed with a medium error.
    WriteError,
    /// A verification that failed with a medium error.
    VerifyError,
    /// A write that failed because the store has no space.
    SpaceError,
}

const EVENTS: usize = Event::SpaceError as usize + 1;

/// The counters of one core, apart from those of other cores: two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PerCore([Count; EVENTS]);

#[derive(Debug)]
struct Shared {
    cores: Box<[PerCore]>,
    /// The sums at the last reset.
    before: [AtomicU64; EVENTS],
}

/// The counters of a unit, as one core uses them.
#[derive(Clone, Debug)]
pub struct Tally {
    shared: Arc<Shared>,
    mine: usize,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Tally {
    /// New counters for this number of cores, for the first core.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        let cores = (0..cores.max(1)).map(|_| PerCore::default()).collect();
        Self { shared: Arc::new(Shared { cores, before: Default::default() }), mine: 0 }
    }

    /// The same counters for another core.
    ///
    /// # Panics
    /// When there are no counters for this core.
    #[must_use]
    pub fn of_core(&self, core: usize) -> Self {
        assert!(core < self.shared.cores.len(), "a tally for {} cores has no core {core}", self.shared.cores.len());
        Self { shared: self.shared.clone(), mine: core }
    }

    /// Whether both are of the same unit.
    #[must_use]
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Counts an event. Only the core itself may call it.
    pub fn add(&self, event: Event, by: u64) {
        self.shared.cores[self.mine].0[event as usize].add(by);
    }

    /// The sums of all cores since the last reset.
    #[must_use]
    pub fn total(&self, event: Event) -> u64 {
        let before = self.shared.before[event as usize].load(Ordering::Relaxed);
        self.sum(event as usize).wrapping_sub(before)
    }

    /// Resets the sums to zero.
    pub fn reset(&self) {
        for (event, before) in self.shared.before.iter().enumerate() {
            before.store(self.sum(event), Ordering::Relaxed);
        }
    }

    fn sum(&self, event: usize) -> u64 {
        self.shared.cores.iter().fold(0, |sum, core| sum.wrapping_add(core.0[event].get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_count_apart_and_are_summed() {
        let first = Tally::new(2);
        let second = first.of_core(1);
        first.add(Event::ReadBytes, 512);
        second.add(Event::ReadBytes, 1024);
        second.add(Event::VerifyError, 1);
        let seen = [Event::ReadBytes, Event::VerifyError, Event::ReadCommand].map(|event| first.total(event));
        assert_eq!(seen, [1536, 1, 0]);
        second.reset();
        first.add(Event::ReadBytes, 1);
        assert_eq!((second.total(Event::ReadBytes), second.total(Event::VerifyError)), (1, 0));
    }
}
