//! The load generator: drives one unit of any iSCSI, NVMe/TCP or vfio-user target from one thread, over as many
//! sessions or queues as wanted.
//!
//! [`run`] carries a load out and gives a [`Report`]; [`command`] is all of `lunar bench`.
//!
//! * [`url`]: where a unit is; [`options`]: what a load can be told
//! * `iscsi`, `nvme`, `vfio`: how sessions are opened and spoken to; `driven`: what they have in common
//! * `engine`, `lane`, `load`: the sessions of a run, the commands of one session, what comes next
//! * [`verify`], [`pattern`], [`ack_log`]: what must be where
//! * [`histogram`], [`cost`], [`report`]: what came of it

pub mod ack_log;
pub mod cost;
mod driven;
mod engine;
pub mod histogram;
mod iscsi;
mod lane;
mod link;
mod load;
mod nvme;
pub mod options;
pub mod pattern;
pub mod report;
pub mod url;
pub mod verify;
mod vfio;

pub use options::Options;
pub use report::Report;

use crate::histogram::Histogram;
use crate::url::{Protocol, Url};
use ack_log::{AckLog, Header, Promises};
use anyhow::{Context, Result, bail, ensure};
use cost::{Cost, Snapshot};
use driven::Session;
use engine::{End, Engine};
use load::{Counts, Latencies, Load, Plan};
use report::{Logins, Negotiated, Side, human};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime};
use verify::{Expect, PLACES_MAX, Verifier};

/// Where a run that checks stays by default: what it wrote it also reads back.
const VERIFIED_DEFAULT: u64 = 1 << 30;
/// Files that a process has open beside its sessions.
const OTHER_FILES: u64 = 64;

/// All of `lunar bench`: runs, prints the report to standard output, and says whether all was well.
///
/// # Errors
/// When the run could not be carried out.
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
    let report = run(options)?;
    match options.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => write!(out, "{report}")?,
    }
    Ok(report.is_good())
}

/// A target, as discovery shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Where it is: `host:port`, for iSCSI with `,group`.
    pub addresses: Vec<String>,
}

/// The targets at the URL's portal.
///
/// # Errors
/// When the portal is not there, or refuses discovery.
pub fn discover(options: &Options) -> Result<Vec<Found>> {
    match options.url.protocol {
        Protocol::Iscsi => iscsi::discover(&options.url, options.offer(None, 0), options.timeout),
        Protocol::NvmeTcp => nvme::discover(options),
        Protocol::VfioUser => bail!("a socket of vfio-user has one controller: there is nothing to list"),
    }
}

/// How large a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capacity {
    /// Logical blocks.
    pub(crate) blocks: u64,
    /// Bytes of one.
    pub(crate) block_size: u32,
}

impl Capacity {
    fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size.into())
    }
}

/// The sessions of a run, and the unit they are for.
pub(crate) struct Opened<S> {
    pub(crate) url: Url,
    /// Those under load.
    pub(crate) active: Vec<S>,
    /// Those that only stay.
    pub(crate) idle: Vec<S>,
    pub(crate) capacity: Capacity,
    /// Bytes of one command at most.
    pub(crate) transfer_max: u32,
    pub(crate) negotiated: Negotiated,
    pub(crate) logins: Option<Logins>,
}

/// Opens sessions that only stay, and tells how fast that went.
pub(crate) fn timed<T>(sessions: u32, open: impl FnOnce() -> Result<T>) -> Result<(T, Option<Logins>)> {
    let started = Instant::now();
    let opened = open()?;
    let seconds = started.elapsed().as_secs_f64();
    let logins = Logins { sessions, seconds, per_second: f64::from(sessions) / seconds };
    Ok((opened, (sessions > 0).then_some(logins)))
}

/// Carries a load out.
///
/// # Errors
/// When it cannot be: the target is not there, refuses, breaks the protocol, or stops answering.
pub fn run(options: &Options) -> Result<Report> {
    if let Some(cpu) = options.cpu {
        cost::pin(cpu)?;
    }
    let idle = u64::from(options.idle_sessions);
    match options.url.protocol {
        Protocol::Iscsi => {
            raise_file_limit(u64::from(options.sessions) + idle)?;
            carry_out(options, iscsi::open, iscsi::close)
        }
        Protocol::NvmeTcp => {
            raise_file_limit(u64::from(options.sessions) + 1 + idle * (u64::from(options.idle_queues) + 1))?;
            carry_out(options, nvme::open, nvme::close)
        }
        Protocol::VfioUser => carry_out(options, vfio::open, vfio::close),
    }
}

