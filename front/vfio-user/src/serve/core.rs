//! The state that all devices of a core share.

use super::device::Device;
use super::job::Job;
use lunar_core::step::SlotContext;
use lunar_nvme::Subsystem;
use lunar_reactor::Reactor;
use lunar_reactor::slots::Slots;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Commands that one core carries out at once: a full queue of the largest size. Each takes some 3 KiB for its task.
const SLOTS: usize = 1024;
/// Slots that a device may have as long as there are any: the usual queue depth of a disk.
const SLOTS_FLOOR: usize = 32;

/// Whether a device that has `own` slots may take one more of the `free` ones: it leaves as many as it has, so that
/// guests whose store answers slowly leave slots to the others.
fn may_take(own: usize, free: usize) -> bool {
    free > 0 && (own < SLOTS_FLOOR || own < free)
}

/// The state that all devices of a core share.
pub(super) struct Core {
    pub(super) reactor: Reactor,
    pub(super) subsystem: Rc<Subsystem>,
    pub(super) slots: Slots<Job>,
    /// Devices that have found no free slot.
    awaiting_slot: RefCell<Vec<Weak<Device>>>,
    /// Whether the target stops.
    is_draining: Cell<bool>,
}

impl Core {
    pub(super) fn new(reactor: &Reactor, subsystem: &Rc<Subsystem>) -> Rc<Self> {
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, slot: &mut SlotContext| job.run(slot).await);
        Rc::new(Self {
            reactor: reactor.clone(),
            subsystem: subsystem.clone(),
            slots,
            awaiting_slot: RefCell::default(),
            is_draining: Cell::new(false),
        })
    }

    /// Whether there is a slot for one more command of a device that has `own` slots.
    pub(super) fn has_slot(&self, own: usize) -> bool {
        may_take(own, self.slots.free())
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    pub(super) fn drain(&self) {
        self.is_draining.set(true);
    }

    /// A device waits for a free slot.
    pub(super) fn wait_for_slot(&self, device: &Weak<Device>) {
        let mut awaiting_slot = self.awaiting_slot.borrow_mut();
        if !awaiting_slot.iter().any(|other| other.ptr_eq(device)) {
            awaiting_slot.push(device.clone());
        }
    }

    /// A slot is about to be free: wakes the devices that wait for one.
    pub(super) fn feed(&self) {
        if !self.awaiting_slot.borrow().is_empty() {
            self.awaiting_slot.take().iter().filter_map(Weak::upgrade).for_each(|device| device.wake());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_leaves_slots_to_others() {
        let (mut one, mut other) = (0, 0);
        let free = |one: usize, other: usize| SLOTS - one - other;
        while may_take(one, free(one, other)) {
            one += 1;
        }
        assert_eq!(one, SLOTS / 2);
        while may_take(other, free(one, other)) {
            other += 1;
        }
        assert_eq!(other, SLOTS / 4);
        assert!(may_take(SLOTS_FLOOR - 1, 1) && !may_take(SLOTS_FLOOR, 1) && !may_take(0, 0));
    }
}
