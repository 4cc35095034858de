//! Draws the screen of `lunar top`.

use super::rows::{self, GAP, Row, View, fitted, layout, short, short_time};
use super::screen::Screen;
use lunar_control::rates::{BUSY, ClassRates, Flow, Rates};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::bar;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

/// The look of the terminal.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether there are colours.
    pub has_colour: bool,
    /// Whether block characters can be shown.
    pub has_blocks: bool,
}

/// Bars for terminals without block characters.
const ASCII: bar::Set<'static> = bar::Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "+",
    five_eighths: "+",
    half: "=",
    three_eighths: "-",
    one_quarter: ":",
    one_eighth: ".",
    empty: " ",
};

impl Look {
    const fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    const fn bad(self) -> Style {
        if self.has_colour { Style::new().fg(Color::Red) } else { self.strong() }
    }

    const fn weak(self) -> Style {
        if self.has_colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    const fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// A terminal with fewer lines or columns shows nothing useful.
const LEAST: (u16, u16) = (20, 4);
/// From this height on, there is a line for the cores.
const LINES_WITH_CORES: u16 = 12;
/// From this height on, there is a line with the tables.
const LINES_WITH_VIEWS: u16 = 7;
/// Lines of the history.
const HISTORY_LINES: u16 = 4;

const HELP: [(&str, &str); 11] = [
    ("1 2 3 4 5, Tab", "volumes, hosts, cores, sessions, stores"),
    ("Up Down, j k", "select a row"),
    ("PgUp PgDn, Home End", "move by a page, to the ends"),
    ("Left Right, < >", "sort by another column"),
    ("r", "reverse the order"),
    ("/", "show rows that contain a text; Esc: all rows"),
    ("Enter", "details of the selected row; Esc: back"),
    ("Space", "pause"),
    ("!", "before a row: errors, not up, saturated"),
    ("?", "this help"),
    ("q", "quit"),
];

/// Draws the screen. `interval`: the time between two readings, in words.
pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen, look: Look, interval: &str) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        frame.render_widget(Paragraph::new("too small"), area);
        return;
    }
    let mut lines = vec![title(screen, look, interval), totals(screen, look)];
    if area.height >= LINES_WITH_CORES {
        lines.push(cores(screen, look, area.width.into()));
    }
    if area.height >= LINES_WITH_VIEWS {
        lines.push(views(screen, look));
    }
    let top = lines.len() as u16;
    frame.render_widget(Paragraph::new(lines), Rect { height: top, ..area });
    let body = Rect { y: top, height: area.height - top - 1, ..area };
    match () {
        () if screen.is_help => frame.render_widget(Paragraph::new(help()), body),
        () if screen.rates.is_none() => frame.render_widget(Paragraph::new("measuring..."), body),
        () if screen.detail().is_some() => detail(frame, screen, look, body),
        () => table(frame, screen, look, body),
    }
    frame.render_widget(foot(screen, look), Rect { y: area.height - 1, height: 1, ..area });
}

fn counted(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn title(screen: &Screen, look: Look, interval: &str) -> Line<'static> {
    let mut parts = vec![Span::styled("lunar top", look.strong())];
    if let Some(rates) = &screen.rates {
        let time = crate::show::time(&(rates.time / 1000).into());
        let clock = time.split(' ').nth(1).unwrap_or_default().to_owned();
        let (volumes, hosts) = (rates.volumes.len() + rates.hidden_volumes as usize, rates.hosts.len());
        let things =
            [counted(volumes, "volume"), counted(hosts, "host"), counted(screen.sessions.len(), "session")].join(", ");
        parts.push(Span::raw(format!("  {clock} every {interval}  {things}")));
        if rates.hidden_volumes > 0 {
            parts.push(Span::styled(format!("  {} not shown", rates.hidden_volumes), look.bad()));
        }
    }
    if screen.is_paused {
        parts.push(Span::styled("  PAUSED", look.strong()));
    }
    Line::from(parts)
}

fn totals(screen: &Screen, look: Look) -> Line<'static> {
    let Some(Rates { total: Flow { read, write, all, .. }, queue, .. }) = &screen.rates else { return Line::default() };
    let latency =
        all.latency.map(|latency| format!("  p99 {}", short_time(latency.p99_microseconds))).unwrap_or_default();
    let [rb, wb] = [read, write].map(|class| short(class.bytes_per_second));
    let rest =
        format!("  r {} w {}  {rb}B/s read {wb}B/s write{latency}  queue {queue}", short(read.iops), short(write.iops));
    Line::from(vec![Span::styled(format!("{} IOPS", short(all.iops)), look.strong()), Span::raw(rest)])
}

