//! Counters of a unit's commands: each core has its own, and a reader gets the sum.

use crate::count::Count;
use crate::stages::{StageSums, Stages};
use crate::time::Instant;
use crate::traffic::{Class, Traffic, TrafficSums};
use std::cell::OnceCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

macro_rules! events {
    ($($name:ident, $word:literal, $doc:literal;)*) => {
        /// A counted event.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Event { $(#[doc = $doc] $name,)* }

        impl Event {
            /// All events, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The kind of error that it is in metrics; empty: it is no error.
            #[must_use]
            pub const fn kind(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

events! {
    ReadError, "medium", "A read that failed with a medium error.";
    WriteError, "medium", "A write that failed with a medium error.";
    VerifyError, "medium", "A verification that failed with a medium error.";
    SpaceError, "space", "A write that failed because the store has no space.";
    ProtectionError, "protection", "A command whose protection information did not match.";
    Aborted, "aborted", "A command that a task management function or a lost connection ended.";
    Conflict, "conflict", "A command that a reservation refused.";
    TaskSetFull, "full", "A command that was refused because no slot was free.";
    Misaligned, "", "A read or write that is not aligned to 4 KiB.";
    UnmappedBytes, "", "Bytes that clients unmapped or discarded.";
    Slow, "", "A command that took longer than the threshold of the slow log.";
}

const EVENTS: usize = Event::ALL.len();

/// The counters of one core, apart from those of other cores: two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct PerCore {
    /// Commands that wait for data, for memory or for the store.
    in_flight: Count,
    /// The most of them at the same time.
    in_flight_max: Count,
    /// Commands that failed, by [`Direction`].
    failed: [Count; 2],
    traffic: Traffic,
    events: [Count; EVENTS],
    stages: Stages,
}

/// The sums that clients see, at the last reset.
#[derive(Debug, Default)]
struct Before {
    events: [AtomicU64; EVENTS],
    /// Commands and bytes, read and written.
    moved: [[AtomicU64; 2]; 2],
}

#[derive(Debug)]
struct Shared {
    /// The name of the volume.
    name: Arc<str>,
    /// The counters of each core, once the core has counted something: most volumes are used on few cores.
    cores: Box<[OnceLock<Arc<PerCore>>]>,
    /// Once a client has reset the sums.
    before: OnceLock<Box<Before>>,
}

/// The counters of a unit, for readers on any thread.
#[derive(Clone, Debug)]
pub struct SharedTally(Arc<Shared>);

/// The counters of a unit, as one core uses them.
#[derive(Clone, Debug)]
pub struct Tally {
    shared: SharedTally,
    core: usize,
    /// Its own, from the first command on: a unit that no client uses has none.
    mine: OnceCell<Arc<PerCore>>,
}

impl Default for Tally {
    fn default() -> Self {
        SharedTally::new(1).of_core(0)
    }
}

impl Deref for Tally {
    type Target = SharedTally;

    fn deref(&self) -> &SharedTally {
        &self.shared
    }
}

/// The direction of commands in the counters that clients can read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Commands that read the medium.
    Read,
    /// Commands that write the medium.
    Write,
}

impl Direction {
    fn of(class: Class) -> Option<Self> {
        match class {
            Class::Read => Some(Self::Read),
            Class::Write | Class::CompareAndWrite => Some(Self::Write),
            Class::Unmap | Class::Copy | Class::Other => None,
        }
    }
}

/// Commands that have succeeded, and the bytes that they moved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Moved {
    /// Commands.
    pub commands: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Sums over all cores since the unit is there.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TallySums {
    /// The commands, failed ones included.
    pub traffic: TrafficSums,
    /// The stages of the commands that were timed.
    pub stages: StageSums,
    /// Commands in progress that wait for data, for memory or for the store.
    pub in_flight: u64,
    /// The most of them at the same time: the sum of the cores, each at its own busiest moment.
    pub in_flight_max: u64,
    events: [u64; EVENTS],
}

impl TallySums {
    /// The number of events.
    #[must_use]
    pub fn of(&self, event: Event) -> u64 {
        self.events[event as usize]
    }
}

impl SharedTally {
    /// New counters of a volume without a name.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        Self::named(cores, "")
    }

    /// New counters of the volume of this name for this number of cores.
    #[must_use]
    pub fn named(cores: usize, name: &str) -> Self {
        let cores = (0..cores.max(1)).map(|_| OnceLock::new()).collect();
        Self(Arc::new(Shared { name: name.into(), cores, before: OnceLock::new() }))
    }

    /// The name of the volume.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.0.name
    }

    /// The counters of a core.
    ///
    /// # Panics
    /// When there are no counters for this core.
    #[must_use]
    pub fn of_core(&self, core: usize) -> Tally {
        assert!(core < self.0.cores.len(), "a tally for {} cores has no core {core}", self.0.cores.len());
        Tally { shared: self.clone(), core, mine: OnceCell::new() }
    }

    /// Whether both are of the same unit.
    #[must_use]
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The number of events on all cores since the last reset.
    #[must_use]
    pub fn total(&self, event: Event) -> u64 {
        let before = self.0.before.get().map_or(0, |before| load(&before.events[event as usize]));
        self.sum(|core| core.events[event as usize].get()).wrapping_sub(before)
    }

    /// The successful commands that read or that write, on all cores since the last reset, and their bytes.
    #[must_use]
    pub fn moved(&self, direction: Direction) -> Moved {
        let Moved { commands, bytes } = self.lifetime(direction);
        let before = self.0.before.get().map(|before| before.moved[direction as usize].each_ref().map(load));
        let [commands_before, bytes_before] = before.unwrap_or_default();
        Moved { commands: commands.wrapping_sub(commands_before), bytes: bytes.wrapping_sub(bytes_before) }
    }

    /// Resets the sums that clients see to zero.
    pub fn reset(&self) {
        let before = self.0.before.get_or_init(Box::default);
        for (event, before) in before.events.iter().enumerate() {
            before.store(self.sum(|core| core.events[event].get()), Ordering::Relaxed);
        }
        for (direction, before) in [Direction::Read, Direction::Write].into_iter().zip(&before.moved) {
            let Moved { commands, bytes } = self.lifetime(direction);
            before[0].store(commands, Ordering::Relaxed);
            before[1].store(bytes, Ordering::Relaxed);
        }
    }

    /// All sums since the unit is there, whatever was reset.
    #[must_use]
    pub fn sums(&self) -> TallySums {
        let mut sums = TallySums::default();
        for core in self.used() {
            sums.traffic.add(&core.traffic);
            sums.stages.merge(&core.stages.sums());
            sums.in_flight = sums.in_flight.wrapping_add(core.in_flight.get());
            sums.in_flight_max = sums.in_flight_max.wrapping_add(core.in_flight_max.get());
            for (sum, event) in sums.events.iter_mut().zip(&core.events) {
                *sum = sum.wrapping_add(event.get());
            }
        }
        sums
    }

    fn lifetime(&self, direction: Direction) -> Moved {
        let mut all = TrafficSums::default();
        self.used().for_each(|core| all.add(&core.traffic));
        let failed = self.sum(|core| core.failed[direction as usize].get());
        let mut moved = Moved { commands: 0_u64.wrapping_sub(failed), bytes: 0 };
        for class in Class::ALL.iter().filter(|class| Direction::of(**class) == Some(direction)) {
            moved.commands = moved.commands.wrapping_add(all.of(*class).commands());
            moved.bytes = moved.bytes.wrapping_add(all.of(*class).bytes);
        }
        moved
    }

    /// The counters of the cores that have counted something.
    fn used(&self) -> impl Iterator<Item = &PerCore> {
        self.0.cores.iter().filter_map(OnceLock::get).map(|core| &**core)
    }

    fn sum(&self, of: impl Fn(&PerCore) -> u64) -> u64 {
        self.used().fold(0, |sum, core| sum.wrapping_add(of(core)))
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Tally {
    /// The counters of this core. A unit that is served in another shape keeps them.
    #[inline]
    fn mine(&self) -> &PerCore {
        self.mine.get_or_init(|| self.first())
    }

    #[cold]
    fn first(&self) -> Arc<PerCore> {
        self.shared.0.cores[self.core].get_or_init(Arc::default).clone()
    }

    /// The stages of commands on this core.
    pub(crate) fn stages(&self) -> &Stages {
        &self.mine().stages
    }

    /// Commands in progress on this core.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.mine().in_flight.get()
    }

    /// Counts an event.
    pub fn add(&self, event: Event, by: u64) {
        self.mine().events[event as usize].add(by);
    }

    /// Counts a command that has ended `nanoseconds` after its arrival, and the bytes that it moved.
    #[inline]
    pub fn ended(&self, class: Class, nanoseconds: u64, bytes: u64) {
        self.mine().traffic.count(class, nanoseconds, bytes);
    }

    /// Counts in addition that this command has failed.
    #[cold]
    pub fn failed(&self, class: Class) {
        if let Some(direction) = Direction::of(class) {
            self.mine().failed[direction as usize].add(1);
        }
    }

    /// Counts a command as in progress until the result is dropped.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> InFlight<'_> {
        let mine = self.mine();
        let now = mine.in_flight.get() + 1;
        mine.in_flight.set(now);
        if now > mine.in_flight_max.get() {
            mine.in_flight_max.set(now);
        }
        InFlight(mine)
    }
}

