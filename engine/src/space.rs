//! Pools of space, such as file systems, that have promised more to volumes than they have.

use crate::backend::PoolSpace;
use lunar_control::api::TroubleView;
use lunar_control::trouble::TroubleCode;
use lunar_control::value::Size;
use std::collections::BTreeMap;

/// Numbers are told in whole MiB: they change with every write.
const MIB: u64 = 1 << 20;

/// A pool whose volumes may take more space than it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OverCommitted {
    /// The number of the pool.
    pub(crate) pool: u64,
    place: String,
    volumes: usize,
    missing: u64,
    free: u64,
}

impl OverCommitted {
    /// The trouble, with the time at which it began.
    pub(crate) fn trouble(&self, since: u64) -> TroubleView {
        let Self { place, volumes, missing, free, .. } = self;
        let (missing, free) = (Size(missing.next_multiple_of(MIB)), Size(free - free % MIB));
        let stores = if *volumes == 1 { "1 volume" } else { &format!("{volumes} volumes") };
        TroubleView {
            kind: TroubleCode::OverCommitted.word(),
            subject: format!("file system of {place}"),
            since,
            words: format!(
                "{stores} there may take {missing} more, and {free} are free: writes fail when the file system is full"
            ),
            remedy: format!("enlarge the file system, or move or delete volumes (`df {place}`)"),
        }
    }
}

/// The pools that have promised more than they have.
pub(crate) fn over_committed(spaces: impl IntoIterator<Item = PoolSpace>) -> Vec<OverCommitted> {
    let mut pools: BTreeMap<u64, OverCommitted> = BTreeMap::new();
    for PoolSpace { pool, place, free, missing, .. } in spaces {
        let known = OverCommitted { pool, place, volumes: 0, missing: 0, free };
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
            place: format!("/srv/{pool}"),
            free: free * MIB,
            size: 1000 * MIB,
            allocated: MIB,
            missing: missing * MIB,
        }
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
