//! Hostile neighbours: each attacker takes as much as it can of what all hosts of a core share, while a victim works on
//! a unit of its own. Each attack is described once, for all transports.
//!
//! * `attacks`: the table of attacks
//! * `transport`: a transport as attackers and victims use it
//! * `iscsi`, `nvme_tcp`, `vfio_user`, `vhost_user`, `aoe`, `scsi_frames`: its implementations; `scsi_commands`,
//!   `nvme_commands`: what they share; `initiator`: an initiator on a link of frames
//! * `setup`: the target with all these transports
//! * `measure`: latencies and the verdict
//!
//! A measurement without the attack precedes each one with it. An error of the victim fails at once; a time that is too
//! long fails if it is too long in each of several tries, each with a measurement without the attack of its own.

mod aoe;
mod attacks;
mod initiator;
mod iscsi;
mod measure;
mod nvme_commands;
mod nvme_tcp;
mod scsi_commands;
mod scsi_frames;
mod setup;
mod transport;
mod vfio_user;
mod vhost_user;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::setpriority_process;

use crate::target::{Driver, Lab, Subject};
use attacks::{ACROSS, ATTACKS, Act, Attack};
use measure::{Measured, Samples, Verdict, measure, verdict};
use setup::Setup;
use transport::{Attacker, Held, NICE, Request, Source, Stage, Transport, Victim};

/// How long the target may take to recover from an attack, before the next measurement without one.
const RECOVERY: Duration = Duration::from_secs(5);
/// Most requests that an attacker sends without reading answers.
const HELD_MAX: usize = 4096;

/// Samples of the short form.
const SHORT: Samples =
    Samples { count: 80, time: Duration::from_millis(100), least: 20, settle: Duration::from_millis(50), tries: 1 };
/// Samples of the long form (`--long`).
const LONG: Samples =
    Samples { count: 3000, time: Duration::from_secs(5), least: 300, settle: Duration::from_millis(150), tries: 3 };

/// One row of the table.
struct Row {
    attack: &'static str,
    attacker: &'static str,
    victim: &'static str,
    before: Measured,
    during: Measured,
    tries: usize,
    /// Requests that were answered, or connections that were made, during the attack.
    done: u64,
    verdict: Verdict,
}

/// Runs all attacks.
pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    if let Subject::External(_) = lab.subject {
        return Ok(());
    }
    let part = format!("neighbours/{}", driver.name());
    let mut setup = Setup::start(lab, driver)?;
    setup.check_forms(lab, &part);
    let samples = if lab.long { LONG } else { SHORT };
    let mut rows = Vec::new();
    let Setup { target, iscsi, nvme, vfio, disk, adapter, aoe, fcoe, st } = &mut setup;
    let transports: [&dyn Transport; 8] = [iscsi, nvme, vfio, disk, adapter, aoe, fcoe, st];
    let alone =
        transports.iter().flat_map(|transport| ATTACKS.iter().map(move |attack| (attack, *transport, *transport)));
    let across = ACROSS.iter().map(|(attack, attacker, victim)| (attack, transports[*attacker], transports[*victim]));
    for (attack, attacker, victim) in alone.chain(across).filter(|(attack, attacker, _)| attack.applies_to(*attacker)) {
        let name = format!("{} ({}, victim {})", attack.name, attacker.name(), victim.name());
        let is_omitted = !lab.long && lab.only.is_none() && attack.is_repeated_on(attacker);
        if is_omitted || lab.only.as_ref().is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let good = lab.report.check(&part, &name, || {
            let row = run(attack, attacker, victim, samples)?;
            target.healthy()?;
            let outcome = row.verdict.clone();
            rows.push(row);
            match outcome {
                Verdict::Good => Ok(()),
                // Other parts run beside the short form: there, a time is shown in the table and is no failure.
                Verdict::Slow(reason) if lab.long => bail!("in each of {} tries: {reason}", samples.tries),
                Verdict::Slow(_) => Ok(()),
                Verdict::Failed(reason) => bail!("{reason}"),
            }
        });
        if !good {
            target.healthy()?;
        }
    }
    lab.report.note(&table(&rows));
    lab.report.check(&part, "target stops in time", || setup.target.stop());
    Ok(())
}

/// Runs one attack: measures without it and with it, again if a time is too long.
fn run(attack: &Attack, attacker: &dyn Transport, victim: &dyn Transport, samples: Samples) -> Result<Row> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut host = victim.victim().context("the victim, before the attack")?;
        recover(host.as_mut())?;
        let before = measure(victim, host.as_mut(), samples);
        let running = Running::start(attack, attacker)?;
        let (during, done) = running.during(|| {
            std::thread::sleep(samples.settle);
            measure(victim, host.as_mut(), samples)
        })?;
        let verdict = verdict(&before, &during);
        if tries < samples.tries && matches!(verdict, Verdict::Slow(_)) {
            continue;
        }
        let (attacker, victim) = (attacker.name(), victim.name());
        return Ok(Row { attack: attack.name, attacker, victim, before, during, tries, done, verdict });
    }
}

