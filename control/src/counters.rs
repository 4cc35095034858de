//! All counters of a running target at one moment, for readers that compute rates: `lunar top` and pages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
