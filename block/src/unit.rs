//! A unit as the block command set sees it on one core: the unit, and cells with the parts of its shared state that
//! every request reads.

use lunar_core::reserve::Held;
use lunar_core::unit::Unit;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// One core's view of a unit.
pub struct BlockUnit {
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    /// How reservations restrict clients that are no registrants, which all clients of this command set are.
    held: Cell<Held>,
    /// Tags of the portal groups through which the unit cannot be used now.
    inactive: RefCell<BTreeSet<u16>>,
}

impl BlockUnit {
    /// A view of a unit that nothing restricts.
    #[must_use]
    pub fn new(unit: Rc<Unit>) -> Self {
        Self { unit, held: Cell::default(), inactive: RefCell::default() }
    }

    /// How reservations restrict clients.
    #[inline]
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.get()
    }

    pub(crate) fn set_held(&self, held: Held) {
        self.held.set(held);
    }

    /// Whether the unit can be used through the portal group of this tag.
    #[must_use]
    pub fn is_active(&self, group: u16) -> bool {
        !self.inactive.borrow().contains(&group)
    }

    pub(crate) fn set_active(&self, group: u16, is_active: bool) {
        let mut inactive = self.inactive.borrow_mut();
        if is_active {
            inactive.remove(&group);
        } else {
            inactive.insert(group);
        }
    }

    /// Takes over the state of the view that this one replaces.
    pub(crate) fn replace(&self, old: &Self) {
        self.held.set(old.held.get());
        self.inactive.replace(old.inactive.take());
    }
}

impl fmt::Debug for BlockUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockUnit({:?})", self.unit)
    }
}
