//! The slow log: commands that took longer than a threshold, each with the parts of its time. Every core has a bounded
//! ring of its own; a reader gets those of all cores.

use crate::hosts::HostKey;
use crate::time::Instant;
use crate::traffic::Class;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Slow commands that are kept for each core: those of several bursts. The names in them are shared, so they take some
/// hundred kilobytes of memory.
pub const KEPT_MAX: usize = 512;
/// Slow commands that a core records in one second; more are counted. The threshold may be below the usual latency, and
/// then recording each command would be a cost of its own.
pub const RECORDED_PER_SECOND: u32 = 100;
/// Slow commands of a core that are told to the log of the daemon in one second: enough to see what happens, and too
/// few to fill a disk.
pub const TOLD_PER_SECOND: u32 = 10;
/// An aborted command that took so long is slow whatever the threshold is: its client has given it up.
const ABORTED_LEAST: Duration = Duration::from_millis(1);

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// A task management function or a lost connection ended it.
    Aborted,
}

impl Ending {
    /// The word of the ending.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }
}

/// The time of a command in nanoseconds, and its parts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// From its arrival to its end.
    pub total: u64,
    /// Waiting for its peer: for Data-Out, or until the connection could take more Data-In.
    pub network: u64,
    /// Waiting for the store.
    pub store: u64,
}

impl Times {
    /// The rest: waiting for a slot, for commands before it, for locked ranges, for memory and for the core.
    #[must_use]
    pub const fn queue(&self) -> u64 {
        self.total.saturating_sub(self.network).saturating_sub(self.store)
    }
}

/// The blocks of a command.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Blocks {
    /// The first one.
    pub lba: u64,
    /// How many.
    pub count: u64,
    /// The bytes of one.
    pub size: u32,
}

/// A slow command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlowCommand {
    /// When it ended.
    pub ended: Instant,
    /// The core that executed it.
    pub core: usize,
    /// The volume; `None`: the command was addressed to none.
    pub volume: Option<Arc<str>>,
    /// The host, its target and its transport; `None`: they are not known.
    pub host: Option<HostKey>,
    /// The name of the command in its standard.
    pub command: &'static str,
    /// Its class.
    pub class: Class,
    /// Its blocks; `None`: it has none, or failed before they were known.
    pub blocks: Option<Blocks>,
    /// Its time.
    pub times: Times,
    /// The commands in progress at the volume on this core when it ended, itself included.
    pub in_flight: u64,
    /// How it ended.
    pub ending: Ending,
}

/// The slow commands of one core.
#[derive(Debug, Default)]
struct Ring {
    kept: VecDeque<SlowCommand>,
    /// The beginning of the second in which commands are counted.
    since: Instant,
    count: u32,
    /// Commands that were not recorded.
    omitted: u64,
}

/// The next step for a slow command.
enum Place {
    Listener,
    Kept,
    Omitted,
}

impl Ring {
    fn place(&mut self, now: Instant) -> Place {
        if now.since(self.since) >= Duration::from_secs(1) {
            (self.since, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        match self.count {
            count if count <= TOLD_PER_SECOND => Place::Listener,
            count if count <= RECORDED_PER_SECOND => Place::Kept,
            _ => Place::Omitted,
        }
    }
}

/// Takes the slow commands that are told, on the core that executed them.
pub type Listener = dyn Fn(&SlowCommand) + Send + Sync;

/// The slow log of all cores.
pub struct SlowLog {
    /// In nanoseconds; `u64::MAX`: no command is slow.
    threshold: AtomicU64,
    rings: Box<[Mutex<Ring>]>,
    listener: OnceLock<Box<Listener>>,
}

impl fmt::Debug for SlowLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlowLog(from {} ns)", self.threshold.load(Ordering::Relaxed))
    }
}

