//! Slow commands, and the stages of commands, for the API.

use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The stages of the commands of a core or of a volume: the sums of those that were timed, one in about a thousand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "stages")]
pub struct StagesView {
    /// The commands that were timed.
    pub commands: u64,
    /// The time of each stage of all of them together, in nanoseconds.
    pub nanoseconds: BTreeMap<&'static str, u64>,
}

/// Where the time of commands goes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[schemars(rename = "all-stages")]
pub struct AllStagesView {
    /// Of each core.
    pub cores: Vec<StagesView>,
    /// Of each volume.
    pub volumes: BTreeMap<String, StagesView>,
}

/// The slow log.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "slow-log")]
pub struct SlowLogView {
    /// Slow commands that were only counted, because there were too many in one second.
    pub omitted: u64,
    /// The slow commands that are kept, the oldest first.
    pub commands: Vec<SlowView>,
}

/// A slow command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "slow-command")]
pub struct SlowView {
    /// When it ended, in milliseconds since the beginning of 1970.
    pub milliseconds: u64,
    /// The core that executed it.
    pub core: usize,
    /// The volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The transport, such as `iscsi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
    /// The target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The iSCSI name of the initiator, or the NQN of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// The name of the command in its standard.
    pub command: &'static str,
    /// Its class: `read`, `write`, `unmap`, `compare-and-write`, `copy` or `other`.
    pub class: &'static str,
    /// Its first block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lba: Option<u64>,
    /// Its blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// Its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Its time.
    pub microseconds: SlowTimes,
    /// The commands in progress at the volume on the same core when it ended, itself included.
    pub in_flight: u64,
    /// How it ended: `done`, `failed` or `aborted`.
    pub ending: &'static str,
}

/// The time of a slow command, in microseconds: `network`, `queue` and `store` add up to `total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "slow-times")]
pub struct SlowTimes {
    /// From its arrival to its end.
    pub total: u64,
    /// Waiting for the client: for data that it sends, or until it took data.
    pub network: u64,
    /// Waiting for a slot, for other commands, for memory and for the core.
    pub queue: u64,
    /// Waiting for the store.
    pub store: u64,
}
