//! Initiator ports that were told of a new capacity, and have not read it since: a host that does not ask goes on with
//! the old size.

use crate::shared::SharedUnit;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The notices of a unit. Each belongs to a nexus, whose number is bounded.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    /// The initiator ports, by the number of their notice.
    ports: BTreeMap<u64, Arc<str>>,
    next: u64,
}

impl Notices {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A new capacity that an initiator port has not read; drop it when the port reads the capacity, or is gone.
#[derive(Debug)]
pub struct UnreadCapacity {
    unit: Arc<SharedUnit>,
    number: u64,
}

impl Drop for UnreadCapacity {
    fn drop(&mut self) {
        self.unit.capacity.lock().ports.remove(&self.number);
    }
}

impl SharedUnit {
    /// An initiator port was told that the capacity has changed.
    #[must_use]
    pub fn capacity_changed(self: &Arc<Self>, initiator: &Arc<str>) -> UnreadCapacity {
        let mut open = self.capacity.lock();
        let number = open.next;
        open.next += 1;
        open.ports.insert(number, initiator.clone());
        UnreadCapacity { unit: self.clone(), number }
    }

    /// The initiator ports that have not read the capacity since it changed.
    #[must_use]
    pub fn unread_capacity(&self) -> Vec<Arc<str>> {
        self.capacity.lock().ports.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_there_until_its_port_reads_the_capacity() {
        let unit = Arc::new(SharedUnit::default());
        let (first, second) = (unit.capacity_changed(&"a".into()), unit.capacity_changed(&"b".into()));
        assert_eq!(unit.unread_capacity(), ["a".into(), "b".into()]);
        drop(first);
        let again = unit.capacity_changed(&"b".into());
        drop(second);
        assert_eq!(unit.unread_capacity(), ["b".into()], "the second change is not read");
        drop(again);
        assert!(unit.unread_capacity().is_empty());
    }
}
