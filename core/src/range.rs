//! Ranges of a unit that are held while an atomic command (COMPARE AND WRITE) runs.
//!
//! One table per unit and core. Ordinary I/O enters with one branch while nothing is held; an atomic command
//! holds its range on every core first (see the home core in `lunar`), then runs, then lets go.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Bytes `start..end` of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
}

impl Span {
    /// Whether both have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// A time between two works on the whole of a unit: what was begun in one does nothing in the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Era(u32);

/// What runs and what is held on one core.
#[derive(Debug, Default)]
pub struct Ranges {
    held: Cell<u32>,
    era: Cell<Era>,
    places: RefCell<Places>,
    waiters: RefCell<Vec<Waker>>,
}

/// What runs and what is held, each at a place that is used again.
#[derive(Debug, Default)]
struct Places {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

/// One that is free has no bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    span: Span,
    held: bool,
}

/// I/O that runs, or a range that is held, until it is dropped.
#[derive(Debug)]
pub struct Guard {
    ranges: Rc<Ranges>,
    place: u32,
}

impl Ranges {
    /// Enters ordinary I/O: at once while nothing overlapping is held, else after it was let go.
    pub async fn enter(self: &Rc<Self>, span: Span) -> Guard {
        if self.held.get() > 0 {
            self.clear_of(span, |entry| entry.held).await;
        }
        self.add(span, false)
    }

    /// The time that it is.
    #[inline]
    #[must_use]
    pub fn era(&self) -> Era {
        self.era.get()
    }

    /// The next time begins: what goes on does not enter any more.
    pub fn end_era(&self) {
        self.era.set(Era(self.era.get().0.wrapping_add(1)));
    }

    /// Whether I/O on it would wait.
    #[inline]
    #[must_use]
    pub fn is_held(&self, span: Span) -> bool {
        self.held.get() > 0 && self.overlapped(span, |entry| entry.held)
    }

    /// Enters ordinary I/O, if nothing overlapping is held.
    fn try_enter(self: &Rc<Self>, span: Span) -> Option<Guard> {
        (!self.is_held(span)).then(|| self.add(span, false))
    }

    /// Holds a range: later I/O on it waits; returns when all earlier I/O on it is done.
    pub async fn hold(self: &Rc<Self>, span: Span) -> Guard {
        self.clear_of(span, |entry| entry.held).await;
        let guard = self.add(span, true);
        self.clear_of(span, |entry| !entry.held).await;
        guard
    }

    async fn clear_of(&self, span: Span, matters: impl Fn(&Entry) -> bool) {
        poll_fn(|cx| {
            if self.overlapped(span, &matters) {
                self.waiters.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    fn overlapped(&self, span: Span, matters: impl Fn(&Entry) -> bool) -> bool {
        self.places.borrow().entries.iter().any(|entry| matters(entry) && entry.span.overlaps(span))
    }

    #[inline]
    fn add(self: &Rc<Self>, span: Span, held: bool) -> Guard {
        if held {
            self.held.set(self.held.get() + 1);
        }
        let mut places = self.places.borrow_mut();
        let entry = Entry { span, held };
        let place = match places.free.pop() {
            Some(place) => {
                places.entries[place as usize] = entry;
                place
            }
            None => {
                places.entries.push(entry);
                // No more than there are commands under way on a core.
                (places.entries.len() - 1) as u32
            }
        };
        Guard { ranges: self.clone(), place }
    }
}

/// Enters ordinary I/O on two ranges, of one unit or of two. It waits for neither while it is inside the other: two
/// atomic commands and two that wait so could wait for each other in a circle.
pub async fn enter_both(one: (&Rc<Ranges>, Span), other: (&Rc<Ranges>, Span)) -> (Guard, Guard) {
    loop {
        let first = one.0.enter(one.1).await;
        if let Some(second) = other.0.try_enter(other.1) {
            return (first, second);
        }
        drop(first);
        let second = other.0.enter(other.1).await;
        if let Some(first) = one.0.try_enter(one.1) {
            return (first, second);
        }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let mut places = self.ranges.places.borrow_mut();
        let entry = std::mem::take(&mut places.entries[self.place as usize]);
        places.free.push(self.place);
        drop(places);
        if entry.held {
            self.ranges.held.set(self.ranges.held.get() - 1);
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

    type Waiting = Pin<Box<dyn Future<Output = Guard>>>;

    fn poll(future: &mut Waiting) -> Option<Guard> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    fn enter(ranges: &Rc<Ranges>, start: u64, end: u64) -> Waiting {
        let ranges = ranges.clone();
        Box::pin(async move { ranges.enter(Span { start, end }).await })
    }

    fn hold(ranges: &Rc<Ranges>, start: u64, end: u64) -> Waiting {
        let ranges = ranges.clone();
        Box::pin(async move { ranges.hold(Span { start, end }).await })
    }

    #[test]
    fn ordinary_io_overlaps_freely() {
        let ranges = Rc::new(Ranges::default());
        let _a = poll(&mut enter(&ranges, 0, 10)).expect("free");
        let _b = poll(&mut enter(&ranges, 5, 15)).expect("free");
    }

    #[test]
    fn a_held_range_waits_for_the_running_and_stops_the_later() {
        let ranges = Rc::new(Ranges::default());
        let running = poll(&mut enter(&ranges, 0, 10)).expect("free");
        let mut holding = hold(&ranges, 5, 15);
        assert!(poll(&mut holding).is_none());
        let mut later = enter(&ranges, 14, 20);
        assert!(poll(&mut later).is_none());
        let _beside = poll(&mut enter(&ranges, 15, 20)).expect("does not overlap");
        drop(running);
        let held = poll(&mut holding).expect("alone now");
        assert!(poll(&mut later).is_none());
        drop(held);
        assert!(poll(&mut later).is_some());
    }

    #[test]
    fn two_ranges_are_entered_together_or_not_at_all() {
        let (a, b) = (Rc::new(Ranges::default()), Rc::new(Ranges::default()));
        let span = Span { start: 0, end: 10 };
        for (near, far) in [(&a, &b), (&b, &a)] {
            let held = poll(&mut hold(far, 5, 6)).expect("free");
            let mut both = Box::pin(enter_both((near, span), (far, span)));
            let mut enter = || both.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(enter().is_pending());
            let atomic = poll(&mut hold(near, 5, 6)).expect("nobody is inside while he waits");
            drop(held);
            assert!(enter().is_pending(), "now the other is held");
            let held = poll(&mut hold(far, 5, 6)).expect("nor here");
            drop((atomic, held));
            let Poll::Ready(guards) = enter() else { panic!("both are free") };
            assert!(poll(&mut hold(near, 9, 20)).is_none() && poll(&mut hold(far, 9, 20)).is_none());
            drop(guards);
        }
    }

    #[test]
    fn a_time_ends_and_does_not_come_again() {
        let ranges = Rc::new(Ranges::default());
        let before = ranges.era();
        assert_eq!(before, ranges.era());
        ranges.end_era();
        assert_ne!(before, ranges.era());
    }

    #[test]
    fn a_hold_given_up_lets_go() {
        let ranges = Rc::new(Ranges::default());
        let running = poll(&mut enter(&ranges, 0, 10)).expect("free");
        let mut holding = hold(&ranges, 0, 10);
        assert!(poll(&mut holding).is_none());
        drop(holding);
        drop(running);
        assert!(poll(&mut enter(&ranges, 0, 10)).is_some());
    }
}
