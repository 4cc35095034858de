//! Turns of the long steps of one unit on one core.
//!
//! A store that answers at once never makes a step wait, so a long step would keep the core to itself. Long steps work
//! in parts, and only one of them works at a time on each unit: the delay of all other tasks is that of one part,
//! however many long commands clients send. In the same way a few steps have memory at a time: the others wait without
//! memory, which the steps of other units need.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Whose turn it is among the long steps of one unit; `MOST` of them have a turn at a time.
#[derive(Debug, Default)]
pub struct Turns<const MOST: usize = 1> {
    taken: Cell<usize>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
}

#[derive(Debug, Default)]
struct Waiter {
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// The turn of a step; dropping it ends the turn. A step waits for its store only while it has the turn: not for
/// memory, which other steps may hold that wait for their turns, and not for its peer.
#[derive(Debug)]
pub struct Turn<'a, const MOST: usize = 1>(&'a Turns<MOST>);

/// A step that waits for its turn; dropping it gives its place up.
struct Place<'a, const MOST: usize> {
    turns: &'a Turns<MOST>,
    waiter: Rc<Waiter>,
}

impl<const MOST: usize> Turns<MOST> {
    /// Whether a step would have a turn at once.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.taken.get() < MOST
    }

    /// Waits for a turn. Steps get it in the order in which they ask.
    pub async fn take(&self) -> Turn<'_, MOST> {
        if self.is_free() {
            self.taken.set(self.taken.get() + 1);
            return Turn(self);
        }
        let waiter = Rc::<Waiter>::default();
        self.queue.borrow_mut().push_back(waiter.clone());
        let place = Place { turns: self, waiter };
        poll_fn(|cx| {
            if place.waiter.is_granted.take() {
                return Poll::Ready(());
            }
            *place.waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        Turn(self)
    }

    fn end(&self) {
        let Some(next) = self.queue.borrow_mut().pop_front() else { return self.taken.set(self.taken.get() - 1) };
        next.is_granted.set(true);
        let waker = next.waker.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<const MOST: usize> Drop for Turn<'_, MOST> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<const MOST: usize> Drop for Place<'_, MOST> {
    fn drop(&mut self) {
        if self.waiter.is_granted.get() {
            return self.turns.end();
        }
        self.turns.queue.borrow_mut().retain(|waiter| !Rc::ptr_eq(waiter, &self.waiter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::Context;

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_step_has_the_turn_and_the_others_follow_in_order() {
        let turns = Turns::<1>::default();
        let first = poll(pin!(turns.take())).expect("nobody has it");
        let (mut second, mut third) = (pin!(turns.take()), pin!(turns.take()));
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        drop(first);
        assert!(poll(third.as_mut()).is_none() && !turns.is_free(), "it is the turn of the second");
        drop(poll(second).expect("its turn"));
        drop(poll(third).expect("its turn"));
        assert!(poll(pin!(turns.take())).is_some());
    }

    #[test]
    fn as_many_steps_have_a_turn_as_there_are_turns() {
        let turns = Turns::<2>::default();
        let (first, second) = (poll(pin!(turns.take())), poll(pin!(turns.take())));
        let (mut third, mut fourth) = (pin!(turns.take()), pin!(turns.take()));
        assert!(
            first.is_some() && second.is_some() && poll(third.as_mut()).is_none() && poll(fourth.as_mut()).is_none()
        );
        drop(second);
        let third = poll(third);
        assert!(third.is_some() && poll(fourth.as_mut()).is_none());
        drop((first, third));
        assert!(poll(fourth).is_some() && poll(pin!(turns.take())).is_some());
    }

    #[test]
    fn a_step_that_gives_up_passes_its_turn_on() {
        let turns = Turns::<1>::default();
        let first = poll(pin!(turns.take())).expect("nobody has it");
        let (mut second, mut third) = (Box::pin(turns.take()), Box::pin(turns.take()));
        let mut fourth = pin!(turns.take());
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none() && poll(fourth.as_mut()).is_none());
        drop(second);
        drop(first);
        // It has the turn, and does not know it yet.
        drop(third);
        assert!(poll(fourth).is_some());
    }
}
