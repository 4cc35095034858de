//! The order of the commands of a task set (SAM-5 8.7). SIMPLE commands are executed together. An ORDERED command waits
//! for all commands before it, a HEAD OF QUEUE command for none; later commands wait until both have ended.

use crate::command::TaskAttribute;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Orders the commands of one I_T_L nexus. Costs one branch while all commands are SIMPLE.
#[derive(Debug, Default)]
pub struct Order {
    running: Cell<u32>,
    /// The number of running commands that later commands wait for: ORDERED and HEAD OF QUEUE.
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

/// The turn of a running command; dropped at its end.
#[derive(Debug)]
pub struct Turn<'a> {
    order: &'a Order,
    barrier: bool,
}

/// A position in the queue; dropped when the command starts or is given up.
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

    /// The turn of a command that need not wait; `None` for others. Must be called in the order of arrival.
    fn try_enter(&self, attribute: TaskAttribute) -> Option<Turn<'_>> {
        let ordered = attribute == TaskAttribute::ORDERED;
        let head = attribute == TaskAttribute::HEAD_OF_QUEUE;
        let at_once = head || self.may_start(ordered) && self.nobody_waits();
        at_once.then(|| self.take(head || ordered))
    }

    /// Waits for the turn of a command. Must be called in the order of arrival.
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

    /// Wakes the first command of the queue if it may start. That command wakes the next one.
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
        // A SIMPLE command may be followed by others; an ORDERED command that starts now blocks them before they are
        // polled.
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
    fn simple_commands_are_executed_together() {
        let order = Order::default();
        let _a = poll(&mut (Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>)).expect("may start");
        let _b = poll(&mut (Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>)).expect("may start");
    }

    #[test]
    fn an_ordered_command_separates_earlier_from_later_commands() {
        let order = Order::default();
        let mut futures: Vec<Entering<'_>> =
            [TaskAttribute::SIMPLE, TaskAttribute::ORDERED, TaskAttribute::SIMPLE, TaskAttribute::SIMPLE]
                .into_iter()
                .map(|attribute| Box::pin(order.enter(attribute)) as Entering<'_>)
                .collect();
        let before = poll(&mut futures[0]).expect("may start");
        assert!(futures[1..].iter_mut().all(|future| poll(future).is_none()));
        let head =
            poll(&mut (Box::pin(order.enter(TaskAttribute::HEAD_OF_QUEUE)) as Entering<'_>)).expect("does not wait");
        drop(head);
        drop(before);
        assert!(poll(&mut futures[2]).is_none());
        let ordered = poll(&mut futures[1]).expect("no earlier command");
        assert!(futures[2..].iter_mut().all(|future| poll(future).is_none()));
        drop(ordered);
        let _third = poll(&mut futures[2]).expect("may start");
        let _fourth = poll(&mut futures[3]).expect("may start");
    }

    #[test]
    fn commands_after_a_head_of_queue_command_wait_for_it() {
        for attribute in [TaskAttribute::SIMPLE, TaskAttribute::ORDERED] {
            let order = Order::default();
            let before = order.try_enter(TaskAttribute::SIMPLE).expect("may start");
            let heads = [0; 2].map(|_| order.try_enter(TaskAttribute::HEAD_OF_QUEUE).expect("does not wait"));
            let mut after = Box::pin(order.enter(attribute)) as Entering<'_>;
            assert!(poll(&mut after).is_none());
            drop(before);
            let [first, second] = heads;
            drop(first);
            assert!(poll(&mut after).is_none(), "{attribute:?}: one HEAD OF QUEUE command is still running");
            drop(second);
            assert!(poll(&mut after).is_some());
        }
    }

    #[test]
    fn a_dropped_command_blocks_no_other() {
        let order = Order::default();
        let before = poll(&mut (Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>)).expect("may start");
        let mut ordered = Box::pin(order.enter(TaskAttribute::ORDERED)) as Entering<'_>;
        let mut after = Box::pin(order.enter(TaskAttribute::SIMPLE)) as Entering<'_>;
        assert!(poll(&mut ordered).is_none() && poll(&mut after).is_none());
        drop(ordered);
        assert!(poll(&mut after).is_some());
        drop((after, before));
    }
}
