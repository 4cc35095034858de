//! Where a volume is: the links, the address of its target on each, and its LUN, as `udp:192.0.2.1:18181#1`.

use lunar_control::stations::mac_bytes;
use lunar_link::{LinkAddress, MacAddress};
use lunar_st::limits::PATHS_MAX;
use std::net::SocketAddr;

/// The address of a target on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Over UDP.
    Udp(SocketAddr),
    /// In the frames of a link.
    Station(LinkAddress, MacAddress),
}

/// Where a volume is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RemoteAddress {
    /// One end for each link: they carry the data together.
    pub(crate) ends: Vec<End>,
    pub(crate) lun: u8,
}

/// Reads it; `None`: it is none.
pub(crate) fn parse(text: &str) -> Option<RemoteAddress> {
    let (ends, lun) = match text.rsplit_once('#') {
        Some((ends, lun)) => (ends, lun.parse().ok()?),
        None => (text, 0),
    };
    let mut parts = ends.split(',');
    let mut all = Vec::new();
    while let Some(part) = parts.next() {
        // The name of such a link has two paths.
        let whole = if part.starts_with("unix:") { format!("{part},{}", parts.next()?) } else { part.to_owned() };
        let end = end(&whole)?;
        if all.contains(&end) || all.len() >= PATHS_MAX {
            return None;
        }
        all.push(end);
    }
    Some(RemoteAddress { ends: all, lun })
}

fn end(text: &str) -> Option<End> {
    if let Some(address) = text.strip_prefix("udp:") {
        let address: SocketAddr = address.parse().ok()?;
        return (address.port() != 0 && !address.ip().is_unspecified()).then_some(End::Udp(address));
    }
    let (link, mac) = text.rsplit_once('@')?;
    let link: LinkAddress = link.parse().ok()?;
    let mac = mac_bytes(mac).filter(|mac| mac[0] & 1 == 0)?;
    // Other links need permissions that are given at the start of the process.
    let is_open = matches!(link, LinkAddress::Interface(_) | LinkAddress::Unix { .. });
    is_open.then_some(End::Station(link, MacAddress(mac)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_ends_and_a_lun() {
        let found = parse("udp:192.0.2.1:18181,udp:[2001:db8::1]:18181#7").expect("two ends");
        assert_eq!((found.ends.len(), found.lun), (2, 7));
        let found = parse("eth0@52:54:00:12:34:01,unix:/run/a,/run/b@02:00:00:00:00:02").expect("two ends");
        assert!(found.lun == 0 && matches!(&found.ends[1], End::Station(LinkAddress::Unix { .. }, _)));
        for wrong in [
            "",
            "udp:192.0.2.1",
            "udp:192.0.2.1:0",
            "udp:0.0.0.0:18181",
            "udp:192.0.2.1:1#256",
            "udp:192.0.2.1:1#",
            "udp:192.0.2.1:1,udp:192.0.2.1:1",
            "udp:192.0.2.1:1,",
            "udp:host:1",
            "eth0",
            "eth0@52:54:00:12:34",
            "eth0@01:00:5e:00:00:01",
            "xdp:eth0@52:54:00:12:34:01",
            "unix:/run/a@52:54:00:12:34:01",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let many: Vec<String> = (0..=PATHS_MAX).map(|end| format!("udp:192.0.2.1:{}", end + 1)).collect();
        assert!(parse(&many.join(",")).is_none() && parse(&many[1..].join(",")).is_some());
    }
}
