//! Rates from two readings of the counters: pure computation.

use crate::counters::{
    ClassCounters, CoreCounters, CountersView, HostCounters, StoreSpace, TrafficCounters, VolumeCounters,
};
use serde::Serialize;
use std::collections::HashMap;

/// Rates between two readings.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rates {
    /// When the later reading was made, in milliseconds since the beginning of 1970.
    pub time: u64,
    /// The time between the two.
    pub seconds: f64,
    /// All volumes together.
    pub total: Flow,
    /// Commands in progress at all volumes.
    pub queue: u64,
    /// The cores, in their order.
    pub cores: Vec<CoreRates>,
    /// The volumes, by name.
    pub volumes: Vec<VolumeRates>,
    /// The number of volumes that are left out.
    pub hidden_volumes: u64,
    /// The hosts, each with each of its targets.
    pub hosts: Vec<HostRates>,
    /// The file systems of the volumes, by name.
    pub stores: Vec<StoreRates>,
}

/// Commands of a volume or host, by class.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct Flow {
    /// Reads.
    pub read: ClassRates,
    /// Writes.
    pub write: ClassRates,
    /// All other commands.
    pub other: ClassRates,
    /// All commands.
    pub all: ClassRates,
}

/// Commands of one class.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClassRates {
    /// Commands that have ended between the two readings.
    pub commands: u64,
    /// Commands per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Their latency, if there were any.
    pub latency: Option<Latency>,
    /// Commands by their latency.
    #[serde(skip)]
    pub cells: Vec<u64>,
}

/// Latencies in microseconds. A percentile is interpolated inside the cell of the histogram that contains it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Latency {
    /// The mean.
    pub mean_microseconds: f64,
    /// Half of the commands took no longer.
    pub p50_microseconds: f64,
    /// 99 of 100 commands took no longer.
    pub p99_microseconds: f64,
}

/// A core.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CoreRates {
    /// Its number.
    pub core: u64,
    /// The part of the time with work: 0 to 1.
    pub busy: f64,
    /// The part of the time polling without work.
    pub spin: f64,
    /// The part of the time asleep.
    pub sleep: f64,
    /// Commands taken per second.
    pub iops: f64,
    /// Connections now.
    pub connections: u64,
    /// The part of the memory for data that is in use: 0 to 1.
    pub buffers: f64,
    /// The longest turn of its loop, of this minute and the last one.
    pub longest_turn_microseconds: f64,
}

/// A volume.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct VolumeRates {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: String,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// The space that it takes, in bytes.
    pub allocated: Option<u64>,
    /// The free space of its file system, in bytes.
    pub free: Option<u64>,
    /// Commands in progress.
    pub queue: u64,
    /// The most of them at the same time since the start.
    pub queue_max: u64,
    /// Commands that failed between the two readings.
    pub errors: u64,
    /// Reads and writes between the two readings that are not aligned to 4 KiB.
    pub misaligned: u64,
    /// Its commands.
    #[serde(flatten)]
    pub flow: Flow,
}

/// A host at a target.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostRates {
    /// The host.
    pub host: String,
    /// The target.
    pub target: String,
    /// The name of the target that the host gave.
    pub target_name: String,
    /// The transport.
    pub transport: String,
    /// Sessions now.
    pub sessions: u64,
    /// Logins between the two readings.
    pub logins: u64,
    /// Commands that were aborted between the two readings.
    pub aborts: u64,
    /// Resets between the two readings.
    pub resets: u64,
    /// Its commands.
    #[serde(flatten)]
    pub flow: Flow,
}

/// A file system of volumes.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoreRates {
    /// Its name: a folder with a volume.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its free space in bytes.
    pub free: u64,
    /// The volumes with space on it.
    pub volumes: u64,
    /// The change of the used space between the two readings, in bytes per second; negative: space became free.
    pub growth: f64,
    /// The seconds until it is full, if it grows on like this; `None`: it does not grow.
    pub seconds_left: Option<f64>,
}

/// The part of the time with work from which a core is marked: commands begin to wait for it.
pub const BUSY: f64 = 0.9;
/// Nanoseconds in a second.
const NANOSECONDS: f64 = 1e9;

