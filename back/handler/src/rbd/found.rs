//! The images that processes have found at the names of images that are served, or wait to be served.

use crate::life::Lifetime;
use lunar_engine::backend::{Fingerprint, Mark};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How marks of images begin.
const SPACE: &str = "rbd";

/// The images by their names. A process for a volume that an operator accepts is there beside the one before.
static LIVES: Mutex<BTreeMap<PathBuf, Vec<Weak<Lifetime>>>> = Mutex::new(BTreeMap::new());

fn lives() -> MutexGuard<'static, BTreeMap<PathBuf, Vec<Weak<Lifetime>>>> {
    LIVES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The processes of this life look at the image with this name from now on.
pub(super) fn add(image: &Path, life: &Arc<Lifetime>) {
    let mut lives = lives();
    lives.retain(|_, known| {
        known.retain(|life| life.strong_count() > 0);
        !known.is_empty()
    });
    lives.entry(image.to_owned()).or_default().push(Arc::downgrade(life));
}

/// Whether the process of the image with this name stands by.
pub(super) fn stands_by(image: &Path) -> bool {
    lives().get(image).is_some_and(|known| known.iter().filter_map(Weak::upgrade).any(|life| life.stands_by()))
}

/// The fingerprint of the image that has this name now; `None`: no process has opened it.
pub(super) fn at(image: &Path) -> Option<Fingerprint> {
    let known: Vec<_> = lives().get(image)?.iter().filter_map(Weak::upgrade).collect();
    let found = known.iter().find_map(|life| life.identity_there())?;
    Some(fingerprint(&found))
}

/// The fingerprint of the image with this identity. Another image under the same name has another one.
pub(super) fn fingerprint(identity: &str) -> Fingerprint {
    Fingerprint::of_mark(&Mark::Global { space: SPACE, name: identity.to_owned() })
}

/// The identity of the image with this fingerprint. That of another kind of store is no identity of an image.
pub(super) fn identity(known: &Fingerprint) -> &str {
    known.mark.strip_prefix(SPACE).and_then(|rest| rest.strip_prefix(' ')).unwrap_or(&known.mark)
}
