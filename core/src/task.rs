//! Task sets: the commands of a nexus or a queue that are in progress, and how they are aborted.
//!
//! A front end enters a command when it arrives and keeps the [`Task`] until the reply has been handed over.

use crate::io::Fault;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The tasks of one nexus or one queue, each with the key that its command set uses.
#[derive(Clone)]
pub struct TaskSet<K>(Rc<Set<K>>);

struct Set<K> {
    /// One entry per place; a free entry is reused, so that entering allocates nothing.
    places: RefCell<Vec<Rc<State<K>>>>,
    free: RefCell<Vec<usize>>,
    /// The wakers of futures that wait for tasks to leave.
    waiters: RefCell<Vec<Waker>>,
    /// The number of tasks that were entered so far.
    entered: Cell<u64>,
}

/// A point in the life of a task set, between two tasks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(u64);

struct State<K> {
    /// Of the task that has this place.
    key: Cell<Option<K>>,
    /// The number of tasks that were entered before it.
    after: Cell<u64>,
    aborted: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

impl<K: Copy> State<K> {
    fn is_aborted(&self, matches: impl Fn(K) -> bool) -> bool {
        self.aborted.get() && self.key.get().is_some_and(matches)
    }
}

impl<K> Default for TaskSet<K> {
    fn default() -> Self {
        Self(Rc::new(Set {
            places: RefCell::default(),
            free: RefCell::default(),
            waiters: RefCell::default(),
            entered: Cell::default(),
        }))
    }
}

impl<K: Copy> TaskSet<K> {
    /// Enters a task. The front end refuses a key that is in use.
    #[must_use]
    pub fn enter(&self, key: K) -> Task<K> {
        let place = self.0.free.borrow_mut().pop().unwrap_or_else(|| {
            let (key, after) = (Cell::new(None), Cell::default());
            let state = State { key, after, aborted: Cell::new(false), wakers: RefCell::default() };
            let mut places = self.0.places.borrow_mut();
            places.push(Rc::new(state));
            places.len() - 1
        });
        let state = self.0.places.borrow()[place].clone();
        state.key.set(Some(key));
        state.after.set(self.0.entered.get());
        self.0.entered.set(self.0.entered.get() + 1);
        state.aborted.set(false);
        Task { key, state, set: self.0.clone(), place }
    }

    /// The current moment: later tasks are entered after it.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment(self.0.entered.get())
    }

