//! The size of the disk, which follows that of the volume only while the kernel has the disk: some kernels fail when
//! the size of a device is set that has not started or has stopped.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Whether the disk follows the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Following {
    No,
    Yes,
    /// It ends when a change that is in progress has ended.
    Ending,
}

/// The size of a disk.
#[derive(Debug)]
pub struct Size {
    /// Sectors of the volume.
    wanted: Cell<u64>,
    /// Sectors of the disk, as it was last told to the kernel.
    in_force: Cell<u64>,
    following: Cell<Following>,
    waiting: RefCell<Option<Waker>>,
}

impl Size {
    /// A disk of so many sectors, and those of its volume.
    #[must_use]
    pub fn new(in_force: u64, wanted: u64) -> Self {
        Self {
            wanted: Cell::new(wanted),
            in_force: Cell::new(in_force),
            following: Cell::new(Following::No),
            waiting: RefCell::default(),
        }
    }

    /// Sectors of the volume.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        self.wanted.get()
    }

    /// The volume has so many sectors.
    pub fn want(&self, sectors: u64) {
        self.wanted.set(sectors);
        self.wake();
    }

    /// Changes the disk whenever the volume has another size, one change after the other, until [`Size::end`].
    pub async fn follow(&self, change: impl AsyncFn(u64)) {
        while self.following.get() == Following::Yes {
            let wanted = self.wanted.get();
            if self.in_force.replace(wanted) == wanted {
                self.news().await;
            } else {
                change(wanted).await;
            }
        }
        self.following.set(Following::No);
    }

    /// [`Size::follow`] is about to be called.
    pub fn begin(&self) {
        self.following.set(Following::Yes);
    }

    /// No further change begins.
    pub fn end(&self) {
        if self.following.get() == Following::Yes {
            self.following.set(Following::Ending);
            self.wake();
        }
    }

    /// Whether changes begin or are in progress.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.following.get() != Following::No
    }

    async fn news(&self) {
        poll_fn(|cx| {
            if self.following.get() != Following::Yes || self.wanted != self.in_force {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn wake(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn sizes_change_one_after_the_other_and_only_while_the_kernel_has_the_disk() {
        let (size, mut cx) = (Size::new(8, 8), Context::from_waker(Waker::noop()));
        let (told, ended) = (RefCell::new(Vec::new()), Cell::new(0));
        let change = async |sectors| {
            told.borrow_mut().push(sectors);
            let number = told.borrow().len();
            poll_fn(|_| if ended.get() < number { Poll::Pending } else { Poll::Ready(()) }).await;
        };
        size.want(16);
        assert!(!size.is_followed() && told.borrow().is_empty(), "the disk has not started");
        size.begin();
        let mut following = pin!(size.follow(change));
        assert!(following.as_mut().poll(&mut cx).is_pending());
        size.want(32);
        size.want(24);
        assert!(following.as_mut().poll(&mut cx).is_pending());
        assert_eq!(*told.borrow(), [16], "the kernel has not answered yet");
        ended.set(1);
        assert!(following.as_mut().poll(&mut cx).is_pending());
        assert_eq!(*told.borrow(), [16, 24], "the newest size");
        size.end();
        size.want(48);
        assert!(following.as_mut().poll(&mut cx).is_pending() && size.is_followed());
        ended.set(2);
        assert!(following.as_mut().poll(&mut cx).is_ready() && !size.is_followed());
        assert_eq!(*told.borrow(), [16, 24], "the disk stops");
    }
}
