//! A namespace: a unit as NVMe sees it, and the view that a host has of it.

use crate::namespace_map::{Mapping, NamespaceSharing};
use lunar_core::codes;
use lunar_core::protection::Kind;
use lunar_core::unit::Unit;
use lunar_unit::reserve::Held;
use lunar_unit::{AccessState, MediumState, SharedUnit};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

pub use crate::limits::NAMESPACES_MAX;

/// The namespace identifier that means all of them.
pub const ALL: u32 = 0xffff_ffff;

codes! {
    /// Asymmetric namespace access states (NVMe Base 2.0 8.1.1).
    pub struct AnaState(u8) {
        OPTIMIZED = 0x01, NON_OPTIMIZED = 0x02, INACCESSIBLE = 0x03, PERSISTENT_LOSS = 0x04, CHANGE = 0x0f,
    }
}

impl AnaState {
    /// The code of a state.
    #[must_use]
    pub fn of(state: AccessState) -> Self {
        match state {
            AccessState::ActiveOptimized => Self::OPTIMIZED,
            AccessState::ActiveNonOptimized => Self::NON_OPTIMIZED,
            AccessState::Transitioning => Self::CHANGE,
            AccessState::Standby | AccessState::Unavailable | AccessState::Offline => Self::INACCESSIBLE,
        }
    }
}

/// One core's view of a unit that hosts see as a namespace.
pub struct Namespace {
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    /// The unit state that all cores and command sets share.
    pub shared: Arc<SharedUnit>,
    medium: Cell<MediumState>,
}

impl Namespace {
    pub(crate) fn new(unit: Rc<Unit>, shared: Arc<SharedUnit>) -> Self {
        let namespace = Self { unit, shared, medium: Cell::default() };
        namespace.refresh();
        namespace
    }

    /// Brings its cells up to date with the state that all cores share.
    pub(crate) fn refresh(&self) {
        self.medium.set(self.shared.state().medium());
    }

    /// The state of its medium.
    #[inline]
    #[must_use]
    pub fn medium(&self) -> MediumState {
        self.medium.get()
    }

    /// Its access state through the portal group of this tag.
    #[must_use]
    pub fn access(&self, group: u16) -> AnaState {
        AnaState::of(self.shared.state().access().of(group).state)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.unit.geometry.block_size
    }

    /// Whether blocks may be deallocated.
    #[must_use]
    pub fn deallocates(&self) -> bool {
        self.unit.traits().unmap_granularity > 0
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({:?})", self.unit)
    }
}

/// The view that one host has of one namespace, through one queue.
#[derive(Debug)]
pub struct Attached {
    /// The namespace identifier that the host uses.
    pub id: u32,
    /// The namespace.
    pub namespace: Rc<Namespace>,
    /// Whether the host may only read.
    pub read_only: bool,
    /// Whether a host has made it.
    pub sharing: Option<NamespaceSharing>,
    /// Whether the host sees the protection information of its blocks, if they are protected.
    metadata: bool,
    access: Cell<AnaState>,
    held: Cell<Held>,
}

impl Attached {
    pub(crate) fn new(id: u32, namespace: Rc<Namespace>, to: Mapping, access: AnaState, held: Held) -> Self {
        let read_only = to.read_only || namespace.unit.read_only;
        let (made, metadata) = (to.sharing, to.metadata);
        Self { id, namespace, read_only, sharing: made, metadata, access: Cell::new(access), held: Cell::new(held) }
    }

    /// The protection type of its blocks, if the host sees their protection information: each block has eight bytes of
    /// metadata behind it then.
    #[must_use]
    pub fn shown(&self) -> Option<Kind> {
        if self.metadata { self.namespace.unit.protected().map(|protection| protection.kind()) } else { None }
    }

    /// Its access state for the host.
    #[must_use]
    pub fn access(&self) -> AnaState {
        self.access.get()
    }

    pub(crate) fn set_access(&self, access: AnaState) {
        self.access.set(access);
    }

    /// How a reservation restricts the host.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.get()
    }

    pub(crate) fn set_held(&self, held: Held) {
        self.held.set(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_accessible_in_the_active_states_only() {
        for state in AccessState::ALL {
            let is_active = [AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED].contains(&AnaState::of(state));
            assert_eq!(is_active, state.is_active(), "{state:?}");
        }
    }
}
