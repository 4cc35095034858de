//! The one place where a command of any transport and command set is counted at its end.

use crate::count::COUNTED;
use crate::hosts::HostSession;
use crate::slow::{Ending, SlowCommand};
use crate::stages::Sample;
use crate::stats::Stats;
use crate::step::Watch;
use crate::tally::{Event, Tally};
use crate::time::Instant;
use crate::traffic::Class;

/// The counters of a command: those of its unit and of its host, where it has them.
#[derive(Clone, Copy, Debug)]
pub struct Counters<'a> {
    /// Of the unit.
    pub unit: Option<&'a Tally>,
    /// Of the host.
    pub host: Option<&'a HostSession>,
}

impl Counters<'_> {
    /// Counts a command that has ended `nanoseconds` after it arrived, and the bytes that it moved.
    #[inline]
    pub fn ended(&self, class: Class, nanoseconds: u64, bytes: u64) {
        if let Some(unit) = self.unit {
            unit.ended(class, nanoseconds, bytes);
        }
        if let Some(host) = self.host {
            host.ended(class, nanoseconds, bytes);
        }
    }

    /// Counts a command that has failed, with the kind of error, if it has one that its unit has not counted yet.
    #[cold]
    pub fn failed(&self, class: Class, nanoseconds: u64, error: Option<Event>) {
        self.ended(class, nanoseconds, 0);
        if let Some(unit) = self.unit {
            unit.failed(class);
            error.into_iter().for_each(|error| unit.add(error, 1));
        }
        if let (Some(host), Some(Event::Aborted)) = (self.host, error) {
            host.aborted(1);
        }
    }

    /// Counts a command that has ended in the turn in which it arrived. `begun`: it is timed.
    #[inline]
    pub fn ended_at_once(&self, stats: &Stats, class: Class, bytes: u64, begun: Option<Instant>) {
        self.ended(class, 0, bytes);
        if let Some(begun) = begun {
            let turn = stats.now();
            stats.sampler.end(self.unit, &Sample { arrived: turn, waited: 0, begun, turn, times: None });
        }
    }

    /// Ends the times of a command that was executed for so many nanoseconds, and records it if it was slow. `name` is
    /// its name in its standard.
    #[inline]
    pub fn timed(
        &self,
        stats: &Stats,
        watch: &Watch,
        nanoseconds: u64,
        ending: Ending,
        (class, name): (Class, impl FnOnce() -> &'static str),
    ) {
        if !COUNTED {
            return;
        }
        let times = watch.end(nanoseconds);
        if let Some(begun) = watch.take_sample() {
            let (turn, waited) = (stats.now(), times.total.saturating_sub(nanoseconds));
            let arrived = Instant(turn.0.saturating_sub(times.total));
            stats.sampler.end(self.unit, &Sample { arrived, waited, begun, turn, times: Some(times) });
        }
        if !stats.slow.log.is_slow(times.total, ending) {
            return;
        }
        self.slow(
            stats,
            SlowCommand {
                ended: stats.now(),
                core: stats.slow.core,
                volume: self.unit.map(|unit| unit.name().clone()),
                host: self.host.map(|host| host.key().clone()),
                command: name(),
                class,
                blocks: watch.blocks(),
                times,
                in_flight: self.unit.map_or(0, Tally::in_flight),
                ending,
            },
        );
    }

    #[cold]
    fn slow(&self, stats: &Stats, command: SlowCommand) {
        stats.slow_commands.add(1);
        if let Some(unit) = self.unit {
            unit.add(Event::Slow, 1);
        }
        stats.slow.log.record(command);
    }

    /// Counts a command that was refused because no slot was free.
    #[cold]
    pub fn task_set_full(&self) {
        if let Some(unit) = self.unit {
            unit.add(Event::TaskSetFull, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{CoreHosts, Hosts};
    use crate::tally::{Direction, Moved};

    #[test]
    fn a_command_is_counted_for_its_unit_and_its_host() {
        let (tally, hosts) = (Tally::default(), Hosts::new(1));
        let session = CoreHosts { hosts: hosts.clone(), core: 0 }.session("iscsi", "disk", "iqn.a");
        let counters = Counters { unit: Some(&tally), host: Some(&session) };
        counters.ended(Class::Read, 20_000, 4096);
        counters.failed(Class::Read, 0, Some(Event::Aborted));
        counters.failed(Class::Write, 0, None);
        counters.task_set_full();
        Counters { unit: None, host: None }.ended(Class::Read, 0, 1);
        let sums = tally.sums();
        assert_eq!(tally.moved(Direction::Read), Moved { commands: 1, bytes: 4096 });
        assert_eq!([Event::Aborted, Event::TaskSetFull, Event::Conflict].map(|event| sums.of(event)), [1, 1, 0]);
        let (_, host) = hosts.sums().remove(0);
        assert_eq!((host.aborts, host.traffic == sums.traffic), (1, true));
        assert_eq!(host.traffic.of(Class::Read).commands(), 2, "failed commands are measured, too");
    }
}
