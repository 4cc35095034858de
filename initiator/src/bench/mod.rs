//! The load generator: drives one logical unit of any iSCSI target from one thread, over as many sessions as wanted.
//!
//! [`run`] carries a load out and gives a [`Report`]; [`command`] is all of `lunar bench`.

pub mod ack_log;
pub mod cost;
mod engine;
mod lane;
mod link;
mod load;
pub mod options;
pub mod report;
pub mod verify;

pub use link::{Found, discover};
pub use options::Options;
pub use report::Report;

use crate::cdb::{self, CAPACITY_LEN, Capacity, Key, Sense, Status};
use crate::histogram::Histogram;
use crate::url::Url;
use ack_log::{AckLog, Header, Promises};
use anyhow::{Context, Result, bail, ensure};
use cost::{Cost, Snapshot};
use engine::{End, Engine};
use link::Link;
use load::{Latencies, Load, Plan};
use report::{Logins, Negotiated, Side, human};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::time::{Duration, Instant};
use verify::{Expect, PLACES_MAX, Verifier};

/// Tries of a command of the set-up: a new session may be told several unit attentions.
const SET_UP_TRIES: u32 = 16;
/// How long a busy target is left alone.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
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
        for target in discover(&options.url, options.offer(None, 0), options.timeout)? {
            writeln!(out, "{} {}", target.name, target.addresses.join(" "))?;
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

/// Carries a load out.
///
/// # Errors
/// When it cannot be: the target is not there, refuses, breaks the protocol, or stops answering.
pub fn run(options: &Options) -> Result<Report> {
    if let Some(cpu) = options.cpu {
        cost::pin(cpu)?;
    }
    raise_file_limit(u64::from(options.sessions) + u64::from(options.idle_sessions))?;
    let promises = options.check_ack_log.as_deref().map(ack_log::read).transpose()?;
    let mut url = options.url.clone();
    let mut links = vec![first(&mut url, options)?];
    let more = (1..options.sessions).map(|session| options.offer(url.target.clone(), session));
    links.extend(link::open_many(&url, more, options.timeout)?);
    let lun = cdb::lun(url.lun);
    for link in &mut links {
        set_up(link, lun, &cdb::TEST_UNIT_READY[..6], 0, options.timeout).context("the unit is not ready")?;
    }
    let capacity = capacity(&mut links[0], lun, options.timeout)?;
    let negotiated = Negotiated::new(links[0].session.agreed(), links[0].session.room());
    let started = Instant::now();
    let first_idle = options.sessions;
    let stay = (0..options.idle_sessions).map(|session| options.offer(url.target.clone(), first_idle + session));
    let idle = link::open_many(&url, stay, options.timeout)?;
    let seconds = started.elapsed().as_secs_f64();
    let logins = (!idle.is_empty()).then(|| {
        let per_second = f64::from(options.idle_sessions) / seconds;
        Logins { sessions: options.idle_sessions, seconds, per_second }
    });

    let plan = plan(options, lun, capacity, promises.as_ref())?;
    let load = load(options, &plan, promises.as_ref())?;
    let mut engine = Engine::new(links, idle, options.depth, load, options.spin, options.timeout)?;
    let measured = match &promises {
        Some(promises) => check(&mut engine, promises, options.all)?,
        None => measure(&mut engine, options)?,
    };
    let load = engine.close(options.timeout);
    let words = format!(
        "{} {}, depth {} on {} session{}",
        clap::ValueEnum::to_possible_value(&options.rw).map(|value| value.get_name().to_owned()).unwrap_or_default(),
        human(plan.bytes.into()),
        options.depth,
        options.sessions,
        if options.sessions == 1 { "" } else { "s" }
    );
    Ok(assemble(Outline { url, capacity, words, negotiated, logins }, load, measured))
}

/// The first session; it also finds the target if the URL names none.
fn first(url: &mut Url, options: &Options) -> Result<Link> {
    if url.target.is_none() {
        let found = discover(url, options.offer(None, 0), options.timeout)?;
        let target = found.into_iter().next().with_context(|| format!("{url} shows no target"))?;
        url.target = Some(target.name);
    }
    let offer = options.offer(url.target.clone(), 0);
    link::open(url, &offer, options.timeout)
}

/// Carries out a command of the set-up: again while the target is busy or has unit attentions to tell.
fn set_up(link: &mut Link, lun: [u8; 8], cdb: &[u8], data_in: u32, patience: Duration) -> Result<Vec<u8>> {
    let mut trouble = String::new();
    for _ in 0..SET_UP_TRIES {
        let answer = link.call(lun, cdb, data_in, patience)?;
        let (status, sense) = (Status(answer.status), Sense::parse(&answer.sense));
        let attention = sense.is_some_and(|sense| sense.key == Key::UNIT_ATTENTION);
        trouble = sense.map_or_else(|| format!("{status:?}"), |sense| sense.to_string());
        match status {
            Status::GOOD => return Ok(answer.data),
            Status::BUSY | Status::TASK_SET_FULL => std::thread::sleep(BUSY_PAUSE),
            Status::CHECK_CONDITION if attention => {}
            _ => break,
        }
    }
    bail!(trouble)
}

fn capacity(link: &mut Link, lun: [u8; 8], patience: Duration) -> Result<Capacity> {
    let data = set_up(link, lun, &cdb::read_capacity(), CAPACITY_LEN, patience).context("READ CAPACITY (16) failed")?;
    Capacity::parse(&data).context("READ CAPACITY (16) answered nonsense")
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

fn plan(options: &Options, lun: [u8; 8], capacity: Capacity, promises: Option<&Promises>) -> Result<Plan> {
    let block_size = u64::from(capacity.block_size);
    let bytes = match promises {
        Some(Promises { header, .. }) => {
            ensure!(header.block_size == capacity.block_size, "the log is of blocks of {} bytes", header.block_size);
            header.blocks.checked_mul(header.block_size).context("the log is of impossible writes")?
        }
        None => options.bs,
    };
    ensure!(bytes > 0 && u64::from(bytes).is_multiple_of(block_size), "--bs is not a multiple of {block_size}");
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
        lun,
        block_size: capacity.block_size,
        blocks: bytes / capacity.block_size,
        bytes,
        base: options.offset / block_size,
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
    latencies: Latencies,
    seconds: f64,
    receives: u64,
    cost: Cost,
    lost: Option<String>,
}

fn measure(engine: &mut Engine, options: &Options) -> Result<Measured> {
    let snapshot = || Snapshot::take(options.pid, options.stats.as_deref());
    let lost_is_well = options.ack_log.is_some();
    let lost = |why: String| if lost_is_well { Ok(Some(why)) } else { bail!(why) };
    if let End::Lost(why) = engine.drive(Some(Instant::now() + options.warmup))? {
        return Ok(Measured { lost: lost(why)?, ..Measured::default() });
    }
    let (before, started) = (snapshot()?, Instant::now());
    engine.load.latencies = Latencies::default();
    let receives = engine.receives;
    let end = engine.drive(Some(started + options.time))?;
    let seconds = started.elapsed().as_secs_f64();
    let latencies = std::mem::take(&mut engine.load.latencies);
    let receives = engine.receives - receives;
    if let End::Lost(why) = end {
        // With its connection the target may be gone: nothing to account for.
        return Ok(Measured { latencies, seconds, receives, lost: lost(why)?, ..Measured::default() });
    }
    let cost = snapshot()?.since(&before);
    engine.load.stop();
    let mut end = engine.drive(None)?;
    if let (End::Reached, Some(verifier)) = (&end, &engine.load.verifier) {
        let written = verifier.written();
        engine.load.read_back(written);
        end = engine.drive(None)?;
    }
    let lost = match end {
        End::Reached => None,
        End::Lost(why) => lost(why)?,
    };
    Ok(Measured { latencies, seconds, receives, cost, lost })
}

/// Reads back what a log says was acknowledged.
fn check(engine: &mut Engine, promises: &Promises, all: bool) -> Result<Measured> {
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
    let Measured { latencies, seconds, receives, cost, lost } = measured;
    let mut all = Histogram::new();
    all.merge(&latencies.reads);
    all.merge(&latencies.writes);
    let both = Side::new(&all, seconds);
    let per_io = |seconds: f64| if all.count() == 0 { 0.0 } else { seconds * 1e6 / all.count() as f64 };
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
        reads: Side::new(&latencies.reads, seconds),
        writes: Side::new(&latencies.writes, seconds),
        flushes: Side::new(&latencies.flushes, seconds),
        initiator_cpu_us_per_io: per_io(cost.initiator_cpu_seconds),
        target_cpu_us_per_io: cost.target_cpu_seconds.map(per_io),
        target_busy_us_per_io: cost.target_busy_seconds.map(per_io),
        cost,
        commands_per_receive: if receives == 0 { 0.0 } else { all.count() as f64 / receives as f64 },
        total_commands: load.total,
        retries: load.retries,
        errors: load.errors,
        first_errors: load.told,
        verified: load.verifier.map(|verifier| verifier.found),
        logins: outline.logins,
        lost,
    }
}
