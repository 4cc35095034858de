//! `lunar top`: the load of volumes, hosts, cores, sessions and stores, from one reading of the counters to the next.
//!
//! * [`rows`]: the tables
//! * [`screen`], [`draw`]: the state of the screen, and its picture
//! * `terminal`: keys, readings, the terminal

pub mod draw;
pub mod rows;
pub mod screen;
mod terminal;

use crate::call::Service;
use crate::declare::api_command;
use crate::failure::Failure;
use crate::show;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use lunar_control::counters::CountersView;
use lunar_control::rates::Rates;
use lunar_control::value::{Period, Textual};
use rows::{View, layout, rows};
use screen::Reading;
use std::io::IsTerminal;
use std::time::Duration;

/// The shortest interval: the service reads its counters so often at most.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// The longest interval: an operator waits no longer.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// The command.
#[must_use]
pub fn command() -> Command {
    let views = PossibleValuesParser::new(View::ALL.map(View::word));
    api_command("top", "Show the load of volumes, hosts, cores and sessions, and the space of stores")
        .args([
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Measure for one interval, print the result, and end"),
            Arg::new("interval")
                .long("interval")
                .value_name("TIME")
                .default_value("1s")
                .help("Time between two readings, from 200ms to 1h"),
            Arg::new("view")
                .long("view")
                .value_name("TABLE")
                .default_value("volumes")
                .value_parser(views)
                .help("Table"),
            Arg::new("filter").long("filter").value_name("TEXT").help("Show only rows that contain this text"),
        ])
        .after_help(
            "Keys: ? shows them. With --json, each line is one object with the rates of all cores, volumes and hosts; \
             with --once there is one. NO_COLOR switches colours off.",
        )
}

/// Runs the command.
///
/// # Errors
/// Why the service gives no answer, or why there is no terminal.
pub fn run(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let interval = interval(&text("interval"))?;
    let view = View::ALL.into_iter().find(|view| view.word() == text("view")).unwrap_or(View::Volumes);
    let (filter, once) = (text("filter"), matches.get_flag("once"));
    if !service.json && !once {
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            return Err(Failure::new("there is no terminal: give --once or --json"));
        }
        return terminal::run(service, screen::Screen::new(view, &filter), interval);
    }
    let mut before = read(service)?.counters;
    loop {
        std::thread::sleep(interval);
        let Reading { counters, sessions } = read(service)?;
        let Some(rates) = Rates::between(&before, &counters) else {
            before = counters;
            continue;
        };
        let shown = match (service.json, once) {
            (true, true) => format!("{:#}\n", serde_json::json!(rates)),
            (true, false) => format!("{}\n", serde_json::json!(rates)),
            (false, _) => printed(view, &rates, &sessions, &filter),
        };
        match show::print(&shown) {
            Ok(()) if once => return Ok(()),
            Ok(()) => before = counters,
            // The reader of the output has closed it.
            Err(why) if why.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            Err(why) => return Err(Failure::new(why)),
        }
    }
}

fn interval(text: &str) -> Result<Duration, Failure> {
    let Period(interval) = Period::parse(text).map_err(|why| Failure::new(format!("--interval '{text}' {why}")))?;
    match (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        true => Ok(interval),
        false => Err(Failure::new(format!("--interval {text} is not from 200ms to 1h"))),
    }
}

/// Reads the counters and the sessions.
fn read(service: &Service) -> Result<Reading, Failure> {
    let counters: CountersView = serde_json::from_value(service.get("/v1/counters")?)
        .map_err(|why| Failure::new(format!("the counters have another form: {why}; update lunar on both sides")))?;
    let sessions = service.get("/v1/session")?;
    Ok(Reading { counters, sessions: sessions.as_array().cloned().unwrap_or_default() })
}

/// A table as text.
fn printed(view: View, rates: &Rates, sessions: &[serde_json::Value], filter: &str) -> String {
    let rows = rows(view, rates, sessions, filter, view.first_sort());
    let width = show::width().saturating_sub(1);
    let columns = layout(view, &rows, width);
    let heads = columns.iter().map(|(at, width)| {
        let column = view.columns()[*at];
        rows::fitted(column.head, *width, column.is_text)
    });
    let mut text = format!(" {}\n", heads.collect::<Vec<_>>().join(" ").trim_end());
    for row in &rows {
        text.push_str(draw::line(view, row, &columns).trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_bounded() {
        let of = |text| interval(text).map_err(|why| why.message);
        assert_eq!((of("1s"), of("200ms")), (Ok(Duration::from_secs(1)), Ok(INTERVAL_MIN)));
        for text in ["199ms", "2h", "x", ""] {
            assert!(of(text).expect_err(text).contains("--interval"), "{text}");
        }
    }

    #[test]
    fn a_table_is_printed_as_text() {
        let screen = screen::tests::filled(4);
        let rates = screen.rates.as_ref().expect("rates");
        let text = printed(View::Volumes, rates, &[], "");
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.starts_with(" volume") && text.lines().nth(1).is_some_and(|line| line.starts_with("!disk003")));
        assert_eq!(printed(View::Volumes, rates, &[], "disk001").lines().count(), 2);
    }
}
