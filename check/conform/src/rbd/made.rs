//! Images, snapshots and clones that Lunar makes in the cluster.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::Cluster;
use super::extents::{OBJECT_BLOCKS, extents, holes};
use super::kind::until;
use super::{BLOCK, DATA_PROTECT};
use crate::handler::daemon::{Daemon, TARGET};
use crate::libiscsi;
use crate::session::{Data, GOOD, cdb};
use crate::target::Lab;
use crate::test_data::pattern;
use crate::verifying_writer::VerifyingWriter;

/// The volume that copies are made of, its LUN, and its image.
const SOURCE: (&str, u16, &str) = ("own", 0, "rbd/own");
/// The first block of the data that the cases write, and its blocks.
const PLACE: u64 = 4096;
const BLOCKS: u32 = 8;

type Check<'a> = dyn Fn(&str, &mut dyn FnMut() -> Result<()>) -> bool + 'a;

pub(super) fn part(daemon: Option<&Daemon>, cluster: &Cluster, check: &Check<'_>) {
    let Some(daemon) = daemon else { return };
    check("Lunar makes an image, and none in the place of one", &mut || image(daemon, cluster));
    check("an image whose volume cannot be created is removed again", &mut || undone(daemon, cluster));
    check("Lunar makes snapshots and clones, whose data stays", &mut || copies(daemon, cluster));
    check("a clone of an image leaves no snapshot, where all clients know such clones", &mut || {
        cluster.run(&["ceph", "osd", "set-require-min-compat-client", "mimic"])?;
        daemon.succeeds(&["volume", "clone", SOURCE.0, "second"])?;
        let left = snapshots(cluster)?;
        ensure!(!left.contains("lunar-clone-second"), "the image has snapshots: {left}");
        let second = Mapped::new(daemon, 9, "second")?;
        ensure!(second.read()? == data(2), "the clone has other data");
        second.end()
    });
    check("an image goes back to a snapshot while no volume has it", &mut || rolled_back(daemon, cluster));
    check("snapshots and clones under a verifying load", &mut || under_load(daemon, cluster));
    check("GET LBA STATUS returns which objects of an image and of its clone are mapped", &mut || {
        mapped(daemon, cluster)
    });
    check("the space of the pool is in the status, and more promises than it has are a trouble", &mut || {
        pool(daemon, cluster)
    });
}

/// The pool of all images.
const POOL: &str = "rbd";
/// The suites of the short form.
const SUITES: &[&str] = &["Read10", "Write10", "CompareAndWrite", "Unmap", "WriteSame16", "GetLBAStatus"];

/// Runs the conformance suite of libiscsi on an image; all of it in the whole form.
pub(super) fn suites(lab: &Lab, daemon: &mut Daemon, cluster: &Cluster) -> Result<()> {
    let configuration = cluster.configuration().display().to_string();
    daemon.succeeds(&create("suite", "rbd/suite", &configuration, &["--size", "30M"]))?;
    daemon.succeeds(&["group", "map", "all", "10", "suite"])?;
    let url = format!("iscsi://{}/{TARGET}/10", daemon.portal);
    let chosen = if lab.whole { &[] } else { SUITES };
    libiscsi::on_handler(lab, "rbd/libiscsi", &url, chosen, || daemon.target.healthy())?;
    daemon.succeeds(&["group", "unmap", "all", "10", "--force"])?;
    daemon.succeeds(&["volume", "delete", "suite"])?;
    Ok(())
}

/// A command that is refused, with these words.
fn fails(daemon: &Daemon, words: &[&str], why: &str) -> Result<()> {
    let text = match daemon.operate(words)?.succeeded() {
        Ok(text) => anyhow::bail!("{} succeeds: {text}", words.join(" ")),
        Err(text) => format!("{text:#}"),
    };
    ensure!(text.contains(why), "{} fails without '{why}': {text}", words.join(" "));
    Ok(())
}

