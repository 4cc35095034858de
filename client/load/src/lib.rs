//! The load generator: loads one unit of a target from one thread, over one or many sessions or queues.
//!
//! [`run`] runs a load and returns a [`Report`]; [`command`] is `lunar bench`.
//!
//! * [`url`]: addresses of units; [`options`]: the command-line options
//! * `iscsi`, `nvme`, `nvme_rdma`, `vfio`, `vhost_blk`, `vhost_scsi`, `aoe`, `fcoe`, `st`: sessions of each protocol;
//!   `session`: their common interface; `vhost`: the queues of vhost-user devices; `scsi`: the commands of SCSI; `lan`:
//!   those on Ethernet frames; `rdma`: the socket of RDMA connections
//! * `engine`, `lane`, `load`: all sessions of a run, the commands of one session, the choice of the next command
//! * [`verify`], [`pattern`], [`ack_log`]: the expected contents of blocks
//! * [`histogram`], [`cost`], [`report`]: the results; [`predict`]: those that the performance model ([`model`])
//!   expects

pub mod ack_log;
mod aoe;
mod connection;
pub mod cost;
mod engine;
mod fcoe;
pub mod histogram;
mod iscsi;
mod lan;
mod lane;
mod load;
pub mod model;
mod nvme;
mod nvme_rdma;
pub mod options;
pub mod pattern;
pub mod predict;
mod rdma;
pub mod report;
mod scsi;
mod session;
mod st;
mod target;
pub mod url;
pub mod verify;
mod vfio;
mod vhost;
mod vhost_blk;
mod vhost_scsi;

pub use options::Options;
pub use report::Report;
pub use target::DiscoveredTarget;

use crate::histogram::Histogram;
use crate::target::{Capacity, OpenSessions};
use crate::url::{Protocol, Url};
use ack_log::{AckLog, AckedLog, Header};
use anyhow::{Context, Result, bail, ensure};
use cost::{Cost, Snapshot};
use engine::{End, Engine};
use load::{Counts, Latencies, Load, Plan};
use report::{CommandStats, Logins, Negotiated, with_unit};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use session::Session;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime};
use verify::{CHUNKS_MAX, Expect, Verifier};

/// The default region of a run that verifies, in bytes: the run also reads back all that it wrote.
const VERIFIED_DEFAULT: u64 = 1 << 30;
/// Files that the process has open besides its sessions.
const OTHER_FILES: u64 = 64;

/// Runs `lunar bench`: prints the report to standard output. Returns whether no command failed and all verified blocks
/// were right.
///
/// # Errors
/// If the run could not be carried out.
pub fn command(options: &Options) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    if options.list {
        let found = discover(options)?;
        match options.json {
            true => writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?,
            false => found.iter().try_for_each(|at| writeln!(out, "{} {}", at.name, at.addresses.join(" ")))?,
        }
        return Ok(true);
    }
    if let Some(store) = options.prediction.predict {
        let predicted = predict::predict(options, store)?;
        match options.json {
            true => writeln!(out, "{}", serde_json::to_string_pretty(&predicted)?)?,
            false => write!(out, "{predicted}")?,
        }
        return Ok(true);
    }
    let report = run(options)?;
    match options.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => write!(out, "{report}")?,
    }
    Ok(report.is_good())
}

/// The targets or subsystems at the URL's portal.
///
/// # Errors
/// If the portal cannot be reached or refuses discovery.
pub fn discover(options: &Options) -> Result<Vec<DiscoveredTarget>> {
    match options.url.protocol {
        Protocol::Iscsi => iscsi::discover(&options.url, options.offer(None, 0), options.timeout),
        Protocol::NvmeTcp => nvme::discover(options),
        Protocol::NvmeRdma => nvme_rdma::discover(options),
        Protocol::VfioUser => bail!("--list needs a network protocol: a vfio-user socket has one controller"),
        Protocol::VhostUser => bail!("--list needs a network protocol: a vhost-user socket has one disk"),
        Protocol::VhostScsi => bail!("--list needs a network protocol: a vhost-user socket has one host adapter"),
        Protocol::Aoe => bail!("--list needs a network protocol with discovery: aoe-discover lists AoE targets"),
        Protocol::Fcoe => bail!("--list needs a network protocol with discovery: ports on an Ethernet find each other"),
        Protocol::St => bail!("--list needs a network protocol with discovery: Scheduled Transfer has none"),
    }
}

