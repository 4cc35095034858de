//! The space of the pool that the data of a handler takes space from, as the handler tells it.

use crate::shared::Unit;
use lunar_core::digest::fnv_64;
use lunar_engine::backend::PoolSpace;
use lunar_handler::wire::{Space, name_of, space_flags};
use std::time::{Duration, Instant};

/// How long a number that a handler has told counts: handlers repeat theirs every minute, and one that cannot reach its
/// pool, or has ended, knows nothing about its space.
const AGE_MAX: Duration = Duration::from_secs(300);
/// The bit that no number of a device of a file system has: handlers have pools of their own.
const OF_HANDLERS: u64 = 1 << 63;

/// The space of a volume of `size` bytes in the pool of its handler. `told`: what the handler has told last, and when.
///
/// Images in one pool of a cluster have one number, because Lunar has started their processes. Another handler may say
/// anything, so it has a pool for itself: what it says is never added to the numbers of other volumes.
pub(crate) fn pool_space(told: Option<(Space, Instant)>, unit: &Unit, size: u64) -> Option<PoolSpace> {
    let (space, _) = told.filter(|(_, since)| since.elapsed() < AGE_MAX)?;
    let (identity, name, path) = (name_of(&space.pool), name_of(&space.name), unit.path.display());
    let (noun, inspection, pool) = match unit.image {
        Some(_) => ("Ceph pool", "ceph df", fnv_64(&format!("rbd {identity}"))),
        None => ("pool", "lunar handler list", fnv_64(&format!("handler {path} {identity}"))),
    };
    let allocated = (space.flags.get() & space_flags::ALLOCATED != 0).then(|| space.allocated.get().min(size));
    // Without the allocated bytes, the missing space is unknown: count it as 0, so that no warning is raised.
    let missing = allocated.filter(|_| !unit.read_only).map_or(0, |allocated| size - allocated);
    Some(PoolSpace {
        pool: pool | OF_HANDLERS,
        noun,
        place: if name.is_empty() { path.to_string() } else { name },
        inspection: inspection.to_owned(),
        free: space.free.get(),
        size: space.size.get(),
        allocated: allocated.unwrap_or(0),
        missing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbd::process::ImageAccess;
    use crate::tests::Folder;
    use lunar_handler::wire::name_field;

    fn told(pool: &str, flags: u64) -> Option<(Space, Instant)> {
        let (free, size, allocated) = (5.into(), 50.into(), 30.into());
        let (pool, name) = (name_field(pool), name_field("rbd"));
        Some((Space { flags: flags.into(), free, size, allocated, pool, name }, Instant::now()))
    }

    #[test]
    fn images_share_a_pool_and_other_handlers_do_not() {
        let folder = Folder::new("space");
        let handler = folder.unit();
        let image = |name: &str| Unit { path: name.into(), image: Some(ImageAccess::default()), ..folder.unit() };
        let of = |unit: &Unit, pool: &str| pool_space(told(pool, space_flags::ALLOCATED), unit, 100).expect("told");
        let first = of(&image("rbd/a"), "fsid/2");
        assert_eq!((first.noun, &*first.place, &*first.inspection), ("Ceph pool", "rbd", "ceph df"));
        assert_eq!((first.free, first.size, first.allocated, first.missing), (5, 50, 30, 70));
        assert_eq!(of(&image("rbd/b"), "fsid/2").pool, first.pool);
        assert_ne!(of(&image("rbd/b"), "fsid/3").pool, first.pool);
        let other = Unit { path: "/other".into(), ..folder.unit() };
        let pools = [&handler, &other].map(|unit| of(unit, "fsid/2"));
        assert!(pools[0].pool != pools[1].pool && pools[0].pool != first.pool);
        assert_eq!((pools[0].noun, pools[0].pool >> 63), ("pool", 1));
    }

    #[test]
    fn what_is_not_known_or_old_or_not_written_warns_of_nothing() {
        let folder = Folder::new("space-unknown");
        let unit = folder.unit();
        let missing = |flags, unit: &Unit, size| pool_space(told("p", flags), unit, size).expect("told").missing;
        assert_eq!(missing(0, &unit, 100), 0);
        assert_eq!(missing(space_flags::ALLOCATED, &Unit { read_only: true, ..folder.unit() }, 100), 0);
        assert_eq!(missing(space_flags::ALLOCATED, &unit, 20), 0, "it takes more than it can");
        assert_eq!(pool_space(None, &unit, 100), None);
        if let Some(before) = Instant::now().checked_sub(AGE_MAX) {
            let old = told("p", 0).map(|(space, _)| (space, before));
            assert_eq!(pool_space(old, &unit, 100), None);
        }
    }
}
