//! libiscsi's conformance suite, one suite at a time, compared with the table of tests that cannot pass.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::loop_device::LoopDevice;
use crate::process;
use crate::report::Outcome;
use crate::target::{Driver, Lab, Spec, Subject, Target};

const TABLE: &str = include_str!("../libiscsi.toml");
const PROGRAM: &str = "iscsi-test-cu";
/// The suite that needs two paths to one logical unit: two sessions, which are mostly on two cores.
const TWO_PATHS: &str = "MultipathIO";
/// How long a suite may take. The slowest one waits six seconds for timeouts of its own.
const SUITE_LIMIT: Duration = Duration::from_secs(60);

/// Test or suite, and why it cannot pass.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// For every store.
    missing: BTreeMap<String, String>,
    /// For volumes without a removable medium.
    fixed: BTreeMap<String, String>,
    /// For volumes with a removable medium.
    removable: BTreeMap<String, String>,
    /// For writable volumes.
    writable: BTreeMap<String, String>,
    /// For blocks of 4096 bytes.
    large_blocks: BTreeMap<String, String>,
    /// For block devices.
    devices: BTreeMap<String, String>,
    /// For loop devices.
    loop_devices: BTreeMap<String, String>,
    /// For files and block devices.
    files: BTreeMap<String, String>,
    /// For volumes whose data a handler serves.
    handlers: BTreeMap<String, String>,
    /// Tests that are wrong in some versions of the suite: they may pass or fail.
    flawed: BTreeMap<String, String>,
}

/// The expected outcome of a test.
#[derive(Clone, Copy, Debug)]
enum Known<'a> {
    /// It must pass.
    Sound,
    /// It cannot pass.
    Missing(&'a str),
    /// It may pass.
    Flawed(&'a str),
}

impl Table {
    fn known(&self, suite: &str, test: &str, store: &Store<'_>) -> Known<'_> {
        let full = format!("{suite}.{test}");
        let mut tables = vec![&self.missing];
        tables.push(if store.removable { &self.removable } else { &self.fixed });
        if !store.read_only {
            tables.push(&self.writable);
        }
        if store.block == "4096" {
            tables.push(&self.large_blocks);
        }
        if store.kind == Kind::Block {
            tables.extend([&self.devices, &self.loop_devices]);
        }
        if matches!(store.kind, Kind::File | Kind::Block) {
            tables.push(&self.files);
        }
        if store.kind == Kind::Handler {
            tables.push(&self.handlers);
        }
        for table in tables {
            if let Some(reason) = table.get(&full).or_else(|| table.get(suite)) {
                return Known::Missing(reason);
            }
        }
        self.flawed.get(&full).map_or(Known::Sound, |reason| Known::Flawed(reason))
    }
}

/// The store of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Ram,
    /// A loop device.
    Block,
    /// A volume of a handler, which another part of the tests has started.
    Handler,
}

/// A configuration for the suites.
struct Store<'a> {
    name: &'static str,
    kind: Kind,
    block: &'static str,
    /// MiB: enough for every test, and fewer than 65536 blocks, from which on some tests exceed the limits of VPD page
    /// B0h with one write.
    mib: u64,
    flags: &'static [&'static str],
    read_only: bool,
    /// Whether the medium is removable.
    removable: bool,
    /// Whether to run it with the second driver as well: stores in memory do not depend on the driver.
    both: bool,
    /// The suites to run; all if empty.
    suites: &'a [&'a str],
}

/// The suites that depend on a removable or a read-only medium.
const OF_MEDIA: &[&str] =
    &["NoMedia", "PreventAllow", "StartStopUnit", "ReadOnly", "Inquiry", "TestUnitReady", "Read10"];

/// A volume in memory, from which the others differ.
const RAM: Store<'_> = Store {
    name: "ram-512",
    kind: Kind::Ram,
    block: "512",
    mib: 30,
    flags: &[],
    read_only: false,
    removable: false,
    both: false,
    suites: &[],
};