/// Runs a load.
///
/// # Errors
/// If the target cannot be reached, refuses a session, violates the protocol or stops answering.
pub fn run(options: &Options) -> Result<Report> {
    if let Some(cpu) = options.cpu {
        cost::pin(cpu)?;
    }
    let idle = u64::from(options.idle_sessions);
    // Of NVMe: those of all controllers, each with an admin queue.
    let queues = u64::from(options.sessions) + 1 + idle * (u64::from(options.idle_queues) + 1);
    match options.url.protocol {
        Protocol::Iscsi => {
            raise_file_limit(u64::from(options.sessions) + idle)?;
            run_sessions(options, iscsi::open, iscsi::close)
        }
        Protocol::NvmeTcp => {
            raise_file_limit(queues)?;
            run_sessions(options, nvme::open, nvme::close)
        }
        Protocol::NvmeRdma => {
            // Each queue is told by a descriptor of its own.
            raise_file_limit(queues)?;
            run_sessions(options, nvme_rdma::open, nvme_rdma::close)
        }
        Protocol::VfioUser => run_sessions(options, vfio::open, vfio::close),
        Protocol::VhostUser => run_sessions(options, vhost_blk::open, vhost::close),
        Protocol::VhostScsi => run_sessions(options, vhost_scsi::open, vhost::close),
        Protocol::Aoe => run_sessions(options, aoe::open, lan::close),
        Protocol::Fcoe => run_sessions(options, fcoe::open, lan::close),
        Protocol::St => run_sessions(options, st::open, lan::close),
    }
}

fn run_sessions<S: Session>(
    options: &Options,
    open: impl FnOnce(&Options) -> Result<OpenSessions<S>>,
    close: impl Fn(S, Duration),
) -> Result<Report> {
    let acked = options.check_ack_log.as_deref().map(ack_log::read).transpose()?;
    // Commands that check a log have the length of the logged writes.
    let of_log = acked.as_ref().and_then(|acked| acked.header.blocks.checked_mul(acked.header.block_size));
    let options = &Options { bs: of_log.unwrap_or(options.bs), ..options.clone() };
    let OpenSessions { url, active, idle, capacity, transfer_max, negotiated, logins } = open(options)?;
    let plan = plan(options, capacity, transfer_max, acked.as_ref())?;
    let load = load(options, &plan, acked.as_ref())?;
    let mut engine = Engine::new(active, idle, options.depth, load, options.spin, options.timeout)?;
    if let (Some(burst), Some(rest)) = (options.burst, options.rest) {
        engine.load.pause_after(burst);
        engine.rest = rest;
    }
    let measured = match &acked {
        Some(acked) => check(&mut engine, acked, options.all)?,
        None => measure(&mut engine, options)?,
    };
    // One timeout for all sessions: a target that does not answer the first logout will not answer the others.
    let end = Instant::now() + options.timeout;
    let load = engine.close(|connection| close(connection, end.saturating_duration_since(Instant::now())));
    let words = format!(
        "{} {}, depth {} on {} {}{}",
        clap::ValueEnum::to_possible_value(&options.rw).map(|value| value.get_name().to_owned()).unwrap_or_default(),
        with_unit(plan.bytes.into()),
        options.depth,
        options.sessions,
        if url.protocol == Protocol::Iscsi { "session" } else { "queue" },
        if options.sessions == 1 { "" } else { "s" }
    );
    Ok(assemble(RunInfo { url, capacity, words, negotiated, logins }, load, measured))
}

fn raise_file_limit(sessions: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = sessions + OTHER_FILES;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
        .with_context(|| format!("cannot raise the limit of open files to {wanted}: raise the hard limit (ulimit -Hn)"))
}

