//! The state of the screen of `lunar top`, and what keys and new readings do to it. No terminal here.

use super::rows::{Row, Sort, View, rows};
use crate::failure::Failure;
use lunar_control::counters::CountersView;
use lunar_control::rates::{ClassRates, Flow, Rates};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value as Json;
use std::collections::{HashMap, VecDeque};

/// Readings of which the history of a volume or host is kept: the width of a large terminal.
const HISTORY_MAX: usize = 240;
/// Characters of a filter at most.
const FILTER_MAX: usize = 64;

/// A reading of the service.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The counters.
    pub counters: CountersView,
    /// The sessions.
    pub sessions: Vec<Json>,
}

/// The result of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// To go on.
    Stay,
    /// To leave.
    Quit,
}

/// The state.
#[derive(Debug)]
pub struct Screen {
    /// The table that is shown.
    pub view: View,
    /// The order of each table.
    pub sorts: [Sort; View::ALL.len()],
    /// Rows are shown if they contain it.
    pub filter: String,
    /// Whether keys are added to the filter.
    pub is_filtering: bool,
    /// Whether the selected row is shown with its details.
    pub is_detail: bool,
    /// Whether the help is shown.
    pub is_help: bool,
    /// Whether new readings are not shown.
    pub is_paused: bool,
    /// The rates, once there were two readings.
    pub rates: Option<Rates>,
    /// The sessions.
    pub sessions: Vec<Json>,
    /// Why there is no answer, and the time of the last one.
    pub lost: Option<String>,
    /// The key of the selected row of each table.
    selected: [Option<String>; View::ALL.len()],
    /// The first row that is shown.
    pub offset: usize,
    /// Rows that fitted when the screen was drawn last.
    pub page: usize,
    last: Option<CountersView>,
    history: HashMap<String, VecDeque<u64>>,
    /// The history of all volumes together.
    pub total: VecDeque<u64>,
}

impl Screen {
    /// An empty screen with this table.
    #[must_use]
    pub fn new(view: View, filter: &str) -> Self {
        Self {
            view,
            sorts: View::ALL.map(View::first_sort),
            filter: filter.to_owned(),
            is_filtering: false,
            is_detail: false,
            is_help: false,
            is_paused: false,
            rates: None,
            sessions: Vec::new(),
            lost: None,
            selected: [const { None }; View::ALL.len()],
            offset: 0,
            page: 1,
            last: None,
            history: HashMap::new(),
            total: VecDeque::new(),
        }
    }

    /// The order of the present table.
    #[must_use]
    pub fn sort(&self) -> Sort {
        self.sorts[self.view.place()]
    }