const STORES: [Store<'_>; 9] = [
    Store { name: "file-512", kind: Kind::File, both: true, ..RAM },
    Store { name: "file-4096", kind: Kind::File, block: "4096", mib: 100, flags: &["--direct"], ..RAM },
    RAM,
    Store { name: "ram-4096", block: "4096", mib: 100, ..RAM },
    Store { name: "block-512", kind: Kind::Block, ..RAM },
    Store { name: "protected", flags: &["--protection", "1"], ..RAM },
    Store {
        name: "read-only",
        flags: &["--read-only"],
        read_only: true,
        suites: &["ReadOnly", "Read10", "Read16", "Inquiry", "ReadCapacity16", "TestUnitReady", "ModeSense6"],
        ..RAM
    },
    Store { name: "removable", kind: Kind::File, removable: true, both: true, suites: OF_MEDIA, ..RAM },
    Store {
        name: "removable-read-only",
        flags: &["--read-only"],
        read_only: true,
        removable: true,
        suites: OF_MEDIA,
        ..RAM
    },
];

fn table() -> Result<Table> {
    toml::from_str(TABLE).context("check/conform/libiscsi.toml")
}

/// The tests that need not pass on a block device with several blocks of 512 bytes in each physical block: in each line
/// the test and the reason. A line may name a whole suite.
pub(crate) fn reasons_of_devices() -> Result<String> {
    let Table { missing, fixed, writable, devices, flawed, .. } = table()?;
    let all = [missing, fixed, writable, devices, flawed].into_iter().flatten();
    Ok(all.map(|(test, reason)| format!("{test} {reason}\n")).collect())
}

/// Runs these suites, all of them if none is given, on the volume of a handler at this URL: blocks of 512 bytes, 30
/// MiB. `healthy`: is called after each of them.
pub(crate) fn on_handler(
    lab: &Lab,
    part: &str,
    url: &str,
    chosen: &[&str],
    mut healthy: impl FnMut() -> Result<()>,
) -> Result<()> {
    let (table, store) = (table()?, Store { kind: Kind::Handler, suites: chosen, ..RAM });
    for suite in suites()? {
        run_suite(lab, part, (&store, &table), &suite, url);
        healthy().with_context(|| format!("after {suite}"))?;
    }
    Ok(())
}

/// Runs the suites on all stores.
pub(crate) fn part(lab: &Lab, driver: Driver, main_driver: bool) -> Result<()> {
    let table = table()?;
    let suites = suites()?;
    for store in STORES.iter().filter(|store| main_driver || store.both) {
        let part = format!("libiscsi/{}/{}", store.name, driver.name());
        if let Subject::External(_) = lab.subject
            && store.name != "file-512"
        {
            continue;
        }
        let (mut target, mut device) = (None, None);
        lab.report.check(&part, "target starts", || {
            let volume = match store.kind {
                Kind::File => lab.image("libiscsi.img", store.mib)?,
                Kind::Ram => format!("ram:{}M", store.mib),
                Kind::Handler => bail!("the volume belongs to another part"),
                Kind::Block => {
                    let image = lab.image("libiscsi-loop.img", store.mib)?;
                    device.insert(LoopDevice::attach(&image)?).path.clone()
                }
            };
            let volume = if store.removable { format!("removable:{volume}") } else { volume };
            let spec = Spec::new(driver, [volume])?.flags(store.flags).flags(&["--block-size", store.block]);
            target = Some(Target::start(lab, &spec)?);
            Ok(())
        });
        let Some(mut target) = target else { continue };
        for suite in &suites {
            let (_, short) = suite.split_once('.').unwrap_or(("", suite));
            let has_run = run_suite(lab, &part, (store, &table), suite, &target.url(0));
            if has_run && !lab.report.check_quietly(&part, &format!("target after {short}"), || target.healthy()) {
                break;
            }
        }
        lab.report.check(&part, "target stops in time", || target.stop());
    }
    Ok(())
}

/// `FAMILY.SUITE` of all suites of the installed program, without duplicates.
fn suites() -> Result<Vec<String>> {
    let output = process::run(Command::new(PROGRAM).arg("--list"), SUITE_LIMIT)?;
    let suites: Vec<String> = output
        .text
        .lines()
        .filter(|line| line.starts_with("SCSI.") || line.starts_with("iSCSI."))
        .filter(|line| line.matches('.').count() == 1)
        .map(str::to_owned)
        .collect();
    ensure!(!suites.is_empty(), "{PROGRAM} lists no suites; its output:\n{}", process::last_lines(&output.text, 10));
    Ok(suites)
}

