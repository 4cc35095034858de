//! The history of an NVM subsystem, independent of its controllers and durable where there is a store: the persistent
//! event log (NVMe Base 2.0 5.16.1.14), the results of self-tests, and the last Sanitize.

mod kept;

use lunar_core::metadata::{MetadataStore, VolatileMemory};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the persistent event log at most: one unit of those that a controller tells its size in.
pub const LOG_BYTES_MAX: usize = 64 << 10;
/// Bytes in front of its events.
const HEAD_LEN: usize = 512;
/// Bytes in front of the data of each of them.
const EVENT_HEAD_LEN: usize = 24;
/// The name of the record in the metadata store.
const NAME: &str = "history";
/// Milliseconds between two saves of frequent events. Rare events are saved at once.
const KEEP_INTERVAL: u64 = 1000;
/// Saves at once in [`KEEP_INTERVAL`], as many as an operator causes by hand. Later events are saved with the next one
/// after the interval: a host that sends thousands of Format NVM commands would otherwise keep the core from its work.
const SAVES_MAX: u32 = 8;
/// Milliseconds between two snapshots of the health at least.
const SNAPSHOT_INTERVAL: u64 = 24 * 3_600_000;
const HOUR: u64 = 3_600_000;
/// Results of self-tests that are kept: those that the log page has room for.
const TESTS_MAX: usize = 20;

/// The result of a self-test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestResult {
    /// Short or extended.
    pub code: u8,
    /// The namespace field of the command: no namespace, one, or all.
    pub named: u32,
    /// The namespace and the first block that could not be read.
    pub failed: Option<(u32, u64)>,
    /// Milliseconds since the beginning of 1970.
    pub when: u64,
}

/// The events of the persistent event log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happened {
    /// A snapshot of the SMART / Health log page.
    Health(Box<[u8]>),
    /// A host has set the time of its controller.
    Clock {
        /// The old time. Milliseconds since the beginning of 1970.
        before: u64,
        /// Milliseconds since the controller was made.
        since: u64,
    },
    /// A host has reset its controller.
    Reset {
        /// Firmware revision.
        firmware: String,
    },
    /// Format NVM begins.
    Formats {
        /// The namespace.
        namespace: u32,
        /// Dword 10.
        asked: u32,
    },
    /// Format NVM is over.
    Formatted {
        /// The namespace.
        namespace: u32,
        /// How the command ends.
        status: u16,
    },
    /// Sanitize begins.
    Sanitizes {
        /// The capabilities of the controller.
        capable: u32,
        /// Dwords 10 and 11.
        asked: [u32; 2],
    },
    /// Sanitize is over.
    Sanitized {
        /// Progress and status, as the log page has them.
        state: [u16; 2],
    },
    /// A host has set a feature: dwords 10 and 11.
    Feature([u32; 2]),
}

/// Types of events (NVMe Base 2.0 figure 225).
mod kind {
    pub(super) const HEALTH: u8 = 0x01;
    pub(super) const CLOCK: u8 = 0x03;
    pub(super) const POWER_ON: u8 = 0x04;
    pub(super) const FORMATS: u8 = 0x07;
    pub(super) const FORMATTED: u8 = 0x08;
    pub(super) const SANITIZES: u8 = 0x09;
    pub(super) const SANITIZED: u8 = 0x0a;
    pub(super) const FEATURE: u8 = 0x0b;
    /// The supported events: one bit each.
    pub(super) const SUPPORTED: [u8; 2] = {
        let bits: u16 = 1 << HEALTH | 1 << CLOCK | 1 << POWER_ON | 1 << FORMATS | 1 << FORMATTED;
        (bits | 1 << SANITIZES | 1 << SANITIZED | 1 << FEATURE).to_le_bytes()
    };
}

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Event {
    kind: u8,
    controller: u16,
    when: u64,
    data: Box<[u8]>,
}

impl Event {
    fn len(&self) -> usize {
        EVENT_HEAD_LEN + self.data.len()
    }

