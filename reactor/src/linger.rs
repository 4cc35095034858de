//! A retry for resources of an io_uring, which the kernel frees a moment after their process has ended.

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
