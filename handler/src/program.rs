//! Parts of programs that are handlers: the loop that connects again and again, and sizes as arguments.

use crate::serve::ServeError;
use std::fmt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Time between two attempts to connect: Lunar was started again, or starts later.
const RETRY: Duration = Duration::from_millis(500);
/// Time before a connection that Lunar refused is tried again: the operator has to change something.
const RETRY_REFUSED: Duration = Duration::from_secs(10);

/// Serves at this socket again whenever a connection ends. Says on standard error, as the program of this name, why
/// there is none.
pub fn keep_serving(program: &str, socket: &Path, mut serve: impl FnMut(&Path) -> Result<(), ServeError>) -> ! {
    let mut is_told = false;
    loop {
        match serve(socket) {
            Ok(()) => is_told = false,
            Err(ServeError::Io(why)) => {
                if !is_told {
                    eprintln!("{program}: waits for Lunar at {}: {why}", socket.display());
                    is_told = true;
                }
            }
            Err(why) => {
                eprintln!("{program}: {}: {why}", socket.display());
                thread::sleep(RETRY_REFUSED);
            }
        }
        thread::sleep(RETRY);
    }
}

/// A text that is no number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSize;

impl fmt::Display for NoSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number with one of K, M, G, T, as 100G")
    }
}

impl std::error::Error for NoSize {}

/// Parses a number of bytes with a unit, as `100G` or `100GiB`.
///
/// # Errors
/// If it is none, or larger than 64 bits.
pub fn size_argument(text: &str) -> Result<u64, NoSize> {
    let short = text.strip_suffix("iB").unwrap_or(text);
    let (number, shift) = match short.split_at_checked(short.len().saturating_sub(1)) {
        Some((number, "K")) => (number, 10),
        Some((number, "M")) => (number, 20),
        Some((number, "G")) => (number, 30),
        Some((number, "T")) => (number, 40),
        _ => (short, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or(NoSize)
}