    fn write(&self, out: &mut Vec<u8>) {
        const REVISION: u8 = 1;
        /// Bytes of the head behind this byte.
        const REST: u8 = EVENT_HEAD_LEN as u8 - 3;
        out.extend_from_slice(&[self.kind, REVISION, REST, 0]);
        out.extend_from_slice(&self.controller.to_le_bytes());
        out.extend_from_slice(&self.when.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        // Data of events is shorter than the log.
        out.extend_from_slice(&(self.data.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.data);
    }
}

/// The controller that reports an event.
#[derive(Clone, Copy, Debug)]
pub struct Teller<'a> {
    /// NQN of the subsystem.
    pub nqn: &'a str,
    /// Its serial number.
    pub serial: &'a str,
    /// Its model number.
    pub model: &'a str,
}

#[derive(Debug, Default)]
struct State {
    /// Dword 10 of the last Sanitize.
    sanitized: Option<u32>,
    /// Whether its end is not logged yet.
    sanitizes: bool,
    /// The newest first.
    tests: VecDeque<TestResult>,
    /// The newest first.
    events: VecDeque<Event>,
    /// Bytes of all of them.
    bytes: usize,
    /// The number of starts.
    cycles: u64,
    /// The time of the last start. Milliseconds since the beginning of 1970.
    began: u64,
    /// The time of the last save.
    kept: u64,
    /// Saves at once since this time, which is at most [`KEEP_INTERVAL`] ago.
    saves: (u64, u32),
    /// The time of the last health snapshot.
    snapshot: Option<u64>,
    /// The generation of the log.
    told: u16,
}

/// The history of a subsystem, shared by all cores.
pub struct History {
    keep: Arc<dyn MetadataStore>,
    state: Mutex<State>,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "History({} events)", self.lock().events.len())
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new(Arc::<VolatileMemory>::default(), "", 0)
    }
}

