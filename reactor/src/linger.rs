//! What an io_uring held is taken for a moment longer than its process lives.

use std::time::{Duration, Instant};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Attempts, for as long as `patience`, until it is not taken any more. The kernel lets go what an io_uring held (a
/// port, a lock, a device) only a moment after its process was killed, longer where many commands were under way: a
/// service manager that starts the next one at once shall not see it fail. It blocks: for what is opened before a core
/// runs.
///
/// # Errors
/// That of the last attempt.
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
    fn what_is_taken_is_tried_again_and_nothing_else() {
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
