//! Eventfds: the bell of both real drivers, and eventfds of peers that Lunar signals.

use crate::op::Bell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

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
        let _ = rustix::io::write(&self.0, &ONE);
    }
}

/// Whether a descriptor is an eventfd.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn is_eventfd(fd: &OwnedFd) -> io::Result<bool> {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    Ok(name.as_os_str() == "anon_inode:[eventfd]")
}

/// The number that is written to an eventfd to signal it.
pub(crate) static ONE: [u8; 8] = 1_u64.to_ne_bytes();

/// Adds one to the eventfd of a peer, unless its counter is full.
pub(crate) fn signal(fd: &OwnedFd) {
    let mut ready = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::OUT)];
    let is_writable = rustix::event::poll(&mut ready, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
    if is_writable.is_ok_and(|count| count > 0) {
        // A peer that gave another descriptor than an eventfd gets no signal.
        let _ = rustix::io::write(fd, &ONE);
    }
}
