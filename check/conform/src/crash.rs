//! `kill -9` in the middle of writing: what was acknowledged is there after the restart.

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
/// Writes under way when the blow falls.
const DEPTH: usize = 16;
const PIECE: usize = 24 << 10;
const PIECES: u64 = (MIB << 20) / PIECE as u64;
/// A run of the load generator must end soon after its target has.
const LOAD_LIMIT: Duration = Duration::from_secs(30);
/// Ways to write that differ in what lies between an acknowledgement and the disk.
const MODES: [&[&str]; 3] = [&[], &["--direct"], &["--write-through"]];

/// How the load generator writes.
struct Load {
    name: &'static str,
    flags: &'static [&'static str],
    /// The lines of its log that promise something: a round has some before the blow falls.
    promises: fn(&str) -> bool,
}

const LOADS: [Load; 3] = [
    Load { name: "load generator", flags: &[], promises: |line| line.starts_with("w ") },
    Load { name: "load generator, FUA", flags: &["--fua"], promises: |line| line.ends_with(" d") },
    Load {
        name: "load generator, SYNCHRONIZE CACHE",
        flags: &["--flush-every", "16"],
        promises: |line| line.starts_with("s ") && line != "s 0",
    },
];

/// Crashes in the middle of registering: each kills twice, and takes its time.
const FENCES: u32 = 5;

/// So many crashes, in turn with our own session and with the load generator's log of acknowledgements.
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
            ensure!(acknowledged > 0, "nothing was acknowledged before the crash: the round proves nothing");
            writes += acknowledged;
            Ok(())
        });
    }
    for round in 0..FENCES.min(rounds) {
        let name = format!("reservations, round {}", round + 1);
        lab.report.check(&part, &name, || reservations::crash(lab, driver, &mut random));
    }
    medium_rewrite::part(lab, driver, &part);
    lab.report.note(&format!("{part}: {writes} acknowledged writes were checked after {rounds} crashes"));
    Ok(())
}

/// What may be found at one place.
#[derive(Clone, Copy, Default)]
struct ExpectedPiece {
    acknowledged: u64,
    /// Sent, and not answered before the crash: some, all or none of its blocks may be there.
    in_flight: Option<u64>,
}

fn with_session(lab: &Lab, spec: &Spec, delay: Duration, random: &mut Random) -> Result<u64> {
    let target = Target::start(lab, spec)?;
    let mut pieces = HashMap::new();
    // What earlier rounds left behind must not look like this round's.
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
        // Answers that were sent before the crash still come.
        let done = match session.next() {
            Ok(done) => done,
            Err(_) if target.is_none() => return Ok(acknowledged),
            Err(error) => return Err(error),
        };
        ensure!(done.status == GOOD, "a write ended with status {:02x}h", done.status);
        let at = tasks.remove(&done.tag).context("an answer to no command")?;
        let piece = pieces.entry(at).or_default();
        piece.acknowledged = piece.in_flight.take().context("an answer to no write")?;
        acknowledged += 1;
    }
}

/// Every block at every place is of the last acknowledged write, or of one that was under way.
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

/// The load generator writes down what was acknowledged; after the restart it compares: all of it, which has in it what
/// was acknowledged under FUA, or before a SYNCHRONIZE CACHE that was done.
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
            bail!("the load generator does not notice that the target is gone");
        }
    }
    let target = Target::start_after_kill(lab, spec).context("start after the crash")?;
    let mut check = process::bound(lab.built()?);
    check.args(["bench", &target.url(0), "--all", "--check-ack-log"]).arg(&log);
    process::run(&mut check, LOAD_LIMIT)?.succeeded().context("what was acknowledged")?;
    target.stop()?;
    let lines = std::fs::read_to_string(&log)?;
    Ok(lines.lines().filter(|line| line.starts_with("w ")).count() as u64)
}

/// Waits until something is promised in the log, and `delay` more.
fn when_it_promises(log: &Path, how: &Load, delay: Duration) -> Result<()> {
    let end = Instant::now() + LOAD_LIMIT;
    while !std::fs::read_to_string(log).is_ok_and(|said| said.lines().any(how.promises)) {
        ensure!(Instant::now() < end, "the load generator is promised nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(delay);
    Ok(())
}
