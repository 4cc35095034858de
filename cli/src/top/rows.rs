//! The tables of `lunar top`: their columns, and the rows of the present rates, filtered and sorted. No terminal here.

use lunar_control::rates::{BUSY, ClassRates, CoreRates, Flow, HostRates, Rates, StoreRates, VolumeRates};
use serde_json::Value as Json;
use std::cmp::Ordering;

/// A table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// The volumes.
    Volumes,
    /// The hosts, each with each of its targets.
    Hosts,
    /// The cores.
    Cores,
    /// The sessions.
    Sessions,
    /// The file systems of volumes.
    Stores,
}

impl View {
    /// All, in the order of their keys.
    pub const ALL: [Self; 5] = [Self::Volumes, Self::Hosts, Self::Cores, Self::Sessions, Self::Stores];

    /// The word on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::Hosts => "hosts",
            Self::Cores => "cores",
            Self::Sessions => "sessions",
            Self::Stores => "stores",
        }
    }

    /// Its place among all.
    #[must_use]
    pub fn place(self) -> usize {
        Self::ALL.iter().position(|view| *view == self).unwrap_or(0)
    }

    /// Its columns.
    #[must_use]
    pub const fn columns(self) -> &'static [Column] {
        match self {
            Self::Volumes => &VOLUMES,
            Self::Hosts => &HOSTS,
            Self::Cores => &CORES,
            Self::Sessions => &SESSIONS,
            Self::Stores => &STORES,
        }
    }

    /// The column by which it is sorted at first: the load, or the used part; sessions and cores in their order.
    #[must_use]
    pub fn first_sort(self) -> Sort {
        let of = |head| self.columns().iter().position(|column| column.head == head).unwrap_or(0);
        match self {
            Self::Volumes | Self::Hosts => Sort { column: of("iops"), descending: true },
            Self::Stores => Sort { column: of("used"), descending: true },
            Self::Cores | Self::Sessions => Sort { column: 0, descending: false },
        }
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// How soon it is left out of a narrow terminal: those with the highest number first; 0: never.
    pub rank: u8,
    /// Whether it holds text, which is aligned to the left.
    pub is_text: bool,
}

const fn text(head: &'static str, rank: u8) -> Column {
    Column { head, rank, is_text: true }
}

const fn number(head: &'static str, rank: u8) -> Column {
    Column { head, rank, is_text: false }
}

const VOLUMES: [Column; 16] = [
    text("volume", 0),
    text("state", 3),
    number("iops", 0),
    number("r/s", 5),
    number("w/s", 5),
    number("o/s", 9),
    number("rB/s", 1),
    number("wB/s", 1),
    number("mean", 6),
    number("p50", 4),
    number("p99", 0),
    number("queue", 2),
    number("max", 9),
    number("errors", 7),
    number("size", 8),
    number("used", 8),
];

const HOSTS: [Column; 14] = [
    text("host", 0),
    text("target", 3),
    text("transport", 6),
    number("sessions", 4),
    number("iops", 0),
    number("r/s", 7),
    number("w/s", 7),
    number("rB/s", 1),
    number("wB/s", 1),
    number("mean", 5),
    number("p50", 4),
    number("p99", 0),
    number("aborts", 8),
    number("resets", 8),
];

const CORES: [Column; 8] = [
    number("core", 0),
    number("busy", 0),
    number("spin", 1),
    number("sleep", 1),
    number("iops", 0),
    number("connections", 2),
    number("buffers", 3),
    number("longest", 4),
];

const SESSIONS: [Column; 9] = [
    text("initiator", 0),
    text("source", 1),
    text("target", 2),
    text("transport", 5),
    text("group", 4),
    text("user", 6),
    number("for", 3),
    text("id", 0),
    number("host iops", 3),
];

const STORES: [Column; 7] = [
    text("store", 0),
    number("size", 3),
    number("free", 1),
    number("used", 0),
    number("growth/s", 2),
    number("full in", 0),
    number("volumes", 4),
];

/// The part of a file system from which it is marked: `lunar doctor` reports it, too.
const ALMOST_FULL: f64 = 0.9;

