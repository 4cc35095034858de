//! The health of the volumes that are served: what is wrong with their media, since when, and what to do.
//!
//! A thread of its own looks at the media from time to time, because a look may wait for a disk. Errors of commands are
//! seen in the counters of the volumes.

use crate::backend::{Condition, Opened, OpenedDevice, OpenedStore, PoolSpace, StoreTrouble};
use crate::host::Host;
use crate::notice::{AuditSink, Notice, NoticeTopic, SERVICE};
use crate::placed::PlacedVolume;
use crate::space::{LowPool, low, over_committed};
use crate::wake::Wake;
use lunar_control::api::TroubleView;
use lunar_control::trouble::TroubleCode;
use lunar_core::medium::LowSpace;
use lunar_core::tally::{Event, SharedTally};
use lunar_core::time::Instant;
use lunar_reactor::log;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Time between two looks. A write behind the new end of a truncated file lets it grow again if it comes before the
/// look; a look costs a few system calls for each volume.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Errors of commands are a trouble until there were none for so long: an operator who is called by the first one still
/// finds it.
const QUIET: Duration = Duration::from_secs(600);
/// How long a change of the volumes waits for a look at one of them: a disk that does not answer delays no change for
/// longer.
const LOOK_MAX: Duration = Duration::from_secs(1);

impl Condition {
    /// The code of the trouble.
    #[must_use]
    pub fn code(self) -> TroubleCode {
        match self {
            Self::Truncated => TroubleCode::Truncated,
            Self::Deleted => TroubleCode::Deleted,
            Self::Moved => TroubleCode::Moved,
            Self::Gone | Self::Unserved => TroubleCode::Gone,
            Self::LostWrites => TroubleCode::LostWrites,
            Self::MediumErrors => TroubleCode::MediumErrors,
            Self::NoSpace => TroubleCode::NoSpace,
        }
    }
}

/// Errors of commands, as they were counted at the last look.
#[derive(Debug, Default)]
struct Errors {
    counted: u64,
    /// Errors that the trouble is about.
    since: u64,
    last: Option<Instant>,
}

impl Errors {
    /// The errors since the trouble began; zero if there is none.
    fn look(&mut self, total: u64, now: Instant) -> u64 {
        if self.last.is_some_and(|last| now.since(last) >= QUIET) {
            (self.last, self.since) = (None, 0);
        }
        // A host may reset the counters.
        let more = total.checked_sub(self.counted).unwrap_or(total);
        self.counted = total;
        if more > 0 {
            self.last = Some(now);
        }
        self.since += more;
        self.since
    }
}

/// A volume that is looked at.
#[derive(Debug)]
struct Watched {
    /// Its store, and that of its protection information. A store that is not served any more has gone.
    stores: [Option<Weak<dyn OpenedStore>>; 2],
    /// Its device, if it has one instead.
    device: Option<Weak<dyn OpenedDevice>>,
    tally: SharedTally,
    /// The findings of looks, once there is one: most volumes are well.
    found: Option<Box<Found>>,
}

/// The findings of looks at a volume.
#[derive(Debug, Default)]
struct Found {
    medium: Errors,
    space: Errors,
    troubles: BTreeMap<Condition, TroubleView>,
    /// The space of its stores at the last look.
    spaces: Vec<PoolSpace>,
}

impl Watched {
    fn of(placed: &PlacedVolume) -> Self {
        let (own, device) = match placed.volume.opened() {
            Opened::Store(store) => (Some(Arc::downgrade(store)), None),
            Opened::Device(device) => (None, Some(Arc::downgrade(device))),
        };
        let protection = placed.volume.protection().map(|protection| Arc::downgrade(protection.store()));
        Self { stores: [own, protection], device, tally: placed.tally.clone(), found: None }
    }

    /// The stores that are served.
    fn stores(&self) -> impl Iterator<Item = &Weak<dyn OpenedStore>> {
        self.stores.iter().flatten()
    }

    fn has_stores_of(&self, other: &Self) -> bool {
        let mut both = self.stores.iter().zip(&other.stores);
        both.all(|(own, other)| match (own, other) {
            (Some(own), Some(other)) => Weak::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        })
    }

    fn found(&mut self) -> &mut Found {
        self.found.get_or_insert_default()
    }

