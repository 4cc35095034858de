//! The volumes of other Lunars that are open, and those that could not be opened yet: their threads go on, so that the
//! next attempt need not wait, until the volume is not looked for any more.

use crate::error::Why;
use crate::life::Lifetime;
use crate::shared::Unit;
use lunar_engine::backend::{Fingerprint, Mark};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How marks of volumes begin.
pub(crate) const SPACE: &str = "st";
/// How long a volume is kept that is not looked for: the engine looks once a second, and an operator tries again.
const KEPT: Duration = Duration::from_secs(30);
/// Time between two looks for volumes to drop.
const INTERVAL: Duration = Duration::from_secs(5);

/// A volume that was not opened.
struct Waiting {
    life: Arc<Lifetime>,
    /// The identity that it must have.
    known: Option<String>,
    /// Why it was not opened.
    told: Option<Why>,
    since: Instant,
}

static WAITING: Mutex<BTreeMap<PathBuf, Waiting>> = Mutex::new(BTreeMap::new());
static OPEN: Mutex<BTreeMap<PathBuf, Vec<Weak<Lifetime>>>> = Mutex::new(BTreeMap::new());

fn waiting() -> MutexGuard<'static, BTreeMap<PathBuf, Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open() -> MutexGuard<'static, BTreeMap<PathBuf, Vec<Weak<Lifetime>>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A volume is open, or is being opened.
pub(crate) fn add(place: &Path, life: &Arc<Lifetime>) {
    let mut open = open();
    open.retain(|_, known| {
        known.retain(|life| life.strong_count() > 0);
        !known.is_empty()
    });
    open.entry(place.to_owned()).or_default().push(Arc::downgrade(life));
}

/// The fingerprint of the volume at this place, if it can be used now.
pub(crate) fn at(place: &Path) -> Option<Fingerprint> {
    let known: Vec<_> = open().get(place)?.iter().filter_map(Weak::upgrade).collect();
    let mut usable = known.iter().filter(|life| life.why().is_none());
    usable.find_map(|life| life.facts()).map(|facts| fingerprint(&facts.identity))
}

/// The fingerprint of the volume with this identity.
pub(crate) fn fingerprint(identity: &str) -> Fingerprint {
    Fingerprint::of_mark(&Mark::Global { space: SPACE, name: identity.to_owned() })
}

/// The identity of the volume with this fingerprint. That of another kind of store is no identity of a volume.
pub(crate) fn identity(known: &Fingerprint) -> &str {
    known.mark.strip_prefix(SPACE).and_then(|rest| rest.strip_prefix(' ')).unwrap_or(&known.mark)
}

/// Keeps a volume that was not opened.
pub(crate) fn keep(life: Arc<Lifetime>, known: Option<String>) {
    let (place, told) = (life.unit().place, life.why());
    let (is_first, before) = {
        let mut all = waiting();
        let is_first = all.is_empty();
        (is_first, all.insert(place, Waiting { life, known, told, since: Instant::now() }))
    };
    drop(before);
    if is_first {
        // Without a thread they are kept until they are opened.
        let _ = std::thread::Builder::new().name("st-volumes".into()).spawn(drop_old);
    }
}

/// Drops the volumes that are not looked for, until there is none.
fn drop_old() {
    loop {
        std::thread::sleep(INTERVAL);
        let mut all = waiting();
        let is_old = |(_, waiting): &(PathBuf, Waiting)| waiting.since.elapsed() >= KEPT;
        let (old, left): (BTreeMap<_, _>, _) = std::mem::take(&mut *all).into_iter().partition(is_old);
        *all = left;
        let is_last = all.is_empty();
        drop(all);
        drop(old);
        if is_last {
            return;
        }
    }
}

/// Takes the thread of this volume, which must have the identity `known`. One on other terms ends.
pub(crate) fn take(unit: &Unit, known: Option<&str>) -> Option<Arc<Lifetime>> {
    let found = waiting().remove(&unit.place)?;
    let is_same = found.life.unit().is_same_connection(unit) && found.known.as_deref() == known;
    is_same.then_some(found.life)
}

/// Whether it is worth looking at this volume: its target answers, or it cannot be used for another reason than before.
/// One that was not tried before is.
pub(crate) fn has_news(place: &Path) -> bool {
    match waiting().get_mut(place) {
        Some(waiting) => {
            waiting.since = Instant::now();
            waiting.life.why() != waiting.told
        }
        None => true,
    }
}
