//! Metadata of a unit: its state across restarts besides its data, such as persistent reservations. Records are small,
//! have short names, and change seldom.

use crate::io::Fault;
use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest record in bytes: thousands of registrants with the longest name that an initiator port can have (a quarter
/// of a KiB), and still written in one go.
pub const METADATA_BYTES_MAX: usize = 2 << 20;

/// The result of [`MetadataStore::save`].
pub type Saving = Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

/// Stores the metadata records of one unit, by name. One store serves all cores.
pub trait MetadataStore: Send + Sync {
    /// The record that was saved last under this name; `None` if there is none. Answers from memory.
    fn load(&self, name: &str) -> Option<Vec<u8>>;

    /// Replaces the record of this name by `bytes`, at most [`METADATA_BYTES_MAX`].
    ///
    /// The record is on the medium when the future returns `Ok`. After a [`Fault`] the old record is there, or, if the
    /// medium failed half-way, the new one. Records are saved in the order of the calls. Dropping the future does not
    /// take the call back.
    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving;

    /// Whether records survive the end of the process. A client must not be promised durability (APTPL, PTPL) where
    /// they do not.
    fn is_durable(&self) -> bool;
}

impl fmt::Debug for dyn MetadataStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetadataStore")
    }
}

/// Keeps metadata in memory, for units that end with the process.
#[derive(Debug, Default)]
pub struct VolatileMemory(Mutex<HashMap<&'static str, Vec<u8>>>);

impl VolatileMemory {
    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetadataStore for VolatileMemory {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.lock().get(name).cloned()
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        let fits = bytes.len() <= METADATA_BYTES_MAX;
        if fits {
            self.lock().insert(name, bytes);
        }
        Box::pin(ready(if fits { Ok(()) } else { Err(Fault::NoSpace) }))
    }

    fn is_durable(&self) -> bool {
        false
    }
}

/// Keeps metadata in memory and claims that it is durable: for tests of durable reservations.
#[derive(Debug, Default)]
pub struct DurableMemory(VolatileMemory);

impl MetadataStore for DurableMemory {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        self.0.save(name, bytes)
    }

    fn is_durable(&self) -> bool {
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
            Poll::Pending => panic!("memory answers at once"),
        }
    }

    #[test]
    fn load_returns_the_last_record_of_each_name() {
        let store = VolatileMemory::default();
        assert_eq!(store.load("a"), None);
        for (name, bytes) in [("a", vec![1]), ("b", vec![2]), ("a", vec![3, 4])] {
            assert_eq!(now(store.save(name, bytes)), Ok(()));
        }
        assert_eq!((store.load("a"), store.load("b")), (Some(vec![3, 4]), Some(vec![2])));
    }

    #[test]
    fn a_record_that_is_too_large_is_refused_and_replaces_nothing() {
        let store = VolatileMemory::default();
        assert_eq!(now(store.save("a", vec![1])), Ok(()));
        assert_eq!(now(store.save("a", vec![0; METADATA_BYTES_MAX + 1])), Err(Fault::NoSpace));
        assert_eq!(store.load("a"), Some(vec![1]));
    }
}
