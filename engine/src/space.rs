//! Pools of space, such as file systems, that have promised more to volumes than they have.

use crate::backend::PoolSpace;
use lunar_control::api::TroubleView;
use lunar_control::trouble::TroubleCode;
use lunar_control::value::Size;
use lunar_core::medium::LowSpace;
use std::collections::BTreeMap;

/// Numbers are told in whole MiB: they change with every write.
const MIB: u64 = 1 << 20;

/// The name of a pool: see [`PoolSpace`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Named {
    place: String,
    noun: &'static str,
    inspection: String,
}

impl Named {
    fn of(space: &PoolSpace) -> Self {
        Self { place: space.place.clone(), noun: space.noun, inspection: space.inspection.clone() }
    }

    /// The pool as the subject of a trouble.
    fn subject(&self) -> String {
        format!("{} {}", self.noun, self.place)
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
        let (missing, free) = (Size(missing.next_multiple_of(MIB)), Size(free - free % MIB));
        let stores = if *volumes == 1 { "1 volume" } else { &format!("{volumes} volumes") };
        TroubleView {
            kind: TroubleCode::OverCommitted.word(),
            subject: named.subject(),
            since,
            words: format!("{stores} there may take {missing} more, and {free} are free: writes fail when it is full"),
            remedy: format!("enlarge it, or move or delete volumes (`{}`)", named.inspection),
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
            let named = Named::of(space);
            let first = match pools.remove(pool) {
                Some(known) => known.named.min(named),
                None => named,
            };
            pools.insert(*pool, LowPool { named: first, free: *free, low });
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
        TroubleView {
            kind: TroubleCode::LowSpace.word(),
            subject: named.subject(),
            since,
            words: format!(
                "{} are available, {available} %, and the threshold is {threshold} %",
                Size(free - free % MIB)
            ),
            remedy: format!("make room there or enlarge it before writes fail (`{}`)", named.inspection),
        }
    }
}

/// The pools that have promised more than they have.
pub(crate) fn over_committed(spaces: impl IntoIterator<Item = PoolSpace>) -> Vec<OverCommitted> {
    let mut pools: BTreeMap<u64, OverCommitted> = BTreeMap::new();
    for space in spaces {
        let PoolSpace { pool, free, missing, .. } = space;
        let known = || OverCommitted { pool, named: Named::of(&space), volumes: 0, missing: 0, free };
        let found = pools.entry(pool).or_insert_with(known);
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
            noun: "file system of",
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
            "file system of /srv/1: 50 MiB are available, 5 %, and the threshold is 10 %; make room there or \
             enlarge it before writes fail (`df /srv/1`)"
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
            "file system of /srv/1: 3 volumes there may take 101 MiB more, and 100 MiB are free: writes fail when it \
             is full; enlarge it, or move or delete volumes (`df /srv/1`)"
        );
        assert_eq!(over_committed([space(3, 0, u64::MAX / MIB), space(3, 0, u64::MAX / MIB)]).len(), 1);
    }
}
