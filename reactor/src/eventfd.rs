//! The bell of both real drivers: an eventfd.

use crate::op::Bell;
use std::io;
use std::os::fd::OwnedFd;

/// An eventfd. Ringing adds one to its counter, which wakes the core that waits for it.
pub(crate) struct Eventfd(OwnedFd);

impl Eventfd {
    /// `nonblocking`: reads of a counter that is zero fail with EAGAIN.
    ///
    /// # Errors
    /// EMFILE, ENFILE or ENOMEM.
    pub(crate) fn new(nonblocking: bool) -> io::Result<Self> {
        let mut flags = rustix::event::EventfdFlags::CLOEXEC;
        flags.set(rustix::event::EventfdFlags::NONBLOCK, nonblocking);
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

impl Bell for Eventfd {
    fn ring(&self) {
        // The write fails only if the counter is full, and then the core is being woken already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}
