//! The report: a line per case while it runs, and tables at the end.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The error. Its first line is shown, all of it goes into the results file.
    Failed(String),
    /// Why the case was not run, or cannot pass here.
    Skipped(String),
}

/// The error of a case that cannot run here.
#[derive(Debug)]
pub(crate) struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Ends a case as skipped.
pub(crate) fn skip<T>(reason: impl Into<String>) -> anyhow::Result<T> {
    Err(Skip(reason.into()).into())
}

/// The measurement of one target under one load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The comparison, which has a table of its own.
    pub table: String,
    pub load: String,
    pub target: String,
    /// Commands per second.
    pub rate: f64,
    /// Microseconds of all processors for a command.
    pub cost: f64,
}

impl Figure {
    /// Parses `TABLE|LOAD|TARGET|RATE|COST`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split('|');
        let mut text = || words.next().map(str::to_owned);
        let (table, load, target) = (text()?, text()?, text()?);
        let (rate, cost) = (text()?.parse().ok()?, text()?.parse().ok()?);
        Some(Self { table, load, target, rate, cost })
    }
}

struct Case {
    part: String,
    name: String,
    outcome: Outcome,
    took: Duration,
}

/// The results of all parts, which may run at the same time.
pub(crate) struct Report {
    started: Instant,
    cases: Mutex<Vec<Case>>,
    figures: Mutex<Vec<Figure>>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), cases: Mutex::new(Vec::new()), figures: Mutex::default() }
    }

    fn cases(&self) -> MutexGuard<'_, Vec<Case>> {
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds since the start, at the beginning of every line.
    fn clock(&self) -> String {
        format!("{:7.1}", self.started.elapsed().as_secs_f64())
    }

    /// Prints a line of progress.
    pub(crate) fn note(&self, text: &str) {
        println!("{} ---- {text}", self.clock());
    }

    /// Prints and keeps a figure.
    pub(crate) fn figure(&self, figure: Figure) {
        let Figure { table, load, target, rate, cost } = &figure;
        self.note(&format!("{table}, {load}, {target}: {rate:.0} commands per second, {cost:.1} µs each"));
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).push(figure);
    }

    /// Runs a case and records its outcome. True if it did not fail.
    pub(crate) fn check(&self, part: &str, name: &str, case: impl FnOnce() -> anyhow::Result<()>) -> bool {
        let before = Instant::now();
        let outcome = match case() {
            Ok(()) => Outcome::Passed,
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(skip) => Outcome::Skipped(skip.0.clone()),
                None => Outcome::Failed(format!("{error:#}")),
            },
        };
        self.add(part, name, outcome, before.elapsed())
    }

    /// Like [`Report::check`], but records the case only if it fails. True if it did not fail.
    pub(crate) fn check_quietly(&self, part: &str, name: &str, case: impl FnOnce() -> anyhow::Result<()>) -> bool {
        let before = Instant::now();
        match case() {
            Ok(()) => true,
            Err(error) => self.add(part, name, Outcome::Failed(format!("{error:#}")), before.elapsed()),
        }
    }

    /// Records the outcome of a case that ran elsewhere. True if it did not fail.
    pub(crate) fn add(&self, part: &str, name: &str, outcome: Outcome, took: Duration) -> bool {
        self.shown(part, name, &outcome, took);
        self.quietly(part, name, outcome, took)
    }

    /// Like [`Report::add`], but prints a line only if the case failed: for suites with an output of their own.
    pub(crate) fn add_quietly(&self, part: &str, name: &str, outcome: Outcome, took: Duration) -> bool {
        if matches!(outcome, Outcome::Failed(_)) {
            self.shown(part, name, &outcome, took);
        }
        self.quietly(part, name, outcome, took)
    }

    fn quietly(&self, part: &str, name: &str, outcome: Outcome, took: Duration) -> bool {
        let good = !matches!(outcome, Outcome::Failed(_));
        self.cases().push(Case { part: part.to_owned(), name: name.to_owned(), outcome, took });
        good
    }

    fn shown(&self, part: &str, name: &str, outcome: &Outcome, took: Duration) {
        let (word, reason) = match outcome {
            Outcome::Passed => ("ok  ", ""),
            Outcome::Failed(reason) => ("FAIL", reason.as_str()),
            Outcome::Skipped(reason) => ("skip", reason.as_str()),
        };
        let colon = if reason.is_empty() { "" } else { ": " };
        println!("{} {word} {part}: {name} ({:.1} s){colon}{reason}", self.clock(), took.as_secs_f64());
    }

    /// Whether a case of a part whose name begins so has failed: `hostile` reports as `hostile-vm` as well.
    pub(crate) fn has_failed(&self, part: &str) -> bool {
        self.cases().iter().any(|case| case.part.starts_with(part) && matches!(case.outcome, Outcome::Failed(_)))
    }

    /// Passed, failed, skipped.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        count(self.cases().iter())
    }

    /// The tables in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let cases = self.cases();
        let mut parts: Vec<&str> = Vec::new();
        for case in cases.iter() {
            if !parts.contains(&case.part.as_str()) {
                parts.push(&case.part);
            }
        }
        let mut text =
            String::from("# Conformance\n\n| part | passed | failed | skipped | seconds |\n|---|--:|--:|--:|--:|\n");
        for part in parts {
            let (passed, failed, skipped) = count(cases.iter().filter(|case| case.part == part));
            let seconds: f64 = cases.iter().filter(|case| case.part == part).map(|case| case.took.as_secs_f64()).sum();
            let _ = writeln!(text, "| {part} | {passed} | {failed} | {skipped} | {seconds:.0} |");
        }
        text.push_str(&tables(&self.figures.lock().unwrap_or_else(PoisonError::into_inner)));
        text.push_str("\n## Failed\n\n");
        for case in cases.iter() {
            if let Outcome::Failed(reason) = &case.outcome {
                let _ = writeln!(
                    text,
                    "* {}: {}\n\n  ```\n  {}\n  ```",
                    case.part,
                    case.name,
                    reason.replace('\n', "\n  ")
                );
            }
        }
        text.push_str("\n## Skipped\n\n| part | case | reason |\n|---|---|---|\n");
        for case in cases.iter() {
            if let Outcome::Skipped(reason) = &case.outcome {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} |",
                    case.part,
                    case.name,
                    reason.replace('\n', " ").replace('|', "/")
                );
            }
        }
        text.push_str("\n## Everything\n\n| part | case | outcome | seconds |\n|---|---|---|--:|\n");
        for case in cases.iter() {
            let word = match case.outcome {
                Outcome::Passed => "passed",
                Outcome::Failed(_) => "**failed**",
                Outcome::Skipped(_) => "skipped",
            };
            let _ = writeln!(text, "| {} | {} | {word} | {:.1} |", case.part, case.name, case.took.as_secs_f64());
        }
        text
    }

    /// Writes the tables; prints the skipped and the failed cases, and the counts on a line of their own. True if
    /// nothing failed.
    pub(crate) fn finish(&self, results: &Path) -> bool {
        let (passed, failed, skipped) = self.counts();
        println!();
        self.print_skipped();
        for case in self.cases().iter() {
            if let Outcome::Failed(reason) = &case.outcome {
                println!("failed: {}: {}: {}", case.part, case.name, reason.lines().next().unwrap_or_default());
            }
        }
        match std::fs::write(results, self.markdown()) {
            Ok(()) => println!("results: {}", results.display()),
            Err(error) => println!("results: cannot write {}: {error}", results.display()),
        }
        let tail = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        println!("{passed} passed, {failed} failed{tail}");
        failed == 0 && passed > 0
    }

    /// Prints one line per reason: dozens of tests of a suite may lack the same command.
    fn print_skipped(&self) {
        let cases = self.cases();
        let mut reasons: Vec<(&str, usize, String)> = Vec::new();
        for case in cases.iter() {
            if let Outcome::Skipped(reason) = &case.outcome {
                match reasons.iter_mut().find(|(known, _, _)| known == reason) {
                    Some((_, times, _)) => *times += 1,
                    None => reasons.push((reason, 1, format!("{}: {}", case.part, case.name))),
                }
            }
        }
        for (reason, times, first) in reasons {
            let more = if times > 1 { format!(" and {} more", times - 1) } else { String::new() };
            println!("skipped: {first}{more}: {reason}");
        }
    }
}

