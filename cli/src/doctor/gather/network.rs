//! The network: interfaces as `ip` shows them, TCP as the kernel counts it, and connections to the portals.

use super::machine::{number, text};
use lunar_control::config::Config;
use lunar_control::doctor::facts::{Interface, Network, Portal};
use serde_json::Value as Json;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// How long a connection to this machine itself may take.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Portals that are tried: each may take a second.
const PORTALS_MAX: usize = 64;

/// The network of this machine; `None` without the program `ip`.
pub(super) fn read() -> Option<Network> {
    let shown =
        Command::new("ip").args(["-j", "-s", "address"]).output().ok().filter(|shown| shown.status.success())?;
    Some(Network {
        interfaces: interfaces(&serde_json::from_slice(&shown.stdout).ok()?),
        arp_ignore: number("/proc/sys/net/ipv4/conf/all/arp_ignore").unwrap_or(0),
        congestion: text("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default(),
        first_port: number("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or(0),
        segments: text("/proc/net/snmp").and_then(|table| segments(&table)).unwrap_or_default(),
    })
}

fn interfaces(all: &Json) -> Vec<Interface> {
    let one = |interface: &Json| {
        let count = |keys: &[&str]| -> u64 {
            let both = ["rx", "tx"].into_iter().flat_map(|way| keys.iter().map(move |key| (way, *key)));
            both.filter_map(|(way, key)| interface["stats64"][way][key].as_u64()).sum()
        };
        let address = |address: &Json| {
            let bits = u8::try_from(address["prefixlen"].as_u64()?).ok()?;
            Some((address["local"].as_str()?.parse().ok()?, bits))
        };
        Interface {
            name: interface["ifname"].as_str().unwrap_or_default().to_owned(),
            mtu: interface["mtu"].as_u64().unwrap_or(0),
            state: interface["operstate"].as_str().unwrap_or_default().to_owned(),
            addresses: interface["addr_info"].as_array().into_iter().flatten().filter_map(address).collect(),
            packets: count(&["packets"]),
            lost: count(&["errors", "dropped"]),
        }
    };
    all.as_array().into_iter().flatten().map(one).collect()
}

/// The TCP segments that were sent, and sent again, of /proc/net/snmp.
fn segments(table: &str) -> Option<(u64, u64)> {
    let mut rows = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (heads, values) = (rows.next()?, rows.next()?);
    let of = |name| {
        let (_, value) = heads.split(' ').zip(values.split(' ')).find(|(head, _)| *head == name)?;
        value.parse().ok()
    };
    Some((of("OutSegs")?, of("RetransSegs")?))
}

/// The portals, and whether a connection to them is possible.
pub(super) fn portals(config: &Config) -> Vec<Portal> {
    let one = |(at, (name, portal)): (usize, (&String, &std::sync::Arc<lunar_control::common_sections::Portal>))| {
        let address = portal.address();
        let connected = (at < PORTALS_MAX).then(|| connect(address).err().map(|why| why.to_string()));
        Portal { name: name.clone(), address, advertise: portal.advertise(), connected }
    };
    config.portals.iter().enumerate().map(one).collect()
}

fn connect(address: SocketAddr) -> std::io::Result<()> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    TcpStream::connect_timeout(&(ip, address.port()).into(), CONNECT_MAX).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_and_segments_are_read() {
        let shown = serde_json::json!([{
            "ifname": "eth0", "mtu": 1500, "operstate": "UP",
            "addr_info": [{ "local": "192.0.2.1", "prefixlen": 24 }, { "local": "fe80::1", "prefixlen": 64 }],
            "stats64": { "rx": { "packets": 10, "errors": 1, "dropped": 2 }, "tx": { "packets": 5, "errors": 4 } },
        }]);
        let [found] = &interfaces(&shown)[..] else { panic!("one") };
        assert_eq!((found.name.as_str(), found.mtu, found.packets, found.lost), ("eth0", 1500, 15, 7));
        assert_eq!(found.addresses[0], ([192, 0, 2, 1].into(), 24));
        let table = "Ip: a b\nIp: 1 2\nTcp: InSegs OutSegs RetransSegs\nTcp: 7 100 3\n";
        assert_eq!((segments(table), segments("Tcp: a\n")), (Some((100, 3)), None));
    }

    #[test]
    fn a_connection_is_tried() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        assert!(connect(address).is_ok() && connect(SocketAddr::new([0, 0, 0, 0].into(), address.port())).is_ok());
        drop(listener);
        assert!(connect(address).is_err());
    }
}
