//! The output for people: tables, keys and steps; in colour on a terminal, plain elsewhere.

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use lunar_control::value::Size;
use lunar_control::{Kind, Schema};
use serde_json::Value as Json;
use std::io::{self, Write};

pub(crate) const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();

/// The width of a table that is not written to a terminal: unlimited.
const UNLIMITED: usize = usize::MAX;

/// Prints text. Styles are removed unless standard output is a terminal.
///
/// # Errors
/// If standard output is closed.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

pub(crate) fn styled(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// A progress bar of bytes, on a terminal only.
#[must_use]
pub fn progress(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} more");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The width of the terminal, in columns.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(UNLIMITED)
}

/// A JSON value as text.
pub(crate) fn text_of(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        Json::Array(list) => list.iter().map(text_of).collect::<Vec<_>>().join(","),
        Json::Object(object) => {
            let one = |(key, value): (&String, &Json)| match &value["volume"] {
                // A LUN.
                Json::String(volume) => {
                    let read_only = if value["read-only"] == true { "(ro)" } else { "" };
                    let namespace = value["namespace"].as_u64().map_or(String::new(), |id| format!("(ns {id})"));
                    let metadata = if value["metadata"] == true { "(metadata)" } else { "" };
                    format!("{key}={volume}{read_only}{namespace}{metadata}")
                }
                _ => format!("{key}:{}", text_of(value)),
            };
            object.iter().map(one).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// A table with a header. The last columns are left out if the table is wider than `most`.
pub(crate) fn table(heads: &[String], rows: &[Vec<String>], most: usize) -> String {
    let wide = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([heads[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(wide).collect();
    let mut shown = widths.len();
    while shown > 1 && widths[..shown].iter().map(|wide| wide.saturating_add(2)).sum::<usize>() > most.saturating_add(2)
    {
        shown -= 1;
    }
    let line = |cells: &[String], style: Option<Style>| {
        let mut text = String::new();
        for (at, cell) in cells.iter().enumerate().take(shown) {
            let last = at + 1 == shown;
            let gap = if last { 0 } else { widths[at] - cell.chars().count() + 2 };
            text.push_str(&style.map_or_else(|| cell.clone(), |style| styled(style, cell)));
            text.extend(std::iter::repeat_n(' ', gap));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    };
    let mut all = line(heads, Some(BOLD));
    all.extend(rows.iter().map(|row| line(row, None)));
    all
}

/// All resources of a kind: their names, and the keys whose value differs from the default in one of them.
#[must_use]
pub fn resources(schema: &'static Schema, kind: Kind, all: &Json) -> String {
    resources_table(schema, kind, all, width())
}

fn resources_table(schema: &'static Schema, kind: Kind, all: &Json, most: usize) -> String {
    let all: Vec<&Json> = all.as_array().into_iter().flatten().collect();
    if all.is_empty() {
        return format!("there is no {kind}; create one with `lunar {} create`\n", kind.section());
    }
    let differs = |key: &&lunar_control::section::Key| {
        let default = (key.default)(schema).unwrap_or_default();
        all.iter().any(|thing| thing["keys"][key.name()] != default)
    };
    // UUIDs are long and seldom needed; `show` prints them.
    let keys: Vec<_> = schema.keys(kind).into_iter().filter(|key| key.field != "uuid").filter(differs).collect();
    let heads: Vec<String> = std::iter::once("name".to_owned()).chain(keys.iter().map(|key| key.name())).collect();
    let row = |thing: &&Json| {
        let cells = keys.iter().map(|key| text_of(&thing["keys"][key.name()]));
        std::iter::once(text_of(&thing["name"])).chain(cells).collect::<Vec<_>>()
    };
    table(&heads, &all.iter().map(row).collect::<Vec<_>>(), most)
}

/// One resource: each key on a line; default values are dimmed.
#[must_use]
pub fn resource(schema: &'static Schema, kind: Kind, thing: &Json) -> String {
    let mut text = format!("{}\n", styled(BOLD, format!("{kind} {}", text_of(&thing["name"])).trim_end()));
    let wide = schema.keys(kind).iter().map(|key| key.name().len()).max().unwrap_or(0);
    for key in schema.keys(kind) {
        let (name, value) = (key.name(), &thing["keys"][key.name()]);
        let shown = if value.is_null() { "-".to_owned() } else { text_of(value) };
        let line = format!("  {name:wide$}  {shown}");
        let default = (key.default)(schema).unwrap_or_default();
        text.push_str(&if *value == default { styled(DIM, &line) } else { line });
        text.push('\n');
    }
    let identity = &thing["identity"];
    if identity.is_object() {
        // The tools of Linux put the type of the designation descriptor (3: NAA) in front.
        let wwid = identity["naa"].as_str().map_or(Json::Null, |naa| format!("3{naa}").into());
        text.push_str(&styled(BOLD, "as hosts see it"));
        text.push('\n');
        for (name, value) in [
            ("bytes", &identity["bytes"]),
            ("serial", &identity["serial"]),
            ("naa", &identity["naa"]),
            ("iSCSI", &identity["by-id"][0]),
            ("NVMe", &identity["by-id"][1]),
            ("WWID", &wwid),
        ] {
            let folder = if name == "iSCSI" || name == "NVMe" { "/dev/disk/by-id/" } else { "" };
            let shown = if value.is_null() { "-".to_owned() } else { folder.to_owned() + &text_of(value) };
            text.push_str(&format!("  {name:wide$}  {shown}\n"));
        }
    }
    text
}

/// The steps of a plan.
#[must_use]
pub fn plan(plan: &Json, done: bool) -> String {
    let steps: Vec<&Json> = plan["changes"].as_array().into_iter().flatten().collect();
    let notes = plan["notes"].as_array().into_iter().flatten();
    let notes: String = notes.map(|note| styled(YELLOW, &format!("note: {}", text_of(note))) + "\n").collect();
    if steps.is_empty() {
        return format!("nothing to do\n{notes}");
    }
    let mut text = String::new();
    for step in &steps {
        let (sign, style) = match step["action"].as_str() {
            Some("create" | "attach") => ("+", GREEN),
            Some("remove" | "detach") => ("-", RED),
            _ => ("~", YELLOW),
        };
        text.push_str(&styled(style, &format!("{sign} {}", text_of(&step["words"]))));
        let targets = step["targets"].as_array().map_or(0, Vec::len);
        let which = || match targets {
            1 => format!("target {}", text_of(&step["targets"])),
            _ => format!("targets {}", text_of(&step["targets"]).replace(',', ", ")),
        };
        match step["effect"].as_str() {
            Some("attention") if targets > 0 => text.push_str(&format!("  (clients of {} are notified)", which())),
            Some("ends-sessions") if targets > 0 => {
                text.push_str(&styled(RED, &format!("  (sessions of {} end)", which())))
            }
            Some("restart") => text.push_str(&styled(YELLOW, "  (after a restart)")),
            _ => {}
        }
        if step["hosts"].is_array() {
            let hosts = text_of(&step["hosts"]).replace(',', ", ");
            let why = if done { format!("  (taken from {hosts})") } else { format!("  (needs --force: {hosts})") };
            text.push_str(&styled(RED, &why));
        }
        text.push('\n');
    }
    let plural = if steps.len() == 1 { "step" } else { "steps" };
    let end = if done { "done" } else { "nothing was changed" };
    text.push_str(&styled(DIM, &format!("{} {plural}, {end}", steps.len())));
    text.push('\n');
    text.push_str(&notes);
    if done && plan["needs-restart"] == true {
        text.push_str("some changes need a restart: `systemctl restart lunar`\n");
    }
    text
}

/// The state of the medium of a volume.
#[must_use]
pub fn medium(state: &Json) -> String {
    let text = |key: &str| state[key].as_str().unwrap_or_default();
    let (volume, medium) = (text("volume"), text("medium"));
    let how = match (medium, state["loaded"] == true, state["locked"] == true) {
        ("disk", ..) => "is fixed",
        (_, false, _) => "is ejected",
        (_, true, true) => "is loaded and locked by an initiator",
        (_, true, false) => "is loaded",
    };
    format!("the medium of {volume} ({medium}) {how}\n")
}

/// The sessions.
#[must_use]
pub fn sessions(all: &Json) -> String {
    let all: Vec<&Json> = all.as_array().into_iter().flatten().collect();
    if all.is_empty() {
        return "there are no sessions\n".into();
    }
    let heads = ["id", "initiator", "source", "target", "group", "user", "for", "rtt", "lost"].map(str::to_owned);
    let row = |session: &&Json| {
        let cell = |head: &String| match head.as_str() {
            "for" => span(&session["seconds"]),
            "rtt" => most(&session["tcp"], "rtt-microseconds").map_or(String::new(), microseconds),
            "lost" => lost(&session["tcp"]).map_or(String::new(), |lost| lost.to_string()),
            head => text_of(&session[head]),
        };
        heads.iter().map(cell).collect()
    };
    table(&heads, &all.iter().map(row).collect::<Vec<Vec<_>>>(), width())
}

/// The handlers of volumes.
#[must_use]
pub fn handlers(all: &Json) -> String {
    let all: Vec<&Json> = all.as_array().into_iter().flatten().collect();
    if all.is_empty() {
        return "no volume has a handler\n".into();
    }
    let keys = [
        "volume",
        "state",
        "name",
        "serves",
        "process",
        "seconds",
        "late",
        "connections",
        "replayed",
        "timed-out",
        "faults",
        "socket",
    ];
    let heads = keys.map(|key| if key == "seconds" { "for" } else { key }.to_owned());
    let row = |handler: &&Json| {
        let cell = |key: &&str| match *key {
            "seconds" if handler["seconds"].is_u64() => span(&handler["seconds"]),
            key => text_of(&handler[key]),
        };
        keys.iter().map(cell).collect()
    };
    table(&heads, &all.iter().map(row).collect::<Vec<Vec<_>>>(), width())
}

/// The numbers of this key of all connections.
fn of_each<'a>(connections: &'a Json, key: &'a str) -> impl Iterator<Item = u64> + 'a {
    connections.as_array().into_iter().flatten().filter_map(move |one| one[key].as_u64())
}

fn most(connections: &Json, key: &str) -> Option<u64> {
    of_each(connections, key).max()
}

/// The segments that were sent again because they were lost; `None` without connections.
fn lost(connections: &Json) -> Option<u64> {
    let sum = |key| of_each(connections, key).sum::<u64>();
    most(connections, "retransmits").map(|_| sum("retransmits").saturating_sub(sum("duplicates")))
}

fn microseconds(time: u64) -> String {
    if time < 10_000 { format!("{time} us") } else { format!("{} ms", time / 1000) }
}

/// A TCP connection of a session.
fn connection(tcp: &Json) -> String {
    let of = |key: &str| tcp[key].as_u64().unwrap_or(0);
    let limited = |key: &str, what: &str| match of(key) / 1000 {
        0 => String::new(),
        time => format!(", {time} ms limited by {what}"),
    };
    format!(
        "rtt {} +- {}, {} of {} segments sent again ({} were only late), window {} segments of {} bytes, \
         receives {} bytes, {} unacknowledged, {} bytes/s delivered{}{}",
        microseconds(of("rtt-microseconds")),
        microseconds(of("rtt-variation-microseconds")),
        of("retransmits"),
        of("segments-sent"),
        of("duplicates"),
        of("congestion-window"),
        of("send-mss"),
        of("receive-mss"),
        of("unacknowledged"),
        of("delivery-rate"),
        limited("window-limited-microseconds", "the window of the client"),
        limited("buffer-limited-microseconds", "the send buffer"),
    )
}

/// One session.
#[must_use]
pub fn session(session: &Json) -> String {
    let fields =
        session.as_object().into_iter().flatten().filter(|(key, _)| !["tcp", "parameters"].contains(&key.as_str()));
    let line = |(key, value): (&String, &Json)| {
        let (key, value) = if key == "seconds" { ("for", span(value)) } else { (key.as_str(), text_of(value)) };
        format!("{key:<10}  {value}\n")
    };
    let list = |key: &str| session[key].as_array().into_iter().flatten();
    let connections = list("tcp").map(|tcp| format!("{:<10}  {}\n", "tcp", connection(tcp)));
    let parameters = list("parameters").map(|parameter| {
        let cost = parameter["cost"]["words"].as_str().map(|words| format!(": {words}")).unwrap_or_default();
        format!("{:<10}  {} {}{cost}\n", "negotiated", text_of(&parameter["name"]), text_of(&parameter["value"]))
    });
    fields.map(line).chain(connections).chain(parameters).collect()
}

/// The sessions that were ended.
#[must_use]
pub fn ended_sessions(ended: &Json) -> String {
    let line =
        |session: &Json| format!("ended session {} of {}\n", text_of(&session["id"]), text_of(&session["initiator"]));
    ended.as_array().into_iter().flatten().map(line).collect()
}

/// A trouble in one line: subject, problem, remedy, and the time since when it exists.
fn trouble(trouble: &Json) -> String {
    let part = |key: &str| trouble[key].as_str().unwrap_or_default();
    let remedy = if part("remedy").is_empty() { String::new() } else { format!("; {}", part("remedy")) };
    let since = if trouble["since"].as_u64().unwrap_or(0) > 0 {
        format!(" (since {})", time(&trouble["since"]))
    } else {
        String::new()
    };
    let subject = part("subject");
    let subject = if part("words").starts_with(subject) { String::new() } else { format!("{subject}: ") };
    format!("{subject}{}{remedy}{since}", part("words"))
}

/// The status of the service.
#[must_use]
pub fn status(status: &Json) -> String {
    let troubles: Vec<String> = status["troubles"].as_array().into_iter().flatten().map(trouble).collect();
    let state = match troubles.len() {
        0 => styled(GREEN, "no troubles"),
        1 => styled(RED, "1 trouble"),
        count => styled(RED, &format!("{count} troubles")),
    };
    let mut text = format!("Lunar {}: {state}\n", text_of(&status["version"]));
    for trouble in troubles {
        text.push_str(&format!("  {}\n", styled(RED, &trouble)));
    }
    let things = status["things"].as_object().into_iter().flatten();
    let counted: Vec<String> = things
        .filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0))
        .map(|(kind, count)| format!("{count} {kind}{}", if *count == 1 { "" } else { "s" }))
        .collect();
    let counted = if counted.is_empty() { "nothing".to_owned() } else { counted.join(", ") };
    for (head, value) in [
        ("configuration", text_of(&status["file"])),
        ("process", status["process"].to_string()),
        ("since", time(&status["since"])),
        ("sessions", status["sessions"].to_string()),
        ("configured", counted),
    ] {
        text.push_str(&format!("  {head:<13}  {value}\n"));
    }
    for (listener, end) in status["certificates"].as_object().into_iter().flatten() {
        text.push_str(&format!("  {:<13}  of API listener {listener} until {}\n", "certificate", time(end)));
    }
    for store in status["stores"].as_array().into_iter().flatten() {
        // Numbers are told in whole MiB: they change with every write.
        let size = |key: &str| Size(store[key].as_u64().unwrap_or_default() >> 20 << 20);
        let volumes = match store["volumes"].as_u64() {
            Some(1) => "1 volume".to_owned(),
            count => format!("{} volumes", count.unwrap_or_default()),
        };
        let (free, all, promised) = (size("free"), size("size"), size("promised"));
        let name = text_of(&store["name"]);
        text.push_str(&format!("  {:<13}  {name}: {free} of {all} free, {promised} promised to {volumes}\n", "space"));
    }
    for (volume, clients) in status["unread-sizes"].as_object().into_iter().flatten() {
        text.push_str(&format!("  {:<13}  of volume {volume}: not read by {}\n", "new size", text_of(clients)));
    }
    for (volume, why) in status["no-namespaces"].as_object().into_iter().flatten() {
        let why = text_of(why);
        text.push_str(&format!("  {:<13}  volume {volume}, for NVMe hosts: {why}\n", "not shown"));
    }
    let isns = &status["isns"];
    if isns.is_object() {
        let many = |key: &str, word: &str| {
            let count = isns[key].as_u64().unwrap_or_default();
            format!("{count} {word}{}", if count == 1 { "" } else { "s" })
        };
        let (targets, portals) = (many("targets", "target"), many("portals", "portal"));
        text.push_str(&format!("  {:<13}  {} has {targets} at {portals}\n", "iSNS", text_of(&isns["server"])));
    }
    for machine in status["machines"].as_array().into_iter().flatten() {
        text.push_str(&format!("  VM {} at {}; QEMU:\n", text_of(&machine["name"]), text_of(&machine["socket"])));
        for line in machine["qemu"].as_array().into_iter().flatten() {
            text.push_str(&format!("    {}\n", text_of(line)));
        }
    }
    for late in status["after-restart"].as_array().into_iter().flatten() {
        text.push_str(&styled(YELLOW, &format!("  after a restart: {}", text_of(late))));
        text.push('\n');
    }
    text
}

/// Statistics by name; nested values have names with dots.
#[must_use]
pub fn statistics(all: &Json) -> String {
    let mut rows = Vec::new();
    flatten("", all, &mut rows);
    let wide = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:wide$}  {value}\n")).collect()
}

fn flatten(name: &str, value: &Json, rows: &mut Vec<(String, String)>) {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Json::Object(object) => object.iter().for_each(|(key, value)| flatten(&below(key), value, rows)),
        Json::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| flatten(&below(&at.to_string()), value, rows));
        }
        value => rows.push((name.to_owned(), text_of(value))),
    }
}