    /// Tasks in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.places.borrow().len() - self.0.free.borrow().len()
    }

    /// Whether there is no task.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the key of a task matches.
    pub fn any(&self, matches: impl Fn(K) -> bool) -> bool {
        self.0.places.borrow().iter().any(|state| state.key.get().is_some_and(&matches))
    }

    /// Aborts the tasks whose keys match; returns how many of them had not been aborted.
    pub fn abort(&self, matches: impl Fn(K) -> bool) -> u64 {
        self.abort_before(Moment(u64::MAX), matches)
    }

    /// The same, only for tasks that were entered before this moment.
    pub fn abort_before(&self, before: Moment, matches: impl Fn(K) -> bool) -> u64 {
        let mut count = 0;
        for state in self.0.places.borrow().iter().filter(|state| state.after.get() < before.0) {
            if !state.aborted.get() && state.key.get().is_some_and(&matches) {
                count += 1;
                state.aborted.set(true);
                state.wakers.take().into_iter().for_each(Waker::wake);
            }
        }
        count
    }

    /// Waits until a task whose key matches is aborted; forever, if none matches.
    pub async fn until_aborted(&self, matches: impl Fn(K) -> bool) {
        poll_fn(|cx| {
            let places = self.0.places.borrow();
            for state in places.iter().filter(|state| state.key.get().is_some_and(&matches)) {
                if state.aborted.get() {
                    return Poll::Ready(());
                }
                remember(&state.wakers, cx);
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits until every aborted task whose key matches has left.
    pub async fn until_gone(&self, matches: impl Fn(K) -> bool) {
        self.until_none(|state| state.is_aborted(&matches)).await;
    }

    /// Waits until every task whose key matches has left that was entered before this moment.
    pub async fn until_left(&self, before: Moment, matches: impl Fn(K) -> bool) {
        self.until_none(|state| state.after.get() < before.0 && state.key.get().is_some_and(&matches)).await;
    }

    async fn until_none(&self, there: impl Fn(&State<K>) -> bool) {
        poll_fn(|cx| {
            if self.0.places.borrow().iter().any(|state| there(state)) {
                remember(&self.0.waiters, cx);
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }
}

impl<K: Copy> fmt::Debug for TaskSet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskSet({} tasks)", self.len())
    }
}

fn remember(wakers: &RefCell<Vec<Waker>>, cx: &Context<'_>) {
    let mut wakers = wakers.borrow_mut();
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

/// A task in its set, until it is dropped.
pub struct Task<K> {
    key: K,
    state: Rc<State<K>>,
    set: Rc<Set<K>>,
    place: usize,
}

impl<K> Task<K> {
    /// Whether it was aborted: its steps stop at the next opportunity.
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
            remember(&self.state.wakers, cx);
            Poll::Pending
        })
        .await;
    }

    /// The outcome of `future`, unless the task is aborted first.
    ///
    /// # Errors
    /// [`Fault::Aborted`].
    pub async fn unless_aborted<T>(&self, future: impl Future<Output = T>) -> Result<T, Fault> {
        let (mut future, mut aborted) = (pin!(future), pin!(self.until_aborted()));
        poll_fn(|cx| {
            if aborted.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Fault::Aborted));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}

impl<K> Drop for Task<K> {
    fn drop(&mut self) {
        self.state.key.set(None);
        self.state.wakers.borrow_mut().clear();
        self.set.free.borrow_mut().push(self.place);
        if !self.set.waiters.borrow().is_empty() {
            self.set.waiters.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for Task<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({:?}{})", self.key, if self.aborted() { " aborted" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn places_are_used_again() {
        let set = TaskSet::default();
        drop(set.enter((1, 0)));
        let task = set.enter((2, 1));
        assert_eq!((task.key, task.place, set.len()), ((2, 1), 0, 1));
        assert!(!set.any(|(tag, _)| tag == 1) && set.any(|(tag, _)| tag == 2));
    }

    #[test]
    fn an_abort_is_seen_and_waited_for() {
        let set = TaskSet::default();
        let (a, b) = (set.enter((1, 0)), set.enter((2, 0)));
        let (one, two) = (|(tag, _)| tag == 1, |(tag, _)| tag == 2);
        assert!(!is_ready(a.until_aborted()) && !is_ready(set.until_aborted(one)) && is_ready(set.until_gone(one)));
        assert_eq!((set.abort(one), set.abort(one)), (1, 0));
        assert!(is_ready(a.until_aborted()) && !b.aborted());
        assert!(is_ready(set.until_aborted(one)) && !is_ready(set.until_aborted(two)));
        assert!(!is_ready(set.until_gone(|_| true)));
        drop(a);
        assert!(is_ready(set.until_gone(|_| true)) && set.len() == 1);
        let again = set.enter((3, 0));
        assert!(!again.aborted());
    }

    #[test]
    fn tasks_before_a_moment_are_waited_for_and_later_ones_are_not() {
        let set = TaskSet::default();
        let (old, elsewhere) = (set.enter((1, 0)), set.enter((2, 1)));
        let moment = set.moment();
        let new = set.enter((3, 0));
        let left = || set.until_left(moment, |(_, lun)| lun == 0);
        assert!(!is_ready(left()));
        assert_eq!(set.abort_before(moment, |(_, lun)| lun == 0), 1);
        assert!(old.aborted() && !new.aborted() && !elsewhere.aborted());
        drop(old);
        assert!(is_ready(left()));
    }

    #[test]
    fn an_abort_comes_before_the_outcome() {
        let set = TaskSet::default();
        let task = set.enter(());
        let outcome = || match pin!(task.unless_aborted(async { 5 })).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("it waits for nothing"),
        };
        assert_eq!(outcome(), Ok(5));
        assert_eq!(set.abort(|()| true), 1);
        assert_eq!(outcome(), Err(Fault::Aborted));
    }
}
