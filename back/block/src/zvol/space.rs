//! The space of zvols and of their pools, as `zfs get` tells it.
//!
//! One thread asks for all zvols that are served, and only if a value is requested: a request returns the last value,
//! and lets the thread ask again if that is old. A device that was not written to since is asked about rarely, so that
//! a machine at rest starts no programs.

use super::program::{ASKED_BYTES_MAX, Call, call_anyway};
use super::schema::Dataset;
use lunar_core::io::Space;
use lunar_engine::backend::PoolSpace;
use lunar_reactor::log;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time between two questions while zvols are written: a pool that becomes full is noticed in time, and the program
/// takes some milliseconds of a processor.
const INTERVAL: Duration = Duration::from_secs(10);
/// That time while no zvol that is served is written. Other users of the pool may write.
const INTERVAL_AT_REST: Duration = Duration::from_secs(300);
/// How long a question may take. A pool that is suspended does not answer.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// A zvol whose space is asked for, as long as it is served. All cores read it.
#[derive(Debug)]
pub(crate) struct Measured {
    dataset: Dataset,
    known: Mutex<Known>,
}

/// The findings about a zvol.
#[derive(Debug, Default)]
struct Known {
    /// The space in its pool, and its own; `None` until it is known.
    found: Option<(PoolSpace, Space)>,
    /// Its writes at the last look.
    writes: Option<u64>,
}

impl Known {
    /// Whether the zvol was written since the last look, by the number of its writes.
    fn is_written(&mut self, writes: u64) -> bool {
        self.writes.replace(writes) != Some(writes)
    }
}

impl Measured {
    /// Asks for the space of this zvol from now on, for as long as the result is there.
    pub(super) fn new(dataset: Dataset) -> Arc<Self> {
        let measured = Arc::new(Self { dataset, known: Mutex::default() });
        let mut asker = ASKER.lock();
        asker.zvols.retain(|known| known.strong_count() > 0);
        asker.zvols.push(Arc::downgrade(&measured));
        asker.asked = None;
        measured
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its own space; `None` until it is known.
    pub(crate) fn space(&self) -> Option<Space> {
        self.known().found.as_ref().map(|(_, own)| *own)
    }

    /// The space in its pool; `None` until it is known. `writes`: a number that is another one after a write.
    pub(super) fn pool_space(&self, writes: u64) -> Option<PoolSpace> {
        let (is_written, space) = {
            let mut known = self.known();
            (known.is_written(writes), known.found.as_ref().map(|(space, _)| space.clone()))
        };
        ASKER.look(is_written);
        space
    }

    fn set(&self, found: &Found<'_>) {
        // The numbers before count until there are new ones.
        if let Some(space) = found.of(&self.dataset) {
            self.known().found = Some(space);
        }
    }
}

/// The thread that asks, and its questions.
struct Asker {
    state: Mutex<Questions>,
    wake: Condvar,
}

struct Questions {
    zvols: Vec<Weak<Measured>>,
    /// Whether a zvol was written since the last question.
    has_writes: bool,
    asked: Option<Instant>,
    is_wanted: bool,
    has_thread: bool,
    /// The last error, which is logged once.
    failed: Option<String>,
}

static ASKER: Asker = Asker { state: Mutex::new(Questions::NONE), wake: Condvar::new() };

impl Questions {
    const NONE: Self =
        Self { zvols: Vec::new(), has_writes: false, asked: None, is_wanted: false, has_thread: false, failed: None };

