//! The longest turn of a core in this minute and the last one: a core that works too long at once delays all its
//! clients.

use lunar_core::stats::Stats;
use lunar_core::time::Instant;
use std::cell::Cell;
use std::time::Duration;

/// A maximum is shown for one to two of these: longer than the time between two scrapes.
const WINDOW: Duration = Duration::from_secs(60);

/// The maxima of two windows.
#[derive(Debug, Default)]
pub(crate) struct LongestTurn {
    since: Cell<Instant>,
    now: Cell<u64>,
    before: Cell<u64>,
}

impl LongestTurn {
    /// Takes a turn that found work.
    #[inline]
    pub(crate) fn look(&self, stats: &Stats, begun: Instant, ended: Instant) {
        let time = ended.0.saturating_sub(begun.0);
        if time > self.now.get() || ended.since(self.since.get()) >= WINDOW {
            self.change(stats, time, ended);
        }
    }

    #[cold]
    fn change(&self, stats: &Stats, time: u64, ended: Instant) {
        if ended.since(self.since.get()) >= WINDOW {
            self.before.set(self.now.replace(0));
            self.since.set(ended);
        }
        self.now.set(self.now.get().max(time));
        stats.longest_turn_nanoseconds.set(self.now.get().max(self.before.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_is_shown_for_at_least_one_window() {
        let (stats, longest) = (Stats::default(), LongestTurn::default());
        let start = Instant(0) + 10 * WINDOW;
        let turn = |at: Instant, nanoseconds| {
            longest.look(&stats, at - Duration::from_nanos(nanoseconds), at);
            stats.longest_turn_nanoseconds.get()
        };
        assert_eq!((turn(start, 100), turn(start, 900), turn(start, 50)), (100, 900, 900));
        assert_eq!(turn(start + WINDOW, 20), 900);
        assert_eq!(turn(start + 2 * WINDOW, 10), 20);
    }
}
