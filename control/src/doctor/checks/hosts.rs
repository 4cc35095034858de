//! The hosts: their paths, their logins, the commands that they aborted.

use super::configuration::portals_of;
use super::words::percent;
use crate::common_sections::BlockSize;
use crate::doctor::facts::Facts;
use crate::doctor::finding::{Finding, quoted};
use crate::doctor::table::Code;
use crate::value::Textual;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Logins of one host at one target while it is watched from which on they are a loop.
const LOGINS: u64 = 3;
/// The part of the commands that were aborted from which on they are a finding.
const ABORTS: f64 = 0.0001;
/// Fewer aborted commands are an accident.
const ABORTS_MIN: u64 = 10;

pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    paths(facts, findings);
    esxi(facts, findings);
    sizes(facts, findings);
    let silent = facts.statistics.as_ref().and_then(|all| all["keepalive_timeouts"].as_u64()).unwrap_or(0);
    if silent > 0 {
        let found = Finding::new(Code::SilentHosts, "hosts").shows("connections closed since the start", silent);
        let command = "journalctl --unit lunar --grep 'did not answer a NOP-In|keep-alive timeout' -n 20 --no-pager";
        findings.push(found.command(command));
    }
    for host in facts.rates.iter().flat_map(|rates| &rates.hosts) {
        let seconds = facts.rates.as_ref().map_or(0.0, |rates| rates.seconds);
        if host.logins >= LOGINS {
            let found = Finding::new(Code::LoginLoop, format!("host {}", host.host))
                .shows("target", &host.target)
                .shows("logins", host.logins)
                .shows("in", format!("{seconds:.1} s"))
                .shows("sources", sources(facts, &host.host));
            findings.push(found.command("lunar audit | tail -20"));
        }
    }
    for host in facts.counters.iter().flat_map(|counters| &counters.hosts) {
        let all = host.traffic.read.commands + host.traffic.write.commands + host.traffic.other.commands;
        let part = host.aborts as f64 / all.max(1) as f64;
        if host.aborts >= ABORTS_MIN && part > ABORTS {
            let found = Finding::new(Code::CommandsAborted, format!("host {}", host.host))
                .shows("target", &host.target)
                .shows("aborted", host.aborts)
                .shows("of all", percent(part))
                .shows("resets", host.resets);
            findings.push(found.command("lunar top --once --view volumes"));
        }
    }
}

fn sizes(facts: &Facts, findings: &mut Vec<Finding>) {
    let unread = facts.status.as_ref().and_then(|status| status["unread-sizes"].as_object());
    for (volume, clients) in unread.into_iter().flatten() {
        let clients: Vec<&str> = clients.as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
        let found = Finding::new(Code::SizeUnread, format!("volume {volume}")).shows("clients", clients.join(" "));
        findings.push(found.command(format!("lunar explain volume {}", quoted(volume))));
    }
}

/// The part of the names of ESXi hosts that they all have.
const ESXI: &str = "com.vmware";

fn esxi(facts: &Facts, findings: &mut Vec<Finding>) {
    let is_esxi = |name: &str| name.to_ascii_lowercase().contains(ESXI);
    for (name, group) in &facts.config.groups {
        let of_group = facts.sessions.iter().filter(|session| session["group"] == **name);
        let host = of_group.filter_map(|session| session["initiator"].as_str()).find(|host| is_esxi(host));
        let listed = || group.initiators.iter().map(|pattern| pattern.text()).find(|text| is_esxi(text));
        let Some(host) = host.map(str::to_owned).or_else(listed) else { continue };
        for (lun, mapped) in &group.luns.0 {
            let volume = mapped.volume.name();
            let size = facts.config.volumes.get(volume).map(|volume| volume.block_size);
            if size == Some(BlockSize::B4096) {
                let found = Finding::new(Code::BlockSizeEsxi, format!("volume {volume}"));
                let found = found.shows("host", &host).shows("group", name).shows("LUN", lun);
                findings.push(found.command(format!("lunar volume set {} --block-size 512", quoted(volume))));
            }
        }
    }
}

/// The addresses of the sessions of a host.
fn sources(facts: &Facts, host: &str) -> String {
    let of_host = facts.sessions.iter().filter(|session| session["initiator"] == host);
    let all: BTreeSet<_> = of_host.filter_map(|session| session["source"].as_str()).collect();
    all.into_iter().collect::<Vec<_>>().join(" ")
}

fn paths(facts: &Facts, findings: &mut Vec<Finding>) {
    // For each host and target: its sessions. A controller has several queues, and is one session.
    let mut paths: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for session in facts.sessions.iter().filter(|session| session["discovery"] != true) {
        let of = |key: &str| session[key].as_str().unwrap_or_default();
        *paths.entry((of("initiator"), of("target"), of("protocol"))).or_default() += 1;
    }
    for ((host, name, protocol), sessions) in paths {
        let is_it = |iqn: Option<&str>| iqn.is_some_and(|iqn| iqn.eq_ignore_ascii_case(name));
        let target = facts.config.targets.iter().find(|(known, target)| {
            let (iqn, nqn) = (target.iqn.as_ref().map(|iqn| iqn.as_str()), target.nqn.as_ref().map(|nqn| nqn.as_str()));
            *known == name || is_it(iqn) || is_it(nqn)
        });
        let Some((target_name, target)) = target else { continue };
        let portals = portals_of(&facts.config, target);
        let portals = portals.iter().filter_map(|portal| facts.config.portals.get(*portal));
        let of_protocol = portals.filter(|portal| portal.protocol.word() == protocol);
        let addresses: BTreeSet<IpAddr> = of_protocol.map(|portal| portal.address().ip()).collect();
        if sessions == 1 && addresses.len() > 1 {
            let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            let command = match protocol {
                "iscsi" => format!("iscsiadm -m node -T {name} --login && multipath -ll   # on the host"),
                _ => format!("nvme connect-all && nvme list-subsys   # on the host, to {name}"),
            };
            let found = Finding::new(Code::SinglePath, format!("host {host}")).shows("target", target_name);
            let found = found.shows("sessions", sessions).shows("addresses of portals", list.join(" "));
            findings.push(found.command(command));
        }
    }
}
