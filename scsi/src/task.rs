//! Task sets: one per I_T nexus (TST = 001b), and what ends a task before its time.
//!
//! A front end enters a command as it arrives and keeps the [`Task`] until the reply has been handed over.

use crate::lun::Lun;
use lunar_core::codes;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

codes! {
    /// Task management functions (SAM-6 7.1), numbered as iSCSI does (RFC 7143 11.5.1, RFC 7144 4.2).
    pub struct TaskFunction(u8) {
        ABORT_TASK = 1, ABORT_TASK_SET = 2, CLEAR_ACA = 3, CLEAR_TASK_SET = 4, LOGICAL_UNIT_RESET = 5,
        TARGET_WARM_RESET = 6, TARGET_COLD_RESET = 7, TASK_REASSIGN = 8, QUERY_TASK = 9, QUERY_TASK_SET = 10,
        I_T_NEXUS_RESET = 11, QUERY_ASYNC_EVENT = 12,
    }
}

/// How a task management function ended (SAM-6 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskResponse {
    /// FUNCTION COMPLETE: it was done, or what is asked for does not exist.
    Complete,
    /// FUNCTION SUCCEEDED: what is asked for exists; for QUERY ASYNCHRONOUS EVENT the additional response information.
    Succeeded([u8; 3]),
    /// The task named does not exist (any more). SAM-6 calls that complete; iSCSI has a response of its own.
    NoTask,
    /// INCORRECT LOGICAL UNIT NUMBER.
    IncorrectLun,
    /// FUNCTION REJECTED: not supported.
    Rejected,
}

/// The tasks of one I_T nexus.
#[derive(Clone, Default)]
pub struct TaskSet(Rc<Set>);

#[derive(Default)]
struct Set {
    /// One per place, kept when free so that entering allocates nothing.
    places: RefCell<Vec<Rc<State>>>,
    free: RefCell<Vec<usize>>,
    /// Who waits for tasks to leave.
    waiters: RefCell<Vec<Waker>>,
    /// Tasks that were entered so far.
    entered: Cell<u64>,
}

/// A moment in the life of a task set: between two tasks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(u64);

#[derive(Default)]
struct State {
    tag: Cell<u64>,
    lun: Cell<Lun>,
    /// How many were entered before it.
    after: Cell<u64>,
    present: Cell<bool>,
    aborted: Cell<bool>,
    wakers: RefCell<Vec<Waker>>,
}

