//! Images that could not be opened because their processes had not connected yet. The processes go on, so that the next
//! attempt need not wait, until the image is not looked for any more.

use crate::life::Lifetime;
use crate::shared::Unit;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an image is kept that is not looked for: the engine looks once a second, and an operator tries again.
const KEPT: Duration = Duration::from_secs(30);
/// Time between two looks for images to drop.
const INTERVAL: Duration = Duration::from_secs(5);

/// An image that was not opened.
struct Waiting {
    life: Arc<Lifetime>,
    unit: Unit,
    /// The identity that the image must have.
    known: Option<String>,
    /// Why it was not opened.
    told: String,
    since: Instant,
}

static IMAGES: Mutex<BTreeMap<PathBuf, Waiting>> = Mutex::new(BTreeMap::new());

fn images() -> MutexGuard<'static, BTreeMap<PathBuf, Waiting>> {
    IMAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an image that was not opened, for this reason.
pub(super) fn keep(life: Arc<Lifetime>, unit: Unit, known: Option<&str>, told: String) {
    let known = known.map(str::to_owned);
    let is_first = {
        let mut images = images();
        let is_first = images.is_empty();
        images.insert(unit.path.clone(), Waiting { life, unit, known, told, since: Instant::now() });
        is_first
    };
    if is_first {
        // Without a thread they are kept until they are opened.
        let _ = std::thread::Builder::new().name("images".into()).spawn(drop_old);
    }
}

/// Drops the images that are not looked for, until there is none.
fn drop_old() {
    loop {
        std::thread::sleep(INTERVAL);
        let mut images = images();
        let is_old = |(_, waiting): &(PathBuf, Waiting)| waiting.since.elapsed() >= KEPT;
        let (old, left): (BTreeMap<_, _>, _) = std::mem::take(&mut *images).into_iter().partition(is_old);
        *images = left;
        let is_last = images.is_empty();
        drop(images);
        drop(old);
        if is_last {
            return;
        }
    }
}

/// Takes the process of this image, for which the image must have the identity `known`. One that was started on other
/// terms ends.
pub(super) fn take(unit: &Unit, known: Option<&str>) -> Option<Arc<Lifetime>> {
    let found = images().remove(&unit.path)?;
    let is_same = found.unit.image == unit.image && found.unit.block_size == unit.block_size;
    (is_same && found.known.as_deref() == known).then_some(found.life)
}

/// Whether another image waits for a process that has not said anything yet: one that waits for its cluster.
pub(super) fn is_silent() -> bool {
    images().values().any(|waiting| waiting.life.failed() == 0 && waiting.life.size().is_none())
}

/// Whether it is worth looking at this image: its process has connected, has found another image, or fails for another
/// reason than before. An image that was not tried before is.
pub(super) fn has_news(image: &Path) -> bool {
    match images().get_mut(image) {
        Some(waiting) => {
            waiting.since = Instant::now();
            let life = &waiting.life;
            life.size().is_some() || life.has_stranger() || life.why_not() != waiting.told
        }
        None => true,
    }
}
