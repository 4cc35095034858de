//! Volumes whose data another process serves: the example in C under verifying loads, killed, stopped and missing; and
//! a hostile handler beside it. A handler that is a SCSI device: `device`; one with blocks and
//! SCSI commands: `mixed`. Plug-ins of tcmu-runner: `plugin`.

pub(crate) mod daemon;
mod device;
mod mixed;
mod plugin;
mod running;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use lunar_handler::ring::at;
use lunar_handler::serve::{Connection, Device, HandlerQueue, ServeError, serve};
use lunar_handler::wire::{Code, Message, Status, Submission};
use rustix::process::Signal;

use crate::process::{bound, run};
use crate::report::skip;
use crate::session::{Data, GOOD, Session, cdb};
use crate::target::{Driver, Lab};
use crate::test_data::{Random, pattern};
use crate::verifying_writer::VerifyingWriter;
use daemon::{Daemon, TARGET};
pub(crate) use running::Handler;
use running::{BLOCK, LIMIT, SIZE};

/// The volumes, in the order of their LUNs. The third and the fourth give handlers little time; the fifth is a device.
const VOLUMES: [(&str, &str); 8] = [
    ("first", "size = \"64M\""),
    ("second", "size = \"64M\""),
    ("hasty", HASTE),
    ("hostile", HASTE),
    ("device", "device-type = \"processor\""),
    ("mixed", "size = \"64M\""),
    ("image", "size = \"64M\""),
    ("plugin-memory", "size = \"64M\"\ndiscard = true"),
];
const HASTE: &str = "size = \"64M\"\ncommand-timeout = \"1s\"\nrestart-time = \"2s\"";
/// The name of the example, in the scratch folder.
const PROGRAM: &str = "file_handler";
const FIRST: u16 = 0;
const SECOND: u16 = 1;
const HASTY: u16 = 2;
const HOSTILE: u16 = 3;
const DEVICE: u16 = 4;
const MIXED: u16 = 5;
const IMAGE: u16 = 6;
const PLUGIN_MEMORY: u16 = 7;
/// Times that a handler is killed under load; many with `--long`.
const KILLS: (u64, u64) = (10, 100);
/// How long a handler is stopped; long with `--long`.
const STOPS: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(60));
/// How long a hostile handler is connected, again and again.
const HOSTILE_TIME: Duration = Duration::from_secs(5);

const NOT_READY: (u8, u8, u8) = (0x02, 0x04, 0x00);
const TIME_OUT: (u8, u8, u8) = (0x0b, 0x3e, 0x02);

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    lab.built()?;
    let part = format!("handler/{}", driver.name());
    compile(&lab.scratch)?;
    let mut daemon = None;
    lab.report.check(&part, "a daemon starts without the handlers of its volumes", || {
        daemon = Some(Daemon::start(lab, driver, &VOLUMES)?);
        Ok(())
    });
    let Some(mut daemon) = daemon else { return Ok(()) };
    let check = |name: &str, case: &dyn Fn() -> Result<()>| lab.report.check(&part, name, case);
    check("without a handler commands end with NOT READY", &|| missing(&daemon));
    let kills = if lab.long { KILLS.1 } else { KILLS.0 };
    check(&format!("kill -9 of handlers under verifying loads, {kills} times"), &|| killed(lab, &daemon, kills));
    let stop = if lab.long { STOPS.1 } else { STOPS.0 };
    check(&format!("a handler is stopped for {} s, and others go on", stop.as_secs()), &|| stopped(lab, &daemon, stop));
    check("a handler is a SCSI device of two initiators, ends and comes back", &|| device::shared(&daemon));
    check("a handler has blocks, and SCSI commands of its own", &|| mixed::own_commands(&daemon));
    check(&format!("a plug-in of tcmu-runner serves an image of QEMU, kill -9 {kills} times"), &|| {
        plugin::image(lab, (&daemon, IMAGE), kills)
    });
    check("an asynchronous plug-in of tcmu-runner", &|| plugin::asynchronous(lab, (&daemon, PLUGIN_MEMORY)));
    check("a hostile handler harms its own volume only", &|| hostile(lab, &daemon));
    lab.report.check(&part, "the daemon is healthy and stops", || {
        // It flushes its volumes.
        let _handlers = [example(&daemon, FIRST)?, example(&daemon, SECOND)?, example(&daemon, HASTY)?];
        daemon.target.healthy()?;
        daemon.target.stop()
    });
    Ok(())
}

/// Compiles the example.
pub(crate) fn compile(folder: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../handler");
    let program = folder.join(PROGRAM);
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(source.join("include"));
    command.arg("-o").arg(&program).arg(source.join("examples/file_handler.c"));
    match run(&mut command, LIMIT) {
        Err(_) => skip("there is no C compiler: apt install gcc libc6-dev"),
        Ok(output) => output.succeeded().map(|_| program),
    }
}

/// Starts the example for a volume, on a file of its own.
fn example(daemon: &Daemon, lun: u16) -> Result<Handler> {
    Handler::on(daemon.folder.join(PROGRAM), daemon.socket(lun))
}

