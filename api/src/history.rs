//! The rates of the last minutes, so that a page that is opened now has charts of the time before.
//!
//! A timer that exists anyway calls [`History::tick`]. Without commands it reads one number and takes no sample, so
//! that an idle target stays idle; times without samples are times without commands.

use lunar_control::counters::CountersView;
use lunar_control::metrics::Measured;
use lunar_control::rates::{Flow, Rates};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The time that is kept: that of the charts of the page.
const KEPT: Duration = Duration::from_secs(600);
/// The least time between two samples. It bounds their number.
const INTERVAL: Duration = Duration::from_secs(2);
/// The most samples: those of the time that is kept.
const SAMPLES_MAX: usize = (KEPT.as_secs() / INTERVAL.as_secs()) as usize;
/// The volumes of a sample: those with the most commands in its time. All samples take 1 MiB at most.
const VOLUMES_MAX: usize = 64;

/// The query parameter: its name and its description.
pub const QUERY: &[(&str, &str)] = &[("volume", "The volume; without it, all volumes together.")];

/// Rates of one interval.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Sample {
    reads: f32,
    writes: f32,
    read_bytes: f32,
    written_bytes: f32,
    p50: Option<f32>,
    p99: Option<f32>,
    queue: u32,
}

impl Sample {
    fn of(flow: &Flow, queue: u64) -> Self {
        let latency = flow.all.latency;
        Self {
            reads: flow.read.iops as f32,
            writes: flow.write.iops as f32,
            read_bytes: flow.read.bytes_per_second as f32,
            written_bytes: flow.write.bytes_per_second as f32,
            p50: latency.map(|latency| latency.p50_microseconds as f32),
            p99: latency.map(|latency| latency.p99_microseconds as f32),
            queue: u32::try_from(queue).unwrap_or(u32::MAX),
        }
    }
}

/// The rates of all volumes together, and of the busiest ones.
#[derive(Debug)]
struct Row {
    time: u64,
    total: Sample,
    volumes: Vec<(Box<str>, Sample)>,
}

#[derive(Debug, Default)]
struct Kept {
    rows: VecDeque<Row>,
    /// The last reading, when it was valid for the last time, and the commands until then.
    last: Option<(CountersView, Instant, u64)>,
    /// Whether commands were in progress at the last reading, or had ended since the one before it.
    is_busy: bool,
}

/// The rates of the last minutes.
#[derive(Debug, Default)]
pub struct History(Mutex<Kept>);

impl History {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic leaves at most a row that is missing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample if there were commands since the last one. To be called every two seconds or less often.
    pub fn tick(&self, measured: &dyn Measured, now: Instant) {
        let mut kept = self.lock();
        let kept = &mut *kept;
        let commands = measured.commands();
        if let Some((view, valid, before)) = &mut kept.last {
            let passed = now.duration_since(*valid);
            if passed < INTERVAL / 2 {
                return;
            }
            if *before == commands && !kept.is_busy {
                // Nothing has changed, so the reading is as good as a new one.
                let nanoseconds = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
                (view.nanoseconds, *valid) = (view.nanoseconds.saturating_add(nanoseconds), now);
                return;
            }
        }
        let view = measured.counters(&[]);
        let rates = kept.last.as_ref().and_then(|(before, ..)| Rates::between(before, &view));
        let queue: u64 = view.volumes.iter().map(|volume| volume.in_flight).sum();
        kept.is_busy = queue > 0 || rates.as_ref().is_some_and(|rates| rates.total.all.commands > 0);
        kept.last = Some((view, now, commands));
        if let Some(rates) = rates {
            kept.add(&rates);
        }
    }

    /// The rates of a volume, or of all together with an empty name, of the time that is kept.
    #[must_use]
    pub fn view(&self, volume: &str) -> HistoryView {
        let since = UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(KEPT);
        self.since(volume, u64::try_from(since.as_millis()).unwrap_or(0))
    }

    /// The same since a time in milliseconds since 1970.
    fn since(&self, volume: &str, since: u64) -> HistoryView {
        let kept = self.lock();
        let mut view = HistoryView::default();
        for row in kept.rows.iter().filter(|row| row.time >= since) {
            let of_volume = || row.volumes.iter().find(|(name, _)| **name == *volume).map(|(_, sample)| *sample);
            let sample = if volume.is_empty() { row.total } else { of_volume().unwrap_or_default() };
            view.add(row.time, sample);
        }
        view
    }
}

impl Kept {
    fn add(&mut self, rates: &Rates) {
        let mut busiest: Vec<_> = rates.volumes.iter().filter(|one| one.flow.all.commands + one.queue > 0).collect();
        busiest.sort_by_key(|one| std::cmp::Reverse(one.flow.all.commands));
        busiest.truncate(VOLUMES_MAX);
        let volumes = busiest.into_iter().map(|one| (one.name.as_str().into(), Sample::of(&one.flow, one.queue)));
        if self.rows.len() >= SAMPLES_MAX {
            self.rows.pop_front();
        }
        let total = Sample::of(&rates.total, rates.queue);
        self.rows.push_back(Row { time: rates.time, total, volumes: volumes.collect() });
    }
}

