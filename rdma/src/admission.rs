//! The connections that a port takes, and those that give way to others: the rules of [`crate::limits`].

use crate::limits::{CONNECTIONS_MAX, ENDED_MAX, HALF_OPEN_MAX, HALF_OPEN_OF_PEER_MAX};
use lunar_core::shares::{PeerShares, Share};
use std::net::IpAddr;

/// A place in the order in which requests have arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Arrival(u64);

/// The connections of a port.
#[derive(Debug)]
pub(crate) struct Admission {
    accepted: PeerShares,
    last: Arrival,
}

impl Default for Admission {
    fn default() -> Self {
        Self { accepted: PeerShares::new(CONNECTIONS_MAX), last: Arrival::default() }
    }
}

impl Admission {
    /// Another request has arrived.
    pub(crate) fn arrive(&mut self) -> Arrival {
        self.last.0 += 1;
        self.last
    }

    /// The place of a connection of this peer that is accepted, until it ends; `None`: its host has as many as it
    /// leaves for others.
    pub(crate) fn take(&self, peer: IpAddr) -> Option<Share> {
        self.accepted.join(peer).take(1)
    }

    /// How many more connections of this peer may be accepted.
    pub(crate) fn left(&self, peer: IpAddr) -> usize {
        self.accepted.newcomers(peer, 1)
    }
}

/// The half-open connection that gives way to a new request of this peer: its own oldest one, if it has as many as a
/// peer may have, or the oldest of all; `None`: there is room. `half_open` are the half-open connections, by their
/// arrivals.
pub(crate) fn gives_way<K: Ord>(peer: IpAddr, half_open: impl Iterator<Item = (K, IpAddr)> + Clone) -> Option<K> {
    let own = half_open.clone().filter(|(_, other)| *other == peer);
    if own.clone().count() >= HALF_OPEN_OF_PEER_MAX {
        return own.map(|(key, _)| key).min();
    }
    let is_full = half_open.clone().count() >= HALF_OPEN_MAX;
    if is_full { half_open.map(|(key, _)| key).min() } else { None }
}

/// The connections that have ended and are forgotten before their time, because there are too many: those whose time
/// ends first. `ended` are all of them, by their times.
pub(crate) fn forgotten<K: Ord>(ended: impl Iterator<Item = K>) -> Vec<K> {
    let mut ended: Vec<K> = ended.collect();
    let surplus = ended.len().saturating_sub(ENDED_MAX);
    if surplus > 0 {
        ended.sort_unstable();
    }
    ended.truncate(surplus);
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: u8) -> IpAddr {
        [192, 0, 2, host].into()
    }

    #[test]
    fn a_host_has_as_many_connections_as_it_leaves_for_others() {
        let admission = Admission::default();
        let take_all = |host| std::iter::from_fn(|| admission.take(address(host))).collect::<Vec<_>>();
        assert_eq!(admission.left(address(1)), CONNECTIONS_MAX / 2);
        let one = take_all(1);
        assert_eq!((one.len(), admission.left(address(1))), (CONNECTIONS_MAX / 2, 0));
        let left = admission.left(address(2));
        let other = take_all(2);
        assert_eq!((other.len(), left), (CONNECTIONS_MAX / 4, CONNECTIONS_MAX / 4));
        drop(one);
        assert!(admission.left(address(1)) > CONNECTIONS_MAX / 3);
    }

    #[test]
    fn the_oldest_half_open_connection_gives_way() {
        let of = |host, range: std::ops::Range<usize>| range.map(move |key| (key, address(host)));
        let few = of(1, 3..HALF_OPEN_OF_PEER_MAX + 2);
        assert_eq!(gives_way(address(1), few), None);
        let own = of(2, 0..3).chain(of(1, 3..HALF_OPEN_OF_PEER_MAX + 3));
        assert_eq!((gives_way(address(1), own.clone()), gives_way(address(2), own)), (Some(3), None));
        let many = (0..HALF_OPEN_MAX).map(|at| (HALF_OPEN_MAX - at, address(at as u8)));
        assert_eq!(gives_way(address(200), many), Some(1));
    }

    #[test]
    fn connections_that_have_ended_are_bounded() {
        assert!(forgotten(0..ENDED_MAX).is_empty());
        assert_eq!(forgotten((0..ENDED_MAX + 2).rev()), [0, 1]);
    }
}