/// Runs a suite, if it is one of those for the store; returns whether it is.
fn run_suite(lab: &Lab, part: &str, (store, table): (&Store<'_>, &Table), suite: &str, url: &str) -> bool {
    let (_, short) = suite.split_once('.').unwrap_or(("", suite));
    if !store.suites.is_empty() && !store.suites.contains(&short) {
        return false;
    }
    let before = Instant::now();
    let mut command = process::bound(PROGRAM);
    command.args(["--dataloss", "--allow-sanitize", "--Verbose-scsi", "--test", suite]).arg(url);
    if short == TWO_PATHS {
        command.arg(url);
    }
    let (text, ended) = match process::run(&mut command, SUITE_LIMIT) {
        Ok(output) => (output.text, Ok(output.status)),
        Err(error) => (String::new(), Err(error)),
    };
    let log = lab.scratch.join(format!("{}-{short}.log", part.replace('/', "-")));
    // A log that cannot be written does not fail the test.
    let _ = std::fs::write(log, &text);
    let tests = parse(&text);
    let took = before.elapsed();
    let each = took / u32::try_from(tests.len().max(1)).unwrap_or(1);
    let (mut passed, mut missing, mut failed) = (0, 0, 0);
    for test in &tests {
        let outcome = judge(test, table.known(short, &test.name, store));
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::Skipped(_) => missing += 1,
        }
        lab.report.add_quietly(part, &format!("{short}.{}", test.name), outcome, each);
    }
    let seconds = took.as_secs_f64();
    lab.report.note(&format!("{part}: {short}: {passed} passed, {failed} failed, {missing} missing ({seconds:.1} s)"));
    if let Err(error) = ended {
        lab.report.add(part, short, Outcome::Failed(format!("{error:#}")), took);
    } else if tests.is_empty() {
        let reason = format!("no test ran; its output:\n{}", process::last_lines(&text, 15));
        lab.report.add(part, short, Outcome::Failed(reason), took);
    }
    true
}

/// The outcome of a test, by the output of the program.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    verdict: Verdict,
    output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// The test found that the target lacks the tested feature, and is counted as passed by the suite.
    Withdrawn,
    Failed,
    /// The program ended during the test.
    None,
}

/// Parses the output of the program: a test begins with "Test: NAME ..." and ends with "passed" or "FAILED".
fn parse(text: &str) -> Vec<Test> {
    let mut found = Vec::new();
    for piece in text.split("\n  Test: ").skip(1) {
        let Some((name, rest)) = piece.split_once(" ...") else { continue };
        let (before, word, after) = split_at_verdict(rest);
        let verdict = match word {
            "FAILED" => Verdict::Failed,
            "" => Verdict::None,
            _ if withdrawal(before).is_some() => Verdict::Withdrawn,
            _ => Verdict::Passed,
        };
        // After a failure, the output has its position; after a success, the clean-up of the suite, which is not part
        // of the test.
        let output = if verdict == Verdict::Failed { [before, after].concat() } else { before.to_owned() };
        found.push(Test { name: name.to_owned(), verdict, output: output.trim().to_owned() });
    }
    found
}

/// The line with which a test skips itself. A test that skips an assertion continues.
fn withdrawal(output: &str) -> Option<&str> {
    output.lines().map(str::trim).find(|line| line.contains("[SKIPPED]") && !line.ends_with("Skipping assert"))
}

/// The output of a test before its verdict, the verdict, and the rest. The verdict is at the start of a line or
/// directly after the dots; other output may follow on its line.
fn split_at_verdict(rest: &str) -> (&str, &str, &str) {
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        for word in ["passed", "FAILED"] {
            if line.starts_with(word) {
                return (&rest[..at], word, &rest[at + word.len()..]);
            }
        }
        at += line.len();
    }
    (rest, "", "")
}

