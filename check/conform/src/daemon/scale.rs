//! Thousands of volumes and groups: applying and listing stay fast, and each initiator sees its own volumes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::fixture::{ConfigChange, Daemon, MAIN, lunar, luns, started};
use crate::process;
use crate::target::{Driver, Lab};

const VOLUMES: usize = 4096;
const GROUPS: usize = 1000;
/// Logical units per group.
const EACH: usize = 4;
/// How long an apply may take, also in a development build on a busy machine. More than linear time would take minutes.
const APPLY_LIMIT: Duration = Duration::from_secs(60);
/// How long a list may take.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// Adds all volumes and groups in one change, lists them, and removes them.
pub(super) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let daemon = started(lab, driver, "many")?;
    let few = daemon.text(&ConfigChange::default());
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
        // The size of a volume identifies it.
        let (blocks, block) = session.capacity()?;
        ensure!(
            blocks * block as u64 == size(group * EACH),
            "an initiator sees a volume of another group: {blocks} blocks"
        );
    }
    let back = timed(lab, &daemon, &few)?;
    lab.report.note(&format!(
        "{VOLUMES} volumes and {GROUPS} groups: adding {} ms, listing {} ms, removing {} ms, {} KiB per volume",
        apply.as_millis(),
        list.as_millis(),
        back.as_millis(),
        each / 1024,
    ));
    ensure!(apply < APPLY_LIMIT && back < APPLY_LIMIT, "adding takes {apply:?}, and removing {back:?}");
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
    let pid = daemon.target.as_ref().and_then(|target| target.pid()).context("the daemon runs")?;
    process::resident_bytes(pid)
}

/// How long it takes to apply this text.
fn timed(lab: &Lab, daemon: &Daemon, text: &str) -> Result<Duration> {
    let file = daemon.folder.join("wanted.toml");
    std::fs::write(&file, text)?;
    let since = Instant::now();
    lunar(lab, daemon, &["apply", "--force", &file.display().to_string()])?;
    Ok(since.elapsed())
}
