//! All counters of a running target at one moment, for readers that compute rates: `lunar top` and pages.

use crate::api::TroubleView;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Volumes in one answer at most: those with the most commands. An answer stays below some megabytes.
pub const VOLUMES_MAX: usize = 4096;

/// The counters of a target. A reader subtracts an earlier answer of the same `start` from a later one.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "counters")]
pub struct CountersView {
    /// Identifies the run of the service: counters begin at zero when it changes.
    pub start: u64,
    /// Grows with each reading of the counters. Readers that ask at the same time get the same reading.
    pub sequence: u64,
    /// When the counters were read: nanoseconds of a clock that never steps. Only differences have a meaning.
    pub nanoseconds: u64,
    /// The same in milliseconds since the beginning of 1970.
    pub time: u64,
    /// The upper bounds of the cells of histograms, in microseconds. The last cell has no bound and is not in the list.
    pub bounds: Vec<u64>,
    /// The cores, in their order.
    pub cores: Vec<CoreCounters>,
    /// The volumes, by name.
    pub volumes: Vec<VolumeCounters>,
    /// The number of volumes that are left out, because there are too many.
    pub hidden_volumes: u64,
    /// The hosts, each with each of its targets.
    pub hosts: Vec<HostCounters>,
    /// The file systems of the volumes.
    pub stores: Vec<StoreSpace>,
    /// The portals.
    pub portals: Vec<PortalState>,
    /// Refused logins, by transport and reason.
    pub refused: Vec<RefusedLogins>,
}

/// The space of a file system with volumes, as it was measured last.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "store-space")]
pub struct StoreSpace {
    /// Its name: a folder with a volume.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its free space in bytes, for the user of Lunar.
    pub free: u64,
    /// The space in bytes that it has promised to volumes: all that they have or may still take. More than its size:
    /// writes fail when it is full.
    pub promised: u64,
    /// The number of volumes on it.
    pub volumes: usize,
}

/// A portal.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "portal-state")]
pub struct PortalState {
    /// Its name.
    pub name: String,
    /// Its address and port.
    pub address: String,
    /// Its transport.
    pub transport: String,
    /// Whether Lunar listens at it.
    pub up: bool,
}

/// Logins that were refused for one reason.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "refused-logins")]
pub struct RefusedLogins {
    /// The transport.
    pub transport: String,
    /// The reason.
    pub reason: String,
    /// Their number.
    pub count: u64,
}

/// The commands of one class.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "class-counters")]
pub struct ClassCounters {
    /// Commands that have ended.
    pub commands: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// The time that they took together.
    pub nanoseconds: u64,
    /// Commands by their latency; cells that are missing at the end are zero.
    pub cells: Vec<u64>,
}

/// The commands of a volume or a host.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "traffic-counters")]
pub struct TrafficCounters {
    /// Reads.
    pub read: ClassCounters,
    /// Writes, those of COMPARE AND WRITE included.
    pub write: ClassCounters,
    /// All other commands.
    pub other: ClassCounters,
}

/// A core.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "core-counters")]
pub struct CoreCounters {
    /// Its number.
    pub core: u64,
    /// Time with work.
    pub busy_nanoseconds: u64,
    /// Time polling without work.
    pub spin_nanoseconds: u64,
    /// Time in the kernel, asleep.
    pub sleep_nanoseconds: u64,
    /// The longest turn of its loop, of this minute and the last one.
    pub longest_turn_nanoseconds: u64,
    /// Commands taken.
    pub commands: u64,
    /// Connections now.
    pub connections: u64,
    /// Memory for the data of commands.
    pub buffer_bytes: u64,
    /// The part of it that is in use.
    pub buffer_used_bytes: u64,
}

/// A volume that is served.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "volume-counters")]
pub struct VolumeCounters {
    /// Its name.
    pub name: String,
    /// Its state, as in the metrics.
    pub state: String,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The space that its store takes on its file system, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<u64>,
    /// Its file systems.
    pub stores: Vec<String>,
    /// Registrants of persistent reservations.
    pub registrants: u64,
    /// Whether a client holds a reservation.
    pub reserved: bool,
    /// The free space of that file system, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// Commands in progress that wait for data, for memory or for the store.
    pub in_flight: u64,
    /// The most of them at the same time.
    pub in_flight_max: u64,
    /// Commands that failed, of all kinds.
    pub errors: u64,
    /// Reads and writes that are not aligned to 4 KiB.
    pub misaligned: u64,
    /// Its commands.
    pub traffic: TrafficCounters,
}