/// Versions, the newest last.
#[must_use]
pub fn versions(all: &Json) -> String {
    let heads = ["number", "time", "who", "changes"].map(str::to_owned);
    let row = |version: &Json| {
        let [who, changes] = [&version["who"], &version["changes"]].map(text_of);
        vec![version["number"].to_string(), time(&version["time"]), who, changes]
    };
    let rows: Vec<Vec<String>> = all.as_array().into_iter().flatten().map(row).collect();
    table(&heads, &rows, width())
}

/// The lines of a diff.
#[must_use]
pub fn diff(lines: &str) -> String {
    if lines.is_empty() {
        return "no difference\n".into();
    }
    let style = |line: &str| match line.chars().next() {
        Some('+') => styled(GREEN, line),
        Some('-') => styled(RED, line),
        Some('@') => styled(DIM, line),
        _ => line.to_owned(),
    };
    lines.lines().map(|line| style(line) + "\n").collect()
}

/// A record of the audit log.
#[must_use]
pub fn audit_record(note: &Json) -> String {
    let topic = text_of(&note["topic"]);
    let style = match topic.as_str() {
        "refusal" => RED,
        "change" => YELLOW,
        _ => Style::new(),
    };
    let topic = format!("{topic:<8}");
    format!(
        "{}  {}  {}  {}\n",
        time(&note["time"]),
        styled(style, &topic),
        text_of(&note["who"]),
        text_of(&note["words"])
    )
}