/// A column by which a table is sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sort {
    /// Its place.
    pub column: usize,
    /// Whether the largest is first.
    pub descending: bool,
}

/// A cell.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// The text that is shown.
    pub text: String,
    /// By what it is sorted, if not by its text.
    number: Option<f64>,
}

impl Cell {
    fn text(text: &str) -> Self {
        Self { text: text.to_owned(), number: None }
    }

    fn number(text: String, number: f64) -> Self {
        Self { text, number: Some(number) }
    }

    /// A number that may be unknown: that is less than all others.
    fn known(number: Option<f64>, show: fn(f64) -> String) -> Self {
        Self::number(number.map_or_else(|| "-".to_owned(), show), number.unwrap_or(-1.0))
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its identity.
    pub key: String,
    /// Its cells, one for each column.
    pub cells: Vec<Cell>,
    /// Whether something is wrong with it.
    pub is_bad: bool,
}

/// A short text for a number of commands or bytes: `870`, `48.2k`, `1.9G`.
#[must_use]
pub fn short(number: f64) -> String {
    let (mut number, mut unit) = (number, 0);
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(number < 99.95 && (unit > 0 || number.fract() > 0.05 && number < 9.95));
    format!("{number:.digits$}{}", UNITS[unit])
}

/// A short text for the size of a store, with the units of the configuration: `512K`, `48M`, `1.5G`.
#[must_use]
pub fn short_size(bytes: f64) -> String {
    let (mut size, mut unit) = (bytes, 0);
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(size < 99.95 && size.fract() > 0.05);
    format!("{size:.digits$}{}", UNITS[unit])
}

/// A short text for a latency in microseconds: `0.4us`, `92us`, `1.4ms`, `2.10s`.
#[must_use]
pub fn short_time(microseconds: f64) -> String {
    match microseconds {
        time if time < 9.95 && time.fract() >= 0.05 => format!("{time:.1}us"),
        time if time < 999.5 => format!("{time:.0}us"),
        time if time < 99_950.0 => format!("{:.1}ms", time / 1e3),
        time if time < 999_500.0 => format!("{:.0}ms", time / 1e3),
        time => format!("{:.2}s", time / 1e6),
    }
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

fn count(number: u64) -> Cell {
    Cell::number(short(number as f64), number as f64)
}

fn iops(class: &ClassRates) -> Cell {
    Cell::number(short(class.iops), class.iops)
}

fn bytes(class: &ClassRates) -> Cell {
    Cell::number(short(class.bytes_per_second), class.bytes_per_second)
}

fn latencies(class: &ClassRates) -> [Cell; 3] {
    let of = |latency: Option<f64>| Cell::known(latency, short_time);
    [
        of(class.latency.map(|latency| latency.mean_microseconds)),
        of(class.latency.map(|latency| latency.p50_microseconds)),
        of(class.latency.map(|latency| latency.p99_microseconds)),
    ]
}

fn volume(volume: &VolumeRates) -> Row {
    let VolumeRates { flow: Flow { read, write, other, all }, .. } = volume;
    let [mean, p50, p99] = latencies(all);
    let size = volume.size.map(|size| size as f64);
    let used = volume.allocated.zip(volume.size).map(|(used, size)| used as f64 / size.max(1) as f64);
    let is_well = matches!(volume.state.as_str(), "up" | "read-only") && volume.errors == 0;
    Row {
        key: volume.name.clone(),
        cells: vec![
            Cell::text(&volume.name),
            Cell::text(&volume.state),
            iops(all),
            iops(read),
            iops(write),
            iops(other),
            bytes(read),
            bytes(write),
            mean,
            p50,
            p99,
            count(volume.queue),
            count(volume.queue_max),
            count(volume.errors),
            Cell::known(size, short_size),
            Cell::known(used, percent),
        ],
        is_bad: !is_well,
    }
}

fn host(host: &HostRates) -> Row {
    let Flow { read, write, all, .. } = &host.flow;
    let [mean, p50, p99] = latencies(all);
    Row {
        key: format!("{} {} {}", host.transport, host.target_name, host.host),
        cells: vec![
            Cell::text(&host.host),
            Cell::text(&host.target),
            Cell::text(&host.transport),
            count(host.sessions),
            iops(all),
            iops(read),
            iops(write),
            bytes(read),
            bytes(write),
            mean,
            p50,
            p99,
            count(host.aborts),
            count(host.resets),
        ],
        is_bad: host.aborts + host.resets > 0,
    }
}

fn core(core: &CoreRates) -> Row {
    let part = |part: f64| Cell::number(percent(part), part);
    let longest = core.longest_turn_microseconds;
    Row {
        key: core.core.to_string(),
        cells: vec![
            count(core.core),
            part(core.busy),
            part(core.spin),
            part(core.sleep),
            Cell::number(short(core.iops), core.iops),
            count(core.connections),
            part(core.buffers),
            Cell::number(short_time(longest), longest),
        ],
        is_bad: core.busy >= BUSY,
    }
}

fn store(store: &StoreRates) -> Row {
    let used = 1.0 - store.free as f64 / store.size.max(1) as f64;
    let sign = if store.growth < 0.0 { "-" } else { "" };
    let left = store.seconds_left.map(|seconds| Cell::number(crate::show::span(&(seconds as u64).into()), seconds));
    Row {
        key: store.name.clone(),
        cells: vec![
            Cell::text(&store.name),
            Cell::number(short_size(store.size as f64), store.size as f64),
            Cell::number(short_size(store.free as f64), store.free as f64),
            Cell::number(percent(used), used),
            Cell::number(format!("{sign}{}", short(store.growth.abs())), store.growth),
            // A store that does not grow is sorted behind the others.
            left.unwrap_or_else(|| Cell::number("-".to_owned(), f64::INFINITY)),
            count(store.volumes),
        ],
        is_bad: used > ALMOST_FULL,
    }
}

/// The rates of the host of a session at its target: sessions are not counted one by one.
#[must_use]
pub fn host_of<'a>(rates: &'a Rates, session: &Json) -> Option<&'a HostRates> {
    let of = |key: &str| session[key].as_str().unwrap_or_default();
    let is_same = |host: &&HostRates| {
        host.transport == of("protocol")
            && host.host == of("initiator")
            && (host.target_name.eq_ignore_ascii_case(of("target")) || host.target == of("target"))
    };
    rates.hosts.iter().find(is_same)
}