fn data(generation: u64) -> Vec<u8> {
    pattern(PLACE, generation, BLOCKS as usize * BLOCK)
}

/// A volume at a LUN, as long as a case needs it.
struct Mapped<'a> {
    daemon: &'a Daemon,
    lun: u16,
    volume: &'a str,
}

impl<'a> Mapped<'a> {
    fn new(daemon: &'a Daemon, lun: u16, volume: &'a str) -> Result<Self> {
        daemon.succeeds(&["group", "map", "all", &lun.to_string(), volume])?;
        Ok(Self { daemon, lun, volume })
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut session = self.daemon.session(self.lun)?;
        let bytes = session.read(PLACE, BLOCKS, BLOCK)?;
        session.logout()?;
        Ok(bytes)
    }

    /// Writes; returns the sense data if that is refused.
    fn write(&self, generation: u64) -> Result<Option<(u8, u8, u8)>> {
        let mut session = self.daemon.session(self.lun)?;
        let done = session.run(&cdb::write(PLACE, BLOCKS), Data::Out(data(generation)))?;
        session.logout()?;
        Ok((done.status != GOOD).then(|| done.sense()))
    }

    fn end(self) -> Result<()> {
        self.daemon.succeeds(&["group", "unmap", "all", &self.lun.to_string(), "--force"])?;
        self.daemon.succeeds(&["volume", "delete", self.volume])?;
        Ok(())
    }
}

fn info(cluster: &Cluster, image: &str) -> Result<Value> {
    Ok(serde_json::from_str(&cluster.run(&["rbd", "info", "--format", "json", image])?)?)
}

fn snapshots(cluster: &Cluster) -> Result<String> {
    cluster.run(&["rbd", "snap", "ls", SOURCE.2])
}

/// The arguments that create a volume with an image of this name, and further ones.
fn create<'a>(volume: &'a str, image: &'a str, configuration: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let words = ["volume", "create", volume, "--kind", "rbd", "--image", image, "--ceph-config", configuration];
    [&words, more].concat()
}

fn image(daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let configuration = cluster.configuration().display().to_string();
    let made = create("fresh", "rbd/fresh", &configuration, &["--size", "32M"]);
    let plan = daemon.succeeds(&[&made[..], &["--dry-run"]].concat())?;
    ensure!(plan.contains("is made, with 32 MiB"), "the plan is {plan}");
    ensure!(info(cluster, "rbd/fresh").is_err(), "a plan makes an image");
    daemon.succeeds(&made)?;
    let found = info(cluster, "rbd/fresh")?;
    ensure!(found["size"] == 32 << 20 && found["features"].to_string().contains("exclusive-lock"), "{found}");
    let shown = daemon.ask(&["volume", "show", "fresh"])?;
    ensure!(shown["keys"]["size"].is_null(), "the configuration has the size of the image: {shown}");
    let fresh = Mapped::new(daemon, 5, "fresh")?;
    ensure!(fresh.write(3)?.is_none() && fresh.read()? == data(3), "the image does not have what was written");
    fails(daemon, &create("twice", "rbd/fresh@s", &configuration, &["--size", "32M", "--read-only"]), "is a snapshot")?;
    fails(daemon, &create("twice", "rbd/none", &configuration, &[]), "the image cannot be opened")?;
    fails(daemon, &create("twice", "rbd/odd", &configuration, &["--size", "1000"]), "not a whole number of")?;
    ensure!(fresh.read()? == data(3), "a refused command has changed the image");
    fresh.end()?;
    info(cluster, "rbd/fresh").context("the image of a volume that is deleted stays")?;
    fails(daemon, &made, "there is an image of this name")
}

