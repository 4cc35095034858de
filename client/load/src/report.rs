//! What a run found, for people and for programs.

use crate::cost::Cost;
use crate::histogram::Histogram;
use crate::verify::Verified;
use lunar_iscsi_initiator::config;
use serde::Serialize;
use std::fmt;

/// Latencies in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// What 99 of 100 do not exceed.
    pub p99: f64,
    /// What 999 of 1000 do not exceed.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl From<&Histogram> for Latency {
    fn from(all: &Histogram) -> Self {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Self {
            mean: all.mean() / 1e3,
            min: us(all.min()),
            p50: us(all.quantile(0.5)),
            p99: us(all.quantile(0.99)),
            p999: us(all.quantile(0.999)),
            max: us(all.max()),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, min, p50, p99, p999, max } = self;
        write!(f, "mean {mean:.1}  min {min:.1}  p50 {p50:.1}  p99 {p99:.1}  p99.9 {p999:.1}  max {max:.1}")
    }
}

/// Commands of one kind in the measured time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Side {
    /// Commands.
    pub count: u64,
    /// Commands per second.
    pub per_second: f64,
    /// In microseconds.
    pub latency_us: Latency,
}

impl Side {
    /// `count` ended in the time; `all` has those as well that only began in it.
    pub(crate) fn new(all: &Histogram, count: u64, seconds: f64) -> Self {
        let per_second = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Self { count, per_second, latency_us: all.into() }
    }
}

/// What was agreed with the target.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Negotiated {
    /// By the login of the first iSCSI session.
    Iscsi(Agreed),
    /// By the controller and its first I/O queue.
    NvmeTcp(Queues),
    /// By the controller.
    VfioUser(Rings),
}

impl Negotiated {
    /// Commands that a session may have outstanding at first.
    #[must_use]
    pub fn window(&self) -> u32 {
        match self {
            Self::Iscsi(agreed) => agreed.window,
            Self::NvmeTcp(queues) => queues.window,
            Self::VfioUser(rings) => rings.window,
        }
    }
}

/// What the first session's login agreed on.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the keys of RFC 7143 clause 13")]
pub struct Agreed {
    pub header_digest: bool,
    pub data_digest: bool,
    pub target_max_recv_data_segment_length: u32,
    pub max_burst_length: u32,
    pub first_burst_length: u32,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    pub max_outstanding_r2t: u32,
    /// Commands that the target's window admits at first.
    pub window: u32,
}

impl Agreed {
    pub(crate) fn new(agreed: &config::Agreed, window: u32) -> Self {
        Self {
            header_digest: agreed.header_digest,
            data_digest: agreed.data_digest,
            target_max_recv_data_segment_length: agreed.target_segment,
            max_burst_length: agreed.max_burst_length,
            first_burst_length: agreed.first_burst_length,
            initial_r2t: agreed.initial_r2t,
            immediate_data: agreed.immediate_data,
            max_outstanding_r2t: agreed.max_outstanding_r2t,
            window,
        }
    }
}

/// What an NVMe controller said.
#[derive(Clone, Debug, Serialize)]
pub struct Queues {
    /// Whether headers carry digests.
    pub header_digest: bool,
    /// Whether data does.
    pub data_digest: bool,
    /// Whether the host is told how far its queue was read.
    pub flow_control: bool,
    /// Bytes that a command may bring with it.
    pub in_capsule: u32,
    /// Bytes of one H2CData PDU at most.
    pub max_h2c_data: u32,
    /// Bytes of one command at most.
    pub max_transfer: u32,
    /// Entries of a queue at most.
    pub entries_max: u16,
    /// Commands that the first I/O queue holds.
    pub window: u32,
}

/// What an NVMe controller with queues in memory said.
#[derive(Clone, Debug, Serialize)]
pub struct Rings {
    /// How it hears of commands.
    pub doorbells: &'static str,
    /// Bytes of one command at most.
    pub max_transfer: u32,
    /// Entries of a queue at most.
    pub entries_max: u16,
    /// Commands that the first I/O queue holds.
    pub window: u32,
}

