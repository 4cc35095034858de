//! `lunar doctor`: examines a target and its machine, and prints findings with a remedy.
//!
//! The facts are gathered in [`gather`]; the checks are those of [`lunar_control::doctor`].

pub mod gather;

use crate::call::Service;
use crate::declare::api_command;
use crate::failure::Failure;
use crate::show;
use anstyle::{AnsiColor, Style};
use clap::{Arg, ArgMatches, Command, value_parser};
use gather::Gathered;
use lunar_control::Schema;
use lunar_control::doctor::examination::{ExaminationView, Unchecked};
use lunar_control::doctor::finding::Finding;
use lunar_control::doctor::table::{Code, Severity};
use lunar_control::value::{Period, Textual};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// The exit code if the worst finding is a warning.
pub const EXIT_WARNING: u8 = 5;
/// The exit code if there is an error.
pub const EXIT_ERROR: u8 = 6;
/// The longest time for which the load is watched.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// The command.
#[must_use]
pub fn command() -> Command {
    api_command("doctor", "Examine the service, its stores, its network and its machine")
        .args([
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Configuration to examine [default: that of the running service, or /etc/lunar/lunar.toml]"),
            Arg::new("interval")
                .long("interval")
                .value_name("TIME")
                .default_value("2s")
                .help("Time for which the load is watched, up to 1h"),
        ])
        .after_help(
            "Run it as root for all checks. It changes nothing. The exit status is 0 without findings or with advice \
             only, 5 if the worst finding is a warning, 6 if it is an error, and 1, 2 or 4 if the examination failed.",
        )
}

/// Runs the command.
///
/// # Errors
/// A failure without a message if there are findings worse than advice, else why the examination failed.
pub fn run(schema: &'static Schema, service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let interval = matches.get_one::<String>("interval").map_or("2s", String::as_str);
    let wrong = |why: String| Failure::new(format!("--interval '{interval}' {why}"));
    let Period(time) = Period::parse(interval).map_err(|why| wrong(why.to_string()))?;
    if time > INTERVAL_MAX {
        return Err(wrong("is longer than 1h".to_owned()));
    }
    let file = matches.get_one::<PathBuf>("config").map(std::path::absolute).transpose().map_err(Failure::new)?;
    let Gathered { facts, unchecked } = gather::gather(schema, service, file.as_deref(), time)?;
    let all = ExaminationView::of(&facts, unchecked);
    let text = match service.json {
        true => format!("{:#}\n", serde_json::json!(all)),
        false => text(&all.findings, &all.unchecked),
    };
    match show::print(&text) {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => return Err(Failure::new(why)),
        _ => {}
    }
    match exit(all.worst) {
        0 => Ok(()),
        exit => Err(Failure { exit, message: String::new() }),
    }
}

fn exit(worst: Option<Severity>) -> u8 {
    match worst {
        None | Some(Severity::Advice) => 0,
        Some(Severity::Warning) => EXIT_WARNING,
        Some(Severity::Error) => EXIT_ERROR,
    }
}

/// The findings for people.
fn text(findings: &[Finding], unchecked: &[Unchecked]) -> String {
    let mut text = String::new();
    for finding in findings {
        let style: Style = match finding.severity {
            Severity::Error => AnsiColor::Red.on_default(),
            Severity::Warning => AnsiColor::Yellow.on_default(),
            Severity::Advice => Style::new(),
        };
        let _ = write!(text, "{style}{}{style:#}: {}", finding.severity.word(), finding.text());
    }
    for Unchecked { subject, reason } in unchecked {
        let _ = writeln!(text, "not checked: {subject}: {reason}");
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let [errors, warnings, advice] = [Severity::Error, Severity::Warning, Severity::Advice].map(count);
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let (errors, warnings) = (plural(errors, "error"), plural(warnings, "warning"));
    let _ = writeln!(text, "{errors}, {warnings}, {advice} advice, of {} checks", Code::ALL.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_follows_the_worst_finding() {
        let all = [None, Some(Severity::Advice), Some(Severity::Warning), Some(Severity::Error)].map(exit);
        assert_eq!(all, [0, 0, 5, 6]);
        for code in [EXIT_WARNING, EXIT_ERROR] {
            assert!(
                lunar_control::doctor::table::page().contains(&format!("| {code} | ")),
                "the page has the exit status {code}"
            );
        }
    }

    #[test]
    fn findings_are_counted() {
        let findings = [Finding::new(Code::StoreMissing, "volume a"), Finding::new(Code::KernelOld, "kernel")];
        let unchecked = [Unchecked { subject: "the network".into(), reason: "no `ip`".into() }];
        let shown = anstream::adapter::strip_str(&text(&findings, &unchecked)).to_string();
        assert!(
            shown.starts_with("error: store-missing volume a: ") && shown.contains("\nadvice: kernel-old "),
            "{shown}"
        );
        assert!(shown.contains("\nnot checked: the network: no `ip`\n1 error, 0 warnings, 1 advice, of "), "{shown}");
    }
}