/// Characters of the bar of a core.
const BAR: usize = 8;

/// A bar of so many characters.
fn gauge(part: f64, width: usize) -> String {
    let full = (part.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(width - full))
}

fn cores(screen: &Screen, look: Look, width: usize) -> Line<'static> {
    let all = screen.rates.as_ref().map_or(&[][..], |rates| &rates.cores);
    let mut parts = vec![Span::raw("cores")];
    let mut taken = 5;
    for (at, core) in all.iter().enumerate() {
        let text = format!(" {}{} {:>3.0}%", core.core, gauge(core.busy, BAR), core.busy * 100.0);
        let more = format!(" +{}", all.len() - at);
        if taken + text.len() + if at + 1 < all.len() { more.len() } else { 0 } > width {
            parts.push(Span::raw(more));
            break;
        }
        taken += text.len();
        parts.push(Span::styled(text, if core.busy >= BUSY { look.bad() } else { Style::new() }));
    }
    Line::from(parts)
}

fn views(screen: &Screen, look: Look) -> Line<'static> {
    let mut parts = Vec::new();
    for (at, view) in View::ALL.into_iter().enumerate() {
        let is_shown = view == screen.view;
        let name =
            if is_shown { format!("[{} {}]", at + 1, view.word()) } else { format!(" {} {} ", at + 1, view.word()) };
        parts.push(Span::styled(name, if is_shown { look.strong() } else { look.weak() }));
    }
    if screen.is_filtering || !screen.filter.is_empty() {
        let cursor = if screen.is_filtering { "_" } else { "" };
        parts.push(Span::styled(format!("  /{}{cursor}", screen.filter), look.strong()));
    }
    Line::from(parts)
}

fn help() -> Vec<Line<'static>> {
    HELP.iter().map(|(keys, words)| Line::raw(format!("  {keys:<20}  {words}"))).collect()
}

fn foot(screen: &Screen, look: Look) -> Line<'static> {
    match &screen.lost {
        Some(why) => {
            let why = why.lines().next().unwrap_or_default();
            Line::styled(format!("NO ANSWER, trying again: {why}"), look.bad())
        }
        None if screen.is_filtering => Line::raw("type a text, then Enter; Esc: all rows"),
        None if screen.detail().is_some() => Line::styled("Esc back  Space pause  q quit", look.weak()),
        None => Line::styled("? help  / filter  < > sort  r reverse  Enter details  Space pause  q quit", look.weak()),
    }
}

