//! The network: portals, interfaces, TCP.

use super::words::percent;
use crate::doctor::facts::{Facts, Interface, NET_BIND_SERVICE, Portal};
use crate::doctor::finding::{Finding, quoted};
use crate::doctor::table::Code;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The part of packets or segments from which losses are a finding.
const LOSS: f64 = 0.001;
/// Fewer packets say nothing.
const PACKETS_MIN: u64 = 10_000;
/// Fewer segments of one session say nothing.
const SEGMENTS_MIN: u64 = 1000;
/// Congestion controls for a network with short round trips. BBR is not one of them: it sets timers for every few
/// packets, which costs a sender of many small packets more than the packets.
const SUITED: [&str; 2] = ["cubic", "dctcp"];

pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    for portal in &facts.portals {
        reach(facts, portal, findings);
        addresses(facts, portal, findings);
    }
    let used = used(facts);
    for interface in &used {
        link(interface, findings);
    }
    findings.extend(mtu(&used));
    findings.extend(arp(facts, &used));
    findings.extend(duplicates(&facts.network.interfaces));
    tcp(facts, findings);
    facts.sessions.iter().for_each(|session| findings.extend(lossy(session)));
}

fn subject(portal: &Portal) -> String {
    format!("portal {}", portal.name)
}

fn reach(facts: &Facts, portal: &Portal, findings: &mut Vec<Finding>) {
    let (address, port) = (portal.address, portal.address.port());
    let new = |code| Finding::new(code, subject(portal)).shows("address", address);
    match (&portal.connected, facts.is_running()) {
        (Some(Some(why)), true) => {
            let found = new(Code::PortalUnreachable).shows("reason", why);
            findings.push(found.command(format!("ss -ltn 'sport = :{port}'; nft list ruleset | head -50")));
        }
        (Some(None), false) => findings.push(new(Code::PortTaken).command(format!("ss -ltnp 'sport = :{port}'"))),
        _ => {}
    }
    let first = facts.network.first_port;
    if port < first && !facts.user.can(NET_BIND_SERVICE) {
        let found = new(Code::PortForbidden).shows("first port of all users", first);
        findings.push(found.command(format!("sysctl -w net.ipv4.ip_unprivileged_port_start={port}")));
    }
}

fn is_local(facts: &Facts, address: IpAddr) -> bool {
    let all = facts.network.interfaces.iter().flat_map(|interface| &interface.addresses);
    address.is_unspecified() || address.is_loopback() || all.into_iter().any(|(own, _)| *own == address)
}

fn addresses(facts: &Facts, portal: &Portal, findings: &mut Vec<Finding>) {
    // Without `ip`, nothing is known.
    if facts.network.interfaces.is_empty() {
        return;
    }
    if !is_local(facts, portal.address.ip()) {
        let found = Finding::new(Code::AddressMissing, subject(portal)).shows("address", portal.address);
        findings
            .push(found.command(format!("ip address; lunar portal set {} --address 0.0.0.0", quoted(&portal.name))));
    }
    if let Some(told) = portal.advertise.filter(|told| !is_local(facts, told.ip())) {
        let found = Finding::new(Code::AdvertisedMissing, subject(portal)).shows("advertised", told);
        findings.push(found.command(format!("lunar portal set {} --advertise none", quoted(&portal.name))));
    }
}

/// The interfaces with addresses of portals.
fn used(facts: &Facts) -> Vec<&Interface> {
    let is_used = |interface: &&Interface| {
        let has = |portal: &Portal| {
            let ip = portal.address.ip();
            let own = interface.addresses.iter().filter(|(own, _)| !own.is_loopback());
            own.into_iter().any(|(own, _)| ip.is_unspecified() || *own == ip)
        };
        facts.portals.iter().any(has)
    };
    facts.network.interfaces.iter().filter(is_used).collect()
}

fn link(interface: &Interface, findings: &mut Vec<Finding>) {
    let new = |code| Finding::new(code, format!("interface {}", interface.name));
    let name = quoted(&interface.name);
    if interface.state == "DOWN" {
        let found = new(Code::InterfaceDown).shows("state", &interface.state);
        findings.push(found.command(format!("ip link set {name} up")));
    }
    let part = interface.lost as f64 / interface.packets.max(1) as f64;
    if interface.packets >= PACKETS_MIN && part > LOSS {
        let found = new(Code::InterfaceErrors).shows("lost packets", interface.lost).shows("of all", percent(part));
        findings.push(found.command(format!("ip -s -s link show {name}")));
    }
}