impl SlowLog {
    /// A log for this number of cores, in which no command is slow yet.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        let rings = (0..cores.max(1)).map(|_| Mutex::default()).collect();
        Arc::new(Self { threshold: AtomicU64::new(u64::MAX), rings, listener: OnceLock::new() })
    }

    /// From now on commands are slow that take at least this time; zero: none is.
    pub fn set_threshold(&self, least: Duration) {
        let least = if least.is_zero() { u64::MAX } else { u64::try_from(least.as_nanos()).unwrap_or(u64::MAX) };
        self.threshold.store(least, Ordering::Relaxed);
    }

    /// Tells some of the slow commands to `listener` from now on. Only the first call has an effect.
    pub fn tell(&self, listener: Box<Listener>) {
        let _ = self.listener.set(listener);
    }

    /// Whether a command that took this time is slow.
    #[inline]
    #[must_use]
    pub fn is_slow(&self, nanoseconds: u64, ending: Ending) -> bool {
        let threshold = self.threshold.load(Ordering::Relaxed);
        nanoseconds >= threshold || ending == Ending::Aborted && is_given_up(nanoseconds, threshold)
    }

    fn ring(&self, core: usize) -> Option<MutexGuard<'_, Ring>> {
        // A panic cannot leave a ring inconsistent.
        self.rings.get(core).map(|ring| ring.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a slow command.
    #[cold]
    pub fn record(&self, command: SlowCommand) {
        let Some(mut ring) = self.ring(command.core) else { return };
        let is_told = match ring.place(command.ended) {
            Place::Listener => true,
            Place::Kept => false,
            Place::Omitted => {
                ring.omitted += 1;
                return;
            }
        };
        if ring.kept.len() == KEPT_MAX {
            ring.kept.pop_front();
        }
        ring.kept.push_back(command.clone());
        drop(ring);
        if let Some(listener) = self.listener.get().filter(|_| is_told) {
            listener(&command);
        }
    }

    /// The slow commands that are kept, the oldest first, and the number of those that were not recorded.
    #[must_use]
    pub fn kept(&self) -> (Vec<SlowCommand>, u64) {
        let (mut all, mut omitted) = (Vec::new(), 0);
        for ring in (0..self.rings.len()).filter_map(|core| self.ring(core)) {
            all.extend(ring.kept.iter().cloned());
            omitted += ring.omitted;
        }
        all.sort_by_key(|command| command.ended);
        (all, omitted)
    }
}

#[cold]
fn is_given_up(nanoseconds: u64, threshold: u64) -> bool {
    threshold < u64::MAX && u128::from(nanoseconds) >= ABORTED_LEAST.as_nanos()
}

/// The slow log, as one core uses it.
#[derive(Clone, Debug)]
pub struct CoreSlowLog {
    /// The log.
    pub log: Arc<SlowLog>,
    /// The index of the core.
    pub core: usize,
}

impl Default for CoreSlowLog {
    fn default() -> Self {
        Self { log: SlowLog::new(1), core: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(ended: u64, core: usize) -> SlowCommand {
        SlowCommand {
            ended: Instant(ended),
            core,
            volume: Some("disk".into()),
            host: None,
            command: "READ(16)",
            class: Class::Read,
            blocks: Some(Blocks { lba: 8, count: 1, size: 512 }),
            times: Times { total: 10, network: 3, store: 5 },
            in_flight: 1,
            ending: Ending::Done,
        }
    }

    #[test]
    fn commands_are_slow_from_the_threshold_on() {
        let log = SlowLog::new(1);
        assert!(!log.is_slow(u64::MAX - 1, Ending::Done) && !log.is_slow(5_000_000, Ending::Aborted));
        log.set_threshold(Duration::from_millis(250));
        assert!(log.is_slow(250_000_000, Ending::Done) && !log.is_slow(249_999_999, Ending::Failed));
        assert!(log.is_slow(1_000_000, Ending::Aborted) && !log.is_slow(999_999, Ending::Aborted));
        log.set_threshold(Duration::ZERO);
        assert!(!log.is_slow(1_000_000_000, Ending::Done) && !log.is_slow(1_000_000_000, Ending::Aborted));
    }

    #[test]
    fn the_parts_of_a_time_add_up() {
        let times = Times { total: 10, network: 3, store: 5 };
        assert_eq!(times.queue() + times.network + times.store, times.total);
        assert_eq!(Times { total: 1, network: 3, store: 5 }.queue(), 0);
    }

    #[test]
    fn a_flood_is_counted_and_the_newest_are_kept() {
        let log = SlowLog::new(2);
        let told = Arc::new(AtomicU64::new(0));
        let count = told.clone();
        log.tell(Box::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        const SECOND: u64 = 1_000_000_000;
        for second in 1..=10 {
            (0..1000).for_each(|at| log.record(slow(second * SECOND + at, 0)));
        }
        log.record(slow(SECOND * 10 + 5, 1));
        log.record(slow(0, 7));
        let (kept, omitted) = log.kept();
        assert_eq!((kept.len(), omitted), (KEPT_MAX + 1, 10 * (1000 - u64::from(RECORDED_PER_SECOND))));
        assert!(kept.is_sorted_by_key(|command| command.ended) && kept[0].ended.0 > 4 * SECOND);
        assert_eq!(told.load(Ordering::Relaxed), 10 * u64::from(TOLD_PER_SECOND) + 1);
    }
}
