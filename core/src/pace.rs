//! The limit of connections per second of each host, the same for every transport. A host that exceeds the limit waits
//! for its turn; beyond a longest wait it is refused.

use crate::time::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// How long a client may have to wait for its turn; the time that a login has begins after it. Initiators give up
/// after some 15 seconds. At the usual rate, six hundred clients behind one address are admitted: a rack behind NAT
/// that starts.
pub const TURN_MAX: Duration = Duration::from_secs(5);
/// Most hosts that are remembered: some 200 KiB. Beyond this number the host whose turn is over first is removed.
pub const REMEMBERED_MAX: usize = 4096;
/// The time whose connections may arrive at once.
const SECOND: Duration = Duration::from_secs(1);
/// A host with one IPv6 address has the 2^64 addresses of its network.
const IPV6_PREFIX: u32 = 64;

/// The hosts that connected recently.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// For each host: the time at which its whole allowance is available again.
    whole_again: BTreeMap<IpAddr, Instant>,
}

impl Pace {
    /// How long a connection from `source` has to wait, if `per_second` are allowed in a second; `None` if that is
    /// longer than [`TURN_MAX`].
    pub fn turn(&mut self, source: IpAddr, per_second: u32, now: Instant) -> Option<Duration> {
        let host = host(source);
        let interval = SECOND / per_second.max(1);
        let used = self.whole_again.get(&host).copied().unwrap_or(now).max(now);
        // A host that was idle for a second has the allowance of one second.
        let wait = (used + interval).since(now).saturating_sub(SECOND);
        if wait > TURN_MAX {
            return None;
        }
        self.make_room(&host, now);
        self.whole_again.insert(host, used + interval);
        Some(wait)
    }

    fn make_room(&mut self, host: &IpAddr, now: Instant) {
        if self.whole_again.len() < REMEMBERED_MAX || self.whole_again.contains_key(host) {
            return;
        }
        self.whole_again.retain(|_, whole_again| *whole_again > now);
        if self.whole_again.len() >= REMEMBERED_MAX {
            let first = self.whole_again.iter().min_by_key(|(_, whole_again)| **whole_again).map(|(host, _)| *host);
            first.map(|first| self.whole_again.remove(&first));
        }
    }
}

/// The key of the host of an address: an IPv6 host has a whole network of addresses.
#[must_use]
pub fn host(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> IPV6_PREFIX << IPV6_PREFIX).into(),
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
    fn so_many_come_in_a_second_and_more_wait() {
        let (mut pace, here) = (Pace::default(), source("192.0.2.1"));
        let mut turn = |now| pace.turn(here, 4, now).map(|wait| wait.as_millis());
        let waits: Vec<_> = (0..26).map(|_| turn(START)).collect();
        let wanted: Vec<_> = [0; 4].into_iter().chain((1..=20).map(|count| count * 250)).map(Some).collect();
        assert_eq!((&waits[..24], &waits[24..]), (&wanted[..], &[None, None][..]));
        assert_eq!(turn(START + Duration::from_millis(500)), Some(4750), "a refused host uses up nothing");
        assert_eq!(turn(START + Duration::from_secs(60)), Some(0));
    }

    #[test]
    fn five_hundred_clients_behind_one_address_wait_and_are_admitted() {
        const USUAL_RATE: u32 = 100;
        let (mut pace, here) = (Pace::default(), source("192.0.2.1"));
        let waits: Vec<_> = (0..500).map(|_| pace.turn(here, USUAL_RATE, START)).collect();
        assert!(waits.iter().all(|wait| wait.is_some_and(|wait| wait <= Duration::from_secs(4))));
    }

    #[test]
    fn other_hosts_do_not_wait_and_the_addresses_of_one_network_are_one_host() {
        let mut pace = Pace::default();
        (0..6).for_each(|_| _ = pace.turn(source("2001:db8:1:2::1"), 1, START));
        assert_eq!(pace.turn(source("2001:db8:1:2:ffff::"), 1, START), None);
        assert_eq!(pace.turn(source("2001:db8:1:3::1"), 1, START), Some(Duration::ZERO));
        assert_eq!(host(source("::ffff:192.0.2.1")), source("192.0.2.1"));
    }

    #[test]
    fn the_number_of_remembered_entries_is_bounded() {
        let mut pace = Pace::default();
        for count in 0..REMEMBERED_MAX as u32 + 50 {
            let _ = pace.turn(
                IpAddr::from((0x0a00_0000 + count).to_be_bytes()),
                1,
                START + Duration::from_nanos(count.into()),
            );
        }
        assert_eq!(pace.whole_again.len(), REMEMBERED_MAX);
        assert!(!pace.whole_again.contains_key(&source("10.0.0.0")), "the oldest is forgotten");
        // Hosts with their whole allowance need not be remembered.
        let _ = pace.turn(source("192.0.2.1"), 1, START + Duration::from_secs(60));
        assert_eq!(pace.whole_again.len(), 1);
    }
}
