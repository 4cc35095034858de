//! `lunar scsi`: SCSI commands of the operator to volumes.

use crate::call::Service;
use crate::failure::Failure;
use crate::{declare, show};
use clap::{Arg, ArgMatches, Command, value_parser};
use lunar_api::scsi::view;
use lunar_control::scsi::{DATA_BYTES_MAX, ScsiOrder, ScsiOutcome};
use lunar_control::value::{Size, Textual};
use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of data in a line.
const LINE_BYTES: usize = 16;

/// The command.
#[must_use]
pub fn command() -> Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf)).help(help)
    };
    declare::api_command("scsi", "Send a SCSI command to a volume").args([
        Arg::new("volume").value_name("VOLUME").required(true).help("Name of the volume"),
        Arg::new("cdb").value_name("CDB").required(true).num_args(1..).help(
            "CDB in hexadecimal digits (12 00 00 00 60 00), or the name of the command with fields: \
             'READ(10)' lba=0 length=8; byteN=HEX sets other bytes",
        ),
        Arg::new("in")
            .long("in")
            .value_name("BYTES")
            .conflicts_with("out")
            .help("Bytes that are expected at most [default: as many as the command returns]"),
        file("out", "File with the data for the command, or - for standard input"),
        file("save", "File for the data that the command returns, or - for standard output").conflicts_with("json"),
        Arg::new("seconds")
            .long("seconds")
            .value_name("N")
            .value_parser(value_parser!(u16).range(1..=i64::from(lunar_control::scsi::SECONDS_MAX)))
            .default_value("30")
            .help("Time after which the command is aborted"),
    ])
}

/// Runs the command.
///
/// # Errors
/// Why it was not executed; without a message if it ended with another status than GOOD, which is printed.
pub(crate) fn run(service: &Service, matches: &ArgMatches) -> Result<(), Failure> {
    let words: Vec<&str> = matches.get_many::<String>("cdb").into_iter().flatten().map(String::as_str).collect();
    let mut order = ScsiOrder::new(words.join(" "));
    if let Some(text) = matches.get_one::<String>("in") {
        let size = Size::parse(text).map_err(|why| Failure::new(format!("--in: '{text}' {why}")))?;
        let most = || Failure::new(format!("--in: a command returns at most {DATA_BYTES_MAX} bytes this way"));
        order.data_in = Some(u32::try_from(size.0).ok().filter(|bytes| *bytes <= DATA_BYTES_MAX).ok_or_else(most)?);
    }
    if let Some(file) = matches.get_one::<PathBuf>("out") {
        order.data_out = data(file)?;
    }
    let seconds = matches.get_one::<u16>("seconds").copied().unwrap_or(lunar_control::scsi::SECONDS);
    order.patience = Duration::from_secs(seconds.into());
    let volume = matches.get_one::<String>("volume").cloned().unwrap_or_default();
    let ended = service.scsi(&volume, &order)?;
    let is_good = ended.is_good();
    report(service, matches, ended)?;
    // The status is printed.
    if is_good { Ok(()) } else { Err(Failure::new("")) }
}