    /// The troubles that the counters show.
    fn counted(&mut self, now: Instant) -> Vec<StoreTrouble> {
        let total = |event| self.tally.total(event);
        let medium =
            total(Event::ReadError).wrapping_add(total(Event::WriteError)).wrapping_add(total(Event::VerifyError));
        let space = total(Event::SpaceError);
        if self.found.is_none() && (medium, space) == (0, 0) {
            return Vec::new();
        }
        let found = self.found();
        let (medium, space) = (found.medium.look(medium, now), found.space.look(space, now));
        let medium = (medium > 0).then(|| StoreTrouble {
            condition: Condition::MediumErrors,
            words: format!("{medium} commands ended with a medium error"),
            remedy: "check the disk and the log of the kernel (`dmesg`)".to_owned(),
        });
        let pool = found.spaces.first();
        let (noun, inspection) = pool.map_or(("file system or its device", "df"), |pool| (pool.noun, &pool.inspection));
        let space = (space > 0).then(|| StoreTrouble {
            condition: Condition::NoSpace,
            words: format!("{space} writes failed because its {noun} has no space"),
            remedy: format!("make room there (`{inspection}`), or move the volume"),
        });
        medium.into_iter().chain(space).collect()
    }

    /// The troubles that an examination has found and those that the counters show. The medium errors of a truncated
    /// file are not a trouble of their own: the advice about the disk would mislead.
    fn all(&mut self, mut found: Vec<StoreTrouble>, now: Instant) -> Vec<StoreTrouble> {
        let is_truncated = found.iter().any(|trouble| trouble.condition == Condition::Truncated);
        let counted = self.counted(now).into_iter();
        found.extend(counted.filter(|trouble| !(is_truncated && trouble.condition == Condition::MediumErrors)));
        found
    }

    /// Takes what is wrong now; returns the troubles that have begun.
    fn update(&mut self, name: &str, found: Vec<StoreTrouble>, wall: u64) -> Vec<TroubleView> {
        let mut begun = Vec::new();
        let mut troubles = BTreeMap::new();
        for StoreTrouble { condition, words, remedy } in found {
            let known = self.found.as_ref().and_then(|found| found.troubles.get(&condition)).map(|known| known.since);
            let subject = format!("volume {name}");
            let kind = condition.code().word();
            let trouble = TroubleView { kind, subject, since: known.unwrap_or(wall), words, remedy };
            if known.is_none() {
                begun.push(trouble.clone());
            }
            troubles.insert(condition, trouble);
        }
        if self.found.is_some() || !troubles.is_empty() {
            self.found().troubles = troubles;
        }
        begun
    }
}

#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<Arc<str>, Watched>,
    /// The pools that have promised more space than they have.
    pools: BTreeMap<u64, TroubleView>,
    /// The pools whose available space is below the soft threshold, and the troubles about them.
    low: BTreeMap<u64, LowPool>,
    low_troubles: BTreeMap<u64, TroubleView>,
    /// The soft threshold in percent; 0: none.
    space_threshold: u8,
    /// Whether a store is looked at now.
    is_busy: bool,
}

impl State {
    /// Takes the space of all stores; returns the troubles of pools below the threshold that have begun.
    fn update_low(&mut self, spaces: &[PoolSpace], wall: u64) -> Vec<TroubleView> {
        let now = low(spaces, self.space_threshold, &self.low);
        let before = std::mem::take(&mut self.low_troubles);
        let mut begun = Vec::new();
        for (pool, found) in &now {
            let since = before.get(pool).map(|known| known.since);
            let trouble = found.trouble(since.unwrap_or(wall));
            begun.extend(since.is_none().then(|| trouble.clone()));
            self.low_troubles.insert(*pool, trouble);
        }
        self.low = now;
        begun
    }
}

/// The findings for the thread that looks for stores: the volumes whose stores are gone, those on pools whose space is
/// low, and those whose stores have another size.
type Reported = (BTreeMap<Arc<str>, String>, BTreeMap<Arc<str>, LowSpace>, Vec<Arc<str>>);

/// The state of all volumes.
#[derive(Debug, Default)]
struct Watchlist {
    state: Mutex<State>,
    idle: Condvar,
}

