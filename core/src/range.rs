//! Range locks of a unit: shared for ordinary I/O, exclusive for atomic commands such as COMPARE AND WRITE.
//!
//! There is one table per unit and core. Ordinary I/O takes its shared lock with one branch while no exclusive lock is
//! held on the core. An atomic command first takes the exclusive lock on every core (see
//! [`Exclusive`](crate::unit::Exclusive)), then runs, then releases it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Bytes `start..end` of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// First byte after the span.
    pub end: u64,
}

impl Span {
    /// Whether both spans have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Counts the changes of a unit's medium as a whole, which format and sanitize make. A command that was admitted in one
/// epoch is refused in the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Epoch(u32);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The range locks of one unit on one core, and the unit's epoch as this core knows it.
#[derive(Debug, Default)]
pub struct Ranges {
    /// Number of exclusive locks.
    exclusive: Cell<u32>,
    epoch: Cell<Epoch>,
    slots: RefCell<Slots>,
    waiters: RefCell<Vec<Waker>>,
}

/// All locks. A slot that is released is used again, so the data path does not allocate.
#[derive(Debug, Default)]
struct Slots {
    locks: Vec<Lock>,
    free: Vec<u32>,
}

/// One lock; that of a free slot has an empty span.
#[derive(Clone, Copy, Debug, Default)]
struct Lock {
    span: Span,
    is_exclusive: bool,
}

/// A range lock, shared or exclusive; dropping it releases the lock.
#[derive(Debug)]
pub struct RangeGuard {
    ranges: Rc<Ranges>,
    slot: u32,
}

impl Ranges {
    /// Takes a shared lock: at once if no exclusive lock overlaps, else when those are released.
    pub async fn lock_shared(self: &Rc<Self>, span: Span) -> RangeGuard {
        if self.exclusive.get() > 0 {
            self.until_none(span, |lock| lock.is_exclusive).await;
        }
        self.add(span, false)
    }

    /// The current epoch.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch.get()
    }

    /// Begins an epoch: commands that were admitted in another one take no lock any more.
    pub fn set_epoch(&self, epoch: Epoch) {
        self.epoch.set(epoch);
    }

    /// Whether [`Ranges::lock_shared`] would wait.
    #[inline]
    #[must_use]
    pub fn is_locked_exclusively(&self, span: Span) -> bool {
        self.exclusive.get() > 0 && self.overlaps(span, |lock| lock.is_exclusive)
    }

    /// Takes a shared lock if no exclusive lock overlaps.
    fn try_lock_shared(self: &Rc<Self>, span: Span) -> Option<RangeGuard> {
        (!self.is_locked_exclusively(span)).then(|| self.add(span, false))
    }

    /// Takes an exclusive lock: later I/O on the range waits from now on. Returns when all earlier I/O has released its
    /// locks.
    pub async fn lock_exclusive(self: &Rc<Self>, span: Span) -> RangeGuard {
        self.until_none(span, |lock| lock.is_exclusive).await;
        let guard = self.add(span, true);
        self.until_none(span, |lock| !lock.is_exclusive).await;
        guard
    }