fn missing(daemon: &Daemon) -> Result<()> {
    let mut session = daemon.session(HASTY)?;
    let begun = Instant::now();
    session.run(&cdb::read(0, 1), Data::In(BLOCK))?.expect_sense(NOT_READY.0, NOT_READY.1, NOT_READY.2)?;
    ensure!(begun.elapsed() >= Duration::from_secs(2), "the command did not wait for a handler");
    let handler = daemon.listed(HASTY)?;
    ensure!(handler["state"] == "missing" && handler["connections"] == 0, "{handler}");
    // The handler comes while a command waits.
    let tag = session.start(&cdb::write(0, 1), Data::Out(vec![1; BLOCK]))?;
    let _handler = example(daemon, HASTY)?;
    let done = session.next()?;
    ensure!(done.tag == tag && done.status == GOOD, "a command that waited ends with {:02x?}", done.sense());
    session.logout()
}

fn killed(lab: &Lab, daemon: &Daemon, rounds: u64) -> Result<()> {
    let mut random = Random::new(lab.seed);
    let mut handlers = [example(daemon, FIRST)?, example(daemon, SECOND)?];
    let writer = VerifyingWriter::start(daemon.portal, TARGET, FIRST, lab.seed)?;
    let seconds = rounds.to_string();
    let mut load = bound(&daemon.lunar);
    load.args(["bench", &format!("iscsi://{}/{TARGET}/{SECOND}", daemon.portal), "--rw", "randrw", "--bs", "16k"]);
    load.args(["--depth", "8", "--sessions", "2", "--time", &seconds, "--warmup", "0", "--size", "64M", "--verify"]);
    load.args(["--seed", &lab.seed.to_string(), "--timeout", "60"]);
    std::thread::scope(|scope| {
        let load = scope.spawn(move || run(&mut load, LIMIT * 10)?.succeeded().map(drop));
        let mut kill = || -> Result<()> {
            for _ in 0..rounds {
                std::thread::sleep(Duration::from_millis(20 + random.below(150)));
                let handler = &mut handlers[usize::try_from(random.below(2))?];
                handler.kill()?;
                std::thread::sleep(Duration::from_millis(random.below(50)));
                handler.start()?;
                writer.expect_progress()?;
            }
            Ok(())
        };
        let killed = kill();
        let load = load.join().map_err(|_| anyhow!("the thread of the load has panicked"))?;
        killed.and(load)
    })?;
    writer.finish()?;
    let (first, second) = (daemon.listed(FIRST)?, daemon.listed(SECOND)?);
    let sum = |key: &str| first[key].as_u64().unwrap_or(0) + second[key].as_u64().unwrap_or(0);
    ensure!(sum("connections") >= rounds, "handlers were killed {rounds} times: {first} {second}");
    ensure!(sum("replayed") > 0, "no command was sent again: the kills test nothing: {first} {second}");
    ensure!(sum("faults") == 0 && sum("timed-out") == 0, "{first} {second}");
    Ok(())
}

fn stopped(lab: &Lab, daemon: &Daemon, time: Duration) -> Result<()> {
    let (_other, handler) = (example(daemon, FIRST)?, example(daemon, HASTY)?);
    let writer = VerifyingWriter::start(daemon.portal, TARGET, FIRST, lab.seed)?;
    let mut session = daemon.session(HASTY)?;
    let blocks = 8;
    let write = |session: &mut Session, generation| {
        session.run(&cdb::write(0, blocks), Data::Out(pattern(0, generation, blocks as usize * BLOCK)))
    };
    write(&mut session, 1)?.good()?;
    handler.signal(Signal::STOP)?;
    let begun = Instant::now();
    write(&mut session, 2)?.expect_sense(TIME_OUT.0, TIME_OUT.1, TIME_OUT.2)?;
    write(&mut session, 3)?.expect_sense(NOT_READY.0, NOT_READY.1, NOT_READY.2)?;
    daemon.until_state(HASTY, "late")?;
    while begun.elapsed() < time {
        writer.expect_progress()?;
        session.ping()?;
    }
    handler.signal(Signal::CONT)?;
    daemon.until_state(HASTY, "connected")?;
    write(&mut session, 4)?.good()?;
    let read = session.read(0, blocks, BLOCK)?;
    ensure!(read == pattern(0, 4, read.len()), "a late write has overwritten acknowledged data");
    let listed = daemon.listed(HASTY)?;
    ensure!(listed["timed-out"] == 1 && listed["late"] == 0, "{listed}");
    writer.expect_progress()?;
    writer.finish()?;
    session.logout()
}

/// Connects, and breaks the protocol in one of many ways, again and again.
fn attack(socket: &Path, seed: u64, over: &AtomicBool) -> Result<u64> {
    let (mut random, mut connections) = (Random::new(seed), 0);
    while !over.load(Ordering::Relaxed) {
        let codes = (0xc0..=0xff).collect();
        let opened = match random.below(2) {
            0 => Connection::open(socket, "hostile\x1b[2J", SIZE, random.next()),
            _ => Connection::open_mixed(socket, "hostile", (SIZE, random.next()), codes),
        };
        let Ok(mut connection) = opened else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        while connection.queues.len() < 2 {
            match connection.receive() {
                Ok(Some(_)) => {}
                Ok(None) | Err(ServeError::Refused(_) | ServeError::Fault(_) | ServeError::Io(_)) => break,
                Err(why) => bail!("Lunar sends something else: {why}"),
            }
        }
        if connection.queues.is_empty() {
            continue;
        }
        connections += 1;
        for _ in 0..random.below(200) {
            if !misbehave(&mut connection, &mut random) {
                break;
            }
        }
    }
    Ok(connections)
}

