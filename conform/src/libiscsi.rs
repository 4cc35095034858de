//! libiscsi's conformance suite, one suite at a time, held against the table of what cannot pass yet.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::report::Outcome;
use crate::target::{Driver, Lab, Spec, Subject, Target};

const TABLE: &str = include_str!("../libiscsi.toml");
const PROGRAM: &str = "iscsi-test-cu";
/// The slowest suite waits six seconds for time-outs of its own.
const SUITE_LIMIT: Duration = Duration::from_secs(60);

/// Test or suite -> why it cannot pass.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// On every store.
    missing: BTreeMap<String, String>,
    /// Only on a volume exported read-only.
    read_only: BTreeMap<String, String>,
}

impl Table {
    fn reason(&self, suite: &str, test: &str, store: &Store) -> Option<&str> {
        let full = format!("{suite}.{test}");
        let own = if store.read_only { self.read_only.get(&full).or_else(|| self.read_only.get(suite)) } else { None };
        own.or_else(|| self.missing.get(&full)).or_else(|| self.missing.get(suite)).map(String::as_str)
    }
}

/// One way to run the suites.
struct Store {
    name: &'static str,
    ram: bool,
    block: &'static str,
    flags: &'static [&'static str],
    read_only: bool,
    /// Run with the second driver too.
    both: bool,
    /// Only these suites; none named: all.
    suites: &'static [&'static str],
}

const STORES: [Store; 5] = [
    Store { name: "file-512", ram: false, block: "512", flags: &[], read_only: false, both: true, suites: &[] },
    Store {
        name: "file-4096",
        ram: false,
        block: "4096",
        flags: &["--direct"],
        read_only: false,
        both: false,
        suites: &[],
    },
    Store { name: "ram-512", ram: true, block: "512", flags: &[], read_only: false, both: false, suites: &[] },
    Store { name: "ram-4096", ram: true, block: "4096", flags: &[], read_only: false, both: true, suites: &[] },
    Store {
        name: "read-only",
        ram: true,
        block: "512",
        flags: &["--read-only"],
        read_only: true,
        both: false,
        suites: &["ReadOnly", "Read10", "Read16", "Inquiry", "ReadCapacity16", "TestUnitReady", "ModeSense6"],
    },
];

/// Big enough for every test; the suites write the first and the last few MiB.
const MIB: u64 = 100;

/// Runs the suites on all stores.
pub(crate) fn part(lab: &Lab, driver: Driver, main_driver: bool) -> Result<()> {
    let table: Table = toml::from_str(TABLE).context("conform/libiscsi.toml")?;
    let suites = suites()?;
    for store in STORES.iter().filter(|store| main_driver || store.both) {
        let part = format!("libiscsi/{}/{}", store.name, driver.name());
        if let Subject::Outside(_) = lab.subject
            && store.name != "file-512"
        {
            continue;
        }
        let mut target = None;
        lab.report.check(&part, "target starts", || {
            let volume = if store.ram { format!("ram:{MIB}M") } else { lab.image("libiscsi.img", MIB)? };
            let spec = Spec::new(driver, [volume])?.flags(store.flags).flags(&["--block-size", store.block]);
            target = Some(Target::start(lab, &spec)?);
            Ok(())
        });
        let Some(mut target) = target else { continue };
        for suite in &suites {
            let (_, short) = suite.split_once('.').unwrap_or(("", suite));
            if store.suites.is_empty() || store.suites.contains(&short) {
                run_suite(lab, &part, store, &table, suite, &target);
                if !lab.report.check_quietly(&part, &format!("target after {short}"), || target.healthy()) {
                    break;
                }
            }
        }
        lab.report.check(&part, "target drains", || target.stop());
    }
    Ok(())
}

/// `FAMILY.SUITE` of all that this version of the program has, each suite once.
fn suites() -> Result<Vec<String>> {
    let output = process::run(Command::new(PROGRAM).arg("--list"), SUITE_LIMIT)?;
    let suites: Vec<String> = output
        .text
        .lines()
        .filter(|line| line.starts_with("SCSI.") || line.starts_with("iSCSI."))
        .filter(|line| line.matches('.').count() == 1)
        .map(str::to_owned)
        .collect();
    ensure!(!suites.is_empty(), "{PROGRAM} lists no suites; it said:\n{}", process::last_lines(&output.text, 10));
    Ok(suites)
}

