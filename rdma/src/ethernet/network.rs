//! An address with the prefix of its network, and a gateway to others.

use std::fmt;
use std::net::IpAddr;

/// The address of a station, and how it reaches its peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
    gateway: Option<IpAddr>,
}

/// Why an address, a prefix and a gateway do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkError {
    /// A prefix has from 1 to so many bits.
    Prefix(u8),
    /// The address is not that of one station of a network.
    Address(IpAddr),
    /// The gateway is no other station of this network.
    Gateway(IpAddr),
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(most) => {
                write!(f, "needs the length of the prefix of its network, from 1 to {most}, as 192.0.2.10/24")
            }
            Self::Address(address) => write!(f, "{address} is not the address of one station of this network"),
            Self::Gateway(address) => write!(f, "{address} is not the address of another station of the network"),
        }
    }
}

impl std::error::Error for NetworkError {}

/// The bits of an address, from the highest one on, and their number.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl Network {
    /// The network of an address whose prefix has this many bits, with a gateway to other networks.
    ///
    /// # Errors
    /// Address, prefix and gateway do not fit together.
    pub fn new(address: IpAddr, prefix: u8, gateway: Option<IpAddr>) -> Result<Self, NetworkError> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if !(1..=most).contains(&prefix) {
            return Err(NetworkError::Prefix(most));
        }
        let network = Self { address, prefix, gateway };
        if !network.is_station(address) {
            return Err(NetworkError::Address(address));
        }
        match gateway.filter(|gateway| *gateway == address || !network.is_neighbour(*gateway)) {
            Some(gateway) => Err(NetworkError::Gateway(gateway)),
            None => Ok(network),
        }
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The bits of an address behind the prefix, and how many these are.
    fn host_bits(&self, address: IpAddr) -> (u128, u32) {
        let (bits, len) = bits(address);
        let host = len - u32::from(self.prefix);
        (bits & 1_u128.checked_shl(host).map_or(u128::MAX, |end| end - 1), host)
    }

    /// Whether an address is of the network: it has the same prefix.
    fn is_inside(&self, address: IpAddr) -> bool {
        let ((own, len), (other, _)) = (bits(self.address), bits(address));
        let host = len - u32::from(self.prefix);
        own.checked_shr(host) == other.checked_shr(host) && self.address.is_ipv4() == address.is_ipv4()
    }

    /// Whether an address can be that of one station: not of this host itself, of a group, or of all stations of this
    /// network (RFC 1122 3.2.1.3).
    fn is_station(&self, address: IpAddr) -> bool {
        let is_one = match address {
            // Class E and 255.255.255.255 begin with four ones, 0.0.0.0/8 is this network.
            IpAddr::V4(address) => {
                !address.is_loopback() && !address.is_multicast() && !matches!(address.octets()[0], 0 | 240..)
            }
            IpAddr::V6(address) => !address.is_loopback() && !address.is_multicast() && !address.is_unspecified(),
        };
        // With prefixes of 31 and 32 bits all addresses are those of stations (RFC 3021).
        let is_of_all = address.is_ipv4() && self.is_inside(address) && {
            let (host, len) = self.host_bits(address);
            len > 1 && (host == 0 || host == (1 << len) - 1)
        };
        is_one && !is_of_all
    }

    fn is_neighbour(&self, address: IpAddr) -> bool {
        self.is_inside(address) && self.is_station(address)
    }

    /// The neighbour to which packets for a peer are sent: itself, or the gateway; `None`: the peer is not reached.
    #[must_use]
    pub fn next_hop(&self, peer: IpAddr) -> Option<IpAddr> {
        if peer == self.address || peer.is_ipv4() != self.address.is_ipv4() || !self.is_station(peer) {
            return None;
        }
        if self.is_inside(peer) { Some(peer) } else { self.gateway }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn network(address: &str, prefix: u8, gateway: Option<&str>) -> Result<Network, NetworkError> {
        Network::new(ip(address), prefix, gateway.map(ip))
    }

    #[test]
    fn peers_are_reached_directly_or_through_the_gateway() {
        for (own, prefix, gateway, near, far) in [
            ("192.0.2.10", 24, "192.0.2.1", "192.0.2.254", "192.0.3.1"),
            ("2001:db8::10", 64, "2001:db8::1", "2001:db8::ffff:1", "2001:db8:1::1"),
        ] {
            let (with, without) = (network(own, prefix, Some(gateway)), network(own, prefix, None));
            let hop = |network: &Result<Network, _>, peer| network.expect("right").next_hop(ip(peer));
            assert_eq!((hop(&with, near), hop(&with, far)), (Some(ip(near)), Some(ip(gateway))));
            assert_eq!((hop(&without, near), hop(&without, far)), (Some(ip(near)), None));
            assert_eq!(hop(&with, own), None, "no peer has the own address");
        }
        let with = network("192.0.2.10", 24, Some("192.0.2.1")).expect("right");
        for wrong in [
            "192.0.2.0",
            "192.0.2.255",
            "255.255.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "240.1.2.3",
            "2001:db8::1",
            "::1",
        ] {
            assert_eq!(with.next_hop(ip(wrong)), None, "{wrong}");
        }
        let alone = network("192.0.2.10", 32, None).expect("right");
        assert_eq!((alone.next_hop(ip("192.0.2.11")), alone.to_string()), (None, "192.0.2.10/32".into()));
        let pair = network("192.0.2.10", 31, None).expect("right");
        assert_eq!(pair.next_hop(ip("192.0.2.11")), Some(ip("192.0.2.11")));
    }

    #[test]
    fn addresses_that_do_not_fit_are_refused() {
        for (address, prefix, gateway, why) in [
            ("192.0.2.10", 0, None, "from 1 to 32"),
            ("192.0.2.10", 33, None, "from 1 to 32"),
            ("2001:db8::1", 129, None, "from 1 to 128"),
            ("192.0.2.0", 24, None, "one station"),
            ("192.0.2.255", 24, None, "one station"),
            ("127.0.0.1", 8, None, "one station"),
            ("ff02::1", 64, None, "one station"),
            ("192.0.2.10", 24, Some("192.0.3.1"), "another station"),
            ("192.0.2.10", 24, Some("192.0.2.10"), "another station"),
            ("192.0.2.10", 24, Some("192.0.2.255"), "another station"),
            ("192.0.2.10", 24, Some("2001:db8::1"), "another station"),
        ] {
            let found = network(address, prefix, gateway).expect_err(why).to_string();
            assert!(found.contains(why), "{address}/{prefix}: {found}");
        }
    }

    proptest! {
        #[test]
        fn a_neighbour_has_the_same_prefix(own: u32, peer: u32, prefix in 1_u8..=32) {
            let address = |bits: u32| IpAddr::from(bits.to_be_bytes());
            if let Ok(network) = Network::new(address(own), prefix, None)
                && let Some(hop) = network.next_hop(address(peer))
            {
                prop_assert_eq!(hop, address(peer));
                prop_assert_eq!(u64::from(own) >> (32 - prefix), u64::from(peer) >> (32 - prefix));
            }
        }
    }
}
