//! A unit as the block command set sees it on one core: the unit, and cells with the parts of its shared state that
//! every request reads.

use lunar_core::port::NexusName;
use lunar_core::unit::Unit;
use lunar_unit::reserve::Held;
use lunar_unit::{MediumState, SharedUnit};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// One core's view of a unit.
pub struct BlockUnit {
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    /// What it shares with all cores and command sets.
    pub shared: Arc<SharedUnit>,
    held: Cell<Held>,
    medium: Cell<MediumState>,
}

impl BlockUnit {
    pub(crate) fn new(unit: Rc<Unit>, shared: Arc<SharedUnit>) -> Self {
        let view = Self { unit, shared, held: Cell::default(), medium: Cell::default() };
        view.refresh();
        view
    }

    /// Brings its cells up to date with the state that all cores share.
    pub(crate) fn refresh(&self) {
        let state = self.shared.state();
        // No nexus has this name, so none of the registrants does.
        let client = NexusName { initiator: "".into(), target_port: 0 };
        self.held.set(state.reservations().held(&client));
        self.medium.set(state.medium());
    }

    /// How reservations restrict clients of this command set, none of which is a registrant.
    #[inline]
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.get()
    }

    /// The state of its medium.
    #[inline]
    #[must_use]
    pub fn medium(&self) -> MediumState {
        self.medium.get()
    }

    /// Whether the unit can be used through the portal group of this tag.
    #[must_use]
    pub fn is_active(&self, group: u16) -> bool {
        self.shared.state().access().of(group).state.is_active()
    }
}

impl fmt::Debug for BlockUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockUnit({:?})", self.unit)
    }
}