fn run_suite(lab: &Lab, part: &str, store: &Store, table: &Table, suite: &str, target: &Target) {
    let before = Instant::now();
    let mut command = process::bound(PROGRAM);
    command.args(["--dataloss", "--allow-sanitize", "--Verbose-scsi", "--test", suite]).arg(target.url(0));
    let (_, short) = suite.split_once('.').unwrap_or(("", suite));
    let (text, ended) = match process::run(&mut command, SUITE_LIMIT) {
        Ok(output) => (output.text, Ok(output.status)),
        Err(error) => (String::new(), Err(error)),
    };
    let log = lab.scratch.join(format!("{}-{short}.log", part.replace('/', "-")));
    // A log that cannot be written costs the log, not the test.
    let _ = std::fs::write(log, &text);
    let tests = parse(&text);
    let took = before.elapsed();
    let each = took / u32::try_from(tests.len().max(1)).unwrap_or(1);
    let (mut passed, mut missing, mut failed) = (0, 0, 0);
    for test in &tests {
        let outcome = judge(test, table.reason(short, &test.name, store));
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
        let reason = format!("no test ran; it said:\n{}", process::last_lines(&text, 15));
        lab.report.add(part, short, Outcome::Failed(reason), took);
    }
}

/// How one test ended, by the program's own words.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    verdict: Verdict,
    said: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// The test saw that the target lacks what it would test, and counts itself as passed.
    Withdrawn,
    Failed,
    /// The program ended in the middle.
    None,
}

/// Takes the program's output apart: a test begins with "Test: NAME ..." and ends with "passed" or "FAILED".
fn parse(text: &str) -> Vec<Test> {
    let mut found = Vec::new();
    for piece in text.split("\n  Test: ").skip(1) {
        let Some((name, rest)) = piece.split_once(" ...") else { continue };
        // The next suite's or the summary's lines are not this test's.
        let rest = rest.split("\nRun Summary").next().unwrap_or_default();
        let verdict = if ends_with(rest, "FAILED") {
            Verdict::Failed
        } else if !ends_with(rest, "passed") {
            Verdict::None
        } else if rest.contains("[SKIPPED]") {
            Verdict::Withdrawn
        } else {
            Verdict::Passed
        };
        found.push(Test { name: name.to_owned(), verdict, said: rest.trim().to_owned() });
    }
    found
}

/// The verdict stands at the start of a line, or right behind the dots; other output may follow on its line.
fn ends_with(rest: &str, word: &str) -> bool {
    rest.starts_with(word) || rest.lines().any(|line| line.starts_with(word))
}

/// A test passes if it should, fails if it should pass, and fails if the table is wrong about it.
fn judge(test: &Test, reason: Option<&str>) -> Outcome {
    match (test.verdict, reason) {
        (Verdict::Passed, None) => Outcome::Passed,
        (Verdict::Passed, Some(reason)) => {
            Outcome::Failed(format!("passes, but conform/libiscsi.toml says it cannot: {reason}"))
        }
        (Verdict::Withdrawn | Verdict::Failed, Some(reason)) => Outcome::Skipped(reason.to_owned()),
        (Verdict::Withdrawn, None) => {
            let why = test.said.lines().find(|line| line.contains("[SKIPPED]")).unwrap_or_default().trim();
            Outcome::Failed(format!("withdraws itself, and conform/libiscsi.toml does not say why: {why}"))
        }
        (Verdict::Failed, None) => Outcome::Failed(complaints(&test.said)),
        (Verdict::None, _) => {
            Outcome::Failed(format!("ended without a verdict:\n{}", process::last_lines(&test.said, 12)))
        }
    }
}

/// The lines that say what was wrong: the suite's own words, and where in its source it gave up.
fn complaints(said: &str) -> String {
    let lines: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.contains("[FAILED]") || line.contains(".c:")).collect();
    if lines.is_empty() { process::last_lines(said, 12) } else { process::last_lines(&lines.join("\n"), 12) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\nSuite: Reserve6\n  Test: Simple ...passed\n  Test: Two ...    Take\n    [FAILED] no\nFAILED\n    1. x.c:70\n  \
                          Test: Cold ...    [SKIPPED] not working\n\npassed\n  Test: LUN ...passed    [FAILED] after all\n\n\nRun Summary:";

    #[test]
    fn verdicts_are_read_from_the_output() {
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
    fn the_table_must_be_right_in_both_directions() {
        let test = |verdict| Test { name: "T".to_owned(), verdict, said: String::new() };
        assert_eq!(judge(&test(Verdict::Passed), None), Outcome::Passed);
        assert!(matches!(judge(&test(Verdict::Passed), Some("why")), Outcome::Failed(_)));
        assert!(matches!(judge(&test(Verdict::Withdrawn), None), Outcome::Failed(_)));
        assert_eq!(judge(&test(Verdict::Withdrawn), Some("why")), Outcome::Skipped("why".to_owned()));
        assert_eq!(judge(&test(Verdict::Failed), Some("why")), Outcome::Skipped("why".to_owned()));
        assert!(matches!(judge(&test(Verdict::Failed), None), Outcome::Failed(_)));
        assert!(matches!(judge(&test(Verdict::None), Some("why")), Outcome::Failed(_)));
    }

    #[test]
    fn the_checked_in_table_can_be_read() {
        let table: Table = toml::from_str(TABLE).unwrap();
        assert!(table.missing.values().chain(table.read_only.values()).all(|reason| !reason.is_empty()));
    }
}
