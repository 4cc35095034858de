//! The metrics of the space of volumes and of their file systems, as a thread of its own has measured it last.

use super::table;
use crate::backend::PoolSpace;
use lunar_control::counters::StoreSpace;
use lunar_control::metrics::Page;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The file systems of volumes, by number. The name of one is the first folder with a volume.
pub(super) fn pools(volumes: &BTreeMap<Arc<str>, Vec<PoolSpace>>) -> BTreeMap<u64, StoreSpace> {
    let mut pools: BTreeMap<u64, (&PoolSpace, u64, BTreeSet<&str>)> = BTreeMap::new();
    for (name, spaces) in volumes {
        for space in spaces {
            let (known, promised, names) = pools.entry(space.pool).or_insert_with(|| (space, 0, BTreeSet::new()));
            if space.place < known.place {
                *known = space;
            }
            *promised = promised.saturating_add(space.allocated).saturating_add(space.missing);
            names.insert(name);
        }
    }
    // Another file system may have been mounted over the folder.
    let mut named: BTreeMap<u64, StoreSpace> = BTreeMap::new();
    for (pool, (space, promised, names)) in pools {
        let is_taken = named.values().any(|other| other.name == space.place);
        let name = if is_taken { format!("{} ({pool})", space.place) } else { space.place.clone() };
        let PoolSpace { size, free, .. } = *space;
        named.insert(pool, StoreSpace { name, size, free, promised, volumes: names.len() });
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
                spaces.iter().filter_map(|space| pools.get(&space.pool)).map(|pool| &pool.name).collect();
            stores.iter().for_each(|store| samples.add(&[name, store], 1));
        }
    });
    page.family(&table::STORE_FREE, |samples| {
        pools.values().for_each(|pool| samples.add(&[&pool.name], pool.free));
    });
    page.family(&table::STORE_SIZE, |samples| {
        pools.values().for_each(|pool| samples.add(&[&pool.name], pool.size));
    });
    page.family(&table::STORE_PROMISED, |samples| {
        pools.values().for_each(|pool| samples.add(&[&pool.name], pool.promised));
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
            noun: "file system",
            place: place.to_owned(),
            inspection: String::new(),
            free: 10 * pool,
            size: 100 * pool,
            allocated: 3,
            missing: 40 * pool,
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
            "lunar_store_promised_bytes{store=\"/srv/a\"} 129",
            "lunar_store_promised_bytes{store=\"/mnt\"} 83",
            "lunar_store_promised_bytes{store=\"/mnt (3)\"} 123",
        ];
        assert_eq!(samples, expected);
    }
}
