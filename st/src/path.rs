//! A path of a Virtual Connection: a link of this end and an address of the peer, with its round-trip time and the
//! bytes that it may carry at once.

use crate::limits::{BLOCK_LEAST, EXPIRATIONS_MAX, REQUEST_FIRST, REQUEST_RANGE};
use lunar_core::time::Instant;
use lunar_link::MacAddress;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The address of a peer on a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// Over UDP.
    Ip(SocketAddr),
    /// On an Ethernet.
    Station(MacAddress),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Station(mac) => mac.fmt(f),
        }
    }
}

/// A link of this end, by its number, and a peer on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Path {
    /// The link.
    pub link: u8,
    /// The peer.
    pub peer: Peer,
}

/// The state of a path.
#[derive(Clone, Debug)]
pub(crate) struct PathState {
    pub(crate) path: Path,
    pub(crate) is_up: bool,
    round_trip: Option<Duration>,
    /// The time from a Clear_To_Send to the end of its Block.
    block_time: Option<Duration>,
    /// Bytes that may be granted and missing; the window grows slowly beyond the threshold.
    window: u32,
    threshold: u32,
    most: u32,
    pub(crate) granted: u32,
    /// When the window was halved.
    halved: Instant,
    /// Timers that have expired without data in between, and when the last one did.
    expirations: u8,
    expired: Instant,
    /// When data came.
    pub(crate) last_data: Instant,
    /// When anything came.
    pub(crate) heard: Instant,
    /// When it is probed while it is down.
    pub(crate) probe: Instant,
}

fn mean(old: Option<Duration>, new: Duration) -> Option<Duration> {
    Some(old.map_or(new, |old| (old * 7 + new) / 8))
}

impl PathState {
    pub(crate) fn new(path: Path, block: u32, most: u32, now: Instant) -> Self {
        Self {
            path,
            is_up: true,
            round_trip: None,
            block_time: None,
            window: block.saturating_mul(2).min(most),
            threshold: most,
            most,
            granted: 0,
            halved: now,
            expirations: 0,
            expired: now,
            last_data: now,
            heard: now,
            probe: now,
        }
    }

    /// The time before a request is repeated that was repeated `tries` times.
    pub(crate) fn request_time(&self, tries: u8) -> Duration {
        let (least, most) = REQUEST_RANGE;
        let first = self.round_trip.map_or(REQUEST_FIRST, |time| (time * 4).max(least));
        first.saturating_mul(1 << tries.min(8)).min(most)
    }

    /// The time without data after which a Block is granted again that was repeated `tries` times.
    pub(crate) fn block_patience(&self, tries: u8) -> Duration {
        let round_trip = self.round_trip.unwrap_or(REQUEST_FIRST / 4);
        let time = round_trip * 2 + self.block_time.unwrap_or_default() * 2;
        time.max(BLOCK_LEAST).saturating_mul(1 << tries.min(8)).min(REQUEST_RANGE.1)
    }

    /// A request that was sent once was answered after this time.
    pub(crate) fn measure(&mut self, time: Duration) {
        self.round_trip = mean(self.round_trip, time);
    }

    /// The bytes that may be granted now. A window that is not in use admits one Block of any length.
    pub(crate) fn room(&self, block: u32) -> Option<u32> {
        let room = self.window.saturating_sub(self.granted);
        (self.is_up && (room >= block || self.granted == 0)).then_some(room)
    }

    /// Something came: the path works.
    pub(crate) fn take_heard(&mut self, now: Instant) {
        self.heard = now;
        self.expirations = 0;
        self.is_up = true;
    }

    /// A Block is complete, without a hole if it is clean.
    pub(crate) fn complete(&mut self, len: u32, since: Duration, is_clean: bool) {
        // The time of a Block with holes is that of the timers.
        if is_clean {
            self.block_time = mean(self.block_time, since);
            let step = match self.window < self.threshold {
                true => len,
                // One Block for each window of them.
                false => (u64::from(len) * u64::from(len) / u64::from(self.window.max(1))) as u32,
            };
            self.window = self.window.saturating_add(step).min(self.most);
        }
    }

    /// Data was lost: halves the window, once in a round trip.
    pub(crate) fn lost(&mut self, block: u32, now: Instant) {
        if now.since(self.halved) >= self.round_trip.unwrap_or(BLOCK_LEAST) {
            self.halved = now;
            self.window = (self.window / 2).max(block.saturating_mul(2)).min(self.most);
            self.threshold = self.window;
        }
    }

    /// A timer has expired; returns whether that was one too many.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        // Timers that expire together are one sign.
        if now.since(self.expired) >= BLOCK_LEAST {
            self.expired = now;
            self.expirations = self.expirations.saturating_add(1);
        }
        self.expirations >= EXPIRATIONS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(now: Instant) -> PathState {
        let peer = Peer::Station(MacAddress([2, 0, 0, 0, 0, 1]));
        PathState::new(Path { link: 0, peer }, 1000, 100_000, now)
    }

    #[test]
    fn the_window_grows_with_clean_blocks_and_is_halved_once_in_a_round_trip() {
        let now = Instant(1_000_000_000);
        let mut path = path(now);
        path.measure(Duration::from_millis(10));
        assert_eq!(path.room(1000), Some(2000));
        (0..10).for_each(|_| path.complete(1000, Duration::from_millis(1), true));
        assert_eq!(path.room(1000), Some(12_000));
        let later = now + Duration::from_millis(20);
        path.lost(1000, later);
        path.lost(1000, later);
        assert_eq!(path.room(1000), Some(6000));
        (0..6).for_each(|_| path.complete(1000, Duration::from_millis(1), true));
        assert!(path.room(1000).is_some_and(|room| (6900..=7100).contains(&room)), "a window long, one Block more");
        (0..100_000).for_each(|_| path.complete(1000, Duration::from_millis(1), true));
        assert_eq!(path.room(1000), Some(100_000));
        path.granted = 99_500;
        assert_eq!(path.room(1000), None);
    }

    #[test]
    fn three_timers_in_a_row_are_too_many_and_data_starts_anew() {
        let mut now = Instant(1_000_000_000);
        let mut path = path(now);
        let mut expire = |path: &mut PathState| {
            now = now + BLOCK_LEAST;
            path.expire(now);
            path.expire(now)
        };
        assert_eq!([0; 3].map(|_| expire(&mut path)), [false, false, true]);
        path.take_heard(Instant(5));
        assert!(!expire(&mut path));
    }

    #[test]
    fn times_follow_measurements_and_double() {
        let mut path = path(Instant(0));
        assert_eq!(path.request_time(0), REQUEST_FIRST);
        path.measure(Duration::from_micros(100));
        assert_eq!((path.request_time(0), path.request_time(1)), (REQUEST_RANGE.0, REQUEST_RANGE.0 * 2));
        assert_eq!(path.request_time(200), REQUEST_RANGE.1);
        assert_eq!(path.block_patience(0), BLOCK_LEAST);
    }
}