fn carry_out<S: Session>(
    options: &Options,
    open: impl FnOnce(&Options) -> Result<Opened<S>>,
    close: impl Fn(S, Duration),
) -> Result<Report> {
    let promises = options.check_ack_log.as_deref().map(ack_log::read).transpose()?;
    // What a log has is read as it was written.
    let of_log = promises.as_ref().and_then(|promises| promises.header.blocks.checked_mul(promises.header.block_size));
    let options = &Options { bs: of_log.unwrap_or(options.bs), ..options.clone() };
    let Opened { url, active, idle, capacity, transfer_max, negotiated, logins } = open(options)?;
    let plan = plan(options, capacity, transfer_max, promises.as_ref())?;
    let load = load(options, &plan, promises.as_ref())?;
    let mut engine = Engine::new(active, idle, options.depth, load, options.spin, options.timeout)?;
    if let (Some(burst), Some(rest)) = (options.burst, options.rest) {
        engine.load.in_bursts(burst);
        engine.rest = rest;
    }
    let measured = match &promises {
        Some(promises) => check(&mut engine, promises, options.all)?,
        None => measure(&mut engine, options)?,
    };
    // One patience for all: who does not answer the first does not answer the others either.
    let end = Instant::now() + options.timeout;
    let load = engine.close(|link| close(link, end.saturating_duration_since(Instant::now())));
    let words = format!(
        "{} {}, depth {} on {} {}{}",
        clap::ValueEnum::to_possible_value(&options.rw).map(|value| value.get_name().to_owned()).unwrap_or_default(),
        human(plan.bytes.into()),
        options.depth,
        options.sessions,
        if url.protocol == Protocol::Iscsi { "session" } else { "queue" },
        if options.sessions == 1 { "" } else { "s" }
    );
    Ok(assemble(Outline { url, capacity, words, negotiated, logins }, load, measured))
}

fn raise_file_limit(sessions: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = sessions + OTHER_FILES;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
        .with_context(|| format!("raising the limit of open files to {wanted}"))
}

