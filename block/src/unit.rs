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
    /// The state that it shares with all cores and command sets.
    pub shared: Arc<SharedUnit>,
    medium: Cell<MediumState>,
}

impl BlockUnit {
    pub(crate) fn new(unit: Rc<Unit>, shared: Arc<SharedUnit>) -> Self {
        let view = Self { unit, shared, medium: Cell::default() };
        view.refresh();
        view
    }

    /// Updates its cells with the state that all cores share.
    pub(crate) fn refresh(&self) {
        self.medium.set(self.shared.state().medium());
    }

    /// How reservations restrict the client of this name; without a name: a client that is no registrant.
    #[must_use]
    pub fn held_for(&self, name: Option<&NexusName>) -> Held {
        // No registrant has the empty name.
        let nobody = || NexusName { initiator: "".into(), target_port: 0 };
        self.shared.state().reservations().held(&name.cloned().unwrap_or_else(nobody))
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
