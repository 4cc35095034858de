//! `kill -9` during writes: acknowledged data is present after the restart.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::medium_rewrite;
use crate::process;
use crate::reservations;
use crate::session::{Data, GOOD, Login, Session, cdb};
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::{Random, pattern};

const MIB: u64 = 64;
/// Writes in progress at the time of the kill.
const DEPTH: usize = 16;
const PIECE: usize = 24 << 10;
const PIECES: u64 = (MIB << 20) / PIECE as u64;
/// How long the load generator may take to end after its target.
const LOAD_LIMIT: Duration = Duration::from_secs(30);
/// Cache modes, which differ in what is between an acknowledgement and the medium.
const MODES: [&[&str]; 3] = [&[], &["--direct"], &["--write-through"]];

/// How the load generator writes.
struct Load {
    name: &'static str,
    flags: &'static [&'static str],
    /// The lines of its log that are acknowledgements; a round has some before the kill.
    is_acknowledgement: fn(&str) -> bool,
}

const LOADS: [Load; 3] = [
    Load { name: "load generator", flags: &[], is_acknowledgement: |line| line.starts_with("w ") },
    Load { name: "load generator, FUA", flags: &["--fua"], is_acknowledgement: |line| line.ends_with(" d") },
    Load {
        name: "load generator, SYNCHRONIZE CACHE",
        flags: &["--flush-every", "16"],
        is_acknowledgement: |line| line.starts_with("s ") && line != "s 0",
    },
];

/// Crashes during registrations: each kills twice, and takes longer.
const RESERVATION_CRASHES: u32 = 5;

/// Runs this many crashes, in turn with a session of the harness and with the load generator, which logs
/// acknowledgements.
pub(crate) fn part(lab: &Lab, driver: Driver, rounds: u32) -> Result<()> {
    lab.built()?;
    let part = format!("crash/{}", driver.name());
    let image = lab.image("crash.img", MIB)?;
    let mut random = Random::new(lab.seed);
    let mut writes = 0;
    for round in 0..rounds {
        let flags = MODES[usize::try_from(random.below(MODES.len() as u64))?];
        let load = (round % 2 == 1).then(|| &LOADS[(round / 2) as usize % LOADS.len()]);
        let how = load.map_or("own session", |load| load.name);
        let mode = flags.first().copied().unwrap_or("write-back");
        let name = format!("round {}: {how}, {mode}", round + 1);
        let spec = Spec::new(driver, [image.clone()])?.flags(flags);
        lab.report.check(&part, &name, || {
            let delay = Duration::from_millis(30 + random.below(300));
            let acknowledged = match load {
                None => with_session(lab, &spec, delay, &mut random),
                Some(load) => with_load(lab, &spec, delay, random.next() >> 16, load),
            }?;
            ensure!(acknowledged > 0, "nothing was acknowledged before the crash: the round tests nothing");
            writes += acknowledged;
            Ok(())
        });
    }
    for round in 0..RESERVATION_CRASHES.min(rounds) {
        let name = format!("reservations, round {}", round + 1);
        lab.report.check(&part, &name, || reservations::crash(lab, driver, &mut random));
    }
    medium_rewrite::part(lab, driver, &part);
    lab.report.note(&format!("{part}: {writes} acknowledged writes were checked after {rounds} crashes"));
    Ok(())
}

/// The expected contents of one piece of the volume.
#[derive(Clone, Copy, Default)]
struct ExpectedPiece {
    acknowledged: u64,
    /// A write without a response before the crash: any of its blocks may be present.
    in_flight: Option<u64>,
}

fn with_session(lab: &Lab, spec: &Spec, delay: Duration, random: &mut Random) -> Result<u64> {
    let target = Target::start(lab, spec)?;
    let mut pieces = HashMap::new();
    // Data of earlier rounds must differ from the data of this round.
    let first = random.next() >> 8;
    let acknowledged = write_until_killed(target, delay, random, first, &mut pieces)?;
    let target = Target::start_after_kill(lab, spec).context("start after the crash")?;
    check(&target, &pieces)?;
    target.stop()?;
    Ok(acknowledged)
}

