//! The measurement: the latency of a victim without an attack and during it, and the verdict.

use std::time::{Duration, Instant};

use super::transport::{Transport, Victim};

/// The largest ratio of the 99th percentiles with and without the attack.
const RATIO: u32 = 3;
/// The machine may add this time to the 99th percentile.
const TOLERANCE: Duration = Duration::from_millis(10);
/// The machine may add this time to the longest latency. The 99th percentile of many samples shows no single command
/// that waits for the end of an attack.
const LONGEST_MAX: Duration = Duration::from_millis(250);
/// The longest write of 1 MiB, and the longest visit of another host, from its connection to its end. Both are more
/// than one exchange.
const LONG_WRITE_MAX: Duration = Duration::from_secs(1);
const VISIT_MAX: Duration = Duration::from_secs(1);

/// The number of samples of one measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Samples {
    /// Reads and writes.
    pub(super) count: usize,
    /// A measurement ends after this time, if it has `least` samples.
    pub(super) time: Duration,
    pub(super) least: usize,
    /// The time from the start of an attack to its measurement.
    pub(super) settle: Duration,
    /// Measurements before the verdict, as long as a time exceeds its bound.
    pub(super) tries: usize,
}

/// One measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// The latencies of reads and writes of 4 KiB, in ascending order.
    latencies: Vec<Duration>,
    pub(super) long_write: Duration,
    pub(super) visit: Duration,
    /// The errors of the victim.
    pub(super) errors: Vec<String>,
}

impl Measured {
    /// A percentile of the latencies.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let at = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).copied().unwrap_or_default()
    }

    pub(super) fn longest(&self) -> Duration {
        self.latencies.last().copied().unwrap_or_default()
    }

    pub(super) fn p50(&self) -> Duration {
        self.percentile(50)
    }

    pub(super) fn p99(&self) -> Duration {
        self.percentile(99)
    }
}

/// Measures a victim: reads and writes in turn, then a write of 1 MiB, and the visit of another host.
pub(super) fn measure(transport: &dyn Transport, victim: &mut dyn Victim, samples: Samples) -> Measured {
    let mut measured = Measured::default();
    let started = Instant::now();
    let mut record = |outcome: anyhow::Result<()>, began: Instant, subject: &str| {
        if let Err(error) = outcome {
            measured.errors.push(format!("{subject}: {error:#}"));
        }
        began.elapsed()
    };
    let (mut latencies, mut failed) = (Vec::new(), 0);
    while latencies.len() < samples.least || latencies.len() < samples.count && started.elapsed() < samples.time {
        let began = Instant::now();
        let outcome = if latencies.len() % 2 == 0 { victim.read() } else { victim.write() };
        failed += usize::from(outcome.is_err());
        latencies.push(record(outcome, began, "a read or write"));
        if failed > 2 {
            break;
        }
    }
    if failed == 0 {
        let began = Instant::now();
        let long_write = record(victim.write_long(), began, "a write of 1 MiB");
        let began = Instant::now();
        let visit = record(transport.visit(), began, "the visit of another host");
        (measured.long_write, measured.visit) = (long_write, visit);
    }
    latencies.sort_unstable();
    measured.latencies = latencies;
    measured
}

/// The result of a pair of measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    /// A time is too long: try again, because the machine may be the cause.
    Slow(String),
    /// The victim had errors.
    Failed(String),
}

/// Compares measurements without and during an attack.
pub(super) fn verdict(before: &Measured, during: &Measured) -> Verdict {
    if let Some(error) = before.errors.first().or_else(|| during.errors.first()) {
        return Verdict::Failed(error.clone());
    }
    let most = RATIO * before.p99() + TOLERANCE;
    if during.p99() > most {
        return Verdict::Slow(format!("p99 is {:?}, at most {most:?} is allowed", during.p99()));
    }
    for (subject, time, without, most) in [
        ("the longest command", during.longest(), before.longest(), LONGEST_MAX),
        ("a write of 1 MiB", during.long_write, before.long_write, LONG_WRITE_MAX),
        ("the visit of another host", during.visit, before.visit, VISIT_MAX),
    ] {
        if time > RATIO * without + most {
            return Verdict::Slow(format!("{subject} took {time:?}, {without:?} without the attack"));
        }
    }
    Verdict::Good
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(milliseconds: &[u64]) -> Measured {
        let mut latencies: Vec<_> = milliseconds.iter().map(|count| Duration::from_millis(*count)).collect();
        latencies.sort_unstable();
        Measured { latencies, ..Measured::default() }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_latencies() {
        let all: Vec<u64> = (0..200).rev().collect();
        let found = measured(&all);
        assert_eq!((found.p50().as_millis(), found.p99().as_millis()), (100, 198));
        assert_eq!(measured(&[7]).p99().as_millis(), 7);
        assert_eq!(Measured::default().p99(), Duration::ZERO);
    }

    #[test]
    fn the_bound_is_three_times_the_time_without_the_attack_and_ten_milliseconds() {
        assert_eq!(verdict(&measured(&[10]), &measured(&[40])), Verdict::Good);
        assert!(matches!(verdict(&measured(&[10]), &measured(&[41])), Verdict::Slow(_)));
    }

    #[test]
    fn an_error_of_the_victim_fails_whatever_the_times_are() {
        let broken = Measured { errors: vec!["no answer".to_owned()], ..measured(&[1]) };
        assert_eq!(verdict(&measured(&[1]), &broken), Verdict::Failed("no answer".to_owned()));
        assert_eq!(verdict(&broken, &measured(&[1])), Verdict::Failed("no answer".to_owned()));
    }

    #[test]
    fn one_command_that_waits_for_the_end_of_an_attack_is_too_slow() {
        let mut times = vec![1; 400];
        times.push(300);
        let verdict = verdict(&measured(&[1; 400]), &measured(&times));
        assert!(matches!(&verdict, Verdict::Slow(reason) if reason.contains("the longest command")), "{verdict:?}");
    }

    #[test]
    fn a_long_write_and_a_visit_have_bounds_of_their_own() {
        let slow = Measured { visit: Duration::from_secs(2), ..measured(&[1]) };
        assert!(matches!(verdict(&measured(&[1]), &slow), Verdict::Slow(_)));
    }
}
