//! The table of statistics. A statistic is one line here and the place that counts it; every display (the CLI, a page,
//! metrics) walks [`Stats::each`].

pub use crate::count::Count;
use crate::hosts::CoreHosts;
use crate::slow::CoreSlowLog;
use crate::stages::Sampler;
use crate::time::Instant;

/// The kind of a statistic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A counter, which only grows.
    Counter,
    /// A gauge, which grows and shrinks.
    Gauge,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name, with its unit last.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its description.
    pub doc: &'static str,
}

macro_rules! stats {
    ($($name:ident: $kind:ident, $doc:literal;)*) => {
        /// The statistics of one core, apart from those of other cores: two cache lines, because processors fetch them
        /// in pairs.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Stats {
            /// The time at which the loop of the core last read its clock, in nanoseconds. The latency of commands is
            /// measured with it: no command reads the clock.
            clock: Count,
            /// The counters of the hosts whose sessions the core serves.
            pub hosts: CoreHosts,
            /// The slow log.
            pub slow: CoreSlowLog,
            /// The stages of commands.
            pub sampler: Sampler,
            $(#[doc = $doc] pub $name: Count,)*
        }

        impl Stats {
            /// The table.
            pub const TABLE: &'static [Row] = &[$(Row { name: stringify!($name), kind: Kind::$kind, doc: $doc },)*];

            /// Every row with its value, in the order of the table.
            pub fn each(&self) -> impl Iterator<Item = (&'static Row, u64)> {
                Self::TABLE.iter().zip([$(self.$name.get()),*])
            }
        }
    };
}

impl Stats {
    /// The statistics of a core that counts its hosts in this table, and has this slow log.
    #[must_use]
    pub fn counting(hosts: CoreHosts, slow: CoreSlowLog) -> Self {
        Self { hosts, slow, ..Self::default() }
    }

    /// The time at which the loop of the core last read its clock.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant(self.clock.get())
    }

    /// Keeps the time that the loop of the core has read.
    #[inline]
    pub fn set_now(&self, now: Instant) {
        self.clock.set(now.0);
    }
}

stats! {
    busy_nanoseconds: Counter, "Time in which the core had work: turns of its loop that found some.";
    idle_spin_nanoseconds: Counter, "Time in which the core polled and found no work.";
    sleep_nanoseconds: Counter, "Time in which the core slept in the kernel.";
    turns: Counter, "Turns of the core's loop that found work.";
    sleeps: Counter, "Times the core slept in the kernel.";
    longest_turn_nanoseconds: Gauge, "The longest turn that found work, of this minute and the last one.";
    buffer_bytes: Gauge, "Memory for the data of commands.";
    buffer_used_bytes: Gauge, "Memory for the data of commands that is in use.";
    copied_bytes: Counter, "Bytes copied from disk to disk, which no initiator moved.";
    connections: Gauge, "Connections open now.";
    connections_accepted: Counter, "Connections accepted.";
    sessions: Gauge, "Sessions in their full-feature phase now.";
    logins: Counter, "Logins that reached the full-feature phase.";
    logins_refused: Counter, "Logins refused.";
    commands: Counter, "Commands taken.";
    read_commands: Counter, "Commands that moved data to an initiator.";
    write_commands: Counter, "Commands that moved data from an initiator.";
    read_bytes: Counter, "Bytes of data moved to initiators.";
    write_bytes: Counter, "Bytes of data moved from initiators.";
    check_conditions: Counter, "Commands that ended with CHECK CONDITION.";
    task_set_full: Counter, "Commands refused because no slot was free.";
    slot_waits: Counter, "Commands that waited for a slot, because their session or host had its share.";
    rdma_repeated: Counter, "RDMA packets that were retransmitted, because they were lost or not acknowledged in time.";
    rdma_damaged: Counter, "RDMA packets dropped because their invariant CRC (ICRC) was wrong.";
    rdma_strange: Counter, "RDMA packets dropped because they were malformed, or belonged to no connection.";
    rdma_fragments: Counter, "IP fragments dropped on the links of RDMA ports, which are not put together.";
    rdma_unreachable: Counter, "RDMA packets of links dropped because no station answers for the address of the peer.";
    rdma_unanswered: Counter, "ARP, NDP and echo requests (ping) on links beyond the rate that is answered.";
    busy_refused: Counter, "Commands refused because no memory was free.";
    slow_commands: Counter, "Commands that took longer than the threshold of the slow log.";
    task_management: Counter, "Task management functions carried out.";
    tasks_aborted: Counter, "Commands that a task management function or a lost connection ended.";
    digest_errors: Counter, "Headers or data whose digest did not match.";
    protocol_errors: Counter, "Connections closed because the peer broke the protocol.";
    rejects: Counter, "Requests rejected as the protocol has it.";
    keepalive_timeouts: Counter, "Connections closed because the peer was silent.";
    sends: Counter, "Sends to peers.";
    sent_bytes: Counter, "Bytes sent to peers.";
    receives: Counter, "Receives from peers.";
    received_bytes: Counter, "Bytes received from peers.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_walks_every_statistic() {
        let stats = Stats::default();
        stats.commands.add(3);
        stats.connections.add(2);
        stats.connections.sub(1);
        let values: Vec<_> =
            stats.each().filter(|(_, value)| *value > 0).map(|(row, value)| (row.name, value)).collect();
        assert_eq!(values, [("connections", 1), ("commands", 3)]);
        stats.set_now(Instant(7));
        assert_eq!(stats.now(), Instant(7));
        assert_eq!(stats.each().count(), Stats::TABLE.len());
    }

    #[test]
    fn names_are_unique_and_documented() {
        for (at, row) in Stats::TABLE.iter().enumerate() {
            assert!(row.doc.ends_with('.'), "{}", row.name);
            assert!(Stats::TABLE[..at].iter().all(|other| other.name != row.name), "{}", row.name);
        }
    }
}