fn write_until_killed(
    target: Target,
    delay: Duration,
    random: &mut Random,
    first: u64,
    pieces: &mut HashMap<u64, ExpectedPiece>,
) -> Result<u64> {
    let mut session = Session::ready(target.portal, &Login::to(&target.name, "crash"), target.lun)?;
    let (_, block) = session.capacity()?;
    let end = Instant::now() + delay;
    let mut target = Some(target);
    let mut tasks: HashMap<u32, u64> = HashMap::new();
    let (mut acknowledged, mut generation) = (0, first);
    loop {
        while tasks.len() < DEPTH {
            let at = random.below(PIECES);
            if tasks.values().any(|busy| *busy == at) {
                continue;
            }
            generation += 1;
            let piece = pieces.entry(at).or_default();
            piece.in_flight = Some(generation);
            let command = cdb::write(at * (PIECE / block) as u64, u32::try_from(PIECE / block)?);
            match session.start(&command, Data::Out(pattern(at, generation, PIECE))) {
                Ok(tag) => tasks.insert(tag, at),
                Err(_) if target.is_none() => return Ok(acknowledged),
                Err(error) => return Err(error),
            };
        }
        if Instant::now() >= end
            && let Some(target) = target.take()
        {
            target.kill()?;
        }
        // Responses that were sent before the crash still arrive.
        let done = match session.next() {
            Ok(done) => done,
            Err(_) if target.is_none() => return Ok(acknowledged),
            Err(error) => return Err(error),
        };
        ensure!(done.status == GOOD, "a write ended with status {:02x}h", done.status);
        let at = tasks.remove(&done.tag).context("a response without a command")?;
        let piece = pieces.entry(at).or_default();
        piece.acknowledged = piece.in_flight.take().context("a response without a write")?;
        acknowledged += 1;
    }
}

/// Every block has the data of the last acknowledged write, or of one that was in progress.
fn check(target: &Target, pieces: &HashMap<u64, ExpectedPiece>) -> Result<()> {
    let mut session = Session::ready(target.portal, &Login::to(&target.name, "crash"), target.lun)?;
    let (_, block) = session.capacity()?;
    let blocks = u32::try_from(PIECE / block)?;
    for (at, piece) in pieces.iter().filter(|(_, piece)| piece.acknowledged > 0) {
        let found = session.read(at * u64::from(blocks), blocks, block)?;
        let wanted = pattern(*at, piece.acknowledged, block);
        let allowed = piece.in_flight.map(|generation| pattern(*at, generation, block));
        for (index, found_block) in found.chunks(block).enumerate() {
            if found_block != wanted && allowed.as_deref() != Some(found_block) {
                bail!(
                    "lost: place {at}, block {index}, write {}: found {:02x?}",
                    piece.acknowledged,
                    &found_block[..16]
                );
            }
        }
    }
    session.logout()
}

/// The load generator logs acknowledgements. After the restart it verifies all of them, including those of writes with
/// FUA and of completed SYNCHRONIZE CACHE commands.
fn with_load(lab: &Lab, spec: &Spec, delay: Duration, seed: u64, how: &Load) -> Result<u64> {
    let log = lab.fresh("acknowledged.log")?;
    let target = Target::start(lab, spec)?;
    let url = target.url(0);
    let said = std::fs::File::create(lab.scratch.join("load.log"))?;
    let mut load = process::bound(lab.built()?)
        .args(["bench", &url, "--rw", "randwrite", "--bs", "16k", "--depth", "8", "--sessions", "2"])
        .args(["--time", "60", "--warmup", "0", "--size", &format!("{MIB}M"), "--seed", &seed.to_string(), "--verify"])
        .args(how.flags)
        .arg("--ack-log")
        .arg(&log)
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .spawn()?;
    let killed = when_it_promises(&log, how, delay).and_then(|()| target.kill());
    if killed.is_err() {
        load.kill()?;
    }
    let ended = process::wait(&mut load, LOAD_LIMIT)?;
    killed?;
    let said = std::fs::read_to_string(lab.scratch.join("load.log")).unwrap_or_default();
    match ended {
        Some(status) if status.success() => {}
        Some(status) => bail!("the load generator ended with {status}:\n{}", process::last_lines(&said, 10)),
        None => {
            load.kill()?;
            load.wait()?;
            bail!("the load generator does not end after its target");
        }
    }
    let target = Target::start_after_kill(lab, spec).context("start after the crash")?;
    let mut check = process::bound(lab.built()?);
    check.args(["bench", &target.url(0), "--all", "--check-ack-log"]).arg(&log);
    process::run(&mut check, LOAD_LIMIT)?.succeeded().context("verification of acknowledged writes")?;
    target.stop()?;
    let lines = std::fs::read_to_string(&log)?;
    Ok(lines.lines().filter(|line| line.starts_with("w ")).count() as u64)
}

/// Waits for the first acknowledgement in the log, and then for `delay`.
fn when_it_promises(log: &Path, how: &Load, delay: Duration) -> Result<()> {
    let end = Instant::now() + LOAD_LIMIT;
    while !std::fs::read_to_string(log).is_ok_and(|said| said.lines().any(how.is_acknowledgement)) {
        ensure!(Instant::now() < end, "nothing was acknowledged to the load generator");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(delay);
    Ok(())
}