fn plan(options: &Options, capacity: Capacity, transfer_max: u32, acked: Option<&AckedLog>) -> Result<Plan> {
    let block_size = u64::from(capacity.block_size);
    let bytes = match acked {
        Some(AckedLog { header, .. }) => {
            ensure!(
                header.block_size == capacity.block_size,
                "the log was written with blocks of {} bytes",
                header.block_size
            );
            header.blocks.checked_mul(header.block_size).context("the log has an invalid write length")?
        }
        None => options.bs,
    };
    ensure!(bytes > 0 && u64::from(bytes).is_multiple_of(block_size), "--bs is not a multiple of {block_size}");
    ensure!(
        bytes <= transfer_max,
        "--bs exceeds the longest transfer of the target ({})",
        with_unit(transfer_max.into())
    );
    ensure!(options.offset.is_multiple_of(block_size), "--offset is not a multiple of {block_size}");
    let rest = capacity.bytes().checked_sub(options.offset).context("--offset is beyond the end of the unit")?;
    let checks = options.verify || options.ack_log.is_some();
    let default = if checks { rest.min(VERIFIED_DEFAULT) } else { rest };
    let size = options.size.unwrap_or(default);
    ensure!(size <= rest, "--offset and --size go beyond the end of the unit ({})", with_unit(capacity.bytes()));
    let chunks = size / u64::from(bytes);
    ensure!(chunks > 0, "the region is smaller than --bs");
    ensure!(
        !checks || chunks <= CHUNKS_MAX,
        "verifying {chunks} chunks takes too much memory: choose a smaller --size"
    );
    Ok(Plan {
        block_size: capacity.block_size,
        blocks: bytes / capacity.block_size,
        bytes,
        base: options.offset / block_size,
        number_base: number_base(),
        chunks,
        shape: options.rw,
        reads: match options.rw {
            shape if shape.is_read_only() => 100,
            shape if shape.is_write_only() => 0,
            _ => options.mix.into(),
        },
        fua: options.fua,
        flush_every: options.flush_every,
    })
}

/// The number before the first write of this run. It is derived from the clock, so that it exceeds the numbers of all
/// earlier runs. A run may write four million times per millisecond.
fn number_base() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(0) << 22 & (u64::MAX >> 1)
}

fn load(options: &Options, plan: &Plan, acked: Option<&AckedLog>) -> Result<Load> {
    let seed = acked.map_or(options.seed, |acked| acked.header.seed);
    let checks = options.verify || options.ack_log.is_some();
    let chunks = match acked {
        Some(_) => Some(0),
        None if checks => Some(usize::try_from(plan.chunks)?),
        None => None,
    };
    let verifier = chunks.map(|chunks| Verifier::new(seed, plan.block_size, chunks, options.rw.is_read_only()));
    let header = Header { seed, block_size: plan.block_size, blocks: plan.blocks };
    let log = options.ack_log.as_deref().map(|path| AckLog::create(path, header)).transpose()?;
    Ok(Load::new(plan.clone(), options.sessions, options.seed, verifier, log))
}

/// The measurements of a run.
#[derive(Default)]
struct Measured {
    /// Latencies of the commands that started in the measured time, whenever they completed.
    latencies: Latencies,
    /// Commands that completed in the measured time.
    counts: Counts,
    answered: u64,
    seconds: f64,
    receives: u64,
    rings: u64,
    cost: Cost,
    lost: Option<String>,
}

