//! How a station claims its address, and notices that another one has it: address conflict detection for IPv4 (RFC
//! 5227), duplicate address detection for IPv6 (RFC 4862 section 5.4).
//!
//! The address is used while it is probed, as RFC 4429 allows: the peers of a process that was killed are disconnected
//! at once by the one that follows it. A station that answers the probes keeps the address, and it is not used here. A
//! station that appears later is told of the claim, and operators are.

use super::limits::{ANNOUNCEMENTS, CLAIM_INTERVAL, CONFLICT_MEMORY, DEFEND_INTERVAL, PROBES};
use lunar_core::time::Instant;
use lunar_link::MacAddress;

/// A message to all stations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A question who has the address.
    Probe,
    /// The news that this station has it.
    Announce,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// So many probes and announcements were sent; the time of the next one.
    Claiming(u32, Instant),
    Claimed,
    /// Another station has the address. It is claimed once more at this time.
    Refused(Instant),
}

/// The claim of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    state: State,
    /// The station that has used the address last, and when.
    conflict: Option<(MacAddress, Instant)>,
    defended: Option<Instant>,
}

impl Claim {
    /// A claim that begins now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { state: State::Claiming(0, now), conflict: None, defended: None }
    }

    /// Whether the address may be used.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !matches!(self.state, State::Refused(_))
    }

    fn is_probing(&self) -> bool {
        matches!(self.state, State::Claiming(..=PROBES, _))
    }

    /// The station that has the address as well.
    #[must_use]
    pub fn conflict(&self) -> Option<MacAddress> {
        self.conflict.map(|(station, _)| station)
    }

    /// When [`Claim::expire`] is to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let step = match self.state {
            State::Claiming(_, at) | State::Refused(at) => Some(at),
            State::Claimed => None,
        };
        step.into_iter().chain(self.conflict.map(|(_, seen)| seen + CONFLICT_MEMORY)).min()
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Instant) -> Option<Step> {
        if self.is_usable() && self.conflict.is_some_and(|(_, seen)| seen + CONFLICT_MEMORY <= now) {
            self.conflict = None;
        }
        match self.state {
            State::Refused(at) if at <= now => self.state = State::Claiming(0, now),
            State::Claiming(_, at) if at <= now => {}
            _ => return None,
        }
        let State::Claiming(sent, _) = self.state else { return None };
        if sent >= PROBES + ANNOUNCEMENTS {
            self.state = State::Claimed;
            return None;
        }
        self.state = State::Claiming(sent + 1, now + CLAIM_INTERVAL);
        Some(if sent < PROBES { Step::Probe } else { Step::Announce })
    }

    /// Another station uses the address. Returns how it is defended (RFC 5227 section 2.4).
    pub fn contested(&mut self, station: MacAddress, now: Instant) -> Option<Step> {
        self.conflict = Some((station, now));
        if self.is_probing() || !self.is_usable() {
            self.state = State::Refused(now + DEFEND_INTERVAL);
            return None;
        }
        if self.defended.is_some_and(|last| now.since(last) < DEFEND_INTERVAL) {
            return None;
        }
        self.defended = Some(now);
        Some(Step::Announce)
    }

    /// Another station probes the address: it wants to use it. The answer to its probe tells it not to, unless both
    /// are probing (RFC 5227 section 2.1.1).
    pub fn probed(&mut self, station: MacAddress, now: Instant) {
        if self.is_probing() {
            self.contested(station, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

    fn at(seconds: u64) -> Instant {
        Instant(1) + Duration::from_secs(seconds)
    }

    /// The steps until a time, with their times.
    fn steps(claim: &mut Claim, from: u64, to: u64) -> Vec<(u64, Step)> {
        (from..to).filter_map(|second| claim.expire(at(second)).map(|step| (second, step))).collect()
    }

    #[test]
    fn an_address_is_probed_and_announced() {
        let mut claim = Claim::new(at(0));
        assert!(claim.is_usable() && claim.deadline() == Some(at(0)));
        let sent = steps(&mut claim, 0, 20);
        assert_eq!(sent, [(0, Step::Probe), (1, Step::Probe), (2, Step::Announce), (3, Step::Announce)]);
        assert_eq!((claim.state, claim.deadline()), (State::Claimed, None));
    }

    #[test]
    fn an_address_of_another_station_is_not_used_until_that_is_gone() {
        let mut claim = Claim::new(at(0));
        claim.expire(at(0));
        assert_eq!(claim.contested(OTHER, at(0)), None);
        assert!(!claim.is_usable() && claim.conflict() == Some(OTHER));
        assert_eq!(steps(&mut claim, 0, 10), []);
        assert_eq!(claim.expire(at(10)), Some(Step::Probe));
        claim.contested(OTHER, at(10));
        assert!(!claim.is_usable());
        assert_eq!(steps(&mut claim, 11, 30).len(), 4);
        assert!(claim.is_usable());
        assert_eq!((claim.conflict(), claim.deadline()), (Some(OTHER), Some(at(70))));
        claim.expire(at(70));
        assert_eq!((claim.conflict(), claim.deadline()), (None, None));
    }

    #[test]
    fn an_address_is_defended_but_not_all_the_time() {
        let mut claim = Claim::new(at(0));
        steps(&mut claim, 0, 20);
        let defences: Vec<u64> =
            (20..45).filter(|second| claim.contested(OTHER, at(*second)) == Some(Step::Announce)).collect();
        assert_eq!(defences, [20, 30, 40]);
        assert!(claim.is_usable() && claim.conflict() == Some(OTHER));
    }

    #[test]
    fn two_stations_that_probe_both_give_way() {
        let (mut early, mut late) = (Claim::new(at(0)), Claim::new(at(0)));
        steps(&mut early, 0, 1);
        early.probed(OTHER, at(0));
        assert!(!early.is_usable());
        steps(&mut late, 0, 10);
        late.probed(OTHER, at(10));
        assert!(late.is_usable() && late.conflict().is_none());
    }
}
