//! A number that one core writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether anything is counted and timed. Only the build with which `check/bench/counting` compares does not.
pub const COUNTED: bool = cfg!(not(feature = "uncounted"));

/// A number that one core writes and any thread reads.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds. Only the core that owns the table may call it: it is a plain load and store, without a locked
    /// instruction.
    pub fn add(&self, by: u64) {
        if COUNTED {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }

    /// Subtracts, for gauges.
    pub fn sub(&self, by: u64) {
        if COUNTED {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(by), Ordering::Relaxed);
        }
    }

    /// Replaces the value, for gauges.
    pub fn set(&self, value: u64) {
        if COUNTED {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
