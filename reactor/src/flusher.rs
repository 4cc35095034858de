//! Threads that the kernel needs to write back its page cache: those that serve a disk of this machine.

use std::io;

/// PR_SET_IO_FLUSHER of linux/prctl.h.
const SET_IO_FLUSHER: libc::c_int = 57;
/// The arguments that the call does not have.
const UNUSED: libc::c_ulong = 0;

/// Tells the kernel that this thread, and the threads that it starts from now on, write back data for it: when memory
/// is short, they do not wait for other data to be written back, which may wait for them (PR_SET_IO_FLUSHER of
/// prctl(2), from Linux 5.6 on).
///
/// # Errors
/// Errors of the operating system: `PermissionDenied` without CAP_SYS_RESOURCE.
pub fn serve_write_back() -> io::Result<()> {
    const SET: libc::c_ulong = 1;
    // SAFETY: the call changes a flag of this thread, and has no memory.
    match unsafe { libc::prctl(SET_IO_FLUSHER, SET, UNUSED, UNUSED, UNUSED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PR_GET_IO_FLUSHER.
    const GET_IO_FLUSHER: libc::c_int = 58;

    /// Whether this thread is such a thread; `None` without the right to know.
    fn flushes() -> Option<bool> {
        // SAFETY: as above.
        match unsafe { libc::prctl(GET_IO_FLUSHER, UNUSED, UNUSED, UNUSED, UNUSED) } {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    #[test]
    fn a_thread_and_those_that_it_starts_write_back() {
        let check = || {
            let before = flushes();
            let Err(why) = serve_write_back() else {
                assert_eq!((before, flushes()), (Some(false), Some(true)));
                return assert_eq!(std::thread::spawn(flushes).join().expect("no panic"), Some(true));
            };
            assert!(before.is_none() && why.kind() == io::ErrorKind::PermissionDenied, "{why}");
            eprintln!("skipped: without CAP_SYS_RESOURCE");
        };
        // A thread of its own, because the flag stays.
        std::thread::spawn(check).join().expect("no panic");
    }
}