/// One act; `false`: the connection is over.
fn misbehave(connection: &mut Connection, random: &mut Random) -> bool {
    match random.below(8) {
        0 => return connection.send(&Message::Unknown(Code(random.next() as u32))).is_ok(),
        1 => return connection.send(&Message::Refused("no".into())).is_ok(),
        _ => {}
    }
    for HandlerQueue { ring, ring_memory, data, .. } in &mut connection.queues {
        let command = ring.take().ok().flatten();
        match (random.below(6), command) {
            (0, Some(command)) => {
                // Twice.
                ring.complete(&command, Status::GOOD);
                ring.complete(&command, Status::GOOD);
            }
            (1, Some(command)) => ring.complete(&command, Status(random.byte())),
            (2, Some(command)) => {
                let slot = (random.next() as u16).into();
                ring.complete(&Submission { slot, ..command }, Status::GOOD);
            }
            (3, _) => _ = ring_memory.store(at::COMPLETED, random.next() as u32),
            (4, _) => {
                let place = usize::try_from(random.below(ring_memory.len() as u64)).unwrap_or(0);
                _ = ring_memory.write(place, &[random.byte()]);
            }
            _ => {
                let place = usize::try_from(random.below(data.len() as u64)).unwrap_or(0);
                _ = data.write(place, &[random.byte()]);
            }
        }
    }
    let woken = connection.queues.iter().all(|queue| {
        // Signals without a reason, too.
        _ = queue.ring_memory.store(at::LUNAR_SLEEPS, 1);
        queue.wake_lunar().is_ok()
    });
    woken && matches!(connection.wait(false), Ok(false))
}

/// A handler that keeps to the protocol, in memory.
struct Memory(Vec<u8>);

impl Memory {
    fn part(&mut self, offset: u64, length: usize) -> Result<&mut [u8], Status> {
        let begin = usize::try_from(offset).map_err(|_| Status::FAILED)?;
        self.0.get_mut(begin..begin + length).ok_or(Status::FAILED)
    }
}

impl Device for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        into.copy_from_slice(self.part(offset, into.len())?);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], _: bool) -> Result<(), Status> {
        self.part(offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Status> {
        Ok(())
    }
}

fn hostile(lab: &Lab, daemon: &Daemon) -> Result<()> {
    let _other = example(daemon, FIRST)?;
    let writer = VerifyingWriter::start(daemon.portal, TARGET, FIRST, lab.seed)?;
    let (socket, over) = (daemon.socket(HOSTILE), AtomicBool::new(false));
    let connections = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| attack(&socket, lab.seed, &over));
        let victim = || -> Result<()> {
            let mut session = daemon.session(HOSTILE)?;
            let begun = Instant::now();
            while begun.elapsed() < HOSTILE_TIME {
                // Any status may come, and data that nobody wrote; but an answer comes.
                session.run(&cdb::write(0, 8), Data::Out(vec![7; 8 * BLOCK]))?;
                session.run(&cdb::read(0, 8), Data::In(8 * BLOCK))?;
                session.run(&[0xc0, 0, 0, 0, 0, 0], Data::In(64))?;
                writer.expect_progress()?;
            }
            session.logout()
        };
        let result = victim();
        over.store(true, Ordering::Relaxed);
        let connections = attacker.join().map_err(|_| anyhow!("the attacker has panicked"))??;
        result.map(|()| connections)
    })?;
    let listed = daemon.listed(HOSTILE)?;
    ensure!(connections > 1 && listed["faults"].as_u64() > Some(0), "{connections} connections: {listed}");
    // The same process keeps to the protocol from now on.
    let honest = std::thread::spawn(move || {
        let mut memory = Memory(vec![0; usize::try_from(SIZE)?]);
        loop {
            match serve(&socket, &mut memory) {
                // It comes before Lunar has noticed the end of the last connection.
                Err(ServeError::Refused(_)) => std::thread::sleep(Duration::from_millis(50)),
                Err(ServeError::Io(_)) | Ok(()) => return Ok(()),
                Err(why) => bail!("{why}"),
            }
        }
    });
    daemon.until_state(HOSTILE, "connected")?;
    ensure!(!honest.is_finished(), "the honest handler has ended: {:?}", honest.join());
    let mut session = daemon.session(HOSTILE)?;
    for generation in 1..20 {
        let data = pattern(0, generation, 16 * BLOCK);
        session.write(0, data.clone(), BLOCK)?;
        ensure!(session.read(0, 16, BLOCK)? == data, "the volume has lost data of an honest handler");
    }
    session.logout()?;
    writer.finish().map(drop)
}
