//! Volumes whose stores are missing at a start or go away: they stay LUNs that are not ready, and return by themselves
//! only with the store that they had.

use super::fixture::{Case, Daemon, LIMIT, MAIN, TEST_UNIT_READY, UNIT_ATTENTION, lunar, luns, until};
use crate::loop_device::LoopDevice;
use crate::mounted_fs::MountedFs;
use crate::process;
use crate::report::skip;
use crate::reservations::{REGISTER_AND_IGNORE, keys, reserve};
use crate::session::{Data, GOOD, Session};
use crate::target::{Driver, Lab};
use crate::test_data::pattern;
use crate::tools::expect_text;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const CASES: [Case; 6] = [
    ("a volume whose file system is not mounted stays a LUN, and returns when it is", returns_with_its_file_system),
    ("a copy at the place of a missing file is not served until an operator accepts it", accepts_a_copy),
    ("a volume whose device goes away is not ready until the device is back", loses_its_device),
    ("no thread wakes to look for stores while none is missing", looks_for_nothing),
    ("clients are notified before a file system is full, and writes go on when it has space", warns_before_it_is_full),
    ("the missing folder of a pool keeps no volume from being served", misses_the_folder_of_a_pool),
];

/// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE.
const UNAVAILABLE: (u8, u8, u8) = (2, 0x04, 0x0c);
/// A reservation key.
const KEY: u64 = 0x1234;
const BLOCKS: u32 = 128;

/// The answer to TEST UNIT READY after unit attentions.
fn readiness(session: &mut Session) -> Result<Option<(u8, u8, u8)>> {
    loop {
        let done = session.run(&TEST_UNIT_READY, Data::None)?;
        if done.status == GOOD {
            return Ok(None);
        }
        if done.sense().0 != UNIT_ATTENTION {
            return Ok(Some(done.sense()));
        }
    }
}

