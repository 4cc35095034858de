//! The metrics of a target. HELP, TYPE and UNIT of the page of metrics, and `docs/metrics.md`, follow from these rows
//! and from the table of statistics of a core.

use lunar_control::families;
use lunar_control::metrics::{Family, Kind};
use lunar_core::stats::{self, Row, Stats};
use std::sync::LazyLock;

families! {
    pub,
    BUILD_INFO = "lunar_build_info" Gauge ["version"] "1, with the version of Lunar.";
    CORE_SECONDS = "lunar_core_seconds" Counter ["core", "mode"]
        "Time of a core: `busy` with work, `spin` polling without work, `sleep` in the kernel.";
    CORE_TURNS = "lunar_core_turns" Counter ["core"] "Turns of the core's loop that found work.";
    CORE_LONGEST_TURN = "lunar_core_longest_turn_seconds" Gauge ["core"]
        "The longest turn that found work, of this minute and the last one.";
    CORE_BUFFER = "lunar_core_buffer_bytes" Gauge ["core", "state"]
        "Memory for the data of commands: `used` or `free`, after the last turn that found work.";
    CORE_COMMANDS = "lunar_core_commands" Counter ["core"] "Commands taken.";
    CORE_CONNECTIONS = "lunar_core_connections" Gauge ["core"] "Connections open now.";
    PORTAL_UP = "lunar_portal_up" Gauge ["portal", "address", "transport"]
        "Whether Lunar listens at the portal: 1, or 0.";
    SESSIONS = "lunar_sessions" Gauge ["transport", "target"] "Sessions now.";
    LOGINS = "lunar_logins" Counter ["transport", "target", "result"] "Logins; the result is `ok`.";
    LOGINS_REFUSED = "lunar_logins_refused" Counter ["transport", "reason"] "Logins refused.";
    COMMANDS = "lunar_commands" Counter ["transport", "class"] "Commands that have ended.";
    COMMAND_SECONDS = "lunar_command_seconds" Histogram ["transport", "class"] "Latency of commands.";
    VOLUME_INFO = "lunar_volume_info" Gauge ["volume", "uuid", "serial", "wwid", "kind", "block_size"]
        "1, with the identity of the volume; `wwid` as Linux hosts show it.";
    VOLUME_UP = "lunar_volume_up" Gauge ["volume"] "Whether the volume is served: 1, or 0 if its store is unavailable.";
    VOLUME_READ_ONLY = "lunar_volume_read_only" Gauge ["volume"] "Whether all writes are refused: 1, or 0.";
    VOLUME_STATE = "lunar_volume_state" Gauge ["volume", "state"]
        "1 for the state of the volume: `up`, `read-only`, `unavailable`, `full` or `formatting`.";
    VOLUME_SIZE = "lunar_volume_size_bytes" Gauge ["volume"] "Size of the volume.";
    VOLUME_ALLOCATED = "lunar_volume_allocated_bytes" Gauge ["volume"]
        "Space that the store of the volume takes on its file system, or from its pool.";
    VOLUME_COMMANDS = "lunar_volume_commands" Counter ["volume", "class"] "Commands that have ended.";
    VOLUME_BYTES = "lunar_volume_bytes" Counter ["volume", "direction"] "Bytes read and written by commands.";
    VOLUME_COMMAND_SECONDS = "lunar_volume_command_seconds" Histogram ["volume", "class"]
        "Latency of commands; all classes but `read` and `write` are `other`.";
    VOLUME_QUEUE = "lunar_volume_queue" Gauge ["volume"]
        "Commands in progress that wait for data, for memory or for the store.";
    VOLUME_QUEUE_MAX = "lunar_volume_queue_max" Gauge ["volume"]
        "The most of them at the same time since the start: the sum of the cores, each at its own busiest moment.";
    VOLUME_ERRORS = "lunar_volume_errors" Counter ["volume", "kind"]
        "Commands that failed: `medium`, `space`, `protection`, `aborted`, `conflict` (reservation), `full` (no slot).";
    VOLUME_MISALIGNED = "lunar_volume_misaligned" Counter ["volume"] "Reads and writes not aligned to 4 KiB.";
    VOLUME_STAGE_SECONDS = "lunar_volume_stage_seconds" Counter ["volume", "stage"]
        "Time of one command in about a thousand in its stages: `receive`, `wait`, `store`, `answer`.";
    VOLUME_STAGE_COMMANDS = "lunar_volume_stage_commands" Counter ["volume"] "The commands that were timed so.";
    VOLUME_SLOW = "lunar_volume_slow_commands" Counter ["volume"]
        "Commands that took longer than the threshold of the slow log.";
    VOLUME_UNMAPPED = "lunar_volume_unmapped_bytes" Counter ["volume"] "Bytes that clients unmapped or discarded.";
    VOLUME_REGISTRANTS = "lunar_volume_registrants" Gauge ["volume"] "Registrants of persistent reservations.";
    VOLUME_RESERVED = "lunar_volume_reserved" Gauge ["volume"] "Whether a client holds a reservation: 1, or 0.";
    VOLUME_STORE = "lunar_volume_store" Gauge ["volume", "store"] "1, with the file system or pool of the volume.";
    STORE_FREE = "lunar_store_free_bytes" Gauge ["store"]
        "Free space of the file system or pool, for the user of Lunar.";
    STORE_SIZE = "lunar_store_size_bytes" Gauge ["store"] "Size of the file system or pool.";
    STORE_PROMISED = "lunar_store_promised_bytes" Gauge ["store"]
        "Space that the file system or pool has promised: all that its volumes have or may still take.";
    HOST_COMMANDS = "lunar_host_commands" Counter ["host", "target", "transport", "class"] "Commands that have ended.";
    HOST_BYTES = "lunar_host_bytes" Counter ["host", "target", "transport", "direction"]
        "Bytes read and written by commands.";
    HOST_SECONDS = "lunar_host_seconds" Counter ["host", "target", "transport", "class"]
        "Latency of all commands together: divided by their number, the mean.";
    HOST_PATHS = "lunar_host_paths" Gauge ["host", "target", "transport"] "Sessions of the host at the target now.";
    HOST_LOGINS = "lunar_host_logins" Counter ["host", "target", "transport"] "Logins.";
    HOST_REFUSED = "lunar_host_logins_refused" Counter ["host", "target", "transport"]
        "Refused logins of a host that had logged in before.";
    HOST_ABORTS = "lunar_host_aborts" Counter ["host", "target", "transport"] "Commands that were aborted.";
    HOST_RESETS = "lunar_host_resets" Counter ["host", "target", "transport"]
        "Resets that the host asked for: of logical units, targets and nexuses.";
    HOST_RETRANSMITS = "lunar_host_retransmits" Counter ["host", "target", "transport"]
        "TCP segments that were sent to the host again (`TCP_INFO` of its connections).";
    HOSTS_HIDDEN = "lunar_metrics_hosts_hidden" Gauge [] "How often a host was added to the host `other`.";
}