impl Rates {
    /// The rates between two readings; `None` if the service was restarted between them, or if both are the same.
    #[must_use]
    pub fn between(before: &CountersView, now: &CountersView) -> Option<Self> {
        let passed = now.nanoseconds.checked_sub(before.nanoseconds).filter(|passed| *passed > 0)?;
        if before.start != now.start {
            return None;
        }
        let span = Span { seconds: passed as f64 / NANOSECONDS, bounds: &now.bounds };
        let earlier: HashMap<_, _> = before.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
        let volumes = now.volumes.iter().map(|volume| {
            // A volume that was left out has counted for longer than this time.
            let unknown = if before.hidden_volumes > 0 { volume } else { &VolumeCounters::default() };
            span.volume(earlier.get(volume.name.as_str()).copied().unwrap_or(unknown), volume)
        });
        let volumes: Vec<_> = volumes.collect();
        let earlier: HashMap<_, _> = before.hosts.iter().map(|host| (key(host), host)).collect();
        let no_host = HostCounters::default();
        let hosts = now.hosts.iter().map(|host| span.host(earlier.get(&key(host)).copied().unwrap_or(&no_host), host));
        let hosts = hosts.collect();
        let no_core = CoreCounters::default();
        let earlier = |core: &CoreCounters| before.cores.iter().find(|old| old.core == core.core).unwrap_or(&no_core);
        let cores = now.cores.iter().map(|core| span.core(earlier(core), core)).collect();
        Some(Self {
            time: now.time,
            seconds: span.seconds,
            total: span.total(volumes.iter().map(|volume| &volume.flow)),
            queue: volumes.iter().map(|volume| volume.queue).sum(),
            cores,
            hidden_volumes: now.hidden_volumes,
            stores: now.stores.iter().map(|store| span.store(before, now, store)).collect(),
            volumes,
            hosts,
        })
    }
}

fn key(host: &HostCounters) -> (&str, &str, &str) {
    (&host.transport, &host.target_name, &host.host)
}

/// The time between two readings.
struct Span<'a> {
    seconds: f64,
    bounds: &'a [u64],
}

