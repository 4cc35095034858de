//! Thresholds of the space that a thinly provisioned unit uses (SBC-4 4.7.3.8), as values.

use lunar_core::io::Space;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The resource of a threshold. Its number is the parameter code of the log page that reports the resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Available space: a threshold is reached from above.
    Available = 1,
    /// Used space: a threshold is reached from below.
    Used = 2,
}

impl Resource {
    /// All resources, in the order of their thresholds.
    pub const ALL: [Self; 2] = [Self::Available, Self::Used];

    /// Bytes of the resource.
    fn of(self, space: Space) -> u64 {
        match self {
            Self::Available => space.available,
            Self::Used => space.used,
        }
    }

    /// Threshold sets of the resource, up to the largest number that can be reported. A partly used set counts as
    /// used.
    #[must_use]
    pub fn sets(self, space: Space, set: u64) -> u32 {
        let sets = match self {
            Self::Available => self.of(space) / set,
            Self::Used => self.of(space).div_ceil(set),
        };
        u32::try_from(sets).unwrap_or(u32::MAX)
    }

    /// Whether a threshold is reached, or still is. It is left only half a set beyond its value, so that a unit which
    /// writes and unmaps one block does not reach it again and again.
    pub(crate) fn reaches(self, space: Space, threshold: u64, set: u64, before: bool) -> bool {
        let slack = if before { set / 2 } else { 0 };
        match self {
            Self::Available => self.of(space) <= threshold.saturating_add(slack),
            Self::Used => self.of(space).saturating_add(slack) >= threshold,
        }
    }
}

/// A soft threshold, as armed by MODE SELECT.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Threshold {
    /// ENABLED
    pub enabled: bool,
    /// THRESHOLD COUNT, in threshold sets.
    pub count: u32,
}

/// The right to be the only nexus that is notified of a threshold. The first core that requests it has it.
#[derive(Clone, Debug, Default)]
pub struct Claim(Arc<AtomicBool>);

impl Claim {
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Claim {}
