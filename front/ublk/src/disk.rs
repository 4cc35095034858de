//! The state of a disk that all its cores share.

use crate::error::QueueBroken;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A disk. It changes when tags begin and end, and never for a request.
#[derive(Debug, Default)]
pub struct Disk {
    /// Tags that have not ended.
    tags: AtomicUsize,
    /// Why a queue is not served any more.
    trouble: OnceLock<QueueBroken>,
    is_gone: AtomicBool,
}

impl Disk {
    /// Tags that have not ended: each has a command at the kernel, or a request.
    #[must_use]
    pub fn tags(&self) -> usize {
        self.tags.load(Ordering::Acquire)
    }

    /// So many tags begin.
    pub fn begin(&self, tags: usize) {
        self.tags.fetch_add(tags, Ordering::AcqRel);
    }

    /// One of them ends.
    pub fn end(&self) {
        self.tags.fetch_sub(1, Ordering::AcqRel);
    }

    /// Why a queue is not served any more.
    #[must_use]
    pub fn trouble(&self) -> Option<&QueueBroken> {
        self.trouble.get()
    }

    /// A queue is not served any more. Returns whether this is the first one.
    pub fn break_off(&self, why: QueueBroken) -> bool {
        self.trouble.set(why).is_ok()
    }

    /// Whether its device was removed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Its device was removed.
    pub fn go(&self) {
        self.is_gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::io::Fault;

    #[test]
    fn the_first_trouble_is_told() {
        let disk = Disk::default();
        disk.begin(2);
        disk.end();
        assert_eq!((disk.tags(), disk.trouble()), (1, None));
        let broken = |queue| QueueBroken { name: "a".into(), queue, why: Fault::Gone };
        assert!(disk.break_off(broken(1)) && !disk.break_off(broken(2)));
        assert_eq!(disk.trouble(), Some(&broken(1)));
        assert!(!disk.is_gone());
        disk.go();
        assert!(disk.is_gone());
    }
}