    /// The rows of the present table.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let of = |rates| rows(self.view, rates, &self.sessions, &self.filter, self.sort());
        self.rates.as_ref().map(of).unwrap_or_default()
    }

    /// The place of the selected row among these; the first one if the selected one is not there.
    #[must_use]
    pub fn place(&self, rows: &[Row]) -> usize {
        let key = self.selected[self.view.place()].as_ref();
        key.and_then(|key| rows.iter().position(|row| row.key == *key)).unwrap_or(0)
    }

    /// The key of the row whose details are shown.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.selected[self.view.place()].as_deref().filter(|_| self.is_detail)
    }

    /// The upper bounds of the cells of histograms, in microseconds.
    #[must_use]
    pub fn bounds(&self) -> &[u64] {
        self.last.as_ref().map_or(&[], |last| &last.bounds)
    }

    /// The commands per second of a volume or host at the last readings.
    #[must_use]
    pub fn history(&self, key: &str) -> Vec<u64> {
        self.history.get(&format!("{} {key}", self.view.word())).into_iter().flatten().copied().collect()
    }

    /// Takes a reading, or why there is none.
    pub fn take(&mut self, reading: Result<Reading, Failure>) {
        let reading = match reading {
            Ok(reading) => reading,
            Err(why) => {
                self.lost = Some(why.message);
                return;
            }
        };
        self.lost = None;
        let before = self.last.replace(reading.counters);
        if self.is_paused {
            return;
        }
        let rates = before.zip(self.last.as_ref()).and_then(|(before, now)| Rates::between(&before, now));
        // After a restart of the service the next reading has rates again.
        if let Some(rates) = rates {
            self.remember(&rates);
            self.rates = Some(rates);
            self.sessions = reading.sessions;
        }
    }

    fn remember(&mut self, rates: &Rates) {
        let push = |history: &mut VecDeque<u64>, all: &ClassRates| {
            if history.len() == HISTORY_MAX {
                history.pop_front();
            }
            history.push_back(all.iops as u64);
        };
        push(&mut self.total, &rates.total.all);
        let volumes = rates.volumes.iter().map(|volume| (format!("volumes {}", volume.name), &volume.flow.all));
        let hosts = rates
            .hosts
            .iter()
            .map(|host| (format!("hosts {} {} {}", host.transport, host.target_name, host.host), &host.flow.all));
        let mut before = std::mem::take(&mut self.history);
        for (key, all) in volumes.chain(hosts) {
            let mut history = before.remove(&key).unwrap_or_default();
            push(&mut history, all);
            self.history.insert(key, history);
        }
    }

    /// The commands of the row whose details are shown, if it has some.
    #[must_use]
    pub fn flow(&self) -> Option<&Flow> {
        let (rates, key) = (self.rates.as_ref()?, self.detail()?);
        match self.view {
            View::Volumes => rates.volumes.iter().find(|volume| volume.name == key).map(|volume| &volume.flow),
            View::Hosts => {
                let of = |host: &&lunar_control::rates::HostRates| {
                    format!("{} {} {}", host.transport, host.target_name, host.host) == key
                };
                rates.hosts.iter().find(of).map(|host| &host.flow)
            }
            View::Sessions => {
                let session = self.sessions.iter().find(|session| session["id"] == key)?;
                super::rows::host_of(rates, session).map(|host| &host.flow)
            }
            View::Cores | View::Stores => None,
        }
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Next {
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if with_control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Next::Quit;
        }
        if self.is_filtering {
            self.filter_key(key.code);
            return Next::Stay;
        }
        if self.is_help {
            self.is_help = false;
            return if key.code == KeyCode::Char('q') { Next::Quit } else { Next::Stay };
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.is_help = true,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char('r') => {
                let sort = &mut self.sorts[self.view.place()];
                sort.descending = !sort.descending;
            }
            KeyCode::Char('<' | ',') | KeyCode::Left => self.sort_by(self.view.columns().len() - 1),
            KeyCode::Char('>' | '.') | KeyCode::Right => self.sort_by(1),
            KeyCode::Tab => self.show(View::ALL[(self.view.place() + 1) % View::ALL.len()]),
            KeyCode::BackTab => self.show(View::ALL[(self.view.place() + View::ALL.len() - 1) % View::ALL.len()]),
            KeyCode::Char(digit @ '1'..='9') => {
                let place = digit as usize - '1' as usize;
                View::ALL.get(place).into_iter().for_each(|view| self.show(*view));
            }
            KeyCode::Enter => self.open(),
            KeyCode::Esc | KeyCode::Backspace if self.is_detail => self.is_detail = false,
            KeyCode::Esc => self.filter.clear(),
            code => self.step(code),
        }
        Next::Stay
    }

    fn filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_filtering = false;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        (self.view, self.is_detail, self.offset) = (view, false, 0);
    }

    fn sort_by(&mut self, step: usize) {
        let columns = self.view.columns();
        let sort = &mut self.sorts[self.view.place()];
        sort.column = (sort.column + step) % columns.len();
        sort.descending = !columns[sort.column].is_text;
    }

    fn open(&mut self) {
        let rows = self.rows();
        if let Some(row) = rows.get(self.place(&rows)) {
            self.selected[self.view.place()] = Some(row.key.clone());
            self.is_detail = !self.is_detail;
        }
    }

    /// Selects another row.
    fn step(&mut self, code: KeyCode) {
        let rows = self.rows();
        let (place, last) = (self.place(&rows), rows.len().saturating_sub(1));
        let place = match code {
            KeyCode::Up | KeyCode::Char('k') => place.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => place + 1,
            KeyCode::PageUp => place.saturating_sub(self.page),
            KeyCode::PageDown => place + self.page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return,
        };
        self.selected[self.view.place()] = rows.get(place.min(last)).map(|row| row.key.clone());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lunar_control::counters::ClassCounters;
    use lunar_control::testing::reading;

    /// A reading after so many seconds, with so many volumes; the volumes with high numbers have the most commands.
    pub(in super::super) fn sample(seconds: u64, volumes: u64) -> Reading {
        let mut counters = reading(seconds * 1_000_000_000, ClassCounters::default());
        let one = counters.volumes.remove(0);
        for at in 0..volumes {
            let mut volume = one.clone();
            volume.name = format!("disk{at:03}");
            volume.state = if at % 7 == 3 { "full".into() } else { "up".into() };
            (volume.size, volume.allocated) = (Some(20 << 30), Some((at + 1) << 25));
            let commands = seconds * at * 10;
            volume.traffic.read = ClassCounters {
                commands,
                bytes: commands * 4096,
                nanoseconds: commands * 20_000,
                cells: vec![commands / 2, commands - commands / 2],
            };
            counters.volumes.push(volume);
        }
        let session = serde_json::json!({
            "id": "i1", "protocol": "iscsi", "initiator": "iqn.a", "source": "192.0.2.1:40000", "target": "iqn.t:main",
            "group": "all", "seconds": 75,
        });
        Reading { counters, sessions: vec![session] }
    }

    pub(in super::super) fn filled(volumes: u64) -> Screen {
        let mut screen = Screen::new(View::Volumes, "");
        (1..=4).for_each(|seconds| screen.take(Ok(sample(seconds, volumes))));
        screen
    }

    fn press(screen: &mut Screen, keys: &[KeyCode]) -> Next {
        keys.iter().fold(Next::Stay, |_, code| screen.key((*code).into()))
    }

    fn selected(screen: &Screen) -> String {
        let rows = screen.rows();
        rows[screen.place(&rows)].key.clone()
    }

    #[test]
    fn the_selection_stays_with_its_row() {
        let mut screen = filled(30);
        screen.page = 10;
        assert_eq!(selected(&screen), "disk029", "the busiest is first");
        press(&mut screen, &[KeyCode::Down, KeyCode::Char('j'), KeyCode::PageDown]);
        assert_eq!(selected(&screen), "disk017");
        press(&mut screen, &[KeyCode::Char('r')]);
        assert_eq!(selected(&screen), "disk017", "in another order");
        press(&mut screen, &[KeyCode::Home, KeyCode::Up]);
        assert_eq!(selected(&screen), "disk000");
        press(&mut screen, &[KeyCode::End, KeyCode::Down, KeyCode::PageDown]);
        assert_eq!(selected(&screen), "disk029");
        screen.take(Ok(sample(5, 3)));
        assert_eq!(selected(&screen), "disk000", "it is gone");
    }

    #[test]
    fn keys_filter_sort_and_change_the_table() {
        let mut screen = filled(30);
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Backspace, KeyCode::Char('7')]);
        assert_eq!((screen.rows().len(), screen.is_filtering), (3, true));
        assert_eq!(press(&mut screen, &[KeyCode::Enter, KeyCode::Char('x')]), Next::Stay);
        assert_eq!((screen.filter.as_str(), screen.is_filtering), ("7", false));
        press(&mut screen, &[KeyCode::Esc]);
        assert_eq!(screen.rows().len(), 30);
        let column = screen.sort().column;
        press(&mut screen, &[KeyCode::Right]);
        assert_eq!(screen.sort(), Sort { column: column + 1, descending: true });
        press(&mut screen, &[KeyCode::Left, KeyCode::Left]);
        assert_eq!(screen.sort(), Sort { column: column - 1, descending: false }, "text from its beginning");
        press(&mut screen, &[KeyCode::Char('3')]);
        assert_eq!((screen.view, screen.rows().len()), (View::Cores, 1));
        press(&mut screen, &[KeyCode::Tab, KeyCode::Tab, KeyCode::BackTab]);
        assert_eq!((screen.view, screen.rows().len()), (View::Sessions, 1));
        press(&mut screen, &[KeyCode::Char('9'), KeyCode::Char('?')]);
        assert!(screen.is_help && screen.view == View::Sessions);
        assert_eq!(press(&mut screen, &[KeyCode::Char('x')]), Next::Stay);
        assert_eq!((screen.is_help, press(&mut screen, &[KeyCode::Char('q')])), (false, Next::Quit));
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(control), Next::Quit);
    }

    #[test]
    fn a_row_is_shown_with_its_details_and_history() {
        let mut screen = filled(5);
        press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
        assert_eq!((screen.detail(), screen.history("disk003")), (Some("disk003"), vec![30, 30, 30]));
        assert_eq!(screen.flow().map(|flow| flow.read.iops), Some(30.0));
        press(&mut screen, &[KeyCode::Esc]);
        assert_eq!((screen.detail(), screen.flow()), (None, None));
        (5..400).for_each(|seconds| screen.take(Ok(sample(seconds, 5))));
        assert_eq!((screen.history("disk003").len(), screen.total.len()), (HISTORY_MAX, HISTORY_MAX));
        screen.take(Ok(sample(400, 1)));
        assert!(screen.history("disk003").is_empty(), "the history of a volume ends with it");
    }

    #[test]
    fn the_last_rates_stay_while_the_service_is_away_or_the_screen_is_paused() {
        let mut screen = filled(3);
        let before = screen.rates.clone();
        screen.take(Err(Failure::new("the service is not running")));
        assert_eq!((screen.lost.is_some(), &screen.rates), (true, &before));
        let mut restarted = sample(1, 3);
        restarted.counters.start = 2;
        screen.take(Ok(restarted));
        assert_eq!((screen.lost.is_some(), &screen.rates), (false, &before), "two readings make a rate");
        let mut second = sample(2, 3);
        second.counters.start = 2;
        screen.take(Ok(second));
        assert_ne!(screen.rates, before);
        let before = screen.rates.clone();
        press(&mut screen, &[KeyCode::Char(' ')]);
        let mut third = sample(4, 3);
        third.counters.start = 2;
        screen.take(Ok(third));
        assert_eq!(screen.rates, before);
        assert!(press(&mut screen, &[KeyCode::Char(' ')]) == Next::Stay && !screen.is_paused);
    }
}
