//! The space of the pool that an image takes space from. A thread of its own asks a monitor for it from time to time.

use super::cluster::Cluster;
use super::view::View;
use super::{Failure, Rados};
use lunar_reactor::log;
use rustix::io::Errno;
use serde::Deserialize;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two questions to a monitor. The cluster counts its space every few seconds, and a warning of a pool
/// that becomes full may be half a minute late. Each image has a process that asks: 300 of them are ten questions a
/// second for the monitors, and one is less than 0.1 % of a processor here.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time between two counts of the allocation of an image that is written.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);
/// That time is at least so many times as long as a count takes: it takes no more than 1 % of a processor.
const COUNT_SHARE: u32 = 100;
/// The question. Reading the space of pools takes the right to read the state of the monitors (`mon 'allow r'`), which
/// `profile rbd` has.
const QUESTION: &CStr = cr#"{"prefix": "df", "detail": "detail", "format": "json"}"#;
/// The longest answer that is read: a pool takes about 600 bytes of it.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The space of the pool, and of the image in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Bytes that may still be written to the pool.
    pub free: u64,
    /// Bytes of data in the pool, and the free ones.
    pub size: u64,
    /// Bytes of the image that are allocated, in whole objects; `None`: they are not counted.
    pub allocated: Option<u64>,
}

/// Why the space is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Unknown {
    /// The monitor does not answer, or not this user.
    Refused(Failure),
    /// The answer has so many bytes.
    Long(usize),
    /// The answer does not have the pool: no manager counts, or it has just begun to.
    NoPool,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why @ Failure(Errno::ACCESS | Errno::PERM)) => {
                write!(f, "{why}. The user needs the right to read from monitors (`mon 'allow r'`)")
            }
            Self::Refused(why) => write!(f, "{why}"),
            Self::Long(bytes) => write!(f, "the list of pools has {bytes} bytes"),
            Self::NoPool => f.write_str("the cluster does not count its space: does a manager run (`ceph mgr stat`)?"),
        }
    }
}

/// The answer of a monitor, of which other fields are left out.
#[derive(Deserialize)]
struct Answer {
    pools: Vec<Pool>,
}

#[derive(Deserialize)]
struct Pool {
    id: i64,
    stats: Stats,
}

#[derive(Deserialize)]
struct Stats {
    /// Bytes of data, without copies.
    stored: u64,
    /// Bytes that may be written, without copies, before a store of the pool is full.
    max_avail: u64,
    /// The most bytes of data; zero: no quota.
    #[serde(default)]
    quota_bytes: u64,
}

/// The free bytes and the size of a pool.
fn pool_in(answer: &[u8], number: i64) -> Option<(u64, u64)> {
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    let stats = answer.pools.into_iter().find(|pool| pool.id == number)?.stats;
    let quota = if stats.quota_bytes > 0 { stats.quota_bytes.saturating_sub(stats.stored) } else { u64::MAX };
    let free = stats.max_avail.min(quota);
    Some((free, stats.stored.saturating_add(free)))
}

/// `rados_mon_command`.
type Command = unsafe extern "C" fn(
    *mut c_void,
    *const *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut *mut c_char,
    *mut usize,
) -> c_int;

/// A connection to a cluster, for the thread.
struct Asker {
    cluster: *mut c_void,
    command: Command,
    free: unsafe extern "C" fn(*mut c_char),
}

// SAFETY: the library allows its functions for one connection on any thread at the same time. The connection is closed
// after the thread has ended.
unsafe impl Send for Asker {}

impl Asker {
    fn of(cluster: &Cluster) -> Self {
        let Rados { rados_mon_command, rados_buffer_free, .. } = &cluster.libraries.rados;
        Self { cluster: cluster.handle, command: *rados_mon_command, free: *rados_buffer_free }
    }