fn table(frame: &mut Frame<'_>, screen: &mut Screen, look: Look, area: Rect) {
    let all = screen.rows();
    let page = usize::from(area.height.saturating_sub(1)).max(1);
    let place = screen.place(&all);
    screen.page = page;
    screen.offset = screen.offset.min(place).max((place + 1).saturating_sub(page));
    screen.offset = screen.offset.min(all.len().saturating_sub(page));
    // Before each row is a mark.
    let columns = layout(screen.view, &all, usize::from(area.width).saturating_sub(1));
    let mut lines = vec![head(screen, &columns, look)];
    for (at, row) in all.iter().enumerate().skip(screen.offset).take(page) {
        let style = match () {
            () if at == place => look.chosen(),
            () if row.is_bad => look.bad(),
            () => Style::new(),
        };
        lines.push(Line::styled(line(screen.view, row, &columns), style));
    }
    if all.is_empty() {
        lines.push(Line::raw(if screen.filter.is_empty() { " nothing here" } else { " no row contains this text" }));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn head(screen: &Screen, columns: &[(usize, usize)], look: Look) -> Line<'static> {
    let (all, sort) = (screen.view.columns(), screen.sort());
    let mut parts = vec![Span::raw(" ")];
    for (at, width) in columns {
        let column = all[*at];
        let mark = match (*at == sort.column, sort.descending) {
            (true, true) => "v",
            (true, false) => "^",
            _ => "",
        };
        let text = fitted(&format!("{}{mark}", column.head), *width, column.is_text);
        let style = if mark.is_empty() { look.strong() } else { look.strong().add_modifier(Modifier::UNDERLINED) };
        parts.extend([Span::styled(text, style), Span::raw(" ".repeat(GAP))]);
    }
    Line::from(parts)
}

/// A row as text, with its mark.
pub(super) fn line(view: View, row: &Row, columns: &[(usize, usize)]) -> String {
    let all = view.columns();
    let cells = columns.iter().map(|(at, width)| fitted(&row.cells[*at].text, *width, all[*at].is_text));
    format!("{}{}", if row.is_bad { '!' } else { ' ' }, cells.collect::<Vec<_>>().join(&" ".repeat(GAP)))
}

/// The words of a row, as many in a line as fit.
fn fields(view: View, row: &Row, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for (column, cell) in view.columns().iter().zip(&row.cells) {
        let text = format!("{} {}", column.head, if cell.text.is_empty() { "-" } else { &cell.text });
        match lines.last_mut() {
            Some(last) if last.is_empty() => last.push_str(&text),
            Some(last) if last.chars().count() + text.chars().count() + 2 <= width => {
                last.push_str("  ");
                last.push_str(&text);
            }
            _ => lines.push(text),
        }
    }
    lines
}

fn class_line(word: &str, class: &ClassRates) -> String {
    let of = |latency: Option<f64>| latency.map_or_else(|| "-".to_owned(), short_time);
    let latency = class.latency;
    let [mean, p50, p99] = [
        of(latency.map(|latency| latency.mean_microseconds)),
        of(latency.map(|latency| latency.p50_microseconds)),
        of(latency.map(|latency| latency.p99_microseconds)),
    ];
    let (iops, bytes) = (short(class.iops), short(class.bytes_per_second));
    format!("  {word:<6} {iops:>8} {bytes:>8} {mean:>8} {p50:>8} {p99:>8}")
}

fn detail(frame: &mut Frame<'_>, screen: &Screen, look: Look, area: Rect) {
    let (Some(rates), Some(key)) = (&screen.rates, screen.detail()) else { return };
    let rows = rows::rows(screen.view, rates, &screen.sessions, "", screen.sort());
    let Some(row) = rows.iter().find(|row| row.key == key) else {
        frame.render_widget(Paragraph::new("it is gone; Esc: back"), area);
        return;
    };
    let mut lines: Vec<Line<'_>> = fields(screen.view, row, area.width.into()).into_iter().map(Line::raw).collect();
    let history = screen.history(key);
    let mut below = None;
    if let Some(flow) = screen.flow() {
        if screen.view == View::Sessions {
            lines.push(Line::raw("All sessions of this host at the target together:"));
        }
        let head = format!("  {:<6} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "iops", "B/s", "mean", "p50", "p99");
        lines.push(Line::styled(head, look.strong()));
        let classes = [("read", &flow.read), ("write", &flow.write), ("other", &flow.other), ("all", &flow.all)];
        lines.extend(classes.map(|(word, class)| Line::raw(class_line(word, class))));
        if !history.is_empty() {
            let most = history.iter().max().copied().unwrap_or(0);
            lines.push(Line::styled(
                format!("  iops of the last {} readings, up to {}", history.len(), short(most as f64)),
                look.strong(),
            ));
            below = Some(lines.len() as u16);
            lines.extend((0..HISTORY_LINES).map(|_| Line::default()));
        }
        lines.push(Line::styled("  latency of all commands", look.strong()));
        lines.extend(histogram(&flow.all, screen.bounds()).into_iter().map(Line::raw));
    }
    frame.render_widget(Paragraph::new(lines), area);
    if let Some(at) = below.filter(|at| at + HISTORY_LINES <= area.height) {
        let place = Rect { x: area.x + 2, y: area.y + at, width: area.width.saturating_sub(4), height: HISTORY_LINES };
        let recent = history.len().saturating_sub(place.width.into());
        let set = if look.has_blocks { bar::NINE_LEVELS } else { ASCII };
        frame.render_widget(Sparkline::default().data(&history[recent..]).bar_set(set), place);
    }
}

/// Characters of the bar of a cell of a histogram.
const HISTOGRAM_BAR: usize = 30;

/// A line for each cell of the histogram from the first to the last with commands.
fn histogram(class: &ClassRates, bounds: &[u64]) -> Vec<String> {
    let all = class.commands.max(1) as f64;
    let first = class.cells.iter().position(|count| *count > 0).unwrap_or(class.cells.len());
    let last = class.cells.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    let line = |at: usize| {
        let part = class.cells[at] as f64 / all;
        let bound = bounds.get(at).map(|bound| format!("<= {}", short_time(*bound as f64)));
        let bound = bound.unwrap_or_else(|| "longer".to_owned());
        format!("  {bound:>10} {:>5.1}% {}", part * 100.0, "#".repeat((part * HISTOGRAM_BAR as f64).round() as usize))
    };
    (first..last).map(line).collect()
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
