//! Who fails waits, and so does who comes too often. Answers come later and later for a source that fails, and failures for a user are told later and
//! later; what is right is never refused for what others did wrong under the same name.

use crate::pace::{Pace, host};
use crate::time::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Failures that cost nothing: a secret that was typed wrongly, on a few paths at once.
const FREE: u32 = 3;
/// What the first failure costs that is not free; each further one twice as much.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// What a failure costs at most: with [`WAIT_MAX`] less than the time that a login of any transport has, so that who is
/// refused is told.
pub const PAUSE_MAX: Duration = Duration::from_secs(4);
/// How long a source that fails may have to wait for its turn. Beyond it, it is refused at once: nothing is queued
/// without end.
pub const WAIT_MAX: Duration = Duration::from_secs(8);
/// Without another failure for so long, all is forgiven.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Sources, and users, that are remembered: some 200 KiB each. Of more, the one that failed longest ago is forgotten.
pub const REMEMBERED_MAX: usize = 4096;

/// Failures of one source or user.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// When its next attempt is looked at.
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

/// Failures by whom.
#[derive(Debug)]
struct Table<K>(BTreeMap<K, Failures>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Table<K> {
    /// What is not forgotten of one.
    fn get(&mut self, key: &K, now: Instant) -> Option<&mut Failures> {
        if self.0.get(key).is_some_and(|failures| now.since(failures.last) > FORGET_AFTER) {
            self.0.remove(key);
        }
        self.0.get_mut(key)
    }

    /// One failure more; what it costs.
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

/// Failed logins, and what they cost; and how often somebody may come at all.
#[derive(Debug, Default)]
pub struct Throttle {
    sources: Table<IpAddr>,
    users: Table<Arc<str>>,
    pace: Pace,
    /// Logins from one source in a second; `None`: as many as come.
    rate: Option<u32>,
}

impl Throttle {
    /// From now on so many logins are welcome from one source in a second; `None`: as many as come.
    pub fn set_rate(&mut self, rate: Option<u32>) {
        self.rate = rate;
    }

    /// Somebody comes: how long he has to wait until he is heard; `None` if he comes too often.
    pub fn arrive(&mut self, source: IpAddr, now: Instant) -> Option<Duration> {
        self.rate.map_or(Some(Duration::ZERO), |rate| self.pace.turn(source, rate, now))
    }

    /// How long an attempt from a source has to wait; `None` if it is one too many. One whose attempts fail has them
    /// looked at one after the other, however many connections it opens.
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

    /// An attempt has failed; how much later than its turn that is told.
    pub fn failed(&mut self, source: IpAddr, user: &Arc<str>, now: Instant) -> Duration {
        let (by_source, by_user) = (self.sources.add(host(source), now), self.users.add(user.clone(), now));
        by_source.max(by_user)
    }

    /// An attempt was right. Only the user's failures are forgiven: who knows one secret may still try for another.
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
    fn who_comes_too_often_waits_whatever_he_comes_for() {
        let (mut throttle, here) = (Throttle::default(), source("192.0.2.1"));
        assert!((0..1000).all(|_| throttle.arrive(here, START) == Some(Duration::ZERO)), "there is no limit");
        throttle.set_rate(Some(1));
        let waits: Vec<_> = (0..4).map(|_| throttle.arrive(here, START).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(0), Some(1), Some(2), None]);
        assert_eq!(throttle.arrive(source("192.0.2.2"), START), Some(Duration::ZERO), "others do not wait");
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
    fn who_fails_has_one_attempt_at_a_time_and_not_too_many_waiting() {
        let (mut throttle, here) = (Throttle::default(), source("192.0.2.1"));
        (0..8).for_each(|_| _ = throttle.failed(here, &"a".into(), START));
        let waits: Vec<Option<u64>> = (0..4).map(|_| throttle.turn(here, START).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits, [Some(0), Some(4), Some(8), None]);
        assert_eq!(throttle.turn(here, START + Duration::from_secs(5)).map(|wait| wait.as_secs()), Some(7));
        assert_eq!(throttle.turn(source("192.0.2.2"), START), Some(Duration::ZERO), "others do not wait");
    }

    #[test]
    fn a_right_attempt_never_waits_for_what_others_did_under_its_name() {
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
    fn what_is_remembered_is_bounded() {
        let mut throttle = Throttle::default();
        for count in 0..(REMEMBERED_MAX as u32 + 50) {
            let (address, user) = (IpAddr::from((0x0a00_0000 + count).to_be_bytes()), format!("user{count}").into());
            let _ = throttle.failed(address, &user, START + Duration::from_nanos(count.into()));
        }
        assert_eq!((throttle.sources.0.len(), throttle.users.0.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(!throttle.sources.0.contains_key(&source("10.0.0.0")), "the oldest is forgotten");
    }
}
