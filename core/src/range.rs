//! Range locks of a unit: shared for ordinary I/O, exclusive for atomic commands such as COMPARE AND WRITE.
//!
//! There is one table per unit and core. Ordinary I/O takes its shared lock with one branch while no exclusive lock is
//! held on the core. An atomic command first takes the exclusive lock on every core (see
//! [`Exclusive`](crate::unit::Exclusive)), then runs, then releases it.
//!
//! Locks that must wait form a queue. The release of a lock grants the locks that have become free, in the order of the
//! queue, and wakes only their tasks. So the cost of a release does not grow with the number of tasks that wait for the
//! same blocks, and no exclusive lock is overtaken by a later one for ever.

use crate::turn::Turns;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Steps of a unit that have memory of their own at a time, a piece each: enough to keep a store busy, and little of
/// the memory of a core, which the steps of all units share.
pub const HOLDERS_MAX: usize = 4;

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

    /// Whether all bytes of the other span are in this one.
    fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
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

/// The range locks of one unit on one core, the turns of its long steps there, and its epoch as this core knows it.
#[derive(Debug, Default)]
pub struct Ranges {
    /// Number of exclusive locks that are granted.
    exclusive: Cell<u32>,
    epoch: Cell<Epoch>,
    slots: RefCell<Slots>,
    /// Locks that wait for an exclusive lock, the oldest first. Empty while no exclusive lock is granted.
    queue: RefCell<VecDeque<Rc<Waiter>>>,
    /// Exclusive locks that are granted and wait for the shared locks in their spans.
    drains: RefCell<Vec<Rc<Drain>>>,
    /// Whose turn it is among the long steps.
    pub turns: Turns,
    /// The steps that have memory of their own.
    pub holders: Turns<HOLDERS_MAX>,
}

/// All granted locks. A slot that is released is used again, so the data path does not allocate.
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

/// A lock in the queue.
#[derive(Debug)]
struct Waiter {
    lock: Lock,
    granted: RefCell<Option<RangeGuard>>,
    waker: RefCell<Option<Waker>>,
}