/// The slow log: a line for each command, the newest last.
#[must_use]
pub fn slow(log: &Json) -> String {
    let commands: Vec<&Json> = log["commands"].as_array().into_iter().flatten().collect();
    if commands.is_empty() {
        return "no command was slow\n".into();
    }
    let heads =
        ["time", "volume", "initiator", "command", "lba", "bytes", "total", "network", "queue", "store", "ending"]
            .map(str::to_owned);
    let row = |command: &&Json| {
        let seconds = command["milliseconds"].as_u64().map(|milliseconds| milliseconds / 1000);
        let cell = |head: &String| match head.as_str() {
            "time" => time(&seconds.into()),
            "total" | "network" | "queue" | "store" => milliseconds(&command["microseconds"][head]),
            head => text_of(&command[head]),
        };
        heads.iter().map(cell).collect()
    };
    let mut text = table(&heads, &commands.iter().map(row).collect::<Vec<Vec<_>>>(), width());
    match log["omitted"].as_u64() {
        None | Some(0) => {}
        Some(more) => text.push_str(&format!("and {more} more, which were only counted\n")),
    }
    text
}

/// The stages of commands: their mean times.
#[must_use]
pub fn stages(all: &Json) -> String {
    const STAGES: [&str; 4] = ["receive", "wait", "store", "answer"];
    let mean = |nanoseconds: u64, commands: u64| {
        let tenths = nanoseconds / commands.max(1) / 100;
        format!("{}.{} us", tenths / 10, tenths % 10)
    };
    let row = |name: String, view: &Json| {
        let commands = view["commands"].as_u64().unwrap_or_default();
        let times = STAGES.map(|stage| view["nanoseconds"][stage].as_u64().unwrap_or_default());
        let total = times.iter().sum();
        let cells = times.into_iter().chain([total]).map(|time| mean(time, commands));
        [name, commands.to_string()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let cores = all["cores"].as_array().into_iter().flatten().enumerate();
    let cores = cores.map(|(core, view)| row(format!("core {core}"), view));
    let volumes = all["volumes"].as_object().into_iter().flatten();
    let volumes = volumes.map(|(name, view)| row(format!("volume {name}"), view));
    let heads = ["", "timed"].into_iter().chain(STAGES).chain(["total"]).map(str::to_owned).collect::<Vec<_>>();
    table(&heads, &cores.chain(volumes).collect::<Vec<_>>(), width())
}

/// A time in microseconds, in milliseconds.
fn milliseconds(value: &Json) -> String {
    let micros = value.as_u64().unwrap_or_default();
    format!("{}.{:03} ms", micros / 1000, micros % 1000)
}

/// A time span, in its two largest units.
pub(crate) fn span(value: &Json) -> String {
    let Some(seconds) = value.as_u64() else { return String::new() };
    let (days, hours, minutes) = (seconds / DAY, seconds % DAY / 3600, seconds % 3600 / 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Seconds per day.
const DAY: u64 = 86_400;

/// A time in seconds since 1970-01-01, as text in UTC.
pub(crate) fn time(value: &Json) -> String {
    let Some(seconds) = value.as_u64() else { return String::new() };
    // Count years from March, so that the leap day is the last day of a year (400 Gregorian years have 146,097 days).
    let days = seconds / DAY + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month < 10 {
        true => (era * 400 + year, month + 3),
        false => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::testing::SAMPLE;
    use serde_json::json;

    #[test]
    fn times_are_converted_to_calendar_dates() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_709_251_199, "2024-02-29 23:59:59Z"),
            (1_735_689_599, "2024-12-31 23:59:59Z"),
            (4_107_542_400_u64, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(time(&json!(seconds)), shown);
        }
    }

    #[test]
    fn a_table_shows_keys_that_differ_from_the_default_and_fit() {
        let volume = |name: &str, size: &str, read_only: bool| {
            let keys = json!({
                "kind": "ram", "size": size, "medium": "disk", "block-size": "512", "read-only": read_only,
                "write-through": false, "direct": false, "shared": false, "protection": "none", "vendor": "LUNAR",
                "product": "VOLUME",
                "uuid": "x", "private": false, "attached": [], "waits": false,
            });
            json!({ "kind": "volume", "name": name, "keys": keys })
        };
        let all = json!([volume("disk1", "20G", false), volume("d", "1M", true)]);
        let plain = |text: String| anstream::adapter::strip_str(&text).to_string();
        let whole = "name   kind  size  read-only\ndisk1  ram   20G   false\nd      ram   1M    true\n";
        assert_eq!(plain(resources_table(&SAMPLE, Kind::Volume, &all, UNLIMITED)), whole);
        assert_eq!(
            plain(resources_table(&SAMPLE, Kind::Volume, &all, 20)),
            "name   kind  size\ndisk1  ram   20G\nd      ram   1M\n"
        );
        assert!(resources(&SAMPLE, Kind::Volume, &json!([])).contains("lunar volume create"));
    }

    #[test]
    fn lun_maps_are_printed_on_one_line() {
        let luns = json!({ "0": { "volume": "a", "read-only": false }, "7": { "volume": "b", "read-only": true },
            "9": { "volume": "c", "metadata": true } });
        assert_eq!(text_of(&luns), "0=a 7=b(ro) 9=c(metadata)");
        assert_eq!(text_of(&json!(["a", "b"])), "a,b");
        assert_eq!(text_of(&json!({ "file": "/etc/x" })), "file:/etc/x");
    }

    #[test]
    fn a_trouble_is_shown_with_subject_remedy_and_time() {
        let told = |words: &str| {
            let told = json!({ "kind": "deleted", "subject": "volume d", "since": 0, "words": words, "remedy": "" });
            trouble(&told)
        };
        assert_eq!(
            (told("it is deleted"), told("volume d is deleted")),
            ("volume d: it is deleted".into(), "volume d is deleted".into())
        );
        let full = json!({ "subject": "volume d", "since": 86_400, "words": "it is full", "remedy": "make room" });
        assert_eq!(trouble(&full), "volume d: it is full; make room (since 1970-01-02 00:00:00Z)");
    }

    #[test]
    fn a_plan_names_the_affected_targets() {
        let step = json!({
            "action": "change", "words": "change target t: iqn x -> y", "effect": "ends-sessions", "targets": ["t"],
        });
        let text = plan(&json!({ "changes": [step], "needs-restart": false }), false);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(plain, "~ change target t: iqn x -> y  (sessions of target t end)\n1 step, nothing was changed\n");
        assert_eq!(plan(&json!({ "changes": [] }), true), "nothing to do\n");
    }

    #[test]
    fn a_volume_is_shown_with_the_names_that_hosts_give_it() {
        let identity = json!({ "serial": "5e", "naa": "36", "uuid": "u", "by-id": ["wwn-0x36", "nvme-uuid.u"] });
        let thing = json!({ "kind": "volume", "name": "v", "keys": {}, "identity": identity });
        let text = resource(&SAMPLE, Kind::Volume, &thing);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in
            ["iSCSI /dev/disk/by-id/wwn-0x36", "NVMe /dev/disk/by-id/nvme-uuid.u", "serial 5e", "bytes -", "WWID 336"]
        {
            assert!(lines.iter().any(|shown| shown == line), "{line}: {text}");
        }
    }

    #[test]
    fn stages_are_mean_times() {
        let view =
            json!({ "commands": 2, "nanoseconds": { "receive": 1000, "wait": 0, "store": 5300, "answer": 700 } });
        let shown = stages(&json!({ "cores": [view.clone()], "volumes": { "disk": view } }));
        let plain = anstream::adapter::strip_str(&shown).to_string();
        let rows: Vec<Vec<&str>> = plain.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1],
            ["core", "0", "2", "0.5", "us", "0.0", "us", "2.6", "us", "0.3", "us", "3.5", "us"],
            "{plain}"
        );
        assert_eq!(rows[2][..2], ["volume", "disk"]);
    }

    #[test]
    fn a_plan_marks_steps_that_need_force() {
        let step = json!({ "action": "remove", "words": "unmap a from LUN 0 of group g", "hosts": ["h1", "h2"] });
        let all = json!({ "changes": [step], "notes": ["volume a keeps its size"] });
        let shown = |done| anstream::adapter::strip_str(&plan(&all, done)).to_string();
        let first = "- unmap a from LUN 0 of group g  (needs --force: h1, h2)\n";
        assert_eq!(shown(false), format!("{first}1 step, nothing was changed\nnote: volume a keeps its size\n"));
        assert!(shown(true).contains("(taken from h1, h2)"), "{}", shown(true));
    }
}
