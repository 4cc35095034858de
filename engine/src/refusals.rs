//! Refused logins: a bounded table in which equal refusals are counted. It is kept in the state folder, so that
//! refusals from before a restart can still be explained.

use crate::host::{Host, StateStore};
use lunar_control::explain::RefusalView;
use lunar_core::access::audit::shown;
use lunar_core::access::refusal::{Refusal, RefusalCode};
use lunar_reactor::log;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Different refusals that are kept: those of some days at a large site. Clients choose their names, so their number is
/// not bounded by anything else; they take less than 2 MiB.
pub const KEPT_MAX: usize = 2048;
/// Time between two writes of the table. A power failure loses the refusals of this time.
const WRITE_INTERVAL: Duration = Duration::from_secs(30);
/// The name of the table in the state folder.
const NAME: &str = "refusals.json";
/// The longest detail that is kept, in characters.
const DETAIL_MAX: usize = 200;

/// Refusals with the same facts are equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    code: String,
    protocol: String,
    initiator: String,
    source: IpAddr,
    target: String,
    user: String,
    portal_group: Option<u16>,
}

impl Key {
    fn of(view: &RefusalView) -> Self {
        let RefusalView { code, protocol, initiator, source, target, user, portal_group, .. } = view.clone();
        let (target, user) = (target.unwrap_or_default(), user.unwrap_or_default());
        Self { code, protocol, initiator, source, target, user, portal_group }
    }
}

#[derive(Default)]
struct Table {
    kept: BTreeMap<Key, RefusalView>,
    last: u64,
}

impl Table {
    /// Makes room: drops the oldest refusal of the source with the most of them, so that one client that changes its
    /// name does not displace the others.
    fn make_room(&mut self) {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.kept.keys().for_each(|key| *counts.entry(key.source).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(source, _)| source);
        let of_most = self.kept.iter().filter(|(key, _)| Some(key.source) == most);
        let oldest = of_most.min_by_key(|(_, view)| view.last).map(|(key, _)| key.clone());
        oldest.iter().for_each(|key| drop(self.kept.remove(key)));
    }
}

/// The refused logins of a target.
pub struct Refusals {
    host: Arc<dyn Host>,
    table: Mutex<Table>,
    /// Whether the table differs from the one in the state folder.
    is_changed: AtomicBool,
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusals({})", self.lock().kept.len())
    }
}

impl Refusals {
    /// The refusals that the state folder has.
    #[must_use]
    pub fn new(host: Arc<dyn Host>) -> Arc<Self> {
        let table = Mutex::new(read(host.state()));
        Arc::new(Self { host, table, is_changed: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic leaves at most a count that is too low.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a refused login.
    pub fn add(&self, refusal: &Refusal<'_>) {
        let some = |text: &str| Some(shown(text)).filter(|text| !text.is_empty());
        let now = self.host.wall_clock() / 1000;
        let view = RefusalView {
            number: 0,
            code: refusal.code.word().to_owned(),
            protocol: refusal.transport.to_owned(),
            initiator: shown(refusal.host),
            source: refusal.source.to_canonical(),
            target: some(refusal.target),
            user: some(refusal.user),
            portal_group: refusal.portal_group,
            detail: some(refusal.detail).map(|detail| detail.chars().take(DETAIL_MAX).collect()),
            count: 1,
            first: now,
            last: now,
        };
        self.is_changed.store(true, Ordering::Relaxed);
        let (mut table, key) = (self.lock(), Key::of(&view));
        if let Some(known) = table.kept.get_mut(&key) {
            (known.count, known.last, known.detail) = (known.count.saturating_add(1), now, view.detail);
            return;
        }
        if table.kept.len() >= KEPT_MAX {
            table.make_room();
        }
        table.last += 1;
        let number = table.last;
        table.kept.insert(key, RefusalView { number, ..view });
    }

    /// All that are kept, the latest first.
    #[must_use]
    pub fn all(&self) -> Vec<RefusalView> {
        let mut all: Vec<RefusalView> = self.lock().kept.values().cloned().collect();
        all.sort_by_key(|view| std::cmp::Reverse((view.last, view.number)));
        all
    }

    /// Writes the table to the state folder, if it has changed.
    pub fn save(&self) {
        if !self.is_changed.swap(false, Ordering::Relaxed) {
            return;
        }
        let lines = self.all().iter().filter_map(|view| serde_json::to_string(view).ok()).collect::<Vec<_>>();
        if let Err(why) = self.host.state().write(NAME, &format!("{}\n", lines.join("\n"))) {
            log!(
                warning,
                "refused logins cannot be stored ({why}) and are lost at the next restart: make the state folder \
                 writable"
            );
        }
    }

    /// Saves the table from time to time, until the result is dropped, and then once more.
    #[must_use]
    pub fn keep(self: &Arc<Self>) -> Keeping {
        let (refusals, (stop, stopped)) = (self.clone(), mpsc::channel::<()>());
        let work = Box::new(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(WRITE_INTERVAL) {
                refusals.save();
            }
        });
        let is_started = self.host.has_threads() && self.host.spawn("refusals", work).is_ok();
        Keeping { refusals: self.clone(), stop: is_started.then_some(stop) }
    }
}

/// Keeps the refusals in the state folder.
pub struct Keeping {
    refusals: Arc<Refusals>,
    /// The thread ends when this is dropped.
    stop: Option<mpsc::Sender<()>>,
}

impl fmt::Debug for Keeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusals.fmt(f)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.stop = None;
        self.refusals.save();
    }
}

