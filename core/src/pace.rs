//! How often hosts may knock: so many times a second, at once or one after the other. Who knocks more often waits for
//! his turn, and beyond that is turned away: the same for every transport.

use crate::time::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// How long somebody may have to wait for his turn. Together with what failures cost it is less than the time that a
/// login has, so that who is turned away is told.
pub const TURN_MAX: Duration = Duration::from_secs(2);
/// Hosts that are remembered: some 200 KiB. Of more, the one whose turn is over first is forgotten.
pub const REMEMBERED_MAX: usize = 4096;
/// The time in which so many may knock at once.
const SECOND: Duration = Duration::from_secs(1);
/// Who has one IPv6 address has the 2^64 of its network.
const IPV6_PREFIX: u32 = 64;

/// Who has knocked of late.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// When all that each host has used up is there again.
    whole_again: BTreeMap<IpAddr, Instant>,
}

impl Pace {
    /// How long somebody from `source` has to wait, if `per_second` may come in a second; `None` if that is longer than
    /// [`TURN_MAX`].
    pub fn turn(&mut self, source: IpAddr, per_second: u32, now: Instant) -> Option<Duration> {
        let host = host(source);
        let interval = SECOND / per_second.max(1);
        let used = self.whole_again.get(&host).copied().unwrap_or(now).max(now);
        // Whoever has rested for a second has a second's worth.
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

/// What stands for the host that an address is of: one IPv6 host has a whole network of them.
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
        let waits: Vec<_> = (0..14).map(|_| turn(START)).collect();
        let wanted = [0, 0, 0, 0, 250, 500, 750, 1000, 1250, 1500, 1750, 2000].map(Some);
        assert_eq!((&waits[..12], &waits[12..]), (&wanted[..], &[None, None][..]));
        assert_eq!(turn(START + Duration::from_millis(500)), Some(1750), "who is turned away uses nothing up");
        assert_eq!(turn(START + Duration::from_secs(60)), Some(0));
    }

    #[test]
    fn others_do_not_wait_and_the_addresses_of_one_network_are_one_host() {
        let mut pace = Pace::default();
        (0..3).for_each(|_| _ = pace.turn(source("2001:db8:1:2::1"), 1, START));
        assert_eq!(pace.turn(source("2001:db8:1:2:ffff::"), 1, START), None);
        assert_eq!(pace.turn(source("2001:db8:1:3::1"), 1, START), Some(Duration::ZERO));
        assert_eq!(host(source("::ffff:192.0.2.1")), source("192.0.2.1"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
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
        // Those who have rested need not be remembered.
        let _ = pace.turn(source("192.0.2.1"), 1, START + Duration::from_secs(60));
        assert_eq!(pace.whole_again.len(), 1);
    }
}