impl Watchlist {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without a look in progress, if that ends soon: a look keeps a store, with its lock, that is not served any more.
    fn idle(&self) -> MutexGuard<'_, State> {
        let waited = self.idle.wait_timeout_while(self.lock(), LOOK_MAX, |state| state.is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Looks at a volume; returns the troubles that have begun, and the space of its stores. `wall`: seconds since the
    /// beginning of 1970.
    fn look_at(&self, name: &str, (now, wall): (Instant, u64)) -> (Vec<TroubleView>, Vec<PoolSpace>) {
        let (stores, device) = {
            let mut state = self.lock();
            let Some(watched) = state.volumes.get(name) else { return Default::default() };
            let stores: Vec<_> = watched.stores().filter_map(Weak::upgrade).collect();
            let device = watched.device.as_ref().and_then(Weak::upgrade);
            state.is_busy = true;
            (stores, device)
        };
        let of_stores = stores.iter().flat_map(|store| store.examine());
        let found: Vec<StoreTrouble> = of_stores.chain(device.iter().flat_map(|device| device.examine())).collect();
        let spaces: Vec<_> = stores.iter().filter_map(|store| store.pool_space()).collect();
        let examined: Vec<_> = stores.iter().map(Arc::downgrade).collect();
        drop((stores, device));
        let mut state = self.lock();
        state.is_busy = false;
        self.idle.notify_all();
        // Meanwhile it may have become another one.
        let is_same =
            |watched: &&mut Watched| examined.iter().all(|store| watched.stores().any(|own| Weak::ptr_eq(own, store)));
        let Some(watched) = state.volumes.get_mut(name).filter(is_same) else { return Default::default() };
        if watched.found.is_some() || !spaces.is_empty() {
            watched.found().spaces.clone_from(&spaces);
        }
        let all = watched.all(found, now);
        (watched.update(name, all, wall), spaces)
    }

    /// Takes the space of all stores; returns the troubles of pools that have begun.
    fn update_pools(&self, spaces: Vec<PoolSpace>, wall: u64) -> Vec<TroubleView> {
        let state = &mut *self.lock();
        let mut begun = state.update_low(&spaces, wall);
        let pools = &mut state.pools;
        let before = std::mem::take(pools);
        for found in over_committed(spaces) {
            let since = before.get(&found.pool).map(|known| known.since);
            let trouble = found.trouble(since.unwrap_or(wall));
            if since.is_none() {
                begun.push(trouble.clone());
            }
            pools.insert(found.pool, trouble);
        }
        begun
    }

    /// See [`Health::low_space`].
    fn low_space(&self) -> BTreeMap<Arc<str>, LowSpace> {
        let state = self.lock();
        let low = |(name, watched): (&Arc<str>, &Watched)| {
            let pools = watched.found.as_ref()?.spaces.iter().filter_map(|space| state.low.get(&space.pool));
            Some((name.clone(), pools.map(|pool| pool.low).min_by_key(|low| low.available)?))
        };
        if state.low.is_empty() { BTreeMap::new() } else { state.volumes.iter().filter_map(low).collect() }
    }

    /// See [`Health::gone`].
    fn gone(&self) -> BTreeMap<Arc<str>, String> {
        let state = self.lock();
        let gone = |(name, watched): (&Arc<str>, &Watched)| {
            let trouble = watched.found.as_ref()?.troubles.get(&Condition::Gone)?;
            Some((name.clone(), trouble.words.clone()))
        };
        state.volumes.iter().filter_map(gone).collect()
    }

    /// The volumes whose stores have another size.
    fn resized(&self) -> Vec<Arc<str>> {
        let has_other_size =
            |watched: &Watched| watched.stores().filter_map(Weak::upgrade).any(|store| store.has_other_size());
        let state = self.lock();
        state.volumes.iter().filter(|(_, watched)| has_other_size(watched)).map(|(name, _)| name.clone()).collect()
    }

    fn names(&self) -> Vec<Arc<str>> {
        self.lock().volumes.keys().cloned().collect()
    }
}

/// The space of the volumes at the last look: reading it waits for no disk.
#[derive(Clone, Default)]
pub(crate) struct Spaces(Arc<Watchlist>);

impl Spaces {
    /// For each volume, that of its stores.
    pub(crate) fn read(&self) -> BTreeMap<Arc<str>, Vec<PoolSpace>> {
        let spaces = |watched: &Watched| watched.found.as_ref().map(|found| found.spaces.clone()).unwrap_or_default();
        self.0.lock().volumes.iter().map(|(name, watched)| (name.clone(), spaces(watched))).collect()
    }
}

/// Looks after the volumes until it is dropped.
pub(crate) struct Health {
    watchlist: Arc<Watchlist>,
    /// The thread ends when this is dropped.
    stop: Option<mpsc::Sender<()>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.watchlist.fmt(f)
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        self.stop = None;
        self.watchlist.idle().volumes.clear();
    }
}

