//! What a unit keeps across restarts besides its data: small, and changed seldom. Persistent reservations, for one.

use crate::io::Fault;
use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

/// Bytes under one name at most: room for thousands of records with the longest name that an initiator port can have
/// (a quarter of a KiB), and still written in one go.
pub const KEEP_BYTES_MAX: usize = 2 << 20;

/// The end of a [`Keep::keep`].
pub type Keeping = Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

/// What a unit keeps across restarts besides its data, under short names. One for all cores.
pub trait Keep: Send + Sync {
    /// What was last kept under this name; `None` if nothing was.
    fn load(&self, name: &str) -> Option<Vec<u8>>;

    /// Keeps `bytes`, at most [`KEEP_BYTES_MAX`], in place of what was kept under this name. They are on the medium
    /// when the future ends well; when it ends with a [`Fault`], what was there before is there still, or where the
    /// medium failed half-way, what was asked. What is asked first is kept first; dropping the future takes nothing
    /// back.
    fn keep(&self, name: &'static str, bytes: Vec<u8>) -> Keeping;

    /// Whether what is kept outlives the process. Nobody may be promised that it does where it does not.
    fn outlives(&self) -> bool;
}

impl fmt::Debug for dyn Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keep")
    }
}

/// Keeps in memory: for units that do not outlive the process either.
#[derive(Debug, Default)]
pub struct Forgetful(Mutex<HashMap<&'static str, Vec<u8>>>);

impl Keep for Forgetful {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn keep(&self, name: &'static str, bytes: Vec<u8>) -> Keeping {
        let fits = bytes.len() <= KEEP_BYTES_MAX;
        if fits {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, bytes);
        }
        Box::pin(ready(if fits { Ok(()) } else { Err(Fault::NoSpace) }))
    }

    fn outlives(&self) -> bool {
        false
    }
}

/// Keeps in memory, and says that it outlives the process: to try what is promised then.
#[derive(Debug, Default)]
pub struct Lasting(Forgetful);

impl Keep for Lasting {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.load(name)
    }

    fn keep(&self, name: &'static str, bytes: Vec<u8>) -> Keeping {
        self.0.keep(name, bytes)
    }

    fn outlives(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory waits for nothing"),
        }
    }

    #[test]
    fn the_last_is_kept_under_each_name() {
        let keep = Forgetful::default();
        assert_eq!(keep.load("a"), None);
        for (name, bytes) in [("a", vec![1]), ("b", vec![2]), ("a", vec![3, 4])] {
            assert_eq!(now(keep.keep(name, bytes)), Ok(()));
        }
        assert_eq!((keep.load("a"), keep.load("b")), (Some(vec![3, 4]), Some(vec![2])));
    }

    #[test]
    fn too_much_is_refused_and_changes_nothing() {
        let keep = Forgetful::default();
        assert_eq!(now(keep.keep("a", vec![1])), Ok(()));
        assert_eq!(now(keep.keep("a", vec![0; KEEP_BYTES_MAX + 1])), Err(Fault::NoSpace));
        assert_eq!(keep.load("a"), Some(vec![1]));
    }
}
