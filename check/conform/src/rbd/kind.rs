//! Volumes of kind `rbd`: Lunar starts lunar-rbd, in whose place is a script that enters the tree of the cluster.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::cluster::Cluster;
use super::{BLOCK, KILLS, LIMIT, figures, made};
use crate::guest;
use crate::handler::daemon::{Daemon, MEMORY, NQN, TARGET};
use crate::process::{bound, run};
use crate::session::{Data, GOOD, cdb};
use crate::target::{Driver, Lab, Subject};
use crate::test_data::{Random, pattern};
use crate::verifying_writer::VerifyingWriter;

/// The volume, whose image has the same name.
const VOLUMES: [(&str, &str); 1] = [("own", "")];
const LUN: u16 = 0;
const IMAGE: &str = "rbd/own";
const AWAY: &str = "rbd/away";
const OTHER: &str = "rbd/stranger";
/// How long it may take until a process that has failed is started again, and the image is served.
const RETRY_TIME: Duration = Duration::from_secs(120);

/// Compares an image through Lunar with one without it, and nothing else.
pub(super) fn compare(lab: &Lab, driver: Driver, cluster: &Cluster) -> Result<()> {
    let lab = programs(lab, cluster)?;
    cluster.run(&["rbd", "create", "--size", "48M", IMAGE])?;
    // With the memory that Lunar has by default, as many commands are in progress as the load wants.
    let daemon = start_with(&lab, driver, cluster, ("", "128M"))?;
    figures::compare(&lab, &daemon, cluster)?;
    stop(cluster, daemon)
}

pub(super) fn part(lab: &Lab, driver: Driver, cluster: &Cluster) -> Result<()> {
    let lab = programs(lab, cluster)?;
    let check = |name: &str, case: &mut dyn FnMut() -> Result<()>| lab.report.check("rbd", name, case);
    let mut running = None;
    check("Lunar starts lunar-rbd, which serves an image of its own size", &mut || {
        cluster.run(&["rbd", "create", "--size", "48M", IMAGE])?;
        let daemon = start(&lab, driver, cluster)?;
        let mut session = daemon.session(LUN)?;
        let (blocks, block) = session.capacity()?;
        ensure!(blocks * block as u64 == 48 << 20, "the unit has {blocks} blocks of {block} bytes");
        session.run(&cdb::write(7, 8), Data::Out(pattern(7, 1, 8 * BLOCK)))?.good()?;
        session.logout()?;
        let copy = cluster.folder.join("own.copy").display().to_string();
        cluster.run(&["rbd", "export", "--no-progress", IMAGE, &copy])?;
        ensure!(std::fs::read(&copy)?[7 * BLOCK..][..8 * BLOCK] == pattern(7, 1, 8 * BLOCK), "the image differs");
        running = Some(daemon);
        Ok(())
    });
    let Some(daemon) = &running else { return Ok(()) };
    let kills = if lab.long { KILLS.1 } else { KILLS.0 };
    check(&format!("kill -9 of the process of an image under a verifying load, {kills} times"), &mut || {
        killed(&lab, daemon, kills)
    });
    check("initiators see the new size of an image", &mut || resized(cluster, daemon));
    check("the reason why an image is not served is a trouble, until it is served again", &mut || {
        cluster.run(&["rbd", "rename", IMAGE, AWAY])?;
        kill(daemon)?;
        until_trouble(daemon, "the image cannot be opened")?;
        cluster.run(&["rbd", "rename", AWAY, IMAGE])?;
        daemon.until_state(LUN, "connected")
    });
    check("Lunar starts without its image, and serves it when it is there", &mut || {
        let before = running.take().context("the daemon runs")?;
        let mut session = before.session(LUN)?;
        session.run(&cdb::write(7, 8), Data::Out(pattern(7, 1, 8 * BLOCK)))?.good()?;
        session.logout()?;
        stop(cluster, before)?;
        cluster.run(&["rbd", "rename", IMAGE, AWAY])?;
        let daemon = running.insert(start(&lab, driver, cluster)?);
        until_trouble(daemon, "the image cannot be opened")?;
        ensure!(remedies(daemon)?.contains("rbd info rbd/own"), "the remedies are {}", remedies(daemon)?);
        cluster.run(&["rbd", "rename", AWAY, IMAGE])?;
        until("the image is not served again", || Ok(!has_trouble(daemon, "")?))?;
        let mut session = daemon.session(LUN)?;
        ensure!(session.read(7, 8, BLOCK)? == pattern(7, 1, 8 * BLOCK), "other data is read");
        session.logout()
    });
    other_images(&lab, driver, cluster, running)
}