/// A command in progress.
#[derive(Debug)]
pub struct InFlight<'a>(&'a PerCore);

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.in_flight.sub(1);
    }
}

/// Nanoseconds from the arrival of a command to its end.
#[inline]
#[must_use]
pub fn latency(arrived: Instant, ended: Instant) -> u64 {
    ended.0.saturating_sub(arrived.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_cores() -> [Tally; 2] {
        let shared = SharedTally::new(2);
        [0, 1].map(|core| shared.of_core(core))
    }

    #[test]
    fn cores_count_apart_and_are_summed() {
        let [first, second] = two_cores();
        first.ended(Class::Read, 0, 512);
        second.ended(Class::Read, 9, 1024);
        second.add(Event::VerifyError, 1);
        assert_eq!(first.moved(Direction::Read), Moved { commands: 2, bytes: 1536 });
        assert_eq!((first.total(Event::VerifyError), first.moved(Direction::Write)), (1, Moved::default()));
        second.reset();
        first.ended(Class::Read, 0, 1);
        assert_eq!(second.moved(Direction::Read), Moved { commands: 1, bytes: 1 });
        assert_eq!((second.total(Event::VerifyError), first.sums().of(Event::VerifyError)), (0, 1));
        assert_eq!(first.sums().traffic.of(Class::Read).commands(), 3, "metrics never fall");
        assert!(first.is_of(&second) && !first.is_of(&Tally::default()));
    }

    #[test]
    fn a_core_has_counters_once_it_counts() {
        let [first, second] = two_cores();
        second.reset();
        assert_eq!((first.used().count(), first.sums()), (0, TallySums::default()));
        second.add(Event::Conflict, 1);
        assert_eq!((first.used().count(), first.total(Event::Conflict)), (1, 1));
        // The same unit in another shape.
        second.of_core(1).add(Event::Conflict, 1);
        assert_eq!((first.used().count(), first.total(Event::Conflict)), (1, 2));
    }

    #[test]
    fn a_failed_command_is_measured_and_is_no_success() {
        let tally = Tally::default();
        tally.ended(Class::Write, 0, 512);
        tally.ended(Class::Write, 1_000_000, 0);
        tally.failed(Class::Write);
        assert_eq!(tally.moved(Direction::Write), Moved { commands: 1, bytes: 512 });
        assert_eq!(tally.sums().traffic.of(Class::Write).commands(), 2);
    }

    #[test]
    fn commands_in_progress_are_counted_until_they_end() {
        let [first, second] = two_cores();
        let held = [first.begin(), first.begin(), second.begin()];
        assert_eq!((first.sums().in_flight, first.sums().in_flight_max), (3, 3));
        drop(held);
        drop(first.begin());
        assert_eq!((first.sums().in_flight, first.sums().in_flight_max), (0, 3));
    }

    #[test]
    fn one_thread_writes_each_cell_and_the_sum_is_exact() {
        const ROUNDS: u64 = 10_000;
        let tally = SharedTally::new(4);
        std::thread::scope(|scope| {
            for core in 0..4 {
                let own = tally.of_core(core);
                scope.spawn(move || (0..ROUNDS).for_each(|at| own.ended(Class::Read, at * 100, 1)));
            }
            let mut last = 0;
            while last < 4 * ROUNDS {
                let now = tally.sums().traffic.of(Class::Read).commands();
                assert!(now >= last, "a total never falls");
                last = now;
            }
        });
        assert_eq!(tally.moved(Direction::Read), Moved { commands: 4 * ROUNDS, bytes: 4 * ROUNDS });
    }
}
