//! The counters of volumes, hosts and cores for readers that compute rates.

use super::facts::{PortalFacts, VolumeFacts};
use super::space;
use super::volumes::{Volume, named, read, unavailable};
use crate::backend::PoolSpace;
use lunar_control::api::TroubleView;
use lunar_control::counters::{
    ClassCounters, CoreCounters, HostCounters, PortalState, RefusedLogins, StoreSpace, TrafficCounters, VOLUMES_MAX,
    VolumeCounters,
};
use lunar_control::trouble::TroubleCode;
use lunar_core::hosts::Hosts;
use lunar_core::stats::Stats;
use lunar_core::tally::Event;
use lunar_core::traffic::{Class, ClassSums, TrafficSums};
use lunar_unit::SharedUnits;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn class(sums: &ClassSums) -> ClassCounters {
    let used = sums.cells.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    let cells = sums.cells[..used].to_vec();
    ClassCounters { commands: sums.commands(), bytes: sums.bytes, nanoseconds: sums.nanoseconds, cells }
}

fn traffic(sums: &TrafficSums) -> TrafficCounters {
    let (mut write, mut other) = (ClassSums::default(), ClassSums::default());
    for of in Class::ALL {
        match of {
            Class::Read => {}
            Class::Write | Class::CompareAndWrite => write.merge(sums.of(*of)),
            Class::Unmap | Class::Copy | Class::Other => other.merge(sums.of(*of)),
        }
    }
    TrafficCounters { read: class(sums.of(Class::Read)), write: class(&write), other: class(&other) }
}

/// The counters of these volumes, and the number of those that are left out.
pub(super) fn volumes(
    all: &BTreeMap<Arc<str>, VolumeFacts>,
    units: &SharedUnits,
    troubles: &[TroubleView],
    spaces: &BTreeMap<Arc<str>, Vec<PoolSpace>>,
) -> (Vec<VolumeCounters>, u64) {
    let mut served: Vec<_> = all.iter().map(|(name, facts)| read(name, facts, units)).collect();
    let missing = unavailable(&served, troubles);
    let hidden = served.len().saturating_sub(VOLUMES_MAX);
    if hidden > 0 {
        served.sort_by_key(|volume| std::cmp::Reverse(volume.commands()));
        served.truncate(VOLUMES_MAX);
        served.sort_by_key(|volume| volume.name);
    }
    let (full, pools) = (named(troubles, TroubleCode::NoSpace), space::pools(spaces));
    let mut rows: Vec<_> = served
        .iter()
        .map(|volume| {
            let spaces = spaces.get(volume.name);
            let stores = spaces.into_iter().flatten().filter_map(|space| pools.get(&space.pool));
            let stores: BTreeSet<&String> = stores.map(|pool| &pool.name).collect();
            let stores = stores.into_iter().cloned().collect();
            VolumeCounters { stores, ..row(volume, volume.state(&full), spaces) }
        })
        .collect();
    let missing = missing.into_iter().take(VOLUMES_MAX - rows.len());
    rows.extend(missing.map(|name| VolumeCounters {
        name: name.to_owned(),
        state: "unavailable".to_owned(),
        ..VolumeCounters::default()
    }));
    (rows, hidden as u64)
}

fn row(volume: &Volume<'_>, state: &str, spaces: Option<&Vec<PoolSpace>>) -> VolumeCounters {
    let spaces = spaces.filter(|spaces| !spaces.is_empty());
    let errors = Event::ALL.iter().filter(|event| !event.kind().is_empty());
    VolumeCounters {
        name: volume.name.to_owned(),
        state: state.to_owned(),
        size: volume.facts.size,
        allocated: spaces.map(|spaces| spaces.iter().map(|space| space.allocated).sum()),
        free: spaces.and_then(|spaces| spaces.iter().map(|space| space.free).min()),
        registrants: volume.registrants,
        reserved: volume.is_reserved,
        in_flight: volume.sums.in_flight,
        in_flight_max: volume.sums.in_flight_max,
        errors: errors.fold(0, |sum, event| sum.wrapping_add(volume.sums.of(*event))),
        misaligned: volume.sums.of(Event::Misaligned),
        traffic: traffic(&volume.sums.traffic),
        ..VolumeCounters::default()
    }
}

/// The file systems of volumes.
pub(crate) fn stores(spaces: &BTreeMap<Arc<str>, Vec<PoolSpace>>) -> Vec<StoreSpace> {
    space::pools(spaces).into_values().collect()
}

/// The portals of the configuration in force.
pub(super) fn portals(all: &BTreeMap<String, PortalFacts>) -> Vec<PortalState> {
    let portal = |(name, facts): (&String, &PortalFacts)| {
        let PortalFacts { address, transport, is_up } = facts;
        PortalState { name: name.clone(), address: address.clone(), transport: transport.clone(), up: *is_up }
    };
    all.iter().map(portal).collect()
}

/// The refused logins.
pub(super) fn refused(hosts: &Hosts) -> Vec<RefusedLogins> {
    let all = hosts.refusals().into_iter();
    let row = |(transport, reason, count): (&str, &str, u64)| RefusedLogins {
        transport: transport.to_owned(),
        reason: reason.to_owned(),
        count,
    };
    all.map(row).collect()
}

/// The counters of hosts, each with each of its targets. `names`: those of targets in the configuration.
pub(super) fn hosts(hosts: &Hosts, names: &BTreeMap<Arc<str>, String>) -> Vec<HostCounters> {
    let rows = hosts.sums().into_iter().map(|(key, sums)| {
        let target = names.get(&*key.target.to_ascii_lowercase()).or_else(|| names.get(&key.target));
        HostCounters {
            host: key.host.to_string(),
            target: target.cloned().unwrap_or_else(|| key.target.to_string()),
            target_name: key.target.to_string(),
            transport: key.transport.to_owned(),
            sessions: sums.sessions,
            logins: sums.logins,
            aborts: sums.aborts,
            resets: sums.resets,
            traffic: traffic(&sums.traffic),
        }
    });
    rows.collect()
}

/// The counters of these cores.
pub(super) fn cores(cores: &[Arc<Stats>]) -> Vec<CoreCounters> {
    let rows = cores.iter().enumerate().map(|(core, stats)| CoreCounters {
        core: core as u64,
        busy_nanoseconds: stats.busy_nanoseconds.get(),
        spin_nanoseconds: stats.idle_spin_nanoseconds.get(),
        sleep_nanoseconds: stats.sleep_nanoseconds.get(),
        longest_turn_nanoseconds: stats.longest_turn_nanoseconds.get(),
        commands: stats.commands.get(),
        connections: stats.connections.get(),
        buffer_bytes: stats.buffer_bytes.get(),
        buffer_used_bytes: stats.buffer_used_bytes.get(),
    });
    rows.collect()
}