impl TaskSet {
    /// Enters a task. A tag that is in use is the front end's to refuse.
    #[must_use]
    pub fn enter(&self, tag: u64, lun: Lun) -> Task {
        let place = self.0.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut places = self.0.places.borrow_mut();
            places.push(Rc::default());
            places.len() - 1
        });
        let state = self.0.places.borrow()[place].clone();
        state.tag.set(tag);
        state.lun.set(lun);
        state.after.set(self.0.entered.get());
        self.0.entered.set(self.0.entered.get() + 1);
        state.aborted.set(false);
        state.present.set(true);
        Task { state, set: self.0.clone(), place }
    }

    /// Now: later tasks are entered after it.
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

    /// Whether a task matches, by its tag and logical unit.
    pub fn any(&self, matches: impl Fn(u64, Lun) -> bool) -> bool {
        self.0.places.borrow().iter().any(|state| state.present.get() && matches(state.tag.get(), state.lun.get()))
    }

    /// Aborts the tasks that match; returns how many that were not aborted yet.
    pub fn abort(&self, matches: impl Fn(u64, Lun) -> bool) -> u64 {
        self.abort_before(Moment(u64::MAX), matches)
    }

    /// The same with those alone that were entered before this moment.
    pub fn abort_before(&self, before: Moment, matches: impl Fn(u64, Lun) -> bool) -> u64 {
        let mut count = 0;
        for state in self.0.places.borrow().iter() {
            let due = state.present.get() && !state.aborted.get() && state.after.get() < before.0;
            let hit = due && matches(state.tag.get(), state.lun.get());
            if hit {
                count += 1;
                state.aborted.set(true);
                state.wakers.take().into_iter().for_each(Waker::wake);
            }
        }
        count
    }

    /// Waits until every task at a logical unit that matches has left that was entered before this moment.
    pub async fn until_left(&self, before: Moment, matches: impl Fn(Lun) -> bool) {
        let there = |state: &State| state.present.get() && state.after.get() < before.0 && matches(state.lun.get());
        self.until_none(there).await;
    }

    /// Waits until a task that matches is aborted; for ever, if none matches.
    pub async fn until_aborted(&self, matches: impl Fn(u64, Lun) -> bool) {
        poll_fn(|cx| {
            let places = self.0.places.borrow();
            for state in places.iter().filter(|s| s.present.get() && matches(s.tag.get(), s.lun.get())) {
                if state.aborted.get() {
                    return Poll::Ready(());
                }
                remember(&state.wakers, cx);
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits until every task that is aborted by now and matches has left.
    pub async fn until_gone(&self, matches: impl Fn(u64, Lun) -> bool) {
        let there =
            |state: &State| state.present.get() && state.aborted.get() && matches(state.tag.get(), state.lun.get());
        self.until_none(there).await;
    }

    async fn until_none(&self, there: impl Fn(&State) -> bool) {
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

impl fmt::Debug for TaskSet {
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
pub struct Task {
    state: Rc<State>,
    set: Rc<Set>,
    place: usize,
}

impl Task {
    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.state.tag.get()
    }

    /// Its logical unit.
    #[must_use]
    pub fn lun(&self) -> Lun {
        self.state.lun.get()
    }

    /// Whether it was aborted: nothing is sent for it any more.
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
}

impl Drop for Task {
    fn drop(&mut self) {
        self.state.present.set(false);
        self.state.wakers.borrow_mut().clear();
        self.set.free.borrow_mut().push(self.place);
        if !self.set.waiters.borrow().is_empty() {
            self.set.waiters.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({:#x} {:?}{})", self.tag(), self.lun(), if self.aborted() { " aborted" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn places_are_used_again() {
        let set = TaskSet::default();
        drop(set.enter(1, Lun::default()));
        let task = set.enter(2, Lun::from_number(1));
        assert_eq!((task.tag(), task.lun(), task.place, set.len()), (2, Lun::from_number(1), 0, 1));
        assert!(!set.any(|tag, _| tag == 1) && set.any(|tag, _| tag == 2));
    }

    #[test]
    fn an_abort_is_told_and_waited_for() {
        let set = TaskSet::default();
        let (a, b) = (set.enter(1, Lun::default()), set.enter(2, Lun::default()));
        assert!(!is_ready(a.until_aborted()) && !is_ready(set.until_aborted(|tag, _| tag == 1)));
        assert_eq!(set.abort(|tag, _| tag == 1), 1);
        assert_eq!(set.abort(|tag, _| tag == 1), 0);
        assert!(is_ready(a.until_aborted()) && !b.aborted());
        assert!(is_ready(set.until_aborted(|tag, _| tag == 1)) && !is_ready(set.until_aborted(|tag, _| tag == 2)));
        assert!(!is_ready(set.until_gone(|_, _| true)));
        drop(a);
        assert!(is_ready(set.until_gone(|_, _| true)));
        let again = set.enter(3, Lun::default());
        assert!(!again.aborted());
    }

    #[test]
    fn those_before_a_moment_are_waited_for_and_later_ones_are_not() {
        let set = TaskSet::default();
        let (old, elsewhere) = (set.enter(1, Lun::default()), set.enter(2, Lun::from_number(1)));
        let moment = set.moment();
        let new = set.enter(3, Lun::default());
        let left = || set.until_left(moment, |lun| lun == Lun::default());
        assert!(!is_ready(left()));
        assert_eq!(set.abort_before(moment, |_, lun| lun == Lun::default()), 1);
        assert!(old.aborted() && !new.aborted() && !elsewhere.aborted());
        drop(old);
        assert!(is_ready(left()));
    }
}
