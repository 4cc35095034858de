//! kill -9 while the API applies a configuration: the file, the history and what the next start serves are one of the
//! two versions, and the new one if `lunar apply` has reported success.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::fixture::{ConfigChange, Daemon, LIMIT, luns, started, uuids};
use crate::process;
use crate::target::{Driver, Lab};
use crate::test_data::Random;

/// The delay between the request and the kill is a multiple of this: some kills come before any change, some after all.
const STEP: Duration = Duration::from_micros(100);
/// Applies that are timed before the first kill.
const TIMED: u32 = 3;

/// A configuration, and the LUNs that initiators see with it.
struct Version {
    text: String,
    luns: Vec<u8>,
}

/// The result of a round.
struct RoundResult {
    /// Whether the new version was applied.
    is_new: bool,
    /// Whether `lunar apply` reported success.
    is_acknowledged: bool,
}

/// Kills the daemon this many times during `lunar apply`.
pub(super) fn part(lab: &Lab, driver: Driver, rounds: u32) -> Result<()> {
    let mut more = String::from("[volume.third]\nkind = \"ram\"\nsize = \"1M\"\n");
    // Long enough that writing the file takes a while.
    more.extend((0..40).map(|at| format!("[volume.more{at}]\nkind = \"null\"\nsize = \"1M\"\n")));
    let grown = ConfigChange { luns: "0 = \"disk\", 2 = \"third\", 3 = \"more7\"", ..ConfigChange::default() };
    let mut daemon = started(lab, driver, "applies")?;
    let versions = [
        Version { text: daemon.text(&ConfigChange::default()), luns: vec![0, 4] },
        Version { text: daemon.text(&grown) + &more, luns: vec![0, 2, 3] },
    ];
    let mut random = Random::new(lab.seed);
    let usual_apply = usual_time(lab, &daemon, &versions)?;
    let (mut known, mut new, mut acknowledged) = (None, 0, 0);
    let mut current = usize::from(TIMED % 2 == 1);
    for round in 0..rounds {
        let wanted = 1 - current;
        let delay = STEP * u32::try_from(random.below((usual_apply.as_micros() / STEP.as_micros()) as u64 * 3 / 2))?;
        let found = run_round(lab, &mut daemon, (&versions[current], &versions[wanted]), delay, &mut known);
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
    command.args(["apply", "--force"]).arg(file).arg("--socket").arg(daemon.folder.join("api.sock"));
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start lunar apply")
}

/// How long an undisturbed apply takes. Applies the two versions in turn.
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

fn run_round(
    lab: &Lab,
    daemon: &mut Daemon,
    (old, new): (&Version, &Version),
    delay: Duration,
    known: &mut Option<Vec<String>>,
) -> Result<RoundResult> {
    let mut child = apply(lab, daemon, new)?;
    std::thread::sleep(delay);
    daemon.target.take().context("the daemon runs")?.kill()?;
    let ended = process::wait(&mut child, LIMIT)?.context("lunar apply does not end")?;
    let is_acknowledged = ended.success();
    let text = std::fs::read_to_string(daemon.file())?;
    let is_new = without_uuids(&text) == new.text;
    ensure!(is_new || without_uuids(&text) == old.text, "the file is neither version:\n{text}");
    ensure!(is_new || !is_acknowledged, "lunar apply reported success, and the new version was not applied");
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
    ensure!(*known.get_or_insert_with(|| own.clone()) == own, "the UUIDs of volumes changed: {own:?}");
    Ok(RoundResult { is_new, is_acknowledged })
}

fn without_uuids(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("uuid")).map(|line| format!("{line}\n")).collect()
}

/// Every version of the history is complete, and the last one is the applied one.
fn whole_history(folder: &Path, current: &str, versions: [&Version; 2]) -> Result<()> {
    let mut all: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        all.push(entry?.path());
    }
    all.sort();
    for path in &all {
        let text = std::fs::read_to_string(path)?;
        let is_whole = versions.iter().any(|version| without_uuids(&text) == version.text);
        ensure!(is_whole, "{} is neither version:\n{text}", path.display());
    }
    let last = std::fs::read_to_string(all.last().context("there is no history")?)?;
    ensure!(last == current, "the last version of the history is not the applied one");
    Ok(())
}