/// Cases with other images under the name, and with other servers.
fn other_images(lab: &Lab, driver: Driver, cluster: &Cluster, mut running: Option<Daemon>) -> Result<()> {
    let check = |name: &str, case: &mut dyn FnMut() -> Result<()>| lab.report.check("rbd", name, case);
    check("another image under the name of an image is served when it is accepted, and not before", &mut || {
        replaced(cluster, running.as_ref().context("the daemon runs")?)
    });
    check("an image that was replaced while Lunar did not run is not served until the right one is back", &mut || {
        stop(cluster, running.take().context("the daemon runs")?)?;
        cluster.run(&["rbd", "rename", IMAGE, AWAY])?;
        cluster.run(&["rbd", "create", "--size", "48M", IMAGE])?;
        let daemon = running.insert(start(lab, driver, cluster)?);
        until_trouble(daemon, "another store is at its place")?;
        cluster.run(&["rbd", "rename", IMAGE, OTHER])?;
        cluster.run(&["rbd", "rename", AWAY, IMAGE])?;
        until("the image is not served again", || Ok(!has_trouble(daemon, "")?))?;
        let mut session = daemon.session(LUN)?;
        ensure!(session.read(9, 1, BLOCK)? == [5; BLOCK], "other data is read");
        session.logout()
    });
    check("a second server stands by, and serves the image when the first one stops", &mut || {
        let mut first = running.take().context("the daemon runs")?;
        let second = start_with(&lab.in_folder("second")?, driver, cluster, ("stand-by = true", MEMORY))?;
        until_trouble(&second, "stands by")?;
        ensure!(!is_ready(&second)?, "both servers serve the image");
        first.target.healthy()?;
        first.target.stop()?;
        until("the second server does not serve the image", || Ok(!has_trouble(&second, "")?))?;
        let mut session = second.session(LUN)?;
        ensure!(session.read(9, 1, BLOCK)? == [5; BLOCK], "other data is read");
        session.run(&cdb::write(9, 1), Data::Out(vec![6; BLOCK]))?.good()?;
        session.logout()?;
        running = Some(second);
        Ok(())
    });
    made::part(running.as_ref(), cluster, &check);
    check("the suite of libiscsi runs on an image", &mut || {
        made::suites(lab, running.as_mut().context("the daemon runs")?, cluster)
    });
    if lab.whole {
        check("the kernel's NVMe host uses an image", &mut || {
            let daemon = running.as_ref().context("the daemon runs")?;
            guest::nvme_volume(lab, driver, "rbd/nvme", daemon.port, NQN)
        });
    }
    if lab.long {
        // The tools derive keys for as long as LUKS wants it.
        check("an encrypted image is decrypted", &mut || encrypted(lab, driver, cluster));
    }
    check("the daemon with an image is healthy and stops", &mut || {
        stop(cluster, running.take().context("the daemon runs")?)
    });
    Ok(())
}

/// Stops the daemon: the process of the image ends with it, and gives the lock of the image back.
fn stop(cluster: &Cluster, mut daemon: Daemon) -> Result<()> {
    daemon.target.healthy()?;
    daemon.target.stop()?;
    let left = cluster.run(&["rbd", "lock", "ls", IMAGE])?;
    ensure!(left.trim().is_empty(), "the image is locked: {left}");
    Ok(())
}

