//! The slots of a core, shared by the devices of several guests.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// Slots that a device may have as long as there are any: the usual queue depth of a disk.
const SLOTS_FLOOR: usize = 32;

/// Whether a device that has `own` slots may take one more of the `free` ones: it leaves as many as it has, so that
/// guests whose store answers slowly leave slots to the others.
#[must_use]
pub fn may_take(own: usize, free: usize) -> bool {
    free > 0 && (own < SLOTS_FLOOR || own < free)
}

/// Devices that have found no free slot.
#[derive(Debug)]
pub struct SlotQueue<T>(RefCell<Vec<Weak<T>>>);

impl<T> Default for SlotQueue<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T> SlotQueue<T> {
    /// A device waits for a free slot. A device that waits already is not added again.
    pub fn wait(&self, device: &Weak<T>) {
        let mut devices = self.0.borrow_mut();
        if !devices.iter().any(|other| other.ptr_eq(device)) {
            devices.push(device.clone());
        }
    }

    /// A slot is about to be free: calls `wake` for the devices that wait for one, which wait no longer.
    pub fn feed(&self, wake: impl FnMut(Rc<T>)) {
        if !self.0.borrow().is_empty() {
            self.0.take().iter().filter_map(Weak::upgrade).for_each(wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_leaves_slots_to_others() {
        const SLOTS: usize = 1024;
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

    #[test]
    fn each_device_that_waits_is_woken_once() {
        let queue = SlotQueue::default();
        let (one, other) = (Rc::new(1), Rc::new(2));
        let woken = || {
            let mut woken = Vec::new();
            queue.feed(|device: Rc<i32>| woken.push(*device));
            woken
        };
        for device in [&one, &other, &one] {
            queue.wait(&Rc::downgrade(device));
        }
        drop(other);
        assert_eq!((woken(), woken()), (vec![1], vec![]), "a device that is gone is left out");
        queue.wait(&Rc::downgrade(&one));
        assert_eq!(woken(), [1]);
    }
}