    /// Takes a look at a zvol, which was written since the last one or not; returns whether it is time to ask.
    fn look(&mut self, is_written: bool, now: Instant) -> bool {
        self.has_writes |= is_written;
        // A program that waits for a suspended pool may not end: there are not many of them.
        let interval = if self.has_writes && self.failed.is_none() { INTERVAL } else { INTERVAL_AT_REST };
        if self.asked.is_some_and(|asked| now.duration_since(asked) < interval) {
            return false;
        }
        (self.asked, self.has_writes) = (Some(now), false);
        true
    }
}

impl Asker {
    fn lock(&self) -> MutexGuard<'_, Questions> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the thread ask if it is time. It never waits for an answer.
    fn look(&'static self, is_written: bool) {
        let mut state = self.lock();
        if !state.look(is_written, Instant::now()) {
            return;
        }
        state.is_wanted = true;
        self.wake.notify_one();
        if !state.has_thread {
            // Without a thread the space is not known; the next look tries again.
            let thread = std::thread::Builder::new().name("zfs-space".into()).spawn(move || self.run());
            state.has_thread = thread.is_ok();
        }
    }

    fn run(&self) {
        loop {
            let mut state =
                self.wake.wait_while(self.lock(), |state| !state.is_wanted).unwrap_or_else(PoisonError::into_inner);
            state.is_wanted = false;
            let zvols: Vec<_> = state.zvols.iter().filter_map(Weak::upgrade).collect();
            drop(state);
            let failed = ask(&zvols);
            let mut state = self.lock();
            if let Some(why) = failed.as_ref().filter(|_| failed != state.failed) {
                log!(warning, "the space of zvols is not known: {why}");
            }
            state.failed = failed;
        }
    }
}

/// Asks for the space of these zvols, in calls of bounded length; returns the last error.
fn ask(zvols: &[Arc<Measured>]) -> Option<String> {
    let mut failed = None;
    for part in parts(zvols) {
        let names = part.iter().map(|zvol| zvol.dataset.clone()).collect();
        match call_anyway(&Call::Space(names), ANSWER_TIME) {
            // A zvol that is gone is an error of its own, and the others are told.
            Ok((told, said, has_succeeded)) => {
                let found = Found::parse(&told);
                part.iter().for_each(|zvol| zvol.set(&found));
                failed = failed.or_else(|| (!has_succeeded).then(|| said.trim().to_owned()));
            }
            Err(why) => return Some(why.to_string()),
        }
    }
    failed
}

/// The zvols of each call.
fn parts(zvols: &[Arc<Measured>]) -> Vec<Vec<&Measured>> {
    let mut parts: Vec<Vec<&Measured>> = Vec::new();
    let mut bytes = ASKED_BYTES_MAX;
    for zvol in zvols {
        let more = zvol.dataset.name().len() + 1;
        match parts.last_mut().filter(|_| bytes + more <= ASKED_BYTES_MAX) {
            Some(part) => {
                part.push(zvol);
                bytes += more;
            }
            None => {
                parts.push(vec![zvol]);
                bytes = more;
            }
        }
    }
    parts
}

/// The properties of datasets, by dataset and property.
struct Found<'a>(BTreeMap<(&'a str, &'a str), u64>);

impl<'a> Found<'a> {
    /// Reads lines of name, property and value. A property that a dataset does not have is a dash.
    fn parse(text: &'a str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split('\t');
            let (name, property, value) = (words.next()?, words.next()?, words.next()?);
            Some(((name, property), value.parse().ok()?))
        });
        Self(lines.collect())
    }

    fn number(&self, name: &str, property: &str) -> Option<u64> {
        self.0.get(&(name, property)).copied()
    }

    /// The space of a zvol in its pool, and its own.
    fn of(&self, dataset: &Dataset) -> Option<(PoolSpace, Space)> {
        let (name, pool) = (dataset.name(), dataset.pool());
        let [free, taken, number] = ["available", "used", "guid"].map(|property| self.number(pool, property));
        let (free, taken, number) = (free?, taken?, number?);
        let used = self.number(name, "referenced")?;
        // A snapshot grows no more.
        let available = if dataset.is_snapshot() { 0 } else { self.number(name, "available")? };
        let missing = match dataset.is_snapshot() {
            true => 0,
            // Reserved space is not free for others any more.
            false => {
                let reserved = self.number(name, "usedbyrefreservation").unwrap_or(0);
                self.number(name, "volsize")?.saturating_sub(used).saturating_sub(reserved)
            }
        };
        let space = PoolSpace {
            pool: number,
            noun: "ZFS pool",
            place: pool.to_owned(),
            inspection: format!("zfs list -o space -r {pool}"),
            free,
            size: free.saturating_add(taken),
            allocated: used,
            missing,
        };
        Some((space, Space { used, available }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::value::Textual;

    fn dataset(name: &str) -> Dataset {
        Dataset::parse(name).expect("a name")
    }

    const TEXT: &str = "tank\tavailable\t1000\ntank\tused\t500\ntank\treferenced\t24\ntank\tvolsize\t-\n\
                        tank\tusedbyrefreservation\t0\ntank\tguid\t99\n\
                        tank/thin\tavailable\t1000\ntank/thin\tused\t64\ntank/thin\treferenced\t64\n\
                        tank/thin\tvolsize\t4096\ntank/thin\tusedbyrefreservation\t0\ntank/thin\tguid\t5\n\
                        tank/thick\tavailable\t1300\ntank/thick\tused\t400\ntank/thick\treferenced\t100\n\
                        tank/thick\tvolsize\t400\ntank/thick\tusedbyrefreservation\t300\n\
                        tank/thin@s\tavailable\t-\ntank/thin@s\treferenced\t60\ntank/thin@s\tvolsize\t4096\n";

    #[test]
    fn the_space_of_a_zvol_is_that_of_its_pool_and_its_own() {
        let found = Found::parse(TEXT);
        let of = |name| found.of(&dataset(name)).map(|(pool, own)| (pool.missing, pool.allocated, own.available));
        assert_eq!(of("tank/thin"), Some((4032, 64, 1000)));
        assert_eq!(of("tank/thick"), Some((0, 100, 1300)), "its space is reserved");
        assert_eq!(of("tank/thin@s"), Some((0, 60, 0)));
        assert_eq!((of("tank/gone"), of("dozer/thin")), (None, None));
        let (pool, _) = found.of(&dataset("tank/thin")).expect("it is there");
        assert_eq!((pool.pool, pool.free, pool.size, pool.place.as_str()), (99, 1000, 1500, "tank"));
    }

    #[test]
    fn a_zvol_at_rest_is_asked_about_rarely() {
        let (mut state, mut a, mut b) = (Questions::NONE, Known::default(), Known::default());
        let start = Instant::now();
        let mut look = |zvol: &mut Known, writes, seconds| {
            state.look(zvol.is_written(writes), start + Duration::from_secs(seconds))
        };
        assert!(look(&mut a, 0, 0), "the first look");
        assert!(!look(&mut b, 0, 1), "not before the interval");
        assert!(look(&mut a, 0, 10), "the other one is new");
        assert!(!look(&mut a, 0, 30) && !look(&mut b, 0, 200), "nothing is written");
        assert!(!look(&mut a, 7, 15), "the clock of the test goes back, and nothing breaks");
        assert!(look(&mut b, 0, 201), "one of them was written");
        assert!(!look(&mut b, 0, 500) && look(&mut b, 0, 501));
    }

    #[test]
    fn calls_have_bounded_lengths() {
        let long = "x".repeat(240);
        let zvols: Vec<_> = (0..100).map(|number| Measured::new(dataset(&format!("tank/{long}{number}")))).collect();
        let parts = parts(&zvols);
        assert!(parts.len() > 1 && parts.iter().map(Vec::len).sum::<usize>() == zvols.len());
        for part in parts {
            assert!(part.iter().map(|zvol| zvol.dataset.name().len() + 1).sum::<usize>() <= ASKED_BYTES_MAX);
        }
    }

    #[test]
    fn the_space_is_unknown_until_it_is_found() {
        let zvol = Measured::new(dataset("tank/thin"));
        assert_eq!(zvol.space(), None);
        zvol.set(&Found::parse(TEXT));
        assert_eq!(zvol.space(), Some(Space { used: 64, available: 1000 }));
        zvol.set(&Found::parse(""));
        assert_eq!(zvol.space(), Some(Space { used: 64, available: 1000 }), "the last one that was told");
    }
}