/// A folder with the program under test, and the script in the place of lunar-rbd.
fn programs(lab: &Lab, cluster: &Cluster) -> Result<Lab> {
    let mut lab = lab.in_folder("kind")?;
    let folder = lab.scratch.join("bin");
    std::fs::create_dir_all(&folder)?;
    let lunar = folder.join("lunar");
    std::fs::copy(lab.built()?, &lunar)?;
    let script = folder.join("lunar-rbd");
    std::fs::write(&script, cluster.script(&cluster.folder.join("lunar-rbd").display().to_string()))?;
    std::fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    lab.subject = Subject::Built(lunar);
    Ok(lab)
}

fn start(lab: &Lab, driver: Driver, cluster: &Cluster) -> Result<Daemon> {
    start_with(lab, driver, cluster, ("", MEMORY))
}

/// Starts a daemon whose volume has these keys, too, and whose cores have so much memory.
fn start_with(lab: &Lab, driver: Driver, cluster: &Cluster, (more, memory): (&str, &str)) -> Result<Daemon> {
    let configuration = cluster.configuration().display().to_string();
    Daemon::start_kind(lab, driver, (&VOLUMES, memory), &|volume| {
        format!("kind = \"rbd\"\nimage = \"rbd/{volume}\"\nceph-config = \"{configuration}\"\n{more}")
    })
}

/// The volume of a daemon of its own, whose image is encrypted.
fn encrypted(lab: &Lab, driver: Driver, cluster: &Cluster) -> Result<()> {
    let (key, bare) = (cluster.folder.join("kind.key"), cluster.folder.join("kind.bare"));
    std::fs::write(&key, "a passphrase\n")?;
    // The tool takes the line end as a part of the passphrase.
    std::fs::write(&bare, "a passphrase")?;
    let (key, bare) = (key.display().to_string(), bare.display().to_string());
    cluster.run(&["rbd", "rename", IMAGE, AWAY])?;
    cluster.run(&["rbd", "create", "--size", "64M", IMAGE])?;
    cluster.run(&["rbd", "encryption", "format", IMAGE, "luks2", &bare])?;
    let keys = format!("encryption = \"luks2\"\npassphrase-file = \"{key}\"");
    let daemon = start_with(&lab.in_folder("encrypted")?, driver, cluster, (&keys, MEMORY))?;
    let mut session = daemon.session(LUN)?;
    let (blocks, block) = session.capacity()?;
    // The header takes the first bytes of the image.
    ensure!(blocks * (block as u64) < 64 << 20, "the unit has {blocks} blocks of {block} bytes");
    session.run(&cdb::write(2048, 1), Data::Out(vec![9; BLOCK]))?.good()?;
    ensure!(session.read(2048, 1, BLOCK)? == [9; BLOCK], "other data is read");
    session.logout()?;
    stop(cluster, daemon)?;
    let copy = cluster.folder.join("encrypted.copy").display().to_string();
    cluster.run(&["rbd", "export", "--no-progress", IMAGE, &copy])?;
    ensure!(!std::fs::read(&copy)?.chunks(BLOCK).any(|block| block == [9; BLOCK]), "the data is not encrypted");
    Ok(())
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + RETRY_TIME;
    while !is_so()? {
        ensure!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Kills the process of the image.
fn kill(daemon: &Daemon) -> Result<()> {
    let process = daemon.listed(LUN)?["process"].as_i64().context("a process serves the image")?;
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).context("it has a number")?;
    let line = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("cmdline"))?;
    ensure!(line.contains("lunar-rbd"), "process {process} is {line}");
    Ok(kill_process(process, Signal::KILL)?)
}