impl History {
    /// Loads the history and records the start at this time (milliseconds since the beginning of 1970). Records that
    /// cannot be parsed are dropped.
    #[must_use]
    pub fn new(keep: Arc<dyn MetadataStore>, firmware: &str, now: u64) -> Self {
        let mut state = keep.load(NAME).and_then(|bytes| kept::parse(&bytes)).unwrap_or_default();
        (state.cycles, state.began) = (state.cycles.saturating_add(1), now);
        // The start is saved with the next event, so that it is not delayed.
        let (kind, data) = described(Happened::Reset { firmware: firmware.to_owned() }, state.cycles, 0, now);
        state.add(Event { kind, controller: 0, when: now, data: data.into() });
        Self { keep, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event of the controller of this identifier at this time.
    pub(crate) fn note(&self, controller: u16, when: u64, what: Happened) {
        let is_often = matches!(what, Happened::Clock { .. } | Happened::Reset { .. } | Happened::Feature(_));
        // The end of a Sanitize is logged after a restart, too.
        let is_state = matches!(what, Happened::Sanitizes { .. } | Happened::Sanitized { .. });
        let mut state = self.lock();
        let at_once = !is_often && (is_state || state.may_save(when));
        match &what {
            Happened::Sanitizes { asked, .. } => (state.sanitized, state.sanitizes) = (Some(asked[0]), true),
            Happened::Sanitized { .. } => state.sanitizes = false,
            Happened::Health(_) => state.snapshot = Some(when),
            _ => {}
        }
        let (kind, data) = described(what, state.cycles, when.saturating_sub(state.began), when);
        state.add(Event { kind, controller, when, data: data.into() });
        self.keep_if(&mut state, when, at_once);
    }

    fn keep_if(&self, state: &mut State, now: u64, at_once: bool) {
        if at_once || now.abs_diff(state.kept) >= KEEP_INTERVAL {
            state.kept = now;
            // A history that cannot be saved stays in memory until the process ends.
            drop(self.keep.save(NAME, kept::of(state)));
        }
    }

    /// Dword 10 of the last Sanitize.
    #[must_use]
    pub fn last_sanitized(&self) -> Option<u32> {
        self.lock().sanitized
    }

    /// Whether a Sanitize has begun whose end is not logged.
    pub(crate) fn is_sanitizing(&self) -> bool {
        self.lock().sanitizes
    }

    /// Whether a health snapshot is due.
    pub(crate) fn wants_snapshot(&self, now: u64) -> bool {
        self.lock().snapshot.is_none_or(|last| now.abs_diff(last) >= SNAPSHOT_INTERVAL)
    }

    pub(crate) fn tested(&self, result: TestResult) {
        let mut state = self.lock();
        state.tests.push_front(result);
        state.tests.truncate(TESTS_MAX);
        let at_once = state.may_save(result.when);
        self.keep_if(&mut state, result.when, at_once);
    }

    /// The results of self-tests, the newest first.
    #[must_use]
    pub fn tests(&self) -> Vec<TestResult> {
        self.lock().tests.iter().copied().collect()
    }

    /// The persistent event log as it is now, the newest event first (5.16.1.14.1).
    pub(crate) fn tell(&self, teller: &Teller<'_>, now: u64) -> Arc<[u8]> {
        const PAGE: u8 = 0x0d;
        const REVISION: u8 = 3;
        /// Bytes of the head behind this field.
        const REST: u16 = HEAD_LEN as u16 - 20;
        /// A reporting context exists; its port identifier type is not reported.
        const CONTEXT: u32 = 1 << 18;
        let mut state = self.lock();
        state.told = state.told.wrapping_add(1);
        let mut page = vec![0; HEAD_LEN];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[PAGE]);
        put(4, &(state.events.len() as u32).to_le_bytes());
        put(8, &((HEAD_LEN + state.bytes) as u64).to_le_bytes());
        put(16, &[REVISION]);
        put(18, &REST.to_le_bytes());
        put(20, &now.to_le_bytes());
        put(28, &u128::from(now.saturating_sub(state.began) / HOUR).to_le_bytes());
        put(44, &state.cycles.to_le_bytes());
        put(56, &text::<20>(teller.serial, b' '));
        put(76, &text::<40>(teller.model, b' '));
        put(116, &text::<256>(teller.nqn, 0));
        put(372, &state.told.to_le_bytes());
        put(374, &CONTEXT.to_le_bytes());
        put(480, &kind::SUPPORTED);
        state.events.iter().for_each(|event| event.write(&mut page));
        page.into()
    }
}

/// A text in a field of its own.
fn text<const LEN: usize>(text: &str, fill: u8) -> [u8; LEN] {
    let mut field = [fill; LEN];
    let len = text.len().min(LEN);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

impl State {
    /// Whether one more event is saved at once: the whole history is saved, and a host may cause any number of events.
    fn may_save(&mut self, now: u64) -> bool {
        let (since, count) = &mut self.saves;
        if now.abs_diff(*since) >= KEEP_INTERVAL {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= SAVES_MAX
    }

    fn add(&mut self, event: Event) {
        self.bytes += event.len();
        self.events.push_front(event);
        while self.bytes > LOG_BYTES_MAX - HEAD_LEN {
            let Some(oldest) = self.events.pop_back() else { break };
            self.bytes -= oldest.len();
        }
    }
}

/// The type of an event, and its data (figures 226 to 236).
fn described(what: Happened, cycles: u64, since: u64, when: u64) -> (u8, Vec<u8>) {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    match what {
        Happened::Health(page) => (kind::HEALTH, page.into()),
        Happened::Clock { before, since } => (kind::CLOCK, [before.to_le_bytes(), since.to_le_bytes()].concat()),
        Happened::Reset { firmware } => {
            let mut data = text::<8>(&firmware, b' ').to_vec();
            // Which controller is in the head of the event; there is no firmware activation and no operation in
            // progress.
            data.extend_from_slice(&[0; 16]);
            data.extend_from_slice(&(cycles as u32).to_le_bytes());
            data.extend_from_slice(&since.to_le_bytes());
            data.extend_from_slice(&when.to_le_bytes());
            (kind::POWER_ON, data)
        }
        Happened::Formats { namespace, asked } => (kind::FORMATS, words(&[namespace, 0, asked])),
        Happened::Formatted { namespace, status } => {
            const FAILED: u32 = 0x100;
            let failed = if status == 0 { 0 } else { FAILED };
            (kind::FORMATTED, words(&[namespace, failed, status.into()]))
        }
        Happened::Sanitizes { capable, asked: [ten, eleven] } => (kind::SANITIZES, words(&[capable, ten, eleven])),
        Happened::Sanitized { state: [progress, status] } => {
            (kind::SANITIZED, words(&[u32::from(progress) | u32::from(status) << 16, 0]))
        }
        Happened::Feature([ten, eleven]) => {
            /// So many dwords of the command follow.
            const DWORDS: u32 = 2;
            (kind::FEATURE, words(&[DWORDS, ten, eleven]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::metadata::Saving;
    use std::sync::atomic::{AtomicU32, Ordering};

    const TELLER: Teller<'_> = Teller { nqn: "nqn.x:a", serial: "7", model: "m" };

    /// Type and data of each event of a log, as its lengths say.
    fn events(page: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let number = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
        assert_eq!((page[0], number(18) + 20), (0x0d, HEAD_LEN));
        assert_eq!(page.len(), number(8) + (number(10) << 16));
        let (mut at, mut all) = (HEAD_LEN, Vec::new());
        while at < page.len() {
            let data = at + usize::from(page[at + 2]) + 3;
            let end = data + number(at + 22);
            all.push((page[at], page[data..end].to_vec()));
            at = end;
        }
        assert_eq!(all.len(), number(4));
        all
    }

    #[test]
    fn golden() {
        let history = History::new(Arc::<VolatileMemory>::default(), "0.1", 1_000_000);
        history.note(5, 1_000_250, Happened::Formats { namespace: 2, asked: 0x200 });
        history.note(5, 1_000_300, Happened::Formatted { namespace: 2, status: 0 });
        history.note(6, 1_000_400, Happened::Feature([0x04, 400]));
        let page = history.tell(&TELLER, 1_000_000 + 2 * HOUR);
        assert_eq!((page[16], page[28], page[44], page[372]), (3, 2, 1, 1));
        assert_eq!((&page[56..58], &page[76..78], &page[116..124]), (&b"7 "[..], &b"m "[..], &b"nqn.x:a\0"[..]));
        assert_eq!(page[480..483], [0x9a, 0x0f, 0]);
        let found = events(&page);
        assert_eq!(found[0], (0x0b, vec![2, 0, 0, 0, 4, 0, 0, 0, 0x90, 1, 0, 0]));
        assert_eq!(found[1], (0x08, vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(found[2], (0x07, vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]));
        assert_eq!((found[3].0, found[3].1.len(), &found[3].1[..8]), (0x04, 8 + 36, &b"0.1     "[..]));
        assert_eq!(page[HEAD_LEN..HEAD_LEN + 6], [0x0b, 1, 21, 0, 6, 0]);
    }

    #[derive(Default)]
    struct CountingMemory(VolatileMemory, AtomicU32);

    impl MetadataStore for CountingMemory {
        fn load(&self, name: &str) -> Option<Vec<u8>> {
            self.0.load(name)
        }

        fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.save(name, bytes)
        }

        fn is_durable(&self) -> bool {
            true
        }
    }

    #[test]
    fn many_formats_do_not_save_the_history_each_time_and_none_is_missing_in_the_end() {
        let memory = Arc::<CountingMemory>::default();
        let history = History::new(memory.clone(), "0.1", 1_000_000);
        for count in 0..500 {
            history.note(5, 1_000_000 + count, Happened::Formatted { namespace: 2, status: 0 });
        }
        assert!(memory.1.load(Ordering::Relaxed) <= SAVES_MAX + 1);
        history.note(5, 1_002_000, Happened::Formats { namespace: 2, asked: 0 });
        let again = History::new(memory, "0.1", 1_003_000);
        let formatted = |page: &[u8]| events(page).iter().filter(|(kind, _)| *kind == 0x08).count();
        assert_eq!(formatted(&again.tell(&TELLER, 1_003_000)), 500);
    }

    #[test]
    fn the_log_is_bounded_and_drops_the_oldest_events() {
        let history = History::default();
        for at in 0..300 {
            history.note(1, at, Happened::Health(vec![at as u8; 512].into()));
        }
        let page = history.tell(&TELLER, 0);
        assert!(page.len() <= LOG_BYTES_MAX && page.len() > LOG_BYTES_MAX - 1024, "{}", page.len());
        let found = events(&page);
        assert_eq!(found[0].1, [43; 512]);
        assert!(found.iter().all(|(kind, _)| *kind == kind::HEALTH));
    }

    #[test]
    fn the_log_persists_across_a_restart() {
        let keep = Arc::<VolatileMemory>::default();
        let history = History::new(keep.clone(), "1", 10);
        history.note(1, 20, Happened::Sanitizes { capable: 6, asked: [2, 0] });
        let result = TestResult { code: 2, named: 7, failed: Some((7, 9)), when: 30 };
        history.tested(result);
        let again = History::new(keep.clone(), "1", 40);
        assert_eq!((again.last_sanitized(), again.is_sanitizing(), again.tests()), (Some(2), true, vec![result]));
        again.note(1, 50, Happened::Sanitized { state: [0xffff, 1] });
        let kinds = |history: &History| -> Vec<u8> {
            events(&history.tell(&TELLER, 60)).into_iter().map(|(kind, _)| kind).collect()
        };
        assert_eq!(kinds(&again), [0x0a, 0x04, 0x09, 0x04]);
        assert_eq!(again.tell(&TELLER, 60)[44], 2, "power cycles");
        // Frequent events are not saved each time.
        again.note(1, 51, Happened::Feature([4, 0]));
        let third = History::new(keep.clone(), "1", 100);
        assert_eq!((kinds(&third)[..2].to_vec(), third.is_sanitizing()), (vec![0x04, 0x0a], false));
        third.note(1, 1100, Happened::Feature([4, 0]));
        assert_eq!(kinds(&History::new(keep, "1", 2000))[..3], [0x04, 0x0b, 0x04]);
    }

    #[test]
    fn a_damaged_history_is_dropped() {
        let keep = Arc::<VolatileMemory>::default();
        History::new(keep.clone(), "1", 10).tested(TestResult { code: 1, named: 0, failed: None, when: 20 });
        let whole = keep.load(NAME).expect("it is kept");
        for len in 0..whole.len() {
            assert!(kept::parse(&whole[..len]).is_none(), "{len}");
        }
        assert!(kept::parse(&whole).is_some_and(|state| state.cycles == 1));
        assert!(kept::parse(&[&whole[..], &[0]].concat()).is_none());
    }
}
