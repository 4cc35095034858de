//! Metrics: the declaration of a family, the two text formats, and the reference page. The numbers come from the parts
//! that count.
//!
//! * [`Family`], [`families!`](crate::families): a row of a table of metrics
//! * [`text`]: the text format 0.0.4 of Prometheus and OpenMetrics 1.0
//! * [`Measured`]: a running target, as the API reads its metrics

pub mod text;

use crate::api::TroubleView;
use crate::counters::CountersView;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;
pub use text::{Format, Page, Samples};

/// The kind of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows while the program runs.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// Counts by size, with their sum.
    Histogram,
}

impl Kind {
    /// The word of the kind in both formats.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A family of metrics: a row of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    /// Its name, with its unit last and without `_total`.
    pub name: Cow<'static, str>,
    /// Its kind.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its description: one sentence.
    pub help: &'static str,
}

impl Family {
    /// The name of its samples, or the common part of their names: that of a counter ends with `_total`.
    #[must_use]
    pub fn samples(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Gauge | Kind::Histogram => self.name.to_string(),
        }
    }

    /// Its unit: the last word of its name, if that is one.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        const UNITS: [&str; 2] = ["seconds", "bytes"];
        UNITS.into_iter().find(|unit| self.name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')))
    }
}

/// Declares a table of families with this visibility: a constant for each, and `FAMILIES` with all of them in their
/// order.
#[macro_export]
macro_rules! families {
    ($vis:vis, $($(#[$doc:meta])* $id:ident = $name:literal $kind:ident [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            $(#[$doc])*
            $vis const $id: $crate::metrics::Family = $crate::metrics::Family {
                name: ::std::borrow::Cow::Borrowed($name),
                kind: $crate::metrics::Kind::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*

        /// All families of this table, in their order.
        $vis const FAMILIES: &[$crate::metrics::Family] = &[$($id),*];
    };
}

/// A running target, for readers on any thread: reading stops no core, and waits for none.
pub trait Measured: Send + Sync + fmt::Debug {
    /// Writes its metrics. `troubles` are those that were found last.
    fn write(&self, page: &mut Page, troubles: &[TroubleView]);

    /// Its counters at this moment. `troubles` are those that were found last.
    fn counters(&self, troubles: &[TroubleView]) -> CountersView;

    /// The commands that all cores have taken so far: one number, which costs nothing to read.
    fn commands(&self) -> u64;

    /// The numbers of the cores that do not answer within this time; the calling thread waits as long.
    fn silent_cores(&self, patience: Duration) -> Vec<usize>;
}

const HEAD: &str = "\
# Metrics

Generated from the tables in `engine/src/metrics/table.rs` and `api/src/metrics.rs` with
`LUNAR_REGENERATE=1 cargo test -p lunar fresh`.

`GET /metrics` of [the API](api.md) shows these metrics in the text format of Prometheus, or as OpenMetrics 1.0 if the
scraper asks for it. It needs a token whose role is `metrics`, which may read nothing else:

    [api-token.prometheus]
    secret = { file = \"/etc/lunar/secrets/prometheus\" }
    role = \"metrics\"

    # prometheus.yml
    scrape_configs:
      - job_name: lunar
        scheme: https
        authorization: { credentials_file: /etc/prometheus/lunar.token }
        static_configs: [{ targets: [\"storage.example:3280\"] }]

[monitoring/](monitoring/) has alert rules for Prometheus and a dashboard for Grafana.

* Counters begin at zero when Lunar starts. Those of a volume end with the volume.
* Latencies are measured from the moment when a command is executed to its status, with the clock that each core reads
  once in each turn of its loop: a command that ends in the turn in which it arrived counts as 0 seconds, in the first
  bucket. The time that a command waits for a slot is not part of it; `lunar_slot_waits_total` counts these.
* `host` and `target` are the names in the configuration or those that the client gave. At most 1024 pairs of them are
  shown one by one; all others are the host `other` at the target `other`. Control characters in names are escaped.
* `class` is `read`, `write`, `unmap`, `compare-and-write`, `copy` or `other`; failed commands are part of it.

| metric | kind | labels | |
|---|---|---|---|
";

/// The reference page of these families.
#[must_use]
pub fn page<'a>(families: impl IntoIterator<Item = &'a Family>) -> String {
    let mut page = String::from(HEAD);
    for family in families {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (family.samples(), family.kind.word(), labels.join(", "));
        page.push_str(&format!("| `{name}` | {kind} | {labels} | {} |\n", family.help));
    }
    page
}
