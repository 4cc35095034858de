//! Pools of space, such as file systems, that have promised more to volumes than they have.

use crate::backend::PoolSpace;
use lunar_control::api::TroubleView;
use lunar_control::trouble::TroubleCode;
use lunar_control::value::Size;
use lunar_core::medium::LowSpace;
use std::collections::BTreeMap;

/// Numbers are told in whole MiB: they change with every write.
const MIB: u64 = 1 << 20;

/// A pool in the words of its store.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Named {
    noun: &'static str,
    place: String,
    inspection: String,
}

impl Named {
    fn of(space: &PoolSpace) -> Self {
        let PoolSpace { noun, place, inspection, .. } = space;
        Self { noun, place: place.clone(), inspection: inspection.clone() }
    }

    /// The pool as the subject of a trouble: a path is a place in it, anything else its name.
    fn subject(&self) -> String {
        let Self { noun, place, .. } = self;
        if place.starts_with('/') { format!("{noun} of {place}") } else { format!("{noun} {place}") }
    }
}

/// A pool whose volumes may take more space than it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OverCommitted {
    /// The number of the pool.
    pub(crate) pool: u64,
    named: Named,
    volumes: usize,
    missing: u64,
    free: u64,
}

impl OverCommitted {
    /// The trouble, with the time at which it began.
    pub(crate) fn trouble(&self, since: u64) -> TroubleView {
        let Self { named, volumes, missing, free, .. } = self;
        let Named { noun, inspection, .. } = named;
        let (missing, free) = (Size(missing.next_multiple_of(MIB)), Size(free - free % MIB));
        let stores = if *volumes == 1 { "1 volume" } else { &format!("{volumes} volumes") };
        TroubleView {
            kind: TroubleCode::OverCommitted.word(),
            subject: named.subject(),
            since,
            words: format!(
                "{stores} there may take {missing} more, and {free} are free: writes fail when the {noun} is full"
            ),
            remedy: format!("enlarge the {noun}, or move or delete volumes (`{inspection}`)"),
        }
    }
}

/// Percentage points by which the available space must exceed the threshold before it is not low any more: a pool whose
/// space goes up and down by a block is reported once.
const SLACK: u64 = 2;

/// Pools whose available space is below a threshold in percent, by their numbers, with the first folder of their
/// volumes. `before`: those that were low. Pools without a size have no threshold.
pub(crate) fn low(spaces: &[PoolSpace], threshold: u8, before: &BTreeMap<u64, LowPool>) -> BTreeMap<u64, LowPool> {
    let mut pools: BTreeMap<u64, LowPool> = BTreeMap::new();
    for space in spaces.iter().filter(|space| space.size > 0 && threshold > 0) {
        let PoolSpace { pool, free, size, .. } = space;
        let percent = u128::from(*free) * 100 / u128::from(*size);
        let slack = if before.contains_key(pool) { SLACK } else { 0 };
        if percent < u128::from(u64::from(threshold) + slack) {
            let low = LowSpace { available: u8::try_from(percent).unwrap_or(u8::MAX), threshold };
            let known = pools.remove(pool).map(|known| known.named).filter(|known| known.place <= space.place);
            let named = known.unwrap_or_else(|| Named::of(space));
            pools.insert(*pool, LowPool { named, free: *free, low });
        }
    }
    pools
}

/// A pool whose available space is below the soft threshold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LowPool {
    named: Named,
    free: u64,
    pub(crate) low: LowSpace,
}

impl LowPool {
    /// The trouble, with the time at which it began.
    pub(crate) fn trouble(&self, since: u64) -> TroubleView {
        let Self { named, free, low: LowSpace { available, threshold } } = self;
        let Named { noun, inspection, .. } = named;
        TroubleView {
            kind: TroubleCode::LowSpace.word(),
            subject: named.subject(),
            since,
            words: format!(
                "{} are available, {available} %, and the threshold is {threshold} %",
                Size(free - free % MIB)
            ),
            remedy: format!("make room or enlarge the {noun} before writes fail (`{inspection}`)"),
        }
    }
}