/// The growth of a counter. A counter that has fallen belongs to a new thing of the same name: it began at zero.
fn growth(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

impl Span<'_> {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    fn class(&self, before: &ClassCounters, now: &ClassCounters) -> ClassRates {
        let begins_anew = now.commands < before.commands;
        let none = ClassCounters::default();
        let before = if begins_anew { &none } else { before };
        let cells = now.cells.iter().enumerate();
        let cells = cells.map(|(at, count)| growth(before.cells.get(at).copied().unwrap_or(0), *count)).collect();
        self.rates(cells, growth(before.bytes, now.bytes), growth(before.nanoseconds, now.nanoseconds))
    }

    fn rates(&self, cells: Vec<u64>, bytes: u64, nanoseconds: u64) -> ClassRates {
        let commands: u64 = cells.iter().sum();
        let of = |share| quantile(&cells, self.bounds, share);
        let latency = of(0.5).zip(of(0.99)).map(|(p50, p99)| Latency {
            mean_microseconds: nanoseconds as f64 / 1000.0 / commands as f64,
            p50_microseconds: p50,
            p99_microseconds: p99,
        });
        let (iops, bytes_per_second) = (self.per_second(commands), self.per_second(bytes));
        ClassRates { commands, iops, bytes_per_second, latency, cells }
    }

    fn flow(&self, before: &TrafficCounters, now: &TrafficCounters) -> Flow {
        let read = self.class(&before.read, &now.read);
        let write = self.class(&before.write, &now.write);
        let other = self.class(&before.other, &now.other);
        let all = self.sum([&read, &write, &other]);
        Flow { read, write, other, all }
    }

    fn sum<'a>(&self, parts: impl IntoIterator<Item = &'a ClassRates>) -> ClassRates {
        let (mut cells, mut bytes, mut microseconds) = (Vec::<u64>::new(), 0.0, 0.0);
        for part in parts {
            cells.resize(cells.len().max(part.cells.len()), 0);
            cells.iter_mut().zip(&part.cells).for_each(|(sum, more)| *sum += more);
            bytes += part.bytes_per_second * self.seconds;
            microseconds += part.latency.map_or(0.0, |latency| latency.mean_microseconds * part.commands as f64);
        }
        self.rates(cells, bytes.round() as u64, (microseconds * 1000.0).round() as u64)
    }

    fn total<'a>(&self, flows: impl Iterator<Item = &'a Flow> + Clone) -> Flow {
        let of = |class: fn(&Flow) -> &ClassRates| self.sum(flows.clone().map(class));
        Flow {
            read: of(|flow| &flow.read),
            write: of(|flow| &flow.write),
            other: of(|flow| &flow.other),
            all: of(|flow| &flow.all),
        }
    }

    fn volume(&self, before: &VolumeCounters, now: &VolumeCounters) -> VolumeRates {
        VolumeRates {
            name: now.name.clone(),
            state: now.state.clone(),
            size: now.size,
            allocated: now.allocated,
            free: now.free,
            queue: now.in_flight,
            queue_max: now.in_flight_max,
            errors: growth(before.errors, now.errors),
            misaligned: growth(before.misaligned, now.misaligned),
            flow: self.flow(&before.traffic, &now.traffic),
        }
    }

    fn host(&self, before: &HostCounters, now: &HostCounters) -> HostRates {
        HostRates {
            host: now.host.clone(),
            target: now.target.clone(),
            target_name: now.target_name.clone(),
            transport: now.transport.clone(),
            sessions: now.sessions,
            logins: growth(before.logins, now.logins),
            aborts: growth(before.aborts, now.aborts),
            resets: growth(before.resets, now.resets),
            flow: self.flow(&before.traffic, &now.traffic),
        }
    }

    fn store(&self, before: &CountersView, all: &CountersView, now: &StoreSpace) -> StoreRates {
        let StoreSpace { name, size, free, .. } = now.clone();
        let earlier = before.stores.iter().find(|store| store.name == name).unwrap_or(now);
        // A file system that was enlarged has more free space, and did not shrink.
        let used = |store: &StoreSpace| store.size.saturating_sub(store.free) as f64;
        let growth = (used(now) - used(earlier)) / self.seconds;
        let seconds_left = (growth > 0.0).then(|| free as f64 / growth);
        let volumes = all.volumes.iter().filter(|volume| volume.stores.contains(&name)).count() as u64;
        StoreRates { name, size, free, volumes, growth, seconds_left }
    }

    fn core(&self, before: &CoreCounters, now: &CoreCounters) -> CoreRates {
        let part = |before, now| (growth(before, now) as f64 / NANOSECONDS / self.seconds).min(1.0);
        let (busy, spin) =
            (part(before.busy_nanoseconds, now.busy_nanoseconds), part(before.spin_nanoseconds, now.spin_nanoseconds));
        let buffers = now.buffer_used_bytes as f64 / now.buffer_bytes.max(1) as f64;
        CoreRates {
            core: now.core,
            busy,
            spin,
            // A core that sleeps counts that when it wakes, so its counter says nothing about this time.
            sleep: (1.0 - busy - spin).max(0.0),
            iops: self.per_second(growth(before.commands, now.commands)),
            connections: now.connections,
            buffers: buffers.min(1.0),
            longest_turn_microseconds: now.longest_turn_nanoseconds as f64 / 1000.0,
        }
    }
}

