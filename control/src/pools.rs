//! Pools and the volumes that NVMe hosts created in them.

use crate::common_sections::{Group, Lun, NAMESPACE_MAX, Volume};
use crate::config::Config;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Config {
    /// The namespace ID of a LUN for NVMe hosts; `None`: it is not shown to them.
    #[must_use]
    pub fn namespace_of(&self, number: u16, lun: &Lun) -> Option<u32> {
        let made = self.volumes.get(lun.volume.name()).and_then(|volume| volume.made_namespace());
        made.or_else(|| lun.namespace_of(number))
    }

    /// The volumes that hosts created in this pool, with their names and namespace IDs.
    pub fn made_of<'c>(&'c self, pool: &str) -> impl Iterator<Item = (&'c String, &'c Volume, u32)> {
        let is_of = move |volume: &Volume| volume.pool.as_ref().is_some_and(|own| own.name() == pool);
        let made = self.volumes.iter().filter(move |(_, volume)| is_of(volume));
        made.filter_map(|(name, volume)| Some((name, &**volume, volume.made_namespace()?)))
    }

    /// The free bytes of this pool.
    #[must_use]
    pub fn left_of(&self, pool: &str) -> u64 {
        let sizes = self.made_of(pool).map(|(_, volume, _)| volume.size.map_or(0, |size| size.0));
        let taken = sizes.fold(0, u64::saturating_add);
        self.pools.get(pool).map_or(0, |pool| pool.space.0.saturating_sub(taken))
    }

    /// A namespace ID that is free in all subsystems of the groups of this pool.
    #[must_use]
    pub fn free_namespace(&self, pool: &str) -> Option<u32> {
        let is_of = |group: &&Arc<Group>| group.pool.as_ref().is_some_and(|own| own.name() == pool);
        let targets: BTreeSet<&str> =
            self.groups.values().filter(is_of).flat_map(|group| group.targets.names()).collect();
        let is_beside = |group: &&Arc<Group>| group.targets.names().any(|target| targets.contains(target));
        let mut taken: BTreeSet<u32> = self.made_of(pool).map(|(.., id)| id).collect();
        for group in self.groups.values().filter(is_beside) {
            taken.extend(group.luns.0.iter().filter_map(|(number, lun)| self.namespace_of(*number, lun)));
            let other = group.pool.as_ref().map(|other| self.made_of(other.name()));
            taken.extend(other.into_iter().flatten().map(|(.., id)| id));
        }
        (1..=NAMESPACE_MAX as u32).find(|id| !taken.contains(id))
    }
}
