//! Time as a value: protocols take it as an argument and never ask for it.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time in nanoseconds since an origin of the driver's choice (boot, or the start of a simulation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The time from `earlier` to `self`, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_wraps() {
        assert_eq!(Instant(5).since(Instant(9)), Duration::ZERO);
        assert_eq!(Instant(u64::MAX) + Duration::from_secs(1), Instant(u64::MAX));
        assert_eq!(Instant(1) - Duration::from_secs(1), Instant(0));
        assert_eq!((Instant(7) + Duration::from_nanos(5)).since(Instant(7)), Duration::from_nanos(5));
    }
}
