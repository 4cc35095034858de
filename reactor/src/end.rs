//! The end of an object that tasks of a core work for: a connection, a device.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

/// An event that occurs once and ends all other waits of its tasks.
#[derive(Debug, Default)]
pub struct End {
    has_come: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

impl End {
    /// Whether it has occurred.
    #[inline]
    #[must_use]
    pub fn has_come(&self) -> bool {
        self.has_come.get()
    }

    /// Signals the end.
    pub fn come(&self) {
        self.has_come.set(true);
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// The outcome of `future`, unless the end comes first.
    pub async fn unless<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.has_come.get() {
                return Poll::Ready(None);
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            drop(waiters);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::task::Context;

    #[test]
    fn an_end_wakes_its_waiters_and_no_work_begins_afterwards() {
        let (end, mut cx) = (End::default(), Context::from_waker(Waker::noop()));
        assert_eq!(pin!(end.unless(ready(7))).poll(&mut cx), Poll::Ready(Some(7)));
        let mut waiting = pin!(end.unless(pending::<()>()));
        assert!(waiting.as_mut().poll(&mut cx).is_pending() && waiting.as_mut().poll(&mut cx).is_pending());
        assert_eq!(end.waiters.borrow().len(), 1, "each waits once");
        end.come();
        assert!(end.has_come());
        assert_eq!(waiting.poll(&mut cx), Poll::Ready(None));
        assert_eq!(pin!(end.unless(ready(7))).poll(&mut cx), Poll::Ready(None));
    }
}