/// The latency that this share of the commands did not exceed, in microseconds, as `histogram_quantile` of Prometheus
/// estimates it: linear inside a cell; the bound below the last cell, which has none. `None` without commands.
fn quantile(cells: &[u64], bounds: &[u64], share: f64) -> Option<f64> {
    let total: u64 = cells.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = share * total as f64;
    let mut below = 0;
    for (at, count) in cells.iter().enumerate() {
        let start = if at == 0 { 0.0 } else { bounds.get(at - 1).map_or(0.0, |bound| *bound as f64) };
        let Some(end) = bounds.get(at).map(|bound| *bound as f64) else {
            return bounds.last().map(|bound| *bound as f64);
        };
        if *count > 0 && (below + count) as f64 >= rank {
            return Some(start + (end - start) * (rank - below as f64) / *count as f64);
        }
        below += count;
    }
    bounds.last().map(|bound| *bound as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BOUNDS, reading};

    fn class(cells: &[u64], bytes: u64, nanoseconds: u64) -> ClassCounters {
        ClassCounters { commands: cells.iter().sum(), bytes, nanoseconds, cells: cells.to_vec() }
    }

    #[test]
    fn a_rate_is_the_growth_divided_by_the_time() {
        let before = reading(1_000_000_000, class(&[10, 10], 4096, 100_000));
        let now = reading(3_000_000_000, class(&[10, 110, 100], 4096 * 201, 4_100_000));
        let rates = Rates::between(&before, &now).expect("two readings");
        let read = &rates.volumes[0].flow.read;
        assert_eq!((rates.seconds, read.commands, read.iops), (2.0, 200, 100.0));
        assert_eq!((read.bytes_per_second, rates.queue), (409_600.0, 3));
        let latency = read.latency.expect("commands");
        assert_eq!((latency.mean_microseconds, latency.p50_microseconds), (20.0, 16.0));
        assert!((latency.p99_microseconds - 31.68).abs() < 1e-9, "{latency:?}");
        assert_eq!((&rates.volumes[0].flow.all, &rates.total.read), (read, read));
        assert_eq!((&rates.hosts[0].flow.read, rates.cores[0].busy), (read, 0.25));
        assert_eq!(rates.volumes[0].flow.write.latency, None, "no command, no latency");
    }

    #[test]
    fn readings_of_another_run_or_the_same_moment_have_no_rates() {
        let before = reading(5, class(&[1], 0, 0));
        assert_eq!(Rates::between(&before, &before), None);
        let restarted = CountersView { start: 2, ..reading(1_000, class(&[1], 0, 0)) };
        assert_eq!(Rates::between(&before, &restarted), None);
        assert_eq!(Rates::between(&reading(9, class(&[1], 0, 0)), &before), None);
    }

    #[test]
    fn a_new_volume_counts_from_zero_and_one_that_was_hidden_does_not() {
        let now = reading(2_000_000_000, class(&[7], 0, 0));
        let mut before = reading(1_000_000_000, class(&[9], 0, 0));
        assert_eq!(Rates::between(&before, &now).expect("rates").volumes[0].flow.read.commands, 7, "created again");
        before.volumes.clear();
        assert_eq!(Rates::between(&before, &now).expect("rates").volumes[0].flow.read.commands, 7, "new");
        before.hidden_volumes = 1;
        assert_eq!(Rates::between(&before, &now).expect("rates").volumes[0].flow.read.commands, 0, "hidden");
    }

    #[test]
    fn a_file_system_that_grows_is_full_at_a_time() {
        let store = |size, free| vec![StoreSpace { name: "/srv".into(), size, free, promised: 0, volumes: 1 }];
        let rates = |before, now| {
            let before = CountersView { stores: before, ..reading(1_000_000_000, class(&[1], 0, 0)) };
            let now = CountersView { stores: now, ..reading(3_000_000_000, class(&[1], 0, 0)) };
            Rates::between(&before, &now).expect("two readings").stores.remove(0)
        };
        let grown = rates(store(1000, 600), store(1000, 400));
        assert_eq!((grown.growth, grown.seconds_left, grown.free), (100.0, Some(4.0), 400));
        assert_eq!(rates(store(1000, 400), store(1000, 600)).seconds_left, None, "it shrinks");
        assert_eq!(rates(store(1000, 400), store(2000, 1400)).growth, 0.0, "it was enlarged");
        assert_eq!(rates(Vec::new(), store(1000, 400)).growth, 0.0, "it is new");
    }

    #[test]
    fn a_quantile_is_interpolated_in_its_cell_as_prometheus_does() {
        assert_eq!(quantile(&[], &BOUNDS, 0.5), None);
        assert_eq!(quantile(&[0, 0], &BOUNDS, 0.5), None);
        assert_eq!(quantile(&[4], &BOUNDS, 0.5), Some(4.0));
        assert_eq!(quantile(&[1, 0, 1], &BOUNDS, 0.99), Some(16.0 + 16.0 * 0.98));
        assert_eq!(quantile(&[1, 0, 0, 99], &BOUNDS, 0.99), Some(32.0), "the last cell has no bound");
    }

    #[test]
    fn a_core_sleeps_while_it_has_no_work() {
        let span = Span { seconds: 1.0, bounds: &BOUNDS };
        let before = CoreCounters::default();
        // It has slept since before the first reading, or wakes from a long sleep.
        for sleep_nanoseconds in [0, 60_000_000_000] {
            let now = CoreCounters { sleep_nanoseconds, buffer_used_bytes: 1, ..before.clone() };
            let core = span.core(&before, &now);
            assert_eq!((core.sleep, core.busy, core.buffers), (1.0, 0.0, 1.0));
        }
        let now = CoreCounters { busy_nanoseconds: 750_000_000, spin_nanoseconds: 250_000_000, ..before.clone() };
        assert_eq!((span.core(&before, &now).busy, span.core(&before, &now).sleep), (0.75, 0.0));
    }
}
