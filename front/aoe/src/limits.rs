//! Limits of what stations may cause, and the rate of answers to requests that cost a station nothing.

use lunar_core::time::Instant;
use lunar_link::MacAddress;
use std::collections::BTreeMap;
use std::time::Duration;

/// Stations that a shelf knows: each takes up to some 64 KiB. A station beyond them takes the place of another one that
/// is not busy: see [`REPLACED_MAX`].
pub const STATIONS_MAX: usize = 1024;
/// Stations that take the place of others in one second. Addresses can be forged, so there may be any number of them:
/// each costs a search and a notice.
pub const REPLACED_MAX: u32 = 64;
/// The time after which a silent station is forgotten. The initiator of Linux queries all targets each minute.
pub const STATION_IDLE_MAX: Duration = Duration::from_secs(600);
/// Commands of a station in progress: those that it may have outstanding, and copies of them. Further ones are dropped,
/// and the station sends them again.
pub const STATION_COMMANDS_MAX: usize = 256;
/// Commands of all stations of a core in progress, with those that wait for earlier writes.
pub const COMMANDS_MAX: usize = 4096;
/// Commands that one core executes at once. Each takes some 3 KiB for its task.
pub const SLOTS: usize = 1024;
/// Changes of configuration strings, mask lists and reservations in progress on a core: each writes metadata.
pub const CHANGES_MAX: usize = 16;
/// Answers in one second to requests of one station that move no data: an initiator sends a few each minute.
pub const STATION_ANSWERS_MAX: u32 = 512;
/// Answers in one second to all requests that move no data: a query of all targets from each of a hundred stations.
pub const ANSWERS_MAX: u32 = 8192;
/// Refused stations that are reported in one minute, so that forged addresses do not fill the log.
pub const REFUSALS_MAX: u32 = 16;

/// A number of events in a period: for all stations together, and for each of them.
#[derive(Clone, Debug)]
pub struct Rate {
    period: Duration,
    /// Most events of all stations, and of each.
    most: (u32, u32),
    since: Instant,
    all: u32,
    counts: BTreeMap<MacAddress, u32>,
}

impl Rate {
    /// At most `all` events in each period, and `each` of one station.
    #[must_use]
    pub fn new(period: Duration, all: u32, each: u32) -> Self {
        Self { period, most: (all, each), since: Instant::default(), all: 0, counts: BTreeMap::new() }
    }

    /// Whether one more event of a station is allowed now; counts it.
    pub fn admit(&mut self, station: MacAddress, now: Instant) -> bool {
        if now.since(self.since) >= self.period {
            self.since = now;
            self.all = 0;
            self.counts.clear();
        }
        let (all, each) = self.most;
        // The number of stations that are counted is bounded by that of events.
        if self.all >= all {
            return false;
        }
        let count = self.counts.entry(station).or_insert(0);
        if *count >= each {
            return false;
        }
        *count += 1;
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
}
