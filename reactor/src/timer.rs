//! Timers of one core, in the order in which they are due.

use lunar_core::time::Instant;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

/// The time, and a number that keeps timers of the same time in the order of their creation.
pub(crate) type Key = (Instant, u64);

/// A tree, not a heap: timers that never fire (timeouts of successful operations) must be removed at once.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<Key, Waker>>,
    made: Cell<u64>,
}

impl Timers {
    /// A key for a timer at `at`.
    pub(crate) fn key(&self, at: Instant) -> Key {
        self.made.set(self.made.get() + 1);
        (at, self.made.get())
    }

    /// Wakes when `key` is due.
    pub(crate) fn set(&self, key: Key, waker: Waker) {
        self.waiting.borrow_mut().insert(key, waker);
    }

    /// Removes it.
    pub(crate) fn cancel(&self, key: Key) {
        self.waiting.borrow_mut().remove(&key);
    }

    /// Wakes the timers that are due.
    pub(crate) fn fire(&self, now: Instant) {
        loop {
            let mut waiting = self.waiting.borrow_mut();
            match waiting.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let waker = first.remove();
                    drop(waiting);
                    waker.wake();
                }
                _ => return,
            }
        }
    }

    /// The time of the next timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.borrow().first_key_value().map(|(key, _)| key.0)
    }
}