fn until_ready(session: &mut Session, is_ready: bool) -> Result<()> {
    let end = std::time::Instant::now() + LIMIT;
    loop {
        let found = readiness(session)?;
        if found.is_none() == is_ready {
            ensure!(is_ready || found == Some(UNAVAILABLE), "not ready with {found:02x?}");
            return Ok(());
        }
        ensure!(std::time::Instant::now() < end, "ready: {}, after {} s", !is_ready, LIMIT.as_secs());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// A session with a LUN that may be not ready.
fn session(daemon: &Daemon, name: &str, lun: u16) -> Result<Session> {
    let mut session = daemon.session(MAIN, name, 4)?;
    session.lun = lun;
    Ok(session)
}

/// The device identification and the capacity.
fn identity(session: &mut Session) -> Result<Vec<u8>> {
    let mut found = session.run(&[0x12, 1, 0x83, 0, 252, 0], Data::In(252))?.good()?.data;
    let (blocks, block) = session.capacity()?;
    found.extend(blocks.to_be_bytes());
    found.extend(block.to_be_bytes());
    Ok(found)
}

/// Writes data and registers a key; returns the identity.
fn prepared(session: &mut Session) -> Result<Vec<u8>> {
    session.write(0, pattern(7, 1, BLOCKS as usize * 512), 512)?;
    session.synchronize()?;
    reserve(session, REGISTER_AND_IGNORE, 0, KEY).context("PERSISTENT RESERVE OUT")?;
    identity(session)
}

fn has_its_data(session: &mut Session) -> Result<()> {
    ensure!(session.read(0, BLOCKS, 512)? == pattern(7, 1, BLOCKS as usize * 512), "the written data is lost");
    Ok(())
}

fn volume(name: &str, kind: &str, path: &str, size: &str) -> String {
    let size = if size.is_empty() { String::new() } else { format!("size = \"{size}\"\n") };
    format!("[volume.{name}]\nkind = \"{kind}\"\npath = \"{path}\"\n{size}")
}

fn started(lab: &Lab, driver: Driver, name: &str, volume: &str) -> Result<Daemon> {
    let change = super::fixture::ConfigChange {
        luns: "0 = \"disk\", 4 = \"memory\", 7 = \"late\"",
        ..super::fixture::ConfigChange::default()
    };
    super::fixture::started_as(lab, driver, name, |daemon| daemon.text(&change) + volume)
}

/// A folder outside of that of the daemon.
fn folder(lab: &Lab, driver: Driver, name: &str) -> Result<PathBuf> {
    let folder = lab.scratch.join(format!("{name}-{}", driver.name()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The output of `lunar explain` for the volume.
fn explained(lab: &Lab, daemon: &Daemon) -> String {
    lunar(lab, daemon, &["explain", "volume", "late"]).unwrap_or_else(|why| format!("{why:#}"))
}

/// Waits until the volume is served again: by itself if its device has a name, or else when the operator accepts it.
fn until_served(lab: &Lab, daemon: &Daemon, host: &mut Session) -> Result<()> {
    let end = std::time::Instant::now() + LIMIT;
    while readiness(host)?.is_some() {
        if explained(lab, daemon).contains("lunar volume accept late") {
            lunar(lab, daemon, &["volume", "accept", "late"])?;
        }
        ensure!(std::time::Instant::now() < end, "not served after {} s", LIMIT.as_secs());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Ok(())
}

/// How often the thread that looks for stores has slept.
fn sleeps(daemon: &Daemon) -> Result<u64> {
    let process = daemon.target.as_ref().and_then(crate::target::Target::pid).context("the daemon runs")?;
    for thread in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        if fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "stores") {
            let status = fs::read_to_string(thread.path().join("status"))?;
            let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            return Ok(sleeps.context("the kernel counts them")?.trim().parse()?);
        }
    }
    anyhow::bail!("there is no thread that looks for stores")
}

fn looks_for_nothing(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "rest", "[volume.late]\nkind = \"ram\"\nsize = \"1M\"\n")?;
    daemon.session(MAIN, "host", 7)?.logout()?;
    let before = sleeps(&daemon)?;
    std::thread::sleep(std::time::Duration::from_secs(4));
    let more = sleeps(&daemon)? - before;
    ensure!(more == 0, "it wakes {more} times in four seconds");
    daemon.stop()
}

fn halt(daemon: &mut Daemon) -> Result<()> {
    daemon.target.take().context("the daemon runs")?.stop()
}

fn returns_with_its_file_system(lab: &Lab, driver: Driver) -> Result<()> {
    let Some(mounted) = MountedFs::new(lab, "ext4", 64)? else {
        return skip("no small ext4 can be mounted here: that needs root, and a kernel with it");
    };
    let file = mounted.path.join("late.img").display().to_string();
    let mut daemon = started(lab, driver, "late", &volume("late", "file", &file, "16M"))?;
    let before = prepared(&mut daemon.session(MAIN, "host", 7)?)?;
    halt(&mut daemon)?;
    let image = lab.scratch.join("ext4.img");
    mounted.unmount()?;
    daemon.start(lab)?;
    let mut host = session(&daemon, "host", 7)?;
    ensure!(readiness(&mut host)? == Some(UNAVAILABLE), "ready without its file: {:02x?}", readiness(&mut host)?);
    ensure!(luns(&mut host)? == [0, 4, 7], "it serves {:?}", luns(&mut host)?);
    let refused = host.run(&crate::session::cdb::read(0, 1), Data::In(512))?;
    ensure!(refused.sense() == UNAVAILABLE, "a read ends with {:02x?}", refused.sense());
    daemon.session(MAIN, "other", 0)?.write(1, vec![3; 512], 512).context("another volume")?;
    let explained = lunar(lab, &daemon, &["explain", "volume", "late"]).unwrap_or_else(|why| format!("{why:#}"));
    expect_text(&explained, "clients find it not ready: ")?;
    ensure!(!Path::new(&file).exists(), "a file was created in place of the missing one");
    // The file system comes.
    let mut mount = Command::new("mount");
    process::run(mount.args(["-o", "loop"]).arg(&image).arg(&mounted.path), LIMIT)?.succeeded()?;
    until_served(lab, &daemon, &mut host)?;
    ensure!(identity(&mut host)? == before, "it is another disk");
    ensure!(keys(&mut host)? == [KEY], "the registration is lost: {:x?}", keys(&mut host)?);
    has_its_data(&mut host)?;
    host.write(300, vec![9; 512], 512)?;
    let well = lunar(lab, &daemon, &["explain", "volume", "late"])?;
    expect_text(&well, "volume late is well")?;
    host.logout()?;
    daemon.stop()
}

fn accepts_a_copy(lab: &Lab, driver: Driver) -> Result<()> {
    let folder = folder(lab, driver, "copied")?;
    let (file, aside) = (folder.join("late.img"), folder.join("aside.img"));
    let path = file.display().to_string();
    let mut daemon = started(lab, driver, "copied", &volume("late", "file", &path, "16M"))?;
    let before = prepared(&mut daemon.session(MAIN, "host", 7)?)?;
    halt(&mut daemon)?;
    fs::rename(&file, &aside)?;
    daemon.start(lab)?;
    let mut host = session(&daemon, "host", 7)?;
    ensure!(readiness(&mut host)? == Some(UNAVAILABLE), "ready without its file");
    fs::copy(&aside, &file)?;
    until(|| daemon.log_text().contains("lunar volume accept late"))?;
    ensure!(readiness(&mut host)? == Some(UNAVAILABLE), "a copy was served");
    let explained = lunar(lab, &daemon, &["explain", "volume", "late"]).unwrap_or_else(|why| format!("{why:#}"));
    expect_text(&explained, "lunar volume accept late")?;
    expect_text(&lunar(lab, &daemon, &["volume", "accept", "late"])?, "its store is served")?;
    ensure!(readiness(&mut host)?.is_none(), "not ready after it was accepted");
    ensure!(identity(&mut host)? == before, "it is another disk");
    has_its_data(&mut host)?;
    // The store that was accepted is the one of the volume from now on.
    halt(&mut daemon)?;
    fs::rename(&file, folder.join("accepted.img"))?;
    daemon.start(lab)?;
    let mut host = session(&daemon, "host", 7)?;
    fs::rename(folder.join("accepted.img"), &file)?;
    until_served(lab, &daemon, &mut host)?;
    has_its_data(&mut host)?;
    host.logout()?;
    daemon.stop()
}

fn loses_its_device(lab: &Lab, driver: Driver) -> Result<()> {
    let image = folder(lab, driver, "device")?.join("image");
    fs::File::create(&image)?.set_len(16 << 20)?;
    let device = LoopDevice::attach(image.to_str().context("paths of the scratch folder are text")?)?;
    let mut daemon = started(lab, driver, "device", &volume("late", "block", &device.path, ""))?;
    let mut host = daemon.session(MAIN, "host", 7)?;
    let before = identity(&mut host)?;
    let resized = |bytes: u64| -> Result<()> {
        fs::OpenOptions::new().write(true).open(&image)?.set_len(bytes)?;
        process::run(Command::new("losetup").args(["--set-capacity", &device.path]), LIMIT)?.succeeded().map(drop)
    };
    // A device that was unplugged has no bytes either.
    resized(0)?;
    until_ready(&mut host, false)?;
    daemon.session(MAIN, "other", 0)?.write(1, vec![3; 512], 512).context("another volume")?;
    resized(16 << 20)?;
    // Writes that no flush confirmed may be missing: an operator decides, after a restart, too.
    let lost = "writes that no flush confirmed may be missing";
    until(|| explained(lab, &daemon).contains(lost))?;
    ensure!(readiness(&mut host)? == Some(UNAVAILABLE), "it is served before it is accepted");
    halt(&mut daemon)?;
    daemon.start(lab)?;
    let mut host = session(&daemon, "host", 7)?;
    until(|| explained(lab, &daemon).contains(lost))?;
    ensure!(readiness(&mut host)? == Some(UNAVAILABLE), "a restart serves it before it is accepted");
    expect_text(&lunar(lab, &daemon, &["volume", "accept", "late"])?, "its store is served")?;
    ensure!(readiness(&mut host)?.is_none(), "not ready after it was accepted");
    ensure!(identity(&mut host)? == before, "it is another disk");
    host.write(0, vec![9; 512], 512)?;
    host.logout()?;
    daemon.stop()
}

/// THIN PROVISIONING SOFT THRESHOLD REACHED.
const REACHED: (u8, u8, u8) = (UNIT_ATTENTION, 0x38, 0x07);
/// DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT.
const NO_SPACE: (u8, u8, u8) = (7, 0x27, 0x07);
/// MiB of the file system.
const SYSTEM_MIB: u64 = 64;
/// Blocks of a MiB.
const MIB_BLOCKS: u32 = 2048;
/// How often the file system is filled and emptied, and in the long form.
const CYCLES: [u64; 2] = [2, 100];
/// Cycles in which the file system fills slowly, so that it is looked at before it is full.
const SLOW_CYCLES: u64 = 2;

/// Fills the file system, a MiB at a time; returns the number of written MiB, and how many of them were written before
/// the notification.
fn fill(host: &mut Session, seed: u64, is_slow: bool) -> Result<(u64, Option<u64>)> {
    let mut notified = None;
    let mut written = 0;
    loop {
        ensure!(written <= SYSTEM_MIB, "more data was written than fits");
        let write = crate::session::cdb::write(written * u64::from(MIB_BLOCKS), MIB_BLOCKS);
        let done = host.run(&write, Data::Out(pattern(written, seed, 1 << 20)))?;
        match (done.status == GOOD, done.sense()) {
            (true, _) => written += 1,
            (_, NO_SPACE) => return Ok((written, notified)),
            (_, REACHED) if notified.is_none() => notified = Some(written),
            (_, other) => anyhow::bail!("a write ends with {other:02x?} after {written} MiB"),
        }
        // The space is looked at once in a second.
        let pause = if is_slow { 100 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(pause));
    }
}

/// Reads a MiB, after the notification if that comes now.
fn read(host: &mut Session, mib: u64) -> Result<Vec<u8>> {
    let read = crate::session::cdb::read(mib * u64::from(MIB_BLOCKS), MIB_BLOCKS);
    let mut done = host.run(&read, Data::In(1 << 20))?;
    if done.status != GOOD && done.sense() == REACHED {
        done = host.run(&read, Data::In(1 << 20))?;
    }
    Ok(done.good()?.data)
}

/// Whether `lunar status`, which fails while there are troubles, says that the space of this file system is low. That
/// of the folder of the test may be so, too.
fn is_low(lab: &Lab, daemon: &Daemon, mounted: &MountedFs) -> bool {
    let status = lunar(lab, daemon, &["status"]).unwrap_or_else(|why| format!("{why:#}"));
    let subject = format!("file system of {}: ", mounted.path.display());
    status.lines().any(|line| line.contains(&subject) && line.contains("the threshold is 50 %"))
}

fn warns_before_it_is_full(lab: &Lab, driver: Driver) -> Result<()> {
    let Some(mounted) = MountedFs::new(lab, "ext4", SYSTEM_MIB)? else {
        return skip("no small ext4 can be mounted here: that needs root, and a kernel with it");
    };
    let file = mounted.path.join("late.img").display().to_string();
    let change = super::fixture::ConfigChange {
        luns: "0 = \"disk\", 4 = \"memory\", 7 = \"late\"",
        ..super::fixture::ConfigChange::default()
    };
    let daemon = super::fixture::started_as(lab, driver, "low", |daemon| {
        let text = daemon.text(&change) + &volume("late", "file", &file, "128M");
        text.replacen("[server]\n", "[server]\nspace-threshold = 50\n", 1)
    })?;
    let mut host = daemon.session(MAIN, "host", 7)?;
    for cycle in 0..CYCLES[usize::from(lab.long)] {
        let is_slow = cycle < SLOW_CYCLES;
        let (written, notified) = fill(&mut host, cycle, is_slow)?;
        if is_slow {
            let notified = notified.with_context(|| format!("cycle {cycle}: no notice in {written} MiB"))?;
            ensure!(notified < written, "cycle {cycle}: notified after {notified} MiB of {written}");
            ensure!(is_low(lab, &daemon, &mounted), "cycle {cycle}: the status does not say that space is low");
        }
        for mib in 0..written {
            let found = read(&mut host, mib)?;
            ensure!(found == pattern(mib, cycle, 1 << 20), "cycle {cycle}: MiB {mib} has other data");
        }
        // The client discards all that it wrote, and goes on.
        // With the blocks of earlier cycles, and of the write that failed half-way.
        let blocks = u32::try_from(SYSTEM_MIB + 1)? * MIB_BLOCKS;
        let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &0_u64.to_be_bytes(), &blocks.to_be_bytes(), &[0; 4]].concat();
        let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        let mut done = host.run(&unmap, Data::Out(list.clone()))?;
        if done.status != GOOD && done.sense() == REACHED {
            done = host.run(&unmap, Data::Out(list))?;
        }
        done.good().context("UNMAP")?;
        // The write that failed succeeds by itself: the journal of the file system frees the space some seconds later.
        let end = std::time::Instant::now() + LIMIT;
        let (next, data) =
            (crate::session::cdb::write(written * u64::from(MIB_BLOCKS), MIB_BLOCKS), || vec![7; 1 << 20]);
        while host.run(&next, Data::Out(data()))?.status != GOOD {
            ensure!(std::time::Instant::now() < end, "cycle {cycle}: writes do not go on");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if is_slow {
            until(|| !is_low(lab, &daemon, &mounted))?;
        }
    }
    host.logout()?;
    daemon.stop()
}

fn misses_the_folder_of_a_pool(lab: &Lab, driver: Driver) -> Result<()> {
    let folder = folder(lab, driver, "pool")?;
    let (pool, aside) = (folder.join("pool"), folder.join("aside"));
    fs::create_dir(&pool)?;
    let section = format!("[pool.space]\nfolder = \"{}\"\nspace = \"1G\"\n", pool.display());
    let mut daemon = super::fixture::started_with(lab, driver, "pool", |_| section.clone())?;
    halt(&mut daemon)?;
    fs::rename(&pool, &aside)?;
    daemon.start(lab)?;
    expect_text(&daemon.log_text(), "pool space: hosts cannot create volumes there")?;
    daemon.session(MAIN, "host", 0)?.write(1, vec![3; 512], 512)?;
    fs::rename(&aside, &pool)?;
    daemon.stop()
}