/// Logins of the sessions that only stay.
#[derive(Clone, Debug, Serialize)]
pub struct Logins {
    /// Sessions.
    pub sessions: u32,
    /// From the first connection to the last login.
    pub seconds: f64,
    /// Sessions per second.
    pub per_second: f64,
}

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The unit's URL.
    pub url: String,
    /// Logical blocks of the unit.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// The load in words.
    pub load: String,
    /// Seconds that were measured.
    pub seconds: f64,
    /// What was agreed at login.
    pub negotiated: Negotiated,
    /// Reads and writes per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Of reads and writes, in microseconds.
    pub latency_us: Latency,
    /// Reads.
    pub reads: Side,
    /// Writes.
    pub writes: Side,
    /// SYNCHRONIZE CACHE commands.
    pub flushes: Side,
    /// The first commands after a rest.
    pub after_rest: Side,
    /// Messages that did nothing but wake the target: doorbells that were told (vfio-user).
    pub rings: u64,
    /// What it cost.
    pub cost: Cost,
    /// Commands that were answered in the measured time, in whatever way, caches' flushes among them: what the costs
    /// are divided by.
    pub answered: u64,
    /// CPU time of the initiator: microseconds per command, or seconds per million commands.
    pub initiator_cpu_us_per_io: f64,
    /// CPU time of the target's process, likewise.
    pub target_cpu_us_per_io: Option<f64>,
    /// Time in which the target's cores had work, likewise.
    pub target_busy_us_per_io: Option<f64>,
    /// Commands that ended in one receive of the initiator, on average: how far the target gathers its replies.
    pub commands_per_receive: f64,
    /// Commands that ended well in all, with those before and after the measured time.
    pub total_commands: u64,
    /// Commands that were sent again: the target was busy, or had a unit attention to tell.
    pub retries: u64,
    /// Commands that failed.
    pub errors: u64,
    /// The first of them.
    pub first_errors: Vec<String>,
    /// What checking found, if there was any.
    pub verified: Option<Verified>,
    /// Logins of the sessions that only stay, if there are any.
    pub logins: Option<Logins>,
    /// Why the run ended before its time.
    pub lost: Option<String>,
}

impl Report {
    /// Whether nothing failed and all that was checked was right.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.errors == 0 && self.verified.as_ref().is_none_or(|verified| verified.bad_blocks == 0)
    }
}

/// Bytes as people write them.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / (1u64 << (power * 10)) as f64;
    if value.fract() == 0.0 { format!("{value} {}", units[power]) } else { format!("{value:.1} {}", units[power]) }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = human(self.blocks.saturating_mul(self.block_size.into()));
        writeln!(f, "{}: {size} in blocks of {} bytes", self.url, self.block_size)?;
        if self.iops > 0.0 {
            writeln!(f, "{}, {:.1} s", self.load, self.seconds)?;
            writeln!(f, "  IOPS {:.0}   MB/s {:.1}", self.iops, self.bytes_per_second / 1e6)?;
            writeln!(f, "  latency us: {}", self.latency_us)?;
            self.sides(f)?;
            if self.after_rest.count > 0 {
                writeln!(f, "  after a rest {:.0}/s   us: {}", self.after_rest.per_second, self.after_rest.latency_us)?;
            }
            if self.rings > 0 {
                writeln!(f, "  doorbells told {}", self.rings)?;
            }
            writeln!(f, "  commands per receive {:.1}", self.commands_per_receive)?;
            self.costs(f)?;
        }
        if let Some(logins) = &self.logins {
            writeln!(f, "  idle sessions {}: logged in at {:.0} a second", logins.sessions, logins.per_second)?;
        }
        if self.retries > 0 {
            writeln!(f, "  sent again {}", self.retries)?;
        }
        if self.errors > 0 {
            writeln!(f, "  failed {}", self.errors)?;
            self.first_errors.iter().try_for_each(|error| writeln!(f, "    {error}"))?;
        }
        if let Some(found) = &self.verified {
            writeln!(f, "  checked {} blocks: {} bad", found.checked_blocks, found.bad_blocks)?;
            found.bad.iter().try_for_each(|bad| writeln!(f, "    {bad}"))?;
            if found.volatile_blocks > 0 {
                let (all, lost) = (found.volatile_blocks, found.volatile_lost_blocks);
                writeln!(f, "  of {all} blocks whose last write needed not survive {lost} are older")?;
            }
        }
        self.lost.iter().try_for_each(|why| writeln!(f, "  ended early: {why}"))
    }
}

impl Report {
    fn sides(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = [("reads", &self.reads), ("writes", &self.writes), ("flushes", &self.flushes)];
        let used = sides.iter().filter(|(_, side)| side.count > 0);
        // With one kind only the line above says it all.
        if used.clone().count() < 2 {
            return Ok(());
        }
        used.clone()
            .try_for_each(|(name, side)| writeln!(f, "  {name} {:.0}/s   us: {}", side.per_second, side.latency_us))
    }

    fn costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.initiator_cpu_us_per_io > 0.0 {
            writeln!(f, "  CPU seconds per million commands: initiator {:.3}", self.initiator_cpu_us_per_io)?;
        }
        if let Some(cpu) = self.target_cpu_us_per_io {
            writeln!(f, "    target {cpu:.3}")?;
            let million = self.answered as f64 / 1e6;
            for thread in &self.cost.target_threads {
                writeln!(f, "      {:<16} {:.3}", thread.name, thread.cpu_seconds / million)?;
            }
        }
        if let Some(busy) = self.target_busy_us_per_io {
            writeln!(f, "    target busy {busy:.3}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(
            (human(0), human(512), human(4096), human(1 << 40)),
            ("0 B".into(), "512 B".into(), "4 KiB".into(), "1 TiB".into())
        );
        assert_eq!((human(1536), human(u64::MAX)), ("1.5 KiB".into(), "16 EiB".into()));
    }
}
