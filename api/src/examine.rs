//! The findings of `lunar doctor` that the service can have by itself. Its sandbox forbids it to look at the files, the
//! network and the kernel of its machine, so their checks are left to the command.

use crate::control::Control;
use crate::handlers;
use crate::request::{ApiRequest, Outcome, Problem, Reply, Shared};
use lunar_control::api::SessionView;
use lunar_control::counters::CountersView;
use lunar_control::doctor::examination::{ExaminationView, Unchecked};
use lunar_control::doctor::facts::{Facts, FileSystem, Store, ThisMachine};
use lunar_control::live::{Later, TcpViews};
use lunar_control::rates::Rates;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time for which the load is watched, as `lunar doctor` does by default.
const WATCHED: Duration = Duration::from_secs(2);
/// The time from one examination for the metrics to the next one: findings are states that last for hours.
const INTERVAL: Duration = Duration::from_secs(60);

/// The facts that the control thread has, without those that it would have to wait for.
pub struct Gathered {
    facts: Facts,
    sessions: Vec<SessionView>,
    tcp: Later<TcpViews>,
}

impl std::fmt::Debug for Gathered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gathered({} sessions)", self.sessions.len())
    }
}

/// Gathers facts about the service itself.
pub fn gather(control: &mut dyn Control, shared: &Shared) -> Gathered {
    let status = handlers::status_view(control, shared);
    let facts = Facts {
        file: PathBuf::from(&status.file),
        config: control.current().config.clone(),
        status: serde_json::to_value(&status).ok(),
        statistics: Some(control.statistics()),
        machine: ThisMachine {
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            ..ThisMachine::default()
        },
        ..Facts::default()
    };
    Gathered { facts, sessions: control.sessions(), tcp: control.tcp(None) }
}

impl Gathered {
    /// Examines the service, with the counters at the beginning and at the end of the time for which it was watched.
    /// Waits for a bounded time for the cores.
    fn examine(self, counters: Option<(CountersView, CountersView)>) -> ExaminationView {
        let Self { mut facts, mut sessions, tcp } = self;
        handlers::add_tcp(&mut sessions, tcp());
        facts.sessions = sessions.iter().filter_map(|session| serde_json::to_value(session).ok()).collect();
        if let Some((before, now)) = counters {
            spaces(&now, &mut facts);
            facts.rates = Rates::between(&before, &now);
            facts.counters = Some(now);
        }
        let reason = "the service may not see them: run `lunar doctor` as root on the server";
        let unchecked = Unchecked {
            subject: "the machine, its network, and files and devices of volumes".to_owned(),
            reason: reason.to_owned(),
        };
        ExaminationView::of(&facts, vec![unchecked])
    }
}

/// `GET /v1/doctor`
pub fn examine(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let (shared, gathered) = (request.shared.clone(), gather(control, &request.shared));
    Ok(Box::new(move || {
        let counters = shared.measured.get().map(|measured| {
            let before = measured.counters(&shared.seen().troubles);
            std::thread::sleep(WATCHED);
            (before, measured.counters(&shared.seen().troubles))
        });
        Reply::json(&gathered.examine(counters))
    }))
}

/// Examines the service from time to time, for the metrics.
#[derive(Debug, Default)]
pub struct Examiner {
    /// When the service is watched since, and its counters then.
    watched: Option<(Instant, CountersView)>,
    /// When it was examined last.
    last: Option<Instant>,
}

impl Examiner {
    /// Begins to watch the service, or examines it, if it is time to. To be called every few seconds; `gather` has
    /// [`gather`] run on the control thread, and returns nothing if that has ended.
    pub fn tick(&mut self, shared: &Shared, now: Instant, gather: impl FnOnce() -> Option<Gathered>) {
        let Some(measured) = shared.measured.get() else { return };
        match self.watched.take() {
            Some((since, before)) if now.duration_since(since) >= WATCHED => {
                let Some(gathered) = gather() else { return };
                let counters = (before, measured.counters(&shared.seen().troubles));
                shared.find(gathered.examine(Some(counters)).findings);
                self.last = Some(now);
            }
            Some(watched) => self.watched = Some(watched),
            None if self.last.is_none_or(|last| now.duration_since(last) + WATCHED >= INTERVAL) => {
                self.watched = Some((now, measured.counters(&shared.seen().troubles)));
            }
            None => {}
        }
    }
}

/// Adds the space of volumes and of their file systems, as the service measures it. The name of another pool is no
/// path: the service has troubles of its own for it, in the words of its kind.
fn spaces(counters: &CountersView, facts: &mut Facts) {
    let file_systems = || counters.stores.iter().enumerate().filter(|(_, store)| store.name.starts_with('/'));
    let number = |name: &String| file_systems().find(|(_, store)| store.name == *name).map(|(at, _)| at as u64);
    for (at, store) in file_systems() {
        facts.file_systems.push(FileSystem {
            number: at as u64,
            place: Path::new(&store.name).to_owned(),
            size: store.size,
            free: store.free,
            ..FileSystem::default()
        });
    }
    for volume in &counters.volumes {
        let Some(path) = facts.config.volumes.get(&volume.name).and_then(|model| model.path.as_ref()) else { continue };
        facts.stores.push(Store {
            volume: volume.name.clone(),
            path: path.path().to_owned(),
            size: volume.size.unwrap_or(0),
            allocated: volume.allocated.unwrap_or(0),
            file_system: volume.stores.first().and_then(number),
            ..Store::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::check::Checked;
    use lunar_control::counters::{StoreSpace, VolumeCounters};
    use lunar_control::testing::SAMPLE;

    #[test]
    fn a_full_file_system_is_found_from_the_counters() {
        let text = "[volume.a]\nkind = 'file'\npath = '/srv/a.img'\nsize = '1G'\n";
        let mut facts = Facts { config: Checked::of_version(&SAMPLE, text).config, ..Facts::default() };
        let volume = VolumeCounters {
            name: "a".to_owned(),
            size: Some(1 << 30),
            allocated: Some(1 << 20),
            stores: vec!["/srv".to_owned()],
            ..VolumeCounters::default()
        };
        let image = VolumeCounters { stores: vec!["rbd".to_owned()], ..volume.clone() };
        let store = |name: &str| {
            let name = name.to_owned();
            StoreSpace { name, size: 100 << 30, free: 1 << 20, promised: 0, volumes: 0 }
        };
        let stores = vec![store("rbd"), store("/srv")];
        spaces(&CountersView { volumes: vec![image, volume], stores, ..CountersView::default() }, &mut facts);
        assert_eq!(facts.file_systems.len(), 1, "a pool whose name is no path is no file system");
        let view = ExaminationView::of(&facts, Vec::new());
        let found: Vec<_> = view.findings.iter().map(|finding| finding.code.word()).collect();
        assert!(found.contains(&"file-system-full") && found.contains(&"over-committed"), "{found:?}");
        let full = view.findings.iter().find(|finding| finding.code.word() == "file-system-full").expect("it is there");
        assert_eq!((full.subject.as_str(), view.worst), ("file system /srv", Some(full.severity)));
        assert!(!full.text().contains("type"), "the type is not known: {}", full.text());
    }
}
