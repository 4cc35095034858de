//! Addresses: as options give them, and as a client on another machine reaches them.

use lunar_control::names::Address;
use lunar_control::value::AddressError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The interfaces of this machine with IPv6 addresses (proc(5)).
const IPV6_ADDRESSES: &str = "/proc/net/if_inet6";
/// The IPv4 routes of this machine, with its own addresses.
const IPV4_ROUTES: &str = "/proc/net/fib_trie";

/// ADDRESS, ADDRESS:PORT, \[ADDRESS\]:PORT.
///
/// # Errors
/// When the text has none of these forms.
pub fn parse<const PORT: u16>(text: &str) -> Result<SocketAddr, AddressError> {
    Address::<PORT>::of_any_port(text).map(|address| address.0)
}

/// All addresses of this machine: IPv4, and IPv6 where there is any.
#[must_use]
pub fn everywhere(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

/// The host and the port by which a client connects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reached {
    /// Address or name of the host, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl std::fmt::Display for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// How a client reaches an address at which a portal listens. Of "all addresses" it is one of this machine that other
/// machines reach, or `SERVER` where this machine has none.
#[must_use]
pub fn reached(address: SocketAddr) -> Reached {
    let own = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => own_ipv4().map(IpAddr::V4),
        IpAddr::V6(ip) if ip.is_unspecified() => own_ipv6().map(IpAddr::V6),
        ip => Some(ip),
    };
    Reached { host: own.map_or_else(|| "SERVER".to_owned(), |ip| ip.to_string()), port: address.port() }
}

/// The address from which this machine sends by its default route. Connecting a datagram socket sends nothing.
fn source_of(local: IpAddr, remote: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((local, 0)).ok()?;
    // Port 9 is the discard service; any port would do.
    socket.connect((remote, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

fn own_ipv4() -> Option<Ipv4Addr> {
    // Of the documentation's network (RFC 5737): it is reached by the default route alone.
    let remote = Ipv4Addr::new(192, 0, 2, 1);
    match source_of(Ipv4Addr::UNSPECIFIED.into(), remote.into()) {
        Some(IpAddr::V4(ip)) => Some(ip),
        _ => local_ipv4(&std::fs::read_to_string(IPV4_ROUTES).unwrap_or_default()),
    }
}

fn own_ipv6() -> Option<Ipv6Addr> {
    // Likewise (RFC 3849).
    let remote = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    match source_of(Ipv6Addr::UNSPECIFIED.into(), remote.into()) {
        Some(IpAddr::V6(ip)) => Some(ip),
        _ => global_ipv6(&std::fs::read_to_string(IPV6_ADDRESSES).unwrap_or_default()),
    }
}

/// The first address of the routing table that is this machine's own and no loopback address: the line before
/// `/32 host LOCAL` names it.
fn local_ipv4(routes: &str) -> Option<Ipv4Addr> {
    let lines: Vec<&str> = routes.lines().map(str::trim).collect();
    let local = lines.windows(2).filter(|pair| pair[1] == "/32 host LOCAL");
    let addresses = local.filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse::<Ipv4Addr>().ok());
    addresses.into_iter().find(|ip| !ip.is_loopback() && !ip.is_link_local())
}

/// The first address of global scope: 32 digits, interface, length of the prefix, scope (00: global), flags, name.
fn global_ipv6(interfaces: &str) -> Option<Ipv6Addr> {
    let address = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let digits = fields.first().filter(|_| fields.get(3) == Some(&"00"))?;
        u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)
    };
    interfaces.lines().find_map(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_given_is_the_one_to_use() {
        for (given, shown) in [("192.0.2.7:3260", "192.0.2.7:3260"), ("[fd00::1]:3261", "[fd00::1]:3261")] {
            assert_eq!(reached(given.parse().expect("an address")).to_string(), shown);
        }
        assert_eq!(parse::<4420>("::1").map(|address| address.to_string()).as_deref(), Ok("[::1]:4420"));
    }

    #[test]
    fn all_addresses_are_shown_as_one_that_a_client_can_reach() {
        for any in everywhere(3260) {
            let Reached { host, port } = reached(any);
            assert_eq!(port, 3260);
            let ip = host.parse::<IpAddr>();
            assert!(host == "SERVER" || ip.is_ok_and(|ip| !ip.is_loopback() && !ip.is_unspecified()), "{host}");
        }
        assert_eq!(Reached { host: "SERVER".into(), port: 3260 }.to_string(), "SERVER:3260");
    }

    #[test]
    fn the_tables_of_the_kernel_are_read() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 198.51.100.0\n\
                      \x20       /24 link UNICAST\n     |-- 198.51.100.9\n        /32 host LOCAL\n";
        assert_eq!(local_ipv4(routes), Some(Ipv4Addr::new(198, 51, 100, 9)));
        assert_eq!(local_ipv4("Main:\n     |-- 127.0.0.1\n        /32 host LOCAL\n"), None);
        let interfaces = "00000000000000000000000000000001 01 80 10 80       lo\n\
                          fe800000000000000000000000000001 02 40 20 80     eth0\n\
                          20010db8000000000000000000000009 02 40 00 80     eth0\n";
        assert_eq!(global_ipv6(interfaces), "2001:db8::9".parse().ok());
        assert_eq!(global_ipv6("no table"), None);
    }
}
