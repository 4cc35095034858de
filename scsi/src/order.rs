//! In which order the commands of a task set run (SAM-5 8.7): SIMPLE ones freely, an ORDERED one alone among
//! those before and after it, HEAD OF QUEUE at once; what comes after one of the last two waits for its end.

use crate::command::TaskAttribute;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Lets the commands of one nexus and logical unit run in order. One branch while all are SIMPLE.
#[derive(Debug, Default)]
pub struct Order {
    running: Cell<u32>,
    /// How many of these no other may follow yet: ORDERED and HEAD OF QUEUE.
    barriers: Cell<u32>,
    next: Cell<u64>,
    waiting: RefCell<VecDeque<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    ordered: bool,
    waker: Option<Waker>,
}

/// A command's turn, until it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    order: &'a Order,
    barrier: bool,
}

/// A place in the queue; given up when it is dropped.
struct Place<'a> {
    order: &'a Order,
    id: u64,
}

impl Order {
    /// Whether a SIMPLE command would have its turn at once.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.may_start(false) && self.nobody_waits()
    }

    /// A command's turn, if it has come already. Called in the order in which the commands arrived.
    fn try_enter(&self, attribute: TaskAttribute) -> Option<Turn<'_>> {
        let ordered = attribute == TaskAttribute::ORDERED;
        let head = attribute == TaskAttribute::HEAD_OF_QUEUE;
        let at_once = head || self.may_start(ordered) && self.nobody_waits();
        at_once.then(|| self.take(head || ordered))
    }

    /// Waits for a command's turn. Called in the order in which the commands arrived.
    pub async fn enter(&self, attribute: TaskAttribute) -> Turn<'_> {
        match self.try_enter(attribute) {
            Some(turn) => turn,
            None => {
                let ordered = attribute == TaskAttribute::ORDERED;
                self.wait(ordered).await;
                self.take(ordered)
            }
        }
    }

    fn take(&self, barrier: bool) -> Turn<'_> {
        self.running.set(self.running.get() + 1);
        self.barriers.set(self.barriers.get() + u32::from(barrier));
        Turn { order: self, barrier }
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    fn may_start(&self, ordered: bool) -> bool {
        self.barriers.get() == 0 && (!ordered || self.running.get() == 0)
    }

    async fn wait(&self, ordered: bool) {
        let id = self.next.get();
        self.next.set(id + 1);
        self.waiting.borrow_mut().push_back(Waiting { id, ordered, waker: None });
        let _place = Place { order: self, id };
        poll_fn(|cx| {
            let mut waiting = self.waiting.borrow_mut();
            let is_first = waiting.front().is_some_and(|first| first.id == id);
            if is_first && self.may_start(ordered) {
                return Poll::Ready(());
            }
            if let Some(mine) = waiting.iter_mut().find(|one| one.id == id) {
                mine.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Wakes the first in the queue if it may start; it wakes the next when it has.
    fn pass_on(&self) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(first) = waiting.front_mut()
            && self.may_start(first.ordered)
            && let Some(waker) = first.waker.take()
        {
            waker.wake();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.order.waiting.borrow_mut();
        waiting.retain(|one| one.id != self.id);
        // A SIMPLE one behind may start as well; an ORDERED one that starts now closes the gate before it is polled.
        if let Some(waker) = waiting.front_mut().and_then(|first| first.waker.take()) {
            waker.wake();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.order.running.set(self.order.running.get() - 1);
        self.order.barriers.set(self.order.barriers.get() - u32::from(self.barrier));
        if !self.order.nobody_waits() {
            self.order.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Context;

    type Entering<'a> = Pin<Box<dyn Future<Output = Turn<'a>> + 'a>>;

    fn poll<'a>(future: &mut Entering<'a>) -> Option<Turn<'a>> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn simple_ones_run_together() {
        let order = Order::default();
        let _a = poll(&mut (Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>)).expect("free");
        let _b = poll(&mut (Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>)).expect("free");
    }

    #[test]
    fn an_ordered_one_parts_before_from_after() {
        let order = Order::default();
        let mut futures: Vec<Entering<'_>> =
            [TaskAttribute::SIMPLE, TaskAttribute::ORDERED, TaskAttribute::SIMPLE, TaskAttribute::SIMPLE]
                .into_iter()
                .map(|attribute| Box::pin(order.enter(attribute)) as Entering<'_>)
                .collect();
        let before = poll(&mut futures[0]).expect("free");
        assert!(futures[1..].iter_mut().all(|future| poll(future).is_none()));
        let head = poll(&mut (Box::pin(order.enter(TaskAttribute::HEAD_OF_QUEUE)) as Entering<'_>)).expect("at once");
        drop(head);
        drop(before);
        assert!(poll(&mut futures[2]).is_none());
        let ordered = poll(&mut futures[1]).expect("nothing before it");
        assert!(futures[2..].iter_mut().all(|future| poll(future).is_none()));
        drop(ordered);
        let _third = poll(&mut futures[2]).expect("after");
        let _fourth = poll(&mut futures[3]).expect("after");
    }

    #[test]
    fn what_comes_after_a_head_of_queue_waits_for_it() {
        for attribute in [TaskAttribute::SIMPLE, TaskAttribute::ORDERED] {
            let order = Order::default();
            let before = order.try_enter(TaskAttribute::SIMPLE).expect("free");
            let heads = [0; 2].map(|_| order.try_enter(TaskAttribute::HEAD_OF_QUEUE).expect("at once"));
            let mut after = Box::pin(order.enter(attribute)) as Entering<'_>;
            assert!(poll(&mut after).is_none());
            drop(before);
            let [first, second] = heads;
            drop(first);
            assert!(poll(&mut after).is_none(), "{attribute:?}: one head still runs");
            drop(second);
            assert!(poll(&mut after).is_some());
        }
    }

    #[test]
    fn one_that_is_given_up_blocks_nobody() {
        let order = Order::default();
        let before = poll(&mut (Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>)).expect("free");
        let mut ordered = Box::pin(order.enter(TaskAttribute::ORDERED)) as Entering<'_>;
        let mut after = Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>;
        assert!(poll(&mut ordered).is_none() && poll(&mut after).is_none());
        drop(ordered);
        assert!(poll(&mut after).is_some());
        drop((after, before));
    }
}