fn plan(options: &Options, capacity: Capacity, transfer_max: u32, promises: Option<&Promises>) -> Result<Plan> {
    let block_size = u64::from(capacity.block_size);
    let bytes = match promises {
        Some(Promises { header, .. }) => {
            ensure!(header.block_size == capacity.block_size, "the log is of blocks of {} bytes", header.block_size);
            header.blocks.checked_mul(header.block_size).context("the log is of impossible writes")?
        }
        None => options.bs,
    };
    ensure!(bytes > 0 && u64::from(bytes).is_multiple_of(block_size), "--bs is not a multiple of {block_size}");
    ensure!(bytes <= transfer_max, "--bs is more than the target moves at once ({})", human(transfer_max.into()));
    ensure!(options.offset.is_multiple_of(block_size), "--offset is not a multiple of {block_size}");
    let rest = capacity.bytes().checked_sub(options.offset).context("--offset lies beyond the end of the unit")?;
    let checks = options.verify || options.ack_log.is_some();
    let default = if checks { rest.min(VERIFIED_DEFAULT) } else { rest };
    let size = options.size.unwrap_or(default);
    ensure!(size <= rest, "the region ends beyond the end of the unit ({})", human(capacity.bytes()));
    let places = size / u64::from(bytes);
    ensure!(places > 0, "the region is smaller than --bs");
    ensure!(!checks || places <= PLACES_MAX, "checking {places} places takes too much memory: choose a smaller --size");
    Ok(Plan {
        block_size: capacity.block_size,
        blocks: bytes / capacity.block_size,
        bytes,
        base: options.offset / block_size,
        before: before(),
        places,
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

/// What the numbers of this run's writes are above: by the clock, so above those of all that ran before. There is room
/// for four million writes in a millisecond.
fn before() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(0) << 22 & (u64::MAX >> 1)
}

fn load(options: &Options, plan: &Plan, promises: Option<&Promises>) -> Result<Load> {
    let seed = promises.map_or(options.seed, |promises| promises.header.seed);
    let checks = options.verify || options.ack_log.is_some();
    let places = match promises {
        Some(_) => Some(0),
        None if checks => Some(usize::try_from(plan.places)?),
        None => None,
    };
    let verifier = places.map(|places| Verifier::new(seed, plan.block_size, places, options.rw.is_read_only()));
    let header = Header { seed, block_size: plan.block_size, blocks: plan.blocks };
    let log = options.ack_log.as_deref().map(|path| AckLog::create(path, header)).transpose()?;
    Ok(Load::new(plan.clone(), options.sessions, options.seed, verifier, log))
}

/// What the measured time brought.
#[derive(Default)]
struct Measured {
    /// Of commands that began in the measured time, though they ended after it.
    latencies: Latencies,
    /// Commands that ended in it.
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
    if let End::Lost(why) = engine.drive(Some(Instant::now() + options.warmup))? {
        return Ok(Measured { lost: lost(why)?, ..Measured::default() });
    }
    let (before, started) = (snapshot()?, Instant::now());
    engine.load.latencies = Latencies::default();
    let (receives, rings, answered) = (engine.receives, engine.rings(), engine.load.answered);
    let end = engine.drive(Some(started + options.time))?;
    let seconds = started.elapsed().as_secs_f64();
    let counts = engine.load.latencies.counts();
    let (receives, rings) = (engine.receives - receives, engine.rings() - rings);
    let answered = engine.load.answered - answered;
    let mut measured = Measured { counts, answered, seconds, receives, rings, ..Measured::default() };
    if let End::Lost(why) = end {
        // With its connection the target may be gone: there is only ours to account for.
        let cost = Snapshot::take(None, None)?.since(&before);
        let latencies = std::mem::take(&mut engine.load.latencies);
        return Ok(Measured { latencies, cost, lost: lost(why)?, ..measured });
    }
    measured.cost = snapshot()?.since(&before);
    engine.load.stop();
    let mut end = engine.drive(None)?;
    // A command that hung when the time was over did so in it.
    measured.latencies = std::mem::take(&mut engine.load.latencies);
    if let (End::Reached, Some(verifier)) = (&end, &engine.load.verifier) {
        let written = verifier.written();
        engine.load.read_back(written);
        end = engine.drive(None)?;
    }
    measured.lost = match end {
        End::Reached => None,
        End::Lost(why) => lost(why)?,
    };
    Ok(measured)
}

/// Reads back what a log says was acknowledged.
fn check<S: Session>(engine: &mut Engine<S>, promises: &Promises, all: bool) -> Result<Measured> {
    let blocks = u64::from(engine.load.plan.blocks);
    let base = engine.load.plan.base;
    let place = |lba: u64| {
        let steps = lba.checked_sub(base).filter(|steps| steps.is_multiple_of(blocks)).map(|steps| steps / blocks);
        steps.filter(|place| *place < engine.load.plan.places).with_context(|| {
            format!("the log has a write at LBA {lba}, not of this region: give the --offset and --size of that run")
        })
    };
    let places = (promises.places.iter())
        .map(|(lba, promise)| {
            let durable = if all { promise.acknowledged } else { promise.durable };
            Ok((place(*lba)?, Expect::Kept(ack_log::Promise { durable, ..*promise })))
        })
        .collect::<Result<Vec<_>>>()?;
    engine.load.read_back(places);
    match engine.drive(None)? {
        End::Reached => Ok(Measured::default()),
        End::Lost(why) => bail!(why),
    }
}

/// What is known of a run before its load begins.
struct Outline {
    url: Url,
    capacity: Capacity,
    words: String,
    negotiated: Negotiated,
    logins: Option<Logins>,
}

fn assemble(outline: Outline, load: Load, measured: Measured) -> Report {
    let Measured { latencies, counts, answered, seconds, receives, rings, cost, lost } = measured;
    let mut all = Histogram::new();
    all.merge(&latencies.reads);
    all.merge(&latencies.writes);
    let both = Side::new(&all, counts.reads + counts.writes, seconds);
    let per_io = |seconds: f64| if answered == 0 { 0.0 } else { seconds * 1e6 / answered as f64 };
    Report {
        url: outline.url.to_string(),
        blocks: outline.capacity.blocks,
        block_size: outline.capacity.block_size,
        load: outline.words,
        seconds,
        negotiated: outline.negotiated,
        iops: both.per_second,
        bytes_per_second: both.per_second * f64::from(load.plan.bytes),
        latency_us: both.latency_us,
        reads: Side::new(&latencies.reads, counts.reads, seconds),
        writes: Side::new(&latencies.writes, counts.writes, seconds),
        flushes: Side::new(&latencies.flushes, counts.flushes, seconds),
        after_rest: Side::new(&latencies.first, counts.first, seconds),
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
        first_errors: load.told,
        verified: load.verifier.map(|verifier| verifier.found),
        logins: outline.logins,
        lost,
    }
}
