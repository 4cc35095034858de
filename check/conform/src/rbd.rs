//! Images of a real Ceph cluster as volumes: verifying loads while the handler, an object store or the monitor are
//! killed; locks, the block list, snapshots, and the tools of Ceph on the same image.

mod cluster;
mod extents;
mod figures;
mod kind;
mod made;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::guest;
use crate::handler::daemon::{Daemon, TARGET};
use crate::process::{signal, wait};
use crate::report::skip;
use crate::session::{Data, GOOD, cdb};
use crate::target::{Driver, Lab};
use crate::test_data::{Random, pattern};
use crate::verifying_writer::VerifyingWriter;
use cluster::Cluster;

/// Bytes of the image.
const SIZE: u64 = 64 << 20;
const BLOCK: usize = 512;
/// Object stores of the cluster; the pool has three copies.
const STORES: usize = 3;
/// The LUNs: the image, and a snapshot of it.
const IMAGE: u16 = 0;
const SNAPSHOT: u16 = 1;
const VOLUMES: [(&str, &str); 2] =
    [("image", "size = \"64M\"\ndiscard = true"), ("snapshot", "size = \"64M\"\nread-only = true")];
/// How long a step may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Times that the handler is killed under load; many with `--long`.
const KILLS: (u64, u64) = (3, 50);
const NOT_READY: u8 = 0x02;
const DATA_PROTECT: u8 = 0x07;
/// SPACE ALLOCATION FAILED WRITE PROTECT.
const NO_SPACE: (u8, u8, u8) = (0x07, 0x27, 0x07);

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let program = lab.built()?.with_file_name("lunar-rbd");
    if !program.exists() {
        return skip("lunar-rbd is not built beside the target: cargo build -p lunar-rbd");
    }
    let mut lab_cluster = None;
    lab.report.check("rbd", "a cluster starts", || {
        lab_cluster = Some(Cluster::start(lab, guest::ceph_tree(&lab.report)?, STORES)?);
        Ok(())
    });
    let Some(mut cluster) = lab_cluster else { return Ok(()) };
    // The tree has the libraries, so the program runs in it.
    std::fs::copy(&program, cluster.folder.join("lunar-rbd"))?;
    if lab.only.as_deref() == Some("figures") {
        let name = "an image beside the library alone";
        lab.report.check("rbd", name, || kind::compare(lab, driver, &cluster));
        return Ok(());
    }
    let mut daemon = Daemon::start(lab, driver, &VOLUMES)?;
    let check = |name: &str, case: &mut dyn FnMut() -> Result<()>| lab.report.check("rbd", name, case);
    check("rbd export has the data that a host has written", &mut || written(&cluster, &daemon));
    let kills = if lab.long { KILLS.1 } else { KILLS.0 };
    check(&format!("kill -9 of lunar-rbd under a verifying load, {kills} times"), &mut || {
        killed(lab, &cluster, &daemon, kills)
    });
    check("an object store and the monitor are killed under a verifying load", &mut || {
        degraded(lab, &mut cluster, &daemon)
    });
    check("a second process does not get the image, or stands by", &mut || second(&cluster, &daemon));
    check("a client on the block list stops, and its successor goes on", &mut || blocked(&cluster, &daemon));
    check("a snapshot is a read-only volume", &mut || snapshot(&cluster, &daemon));
    check("GET LBA STATUS returns which objects of an image without an object map are mapped", &mut || {
        without_object_map(&cluster, &daemon)
    });
    check("a full cluster is a lack of space, and writes go on afterwards", &mut || full(&cluster, &daemon));
    if lab.long {
        // The tools derive keys for as long as LUKS wants it.
        check("an encrypted image, and one whose size changes", &mut || encrypted(&cluster, &daemon));
    }
    check("an image without the exclusive lock is refused", &mut || unlocked(&cluster, &daemon));
    check("an image that another client writes to, or with a cache, is refused", &mut || {
        unsafe_image(&cluster, &daemon)
    });
    lab.report.check("rbd", "the daemon is healthy and stops", || {
        let _handler = served(&cluster, &daemon, IMAGE, "rbd/image", &[])?;
        daemon.target.healthy()?;
        daemon.target.stop()
    });
    kind::part(lab, driver, &cluster)
}

/// A process of lunar-rbd. Dropping it kills it.
struct Handler {
    child: Child,
    log: PathBuf,
}

