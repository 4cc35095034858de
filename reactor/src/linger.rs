//! The ends of processes: a wait for one, and a retry for resources of an io_uring, which the kernel frees a moment
//! after their process has ended.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats an attempt for as long as `patience` while the resource is in use. The kernel frees the resources of an
/// io_uring (a port, a lock, a device) only a moment after its process was killed, and later if many commands were in
/// progress: a service manager that restarts the process at once must not see a failure. It blocks, so it is for
/// resources that are opened before a core runs.
///
/// # Errors
/// The error of the last attempt.
pub fn until_free<T, E>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
    mut is_taken: impl FnMut(&E) -> bool,
) -> Result<T, E> {
    let end = Instant::now() + patience;
    loop {
        match attempt() {
            Err(why) if is_taken(&why) && Instant::now() < end => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

/// Waits for the end of a process for this time at most; returns whether it has ended: its handle (pidfd) can be read
/// then.
pub fn has_ended(process: &OwnedFd, patience: Duration) -> bool {
    let mut end = [PollFd::new(process, PollFlags::IN)];
    poll(&mut end, Timespec::try_from(patience).ok().as_ref()).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_taken_address_is_tried_again() {
        let mut left = 3;
        let mut attempt = || {
            left -= 1;
            if left > 0 { Err("taken") } else { Ok(left) }
        };
        assert_eq!(until_free(Duration::from_secs(60), &mut attempt, |why| *why == "taken"), Ok(0));
        left = 3;
        assert_eq!(until_free(Duration::from_secs(60), || Err::<(), _>("gone"), |why| *why == "taken"), Err("gone"));
        assert_eq!(until_free(Duration::ZERO, || Err::<(), _>("taken"), |why| *why == "taken"), Err("taken"));
        assert_eq!(left, 3);
    }
}
