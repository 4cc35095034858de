//! The report of a run, as text and as JSON.

use crate::cost::Cost;
use crate::histogram::Histogram;
use crate::verify::Verified;
use lunar_iscsi_initiator::config;
use serde::Serialize;
use std::fmt;

/// Latencies, in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The largest.
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

/// The commands of one kind that completed in the measured time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CommandStats {
    /// The number of commands.
    pub count: u64,
    /// Commands per second.
    pub per_second: f64,
    /// Latencies, in microseconds.
    pub latency_us: Latency,
}

impl CommandStats {
    /// `count` commands completed in the measured time; `all` has the latencies of the commands that started in it.
    pub(crate) fn new(all: &Histogram, count: u64, seconds: f64) -> Self {
        let per_second = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Self { count, per_second, latency_us: all.into() }
    }
}

/// The negotiated parameters.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Negotiated {
    /// Parameters of the first iSCSI session.
    Iscsi(Agreed),
    /// Parameters of the controller and its first I/O queue.
    NvmeTcp(Queues),
    /// Parameters of the controller and its first I/O queue.
    NvmeRdma(RdmaQueues),
    /// Parameters of the controller.
    VfioUser(MemoryQueues),
    /// Parameters of the device.
    VhostUser(Rings),
    /// Parameters of the disk.
    Aoe(FrameWindow),
    /// Parameters of the port.
    Fcoe(ExchangeWindow),
    /// Parameters of the connection.
    St(TransferWindow),
}

impl Negotiated {
    /// The number of commands that a session may have outstanding at first.
    #[must_use]
    pub fn window(&self) -> u32 {
        match self {
            Self::Iscsi(agreed) => agreed.window,
            Self::NvmeTcp(queues) => queues.window,
            Self::NvmeRdma(queues) => queues.window,
            Self::VfioUser(queues) => queues.window,
            Self::VhostUser(rings) => rings.window,
            Self::Aoe(frames) => frames.window,
            Self::Fcoe(frames) => frames.window,
            Self::St(transfers) => transfers.window,
        }
    }
}

/// The parameters of an ATA over Ethernet target.
#[derive(Clone, Debug, Serialize)]
pub struct FrameWindow {
    /// The most sectors of a frame.
    pub sectors_per_frame: u8,
    /// The most bytes behind the Ethernet header of a frame.
    pub mtu: usize,
    /// The number of frames that may be outstanding.
    pub window: u32,
}

/// The parameters of a Fibre Channel over Ethernet port.
#[derive(Clone, Debug, Serialize)]
pub struct ExchangeWindow {
    /// The most bytes of the payload of a frame.
    pub payload: usize,
    /// The most bytes behind the Ethernet header of a frame.
    pub mtu: usize,
    /// The number of commands that may be outstanding: the target answers further ones with TASK SET FULL.
    pub window: u32,
}

/// The parameters of a connection of Scheduled Transfer.
#[derive(Clone, Debug, Serialize)]
pub struct TransferWindow {
    /// The most bytes of data in a packet.
    pub stu: usize,
    /// The largest packet of the link.
    pub mtu: usize,
    /// The number of commands that may be outstanding.
    pub window: u32,
}

/// The negotiated parameters of the first iSCSI session.
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
    /// The command window after the login.
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

/// The parameters of an NVMe/TCP controller.
#[derive(Clone, Debug, Serialize)]
pub struct Queues {
    /// Whether headers carry a digest.
    pub header_digest: bool,
    /// Whether data carries a digest.
    pub data_digest: bool,
    /// Whether completions report the submission queue head.
    pub flow_control: bool,
    /// In-capsule data of a command, in bytes.
    pub in_capsule: u32,
    /// The most data in one H2CData PDU, in bytes.
    pub max_h2c_data: u32,
    /// The longest transfer of a command, in bytes.
    pub max_transfer: u32,
    /// The largest number of entries of a queue.
    pub entries_max: u16,
    /// The number of commands that the first I/O queue holds.
    pub window: u32,
}

/// The parameters of a controller of NVMe over RDMA.
#[derive(Clone, Debug, Serialize)]
pub struct RdmaQueues {
    /// The path MTU: the most bytes of data in a packet.
    pub path_mtu: usize,
    /// Whether completions report the submission queue head.
    pub flow_control: bool,
    /// In-capsule data of a command, in bytes.
    pub in_capsule: u32,
    /// The longest transfer of a command, in bytes.
    pub max_transfer: u32,
    /// The largest number of entries of a queue.
    pub entries_max: u16,
    /// The number of commands that the first I/O queue holds.
    pub window: u32,
}

/// The parameters of an NVMe controller with queues in memory.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryQueues {
    /// How doorbells are rung.
    pub doorbells: &'static str,
    /// The longest transfer of a command, in bytes.
    pub max_transfer: u32,
    /// The largest number of entries of a queue.
    pub entries_max: u16,
    /// The number of commands that the first I/O queue holds.
    pub window: u32,
}

/// The parameters of a vhost-user device.
#[derive(Clone, Debug, Serialize)]
pub struct Rings {
    /// The longest transfer of a command, in bytes.
    pub max_transfer: u32,
    /// The number of entries of a ring.
    pub entries: u16,
    /// The number of commands that a ring holds.
    pub window: u32,
}