/// The pools that have promised more than they have.
pub(crate) fn over_committed(spaces: impl IntoIterator<Item = PoolSpace>) -> Vec<OverCommitted> {
    let mut pools: BTreeMap<u64, OverCommitted> = BTreeMap::new();
    for space in spaces {
        let PoolSpace { pool, free, missing, .. } = space;
        let known = OverCommitted { pool, named: Named::of(&space), volumes: 0, missing: 0, free };
        let found = pools.entry(pool).or_insert(known);
        found.volumes += 1;
        found.missing = found.missing.saturating_add(missing);
        found.free = free;
    }
    pools.into_values().filter(|pool| pool.missing > pool.free).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(pool: u64, free: u64, missing: u64) -> PoolSpace {
        PoolSpace {
            pool,
            noun: "file system",
            place: format!("/srv/{pool}"),
            inspection: format!("df /srv/{pool}"),
            free: free * MIB,
            size: 1000 * MIB,
            allocated: MIB,
            missing: missing * MIB,
        }
    }

    #[test]
    fn a_pool_is_low_below_its_threshold_and_until_there_is_clearly_more() {
        let mut before = BTreeMap::new();
        let mut is_low = |free| {
            before = low(&[space(1, free, 0), space(2, 500, 0)], 10, &before);
            assert!(!before.contains_key(&2));
            before.get(&1).map(|pool| pool.low)
        };
        let low_space = |available| Some(LowSpace { available, threshold: 10 });
        assert_eq!(
            [100, 99, 100, 119, 120, 119].map(&mut is_low),
            [None, low_space(9), low_space(10), low_space(11), None, None]
        );
        assert_eq!(is_low(0), low_space(0));
        assert_eq!(low(&[space(1, 0, 0)], 0, &BTreeMap::new()), BTreeMap::new(), "without a threshold");
        let pool = low(&[space(1, 50, 0)], 10, &BTreeMap::new()).remove(&1).expect("it is low");
        assert_eq!(
            pool.trouble(7).to_string(),
            "file system of /srv/1: 50 MiB are available, 5 %, and the threshold is 10 %; make room or enlarge the \
             file system before writes fail (`df /srv/1`)"
        );
    }

    #[test]
    fn troubles_have_the_words_of_the_store() {
        let ceph = |missing| PoolSpace {
            noun: "Ceph pool",
            place: "rbd".into(),
            inspection: "ceph df".into(),
            ..space(1, 50, missing)
        };
        let low = low(&[ceph(0)], 10, &BTreeMap::new()).remove(&1).expect("it is low");
        assert_eq!(
            low.trouble(7).to_string(),
            "Ceph pool rbd: 50 MiB are available, 5 %, and the threshold is 10 %; make room or enlarge the Ceph pool \
             before writes fail (`ceph df`)"
        );
        assert_eq!(
            over_committed([ceph(60)])[0].trouble(7).to_string(),
            "Ceph pool rbd: 1 volume there may take 60 MiB more, and 50 MiB are free: writes fail when the Ceph pool \
             is full; enlarge the Ceph pool, or move or delete volumes (`ceph df`)"
        );
    }

    #[test]
    fn volumes_of_a_file_system_are_added_up() {
        let fits = [space(1, 100, 60), space(2, 100, 60), space(1, 100, 40)];
        assert_eq!(over_committed(fits.clone()), []);
        let found = over_committed(fits.into_iter().chain([space(1, 100, 1)]));
        assert_eq!(found.len(), 1);
        let trouble = found[0].trouble(77);
        assert_eq!((trouble.kind, trouble.since), ("over-committed", 77));
        assert_eq!(
            trouble.to_string(),
            "file system of /srv/1: 3 volumes there may take 101 MiB more, and 100 MiB are free: writes fail when the \
             file system is full; enlarge the file system, or move or delete volumes (`df /srv/1`)"
        );
        assert_eq!(over_committed([space(3, 0, u64::MAX / MIB), space(3, 0, u64::MAX / MIB)]).len(), 1);
    }
}