fn undone(daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let configuration = cluster.configuration().display().to_string();
    // It is no passphrase, but a file that the process may read.
    let more = ["--size", "32M", "--encryption", "luks2", "--passphrase-file", &configuration];
    fails(daemon, &create("secret", "rbd/undone", &configuration, &more), "is longer than a passphrase")?;
    ensure!(info(cluster, "rbd/undone").is_err(), "the image is left");
    ensure!(!daemon.ask(&["volume", "list"])?.to_string().contains("\"secret\""), "the volume is left");
    Ok(())
}

fn copies(daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let source = Mapped { daemon, lun: SOURCE.1, volume: SOURCE.0 };
    ensure!(source.write(1)?.is_none(), "the volume takes no writes");
    let said = daemon.succeeds(&["volume", "snapshot", SOURCE.0, "before"])?;
    ensure!(said.contains("rbd/own@before"), "{said}");
    ensure!(source.write(2)?.is_none(), "the volume takes no writes");
    let before = Mapped::new(daemon, 6, "before")?;
    ensure!(before.read()? == data(1), "the snapshot has other data");
    let refused = before.write(4)?.context("a snapshot takes writes")?;
    ensure!(refused.0 == DATA_PROTECT, "a write to a snapshot ends with {refused:02x?}");
    daemon.succeeds(&["volume", "clone", "before", "early"])?;
    daemon.succeeds(&["volume", "clone", SOURCE.0, "late", "--path", "rbd/late-image"])?;
    let parent = info(cluster, "rbd/early")?["parent"].clone();
    ensure!(parent["image"] == "own" && parent["snapshot"] == "before", "the parent of the clone is {parent}");
    let early = Mapped::new(daemon, 7, "early")?;
    let late = Mapped::new(daemon, 8, "late")?;
    ensure!(early.read()? == data(1) && late.read()? == data(2), "the clones have other data");
    ensure!(early.write(5)?.is_none() && late.write(6)?.is_none(), "the clones take no writes");
    ensure!(early.read()? == data(5) && late.read()? == data(6), "the clones do not have what was written");
    ensure!(source.read()? == data(2) && before.read()? == data(1), "a clone has changed its source");
    fails(daemon, &["volume", "snapshot", "before", "deeper"], "clone it")?;
    fails(daemon, &["volume", "copy", SOURCE.0, "whole"], "clone it")?;
    cluster.run(&["rbd", "snap", "create", "--no-progress", "rbd/own@tool"])?;
    let same = ["volume", "snapshot", SOURCE.0, "again", "--path", "rbd/own@tool"];
    fails(daemon, &same, "there is a snapshot of this name")?;
    fails(daemon, &["volume", "clone", SOURCE.0, "again", "--path", "rbd/fresh"], "there is an image of this name")?;
    let other = ["volume", "snapshot", SOURCE.0, "again", "--path", "rbd/early@again"];
    fails(daemon, &other, "is no snapshot of rbd/own")?;
    [early, late, before].into_iter().try_for_each(Mapped::end)
}

fn rolled_back(daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let configuration = cluster.configuration().display().to_string();
    daemon.succeeds(&create("back", "rbd/back", &configuration, &["--size", "32M"]))?;
    let back = Mapped::new(daemon, 11, "back")?;
    ensure!(back.write(1)?.is_none(), "the volume takes no writes");
    daemon.succeeds(&["volume", "snapshot", "back", "then"])?;
    ensure!(back.write(2)?.is_none() && back.read()? == data(2), "the volume does not have what was written");
    let roll_back = ["rbd", "snap", "rollback", "--no-progress", "rbd/back@then"];
    ensure!(cluster.run(&roll_back).is_err() && back.read()? == data(2), "an image changes while it is served");
    back.end()?;
    until("the image is not given free", || Ok(cluster.run(&roll_back).is_ok()))?;
    daemon.succeeds(&create("back", "rbd/back", &configuration, &[]))?;
    let back = Mapped::new(daemon, 11, "back")?;
    ensure!(back.read()? == data(1), "the image has other data than the snapshot");
    back.end()?;
    daemon.succeeds(&["volume", "delete", "then"])?;
    Ok(())
}