/// Statistics of cores that have a form of their own above.
const OWN_FORM: [&str; 11] = [
    "busy_nanoseconds",
    "idle_spin_nanoseconds",
    "sleep_nanoseconds",
    "turns",
    "longest_turn_nanoseconds",
    "buffer_bytes",
    "buffer_used_bytes",
    "sessions",
    "logins",
    "logins_refused",
    "commands",
];

/// The families of all other statistics of cores: the sums of all cores.
pub static STATISTICS: LazyLock<Vec<(Family, &'static str)>> = LazyLock::new(|| {
    let rows = Stats::TABLE.iter().filter(|row| !OWN_FORM.contains(&row.name));
    rows.map(|row| (of_statistic(row), row.name)).collect()
});

/// The family of a statistic.
fn of_statistic(row: &Row) -> Family {
    let name = match row.name {
        // BUSY is the status.
        "busy_refused" => "busy",
        name => name,
    };
    let kind = match row.kind {
        stats::Kind::Counter => Kind::Counter,
        stats::Kind::Gauge => Kind::Gauge,
    };
    Family { name: format!("lunar_{name}").into(), kind, labels: &[], help: row.doc }
}

/// All families of a target, in the order of the page of metrics.
pub fn all() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().chain(STATISTICS.iter().map(|(family, _)| family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_well_formed_and_described() {
        let mut names = BTreeSet::new();
        for family in all() {
            assert!(names.insert(family.samples()), "{} is there twice", family.name);
            let is_word = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(family.name.starts_with("lunar_") && family.name.chars().all(is_word), "{}", family.name);
            assert!(!family.name.ends_with("_total") && !family.name.contains("nanoseconds"), "{}", family.name);
            assert!(family.help.ends_with('.') && !family.help.contains(['\\', '\n', '"', '|']), "{}", family.name);
            let has_unit = family.kind != Kind::Histogram || family.unit() == Some("seconds");
            assert!(has_unit, "{} is no histogram of times", family.name);
        }
    }

    #[test]
    fn every_statistic_is_a_metric() {
        for name in OWN_FORM {
            assert!(Stats::TABLE.iter().any(|row| row.name == name), "{name} is no statistic");
        }
        assert_eq!(STATISTICS.len() + OWN_FORM.len(), Stats::TABLE.len());
    }
}
