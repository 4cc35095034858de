//! Delays logins of hosts that fail to authenticate or that connect too often. The answers to such a source are
//! delayed more and more, and so are the refusals for a user's name. Correct credentials are never refused because
//! another host failed with the same name.

use crate::pace::{Pace, host};
use crate::time::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Failures without a delay: a mistyped secret on several paths at once.
const FREE: u32 = 3;
/// The delay of the first failure after the free ones; each further failure doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest delay of a failure. Together with [`WAIT_MAX`] it is shorter than the login timeout of every transport,
/// so that the client receives the refusal.
pub const PAUSE_MAX: Duration = Duration::from_secs(4);
/// The longest time that an attempt of a source waits for its turn. An attempt that would wait longer is refused at
/// once, so that the queue has a limit.
pub const WAIT_MAX: Duration = Duration::from_secs(8);
/// After this time without another failure all failures are forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Most sources, and most users, that are remembered: some 200 KiB each. Beyond this number the entry with the oldest
/// failure is removed.
pub const REMEMBERED_MAX: usize = 4096;

/// Failures of one source or user.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// The time at which its next attempt is processed.
    turn: Instant,
}

impl Failures {
    fn pause(&self) -> Duration {
        match self.count.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => PAUSE_MIN.saturating_mul(1 << doublings.min(16)).min(PAUSE_MAX),
        }
    }
}

/// Failures by source or by user.
#[derive(Debug)]
struct Table<K>(BTreeMap<K, Failures>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Table<K> {
    /// The failures of one source or user that have not expired.
    fn get(&mut self, key: &K, now: Instant) -> Option<&mut Failures> {
        if self.0.get(key).is_some_and(|failures| now.since(failures.last) > FORGET_AFTER) {
            self.0.remove(key);
        }
        self.0.get_mut(key)
    }

    /// Counts one more failure; returns its delay.
    fn add(&mut self, key: K, now: Instant) -> Duration {
        if self.get(&key, now).is_none() && self.0.len() >= REMEMBERED_MAX {
            let oldest = self.0.iter().min_by_key(|(_, failures)| failures.last).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        let failures = self.0.entry(key).or_insert(Failures { count: 0, last: now, turn: now });
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        failures.pause()
    }
}

/// Failed logins and their delays, and the limit of logins per second.
#[derive(Debug, Default)]
pub struct Throttle {
    sources: Table<IpAddr>,
    users: Table<Arc<str>>,
    pace: Pace,
    /// Most logins of one source in a second; `None`: no limit.
    rate: Option<u32>,
}

impl Throttle {
    /// Sets how many logins of one source are allowed in a second; `None`: no limit.
    pub fn set_rate(&mut self, rate: Option<u32>) {
        self.rate = rate;
    }

    /// Registers a connection of a source. Returns how long it waits until it is served; `None` if the source exceeds
    /// its limit.
    pub fn arrive(&mut self, source: IpAddr, now: Instant) -> Option<Duration> {
        self.rate.map_or(Some(Duration::ZERO), |rate| self.pace.turn(source, rate, now))
    }

    /// How long an attempt of a source has to wait; `None` if it must be refused. The attempts of a source that failed
    /// are processed one after the other, on any number of connections.
    pub fn turn(&mut self, source: IpAddr, now: Instant) -> Option<Duration> {
        let Some(failures) = self.sources.get(&host(source), now) else { return Some(Duration::ZERO) };
        let turn = failures.turn.max(now);
        let wait = turn.since(now);
        if wait > WAIT_MAX {
            return None;
        }
        failures.turn = turn + failures.pause();
        Some(wait)
    }

    /// Registers a failed attempt; returns how much later than its turn the refusal is sent.
    pub fn failed(&mut self, source: IpAddr, user: &Arc<str>, now: Instant) -> Duration {
        let (by_source, by_user) = (self.sources.add(host(source), now), self.users.add(user.clone(), now));
        by_source.max(by_user)
    }

    /// Registers a successful attempt. Only the failures of the user are forgotten: a host with one valid secret may
    /// still guess another.
    pub fn succeeded(&mut self, user: &Arc<str>) {
        self.users.0.remove(user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(1_000_000_000_000);

    fn source(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_source_that_connects_too_often_waits_for_every_purpose() {
        let (mut throttle, here) = (Throttle::default(), source("192.0.2.1"));
        assert!((0..1000).all(|_| throttle.arrive(here, START) == Some(Duration::ZERO)), "there is no limit");
        throttle.set_rate(Some(1));
        let waits: Vec<_> = (0..7).map(|_| throttle.arrive(here, START).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), None]);
        assert_eq!(throttle.arrive(source("192.0.2.2"), START), Some(Duration::ZERO), "other sources do not wait");
    }

    #[test]
    fn failures_cost_more_and_more_up_to_a_limit() {
        let (mut throttle, here) = (Throttle::default(), source("192.0.2.1"));
        let costs: Vec<u128> = (0..10).map(|_| throttle.failed(here, &"a".into(), START).as_millis()).collect();
        assert_eq!(costs, [0, 0, 0, 250, 500, 1000, 2000, 4000, 4000, 4000]);
        let later = START + FORGET_AFTER + Duration::from_secs(1);
        assert_eq!(throttle.failed(here, &"a".into(), later), Duration::ZERO, "forgiven");
    }

    #[test]
    fn a_source_that_fails_has_one_attempt_at_a_time_and_a_bounded_queue() {
        let (mut throttle, here) = (Throttle::default(), source("192.0.2.1"));
        (0..8).for_each(|_| _ = throttle.failed(here, &"a".into(), START));
        let waits: Vec<Option<u64>> = (0..4).map(|_| throttle.turn(here, START).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(0), Some(4), Some(8), None]);
        assert_eq!(throttle.turn(here, START + Duration::from_secs(5)).map(|wait| wait.as_secs()), Some(7));
        assert_eq!(throttle.turn(source("192.0.2.2"), START), Some(Duration::ZERO), "other sources do not wait");
    }

    #[test]
    fn a_correct_attempt_never_waits_for_failures_of_other_sources_with_its_name() {
        let mut throttle = Throttle::default();
        for last in 1..200_u8 {
            let _ = throttle.failed(IpAddr::from([198, 51, 100, last]), &"alice".into(), START);
        }
        assert_eq!(throttle.turn(source("192.0.2.1"), START), Some(Duration::ZERO));
        assert_eq!(throttle.failed(source("192.0.2.1"), &"alice".into(), START), PAUSE_MAX);
        throttle.succeeded(&"alice".into());
        assert_eq!(throttle.failed(source("192.0.2.1"), &"alice".into(), START), Duration::ZERO);
    }

    #[test]
    fn the_number_of_remembered_entries_is_bounded() {
        let mut throttle = Throttle::default();
        for count in 0..(REMEMBERED_MAX as u32 + 50) {
            let (address, user) = (IpAddr::from((0x0a00_0000 + count).to_be_bytes()), format!("user{count}").into());
            let _ = throttle.failed(address, &user, START + Duration::from_nanos(count.into()));
        }
        assert_eq!((throttle.sources.0.len(), throttle.users.0.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(!throttle.sources.0.contains_key(&source("10.0.0.0")), "the oldest is forgotten");
    }
}
