//! System calls: descriptors as numbers, results as errors, repetition after signals.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The number of a descriptor, for the kernel.
pub(crate) fn raw(fd: &OwnedFd) -> i32 {
    fd.as_raw_fd()
}

/// The count that a system call returned, or the error that it left.
pub(crate) fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Repeats a call until no signal interrupts it; the error is the errno.
pub(crate) fn call<T>(mut call: impl FnMut() -> io::Result<T>) -> Result<T, i32> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(error) => match error.raw_os_error().unwrap_or(libc::EIO) {
                libc::EINTR => {}
                errno => return Err(errno),
            },
        }
    }
}
