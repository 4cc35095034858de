//! The state that all devices of a core share.

use super::device::Device;
use super::job::Job;
use lunar_core::step::SlotContext;
use lunar_guest::slots::{SlotQueue, may_take};
use lunar_nvme::Subsystem;
use lunar_reactor::Reactor;
use lunar_reactor::slots::Slots;
use std::cell::Cell;
use std::rc::{Rc, Weak};

/// Commands that one core carries out at once: a full queue of the largest size. Each takes some 3 KiB for its task.
const SLOTS: usize = 1024;

/// The state that all devices of a core share.
pub(super) struct Core {
    pub(super) reactor: Reactor,
    pub(super) subsystem: Rc<Subsystem>,
    pub(super) slots: Slots<Job>,
    /// Devices that have found no free slot.
    awaiting_slot: SlotQueue<Device>,
    /// Whether the target stops.
    is_draining: Cell<bool>,
}

impl Core {
    pub(super) fn new(reactor: &Reactor, subsystem: &Rc<Subsystem>) -> Rc<Self> {
        let run = async |job: &Job, slot: &mut SlotContext| job.run(slot).await;
        let slots = Slots::with_failure(reactor, SLOTS, run, Job::fail);
        Rc::new(Self {
            reactor: reactor.clone(),
            subsystem: subsystem.clone(),
            slots,
            awaiting_slot: SlotQueue::default(),
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
        self.awaiting_slot.wait(device);
    }

    /// A slot is about to be free: wakes the devices that wait for one.
    pub(super) fn feed(&self) {
        self.awaiting_slot.feed(|device| device.wake());
    }
}