impl Handler {
    fn start(cluster: &Cluster, socket: &Path, image: &str, more: &[&str]) -> Result<Self> {
        let log = cluster.folder.join("lunar-rbd.log");
        let (program, socket) = (cluster.folder.join("lunar-rbd"), socket.display().to_string());
        let program = program.display().to_string();
        let mut words = vec![&*program, &*socket, image];
        words.extend(more);
        Ok(Self { child: cluster.spawn(&words, &log)?, log })
    }

    fn text(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// Waits until it says something.
    fn until(&mut self, words: &str) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !self.text()?.contains(words) {
            if let Some(status) = self.child.try_wait()? {
                bail!("lunar-rbd has ended, {status}, without {words:?}: {}", self.text()?);
            }
            ensure!(Instant::now() < end, "lunar-rbd does not say {words:?}: {}", self.text()?);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for its end; returns whether it has succeeded, and what it has said.
    fn ended(mut self) -> Result<(bool, String)> {
        let status = wait(&mut self.child, LIMIT)?.context("lunar-rbd does not end")?;
        Ok((status.success(), self.text()?))
    }

    fn kill(mut self) -> Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "lunar-rbd has ended by itself: {}", self.text()?);
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a handler for a volume, and waits until it serves.
fn served(cluster: &Cluster, daemon: &Daemon, lun: u16, image: &str, more: &[&str]) -> Result<Handler> {
    let mut handler = Handler::start(cluster, &daemon.socket(lun), image, more)?;
    handler.until("serving volume")?;
    Ok(handler)
}

/// Writes through Lunar, and reads the image by a tool of Ceph.
fn written(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    cluster.run(&["rbd", "create", "--size", "64M", "rbd/image"])?;
    let handler = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    let mut session = daemon.session(IMAGE)?;
    let blocks = 128;
    let len = blocks as usize * BLOCK;
    let places = [0, 8191, 100_000];
    for (generation, place) in (1..).zip(places) {
        session.run(&cdb::write(place, blocks), Data::Out(pattern(place, generation, len)))?.good()?;
    }
    session.logout()?;
    drop(handler);
    let copy = cluster.folder.join("copy").display().to_string();
    cluster.run(&["rbd", "export", "--no-progress", "rbd/image", &copy])?;
    let bytes = std::fs::read(&copy)?;
    ensure!(bytes.len() as u64 == SIZE, "the image has {} bytes", bytes.len());
    for (generation, place) in (1..).zip(places) {
        let at = usize::try_from(place)? * BLOCK;
        ensure!(bytes[at..][..len] == pattern(place, generation, len), "block {place} differs");
    }
    Ok(())
}

fn killed(lab: &Lab, cluster: &Cluster, daemon: &Daemon, rounds: u64) -> Result<()> {
    let mut random = Random::new(lab.seed);
    let mut handler = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    let before = daemon.listed(IMAGE)?;
    let writer = VerifyingWriter::start(daemon.portal, TARGET, IMAGE, lab.seed)?;
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_millis(50 + random.below(300)));
        handler.kill()?;
        let begun = Instant::now();
        handler = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
        writer.expect_progress()?;
        slowest = slowest.max(begun.elapsed());
    }
    writer.finish()?;
    let after = daemon.listed(IMAGE)?;
    let more = |key: &str| after[key].as_u64().unwrap_or(0).saturating_sub(before[key].as_u64().unwrap_or(0));
    ensure!(more("replayed") > 0, "no command was sent again: the kills test nothing: {after}");
    ensure!(more("faults") == 0 && more("timed-out") == 0, "{after}");
    // Without the end of its lock a dead client keeps an image for 30 seconds.
    ensure!(slowest < Duration::from_secs(25), "a successor needed {slowest:?}");
    lab.report.note(&format!("rbd: the slowest successor of a killed process needed {} ms", slowest.as_millis()));
    let blocked = cluster.run(&["ceph", "osd", "blocklist", "ls"])?;
    let count = blocked.lines().filter(|line| line.contains("127.0.0.1")).count() as u64;
    ensure!(count >= rounds, "{rounds} processes were killed, and {count} are on the block list: {blocked}");
    drop(handler);
    Ok(())
}

fn degraded(lab: &Lab, cluster: &mut Cluster, daemon: &Daemon) -> Result<()> {
    let _handler = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    let writer = VerifyingWriter::start(daemon.portal, TARGET, IMAGE, lab.seed)?;
    cluster.kill_store(1)?;
    cluster.until_stores(STORES - 1)?;
    writer.expect_progress()?;
    cluster.kill_monitor()?;
    writer.expect_progress()?;
    cluster.start_monitor()?;
    cluster.start_store(1)?;
    cluster.until_stores(STORES)?;
    writer.expect_progress()?;
    writer.finish()?;
    Ok(())
}

