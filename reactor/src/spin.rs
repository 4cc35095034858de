//! How long an idle core polls before it sleeps.
//!
//! To sleep and be woken costs tens of microseconds, so a core polls while answers arrive faster than that. Only a run
//! of short gaps starts it, and polling without result takes most of the credit away: a core whose load ends stops
//! within a few times the limit, and rare events never start it.

use std::time::Duration;

/// The limit of polling at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spin {
    /// Zero: an idle core sleeps at once.
    pub limit: Duration,
}

impl Spin {
    /// Sleeps at once.
    pub const NEVER: Self = Self { limit: Duration::ZERO };
}

impl Default for Spin {
    /// Twice the cost of a wake-up in a virtual machine.
    fn default() -> Self {
        Self { limit: Duration::from_micros(50) }
    }
}

/// Short gaps in a row before polling starts.
const CREDIT_TO_SPIN: u32 = 3;
const CREDIT_MAX: u32 = 8;
/// The credit that polling without result takes away: at most two polls in a row.
const CREDIT_OF_MISS: u32 = 3;
/// About the cost of sleeping and waking: a poll of this length at most doubles that cost.
const SHORTEST: u64 = 20_000;

pub(crate) struct Policy {
    limit: u64,
    credit: u32,
    /// Average of the short gaps, in nanoseconds.
    gap: u64,
}

impl Policy {
    pub(crate) fn new(spin: Spin) -> Self {
        Self { limit: u64::try_from(spin.limit.as_nanos()).unwrap_or(u64::MAX / 8), credit: 0, gap: 0 }
    }

    /// Nanoseconds to poll for now; 0: sleep.
    pub(crate) fn budget(&self) -> u64 {
        if self.credit < CREDIT_TO_SPIN {
            return 0;
        }
        // A few times the recent gap: answers that arrive every 2 µs are not waited for 50 µs.
        self.gap.saturating_mul(4).max(SHORTEST).min(self.limit)
    }

    /// Work arrived after a gap of this number of nanoseconds, polled or slept through.
    pub(crate) fn gap(&mut self, gap: u64) {
        if gap > self.limit {
            self.credit = if gap > self.limit.saturating_mul(4) { 0 } else { self.credit.saturating_sub(1) };
            return;
        }
        self.gap = if self.credit == 0 { gap } else { (self.gap * 7 + gap) / 8 };
        self.credit = (self.credit + 1).min(CREDIT_MAX);
    }

    /// Polling had no result.
    pub(crate) fn miss(&mut self) {
        self.credit = self.credit.saturating_sub(CREDIT_OF_MISS);
        self.gap = (self.gap * 2).min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_does_not_start_it_and_a_run_does() {
        let mut policy = Policy::new(Spin::default());
        assert_eq!(policy.budget(), 0);
        policy.gap(10_000);
        assert_eq!(policy.budget(), 0);
        policy.gap(10_000);
        policy.gap(10_000);
        assert_eq!(policy.budget(), 40_000);
    }

    #[test]
    fn it_ends_soon_after_the_load() {
        let mut policy = Policy::new(Spin::default());
        (0..100).for_each(|_| policy.gap(20_000));
        let mut polled = 0;
        while policy.budget() > 0 {
            polled += policy.budget();
            policy.miss();
        }
        assert!(polled <= 150_000, "{polled}");
    }

    #[test]
    fn a_long_sleep_ends_it() {
        let mut policy = Policy::new(Spin::default());
        (0..100).for_each(|_| policy.gap(20_000));
        policy.gap(1_000_000);
        assert_eq!(policy.budget(), 0);
    }

    #[test]
    fn never_is_never() {
        let mut policy = Policy::new(Spin::NEVER);
        (0..100).for_each(|_| policy.gap(0));
        assert_eq!(policy.budget(), 0);
    }
}