fn killed(lab: &Lab, daemon: &Daemon, rounds: u64) -> Result<()> {
    let mut random = Random::new(lab.seed);
    let before = daemon.listed(LUN)?["connections"].as_u64().unwrap_or(0);
    let writer = VerifyingWriter::start(daemon.portal, TARGET, LUN, lab.seed)?;
    for round in 1..=rounds {
        std::thread::sleep(Duration::from_millis(50 + random.below(300)));
        kill(daemon)?;
        until("the process is not started again", || {
            let listed = daemon.listed(LUN)?;
            Ok(listed["connections"].as_u64() == Some(before + round) && listed["state"] == "connected")
        })?;
        writer.expect_progress()?;
    }
    writer.finish()?;
    let after = daemon.listed(LUN)?;
    ensure!(after["replayed"].as_u64() > Some(0), "no command was sent again: the kills test nothing: {after}");
    ensure!(after["faults"] == 0 && after["timed-out"] == 0, "{after}");
    Ok(())
}

fn resized(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    let mut session = daemon.session(LUN)?;
    let (before, _) = session.capacity()?;
    cluster.run(&["rbd", "resize", "--no-progress", "--size", "80M", IMAGE])?;
    let end = Instant::now() + LIMIT;
    loop {
        // The first command after the change gets a unit attention condition.
        let capacity = session.capacity();
        if capacity.as_ref().is_ok_and(|(blocks, block)| blocks * *block as u64 == 80 << 20) {
            break;
        }
        ensure!(Instant::now() < end, "the unit had {before} blocks, and has {capacity:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let last = (80 << 20) / BLOCK as u64 - 1;
    session.run(&cdb::write(last, 1), Data::Out(vec![4; BLOCK]))?.good()?;
    session.logout()
}

/// Whether the unit is ready.
fn is_ready(daemon: &Daemon) -> Result<bool> {
    let mut session = daemon.plain_session(LUN, "watcher")?;
    // TEST UNIT READY. The unit attention conditions of a new session come first.
    let ready = (0..5).any(|_| session.run(&[0; 6], Data::None).is_ok_and(|end| end.status == GOOD));
    session.logout()?;
    Ok(ready)
}

/// Another image gets the name of the image.
fn replaced(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    cluster.run(&["rbd", "rename", IMAGE, AWAY])?;
    cluster.run(&["rbd", "create", "--size", "48M", IMAGE])?;
    kill(daemon)?;
    until_trouble(daemon, "another store is at its place")?;
    ensure!(!is_ready(daemon)?, "another image is served");
    ensure!(remedies(daemon)?.contains("lunar volume accept own"), "the remedies are {}", remedies(daemon)?);
    let mut accept = bound(&daemon.lunar);
    accept.args(["volume", "accept", "own", "--socket"]).arg(daemon.folder.join("api.sock"));
    run(&mut accept, LIMIT)?.succeeded()?;
    until("the image that was accepted is not served", || Ok(!has_trouble(daemon, "")?))?;
    let mut session = daemon.session(LUN)?;
    ensure!(session.read(7, 8, BLOCK)? == vec![0; 8 * BLOCK], "data of the image before is read");
    session.run(&cdb::write(9, 1), Data::Out(vec![5; BLOCK]))?.good()?;
    session.logout()?;
    cluster.run(&["rbd", "rename", AWAY, "rbd/former"])?;
    Ok(())
}

/// The remedies of all troubles.
fn remedies(daemon: &Daemon) -> Result<String> {
    let status = daemon.ask(&["status"])?;
    let troubles = status["troubles"].as_array().context("a list of troubles")?;
    Ok(troubles.iter().filter_map(|trouble| trouble["remedy"].as_str()).collect::<Vec<_>>().join("; "))
}

/// Whether a trouble of the daemon has these words.
fn has_trouble(daemon: &Daemon, words: &str) -> Result<bool> {
    let status = daemon.ask(&["status"])?;
    let troubles = status["troubles"].as_array().context("a list of troubles")?;
    Ok(troubles.iter().any(|trouble| trouble["words"].as_str().is_some_and(|text| text.contains(words))))
}

fn until_trouble(daemon: &Daemon, words: &str) -> Result<()> {
    until(&format!("no trouble says: {words}"), || has_trouble(daemon, words))
}
