//! Where the time of commands goes, on average: one command in [`SAMPLED`] is timed through its stages with an exact
//! clock, and its times are added to those of its core and of its volume.

use crate::count::{COUNTED, Count};
use crate::slow::Times;
use crate::tally::Tally;
use crate::time::Instant;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// One command in so many of a core is timed: two readings of the clock for so many commands cost nothing that can be
/// measured. A prime number, so that it is not always the first one of a batch.
pub const SAMPLED: u64 = 1021;

macro_rules! stages {
    ($($name:ident, $word:literal, $doc:literal;)*) => {
        /// A stage of a command.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Stage { $(#[doc = $doc] $name,)* }

        impl Stage {
            /// All stages, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word of the stage in metrics and in the API.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The stage in words.
            #[must_use]
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$name => $doc,)* }
            }
        }
    };
}

stages! {
    Receive, "receive", "From the turn of the core that saw the command to its execution, and waiting for its client.";
    Wait, "wait", "Waiting for a slot, for other commands, for memory and for the core.";
    Store, "store", "Waiting for the store; of a store in memory, the execution.";
    Answer, "answer", "From the end of the command to the end of the turn, in which its answer is sent.";
}

const STAGES: usize = Stage::ALL.len();

/// The times of the commands that were timed. One core writes them, any thread reads them.
#[derive(Debug, Default)]
pub struct Stages {
    commands: Count,
    nanoseconds: [Count; STAGES],
}

impl Stages {
    fn add(&self, stage: Stage, nanoseconds: u64) {
        self.nanoseconds[stage as usize].add(nanoseconds);
    }

    /// The times now.
    #[must_use]
    pub fn sums(&self) -> StageSums {
        let mut sums = StageSums { commands: self.commands.get(), ..StageSums::default() };
        sums.nanoseconds.iter_mut().zip(&self.nanoseconds).for_each(|(sum, count)| *sum = count.get());
        sums
    }
}

/// Sums of the commands that were timed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StageSums {
    /// How many commands.
    pub commands: u64,
    nanoseconds: [u64; STAGES],
}

impl StageSums {
    /// The time of a stage of all of them together, in nanoseconds.
    #[must_use]
    pub fn of(&self, stage: Stage) -> u64 {
        self.nanoseconds[stage as usize]
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        self.commands += other.commands;
        self.nanoseconds.iter_mut().zip(other.nanoseconds).for_each(|(sum, more)| *sum += more);
    }
}

/// A command that is timed, at its end.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When it arrived: the beginning of the turn of the core that saw it.
    pub arrived: Instant,
    /// Nanoseconds for which it waited for a slot.
    pub waited: u64,
    /// When its execution began.
    pub begun: Instant,
    /// The beginning of the turn in which it has ended.
    pub turn: Instant,
    /// The times of its waits; `None`: it was executed at once, and waited for nothing.
    pub times: Option<Times>,
}

/// Chooses and times the commands of one core.
#[derive(Default)]
pub struct Sampler {
    stages: Stages,
    /// When the command that is timed ended, until its answer is sent; zero: there is none.
    ended: Count,
    /// The counters of its volume. Only the core itself locks it, once for a command that is timed.
    unit: Mutex<Option<Tally>>,
    /// The number of the next command that is timed.
    next: Count,
    /// The exact clock; without one, the clock of the turn is taken.
    clock: OnceLock<fn() -> Instant>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sampler({:?})", self.sums())
    }
}

impl Sampler {
    /// Times commands with this clock from now on. Only the first call has an effect.
    pub fn set_clock(&self, clock: fn() -> Instant) {
        let _ = self.clock.set(clock);
    }

    /// The sums of the core.
    #[must_use]
    pub fn sums(&self) -> StageSums {
        self.stages.sums()
    }

    /// The exact time, if the command of this number is timed. `turn` is the time of the turn.
    #[inline]
    #[must_use]
    pub fn begin(&self, number: u64, turn: Instant) -> Option<Instant> {
        if !COUNTED || number < self.next.get() { None } else { self.begin_sample(number, turn) }
    }