/// The shared locks that an exclusive lock waits for. No more of them come, because the exclusive lock is granted.
#[derive(Debug)]
struct Drain {
    span: Span,
    left: Cell<usize>,
    waker: RefCell<Option<Waker>>,
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
        match self.try_lock_shared(span) {
            Some(guard) => guard,
            None => self.wait_in_queue(Lock { span, is_exclusive: false }).await,
        }
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
        self.exclusive.get() > 0
            && self.slots.borrow().locks.iter().any(|lock| lock.is_exclusive && lock.span.overlaps(span))
    }

    /// Takes a shared lock if no exclusive lock overlaps.
    #[inline]
    fn try_lock_shared(self: &Rc<Self>, span: Span) -> Option<RangeGuard> {
        (!self.is_locked_exclusively(span)).then(|| self.add(Lock { span, is_exclusive: false }))
    }

    /// Takes an exclusive lock: later I/O on the range waits from now on. Returns when all earlier I/O has released its
    /// locks.
    pub async fn lock_exclusive(self: &Rc<Self>, span: Span) -> RangeGuard {
        let lock = Lock { span, is_exclusive: true };
        let has_older = || self.queue.borrow().iter().any(|older| older.excludes(span));
        let guard = match self.is_locked_exclusively(span) || has_older() {
            true => self.wait_in_queue(lock).await,
            false => self.add(lock),
        };
        self.drain(span).await;
        guard
    }

    async fn wait_in_queue(self: &Rc<Self>, lock: Lock) -> RangeGuard {
        let waiter = Rc::new(Waiter { lock, granted: RefCell::default(), waker: RefCell::default() });
        self.queue.borrow_mut().push_back(waiter.clone());
        let place = QueuePlace { ranges: self, waiter };
        poll_fn(|cx| place.waiter.poll(cx)).await
    }

    /// Waits until the shared locks of now that overlap the span are released.
    async fn drain(&self, span: Span) {
        let is_shared = |lock: &&Lock| !lock.is_exclusive && lock.span.overlaps(span);
        let left = self.slots.borrow().locks.iter().filter(is_shared).count();
        if left == 0 {
            return;
        }
        let drain = Rc::new(Drain { span, left: Cell::new(left), waker: RefCell::default() });
        self.drains.borrow_mut().push(drain.clone());
        let place = DrainPlace { ranges: self, drain };
        poll_fn(|cx| place.drain.poll(cx)).await;
    }

    #[inline]
    fn add(self: &Rc<Self>, lock: Lock) -> RangeGuard {
        if lock.is_exclusive {
            self.exclusive.set(self.exclusive.get() + 1);
        }
        let mut slots = self.slots.borrow_mut();
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

    /// Grants the locks of the queue that no lock stops any more, after an exclusive lock has left this span.
    #[cold]
    fn grant(self: &Rc<Self>, freed: Span) {
        let (mut older, mut woken) = (Vec::<Span>::new(), Vec::new());
        let mut queue = self.queue.borrow_mut();
        let mut at = 0;
        while let Some(waiter) = queue.get(at) {
            let Lock { span, is_exclusive } = waiter.lock;
            let is_overtaking = || is_exclusive && older.iter().any(|other| other.overlaps(span));
            if !span.overlaps(freed) || self.is_locked_exclusively(span) || is_overtaking() {
                older.extend(is_exclusive.then_some(span));
                at += 1;
                continue;
            }
            let guard = self.add(waiter.lock);
            *waiter.granted.borrow_mut() = Some(guard);
            woken.extend(waiter.waker.take());
            queue.remove(at);
            if is_exclusive && span.covers(freed) {
                break;
            }
        }
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
    }

    /// A shared lock has left this span.
    #[cold]
    fn count_down(&self, freed: Span) {
        let mut woken = Vec::new();
        for drain in self.drains.borrow().iter().filter(|drain| drain.span.overlaps(freed)) {
            drain.left.set(drain.left.get() - 1);
            if drain.left.get() == 0 {
                woken.extend(drain.waker.take());
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Waiter {
    /// Whether it is an exclusive lock that overlaps the span.
    fn excludes(&self, span: Span) -> bool {
        self.lock.is_exclusive && self.lock.span.overlaps(span)
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<RangeGuard> {
        match self.granted.take() {
            Some(guard) => Poll::Ready(guard),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drain {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if self.left.get() == 0 {
            return Poll::Ready(());
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The place of a task in the queue; dropping it gives the place up.
struct QueuePlace<'a> {
    ranges: &'a Rc<Ranges>,
    waiter: Rc<Waiter>,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut queue = self.ranges.queue.borrow_mut();
        let Some(at) = queue.iter().position(|waiter| Rc::ptr_eq(waiter, &self.waiter)) else { return };
        queue.remove(at);
        drop(queue);
        if self.waiter.lock.is_exclusive {
            self.ranges.grant(self.waiter.lock.span);
        }
    }
}

/// The wait of an exclusive lock for shared ones; dropping it ends the wait.
struct DrainPlace<'a> {
    ranges: &'a Ranges,
    drain: Rc<Drain>,
}

impl Drop for DrainPlace<'_> {
    fn drop(&mut self) {
        self.ranges.drains.borrow_mut().retain(|drain| !Rc::ptr_eq(drain, &self.drain));
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
        let exclusive = self.ranges.exclusive.get();
        if lock.is_exclusive {
            self.ranges.exclusive.set(exclusive - 1);
            self.ranges.grant(lock.span);
        } else if exclusive > 0 {
            self.ranges.count_down(lock.span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

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
    fn an_abandoned_exclusive_lock_stops_no_other_lock() {
        let ranges = Rc::new(Ranges::default());
        let earlier = poll(&mut shared(&ranges, 0, 10)).expect("free");
        let mut locking = exclusive(&ranges, 0, 10);
        assert!(poll(&mut locking).is_none());
        drop(locking);
        drop(earlier);
        assert!(poll(&mut shared(&ranges, 0, 10)).is_some());
    }

    /// Counts how often tasks are woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_release_wakes_only_the_tasks_whose_locks_it_grants() {
        const TASKS: usize = 1000;
        let (ranges, wakes) = (Rc::new(Ranges::default()), Arc::new(Wakes::default()));
        let waker = Waker::from(wakes.clone());
        let mut held = poll(&mut exclusive(&ranges, 0, 512));
        let mut waiting: Vec<_> = (0..TASKS).map(|_| exclusive(&ranges, 0, 512)).collect();
        for task in &mut waiting {
            assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        for task in &mut waiting {
            drop(held.take().expect("the lock of the task before"));
            held = poll(task);
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), TASKS, "each task is woken once, in the order of the queue");
    }

    #[test]
    fn an_exclusive_lock_waits_for_many_shared_ones_and_is_woken_once() {
        let (ranges, wakes) = (Rc::new(Ranges::default()), Arc::new(Wakes::default()));
        let mut earlier: Vec<_> = (0..1000).map(|_| poll(&mut shared(&ranges, 0, 512))).collect();
        let mut locking = exclusive(&ranges, 0, 512);
        let waker = Waker::from(wakes.clone());
        assert!(locking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let apart = poll(&mut shared(&ranges, 512, 513)).expect("does not overlap");
        drop(apart);
        while earlier.pop().is_some() {}
        assert!(poll(&mut locking).is_some());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_wide_exclusive_lock_is_not_overtaken_by_later_narrow_ones() {
        let ranges = Rc::new(Ranges::default());
        let narrow = poll(&mut exclusive(&ranges, 0, 1)).expect("free");
        let mut wide = exclusive(&ranges, 0, 100);
        assert!(poll(&mut wide).is_none());
        let mut later = exclusive(&ranges, 50, 51);
        assert!(poll(&mut later).is_none(), "an older lock wants these bytes");
        let io = poll(&mut shared(&ranges, 50, 51)).expect("no exclusive lock is granted there");
        drop(io);
        drop(narrow);
        let granted = poll(&mut wide).expect("the oldest");
        assert!(poll(&mut later).is_none());
        drop(granted);
        assert!(poll(&mut later).is_some());
    }

    #[test]
    fn a_place_in_the_queue_that_is_given_up_delays_no_other_lock() {
        let ranges = Rc::new(Ranges::default());
        let held = poll(&mut exclusive(&ranges, 0, 10)).expect("free");
        let mut wide = exclusive(&ranges, 0, 100);
        let mut later = exclusive(&ranges, 50, 60);
        assert!(poll(&mut wide).is_none() && poll(&mut later).is_none());
        drop(wide);
        let granted = poll(&mut later).expect("only the dropped one was older");
        let mut third = exclusive(&ranges, 0, 10);
        assert!(poll(&mut third).is_none());
        drop(held);
        // Granted, and never taken.
        drop(third);
        assert!(poll(&mut exclusive(&ranges, 0, 10)).is_some());
        drop(granted);
        assert_eq!((ranges.exclusive.get(), ranges.queue.borrow().len(), ranges.drains.borrow().len()), (0, 0, 0));
    }
}
