//! Mailboxes between cores: any thread sends, one core receives.
//!
//! The receiver's waker and the queue share one lock, so a burst of sends wakes once; the bell is rung only if the
//! receiving core sleeps or is about to (see `executor::Remote`).

use crate::Reactor;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

struct Shared<T>(Mutex<Queue<T>>);

struct Queue<T> {
    items: VecDeque<T>,
    senders: usize,
    receiving: bool,
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mailbox whose receiver stays on this core.
#[must_use]
pub fn channel<T: Send + 'static>(reactor: &Reactor) -> (Sender<T>, Receiver<T>) {
    let _ = reactor;
    let queue = Queue { items: VecDeque::new(), senders: 1, receiving: true, waker: None };
    let shared = Arc::new(Shared(Mutex::new(queue)));
    (Sender(shared.clone()), Receiver { shared, on_this_core: PhantomData })
}

/// Sends items, from any thread.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Sends `item` and wakes the receiving core. An item for a receiver that is gone is dropped.
    pub fn send(&self, item: T) {
        let mut queue = self.0.lock();
        if !queue.receiving {
            drop(queue);
            drop(item);
            return;
        }
        queue.items.push_back(item);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the receiver is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.0.lock().receiving
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.senders -= 1;
        let waker = if queue.senders == 0 { queue.waker.take() } else { None };
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

/// Receives items, on its core.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    on_this_core: PhantomData<Rc<()>>,
}

impl<T> Receiver<T> {
    /// The next item; `None` when there is none and all senders are gone.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| {
            let mut queue = self.shared.lock();
            match queue.items.pop_front() {
                Some(item) => Poll::Ready(Some(item)),
                None if queue.senders == 0 => Poll::Ready(None),
                None => {
                    queue.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The next item, if one has arrived.
    pub fn try_recv(&mut self) -> Option<T> {
        self.shared.lock().items.pop_front()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.receiving = false;
        queue.waker = None;
        let items = std::mem::take(&mut queue.items);
        // An item may hold a sender of this same mailbox.
        drop(queue);
        drop(items);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