    fn ask(&self, pool: i64) -> Result<(u64, u64), Unknown> {
        let question = QUESTION.as_ptr();
        let (mut answer, mut len, mut words, mut words_len) = (null_mut(), 0, null_mut(), 0);
        // SAFETY: the cluster is connected, the question is one string, and both buffers are written.
        let result = unsafe {
            (self.command)(
                self.cluster,
                &raw const question,
                1,
                null(),
                0,
                &raw mut answer,
                &raw mut len,
                &raw mut words,
                &raw mut words_len,
            )
        };
        let found = Failure::check(result).map_err(Unknown::Refused).and_then(|_| {
            if len > ANSWER_BYTES_MAX {
                return Err(Unknown::Long(len));
            }
            if answer.is_null() {
                return Err(Unknown::NoPool);
            }
            // SAFETY: the library has allocated so many bytes, and they are freed below.
            let answer = unsafe { std::slice::from_raw_parts(answer.cast(), len) };
            pool_in(answer, pool).ok_or(Unknown::NoPool)
        });
        for buffer in [answer, words].into_iter().filter(|buffer| !buffer.is_null()) {
            // SAFETY: the library has allocated it.
            unsafe { (self.free)(buffer) };
        }
        found
    }
}

/// The image, for the thread.
pub(super) struct Counted {
    pub(super) view: View,
    /// Bytes of the image.
    pub(super) size: u64,
    /// The number of the pool of its data.
    pub(super) pool: i64,
    /// Commands that have changed it.
    pub(super) changes: Arc<AtomicU64>,
    /// Signalled when there is an answer.
    pub(super) bell: Arc<OwnedFd>,
}