/// The data for a command.
fn data(file: &PathBuf) -> Result<Vec<u8>, Failure> {
    let most = u64::from(DATA_BYTES_MAX) + 1;
    let mut bytes = Vec::new();
    let is_standard = file.as_os_str() == "-";
    let read = match is_standard {
        true => io::stdin().take(most).read_to_end(&mut bytes),
        false => std::fs::File::open(file).and_then(|open| open.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|why| Failure::new(format!("{} cannot be read: {why}", file.display())))?;
    if bytes.len() as u64 == most {
        return Err(Failure::new(format!(
            "{}: a command takes at most {DATA_BYTES_MAX} bytes this way",
            file.display()
        )));
    }
    Ok(bytes)
}

fn report(service: &Service, matches: &ArgMatches, ended: ScsiOutcome) -> Result<(), Failure> {
    let Some(file) = matches.get_one::<PathBuf>("save") else {
        let text = text(&ended, true);
        let json = serde_json::to_value(view(ended)).map_err(Failure::new)?;
        return service.print(&json, text);
    };
    let written = match file.as_os_str() == "-" {
        // The data alone is in the standard output.
        true => {
            eprint!("{}", text(&ended, false));
            io::stdout().write_all(&ended.data).and_then(|()| io::stdout().flush())
        }
        false => show::print(&text(&ended, false)).and_then(|()| std::fs::write(file, &ended.data)),
    };
    written.map_err(|why| Failure::new(format!("{} cannot be written: {why}", file.display())))
}

fn bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// The end of a command for people.
fn text(ended: &ScsiOutcome, shows_data: bool) -> String {
    let mut text = String::new();
    if let Some(name) = &ended.name {
        let _ = write!(text, "{name}, ");
    }
    let _ = writeln!(text, "CDB {}: {}", bytes(&ended.cdb), ended.status_name);
    if !ended.sense_words.is_empty() {
        let _ = writeln!(text, "{}", ended.sense_words);
    }
    if !ended.sense.is_empty() {
        let _ = writeln!(text, "sense data: {}", bytes(&ended.sense));
    }
    let count = ended.data.len();
    if count > 0 && ended.wanted > count as u64 {
        let _ = writeln!(text, "{count} of {} bytes", ended.wanted);
    } else if count > 0 {
        let _ = writeln!(text, "{count} bytes");
    }
    if shows_data {
        text.push_str(&dump(&ended.data));
    }
    text
}

/// Data in hexadecimal digits and as text. Repeated lines are one `*`.
fn dump(data: &[u8]) -> String {
    let mut text = String::new();
    let (mut before, mut is_repeated) = (None, false);
    let count = data.len().div_ceil(LINE_BYTES);
    for (number, line) in data.chunks(LINE_BYTES).enumerate() {
        if before == Some(line) && number + 1 < count {
            if !is_repeated {
                text.push_str("*\n");
            }
            is_repeated = true;
            continue;
        }
        (before, is_repeated) = (Some(line), false);
        let readable = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let letters: String = line.iter().map(readable).collect();
        let _ = writeln!(text, "{:06x}  {:<47}  {letters}", number * LINE_BYTES, bytes(line));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended() -> ScsiOutcome {
        ScsiOutcome {
            cdb: vec![0x12, 0, 0, 0, 4, 0],
            name: Some("INQUIRY".into()),
            status: 0,
            status_name: "GOOD".into(),
            sense: Vec::new(),
            sense_words: String::new(),
            data: b"\0\0LUNA".to_vec(),
            wanted: 6,
        }
    }

    #[test]
    fn the_end_of_a_command_is_shown_with_its_data() {
        let shown = "INQUIRY, CDB 12 00 00 00 04 00: GOOD\n6 bytes\n\
                     000000  00 00 4c 55 4e 41                                ..LUNA\n";
        assert_eq!(text(&ended(), true), shown);
        let cut = ScsiOutcome { wanted: 96, name: None, ..ended() };
        assert_eq!(text(&cut, false), "CDB 12 00 00 00 04 00: GOOD\n6 of 96 bytes\n");
        let refused = ScsiOutcome {
            status: 2,
            status_name: "CHECK CONDITION".into(),
            sense: vec![0x70, 0, 5],
            sense_words: "ILLEGAL_REQUEST: invalid field in CDB (24h/00h)".into(),
            data: Vec::new(),
            ..ended()
        };
        let shown = text(&refused, true);
        assert!(shown.contains("CHECK CONDITION\nILLEGAL_REQUEST: invalid field") && shown.ends_with("70 00 05\n"));
        assert!(!refused.is_good() && ended().is_good());
    }

    #[test]
    fn repeated_lines_are_left_out_except_the_last() {
        let shown = dump(&[0; 100]);
        let lines: Vec<&str> = shown.lines().map(|line| line.split("  ").next().unwrap_or_default()).collect();
        assert_eq!(lines, ["000000", "*", "000060"]);
        assert_eq!(dump(&[]), "");
    }
}
