//! Memory for data that a peer was asked for and has not sent. It may never come: such memory takes half of the arena
//! at most, so that peers that send nothing leave room for the others.

use super::{Arena, SgMut};
use std::fmt;
use std::future::poll_fn;
use std::task::Poll;

/// Stands for bytes that a peer has promised by being asked for them. Whoever waits for them keeps it until they came,
/// or will not come.
pub struct Promise {
    arena: Arena,
    bytes: usize,
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promise({} bytes)", self.bytes)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let inner = &self.arena.0;
        inner.promised.set(inner.promised.get() - self.bytes);
        if !inner.waiters.borrow().is_empty() {
            inner.wake();
        }
    }
}

impl Arena {
    /// Memory for `len` bytes that a peer is asked for, and for so many more `ahead` of it; `None` when there is none,
    /// or peers owe too much already.
    #[must_use]
    pub fn take_for_peer(&self, len: usize, ahead: usize) -> Option<(SgMut, Promise)> {
        let promised = self.0.promised.get();
        // One at least: else a large one would wait for ever.
        let bytes = len + ahead;
        if promised > 0 && promised + bytes > self.size() / 2 {
            return None;
        }
        let memory = self.take_sg(bytes)?;
        self.0.promised.set(promised + bytes);
        Some((memory, Promise { arena: self.clone(), bytes }))
    }

    /// Like [`Arena::take_for_peer`], but waits until there is enough. Waiters are served in turn.
    pub async fn wait_for_peer(&self, len: usize) -> (SgMut, Promise) {
        poll_fn(|cx| match self.take_for_peer(len, 0) {
            Some(taken) => Poll::Ready(taken),
            None => {
                self.0.waiters.borrow_mut().push_back(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK_MAX;
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn peers_that_owe_leave_half_to_the_others() {
        let arena = Arena::new(2 * BLOCK_MAX);
        let quarter = BLOCK_MAX / 2;
        let (one, other) = (arena.take_for_peer(quarter, 0), arena.take_for_peer(quarter, 0));
        assert!(one.is_some() && other.is_some() && arena.take_for_peer(1, 0).is_none());
        let mut more = pin!(arena.wait_for_peer(quarter));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(more.as_mut().poll(&mut cx).is_pending());
        let others = arena.take_sg(quarter).expect("half is left");
        drop((one, others));
        let Poll::Ready(found) = more.as_mut().poll(&mut cx) else { panic!("one has come") };
        drop((other, found));
        let ahead = arena.take_for_peer(1, quarter * 2);
        assert!(ahead.is_some() && arena.take_for_peer(1, 0).is_none(), "what is asked for ahead may not come either");
        drop(ahead);
        assert!(arena.take_for_peer(BLOCK_MAX * 3 / 2, 0).is_some(), "alone one may be large");
        assert_eq!((arena.used(), arena.0.promised.get()), (0, 0));
    }
}