/// The thread. Dropping it waits for the answer of a monitor.
pub(super) struct Space {
    last: Arc<Mutex<Option<Measured>>>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Space {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there are too many threads.
    pub(super) fn start(cluster: &Cluster, counted: Counted) -> io::Result<Self> {
        let (last, (stop, stopped)) = (Arc::<Mutex<_>>::default(), sync_channel(0));
        let (asker, shared) = (Asker::of(cluster), last.clone());
        let work = move || measure(&asker, &counted, &shared, &stopped);
        let thread = std::thread::Builder::new().name("space".into()).spawn(work)?;
        Ok(Self { last, stop: Some(stop), thread: Some(thread) })
    }

    /// The last answer.
    pub(super) fn last(&self) -> Option<Measured> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The allocated bytes of an image, which are counted again only after changes.
#[derive(Default)]
struct Count {
    /// The changes that were counted, and the earliest time of the next count.
    counted: Option<(u64, Instant)>,
    allocated: Option<u64>,
}

impl Count {
    fn look(&mut self, image: &Counted) -> Option<u64> {
        let changes = image.changes.load(Ordering::Relaxed);
        let now = Instant::now();
        if self.counted.is_none_or(|(before, next)| before != changes && now >= next) {
            self.allocated = image.view.allocated(image.size).unwrap_or(None);
            self.counted = Some((changes, now + COUNT_INTERVAL.max(now.elapsed().saturating_mul(COUNT_SHARE))));
        }
        self.allocated
    }
}

fn measure(asker: &Asker, image: &Counted, last: &Mutex<Option<Measured>>, stopped: &Receiver<()>) {
    let (mut count, mut told) = (Count::default(), None);
    loop {
        let found = asker.ask(image.pool);
        let measured = match &found {
            Ok((free, size)) => {
                told = None;
                Some(Measured { free: *free, size: *size, allocated: count.look(image) })
            }
            Err(why) => {
                if told.as_ref() != Some(why) {
                    log!(warning, "the space of the pool is not known: {why}");
                    told = Some(why.clone());
                }
                None
            }
        };
        *last.lock().unwrap_or_else(PoisonError::into_inner) = measured;
        // A full counter signals as well.
        let _ = rustix::io::write(&image.bell, &1_u64.to_ne_bytes());
        if !matches!(stopped.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::view::tests::{Fake, view};
    use rustix::event::{EventfdFlags, eventfd};

    /// As a monitor of version 18 answers, shortened.
    const ANSWER: &str = r#"{"stats":{"total_bytes":1073741824,"total_used_raw_ratio":0.025},"stats_by_class":{},
        "pools":[{"name":".mgr","id":1,"stats":{"stored":72,"objects":6,"percent_used":1.2e-05,"max_avail":99}},
        {"name":"rbd","id":2,"stats":{"stored":3000,"stored_raw":9000,"max_avail":7000,"quota_bytes":0}},
        {"name":"small","id":3,"stats":{"stored":3000,"max_avail":7000,"quota_bytes":4096}},
        {"name":"over","id":4,"stats":{"stored":5000,"max_avail":7000,"quota_bytes":4096}}]}"#;

    #[test]
    fn a_pool_has_what_the_monitor_says_and_no_more_than_its_quota() {
        let pool = |number| pool_in(ANSWER.as_bytes(), number);
        assert_eq!([pool(1), pool(2)], [Some((99, 171)), Some((7000, 10_000))]);
        assert_eq!([pool(3), pool(4)], [Some((1096, 4096)), Some((0, 5000))]);
        assert_eq!(pool(5), None);
        // Without a manager.
        assert_eq!(pool_in(br#"{"stats":{"num_osds":0},"stats_by_class":{},"pools":[]}"#, 2), None);
        for broken in ["", "{", "[]", r#"{"pools":[{"id":2}]}"#, r#"{"pools":[{"id":2,"stats":{"stored":-1}}]}"#] {
            assert_eq!(pool_in(broken.as_bytes(), 2), None, "{broken}");
        }
    }

    extern "C" fn answers(
        _: *mut c_void,
        question: *const *const c_char,
        count: usize,
        _: *const c_char,
        _: usize,
        answer: *mut *mut c_char,
        len: *mut usize,
        _: *mut *mut c_char,
        _: *mut usize,
    ) -> c_int {
        // SAFETY: the caller has one question, and places for an answer.
        unsafe {
            assert_eq!((count, CStr::from_ptr(*question)), (1, QUESTION));
            (*answer, *len) = (ANSWER.as_ptr().cast_mut().cast(), ANSWER.len());
        }
        0
    }

    extern "C" fn refuses(
        _: *mut c_void,
        _: *const *const c_char,
        _: usize,
        _: *const c_char,
        _: usize,
        _: *mut *mut c_char,
        _: *mut usize,
        _: *mut *mut c_char,
        _: *mut usize,
    ) -> c_int {
        -13
    }

    extern "C" fn free(_: *mut c_char) {}

    #[test]
    fn the_thread_measures_at_once_and_ends_when_it_is_asked() {
        let commands: [(Command, _); 2] = [(answers, Some((7000, 10_000))), (refuses, None)];
        for (command, expected) in commands {
            let image = Fake { size: 4096, ..Fake::default() };
            let bell = Arc::new(eventfd(0, EventfdFlags::empty()).expect("an eventfd"));
            let changes = Arc::default();
            let counted = Counted { view: view(&image), size: 4096, pool: 2, changes, bell: bell.clone() };
            let (last, (stop, stopped)) = (Mutex::default(), sync_channel(0));
            std::thread::scope(|scope| {
                let asker = Asker { cluster: null_mut(), command, free };
                let last = &last;
                scope.spawn(move || measure(&asker, &counted, last, &stopped));
                rustix::io::read(&bell, &mut [0; size_of::<u64>()]).expect("it measures");
                drop(stop);
            });
            let measured = last.into_inner().expect("no test panics with it");
            assert_eq!(measured, expected.map(|(free, size)| Measured { free, size, allocated: None }));
        }
        assert!(Unknown::Refused(Failure(Errno::ACCESS)).to_string().contains("mon 'allow r'"));
    }

    #[test]
    fn an_image_that_nobody_writes_is_counted_once() {
        let mut image = Fake { size: 1 << 20, features: 1 << 3 | 1 << 4, objects: vec![(0, true)], ..Fake::default() };
        let (changes, bell) = (Arc::<AtomicU64>::default(), Arc::new(eventfd(0, EventfdFlags::empty()).expect("one")));
        let mut count = Count::default();
        let counted = |image: &Fake| Counted {
            view: view(image),
            size: image.size,
            pool: 2,
            changes: changes.clone(),
            bell: bell.clone(),
        };
        assert_eq!(count.look(&counted(&image)), Some(4096));
        image.objects.push((1, true));
        changes.fetch_add(1, Ordering::Relaxed);
        assert_eq!(count.look(&counted(&image)), Some(4096), "it was counted a moment ago");
        count.counted = Some((1, Instant::now()));
        assert_eq!(count.look(&counted(&image)), Some(4096), "nothing has changed");
        count.counted = Some((0, Instant::now()));
        assert_eq!(count.look(&counted(&image)), Some(8192));
    }
}
