//! The record of live connections: a process that was killed cannot disconnect its peers, and a peer whose commands are
//! not answered waits for half a minute. The process that follows it disconnects them.

use crate::address::PortAddress;
use crate::limits::CONNECTIONS_MAX;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::U32;
use std::net::{IpAddr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The name of the record in a metadata store.
pub const NAME: &str = "connections";
/// The owner of the record of an address, whose protocols share it.
#[must_use]
pub fn owner(address: &PortAddress) -> String {
    format!("rdma {}", address.site())
}

/// The version of its layout.
const VERSION: u8 = 1;

/// A connection that is established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// The peer.
    pub peer: IpAddr,
    /// Its number here, which is that of its queue pair.
    pub local: u32,
    /// Its number at the peer, and that of the queue pair there.
    pub remote: u32,
    /// The queue pair of the peer.
    pub qpn: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    peer: [u8; 16],
    local: U32,
    remote: U32,
    qpn: U32,
}

/// The bytes of a record.
#[must_use]
pub fn bytes(all: &[Live]) -> Vec<u8> {
    let entry = |live: &Live| {
        let peer = match live.peer {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Entry { peer: peer.octets(), local: live.local.into(), remote: live.remote.into(), qpn: live.qpn.into() }
    };
    let mut bytes = vec![VERSION];
    all.iter().for_each(|live| bytes.extend(entry(live).as_bytes()));
    bytes
}

/// The connections of a record. One of another version has none.
#[must_use]
pub fn parse(bytes: &[u8]) -> Vec<Live> {
    let Some((&VERSION, entries)) = bytes.split_first() else { return Vec::new() };
    let mut cursor = Cursor::new(entries);
    let next = || {
        let entry: &Entry = cursor.take().ok()?;
        let peer = IpAddr::V6(Ipv6Addr::from(entry.peer)).to_canonical();
        Some(Live { peer, local: entry.local.get(), remote: entry.remote.get(), qpn: entry.qpn.get() })
    };
    std::iter::from_fn(next).take(CONNECTIONS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(numbers in prop::collection::vec(any::<[u32; 4]>(), 0..9)) {
            let live = |[address, local, remote, qpn]: [u32; 4]| {
                let peer = match address % 2 {
                    0 => IpAddr::from(address.to_be_bytes()),
                    _ => Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(address)).into(),
                };
                Live { peer, local, remote, qpn }
            };
            let all: Vec<Live> = numbers.into_iter().map(live).collect();
            prop_assert_eq!(parse(&bytes(&all)), all);
        }

        #[test]
        fn any_bytes_are_a_record(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&bytes).len() <= bytes.len() / size_of::<Entry>());
        }
    }
}
