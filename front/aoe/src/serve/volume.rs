//! A volume on the core that serves it: its writes in progress, and the states of its slots.

use super::common::Common;
use crate::order::Writes;
use crate::slot::{RECORD, SlotState};
use crate::wire::Address;
use lunar_core::turn::Turns;
use lunar_core::unit::Unit;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A volume; `J` is the job of a write that waits.
pub(super) struct Volume<J> {
    unit: RefCell<Rc<Unit>>,
    pub(super) writes: RefCell<Writes<J>>,
    slots: RefCell<BTreeMap<Address, Rc<RefCell<SlotState>>>>,
    /// Changes of slots and of the reservation take turns: each is judged by the state that the one before has left.
    pub(super) changes: Turns,
    common: Arc<Common>,
}

impl<J> Volume<J> {
    pub(super) fn new(unit: &Rc<Unit>, common: &Arc<Common>) -> Rc<Self> {
        Rc::new(Self {
            unit: RefCell::new(unit.clone()),
            writes: RefCell::default(),
            slots: RefCell::default(),
            changes: Turns::default(),
            common: common.clone(),
        })
    }

    pub(super) fn unit(&self) -> Rc<Unit> {
        self.unit.borrow().clone()
    }

    /// Replaces the unit by another view of it; returns whether its size differs.
    pub(super) fn set_unit(&self, unit: &Rc<Unit>) -> bool {
        let before = self.unit.replace(unit.clone());
        before.geometry != unit.geometry
    }

    /// The state of a slot that shows it; `None` if its metadata is not readable.
    pub(super) fn slot(&self, address: Address) -> Option<Rc<RefCell<SlotState>>> {
        if let Some(slot) = self.slots.borrow().get(&address) {
            return Some(slot.clone());
        }
        let unit = self.unit();
        let state = self.common.slot_state(unit.identity.uuid, &*unit.metadata, address)?;
        let slot = Rc::new(RefCell::new(state));
        self.slots.borrow_mut().insert(address, slot.clone());
        Some(slot)
    }

    /// Replaces the state of a slot, once it is in the metadata of the volume; returns whether it is. The caller has
    /// the turn among the changes of the volume.
    pub(super) async fn set_slot(&self, address: Address, state: SlotState) -> bool {
        let (Some(slot), unit) = (self.slot(address), self.unit()) else { return false };
        let uuid = unit.identity.uuid;
        let saving = self.common.change_slot(uuid, address, state.clone(), |record| unit.metadata.save(RECORD, record));
        if saving.await.is_ok() {
            slot.replace(state);
            return true;
        }
        // The record may be on the medium nevertheless, also with the change of another slot: it must not come back.
        let before = slot.borrow().clone();
        drop(self.common.change_slot(uuid, address, before, |record| unit.metadata.save(RECORD, record)));
        false
    }
}
