//! The system call of a ring, by the number under which this thread has registered the ring: the kernel then need not
//! look the file up.

use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

// Of linux/io_uring.h.
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// The way to call the kernel for one ring, from the thread that made this value.
pub(super) struct Entrance {
    ring: i32,
    index: Option<u32>,
    number: i32,
    flags: u32,
}

impl Entrance {
    pub(super) fn new(ring: &IoUring) -> Self {
        let fd = ring.as_raw_fd();
        let mut flags = ENTER_GETEVENTS;
        if ring.params().is_feature_no_iowait() {
            // A core that waits for peers is idle: it does not wait for a disk, which "iowait" would count.
            flags |= ENTER_NO_IOWAIT;
        }
        let mut update = Update { offset: u32::MAX, reserved: 0, data: fd as u64 };
        // SAFETY: the call reads and writes one update.
        let count = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, &raw mut update, 1) };
        if count == 1 {
            Self {
                ring: fd,
                index: Some(update.offset),
                number: update.offset as i32,
                flags: flags | ENTER_REGISTERED_RING,
            }
        } else {
            // More rings on this thread than the kernel has numbers for.
            Self { ring: fd, index: None, number: fd, flags }
        }
    }

    /// Submits `queued` entries, runs the work that the kernel deferred, and waits for `want` completions, as long as
    /// `timeout` says.
    pub(super) fn enter(&self, queued: u32, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let time = timeout.map(Timespec::from);
        let args = time.as_ref().map(|time| SubmitArgs::new().timespec(time));
        let (flags, arg, size) = match &args {
            Some(args) => (self.flags | ENTER_EXT_ARG, std::ptr::from_ref(args), size_of::<SubmitArgs<'_, '_>>()),
            None => (self.flags, std::ptr::null(), 0),
        };
        // SAFETY: the argument is what the flags say, and lives until the call is over. The memory of the queued
        // submissions is alive: see `push`.
        let result = unsafe { libc::syscall(libc::SYS_io_uring_enter, self.number, queued, want, flags, arg, size) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Entrance {
    /// A registration keeps the ring alive as long as the thread.
    fn drop(&mut self) {
        if let Some(offset) = self.index {
            let update = Update { offset, reserved: 0, data: 0 };
            // SAFETY: the call reads one update. The ring is still open: it is dropped after this.
            unsafe { libc::syscall(libc::SYS_io_uring_register, self.ring, UNREGISTER_RING_FDS, &raw const update, 1) };
        }
    }
}