/// The logins of the idle sessions.
#[derive(Clone, Debug, Serialize)]
pub struct Logins {
    /// The number of sessions.
    pub sessions: u32,
    /// From the first connection to the last login, in seconds.
    pub seconds: f64,
    /// Sessions per second.
    pub per_second: f64,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The URL of the unit.
    pub url: String,
    /// The number of logical blocks of the unit.
    pub blocks: u64,
    /// The logical block size, in bytes.
    pub block_size: u32,
    /// A description of the load.
    pub load: String,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// The negotiated parameters.
    pub negotiated: Negotiated,
    /// Reads and writes per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Latencies of reads and writes, in microseconds.
    pub latency_us: Latency,
    /// Reads.
    pub reads: CommandStats,
    /// Writes.
    pub writes: CommandStats,
    /// SYNCHRONIZE CACHE or Flush commands.
    pub flushes: CommandStats,
    /// The first commands after a pause.
    pub after_rest: CommandStats,
    /// Doorbells that were sent as messages (vfio-user), and notifications by eventfd (vhost-user).
    pub rings: u64,
    /// The CPU time of the run.
    pub cost: Cost,
    /// Commands that completed in the measured time, successful or not, including flushes. The CPU times per command
    /// are divided by it.
    pub answered: u64,
    /// CPU time of the initiator per command, in microseconds, which is also seconds per million commands.
    pub initiator_cpu_us_per_io: f64,
    /// CPU time of the target's process per command, in microseconds.
    pub target_cpu_us_per_io: Option<f64>,
    /// Busy time of the target's cores per command, in microseconds.
    pub target_busy_us_per_io: Option<f64>,
    /// Commands that completed per receive of the initiator, on average: shows how many replies the target coalesces.
    pub commands_per_receive: f64,
    /// Commands that succeeded in total, including those before and after the measured time.
    pub total_commands: u64,
    /// Commands that were sent again because the target was busy or reported a unit attention.
    pub retries: u64,
    /// Commands that failed.
    pub errors: u64,
    /// Descriptions of the first failed commands.
    pub first_errors: Vec<String>,
    /// The result of verification, if there was any.
    pub verified: Option<Verified>,
    /// The logins of the idle sessions, if there are any.
    pub logins: Option<Logins>,
    /// Why the run ended early, if it did.
    pub lost: Option<String>,
}

impl Report {
    /// Whether no command failed and no verified block was wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.errors == 0 && self.verified.as_ref().is_none_or(|verified| verified.bad_blocks == 0)
    }
}

/// A number of bytes with a binary unit.
pub(crate) fn with_unit(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / (1u64 << (power * 10)) as f64;
    if value.fract() == 0.0 { format!("{value} {}", units[power]) } else { format!("{value:.1} {}", units[power]) }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = with_unit(self.blocks.saturating_mul(self.block_size.into()));
        writeln!(f, "{}: {size} in blocks of {} bytes", self.url, self.block_size)?;
        if self.iops > 0.0 {
            writeln!(f, "{}, {:.1} s", self.load, self.seconds)?;
            writeln!(f, "  IOPS {:.0}   MB/s {:.1}", self.iops, self.bytes_per_second / 1e6)?;
            writeln!(f, "  latency us: {}", self.latency_us)?;
            self.write_commands(f)?;
            if self.after_rest.count > 0 {
                writeln!(
                    f,
                    "  after a pause {:.0}/s   us: {}",
                    self.after_rest.per_second, self.after_rest.latency_us
                )?;
            }
            if self.rings > 0 {
                writeln!(f, "  doorbell messages {}", self.rings)?;
            }
            writeln!(f, "  commands per receive {:.1}", self.commands_per_receive)?;
            self.write_costs(f)?;
        }
        if let Some(logins) = &self.logins {
            writeln!(f, "  idle sessions {}: {:.0} logins per second", logins.sessions, logins.per_second)?;
        }
        if self.retries > 0 {
            writeln!(f, "  retries {}", self.retries)?;
        }
        if self.errors > 0 {
            writeln!(f, "  failed {}", self.errors)?;
            self.first_errors.iter().try_for_each(|error| writeln!(f, "    {error}"))?;
        }
        if let Some(found) = &self.verified {
            writeln!(f, "  verified {} blocks: {} bad", found.checked_blocks, found.bad_blocks)?;
            found.bad.iter().try_for_each(|bad| writeln!(f, "    {bad}"))?;
            if found.volatile_blocks > 0 {
                let (all, lost) = (found.volatile_blocks, found.volatile_lost_blocks);
                writeln!(f, "  of {all} blocks whose last write was not durable, {lost} hold an older write")?;
            }
        }
        self.lost.iter().try_for_each(|why| writeln!(f, "  ended early: {why}"))
    }
}

impl Report {
    fn write_commands(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write_commands = [("reads", &self.reads), ("writes", &self.writes), ("flushes", &self.flushes)];
        let used = write_commands.iter().filter(|(_, side)| side.count > 0);
        // With one kind of command, the total above says the same.
        if used.clone().count() < 2 {
            return Ok(());
        }
        used.clone()
            .try_for_each(|(name, side)| writeln!(f, "  {name} {:.0}/s   us: {}", side.per_second, side.latency_us))
    }

    fn write_costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    fn sizes_have_binary_units() {
        assert_eq!(
            (with_unit(0), with_unit(512), with_unit(4096), with_unit(1 << 40)),
            ("0 B".into(), "512 B".into(), "4 KiB".into(), "1 TiB".into())
        );
        assert_eq!((with_unit(1536), with_unit(u64::MAX)), ("1.5 KiB".into(), "16 EiB".into()));
    }
}
