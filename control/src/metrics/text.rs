//! The text formats of metrics: 0.0.4 of Prometheus (prometheus.io/docs/instrumenting/exposition_formats) and
//! OpenMetrics 1.0.

use super::{Family, Kind};
use std::fmt::Write;

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that a client prefers by its Accept field (RFC 9110 12.5.1). Without a preference, and for a client
    /// that accepts neither, that of Prometheus.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let quality = |names: &[&str]| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let name = parts.next()?;
                let weight = parts.filter_map(|part| part.strip_prefix("q=")?.parse().ok()).next();
                names.iter().any(|known| name.eq_ignore_ascii_case(known)).then_some(weight.unwrap_or(1.0))
            });
            ranges.fold(0.0_f64, f64::max)
        };
        let open = quality(&["application/openmetrics-text"]);
        let plain = quality(&["text/plain", "text/*", "*/*"]);
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The media type of the format.
    #[must_use]
    pub fn media(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A page of metrics.
#[derive(Debug)]
pub struct Page {
    format: Format,
    text: String,
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Writes a family with the samples that `fill` adds; nothing if it adds none.
    pub fn family(&mut self, family: &Family, fill: impl FnOnce(&mut Samples<'_>)) {
        fill(&mut Samples { page: self, family, is_begun: false });
    }

    /// The text.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// The samples of a family.
#[derive(Debug)]
pub struct Samples<'a> {
    page: &'a mut Page,
    family: &'a Family,
    is_begun: bool,
}

impl Samples<'_> {
    /// Adds a number, with the values of the labels in their order.
    pub fn add(&mut self, labels: &[&str], value: u64) {
        self.sample("", labels, None, |text| write(text, value));
    }

    /// Adds a time in seconds.
    pub fn add_seconds(&mut self, labels: &[&str], nanoseconds: u64) {
        self.sample("", labels, None, |text| seconds(text, nanoseconds));
    }

    /// Adds a histogram of times: the number of times up to each bound in microseconds and above the bound before it,
    /// `None` being the bound of the last, and the sum of all of them.
    pub fn add_histogram(
        &mut self,
        labels: &[&str],
        buckets: impl IntoIterator<Item = (Option<u64>, u64)>,
        nanoseconds: u64,
    ) {
        let mut count: u64 = 0;
        for (bound, more) in buckets {
            count = count.wrapping_add(more);
            let mut edge = String::new();
            match bound {
                Some(microseconds) => seconds(&mut edge, microseconds * 1000),
                None => edge.push_str("+Inf"),
            }
            self.sample("_bucket", labels, Some(&edge), |text| write(text, count));
        }
        self.sample("_sum", labels, None, |text| seconds(text, nanoseconds));
        self.sample("_count", labels, None, |text| write(text, count));
    }

    fn sample(&mut self, suffix: &str, labels: &[&str], edge: Option<&str>, value: impl FnOnce(&mut String)) {
        debug_assert_eq!(labels.len(), self.family.labels.len(), "{}", self.family.name);
        self.begin();
        let (family, text) = (self.family, &mut self.page.text);
        text.push_str(&family.name);
        text.push_str(if family.kind == Kind::Counter { "_total" } else { suffix });
        let mut separator = '{';
        let edge = edge.map(|edge| ("le", edge));
        for (name, label) in family.labels.iter().copied().zip(labels.iter().copied()).chain(edge) {
            text.push(separator);
            separator = ',';
            text.push_str(name);
            text.push_str("=\"");
            escape(text, label);
            text.push('"');
        }
        text.push_str(if separator == '{' { " " } else { "} " });
        value(text);
        text.push('\n');
    }

    /// The lines before the first sample.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        let (family, format) = (self.family, self.page.format);
        // The name of a counter has its suffix in the one format, and not in the other.
        let name = match format {
            Format::Prometheus => family.samples(),
            Format::OpenMetrics => family.name.to_string(),
        };
        let unit = family.unit().filter(|_| format == Format::OpenMetrics);
        let text = &mut self.page.text;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}", family.help);
        let _ = writeln!(text, "# TYPE {name} {}", family.kind.word());
        if let Some(unit) = unit {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
    }
}