    #[cold]
    fn begin_sample(&self, number: u64, turn: Instant) -> Option<Instant> {
        self.next.set(number + SAMPLED);
        (self.ended.get() == 0).then(|| self.now(turn))
    }

    fn now(&self, turn: Instant) -> Instant {
        self.clock.get().map_or(turn, |clock| clock()).max(turn)
    }

    /// A command that is timed has ended.
    #[cold]
    pub fn end(&self, unit: Option<&Tally>, sample: &Sample) {
        let Sample { arrived, waited, begun, turn, times } = *sample;
        let now = self.now(turn);
        let total = now.0.saturating_sub(arrived.0);
        let received = begun.0.saturating_sub(arrived.0).saturating_sub(waited);
        let [receive, wait, store] = match times {
            // It was executed at once: its execution was the access to the store.
            None => [received, 0, total.saturating_sub(received)],
            Some(Times { network, store, .. }) => {
                let receive = received + network;
                [receive, total.saturating_sub(receive).saturating_sub(store), store]
            }
        };
        let add = |stages: &Stages| {
            stages.commands.add(1);
            stages.add(Stage::Receive, receive);
            stages.add(Stage::Wait, wait);
            stages.add(Stage::Store, store);
        };
        add(&self.stages);
        if let Some(unit) = unit {
            add(unit.stages());
        }
        *self.unit.lock().unwrap_or_else(PoisonError::into_inner) = unit.cloned();
        self.ended.set(now.0);
    }

    /// A turn of the core has ended, and what it had to send is sent.
    #[inline]
    pub fn end_turn(&self, now: Instant) {
        if self.ended.get() != 0 {
            self.answered(now);
        }
    }

    #[cold]
    fn answered(&self, now: Instant) {
        let nanoseconds = now.0.saturating_sub(self.ended.get());
        self.ended.set(0);
        self.stages.add(Stage::Answer, nanoseconds);
        if let Some(unit) = self.unit.lock().unwrap_or_else(PoisonError::into_inner).take() {
            unit.stages().add(Stage::Answer, nanoseconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sums: &StageSums) -> [u64; STAGES] {
        [Stage::Receive, Stage::Wait, Stage::Store, Stage::Answer].map(|stage| sums.of(stage))
    }

    #[test]
    fn the_stages_of_a_command_add_up_to_its_time() {
        let (sampler, unit) = (Sampler::default(), Tally::default());
        let times = Some(Times { total: 1000, network: 100, store: 600 });
        // It waited 40 for a slot, and is answered at 1070.
        let (arrived, begun, turn) = (Instant(50), Instant(100), Instant(1050));
        sampler.end(Some(&unit), &Sample { arrived, waited: 40, begun, turn, times });
        sampler.end_turn(Instant(1070));
        sampler.end_turn(Instant(2000));
        let sums = sampler.sums();
        assert_eq!((sums.commands, of(&sums)), (1, [110, 290, 600, 20]));
        assert_eq!(of(&sums).iter().sum::<u64>(), 1070 - 50);
        assert_eq!(unit.sums().stages, sums);
    }

    #[test]
    fn a_command_that_ends_at_once_has_no_waits() {
        let sampler = Sampler::default();
        sampler.set_clock(|| Instant(130));
        let begun = sampler.begin(0, Instant(100)).expect("it is timed");
        assert_eq!(begun, Instant(130));
        let (arrived, turn) = (Instant(100), Instant(100));
        sampler.end(None, &Sample { arrived, waited: 0, begun: Instant(120), turn, times: None });
        assert_eq!(sampler.begin(SAMPLED, Instant(140)), None, "one at a time");
        sampler.end_turn(Instant(150));
        assert_eq!(of(&sampler.sums()), [20, 0, 10, 20]);
        assert_eq!(sampler.begin(2 * SAMPLED - 1, Instant(1)), None);
        assert_eq!(sampler.begin(2 * SAMPLED, Instant(200)), Some(Instant(200)));
    }
}
