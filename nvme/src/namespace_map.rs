//! The maps that say which units hosts see, and as which namespaces.

use crate::limits::NAMESPACES_MAX;
use lunar_core::unit::UnitId;
use std::collections::BTreeMap;

/// How a namespace that a host created may be attached. Only controllers that are attached to it have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceSharing {
    /// Any number of controllers may be attached.
    Shared,
    /// One controller at a time may be attached.
    Private,
}

/// The volume of a namespace identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The unit.
    pub unit: UnitId,
    /// Whether hosts may only read it.
    pub read_only: bool,
    /// How it may be attached, if a host created it. `None`: the operator created it, and every controller with the map
    /// has it.
    pub sharing: Option<NamespaceSharing>,
    /// Whether hosts see the protection information of its blocks as metadata.
    pub metadata: bool,
}

impl Mapping {
    /// A unit that may be written, without metadata.
    #[must_use]
    pub fn plain(unit: UnitId) -> Self {
        Self { unit, read_only: false, metadata: false, sharing: None }
    }
}

/// The volumes of the namespace identifiers, for the hosts with this map.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NamespaceMap(pub(crate) BTreeMap<u32, Mapping>);

impl NamespaceMap {
    /// A map of these namespaces. Invalid identifiers are left out.
    #[must_use]
    pub fn new(all: impl IntoIterator<Item = (u32, Mapping)>) -> Self {
        Self(all.into_iter().filter(|(id, _)| (1..=NAMESPACES_MAX).contains(id)).collect())
    }

    /// All namespaces, in ascending order of their identifiers.
    pub fn namespaces(&self) -> impl Iterator<Item = (u32, Mapping)> + '_ {
        self.0.iter().map(|(id, mapping)| (*id, *mapping))
    }

    /// Whether hosts see other namespaces than with the map `before` as soon as this one is published. A namespace that
    /// a host created is seen only when a controller is attached, and is gone when all are detached, as from the units
    /// that are `leaving`.
    #[must_use]
    pub fn is_news(&self, before: &Self, leaving: &[UnitId]) -> bool {
        let is_shown = |(id, to): (&u32, &Mapping)| to.sharing.is_none() && before.0.get(id) != Some(to);
        let is_gone = |(id, to): (&u32, &Mapping)| {
            self.0.get(id) != Some(to) && !(to.sharing.is_some() && leaving.contains(&to.unit))
        };
        self.0.iter().any(is_shown) || before.0.iter().any(is_gone)
    }

    /// The identifiers that do not stand for the same in both maps.
    #[must_use]
    pub fn differs(&self, other: &Self) -> Vec<u32> {
        let changed = |(id, to): (&u32, &Mapping)| (other.0.get(id) != Some(to)).then_some(*id);
        let mut ids: Vec<u32> = self.0.iter().filter_map(changed).collect();
        ids.extend(other.0.keys().filter(|id| !self.0.contains_key(id)));
        ids
    }
}
