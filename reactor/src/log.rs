//! Lines of the log, which is standard error.
//!
//! A line has a severity, and is left out if it is less severe than the process logs. Before [`set_up`] a line is the
//! text alone, as commands of an operator print it. A service has lines with time and severity: [`Format`].
//!
//! If standard error is closed (the terminal or the reader of the pipe has ended), the lines are lost, without further
//! effect: `eprintln!` would panic, and end the thread that logs.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The severity of a line; the numbers are those of syslog (RFC 5424 6.2.1), from which journald takes them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Severity {
    /// A failure.
    Error = 3,
    /// A probable failure.
    Warning = 4,
    /// A change.
    Info = 6,
    /// A detail.
    Debug = 7,
}

impl Severity {
    /// The severity as it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// The format of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Format {
    /// The text alone.
    Plain,
    /// `2026-11-24T17:15:23.042Z error: text`.
    Timed,
    /// `<3>text`, one prefix for each line of the text: journald adds the time (sd-daemon(3)).
    Journal,
    /// One JSON object per line: `time`, `severity`, `message`.
    Json,
}

static LEVEL: AtomicU8 = AtomicU8::new(Severity::Info as u8);
static FORMAT: AtomicU8 = AtomicU8::new(Format::Plain as u8);

/// From now on lines have this format, and those that are less severe than `level` are left out.
pub fn set_up(level: Severity, format: Format) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// The format for text: [`Format::Journal`] if standard error leads to journald, which says so in `JOURNAL_STREAM`
/// (systemd.exec(5)), [`Format::Timed`] otherwise.
#[must_use]
pub fn text_format() -> Format {
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let is_journal = rustix::fs::fstat(io::stderr().as_fd())
        .is_ok_and(|found| told.split_once(':') == Some((&found.st_dev.to_string(), &found.st_ino.to_string())));
    if is_journal { Format::Journal } else { Format::Timed }
}

/// Writes a line of the log: the arguments are formatted as by [`format!`], and the end of the line is added. It never
/// fails. A severity may be first (`error`, `warning`, `debug`); otherwise the line is of severity `info`.
#[macro_export]
macro_rules! log {
    (error, $($words:tt)+) => { $crate::log::line($crate::log::Severity::Error, ::std::format_args!($($words)+)) };
    (warning, $($words:tt)+) => { $crate::log::line($crate::log::Severity::Warning, ::std::format_args!($($words)+)) };
    (debug, $($words:tt)+) => { $crate::log::line($crate::log::Severity::Debug, ::std::format_args!($($words)+)) };
    ($($words:tt)+) => { $crate::log::line($crate::log::Severity::Info, ::std::format_args!($($words)+)) };
}

/// Writes a text and the end of the line, in one call, so that lines of several threads do not mix.
pub fn line(severity: Severity, words: fmt::Arguments<'_>) {
    if severity as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    let format = match FORMAT.load(Ordering::Relaxed) {
        format if format == Format::Timed as u8 => Format::Timed,
        format if format == Format::Journal as u8 => Format::Journal,
        format if format == Format::Json as u8 => Format::Json,
        _ => Format::Plain,
    };
    write_to(&mut io::stderr(), &formatted(format, severity, SystemTime::now(), words));
}

fn write_to(log: &mut impl Write, text: &str) {
    // There is no place to report the failure.
    let _ = log.write_all(text.as_bytes());
}

/// A line, with its end.
fn formatted(format: Format, severity: Severity, now: SystemTime, words: fmt::Arguments<'_>) -> String {
    match format {
        Format::Plain => format!("{words}\n"),
        Format::Timed => format!("{} {}: {words}\n", time(now), severity.word()),
        Format::Journal => {
            let prefixed = |line: &str| format!("<{}>{line}\n", severity as u8);
            words.to_string().split('\n').map(prefixed).collect()
        }
        Format::Json => {
            let (time, severity) = (time(now), severity.word());
            let message = escaped(&words.to_string());
            format!("{{\"time\":\"{time}\",\"severity\":\"{severity}\",\"message\":\"{message}\"}}\n")
        }
    }
}

/// The content of a JSON string (RFC 8259 7).
fn escaped(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\\' => all.extend(['\\', character]),
            '\n' => all.push_str("\\n"),
            control if u32::from(control) < 0x20 => {
                // Writing into a string never fails.
                let _ = write!(all, "\\u{:04x}", u32::from(control));
            }
            other => all.push(other),
        }
    }
    all
}

/// Days from 0000-03-01 to 1970-01-01 in the Gregorian calendar.
const EPOCH_DAYS: u64 = 719_468;
/// Days of 400 Gregorian years.
const ERA_DAYS: u64 = 146_097;

/// A time in UTC (RFC 3339).
fn time(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400 + EPOCH_DAYS, since.as_secs() % 86_400);
    // Years begin in March here, so that the leap day is the last day of a year.
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * march + 2) / 5 + 1, (march + 2) % 12 + 1);
    let year = era * 400 + year + u64::from(month < 3);
    let (hour, minute, second) = (second / 3600, second % 3600 / 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The error of a closed terminal, or of a pipe without reader.
    struct Gone(usize);

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_line_is_written_at_once_or_lost() {
        let mut all = Vec::new();
        let text = formatted(Format::Plain, Severity::Info, UNIX_EPOCH, format_args!("{} and {}", 1, "two"));
        write_to(&mut all, &text);
        assert_eq!(all, b"1 and two\n");
        let mut gone = Gone(0);
        write_to(&mut gone, &text);
        assert_eq!(gone.0, 1);
    }

    #[test]
    fn a_line_of_a_service_has_time_and_severity() {
        let now = UNIX_EPOCH + Duration::from_millis(1_795_540_523_042);
        let line = |format, severity| formatted(format, severity, now, format_args!("a \"disk\"\nis full"));
        let timed = "2026-11-24T17:15:23.042Z error: a \"disk\"\nis full\n";
        assert_eq!(line(Format::Timed, Severity::Error), timed);
        assert_eq!(line(Format::Journal, Severity::Warning), "<4>a \"disk\"\n<4>is full\n");
        let json =
            "{\"time\":\"2026-11-24T17:15:23.042Z\",\"severity\":\"info\",\"message\":\"a \\\"disk\\\"\\nis full\"}\n";
        assert_eq!(line(Format::Json, Severity::Info), json);
    }

    #[test]
    fn times_are_those_of_the_gregorian_calendar() {
        let at = |seconds| time(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn severities_are_ordered_as_syslog_numbers_them() {
        assert!(Severity::Error < Severity::Warning && Severity::Info < Severity::Debug);
        let numbers = [Severity::Error, Severity::Warning, Severity::Info, Severity::Debug].map(|s| s as u8);
        assert_eq!(numbers, [3, 4, 6, 7]);
        assert_eq!(escaped("\u{1}\\"), "\\u0001\\\\");
    }
}