fn session(rates: &Rates, session: &Json) -> Row {
    let of = |key: &str| session[key].as_str().unwrap_or_default();
    let seconds = session["seconds"].as_u64().unwrap_or(0);
    let target = if session["discovery"] == true { "(discovery)" } else { of("target") };
    let load = host_of(rates, session).map(|host| host.flow.all.iops);
    Row {
        key: of("id").to_owned(),
        cells: vec![
            Cell::text(of("initiator")),
            Cell::text(of("source")),
            Cell::text(target),
            Cell::text(of("protocol")),
            Cell::text(of("group")),
            Cell::text(of("user")),
            Cell::number(crate::show::span(&session["seconds"]), seconds as f64),
            Cell::text(of("id")),
            Cell::known(load, short),
        ],
        is_bad: false,
    }
}

/// The rows of a table, of which a text cell contains `filter`, in order.
#[must_use]
pub fn rows(view: View, rates: &Rates, sessions: &[Json], filter: &str, sort: Sort) -> Vec<Row> {
    let all: Vec<Row> = match view {
        View::Volumes => rates.volumes.iter().map(volume).collect(),
        View::Hosts => rates.hosts.iter().map(host).collect(),
        View::Cores => rates.cores.iter().map(core).collect(),
        View::Sessions => sessions.iter().map(|one| session(rates, one)).collect(),
        View::Stores => rates.stores.iter().map(store).collect(),
    };
    let (columns, wanted) = (view.columns(), filter.to_lowercase());
    let fits = |row: &Row| {
        let texts = row.cells.iter().zip(columns).filter(|(_, column)| column.is_text);
        wanted.is_empty() || texts.into_iter().any(|(cell, _)| cell.text.to_lowercase().contains(&wanted))
    };
    let mut rows: Vec<Row> = all.into_iter().filter(fits).collect();
    let order = |one: &Row, other: &Row| {
        let order = one.cells.get(sort.column).zip(other.cells.get(sort.column));
        let order = order.map_or(Ordering::Equal, |(one, other)| one.order(other));
        if sort.descending { order.reverse() } else { order }
    };
    // Equal rows stay in the order of their names, so that they do not change places.
    rows.sort_by(|one, other| order(one, other).then_with(|| one.key.cmp(&other.key)));
    rows
}