/// A host at a target.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "host-counters")]
pub struct HostCounters {
    /// The host, as in the metrics.
    pub host: String,
    /// The name of the target in the configuration, or the one that the host gave.
    pub target: String,
    /// The name that the host gave.
    pub target_name: String,
    /// The transport.
    pub transport: String,
    /// Sessions now.
    pub sessions: u64,
    /// Logins.
    pub logins: u64,
    /// Commands that were aborted.
    pub aborts: u64,
    /// Resets that it asked for.
    pub resets: u64,
    /// Its commands.
    pub traffic: TrafficCounters,
}

/// A frame of the stream of numbers.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "live")]
pub struct LiveView {
    /// Whether it has all volumes and hosts; otherwise only those that have changed since the frame before.
    pub whole: bool,
    /// The counters; absent while Lunar starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<CountersView>,
    /// Names of volumes that are not there any more.
    pub gone: Vec<String>,
    /// The troubles, as they were found last.
    pub troubles: Vec<TroubleView>,
    /// The number of the version of the configuration in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The number of the last record of the audit log.
    pub record: u64,
}

impl LiveView {
    /// The changes of this frame to the one before it; `None` if it is of another run, or if hosts were removed.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let (now, before) = (self.counters.as_ref()?, before.counters.as_ref()?);
        if now.start != before.start {
            return None;
        }
        let known: BTreeMap<&str, &VolumeCounters> =
            before.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
        let is_new = |volume: &&VolumeCounters| known.get(volume.name.as_str()) != Some(volume);
        let volumes: Vec<_> = now.volumes.iter().filter(is_new).cloned().collect();
        let there: BTreeSet<&str> = now.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let gone = known.keys().filter(|name| !there.contains(*name)).map(|name| (*name).to_owned()).collect();
        let key = |host: &HostCounters| [&host.transport, &host.target_name, &host.host].map(String::as_str).concat();
        let known: BTreeMap<String, &HostCounters> = before.hosts.iter().map(|host| (key(host), host)).collect();
        let there: BTreeSet<String> = now.hosts.iter().map(key).collect();
        if known.keys().any(|host| !there.contains(host)) {
            // Rare: the table of hosts is full.
            return None;
        }
        let is_new = |host: &&HostCounters| known.get(&key(host)) != Some(host);
        let hosts: Vec<_> = now.hosts.iter().filter(is_new).cloned().collect();
        // Copy all but the two long lists.
        let counters = CountersView {
            volumes,
            hosts,
            bounds: now.bounds.clone(),
            cores: now.cores.clone(),
            stores: now.stores.clone(),
            portals: now.portals.clone(),
            refused: now.refused.clone(),
            ..*now
        };
        let (troubles, version, record) = (self.troubles.clone(), self.version, self.record);
        Some(Self { whole: false, counters: Some(counters), gone, troubles, version, record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(volumes: &[(&str, u64)], hosts: &[(&str, u64)]) -> LiveView {
        let volume = |(name, errors): &(&str, u64)| VolumeCounters {
            name: (*name).to_owned(),
            errors: *errors,
            ..VolumeCounters::default()
        };
        let host = |(name, logins): &(&str, u64)| HostCounters {
            host: (*name).to_owned(),
            logins: *logins,
            ..HostCounters::default()
        };
        let counters = CountersView {
            start: 1,
            volumes: volumes.iter().map(volume).collect(),
            hosts: hosts.iter().map(host).collect(),
            ..CountersView::default()
        };
        LiveView { whole: true, counters: Some(counters), ..LiveView::default() }
    }

    #[test]
    fn a_viewer_gets_the_rows_that_have_changed() {
        let first = view(&[("a", 0), ("b", 0), ("c", 0)], &[("x", 1), ("y", 1)]);
        let second = view(&[("a", 0), ("b", 5), ("d", 0)], &[("x", 1), ("y", 2)]);
        let changes = second.since(&first).expect("of the same run");
        let counters = changes.counters.as_ref().expect("counters");
        let names: Vec<_> = counters.volumes.iter().map(|volume| volume.name.as_str()).collect();
        let hosts: Vec<_> = counters.hosts.iter().map(|host| host.host.as_str()).collect();
        assert_eq!(
            (names, hosts, changes.gone, changes.whole),
            (vec!["b", "d"], vec!["y"], vec!["c".to_owned()], false)
        );
        let mut restarted = second.clone();
        restarted.counters.as_mut().expect("counters").start = 2;
        assert_eq!(restarted.since(&second), None);
        assert_eq!(view(&[], &[("x", 1)]).since(&second), None, "a host was removed");
    }
}