fn write(text: &mut String, value: u64) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{value}");
}

/// Writes a time as a decimal number of seconds.
fn seconds(text: &mut String, nanoseconds: u64) {
    const SECOND: u64 = 1_000_000_000;
    write(text, nanoseconds / SECOND);
    let fraction = nanoseconds % SECOND;
    if fraction > 0 {
        let digits = format!("{fraction:09}");
        text.push('.');
        text.push_str(digits.trim_end_matches('0'));
    }
}

/// Writes the value of a label.
fn escape(text: &mut String, value: &str) {
    for char in value.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            char => text.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::families! {
        pub(super),
        BYTES = "lunar_volume_bytes" Counter ["volume", "direction"] "Bytes that commands moved.";
        UP = "lunar_up" Gauge [] "Whether it is there.";
        TIME = "lunar_command_seconds" Histogram ["class"] "Time from the arrival of commands to their end.";
        NONE = "lunar_none" Gauge [] "Nothing has it.";
    }

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        page.family(&BYTES, |samples| {
            samples.add(&["disk1", "read"], 4096);
            samples.add(&["a\"b\\c\nd\u{202e}", "write"], 0);
        });
        page.family(&UP, |samples| samples.add(&[], 1));
        let buckets = [(Some(16), 3), (Some(4_194_304), 1), (None, 2)];
        page.family(&TIME, |samples| samples.add_histogram(&["read"], buckets, 1_500_000_000));
        page.family(&NONE, |_| ());
        page.finish()
    }

    #[test]
    fn the_format_of_prometheus() {
        let expected = "\
# HELP lunar_volume_bytes_total Bytes that commands moved.
# TYPE lunar_volume_bytes_total counter
lunar_volume_bytes_total{volume=\"disk1\",direction=\"read\"} 4096
lunar_volume_bytes_total{volume=\"a\\\"b\\\\c\\nd\u{202e}\",direction=\"write\"} 0
# HELP lunar_up Whether it is there.
# TYPE lunar_up gauge
lunar_up 1
# HELP lunar_command_seconds Time from the arrival of commands to their end.
# TYPE lunar_command_seconds histogram
lunar_command_seconds_bucket{class=\"read\",le=\"0.000016\"} 3
lunar_command_seconds_bucket{class=\"read\",le=\"4.194304\"} 4
lunar_command_seconds_bucket{class=\"read\",le=\"+Inf\"} 6
lunar_command_seconds_sum{class=\"read\"} 1.5
lunar_command_seconds_count{class=\"read\"} 6
";
        assert_eq!(page(Format::Prometheus), expected);
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        let text = page(Format::OpenMetrics);
        let begin = "# HELP lunar_volume_bytes Bytes that commands moved.\n# TYPE lunar_volume_bytes counter\n# UNIT \
                     lunar_volume_bytes bytes\nlunar_volume_bytes_total{";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.contains("# UNIT lunar_command_seconds seconds\n") && text.ends_with("# EOF\n"));
        assert!(!text.contains("# UNIT lunar_up"));
    }

    #[test]
    fn the_client_chooses_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for plain in ["", "*/*", "text/plain", "text/html", "application/openmetrics-text;q=0.2,text/plain;q=0.3"] {
            assert_eq!(Format::accepted(plain), Format::Prometheus, "{plain}");
        }
        assert_eq!(Format::accepted("application/openmetrics-text"), Format::OpenMetrics);
        assert_eq!(Format::accepted("application/openmetrics-text;q=0"), Format::Prometheus);
    }

    #[test]
    fn names_of_families_and_samples() {
        assert_eq!((BYTES.samples(), BYTES.unit()), ("lunar_volume_bytes_total".to_owned(), Some("bytes")));
        assert_eq!((UP.samples(), UP.unit(), FAMILIES.len()), ("lunar_up".to_owned(), None, 4));
        let line = "| `lunar_volume_bytes_total` | counter | `volume`, `direction` | Bytes that commands moved. |\n";
        assert!(super::super::page(FAMILIES).contains(line));
    }
}