/// A table of figures for each comparison: a row for each load, and a column for each target.
fn tables(figures: &[Figure]) -> String {
    // Parts that run at the same time mix their figures.
    let mut names: Vec<&str> = Vec::new();
    for figure in figures {
        if !names.contains(&&*figure.table) {
            names.push(&figure.table);
        }
    }
    let mut text = String::new();
    for name in names {
        let of_table = || figures.iter().filter(|figure| figure.table == name);
        let (mut loads, mut targets) = (Vec::new(), Vec::new());
        for figure in of_table() {
            for (list, one) in [(&mut loads, &figure.load), (&mut targets, &figure.target)] {
                if !list.contains(&one) {
                    list.push(one);
                }
            }
        }
        let _ =
            writeln!(text, "\n## Figures: {name}\n\nCommands per second, and µs of all processors for a command.\n");
        let _ = writeln!(text, "| load |{}", targets.iter().fold(String::new(), |line, one| line + " " + one + " |"));
        let _ = writeln!(text, "|---|{}", "--:|".repeat(targets.len()));
        for load in loads {
            let _ = write!(text, "| {load} |");
            for target in &targets {
                let found = of_table().find(|figure| figure.load == *load && figure.target == **target);
                let _ = match found {
                    Some(found) => write!(text, " {:.0} ({:.1}) |", found.rate, found.cost),
                    None => write!(text, " |"),
                };
            }
            text.push('\n');
        }
    }
    text
}