/// The outcome of a case: failed if the test fails that should pass, or if the table is wrong about it.
fn judge(test: &Test, known: Known<'_>) -> Outcome {
    match (test.verdict, known) {
        (Verdict::None, _) => {
            Outcome::Failed(format!("ended without a verdict:\n{}", process::last_lines(&test.output, 12)))
        }
        (Verdict::Passed, Known::Missing(reason)) => {
            Outcome::Failed(format!("passes, although check/conform/libiscsi.toml says that it cannot: {reason}"))
        }
        (Verdict::Passed, Known::Sound | Known::Flawed(_)) => Outcome::Passed,
        (Verdict::Withdrawn | Verdict::Failed, Known::Missing(reason) | Known::Flawed(reason)) => {
            Outcome::Skipped(reason.to_owned())
        }
        (Verdict::Withdrawn, Known::Sound) => {
            let why = withdrawal(&test.output).unwrap_or_default();
            Outcome::Failed(format!("skips itself, and check/conform/libiscsi.toml does not list it: {why}"))
        }
        (Verdict::Failed, Known::Sound) => Outcome::Failed(complaints(&test.output)),
    }
}

/// The lines that describe the failure: the message of the suite, and its position in the source.
fn complaints(output: &str) -> String {
    let lines: Vec<&str> =
        output.lines().map(str::trim).filter(|line| line.contains("[FAILED]") || line.contains(".c:")).collect();
    if lines.is_empty() { process::last_lines(output, 12) } else { process::last_lines(&lines.join("\n"), 12) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = concat!(
        "\nSuite: Reserve6\n  Test: Simple ...passed\n  Test: Two ...    Take\n    [FAILED] no\n",
        "FAILED\n    1. x.c:70\n  Test: Cold ...    [SKIPPED] not working\n\npassed\n",
        "  Test: LUN ...    [SKIPPED] LUN too small. Skipping assert\n",
        "passed    [SKIPPED] clean-up\n\n\nRun Summary:",
    );

    #[test]
    fn verdicts_are_parsed_from_the_output() {
        let found: Vec<(String, Verdict)> = parse(OUTPUT).into_iter().map(|test| (test.name, test.verdict)).collect();
        let wanted = [
            ("Simple", Verdict::Passed),
            ("Two", Verdict::Failed),
            ("Cold", Verdict::Withdrawn),
            ("LUN", Verdict::Passed),
        ];
        assert_eq!(found, wanted.map(|(name, verdict)| (name.to_owned(), verdict)));
        assert_eq!(parse("\n  Test: Half ...    Send\n")[0].verdict, Verdict::None);
    }

    #[test]
    fn the_table_is_checked_in_both_directions() {
        let test = |verdict| Test { name: "T".to_owned(), verdict, output: String::new() };
        let failed = |verdict, known| matches!(judge(&test(verdict), known), Outcome::Failed(_));
        let skipped = |verdict, known| judge(&test(verdict), known) == Outcome::Skipped("why".to_owned());
        assert_eq!(judge(&test(Verdict::Passed), Known::Sound), Outcome::Passed);
        assert_eq!(judge(&test(Verdict::Passed), Known::Flawed("why")), Outcome::Passed);
        assert!(failed(Verdict::Passed, Known::Missing("why")));
        assert!(failed(Verdict::Withdrawn, Known::Sound));
        assert!(failed(Verdict::Failed, Known::Sound));
        assert!(skipped(Verdict::Withdrawn, Known::Missing("why")));
        assert!(skipped(Verdict::Failed, Known::Missing("why")));
        assert!(skipped(Verdict::Failed, Known::Flawed("why")));
        assert!(failed(Verdict::None, Known::Missing("why")));
    }

    #[test]
    fn the_table_of_the_repository_is_valid() {
        let table: Table = toml::from_str(TABLE).unwrap();
        assert!(
            [
                table.missing,
                table.fixed,
                table.removable,
                table.writable,
                table.large_blocks,
                table.devices,
                table.files,
                table.flawed
            ]
            .iter()
            .flat_map(BTreeMap::values)
            .all(|reason| !reason.is_empty())
        );
    }
}