impl Health {
    /// Starts to look, if the host has threads. Troubles that begin are told to `audit`.
    /// `wake` wakes the thread that looks for stores.
    pub(crate) fn start(host: &Arc<dyn Host>, audit: &Arc<AuditSink>, wake: &Wake) -> Self {
        let (watchlist, (stop, stopped)) = (Arc::<Watchlist>::default(), mpsc::channel::<()>());
        let (looked, clock, told, wake) = (watchlist.clone(), host.clone(), audit.clone(), wake.clone());
        let work = Box::new(move || {
            let mut before = Reported::default();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_INTERVAL) {
                look(&looked, &*clock, &*told);
                let now = (looked.gone(), looked.low_space(), looked.resized());
                // A size may change again before the volume has the first one.
                if now != before || !now.2.is_empty() {
                    before = now;
                    wake.wake();
                }
            }
        });
        // Without a thread there is no look, and reads behind the end of a file fail all the same.
        let is_started = host.has_threads() && host.spawn("health", work).is_ok();
        Self { watchlist, stop: is_started.then_some(stop) }
    }

    /// From now on these volumes are looked after. The state of those that stay is kept.
    pub(crate) fn watch(&self, volumes: &BTreeMap<Arc<str>, Arc<PlacedVolume>>) {
        let mut state = self.watchlist.idle();
        let mut before = std::mem::take(&mut state.volumes);
        let watched = |(name, placed): (&Arc<str>, &Arc<PlacedVolume>)| {
            let mut now = Watched::of(placed);
            // The same unit, perhaps in another shape, has the counters that it had.
            if let Some(old) = before.remove(name).filter(|old| old.tally.is_of(&now.tally)) {
                let has_other_stores = !now.has_stores_of(&old);
                now.found = old.found;
                if let Some(found) = now.found.as_mut().filter(|_| has_other_stores) {
                    // A store that was opened anew can be reached.
                    found.troubles.remove(&Condition::Gone);
                }
            }
            (name.clone(), now)
        };
        state.volumes = volumes.iter().map(watched).collect();
    }

    /// The space of the volumes, for readers on other threads.
    pub(crate) fn spaces(&self) -> Spaces {
        Spaces(self.watchlist.clone())
    }

    /// Sets the soft threshold of space in percent; 0: none.
    pub(crate) fn set_space_threshold(&self, percent: u8) {
        self.watchlist.lock().space_threshold = percent;
    }

    /// The volumes on pools whose space was low at the last look.
    pub(crate) fn low_space(&self) -> BTreeMap<Arc<str>, LowSpace> {
        self.watchlist.low_space()
    }

    /// The volumes whose stores could not be reached at the last look, and why.
    pub(crate) fn gone(&self) -> BTreeMap<Arc<str>, String> {
        self.watchlist.gone()
    }

    /// The troubles at the last look.
    pub(crate) fn troubles(&self) -> Vec<TroubleView> {
        let state = self.watchlist.lock();
        let of_volumes = state.volumes.values().filter_map(|watched| watched.found.as_ref());
        let of_volumes = of_volumes.flat_map(|found| found.troubles.values());
        of_volumes.chain(state.pools.values()).chain(state.low_troubles.values()).cloned().collect()
    }
}

fn look(watchlist: &Watchlist, host: &dyn Host, audit: &AuditSink) {
    let mut spaces = Vec::new();
    let tell = |trouble| audit(&Notice::new(NoticeTopic::Service, SERVICE, &trouble));
    for name in watchlist.names() {
        let (begun, more) = watchlist.look_at(&name, (host.now(), host.wall_clock() / 1000));
        spaces.extend(more);
        for trouble in begun {
            log!(error, "{trouble}");
            tell(trouble);
        }
    }
    for trouble in watchlist.update_pools(spaces, host.wall_clock() / 1000) {
        log!(warning, "{trouble}");
        tell(trouble);
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
