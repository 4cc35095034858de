//! The commands of a queue that are under way, and what ends one before its time.
//!
//! A front end enters a command as it arrives and keeps the [`Task`] until the reply has been handed over.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The commands of one queue.
#[derive(Clone, Default)]
pub struct Tasks(Rc<Set>);

#[derive(Default)]
struct Set {
    /// One per place, kept when free so that entering allocates nothing.
    places: RefCell<Vec<Rc<State>>>,
    free: RefCell<Vec<usize>>,
    /// Who waits for aborted commands to leave.
    waiters: RefCell<Vec<Waker>>,
}

#[derive(Default)]
struct State {
    cid: Cell<u16>,
    namespace: Cell<u32>,
    present: Cell<bool>,
    aborted: Cell<bool>,
    waker: RefCell<Vec<Waker>>,
}

impl Tasks {
    /// Enters a command for a namespace. An identifier that is in use is the front end's to refuse.
    #[must_use]
    pub fn enter(&self, cid: u16, namespace: u32) -> Task {
        let place = self.0.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut places = self.0.places.borrow_mut();
            places.push(Rc::default());
            places.len() - 1
        });
        let state = self.0.places.borrow()[place].clone();
        state.cid.set(cid);
        state.namespace.set(namespace);
        state.aborted.set(false);
        state.present.set(true);
        Task { state, set: self.0.clone(), place }
    }

    /// Commands under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.places.borrow().len() - self.0.free.borrow().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Aborts the commands that match, by identifier and namespace; returns how many that were not aborted yet.
    pub fn abort(&self, matches: impl Fn(u16, u32) -> bool) -> u64 {
        let mut count = 0;
        for state in self.0.places.borrow().iter() {
            if state.present.get() && !state.aborted.get() && matches(state.cid.get(), state.namespace.get()) {
                count += 1;
                state.aborted.set(true);
                state.waker.take().into_iter().for_each(Waker::wake);
            }
        }
        count
    }

    /// Waits until every command that is aborted by now and matches has left.
    pub async fn until_gone(&self, matches: impl Fn(u16, u32) -> bool) {
        poll_fn(|cx| {
            let there = self.0.places.borrow().iter().any(|state| {
                state.present.get() && state.aborted.get() && matches(state.cid.get(), state.namespace.get())
            });
            if !there {
                return Poll::Ready(());
            }
            remember(&self.0.waiters, cx);
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({})", self.len())
    }
}

fn remember(wakers: &RefCell<Vec<Waker>>, cx: &Context<'_>) {
    let mut wakers = wakers.borrow_mut();
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

/// A command under way, until it is dropped.
pub struct Task {
    state: Rc<State>,
    set: Rc<Set>,
    place: usize,
}

impl Task {
    /// Whether it was aborted: its steps stop at the next chance.
    #[must_use]
    pub fn aborted(&self) -> bool {
        self.state.aborted.get()
    }

    /// Waits until it is aborted.
    pub async fn until_aborted(&self) {
        poll_fn(|cx| {
            if self.aborted() {
                return Poll::Ready(());
            }
            remember(&self.state.waker, cx);
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.state.present.set(false);
        self.state.waker.borrow_mut().clear();
        self.set.free.borrow_mut().push(self.place);
        if self.state.aborted.get() {
            self.set.waiters.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({}{})", self.state.cid.get(), if self.aborted() { " aborted" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[test]
    fn an_abort_is_told_and_waited_for() {
        let tasks = Tasks::default();
        let (one, other) = (tasks.enter(1, 1), tasks.enter(2, 1));
        let gone = || pin!(tasks.until_gone(|_, _| true)).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(gone());
        assert_eq!((tasks.abort(|cid, _| cid == 1), tasks.abort(|cid, _| cid == 1)), (1, 0));
        assert!(one.aborted() && !other.aborted() && !gone());
        drop(one);
        assert!(gone() && tasks.len() == 1);
        assert!(!tasks.enter(3, 1).aborted(), "a place is used again");
    }
}
