//! The cost of a run: CPU time of this thread and of the target's process, and the busy time in the target's
//! statistics.

use anyhow::{Context, Result};
use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The timeout of the target's statistics socket.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);

/// Pins this thread to one CPU.
///
/// # Errors
/// If the CPU does not exist or this process may not use it.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    anyhow::ensure!(cpu < CpuSet::MAX_CPU, "there is no CPU {cpu}");
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning to CPU {cpu}"))
}

/// The CPU time of this thread.
#[must_use]
pub fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The CPU time of one thread of another process.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ThreadTime {
    name: String,
    nanoseconds: u64,
}

/// The CPU times of the threads of a process, by thread ID. Threads that ended are not included.
///
/// # Errors
/// If the process does not exist or its times cannot be read.
fn threads_of(pid: u32) -> Result<BTreeMap<u32, ThreadTime>> {
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    let entries = fs::read_dir(&tasks).with_context(|| format!("no process {pid}"))?;
    let mut threads = BTreeMap::new();
    for entry in entries.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A thread may end after it was listed.
        let Some(nanoseconds) = nanoseconds_of(&entry.path()) else { continue };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
        threads.insert(number, ThreadTime { name, nanoseconds });
    }
    Ok(threads)
}

/// The CPU time of a thread: `schedstat` in nanoseconds, or `stat` in ticks if the kernel has no `schedstat`.
fn nanoseconds_of(task: &Path) -> Option<u64> {
    let schedstat = fs::read_to_string(task.join("schedstat")).ok();
    let run = schedstat.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()).filter(|run| *run > 0);
    run.or_else(|| {
        let stat = fs::read_to_string(task.join("stat")).ok()?;
        // The second field is the name in parentheses, which may contain any character: count from the last
        // parenthesis.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
    })
}

/// Reads the statistics of a Lunar target.
///
/// # Errors
/// If the socket cannot be read or its content is not a JSON object.
pub fn statistics(socket: &Path) -> Result<Map<String, Value>> {
    let read = || -> Result<Map<String, Value>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(STATS_TIMEOUT))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    };
    read().with_context(|| format!("statistics socket {}", socket.display()))
}

/// All counters at one moment.
#[derive(Debug)]
pub struct Snapshot {
    own: Duration,
    threads: BTreeMap<u32, ThreadTime>,
    statistics: Map<String, Value>,
}

/// The CPU time of a thread of the target.
#[derive(Clone, Debug, Serialize)]
pub struct Thread {
    /// The name of the thread.
    pub name: String,
    /// CPU time, in seconds.
    pub cpu_seconds: f64,
}

/// The cost between two snapshots.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cost {
    /// CPU time of this process, in seconds.
    pub initiator_cpu_seconds: f64,
    /// CPU time of the target's process, in seconds, if its process ID is known.
    pub target_cpu_seconds: Option<f64>,
    /// The same by thread, the busiest thread first.
    pub target_threads: Vec<Thread>,
    /// Time in which the target's cores were busy, in seconds, if the target's statistics are known.
    pub target_busy_seconds: Option<f64>,
    /// The differences of the target's statistics.
    pub target_statistics: Map<String, Value>,
}

impl Snapshot {
    /// Takes a snapshot.
    ///
    /// # Errors
    /// If the process or the socket does not exist.
    pub fn take(pid: Option<u32>, stats: Option<&Path>) -> Result<Self> {
        Ok(Self {
            own: own_cpu(),
            threads: pid.map(threads_of).transpose()?.unwrap_or_default(),
            statistics: stats.map(statistics).transpose()?.unwrap_or_default(),
        })
    }

    /// The cost since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Cost {
        let mut threads: Vec<Thread> = (self.threads.iter())
            .map(|(number, now)| {
                let before = earlier.threads.get(number).map_or(0, |thread| thread.nanoseconds);
                let cpu_seconds = now.nanoseconds.saturating_sub(before) as f64 / 1e9;
                Thread { name: now.name.clone(), cpu_seconds }
            })
            .collect();
        threads.sort_by(|a, b| b.cpu_seconds.total_cmp(&a.cpu_seconds));
        let total = threads.iter().map(|thread| thread.cpu_seconds).sum();
        threads.retain(|thread| thread.cpu_seconds > 0.0);
        let target_statistics = difference(&earlier.statistics, &self.statistics);
        let busy = target_statistics.get("busy_nanoseconds").and_then(Value::as_u64);
        Cost {
            initiator_cpu_seconds: self.own.saturating_sub(earlier.own).as_secs_f64(),
            target_cpu_seconds: (!self.threads.is_empty()).then_some(total),
            target_threads: threads,
            target_busy_seconds: busy.map(|nanoseconds| nanoseconds as f64 / 1e9),
            target_statistics,
        }
    }
}

/// The difference of each number in `after` and `before`; other values are left out.
fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let number = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_i64);
    (after.keys())
        .filter_map(|key| Some((key.clone(), (number(after, key)? - number(before, key).unwrap_or(0)).into())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_cpu_time_of_the_threads_of_a_process_is_measured() {
        let before = Snapshot::take(Some(std::process::id()), None).expect("this process");
        let start = own_cpu();
        while own_cpu() - start < Duration::from_millis(30) {}
        // The kernel updates the times of a running thread when the thread leaves the CPU.
        std::thread::sleep(Duration::from_millis(5));
        let cost = Snapshot::take(Some(std::process::id()), None).expect("this process").since(&before);
        assert!(cost.initiator_cpu_seconds >= 0.03);
        assert!(cost.target_cpu_seconds.expect("known") >= 0.02, "{cost:?}");
        assert!(Snapshot::take(Some(u32::MAX), None).is_err());
    }

    #[test]
    fn statistics_are_reported_as_differences() {
        let path = std::env::temp_dir().join(format!("lunar-cost-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("bound");
        let server = std::thread::spawn(move || {
            for busy in [1_000_000_000u64, 3_500_000_000] {
                let (mut stream, _) = listener.accept().expect("accepted");
                write!(stream, "{{\"busy_nanoseconds\":{busy},\"sessions\":2,\"cores\":[]}}").expect("written");
            }
        });
        let before = Snapshot::take(None, Some(&path)).expect("served");
        let cost = Snapshot::take(None, Some(&path)).expect("served").since(&before);
        server.join().expect("no panic");
        fs::remove_file(&path).expect("removed");
        assert_eq!((cost.target_busy_seconds, cost.target_cpu_seconds), (Some(2.5), None));
        assert_eq!(cost.target_statistics["sessions"], 0);
        assert!(statistics(&path).is_err());
    }

    #[test]
    fn pinning_to_a_cpu_that_does_not_exist_fails() {
        assert!(pin(usize::MAX).is_err());
    }
}
