//! The state of a disk that all its cores share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A disk. It changes when tags begin and end, and never for a request.
#[derive(Debug, Default)]
pub struct Disk {
    /// Tags that have not ended.
    tags: AtomicUsize,
    /// Why a queue is not served any more.
    trouble: OnceLock<String>,
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

    /// Why a queue is not served any more, in words that say what to do.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.get().map(String::as_str)
    }

    /// A queue is not served any more. Returns whether this is the first one.
    pub fn break_off(&self, why: impl FnOnce() -> String) -> bool {
        let mut is_first = false;
        self.trouble.get_or_init(|| {
            is_first = true;
            why()
        });
        is_first
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

    #[test]
    fn the_first_trouble_is_told() {
        let disk = Disk::default();
        disk.begin(2);
        disk.end();
        assert_eq!((disk.tags(), disk.trouble()), (1, None));
        assert!(disk.break_off(|| "one".into()) && !disk.break_off(|| "two".into()));
        assert_eq!(disk.trouble(), Some("one"));
        assert!(!disk.is_gone());
        disk.go();
        assert!(disk.is_gone());
    }
}