/// Waits until the target has ended the commands of the last attack: several reads in a row take as long as the fastest
/// ones.
fn recover(victim: &mut dyn Victim) -> Result<()> {
    const IN_A_ROW: u32 = 16;
    const QUIET: Duration = Duration::from_millis(3);
    let end = Instant::now() + RECOVERY;
    let mut quick = 0;
    while quick < IN_A_ROW && Instant::now() < end {
        let began = Instant::now();
        victim.read().context("the victim, before the attack")?;
        quick = if began.elapsed() < QUIET { quick + 1 } else { 0 };
    }
    Ok(())
}

/// Attackers that may send.
fn attackers(
    transport: &dyn Transport,
    from: Source,
    (request, sessions): (Request, u16),
) -> Result<Vec<Box<dyn Attacker>>> {
    let numbers = 0..sessions.min(transport.attackers_max());
    let made = numbers.map(|number| transport.attacker(from, number, request).context("an attacker"));
    let mut made = made.collect::<Result<Vec<_>>>()?;
    made.iter_mut().try_for_each(|attacker| attacker.prepare().context("an attacker"))?;
    Ok(made)
}

/// An attack with all its sessions.
struct Running<'a> {
    attack: &'a Attack,
    transport: &'a dyn Transport,
    /// Sessions that flood.
    attackers: Vec<Box<dyn Attacker>>,
    /// Sessions and connections that are only held.
    held: Vec<Held>,
    waiting: Vec<Box<dyn Attacker>>,
}

impl<'a> Running<'a> {
    fn start(attack: &'a Attack, transport: &'a dyn Transport) -> Result<Self> {
        let mut running = Self { attack, transport, attackers: Vec::new(), held: Vec::new(), waiting: Vec::new() };
        match attack.act {
            Act::Hold { request, sessions } => {
                running.waiting = attackers(transport, attack.from, (request, sessions))?;
                for attacker in &mut running.waiting {
                    for _ in 0..HELD_MAX {
                        // A target that receives no more from an attacker defends itself.
                        if !attacker.has_room() || attacker.send().is_err() {
                            break;
                        }
                    }
                }
            }
            Act::Flood { request, sessions } => {
                running.attackers = attackers(transport, attack.from, (request, sessions))?;
            }
            Act::Stay { stage, connections } => {
                for number in 0..connections {
                    // The target may refuse it.
                    running.held.extend(transport.connection(attack.from, number, stage).ok());
                }
            }
            Act::Churn { .. } => {}
        }
        Ok(running)
    }

    /// Calls `work` while the attack runs; returns its result, and how often the attackers reached their end.
    fn during<T>(self, work: impl FnOnce() -> T) -> Result<(T, u64)> {
        let (over, done, lost) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(None));
        let Self { attack, transport, attackers, held, waiting } = self;
        let count = (held.len() + waiting.len()) as u64;
        let result = std::thread::scope(|scope| {
            for mut attacker in attackers {
                let (over, done, lost) = (&over, &done, &lost);
                scope.spawn(move || {
                    let _ = setpriority_process(None, NICE);
                    if let Err(error) = flood(attacker.as_mut(), over, done) {
                        lost.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
                    }
                });
            }
            if let Act::Churn { stage } = attack.act {
                for thread in 0..2 {
                    let (over, done) = (&over, &done);
                    scope.spawn(move || {
                        let _ = setpriority_process(None, NICE);
                        churn(transport, attack, stage, thread, over, done);
                    });
                }
            }
            let result = work();
            over.store(true, Ordering::Relaxed);
            result
        });
        drop((held, waiting));
        Ok((result, done.into_inner() + count))
    }
}

/// Sends requests and reads the answers until the attack is over, or the target ends the connection.
fn flood(attacker: &mut dyn Attacker, over: &AtomicBool, done: &AtomicU64) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        while attacker.has_room() && !over.load(Ordering::Relaxed) {
            attacker.send()?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        attacker.receive()?;
    }
    Ok(())
}

/// Connects and ends connections until the attack is over.
fn churn(transport: &dyn Transport, attack: &Attack, stage: Stage, thread: u16, over: &AtomicBool, done: &AtomicU64) {
    let mut number = thread;
    while !over.load(Ordering::Relaxed) {
        if transport.connection(attack.from, number, stage).is_ok() {
            done.fetch_add(1, Ordering::Relaxed);
        }
        number = number.wrapping_add(2);
    }
}

/// The table in Markdown. Times are in milliseconds.
fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "hostile neighbours, in ms\n\n| attack | attacker | victim | p50 without | p50 with | p99 without | \
         p99 with | longest with | 1 MiB with | login with | sent | errors | tries | verdict |\n\
         |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    let ms = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
    for row in rows {
        let verdict = match &row.verdict {
            Verdict::Good => "good",
            Verdict::Slow(_) => "**slow**",
            Verdict::Failed(_) => "**error**",
        };
        let (before, during) = (&row.before, &row.during);
        let percentiles = [before.p50(), during.p50(), before.p99(), during.p99()];
        let times = percentiles.into_iter().chain([during.longest(), during.long_write, during.visit]);
        let times: Vec<_> = times.map(ms).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {verdict} |",
            row.attack,
            row.attacker,
            row.victim,
            times.join(" | "),
            row.done,
            during.errors.len(),
            row.tries
        );
    }
    text
}
