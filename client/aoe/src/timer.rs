//! When a frame is sent again: from measured round-trip times, as RFC 6298 computes it for TCP.

use std::time::Duration;

/// The time before anything was measured.
pub(crate) const FIRST: Duration = Duration::from_millis(250);
/// The shortest and the longest time.
const LEAST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_secs(2);

/// The estimate of round-trip times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrips {
    /// Mean and deviation; `None`: nothing was measured.
    estimate: Option<(Duration, Duration)>,
}

impl RoundTrips {
    /// Takes the time of a frame that was sent once.
    pub(crate) fn measure(&mut self, time: Duration) {
        self.estimate = Some(match self.estimate {
            None => (time, time / 2),
            Some((mean, deviation)) => ((mean * 7 + time) / 8, (deviation * 3 + mean.abs_diff(time)) / 4),
        });
    }

    /// The time after which a frame is sent again that was sent `sends` times.
    pub(crate) fn patience(&self, sends: u32) -> Duration {
        let first = self.estimate.map_or(FIRST, |(mean, deviation)| mean + deviation * 4);
        first.max(LEAST).saturating_mul(1 << sends.saturating_sub(1).min(8)).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_measured_times_and_doubles() {
        let mut times = RoundTrips::default();
        assert_eq!((times.patience(1), times.patience(2)), (FIRST, FIRST * 2));
        (0..100).for_each(|_| times.measure(Duration::from_millis(50)));
        let settled = times.patience(1);
        assert!(settled >= Duration::from_millis(50) && settled < Duration::from_millis(60), "{settled:?}");
        assert_eq!((times.patience(20), times.patience(2)), (MOST, settled * 2));
        (0..100).for_each(|_| times.measure(Duration::ZERO));
        assert_eq!(times.patience(1), LEAST);
    }
}