fn mtu(used: &[&Interface]) -> Option<Finding> {
    let (least, most) = (used.iter().min_by_key(|one| one.mtu)?, used.iter().max_by_key(|one| one.mtu)?);
    let all: Vec<_> = used.iter().map(|one| format!("{} {}", one.name, one.mtu)).collect();
    let found = Finding::new(Code::MtuDiffers, format!("interface {}", least.name)).shows("MTUs", all.join("; "));
    let command = format!("ip link set {} mtu {}", quoted(&least.name), most.mtu);
    (least.mtu != most.mtu).then(|| found.command(command))
}

/// The network of an address.
fn network(address: IpAddr, bits: u8) -> Option<(u128, u8)> {
    match address {
        IpAddr::V4(ip) if (1..32).contains(&bits) => Some((u128::from(u32::from(ip) >> (32 - bits)), bits)),
        // Hosts find IPv6 addresses without ARP.
        _ => None,
    }
}

fn arp(facts: &Facts, used: &[&Interface]) -> Option<Finding> {
    if facts.network.arp_ignore > 0 {
        return None;
    }
    let mut networks: BTreeMap<_, &str> = BTreeMap::new();
    for interface in used {
        for (address, bits) in &interface.addresses {
            let Some(network) = network(*address, *bits) else { continue };
            let other = networks.insert(network, &interface.name).filter(|other| *other != interface.name);
            if let Some(other) = other {
                let found = Finding::new(Code::ArpFlux, format!("interfaces {other} and {}", interface.name));
                let found = found.shows("network", format!("{address}/{bits}")).shows("arp_ignore", 0);
                let command = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2";
                return Some(found.command(command));
            }
        }
    }
    None
}

fn duplicates(interfaces: &[Interface]) -> Vec<Finding> {
    let mut owners: BTreeMap<IpAddr, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for interface in interfaces {
        for (address, bits) in &interface.addresses {
            // Each interface may have the same link-local address.
            let is_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
            let other = owners.insert(*address, &interface.name).filter(|other| *other != interface.name);
            if let Some(other) = other.filter(|_| !is_local) {
                let found = Finding::new(Code::DuplicateAddress, format!("address {address}"));
                let command = format!("ip address del {address}/{bits} dev {}", quoted(&interface.name));
                findings.push(found.shows("interfaces", format!("{other} {}", interface.name)).command(command));
            }
        }
    }
    findings
}

/// A session whose segments are lost on their way to the client.
fn lossy(session: &Json) -> Option<Finding> {
    let connections = || session["tcp"].as_array().into_iter().flatten();
    let sum = |key: &str| connections().filter_map(|tcp| tcp[key].as_u64()).sum::<u64>();
    // A segment that had arrived was sent again for nothing: it was not lost.
    let (sent, again) = (sum("segments-sent"), sum("retransmits").saturating_sub(sum("duplicates")));
    let part = again as f64 / sent.max(1) as f64;
    if sent < SEGMENTS_MIN || part <= LOSS {
        return None;
    }
    let of = |key: &str| session[key].as_str().unwrap_or_default();
    let rtt = connections().filter_map(|tcp| tcp["rtt-microseconds"].as_u64()).max().unwrap_or(0);
    let found = Finding::new(Code::Retransmits, format!("session {}", of("id")))
        .shows("host", of("initiator"))
        .shows("from", of("source"))
        .shows("segments sent again", again)
        .shows("of all", percent(part))
        .shows("round trip", format!("{rtt} us"));
    Some(found.command(format!("lunar session show {}; ip -s -s link", quoted(of("id")))))
}

fn tcp(facts: &Facts, findings: &mut Vec<Finding>) {
    let (sent, again) = facts.network.segments;
    let part = again as f64 / sent.max(1) as f64;
    if sent >= PACKETS_MIN && part > LOSS {
        let found = Finding::new(Code::Retransmits, "TCP of this machine").shows("segments sent again", again);
        findings.push(found.shows("of all", percent(part)).command("ss -tni state established | grep -B1 retrans"));
    }
    let congestion = facts.network.congestion.as_str();
    if !congestion.is_empty() && !SUITED.contains(&congestion) {
        let found =
            Finding::new(Code::CongestionControl, "TCP of this machine").shows("congestion control", congestion);
        findings.push(found.command("sysctl -w net.ipv4.tcp_congestion_control=cubic"));
    }
}
