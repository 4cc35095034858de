//! The metrics of hosts, and of transports: the sums of their hosts.

use super::histogram::add_fine;
use super::table;
use lunar_control::metrics::Page;
use lunar_core::hosts::{HostSums, Hosts};
use lunar_core::traffic::{Class, TrafficSums};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Writes the counters of hosts. `names`: those of targets in the configuration.
pub(super) fn write(page: &mut Page, hosts: &Hosts, names: &BTreeMap<Arc<str>, String>) {
    // A host may have reached a target by two names: no two series have the same labels.
    let mut all: BTreeMap<[String; 3], HostSums> = BTreeMap::new();
    let mut transports: BTreeMap<&'static str, TrafficSums> = BTreeMap::new();
    let mut targets: BTreeMap<[String; 2], (u64, u64)> = BTreeMap::new();
    for (key, sums) in hosts.sums() {
        let target = names.get(&*key.target.to_ascii_lowercase()).or_else(|| names.get(&key.target));
        let target = target.cloned().unwrap_or_else(|| key.target.to_string());
        transports.entry(key.transport).or_default().merge(&sums.traffic);
        let (sessions, logins) = targets.entry([key.transport.to_owned(), target.clone()]).or_default();
        *sessions += sums.sessions;
        *logins += sums.logins;
        all.entry([key.host.to_string(), target, key.transport.to_owned()]).or_default().merge(&sums);
    }
    page.family(&table::SESSIONS, |samples| {
        targets.iter().for_each(|([transport, target], (sessions, _))| samples.add(&[transport, target], *sessions));
    });
    page.family(&table::LOGINS, |samples| {
        targets.iter().for_each(|([transport, target], (_, logins))| samples.add(&[transport, target, "ok"], *logins));
    });
    page.family(&table::LOGINS_REFUSED, |samples| {
        hosts.refusals().iter().for_each(|(transport, reason, count)| samples.add(&[transport, reason], *count));
    });
    let classes =
        || transports.iter().flat_map(|(transport, sums)| Class::ALL.iter().map(move |c| (transport, sums, c)));
    page.family(&table::COMMANDS, |samples| {
        classes().for_each(|(transport, sums, c)| samples.add(&[transport, c.word()], sums.of(*c).commands()));
    });
    page.family(&table::COMMAND_SECONDS, |samples| {
        classes().for_each(|(transport, sums, c)| add_fine(samples, &[transport, c.word()], sums.of(*c)));
    });
    of_hosts(page, &all);
    page.family(&table::HOSTS_HIDDEN, |samples| samples.add(&[], hosts.hidden()));
}

fn of_hosts(page: &mut Page, all: &BTreeMap<[String; 3], HostSums>) {
    let classes =
        || all.iter().flat_map(|(key, sums)| Class::ALL.iter().map(move |class| (key, sums.traffic.of(*class), class)));
    page.family(&table::HOST_COMMANDS, |samples| {
        for ([host, target, transport], sums, class) in classes().filter(|(_, sums, _)| sums.commands() > 0) {
            samples.add(&[host, target, transport, class.word()], sums.commands());
        }
    });
    page.family(&table::HOST_BYTES, |samples| {
        for ([host, target, transport], sums) in all {
            samples.add(&[host, target, transport, "read"], sums.traffic.read_bytes());
            samples.add(&[host, target, transport, "write"], sums.traffic.written_bytes());
        }
    });
    page.family(&table::HOST_SECONDS, |samples| {
        for ([host, target, transport], sums, class) in classes().filter(|(_, sums, _)| sums.commands() > 0) {
            samples.add_seconds(&[host, target, transport, class.word()], sums.nanoseconds);
        }
    });
    type Number = fn(&HostSums) -> u64;
    let numbers: [(_, Number); 6] = [
        (&table::HOST_PATHS, |sums| sums.sessions),
        (&table::HOST_LOGINS, |sums| sums.logins),
        (&table::HOST_REFUSED, |sums| sums.refused),
        (&table::HOST_ABORTS, |sums| sums.aborts),
        (&table::HOST_RESETS, |sums| sums.resets),
        (&table::HOST_RETRANSMITS, |sums| sums.retransmits),
    ];
    for (family, number) in numbers {
        page.family(family, |samples| {
            all.iter().for_each(|([host, target, transport], sums)| {
                samples.add(&[host, target, transport], number(sums));
            });
        });
    }
}
