//! As many volumes and initiator groups as a large house has: a change and a look stay quick, and each initiator sees
//! what is its own.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::fixture::{ConfigChange, Daemon, MAIN, api, lunar, luns, started_with};
use crate::process;
use crate::target::{Driver, Lab};

const VOLUMES: usize = 4096;
const GROUPS: usize = 1000;
/// Logical units of each group.
const EACH: usize = 4;
/// What an apply may take, also where it is built for development and the machine is busy: what needs more than time in
/// proportion takes minutes.
const APPLY_LIMIT: Duration = Duration::from_secs(60);
/// What a list may take there.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// Makes them all at once, looks at them, and takes them away again.
pub(super) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started_with(lab, driver, "many", api)?;
    let few = daemon.text(&ConfigChange::default()) + &api(&daemon.folder);
    let before = memory(&daemon)?;
    let apply = timed(lab, &daemon, &few_and_many(&few))?;
    let list = {
        let since = Instant::now();
        let output = lunar(lab, &daemon, &["volume", "list"])?;
        ensure!(output.lines().count() == VOLUMES + 3, "{} lines are listed", output.lines().count());
        since.elapsed()
    };
    let each = memory(&daemon)?.saturating_sub(before) / VOLUMES as u64;
    for group in [0, 7, GROUPS - 1] {
        let mut session = daemon.session(MAIN, &format!("many{group}"), 0)?;
        let seen = luns(&mut session)?;
        ensure!(seen == [0, 1, 2, 3], "an initiator of group {group} sees {seen:?}");
        // Each volume says which it is by its size.
        let (blocks, block) = session.capacity()?;
        ensure!(blocks * block as u64 == size(group * EACH), "it sees another's volume: {blocks} blocks");
    }
    let back = timed(lab, &daemon, &few)?;
    lab.report.note(&format!(
        "{VOLUMES} volumes and {GROUPS} groups: apply {} ms, list {} ms, back {} ms, {} KiB for each volume",
        apply.as_millis(),
        list.as_millis(),
        back.as_millis(),
        each / 1024,
    ));
    ensure!(apply < APPLY_LIMIT && back < APPLY_LIMIT, "an apply takes {apply:?}, and back {back:?}");
    ensure!(list < LIST_LIMIT, "a list takes {list:?}");
    daemon.stop()
}

fn size(volume: usize) -> u64 {
    (volume as u64 + 1) << 20
}

fn few_and_many(few: &str) -> String {
    let mut text = few.to_owned();
    for volume in 0..VOLUMES {
        let _ = write!(text, "[volume.v{volume}]\nkind = \"null\"\nsize = {}\n", size(volume));
    }
    for group in 0..GROUPS {
        let _ = write!(
            text,
            "[group.g{group}]\ntargets = [\"main\"]\ninitiators = [\"*:many{group}\"]\n[group.g{group}.luns]\n"
        );
        for lun in 0..EACH {
            let _ = writeln!(text, "{lun} = \"v{}\"", group * EACH + lun);
        }
    }
    text
}

fn memory(daemon: &Daemon) -> Result<u64> {
    let pid = daemon.target.as_ref().and_then(|target| target.pid()).context("it runs")?;
    process::resident_bytes(pid)
}

/// How long it takes to put this text in force.
fn timed(lab: &Lab, daemon: &Daemon, text: &str) -> Result<Duration> {
    let file = daemon.folder.join("wanted.toml");
    std::fs::write(&file, text)?;
    let since = Instant::now();
    lunar(lab, daemon, &["apply", &file.display().to_string()])?;
    Ok(since.elapsed())
}