/// The places of the columns that fit into a width, and their widths. The first column takes the rest.
#[must_use]
pub fn layout(view: View, rows: &[Row], width: usize) -> Vec<(usize, usize)> {
    let columns = view.columns();
    let wide = |at: usize| {
        let cells = rows.iter().map(|row| row.cells[at].text.chars().count());
        cells.chain([columns[at].head.len() + 1]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(wide).collect();
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    // The first column may be cut.
    let first = widths[0].min(FIRST_MIN);
    let needed = |shown: &[usize]| {
        first + shown.iter().filter(|at| **at > 0).map(|at| widths[*at].min(TEXT_MAX) + GAP).sum::<usize>()
    };
    while needed(&shown) > width {
        let Some(least) = (1..shown.len()).max_by_key(|at| (columns[shown[*at]].rank, *at)) else { break };
        shown.remove(least);
    }
    let rest = width.saturating_sub(needed(&shown) - first);
    let of = |at: usize| if at == 0 { widths[0].min(rest) } else { widths[at].min(TEXT_MAX) };
    shown.into_iter().map(|at| (at, of(at))).collect()
}

/// The first column is cut to so many characters before others are left out.
const FIRST_MIN: usize = 16;
/// Other texts are cut to so many characters.
const TEXT_MAX: usize = 44;
/// Spaces between two columns.
pub const GAP: usize = 1;

/// A text in a column of this width: cut in the middle, because the ends of names differ, and padded.
#[must_use]
pub fn fitted(text: &str, width: usize, is_text: bool) -> String {
    let length = text.chars().count();
    if length <= width {
        return if is_text { format!("{text:<width$}") } else { format!("{text:>width$}") };
    }
    let (head, tail) = (width.saturating_sub(1).div_ceil(3), width.saturating_sub(1) * 2 / 3);
    let mark = if width > 0 { "~" } else { "" };
    let (start, end) = (text.chars().take(head), text.chars().skip(length - tail));
    start.chain(mark.chars()).chain(end).take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rates() -> Rates {
        let volume = |name: &str, iops: f64, state: &str| VolumeRates {
            name: name.into(),
            state: state.into(),
            flow: Flow { all: ClassRates { iops, ..ClassRates::default() }, ..Flow::default() },
            ..VolumeRates::default()
        };
        let host = HostRates {
            host: "iqn.a".into(),
            target: "main".into(),
            target_name: "iqn.t:main".into(),
            transport: "iscsi".into(),
            flow: Flow { all: ClassRates { iops: 5.0, ..ClassRates::default() }, ..Flow::default() },
            ..HostRates::default()
        };
        let store = |name: &str, free: u64, growth: f64| StoreRates {
            name: name.into(),
            size: 100 << 30,
            free: free << 30,
            volumes: 2,
            growth,
            seconds_left: (growth > 0.0).then(|| (free << 30) as f64 / growth),
        };
        Rates {
            time: 0,
            seconds: 1.0,
            total: Flow::default(),
            queue: 0,
            cores: vec![CoreRates { busy: 0.95, ..CoreRates::default() }],
            volumes: vec![volume("a", 10.0, "up"), volume("b", 900.0, "full"), volume("c", 10.0, "up")],
            hidden_volumes: 0,
            hosts: vec![host],
            stores: vec![store("/srv/a", 5, 0.0), store("/srv/b", 40, 1e6)],
        }
    }

    fn keys(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.key.as_str()).collect()
    }

    #[test]
    fn rows_have_a_cell_for_each_column() {
        let session = json!({ "id": "1", "initiator": "iqn.a", "protocol": "iscsi", "target": "IQN.t:main" });
        for view in View::ALL {
            let rows = rows(view, &rates(), std::slice::from_ref(&session), "", view.first_sort());
            assert!(!rows.is_empty());
            assert!(rows.iter().all(|row| row.cells.len() == view.columns().len()), "{view:?}");
            assert_eq!(View::ALL[view.place()], view);
        }
        let shown = rows(View::Sessions, &rates(), &[session], "", View::Sessions.first_sort());
        assert_eq!(shown[0].cells.last().map(|cell| cell.text.as_str()), Some("5"), "the host of the session");
    }

    #[test]
    fn a_store_that_grows_says_when_it_is_full() {
        let shown = rows(View::Stores, &rates(), &[], "", View::Stores.first_sort());
        let texts: Vec<Vec<&str>> =
            shown.iter().map(|row| row.cells.iter().map(|cell| cell.text.as_str()).collect()).collect();
        assert_eq!(texts[0], ["/srv/a", "100G", "5G", "95%", "0", "-", "2"]);
        assert_eq!(texts[1], ["/srv/b", "100G", "40G", "60%", "1.0M", "11h 55m", "2"]);
        assert_eq!(shown.iter().map(|row| row.is_bad).collect::<Vec<_>>(), [true, false]);
        let soon = Sort { column: 5, descending: false };
        assert_eq!(keys(&rows(View::Stores, &rates(), &[], "", soon)), ["/srv/b", "/srv/a"]);
    }

    #[test]
    fn rows_are_sorted_and_equal_ones_keep_their_places() {
        let of = |sort, filter| rows(View::Volumes, &rates(), &[], filter, sort);
        let sort = View::Volumes.first_sort();
        assert_eq!(keys(&of(sort, "")), ["b", "a", "c"]);
        assert_eq!(keys(&of(Sort { descending: false, ..sort }, "")), ["a", "c", "b"]);
        assert_eq!(keys(&of(Sort { column: 0, descending: true }, "")), ["c", "b", "a"]);
        assert_eq!(keys(&of(sort, "FULL")), ["b"]);
        assert_eq!(keys(&of(sort, "nothing")), [""; 0]);
        assert_eq!(of(sort, "").iter().map(|row| row.is_bad).collect::<Vec<_>>(), [true, false, false]);
        assert!(rows(View::Cores, &rates(), &[], "", View::Cores.first_sort())[0].is_bad, "a saturated core");
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns() {
        let rows = rows(View::Volumes, &rates(), &[], "", View::Volumes.first_sort());
        let heads = |width| -> Vec<&str> {
            layout(View::Volumes, &rows, width).into_iter().map(|(at, _)| VOLUMES[at].head).collect()
        };
        assert_eq!(heads(200).len(), VOLUMES.len());
        assert_eq!((heads(20), heads(10)), (vec!["volume", "iops", "p99"], vec!["volume"]));
        assert_eq!(heads(30), ["volume", "iops", "rB/s", "wB/s", "p99"]);
        for width in 0..200 {
            let all = layout(View::Volumes, &rows, width);
            let taken: usize = all.iter().map(|(_, wide)| wide + GAP).sum::<usize>() - GAP;
            assert!(taken <= width.max(12), "{width}: {all:?}");
        }
    }

    #[test]
    fn numbers_and_names_are_short() {
        let all = [0.0, 0.4, 7.25, 12.3, 999.4, 999.5, 48_231.0, 1_900_000_000.0, 2e20].map(short);
        assert_eq!(all, ["0", "0.4", "7.2", "12", "999", "1.0k", "48.2k", "1.9G", "200000P"]);
        let all = [0.0, 1023.0, 1024.0, 48.0 * 1048576.0, 1.5 * 1073741824.0].map(short_size);
        assert_eq!(all, ["0", "1023", "1K", "48M", "1.5G"]);
        let all = [0.0, 0.42, 8.0, 92.4, 1_400.0, 250_000.0, 2_100_000.0].map(short_time);
        assert_eq!(all, ["0us", "0.4us", "8us", "92us", "1.4ms", "250ms", "2.10s"]);
        assert_eq!(fitted("iqn.2026-01.io.lunar:host7", 12, true), "iqn.~r:host7");
        assert_eq!(
            (fitted("ab", 4, true), fitted("ab", 4, false), fitted("abc", 0, true)),
            ("ab  ".into(), "  ab".into(), String::new())
        );
    }
}
