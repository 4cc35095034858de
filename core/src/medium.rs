//! Work on a whole medium, one at a time over all cores, and how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

/// What all cores share of a unit's medium.
#[derive(Clone, Debug, Default)]
pub struct Medium(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_worked_on: AtomicBool,
    progress: AtomicU16,
}

impl Medium {
    /// Begins work, unless some is under way.
    #[must_use]
    pub fn begin(&self) -> Option<Work> {
        let begun = self.0.is_worked_on.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| {
            self.0.progress.store(0, Ordering::Relaxed);
            Work(self.clone())
        })
    }

    /// Whether work is under way.
    #[must_use]
    pub fn is_worked_on(&self) -> bool {
        self.0.is_worked_on.load(Ordering::Acquire)
    }

    /// How far the work is, in parts of 65,536.
    #[must_use]
    pub fn progress(&self) -> u16 {
        self.0.progress.load(Ordering::Relaxed)
    }
}

/// Work that is under way, until it is dropped.
#[derive(Debug)]
pub struct Work(Medium);

impl Work {
    /// Tells how far it is.
    pub fn set_progress(&self, done: u64, of: u64) {
        let parts = u128::from(done) * 0x1_0000 / u128::from(of.max(1));
        self.0.0.progress.store(u16::try_from(parts).unwrap_or(u16::MAX), Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.0.is_worked_on.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_works_at_a_time_and_tells_how_far() {
        let medium = Medium::default();
        let work = medium.begin().expect("nobody works");
        assert!(medium.clone().begin().is_none() && medium.is_worked_on());
        for (done, of, progress) in
            [(1, 4, 0x4000), (u64::MAX / 2, u64::MAX, 0x7fff), (9, 9, u16::MAX), (1, 0, u16::MAX)]
        {
            work.set_progress(done, of);
            assert_eq!(medium.progress(), progress);
        }
        drop(work);
        assert!(!medium.is_worked_on());
        let _next = medium.begin().expect("it is over");
        assert_eq!(medium.progress(), 0);
    }
}
