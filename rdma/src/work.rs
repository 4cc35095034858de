//! The work of the task that drives a port.

use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

/// Whether there is work, and the task that waits for some.
#[derive(Default)]
pub(crate) struct Work {
    is_there: Cell<bool>,
    driver: Cell<Option<Waker>>,
}

impl Work {
    /// There may be work, or a timer may be earlier.
    pub(crate) fn wake(&self) {
        self.is_there.set(true);
        self.driver.take().into_iter().for_each(Waker::wake);
    }

    /// The task begins with all that there is.
    pub(crate) fn begin(&self) {
        self.is_there.set(false);
    }

    /// Waits for work, but not longer than until this time or this end.
    pub(crate) async fn until(&self, reactor: &Reactor, at: Option<Instant>, end: &End) {
        let mut sleep = pin!(async {
            match at {
                Some(at) => reactor.sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        let wait = poll_fn(|cx| {
            if self.is_there.get() {
                return Poll::Ready(());
            }
            self.driver.set(Some(cx.waker().clone()));
            sleep.as_mut().poll(cx)
        });
        end.unless(wait).await;
    }
}
