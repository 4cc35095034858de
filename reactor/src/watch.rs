//! Memory that a guest writes without notification, polled while a core is awake: the queues of virtual machines.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

/// Polls memory that a guest writes.
pub trait Watch {
    /// A cheap check whether [`Watch::look`] would find work; it changes nothing.
    fn wants_poll(&self) -> bool;

    /// Polls, and does the work; returns whether there was any. Called once in every turn, when no task is ready any
    /// more.
    fn look(&self) -> bool;

    /// The core is about to sleep: the writer must wake it from now on. `false`: there is work already.
    fn prepare_sleep(&self) -> bool;
}

/// All watches of a core.
#[derive(Default)]
pub(crate) struct Watches {
    all: RefCell<Vec<Weak<dyn Watch>>>,
    count: Cell<usize>,
    /// The first watch of the next poll: each in turn, because a watch that takes all slots would leave none to the
    /// others.
    first: Cell<usize>,
}

impl Watches {
    pub(crate) fn add(&self, watch: &Rc<dyn Watch>) {
        let mut all = self.all.borrow_mut();
        all.retain(|watch| watch.strong_count() > 0);
        all.push(Rc::downgrade(watch));
        self.count.set(all.len());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    pub(crate) fn want_poll(&self) -> bool {
        self.count.get() > 0 && self.all.borrow().iter().filter_map(Weak::upgrade).any(|watch| watch.wants_poll())
    }

    /// The number of watches that had work.
    pub(crate) fn look(&self) -> usize {
        let (count, first) = (self.count.get(), self.first.get());
        self.first.set(if first + 1 < count { first + 1 } else { 0 });
        let turn = (first..count).chain(0..first.min(count));
        turn.filter(|at| self.get(*at).is_some_and(|watch| watch.look())).count()
    }

    /// Whether all watches allow the core to sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        (0..self.count.get()).all(|at| self.get(at).is_none_or(|watch| watch.prepare_sleep()))
    }

    fn get(&self, at: usize) -> Option<Rc<dyn Watch>> {
        self.all.borrow().get(at).and_then(Weak::upgrade)
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watches({})", self.count.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Seen(usize, Rc<RefCell<Vec<usize>>>);

    impl Watch for Seen {
        fn wants_poll(&self) -> bool {
            true
        }

        fn look(&self) -> bool {
            self.1.borrow_mut().push(self.0);
            self.0 > 0
        }

        fn prepare_sleep(&self) -> bool {
            false
        }
    }

    #[test]
    fn each_looks_first_in_its_turn() {
        let (watches, seen) = (Watches::default(), Rc::default());
        let all: Vec<Rc<dyn Watch>> = (0..3).map(|at| Rc::new(Seen(at, Rc::clone(&seen))) as Rc<dyn Watch>).collect();
        all.iter().for_each(|watch| watches.add(watch));
        assert_eq!((0..4).map(|_| watches.look()).collect::<Vec<_>>(), [2; 4]);
        assert_eq!(*seen.borrow(), [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]);
    }
}