fn second(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    let first = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    let other = daemon.folder.join("nothing.sock");
    let (succeeded, text) = Handler::start(cluster, &other, "rbd/image", &[])?.ended()?;
    ensure!(!succeeded && text.contains("has the lock of the image"), "{text}");
    let mut waiting = Handler::start(cluster, &daemon.socket(IMAGE), "rbd/image", &["--stand-by"])?;
    waiting.until("standing by")?;
    signal(&first.child, Signal::TERM)?;
    let status = { first }.child.wait()?;
    ensure!(status.success(), "lunar-rbd ends with {status} when it is asked to");
    waiting.until("serving volume")?;
    let mut session = daemon.session(IMAGE)?;
    session.run(&cdb::write(0, 1), Data::Out(vec![2; BLOCK]))?.good()?;
    session.logout()
}

fn blocked(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    let handler = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    let mut session = daemon.session(IMAGE)?;
    session.run(&cdb::write(0, 1), Data::Out(vec![3; BLOCK]))?.good()?;
    let locks: Value = serde_json::from_str(&cluster.run(&["rbd", "lock", "ls", "--format", "json", "rbd/image"])?)?;
    let address = locks[0]["address"].as_str().with_context(|| format!("there is no lock: {locks}"))?;
    cluster.run(&["ceph", "osd", "blocklist", "add", address])?;
    // The stores learn of it a moment later.
    let (mut last, end) = (3, Instant::now() + LIMIT);
    loop {
        let done = session.run(&cdb::write(0, 1), Data::Out(vec![last + 1; BLOCK]))?;
        if done.status != GOOD {
            ensure!(done.sense().0 == NOT_READY, "the write ends with {:02x?}", done.sense());
            break;
        }
        last = if last == 100 { 3 } else { last + 1 };
        ensure!(Instant::now() < end, "a client on the block list can write");
    }
    let (succeeded, text) = handler.ended()?;
    ensure!(!succeeded && text.contains("block list"), "{text}");
    let _next = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    ensure!(session.read(0, 1, BLOCK)? == [last; BLOCK], "a write that has failed was executed");
    session.run(&cdb::write(0, 1), Data::Out(vec![5; BLOCK]))?.good()?;
    session.logout()
}

fn snapshot(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    let _image = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    let mut session = daemon.session(IMAGE)?;
    session.run(&cdb::write(64, 1), Data::Out(vec![6; BLOCK]))?.good()?;
    cluster.run(&["rbd", "snap", "create", "--no-progress", "rbd/image@before"])?;
    session.run(&cdb::write(64, 1), Data::Out(vec![7; BLOCK]))?.good()?;
    session.logout()?;
    let _snapshot = served(cluster, daemon, SNAPSHOT, "rbd/image@before", &[])?;
    let mut session = daemon.session(SNAPSHOT)?;
    ensure!(session.read(64, 1, BLOCK)? == [6; BLOCK], "the snapshot has later data");
    let done = session.run(&cdb::write(64, 1), Data::Out(vec![8; BLOCK]))?;
    ensure!(done.sense().0 == DATA_PROTECT, "a write ends with {:02x?}", done.sense());
    session.logout()
}

fn without_object_map(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    let features = ["--image-feature", "layering,exclusive-lock"];
    cluster.run(&[&["rbd", "create", "--size", "64M"][..], &features, &["rbd/mapless"]].concat())?;
    let _handler = served(cluster, daemon, IMAGE, "rbd/mapless", &[])?;
    let mut session = daemon.session(IMAGE)?;
    extents::holes(&mut session)?;
    session.logout()
}

fn full(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    let _handler = served(cluster, daemon, IMAGE, "rbd/image", &[])?;
    let mut session = daemon.session(IMAGE)?;
    // A ratio below an earlier one has no effect.
    let ratios = ["nearfull", "backfillfull", "full"];
    let set = |values: [&str; 3]| -> Result<()> {
        for (ratio, value) in ratios.iter().zip(values) {
            cluster.run(&["ceph", "osd", &format!("set-{ratio}-ratio"), value])?;
        }
        Ok(())
    };
    set(["0.0001", "0.0002", "0.0003"])?;
    let end = Instant::now() + LIMIT;
    // A write to blocks that were never written needs space.
    let mut place = 1 << 16;
    let mut write = |place: u64| session.run(&cdb::write(place, 8), Data::Out(vec![2; 8 * BLOCK]));
    let refused = loop {
        place += 8;
        let done = write(place)?;
        if done.status != GOOD {
            break done.sense();
        }
        ensure!(Instant::now() < end, "a full cluster takes writes");
        std::thread::sleep(Duration::from_millis(100));
    };
    ensure!(refused == NO_SPACE, "a write to a full cluster ends with {refused:02x?}");
    set(["0.85", "0.9", "0.95"])?;
    while write(place)?.status != GOOD {
        ensure!(Instant::now() < end, "writes do not go on when there is space");
        std::thread::sleep(Duration::from_millis(100));
    }
    ensure!(session.read(place, 1, BLOCK)? == [2; BLOCK], "other data is read");
    session.logout()
}