fn measure<S: Session>(engine: &mut Engine<S>, options: &Options) -> Result<Measured> {
    let snapshot = || Snapshot::take(options.pid, options.stats.as_deref());
    let lost_is_well = options.ack_log.is_some();
    let lost = |why: String| if lost_is_well { Ok(Some(why)) } else { bail!(why) };
    if let End::ConnectionLost(why) = engine.drive(Some(Instant::now() + options.warmup))? {
        return Ok(Measured { lost: lost(why)?, ..Measured::default() });
    }
    let (earlier, started) = (snapshot()?, Instant::now());
    engine.load.latencies = Latencies::default();
    let (receives, rings, answered) = (engine.receives, engine.rings(), engine.load.answered);
    let end = engine.drive(Some(started + options.time))?;
    let seconds = started.elapsed().as_secs_f64();
    let counts = engine.load.latencies.counts();
    let (receives, rings) = (engine.receives - receives, engine.rings() - rings);
    let answered = engine.load.answered - answered;
    let mut measured = Measured { counts, answered, seconds, receives, rings, ..Measured::default() };
    if let End::ConnectionLost(why) = end {
        // The target's process may be gone with the connection: only the CPU time of this process is known.
        let cost = Snapshot::take(None, None)?.since(&earlier);
        let latencies = std::mem::take(&mut engine.load.latencies);
        return Ok(Measured { latencies, cost, lost: lost(why)?, ..measured });
    }
    measured.cost = snapshot()?.since(&earlier);
    engine.load.stop();
    let mut end = engine.drive(None)?;
    // A command that was stalled at the end of the measured time counts with its full latency.
    measured.latencies = std::mem::take(&mut engine.load.latencies);
    if let (End::Reached, Some(verifier)) = (&end, &engine.load.verifier) {
        let written = verifier.written();
        engine.load.read_back(written);
        end = engine.drive(None)?;
    }
    measured.lost = match end {
        End::Reached => None,
        End::ConnectionLost(why) => lost(why)?,
    };
    Ok(measured)
}

/// Reads back the writes of a log and checks them.
fn check<S: Session>(engine: &mut Engine<S>, acked: &AckedLog, all: bool) -> Result<Measured> {
    let blocks = u64::from(engine.load.plan.blocks);
    let base = engine.load.plan.base;
    let chunk = |lba: u64| {
        let steps = lba.checked_sub(base).filter(|steps| steps.is_multiple_of(blocks)).map(|steps| steps / blocks);
        steps.filter(|chunk| *chunk < engine.load.plan.chunks).with_context(|| {
            format!("the log has a write at LBA {lba}, outside the region: give --offset and --size of that run")
        })
    };
    let chunks = (acked.chunks.iter())
        .map(|(lba, writes)| {
            let durable = if all { writes.acknowledged } else { writes.durable };
            Ok((chunk(*lba)?, Expect::Kept(ack_log::AckedWrites { durable, ..*writes })))
        })
        .collect::<Result<Vec<_>>>()?;
    engine.load.read_back(chunks);
    match engine.drive(None)? {
        End::Reached => Ok(Measured::default()),
        End::ConnectionLost(why) => bail!(why),
    }
}

/// The properties of a run that are known before its load starts.
struct RunInfo {
    url: Url,
    capacity: Capacity,
    words: String,
    negotiated: Negotiated,
    logins: Option<Logins>,
}

fn assemble(info: RunInfo, load: Load, measured: Measured) -> Report {
    let Measured { latencies, counts, answered, seconds, receives, rings, cost, lost } = measured;
    let mut all = Histogram::new();
    all.merge(&latencies.reads);
    all.merge(&latencies.writes);
    let both = CommandStats::new(&all, counts.reads + counts.writes, seconds);
    let per_io = |seconds: f64| if answered == 0 { 0.0 } else { seconds * 1e6 / answered as f64 };
    Report {
        url: info.url.to_string(),
        blocks: info.capacity.blocks,
        block_size: info.capacity.block_size,
        load: info.words,
        seconds,
        negotiated: info.negotiated,
        iops: both.per_second,
        bytes_per_second: both.per_second * f64::from(load.plan.bytes),
        latency_us: both.latency_us,
        reads: CommandStats::new(&latencies.reads, counts.reads, seconds),
        writes: CommandStats::new(&latencies.writes, counts.writes, seconds),
        flushes: CommandStats::new(&latencies.flushes, counts.flushes, seconds),
        after_rest: CommandStats::new(&latencies.first, counts.first, seconds),
        rings,
        initiator_cpu_us_per_io: per_io(cost.initiator_cpu_seconds),
        target_cpu_us_per_io: cost.target_cpu_seconds.map(per_io),
        target_busy_us_per_io: cost.target_busy_seconds.map(per_io),
        cost,
        commands_per_receive: if receives == 0 { 0.0 } else { answered as f64 / receives as f64 },
        answered,
        total_commands: load.total,
        retries: load.retries,
        errors: load.errors,
        first_errors: load.reported,
        verified: load.verifier.map(|verifier| verifier.found),
        logins: info.logins,
        lost,
    }
}