    /// Waits until none of the locks that `matters` selects overlaps the span.
    async fn until_none(&self, span: Span, matters: impl Fn(&Lock) -> bool) {
        poll_fn(|cx| {
            if self.overlaps(span, &matters) {
                self.waiters.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    fn overlaps(&self, span: Span, matters: impl Fn(&Lock) -> bool) -> bool {
        self.slots.borrow().locks.iter().any(|lock| matters(lock) && lock.span.overlaps(span))
    }

    #[inline]
    fn add(self: &Rc<Self>, span: Span, is_exclusive: bool) -> RangeGuard {
        if is_exclusive {
            self.exclusive.set(self.exclusive.get() + 1);
        }
        let mut slots = self.slots.borrow_mut();
        let lock = Lock { span, is_exclusive };
        let slot = match slots.free.pop() {
            Some(slot) => {
                slots.locks[slot as usize] = lock;
                slot
            }
            None => {
                slots.locks.push(lock);
                // A core has fewer commands in progress than 32 bits count.
                (slots.locks.len() - 1) as u32
            }
        };
        RangeGuard { ranges: self.clone(), slot }
    }
}

/// Takes shared locks on two ranges, of one unit or of two. It waits for neither while it holds the other: two atomic
/// commands and two callers of this function could wait for each other in a circle.
pub async fn lock_shared_both(one: (&Rc<Ranges>, Span), other: (&Rc<Ranges>, Span)) -> (RangeGuard, RangeGuard) {
    loop {
        let first = one.0.lock_shared(one.1).await;
        if let Some(second) = other.0.try_lock_shared(other.1) {
            return (first, second);
        }
        drop(first);
        let second = other.0.lock_shared(other.1).await;
        if let Some(first) = one.0.try_lock_shared(one.1) {
            return (first, second);
        }
    }
}

impl Drop for RangeGuard {
    #[inline]
    fn drop(&mut self) {
        let mut slots = self.ranges.slots.borrow_mut();
        let lock = std::mem::take(&mut slots.locks[self.slot as usize]);
        slots.free.push(self.slot);
        drop(slots);
        if lock.is_exclusive {
            self.ranges.exclusive.set(self.ranges.exclusive.get() - 1);
        }
        if !self.ranges.waiters.borrow().is_empty() {
            self.ranges.waiters.take().into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Context;

    type Waiting = Pin<Box<dyn Future<Output = RangeGuard>>>;

    fn poll(future: &mut Waiting) -> Option<RangeGuard> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    fn shared(ranges: &Rc<Ranges>, start: u64, end: u64) -> Waiting {
        let ranges = ranges.clone();
        Box::pin(async move { ranges.lock_shared(Span { start, end }).await })
    }

    fn exclusive(ranges: &Rc<Ranges>, start: u64, end: u64) -> Waiting {
        let ranges = ranges.clone();
        Box::pin(async move { ranges.lock_exclusive(Span { start, end }).await })
    }

    #[test]
    fn shared_locks_overlap_freely() {
        let ranges = Rc::new(Ranges::default());
        let _a = poll(&mut shared(&ranges, 0, 10)).expect("free");
        let _b = poll(&mut shared(&ranges, 5, 15)).expect("free");
    }

    #[test]
    fn an_exclusive_lock_waits_for_earlier_io_and_stops_later_io() {
        let ranges = Rc::new(Ranges::default());
        let earlier = poll(&mut shared(&ranges, 0, 10)).expect("free");
        let mut locking = exclusive(&ranges, 5, 15);
        assert!(poll(&mut locking).is_none());
        let mut later = shared(&ranges, 14, 20);
        assert!(poll(&mut later).is_none());
        let _apart = poll(&mut shared(&ranges, 15, 20)).expect("does not overlap");
        drop(earlier);
        let locked = poll(&mut locking).expect("no other lock is left");
        assert!(poll(&mut later).is_none());
        drop(locked);
        assert!(poll(&mut later).is_some());
    }

    #[test]
    fn two_ranges_are_locked_together_or_not_at_all() {
        let (a, b) = (Rc::new(Ranges::default()), Rc::new(Ranges::default()));
        let span = Span { start: 0, end: 10 };
        for (near, far) in [(&a, &b), (&b, &a)] {
            let locked = poll(&mut exclusive(far, 5, 6)).expect("free");
            let mut both = Box::pin(lock_shared_both((near, span), (far, span)));
            let mut lock = || both.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(lock().is_pending());
            let atomic = poll(&mut exclusive(near, 5, 6)).expect("the waiter holds no lock");
            drop(locked);
            assert!(lock().is_pending(), "now the other range is locked");
            let locked = poll(&mut exclusive(far, 5, 6)).expect("the waiter holds no lock here either");
            drop((atomic, locked));
            let Poll::Ready(guards) = lock() else { panic!("both are free") };
            assert!(poll(&mut exclusive(near, 9, 20)).is_none() && poll(&mut exclusive(far, 9, 20)).is_none());
            drop(guards);
        }
    }

    #[test]
    fn the_next_epoch_is_another_one() {
        let ranges = Rc::new(Ranges::default());
        let before = ranges.epoch();
        assert_eq!(before, ranges.epoch());
        ranges.set_epoch(before.next());
        assert_ne!(before, ranges.epoch());
        assert_ne!(Epoch(u32::MAX).next(), Epoch(u32::MAX));
    }

    #[test]
    fn an_exclusive_lock_that_is_given_up_stops_nobody() {
        let ranges = Rc::new(Ranges::default());
        let earlier = poll(&mut shared(&ranges, 0, 10)).expect("free");
        let mut locking = exclusive(&ranges, 0, 10);
        assert!(poll(&mut locking).is_none());
        drop(locking);
        drop(earlier);
        assert!(poll(&mut shared(&ranges, 0, 10)).is_some());
    }
}