fn encrypted(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    let key = cluster.folder.join("passphrase");
    std::fs::write(&key, "a passphrase\n")?;
    // The tool takes the line end as a part of the passphrase.
    let bare = cluster.folder.join("bare");
    std::fs::write(&bare, "a passphrase")?;
    let (key, bare) = (key.display().to_string(), bare.display().to_string());
    // The header takes the first bytes of the image.
    cluster.run(&["rbd", "create", "--size", "128M", "rbd/secret"])?;
    cluster.run(&["rbd", "encryption", "format", "rbd/secret", "luks2", &bare])?;
    let more = ["--encryption", "luks2", "--passphrase-file", &key];
    let mut handler = served(cluster, daemon, IMAGE, "rbd/secret", &more)?;
    let mut session = daemon.session(IMAGE)?;
    session.run(&cdb::write(2048, 1), Data::Out(vec![9; BLOCK]))?.good()?;
    ensure!(session.read(2048, 1, BLOCK)? == [9; BLOCK], "other data is read");
    session.logout()?;
    cluster.run(&["rbd", "resize", "--no-progress", "--size", "160M", "rbd/secret"])?;
    handler.until("Set `size` of the volume")?;
    handler.kill()?;
    let copy = cluster.folder.join("secret").display().to_string();
    cluster.run(&["rbd", "export", "--no-progress", "rbd/secret", &copy])?;
    let bytes = std::fs::read(&copy)?;
    ensure!(!bytes.chunks(BLOCK).any(|block| block == [9; BLOCK]), "the data is not encrypted");
    std::fs::write(&key, "another one")?;
    let (succeeded, text) = Handler::start(cluster, &daemon.socket(IMAGE), "rbd/secret", &more)?.ended()?;
    ensure!(!succeeded && text.contains("cannot be decrypted"), "{text}");
    Ok(())
}

fn unlocked(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    cluster.run(&["rbd", "create", "--size", "64M", "--image-feature", "layering", "rbd/plain"])?;
    let (succeeded, text) = Handler::start(cluster, &daemon.socket(IMAGE), "rbd/plain", &[])?.ended()?;
    ensure!(!succeeded && text.contains("rbd feature enable"), "{text}");
    let (succeeded, text) = Handler::start(cluster, &daemon.socket(IMAGE), "rbd/nothing", &[])?.ended()?;
    ensure!(!succeeded && text.contains("the image cannot be opened"), "{text}");
    Ok(())
}

fn unsafe_image(cluster: &Cluster, daemon: &Daemon) -> Result<()> {
    // A dead client keeps its lock for a while: not that of the image of the other cases.
    cluster.run(&["rbd", "create", "--size", "64M", "rbd/other"])?;
    let refused = |words: &str| -> Result<()> {
        let (succeeded, text) = Handler::start(cluster, &daemon.socket(IMAGE), "rbd/other", &[])?.ended()?;
        ensure!(!succeeded && text.contains(words), "{text}");
        Ok(())
    };
    cluster.run(&["rbd", "config", "image", "set", "rbd/other", "rbd_cache", "true"])?;
    refused("rbd_cache = true")?;
    cluster.run(&["rbd", "config", "image", "remove", "rbd/other", "rbd_cache"])?;
    // It would give the lock to everybody who asks.
    let log = cluster.folder.join("bench.out");
    let load = ["rbd", "bench", "--io-type", "write", "--io-threads", "1", "--io-total", "64G", "rbd/other"];
    let mut writer = cluster.spawn(&load, &log)?;
    let checked = (|| {
        let end = Instant::now() + LIMIT;
        while cluster.run(&["rbd", "lock", "ls", "rbd/other"])?.trim().is_empty() {
            ensure!(Instant::now() < end, "rbd bench does not lock the image");
        }
        refused("has the lock of the image")?;
        ensure!(writer.try_wait()?.is_none(), "rbd bench has ended: {}", std::fs::read_to_string(&log)?);
        Ok(())
    })();
    writer.kill()?;
    writer.wait()?;
    checked
}
