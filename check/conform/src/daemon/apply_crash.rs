//! kill -9 while the API puts a configuration in force: the file, the history and what a start serves are one of the
//! two versions, and the new one if the operator was acknowledged that it is in force.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::fixture::{ConfigChange, Daemon, LIMIT, api, luns, started_with, uuids};
use crate::process;
use crate::target::{Driver, Lab};
use crate::test_data::Random;

/// Steps of about this length between the request and the blow: some fall before anything is done, some after all.
const STEP: Duration = Duration::from_micros(100);
/// Applies that are timed before the first blow.
const TIMED: u32 = 3;

/// A configuration, and the LUNs that initiators see by it.
struct Version {
    text: String,
    luns: Vec<u8>,
}

/// What a round found.
struct Found {
    /// Whether the new version is in force.
    is_new: bool,
    /// Whether the operator was acknowledged so.
    is_acknowledged: bool,
}

/// Kills the daemon so many times while `lunar apply` is under way.
pub(super) fn part(lab: &Lab, driver: Driver, rounds: u32) -> Result<()> {
    let mut more = String::from("[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n");
    // Long enough that its writing takes a while.
    more.extend((0..40).map(|at| format!("[volume.more{at}]\nkind = \"null\"\nsize = \"1M\"\n")));
    let grown = ConfigChange { luns: "0 = \"disk\", 2 = \"third\", 3 = \"more7\"", ..ConfigChange::default() };
    let mut daemon = started_with(lab, driver, "applies", api)?;
    let versions = [
        Version { text: daemon.text(&ConfigChange::default()) + &api(&daemon.folder), luns: vec![0, 4] },
        Version { text: daemon.text(&grown) + &api(&daemon.folder) + &more, luns: vec![0, 2, 3] },
    ];
    let mut random = Random::new(lab.seed);
    let usual = usual_time(lab, &daemon, &versions)?;
    let (mut known, mut new, mut acknowledged) = (None, 0, 0);
    let mut current = usize::from(TIMED % 2 == 1);
    for round in 0..rounds {
        let wanted = 1 - current;
        let delay = STEP * u32::try_from(random.below((usual.as_micros() / STEP.as_micros()) as u64 * 3 / 2))?;
        let found = one(lab, &mut daemon, (&versions[current], &versions[wanted]), delay, &mut known);
        let found = found.with_context(|| format!("round {round}, after {delay:?}"))?;
        new += u32::from(found.is_new);
        acknowledged += u32::from(found.is_acknowledged);
        current = if found.is_new { wanted } else { current };
    }
    lab.report.note(&format!(
        "{rounds} applies killed: {} old versions, {new} new ones ({acknowledged} acknowledged)",
        rounds - new
    ));
    daemon.stop()
}

fn apply(lab: &Lab, daemon: &Daemon, version: &Version) -> Result<Child> {
    let file = daemon.folder.join("wanted.toml");
    std::fs::write(&file, &version.text)?;
    let mut command = process::bound(lab.built()?);
    command.arg("apply").arg(file).arg("--socket").arg(daemon.folder.join("api.sock"));
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start lunar apply")
}

/// How long an apply takes that nobody disturbs; the last of them leaves the second version, or the first, in force.
fn usual_time(lab: &Lab, daemon: &Daemon, versions: &[Version; 2]) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for at in 1..=TIMED as usize {
        let since = Instant::now();
        let mut child = apply(lab, daemon, &versions[at % 2])?;
        let ended = process::wait(&mut child, LIMIT)?.context("lunar apply does not end")?;
        longest = longest.max(since.elapsed());
        ensure!(ended.success(), "lunar apply ends with {ended}: {}", stderr_of(child));
    }
    Ok(longest)
}

fn stderr_of(child: Child) -> String {
    let stderr = child.wait_with_output().map(|output| output.stderr).unwrap_or_default();
    String::from_utf8_lossy(&stderr).into_owned()
}

fn one(
    lab: &Lab,
    daemon: &mut Daemon,
    (old, new): (&Version, &Version),
    delay: Duration,
    known: &mut Option<Vec<String>>,
) -> Result<Found> {
    let mut child = apply(lab, daemon, new)?;
    std::thread::sleep(delay);
    daemon.target.take().context("it runs")?.kill()?;
    let ended = process::wait(&mut child, LIMIT)?.context("lunar apply does not end")?;
    let is_acknowledged = ended.success();
    let text = std::fs::read_to_string(daemon.file())?;
    let is_new = without_uuids(&text) == new.text;
    ensure!(is_new || without_uuids(&text) == old.text, "the file is neither version:\n{text}");
    ensure!(
        is_new || !is_acknowledged,
        "the operator was acknowledged that the new version is in force, and it is not"
    );
    daemon.start(lab)?;
    let mut session = daemon.session_after_kill()?;
    let (seen, wanted) = (luns(&mut session)?, if is_new { &new.luns } else { &old.luns });
    ensure!(seen == *wanted, "it serves {seen:?}, not {wanted:?}");
    session.logout()?;
    let text = std::fs::read_to_string(daemon.file())?;
    ensure!(
        without_uuids(&text) == if is_new { &*new.text } else { &*old.text },
        "the start changed the file:\n{text}"
    );
    whole_history(&daemon.folder.join("state/history"), &text, [old, new])?;
    let own = uuids(&daemon.file())?.into_iter().take(2).collect::<Vec<_>>();
    ensure!(*known.get_or_insert_with(|| own.clone()) == own, "volumes are others now: {own:?}");
    Ok(Found { is_new, is_acknowledged })
}

fn without_uuids(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("uuid")).map(|line| format!("{line}\n")).collect()
}

/// Every version that is kept is a whole one, and the last of them is in force.
fn whole_history(folder: &Path, current: &str, versions: [&Version; 2]) -> Result<()> {
    let mut all: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        all.push(entry?.path());
    }
    all.sort();
    for path in &all {
        let text = std::fs::read_to_string(path)?;
        let is_whole = versions.iter().any(|version| without_uuids(&text) == version.text);
        ensure!(is_whole, "{} is no version:\n{text}", path.display());
    }
    let last = std::fs::read_to_string(all.last().context("there is no history")?)?;
    ensure!(last == current, "the last of the history is not what is in force");
    Ok(())
}
