//! The metrics of the space of volumes and of their file systems, as a thread of its own has measured it last.

use super::table;
use crate::backend::PoolSpace;
use lunar_control::metrics::Page;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The file systems of volumes, by number: the space of one of its volumes, and a name, which is the first folder with
/// a volume.
pub(super) fn pools(volumes: &BTreeMap<Arc<str>, Vec<PoolSpace>>) -> BTreeMap<u64, (&PoolSpace, String)> {
    let mut pools: BTreeMap<u64, &PoolSpace> = BTreeMap::new();
    for space in volumes.values().flatten() {
        let known = pools.entry(space.pool).or_insert(space);
        if space.place < known.place {
            *known = space;
        }
    }
    // Another file system may have been mounted over the folder.
    let mut named: BTreeMap<u64, (&PoolSpace, String)> = BTreeMap::new();
    for (pool, space) in pools {
        let is_taken = named.values().any(|(_, name)| *name == space.place);
        let name = if is_taken { format!("{} ({pool})", space.place) } else { space.place.clone() };
        named.insert(pool, (space, name));
    }
    named
}

/// Writes the space of volumes, each with its stores.
pub(super) fn write(page: &mut Page, volumes: &BTreeMap<Arc<str>, Vec<PoolSpace>>) {
    let pools = pools(volumes);
    page.family(&table::VOLUME_ALLOCATED, |samples| {
        for (name, spaces) in volumes.iter().filter(|(_, spaces)| !spaces.is_empty()) {
            samples.add(&[name], spaces.iter().map(|space| space.allocated).sum());
        }
    });
    page.family(&table::VOLUME_STORE, |samples| {
        for (name, spaces) in volumes {
            let stores: BTreeSet<_> =
                spaces.iter().filter_map(|space| pools.get(&space.pool)).map(|(_, name)| name).collect();
            stores.iter().for_each(|store| samples.add(&[name, store], 1));
        }
    });
    page.family(&table::STORE_FREE, |samples| {
        pools.values().for_each(|(space, name)| samples.add(&[name], space.free));
    });
    page.family(&table::STORE_SIZE, |samples| {
        pools.values().for_each(|(space, name)| samples.add(&[name], space.size));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::metrics::Format;

    #[test]
    fn a_file_system_is_shown_once_whatever_volumes_it_has() {
        let space = |pool, place: &str| PoolSpace {
            pool,
            place: place.to_owned(),
            free: 10 * pool,
            size: 100 * pool,
            allocated: 3,
            missing: 0,
        };
        let volumes = BTreeMap::from([
            ("a".into(), vec![space(1, "/srv/b"), space(1, "/srv/b")]),
            ("b".into(), vec![space(1, "/srv/a")]),
            ("c".into(), vec![space(2, "/mnt")]),
            ("over".into(), vec![space(3, "/mnt")]),
            ("ram".into(), Vec::new()),
        ]);
        let mut page = Page::new(Format::Prometheus);
        write(&mut page, &volumes);
        let text = page.finish();
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "lunar_volume_allocated_bytes{volume=\"a\"} 6",
            "lunar_volume_allocated_bytes{volume=\"b\"} 3",
            "lunar_volume_allocated_bytes{volume=\"c\"} 3",
            "lunar_volume_allocated_bytes{volume=\"over\"} 3",
            "lunar_volume_store{volume=\"a\",store=\"/srv/a\"} 1",
            "lunar_volume_store{volume=\"b\",store=\"/srv/a\"} 1",
            "lunar_volume_store{volume=\"c\",store=\"/mnt\"} 1",
            "lunar_volume_store{volume=\"over\",store=\"/mnt (3)\"} 1",
            "lunar_store_free_bytes{store=\"/srv/a\"} 10",
            "lunar_store_free_bytes{store=\"/mnt\"} 20",
            "lunar_store_free_bytes{store=\"/mnt (3)\"} 30",
            "lunar_store_size_bytes{store=\"/srv/a\"} 100",
            "lunar_store_size_bytes{store=\"/mnt\"} 200",
            "lunar_store_size_bytes{store=\"/mnt (3)\"} 300",
        ];
        assert_eq!(samples, expected);
    }
}