/// Reads the table. A table that is damaged, or of another version, is not worth a failed start: it is left out.
fn read(state: &dyn StateStore) -> Table {
    let text = state.read(NAME).unwrap_or_default();
    let views = text.lines().filter_map(|line| serde_json::from_str::<RefusalView>(line).ok());
    let known = views.filter(|view| RefusalCode::of(&view.code).is_some()).take(KEPT_MAX);
    let kept: BTreeMap<Key, RefusalView> = known.map(|view| (Key::of(&view), view)).collect();
    let last = kept.values().map(|view| view.number).max().unwrap_or(0);
    Table { kept, last }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{StateFolder, SystemHost};
    use std::path::PathBuf;

    /// A machine with a state folder of its own, which is removed with this value.
    struct TestHost(Arc<dyn Host>, PathBuf);

    impl TestHost {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lunar-refusals-{name}-{}", std::process::id()));
            let state = StateFolder::open(&path).expect("a folder");
            let (allows_path, user_number, group_number) = (|_: &_| Ok(()), |_: &_| None, |_: &_| None);
            Self(Arc::new(SystemHost { state, runtime: path.clone(), allows_path, user_number, group_number }), path)
        }

        fn refusals(&self) -> Arc<Refusals> {
            Refusals::new(self.0.clone())
        }
    }

    impl Drop for TestHost {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.1);
        }
    }

    fn refusal<'a>(host: &'a str, last: u8) -> Refusal<'a> {
        Refusal {
            transport: "iscsi",
            code: RefusalCode::NotShown,
            host,
            source: IpAddr::from([192, 0, 2, last]),
            target: "iqn.x:disk",
            user: "",
            portal_group: None,
            detail: "",
        }
    }

    #[test]
    fn equal_refusals_are_counted_and_outlive_a_restart() {
        let machine = TestHost::new("kept");
        let refusals = machine.refusals();
        (0..3).for_each(|_| refusals.add(&refusal("iqn.a", 1)));
        refusals.add(&refusal("iqn.b\n\u{202e}", 1));
        let all = refusals.all();
        let counts: Vec<_> = all.iter().map(|view| (view.number, view.count, view.initiator.as_str())).collect();
        assert_eq!(counts, [(2, 1, "iqn.b\\n\\u{202e}"), (1, 3, "iqn.a")]);
        drop(refusals.keep());
        let again = machine.refusals();
        assert_eq!(again.all(), all);
        again.add(&refusal("iqn.c", 1));
        assert_eq!(again.all()[0].number, 3, "numbers go on");
    }

    #[test]
    fn a_client_that_changes_its_name_displaces_its_own_refusals() {
        let machine = TestHost::new("flood");
        let refusals = machine.refusals();
        refusals.add(&refusal("iqn.honest", 1));
        (0..3 * KEPT_MAX).for_each(|at| refusals.add(&refusal(&format!("iqn.{at}"), 2)));
        let all = refusals.all();
        assert_eq!(all.len(), KEPT_MAX);
        assert!(all.iter().any(|view| view.initiator == "iqn.honest"));
    }

    #[test]
    fn a_damaged_table_is_left_out() {
        let machine = TestHost::new("damaged");
        machine.0.state().write(NAME, "{\n\0\n{\"number\":1}\n[]").expect("written");
        assert_eq!(machine.refusals().all(), []);
    }
}
