//! The rate of answers to requests that cost a station nothing.

use lunar_core::time::Instant;
use lunar_reactor::endpoint::MacAddress;
use std::collections::BTreeMap;
use std::time::Duration;

/// A number of events in a period: for all stations together, and for each of them.
#[derive(Clone, Debug)]
pub struct Rate {
    period: Duration,
    /// Most events of all stations, and of each.
    most: (u32, u32),
    /// The events that are kept for stations that had few of them, and that number.
    kept: (u32, u32),
    since: Instant,
    all: u32,
    counts: BTreeMap<MacAddress, u32>,
}

impl Rate {
    /// At most `all` events in each period, and `each` of one station.
    #[must_use]
    pub fn new(period: Duration, all: u32, each: u32) -> Self {
        Self { period, most: (all, each), kept: (0, 0), since: Instant::default(), all: 0, counts: BTreeMap::new() }
    }

    /// Keeps so many of all events for stations that had fewer than `first` in the period.
    #[must_use]
    pub fn keeping(self, kept: u32, first: u32) -> Self {
        Self { kept: (kept, first), ..self }
    }

    /// Whether one more event of a station is allowed now; counts it.
    pub fn admit(&mut self, station: MacAddress, now: Instant) -> bool {
        if now.since(self.since) >= self.period {
            self.since = now;
            self.all = 0;
            self.counts.clear();
        }
        let ((all, each), (kept, first)) = (self.most, self.kept);
        let count = self.counts.get(&station).copied().unwrap_or(0);
        let kept_for_others = if count < first { 0 } else { kept };
        if self.all >= all.saturating_sub(kept_for_others) || count >= each {
            return false;
        }
        // The number of stations that are counted is bounded by that of events.
        self.counts.insert(station, count + 1);
        self.all += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_bounds_each_station_and_all_of_them() {
        let mac = |number| MacAddress([2, 0, 0, 0, 0, number]);
        let mut rate = Rate::new(Duration::from_secs(1), 3, 2);
        let now = Instant(5_000_000_000);
        let admitted: Vec<bool> = [1, 1, 1, 2, 3].into_iter().map(|station| rate.admit(mac(station), now)).collect();
        assert_eq!(admitted, [true, true, false, true, false]);
        assert!(rate.admit(mac(3), now + Duration::from_secs(1)));
    }

    #[test]
    fn a_new_station_is_answered_while_others_query_without_end() {
        let mut rate = Rate::new(Duration::from_secs(1), 20, 8).keeping(4, 1);
        let now = Instant(5_000_000_000);
        let mac = |number| MacAddress([2, 0, 0, 0, 0, number]);
        let admitted = |rate: &mut Rate, station| (0..9).filter(|_| rate.admit(mac(station), now)).count();
        assert_eq!([1, 2, 3].map(|station| admitted(&mut rate, station)), [8, 8, 1]);
        assert_eq!([4, 5, 6, 7].map(|station| admitted(&mut rate, station)), [1, 1, 1, 0], "there is an end of it");
    }
}