fn count<'a>(cases: impl Iterator<Item = &'a Case>) -> (usize, usize, usize) {
    cases.fold((0, 0, 0), |(passed, failed, skipped), case| match case.outcome {
        Outcome::Passed => (passed + 1, failed, skipped),
        Outcome::Failed(_) => (passed, failed + 1, skipped),
        Outcome::Skipped(_) => (passed, failed, skipped + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted_once_and_a_failure_is_reported_in_full() {
        let report = Report::new();
        assert!(report.check("part", "good", || Ok(())));
        assert!(report.check("part", "elsewhere", || skip("not available here")));
        assert!(!report.check("part", "bad", || anyhow::bail!("first\nsecond")));
        assert_eq!(report.counts(), (1, 1, 1));
        let text = report.markdown();
        assert!(text.contains("| part | 1 | 1 | 1 |"));
        assert!(text.contains("first\n  second"));
        assert!(text.contains("| part | elsewhere | not available here |"));
    }

    #[test]
    fn figures_make_a_table_for_each_comparison() {
        let report = Report::new();
        for line in
            ["disks|reads|loop|1000|12.34", "disks|reads|ublk|2000|5", "tapes|w|a|1|1", "disks|writes|ublk|10|0.5"]
        {
            report.figure(Figure::parse(line).expect("a figure"));
        }
        assert_eq!(Figure::parse("disks|reads|loop|many|1"), None);
        let text = report.markdown();
        assert_eq!(text.matches("## Figures: disks\n").count(), 1, "{text}");
        assert!(text.contains("| load | loop | ublk |\n|---|--:|--:|\n| reads | 1000 (12.3) | 2000 (5.0) |"), "{text}");
        assert!(text.contains("| writes | | 10 (0.5) |"), "{text}");
        assert!(text.contains("## Figures: tapes\n"), "{text}");
    }
}
