//! The future answer of a core, and other waits of threads that are no cores.

use crate::host::Host;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// The future answer of a core. The waiting thread is no core, or runs all cores itself.
pub struct Answer<T> {
    receiver: Receiver<T>,
    host: Arc<dyn Host>,
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

impl<T> Answer<T> {
    /// An answer, and the sender that gives it.
    pub(crate) fn new(host: &Arc<dyn Host>) -> (Sender<T>, Self) {
        let (sender, receiver) = channel();
        (sender, Self { receiver, host: host.clone() })
    }

    /// Waits for the answer; `None` if the core has ended meanwhile.
    pub fn wait(self) -> Option<T> {
        if self.host.has_threads() {
            return self.receiver.recv().ok();
        }
        loop {
            match self.receiver.try_recv() {
                Ok(answer) => return Some(answer),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => self.host.step(),
            }
        }
    }

    /// The same, with a time limit.
    pub fn wait_for(self, time: Duration) -> Option<T> {
        if self.host.has_threads() {
            return self.receiver.recv_timeout(time).ok();
        }
        let end = self.host.now() + time;
        loop {
            match self.receiver.try_recv() {
                Ok(answer) => return Some(answer),
                Err(TryRecvError::Empty) if self.host.now() < end => self.host.step(),
                Err(_) => return None,
            }
        }
    }
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits in this thread, which is not one of a core.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}