fn under_load(daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let writer = VerifyingWriter::start(daemon.portal, TARGET, SOURCE.1, 7)?;
    for round in 0..3 {
        let (snapshot, clone) = (format!("moment-{round}"), format!("branch-{round}"));
        daemon.succeeds(&["volume", "snapshot", SOURCE.0, &snapshot])?;
        daemon.succeeds(&["volume", "clone", SOURCE.0, &clone])?;
        writer.expect_progress()?;
        [clone, snapshot].iter().try_for_each(|volume| daemon.succeeds(&["volume", "delete", volume]).map(drop))?;
        cluster.run(&["rbd", "rm", "--no-progress", &format!("rbd/branch-{round}")])?;
        cluster.run(&["rbd", "snap", "rm", "--no-progress", &format!("rbd/own@moment-{round}")])?;
    }
    writer.finish()?;
    Ok(())
}

fn mapped(daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let configuration = cluster.configuration().display().to_string();
    daemon.succeeds(&create("thin", "rbd/thin", &configuration, &["--size", "48M"]))?;
    let thin = Mapped::new(daemon, 12, "thin")?;
    let mut session = daemon.session(thin.lun)?;
    holes(&mut session)?;
    session.logout()?;
    // The parent of a clone may have data anywhere.
    daemon.succeeds(&["volume", "clone", "thin", "twin"])?;
    let twin = Mapped::new(daemon, 13, "twin")?;
    let mut session = daemon.session(twin.lun)?;
    let found = extents(&mut session, 0)?;
    ensure!(found == [(0, 12 * OBJECT_BLOCKS, true)], "a clone has the extents {found:?}");
    session.logout()?;
    twin.end()?;
    thin.end()
}

/// The pool in the status.
fn shown(daemon: &Daemon) -> Result<Option<Value>> {
    let status = daemon.ask(&["status"])?;
    let stores = status["stores"].as_array().context("a list of stores")?;
    Ok(stores.iter().find(|store| store["name"] == POOL).cloned())
}

/// Whether the pool has promised more than it has.
fn is_over_committed(daemon: &Daemon) -> Result<bool> {
    let status = daemon.ask(&["status"])?;
    let troubles = status["troubles"].as_array().context("a list of troubles")?;
    Ok(troubles.iter().any(|trouble| {
        trouble["kind"] == "over-committed"
            && trouble["subject"] == "Ceph pool rbd"
            && trouble["remedy"].as_str().is_some_and(|remedy| remedy.contains("`ceph df`"))
    }))
}

fn pool(daemon: &Daemon, cluster: &Cluster) -> Result<()> {
    let configuration = cluster.configuration().display().to_string();
    until("the pool is not in the status", || Ok(shown(daemon)?.is_some()))?;
    let store = shown(daemon)?.context("it was there")?;
    let told: Value = serde_json::from_str(&cluster.run(&["ceph", "df", "--format", "json"])?)?;
    let pools = told["pools"].as_array().context("a list of pools")?;
    let stats = pools.iter().find(|pool| pool["name"] == POOL).context("the pool")?["stats"].clone();
    let (free, wanted) = (store["free"].as_u64().unwrap_or(0), stats["max_avail"].as_u64().unwrap_or(0));
    // The stores of the cluster write meanwhile.
    ensure!(wanted > 0 && free.abs_diff(wanted) < wanted / 4, "{free} bytes are free, and `ceph df` says {stats}");
    ensure!(store["promised"].as_u64() > Some(0) && !is_over_committed(daemon)?, "the status has {store}");
    daemon.succeeds(&create("large", "rbd/large", &configuration, &["--size", "64G"]))?;
    until("more promises than space are no trouble", || is_over_committed(daemon))?;
    daemon.succeeds(&["volume", "delete", "large"])?;
    until("the trouble stays", || Ok(!is_over_committed(daemon)?))
}
