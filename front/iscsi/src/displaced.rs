//! Sessions that were ended by logins from other addresses. One machine does so when its address changes; two machines
//! with one initiator name end the sessions of each other again and again.

use lunar_core::time::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// So many ended sessions within [`WINDOW`] are not the work of one machine.
const OFTEN: usize = 3;
/// The time for which an ended session counts. An initiator logs in again within some seconds.
const WINDOW: Duration = Duration::from_secs(600);
/// Names that are remembered: a client that may log in under any name displaces the oldest ones, not memory.
const NAMES_MAX: usize = 256;

/// An initiator name that two addresses use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedName {
    /// The name.
    pub initiator: Arc<str>,
    /// Two of its addresses, the smaller one first.
    pub sources: [IpAddr; 2],
}

/// The last ended sessions of each initiator name, at most [`OFTEN`] of each.
#[derive(Debug, Default)]
pub struct Displaced(BTreeMap<Arc<str>, VecDeque<(Instant, [IpAddr; 2])>>);

impl Displaced {
    /// A login from `to` ended the session of this initiator from `from`.
    pub fn add(&mut self, initiator: &Arc<str>, from: IpAddr, to: IpAddr, now: Instant) {
        let (from, to) = (from.to_canonical(), to.to_canonical());
        if from == to {
            return;
        }
        if !self.0.contains_key(initiator) && self.0.len() >= NAMES_MAX {
            let last = |all: &VecDeque<(Instant, _)>| all.back().map(|(time, _)| *time);
            let oldest = self.0.iter().min_by_key(|(_, all)| last(all)).map(|(name, _)| name.clone());
            oldest.iter().for_each(|name| drop(self.0.remove(name)));
        }
        let all = self.0.entry(initiator.clone()).or_default();
        if all.len() == OFTEN {
            all.pop_front();
        }
        all.push_back((now, [from.min(to), from.max(to)]));
    }

    /// The names that two addresses use now.
    #[must_use]
    pub fn shared_names(&self, now: Instant) -> Vec<SharedName> {
        let is_shared = |all: &&VecDeque<(Instant, _)>| {
            all.len() == OFTEN && all.iter().all(|(time, _)| now.since(*time) <= WINDOW)
        };
        let shared = self.0.iter().filter(|(_, all)| is_shared(all));
        let names = shared.filter_map(|(initiator, all)| Some((initiator.clone(), all.back()?.1)));
        names.map(|(initiator, sources)| SharedName { initiator, sources }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn two_addresses_that_end_the_sessions_of_each_other_share_a_name() {
        let (mut displaced, name, start) = (Displaced::default(), "iqn.a".into(), Instant::default());
        displaced.add(&name, address(7), address(8), start);
        displaced.add(&name, address(8), address(7), start + SECOND);
        assert_eq!(displaced.shared_names(start + SECOND), [], "a machine may change its address twice");
        displaced.add(&name, address(7), address(8), start + 2 * SECOND);
        let shared = SharedName { initiator: name, sources: [address(7), address(8)] };
        assert_eq!(displaced.shared_names(start + 2 * SECOND), [shared]);
        assert_eq!(displaced.shared_names(start + WINDOW + SECOND), [], "one of the machines has another name now");
    }

    #[test]
    fn a_machine_that_logs_in_again_shares_its_name_with_nobody() {
        let (mut displaced, name, start) = (Displaced::default(), "iqn.a".into(), Instant::default());
        let mapped: IpAddr = "::ffff:192.0.2.7".parse().expect("an address");
        for _ in 0..2 * OFTEN {
            displaced.add(&name, address(7), mapped, start);
        }
        assert_eq!(displaced.shared_names(start), []);
    }

    #[test]
    fn a_flood_of_names_stays_within_the_limit() {
        let (mut displaced, start) = (Displaced::default(), Instant::default());
        for at in 0..3 * NAMES_MAX as u32 {
            displaced.add(&format!("iqn.{at}").into(), address(1), address(2), start + at * SECOND);
        }
        assert_eq!(displaced.0.len(), NAMES_MAX);
        assert!(displaced.0.contains_key(&*format!("iqn.{}", 3 * NAMES_MAX - 1)), "the latest ones are kept");
    }
}
