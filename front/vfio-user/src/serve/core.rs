//! What all devices of a core share.

use super::device::Device;
use super::job::Job;
use lunar_core::step::Tools;
use lunar_nvme::Subsystem;
use lunar_reactor::Reactor;
use lunar_reactor::slots::Slots;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Commands that one core carries out at once: a full queue of the largest size. Each takes some 3 KiB for its task.
const SLOTS: usize = 1024;

/// What all devices of a core share.
pub(super) struct Core {
    pub(super) reactor: Reactor,
    pub(super) subsystem: Rc<Subsystem>,
    pub(super) slots: Slots<Job>,
    /// Devices that have found no free slot.
    starved: RefCell<Vec<Weak<Device>>>,
    /// Whether the target stops.
    is_draining: Cell<bool>,
}

impl Core {
    pub(super) fn new(reactor: &Reactor, subsystem: &Rc<Subsystem>) -> Rc<Self> {
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, tools: &mut Tools| job.run(tools).await);
        Rc::new(Self {
            reactor: reactor.clone(),
            subsystem: subsystem.clone(),
            slots,
            starved: RefCell::default(),
            is_draining: Cell::new(false),
        })
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    pub(super) fn drain(&self) {
        self.is_draining.set(true);
    }

    /// A device waits for a free slot.
    pub(super) fn starve(&self, device: &Weak<Device>) {
        let mut starved = self.starved.borrow_mut();
        if !starved.iter().any(|other| other.ptr_eq(device)) {
            starved.push(device.clone());
        }
    }

    /// A slot is about to be free: wakes the devices that wait for one.
    pub(super) fn feed(&self) {
        if !self.starved.borrow().is_empty() {
            self.starved.take().iter().filter_map(Weak::upgrade).for_each(|device| device.wake());
        }
    }
}