/// Rates of the past, in columns of equal length. Between two times that are more than five seconds apart, there were
/// no commands.
#[derive(Clone, PartialEq, Default, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "history")]
pub struct HistoryView {
    /// The ends of the intervals, in milliseconds since the beginning of 1970.
    pub time: Vec<u64>,
    /// Reads per second.
    pub reads: Vec<f32>,
    /// Writes per second.
    pub writes: Vec<f32>,
    /// Bytes read per second.
    pub read_bytes: Vec<f32>,
    /// Bytes written per second.
    pub written_bytes: Vec<f32>,
    /// The latency that half of the commands did not exceed, in microseconds; null without commands.
    pub p50: Vec<Option<f32>>,
    /// The latency that 99 of 100 commands did not exceed.
    pub p99: Vec<Option<f32>>,
    /// Commands in progress at the end.
    pub queue: Vec<u32>,
}

impl HistoryView {
    fn add(&mut self, time: u64, sample: Sample) {
        let Sample { reads, writes, read_bytes, written_bytes, p50, p99, queue } = sample;
        self.time.push(time);
        self.reads.push(reads);
        self.writes.push(writes);
        self.read_bytes.push(read_bytes);
        self.written_bytes.push(written_bytes);
        self.p50.push(p50);
        self.p99.push(p99);
        self.queue.push(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::api::TroubleView;
    use lunar_control::counters::{ClassCounters, VolumeCounters};
    use lunar_control::metrics::Page;
    use lunar_control::testing::reading;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A target with as many commands as it is told, which counts how often its counters are read.
    #[derive(Debug, Default)]
    struct Fake {
        seconds: AtomicU64,
        commands: AtomicU64,
        volumes: AtomicU64,
        readings: AtomicU64,
    }

    impl Measured for Fake {
        fn write(&self, _: &mut Page, _: &[TroubleView]) {}

        fn counters(&self, _: &[TroubleView]) -> CountersView {
            self.readings.fetch_add(1, Ordering::Relaxed);
            let commands = self.commands();
            let read = ClassCounters { commands, bytes: 4096 * commands, nanoseconds: 0, cells: vec![commands] };
            let mut view = reading(self.seconds.load(Ordering::Relaxed) * 1_000_000_000, read);
            let one = VolumeCounters { in_flight: 0, ..view.volumes.remove(0) };
            let count = self.volumes.load(Ordering::Relaxed).max(1);
            view.volumes = (0..count).map(|at| VolumeCounters { name: format!("disk{at}"), ..one.clone() }).collect();
            view
        }

        fn commands(&self) -> u64 {
            self.commands.load(Ordering::Relaxed)
        }

        fn silent_cores(&self, _: Duration) -> Vec<usize> {
            Vec::new()
        }
    }

    struct Clock(Instant, Fake, History);

    impl Clock {
        fn new() -> Self {
            Self(Instant::now(), Fake::default(), History::default())
        }

        /// Two seconds later, with so many more commands.
        fn tick(&mut self, commands: u64) {
            self.0 += INTERVAL;
            self.1.seconds.fetch_add(INTERVAL.as_secs(), Ordering::Relaxed);
            self.1.commands.fetch_add(commands, Ordering::Relaxed);
            self.2.tick(&self.1, self.0);
        }
    }

    #[test]
    fn an_idle_target_is_not_read_and_the_first_commands_after_it_have_their_rate() {
        let mut clock = Clock::new();
        clock.tick(0);
        (0..1000).for_each(|_| clock.tick(0));
        assert_eq!(clock.1.readings.load(Ordering::Relaxed), 1, "one number is read at each tick, and no counters");
        assert!(clock.2.since("", 0).time.is_empty());
        clock.tick(200);
        let view = clock.2.since("", 0);
        assert_eq!((view.reads, view.read_bytes), (vec![100.0], vec![409_600.0]), "not spread over the idle time");
        clock.tick(0);
        clock.tick(0);
        let view = clock.2.since("disk0", 0);
        assert_eq!((view.reads, view.p99[1], view.queue), (vec![100.0, 0.0], None, vec![0, 0]), "zero, then nothing");
        assert_eq!(clock.1.readings.load(Ordering::Relaxed), 3);
        assert_eq!(clock.2.since("disk0", view.time[1]).time.len(), 1, "older samples are not shown");
        assert_eq!(clock.2.since("other", 0).reads, [0.0, 0.0]);
    }

    #[test]
    fn samples_and_their_volumes_are_bounded() {
        let mut clock = Clock::new();
        clock.1.volumes.store(100, Ordering::Relaxed);
        (0..2 * SAMPLES_MAX).for_each(|_| clock.tick(10));
        let kept = clock.2.lock();
        assert_eq!(kept.rows.len(), SAMPLES_MAX);
        assert!(kept.rows.iter().all(|row| row.volumes.len() == VOLUMES_MAX));
        drop(kept);
        let before = clock.1.readings.load(Ordering::Relaxed);
        clock.2.tick(&clock.1, clock.0);
        assert_eq!(clock.1.readings.load(Ordering::Relaxed), before, "a tick that is early does nothing");
    }
}
