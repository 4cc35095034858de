//! An open file or block device, for every store over one: memory aligned for direct I/O, shared flushes, and a record
//! of failed writes.
//!
//! Linux reports once to each open file description that data in the page cache could not be written, and then drops
//! that data: a second fdatasync succeeds although data is lost. Therefore each core opens the file again for its
//! flushes, so that no other call consumes the report; one flush runs at a time; and after the first failure every
//! flush fails, on every core, until the volume is opened again. The same record has the end of the data of a file that
//! was truncated while it was open.

use crate::log;
use crate::op::{Allocate, Handle, Op};
use crate::{Reactor, os_error};
use lunar_core::io::{Completion, Data, Done, Fault, Outcome};
use lunar_core::mem::{Arena, Sg, SgMut};
use rustix::fs::{Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

/// How long a request waits for memory for an aligned copy: less than the time after which initiators give up (30 s).
const MEMORY_PATIENCE: Duration = Duration::from_secs(20);
/// How often a write through the page cache is repeated because another one failed at the same time.
const WRITES_MAX: usize = 4;

/// The mode of access to a file or device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    /// Whether every change is on the medium before it is answered.
    pub durable: bool,
    /// Direct I/O with this alignment; `None`: through the page cache.
    pub direct: Option<Alignment>,
}

/// The requirements of direct I/O on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alignment {
    /// The alignment of the start of each piece in bytes; at most a page.
    pub memory: usize,
    /// The unit of the length of each piece in bytes; the caller aligns offsets to it.
    pub length: usize,
}

impl Alignment {
    fn fits(self, pieces: impl Iterator<Item = (usize, usize)>) -> bool {
        let mut pieces = pieces;
        pieces.all(|(address, len)| address.is_multiple_of(self.memory) && len.is_multiple_of(self.length))
    }
}

/// An open file or device, shared by all cores: opened, locked and checked once.
#[derive(Debug)]
pub struct Source {
    file: OwnedFd,
    policy: Policy,
    health: Arc<Health>,
    /// The first open file, if it is another one: its description has the lock, or the device.
    first: Option<Arc<Self>>,
}

/// The losses of a volume: one record for all cores that have the volume open.
#[derive(Debug)]
pub struct Health {
    /// The name, for the log.
    name: String,
    /// Whether a flush has failed.
    lost: AtomicBool,
    /// The end of the data in bytes: the least size that was seen of a file that was truncated. [`u64::MAX`]: it never
    /// was.
    data_end: AtomicU64,
    /// The number of failed durable writes of descriptions that share their error cursor.
    failures: Arc<AtomicU64>,
    /// Whether writes without durability were submitted since the last flush: a flush may have much to write. It is a
    /// guess that decides about speed only.
    has_cached: AtomicBool,
}

impl Health {
    /// The record of a volume that was just opened; `name` is for the log.
    #[must_use]
    pub fn new(name: String) -> Arc<Self> {
        let (lost, data_end, failures) = (AtomicBool::new(false), AtomicU64::new(u64::MAX), Arc::default());
        Arc::new(Self { name, lost, data_end, failures, has_cached: AtomicBool::new(false) })
    }

    /// Whether a flush has failed: data in the page cache could not be written.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The end of the data in bytes; [`u64::MAX`] if nothing was cut off.
    #[must_use]
    pub fn data_end(&self) -> u64 {
        self.data_end.load(Ordering::Relaxed)
    }

    /// Records that the data behind `end` is gone. It does not come back when the file grows again: the new end of a
    /// file reads as zeroes.
    pub fn cut_off(&self, end: u64) {
        self.data_end.fetch_min(end, Ordering::Relaxed);
    }

    fn lose(&self, fault: Fault) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            log!(
                error,
                "{}: data in the page cache could not be written ({}) and may be lost. Flushes fail from now on. \
                    Check the underlying disk, then start again.",
                self.name,
                os_error(fault)
            );
        }
    }
}

impl Source {
    /// `file` as it was opened (O_DIRECT, if `policy` says so); `name` is for the log.
    #[must_use]
    pub fn new(name: String, file: OwnedFd, policy: Policy) -> Self {
        Self { file, policy, health: Health::new(name), first: None }
    }

    /// The same file or device, opened again as `file` with another mode. Both share the record of failures, and the
    /// first open file stays open as long as this source and its disks.
    #[must_use]
    pub fn again(self: &Arc<Self>, file: OwnedFd, policy: Policy) -> Self {
        Self { file, policy, health: self.health.clone(), first: Some(self.first().clone()) }
    }

    /// The first open file: its description has the lock, or the device.
    #[must_use]
    pub fn first(self: &Arc<Self>) -> &Arc<Self> {
        self.first.as_ref().unwrap_or(self)
    }

    /// The name, for the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.health.name
    }

    /// The record of what was lost.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The disk of this core.
    ///
    /// The driver of each core gets the first description, too. io_uring keeps it in the table of its ring, which the
    /// kernel frees when all requests of the ring have ended (`io_ring_exit_work` of io_uring/io_uring.c), and
    /// operations of worker threads keep all descriptors of the process open. So the lock of a process that was killed
    /// is free, and its device can be opened exclusively, only after all of its I/O has ended: no write of a process
    /// before this one overtakes one of this process.
    ///
    /// # Errors
    /// When the process or the driver has no room for more open files.
    pub fn open(self: &Arc<Self>, reactor: &Reactor) -> io::Result<Disk> {
        let (data, has_own_errors) = again(self.file.as_fd())?;
        let data = reactor.driver().adopt(data)?;
        let sync = reactor.driver().adopt(again(self.file.as_fd())?.0)?;
        let first = reactor.driver().adopt(self.first().file.try_clone()?)?;
        // A read-only file cannot release space.
        let (space, fence) = match is_writable(self.first().file())? {
            true => (first, None),
            false => (reactor.driver().adopt(self.file.try_clone()?)?, Some(first)),
        };
        let keeper = Keeper { _source: self.clone(), _fence: fence };
        let handles = Handles { data, sync, space, has_own_errors };
        Ok(Disk::build(reactor, handles, self.policy, self.health.clone(), Some(keeper)))
    }
}

fn is_writable(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE != OFlags::RDONLY)
}

/// The same file, opened once more, and whether it has an error cursor of its own. Where that is impossible (no /proc,
/// or the right to open it was dropped), the same description is used: the shared failure still makes flushes fail,
/// except those that end in the same microseconds as the one that failed.
fn again(file: BorrowedFd<'_>) -> io::Result<(OwnedFd, bool)> {
    let flags = rustix::fs::fcntl_getfl(file)? & (OFlags::RWMODE | OFlags::DIRECT) | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok((file, true)),
        Err(_) => Ok((file.try_clone_to_owned()?, false)),
    }
}

/// One core's open file or device. Clones share it.
#[derive(Clone)]
pub struct Disk(Rc<Inner>);

/// Keeps the lock as long as a write may be in progress.
struct Keeper {
    _source: Arc<Source>,
    /// The first description in the driver, if the disk has no other use for it.
    _fence: Option<Handle>,
}

/// The open descriptions of a disk.
struct Handles {
    /// Reads and writes.
    data: Handle,
    /// Flushes only.
    sync: Handle,
    /// Changes of space only: the description that was opened first. A device that is open exclusively lets only its
    /// holder release space that has data in the page cache (other descriptions get EBUSY).
    space: Handle,
    /// Whether the kernel reports lost data of the page cache to `data` and to no other core's description.
    has_own_errors: bool,
}

struct Inner {
    reactor: Reactor,
    handles: Handles,
    policy: Policy,
    health: Arc<Health>,
    _keeper: Option<Keeper>,
    /// Flushes.
    flushes: Requests,
    /// Durable writes that are in the page cache.
    writes: Requests,
    /// The number of failed durable writes through the page cache: of this core or, if the cores share a description,
    /// of all.
    failures: Arc<AtomicU64>,
}

/// Requests that one fdatasync answers.
#[derive(Default)]
struct Requests {
    /// Requests that wait for the next round.
    waiting: RefCell<Vec<Done>>,
    is_syncing: Cell<bool>,
}

/// The requests of a round.
#[derive(Clone, Copy)]
enum Round {
    Flushes,
    Writes,
}

impl Inner {
    fn requests(&self, kind: Round) -> &Requests {
        match kind {
            Round::Flushes => &self.flushes,
            Round::Writes => &self.writes,
        }
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({}, {:?})", self.0.health.name, self.0.policy)
    }
}

impl Disk {
    /// A file that a driver has open, with three handles as in [`Source::open`]: for the simulator.
    #[must_use]
    pub fn over(reactor: &Reactor, handles: [Handle; 3], policy: Policy, health: &Arc<Health>) -> Self {
        let [data, sync, space] = handles;
        let handles = Handles { data, sync, space, has_own_errors: true };
        Self::build(reactor, handles, policy, health.clone(), None)
    }

    fn build(reactor: &Reactor, handles: Handles, policy: Policy, health: Arc<Health>, keeper: Option<Keeper>) -> Self {
        let failures = if handles.has_own_errors { Arc::default() } else { health.failures.clone() };
        Self(Rc::new(Inner {
            reactor: reactor.clone(),
            handles,
            policy,
            health,
            _keeper: keeper,
            flushes: Requests::default(),
            writes: Requests::default(),
            failures,
        }))
    }

    fn arena(&self) -> &Arena {
        self.0.reactor.arena()
    }

    /// See [`Health::data_end`].
    #[must_use]
    pub fn data_end(&self) -> u64 {
        self.0.health.data_end()
    }

    fn file(&self) -> Handle {
        self.0.handles.data.clone()
    }

    async fn submit(&self, op: Op, completion: &mut Completion) -> Outcome {
        self.0.reactor.submit(op, completion.token());
        completion.wait().await
    }

    /// Fills `into`.
    pub fn read(&self, offset: u64, into: SgMut, done: Done) {
        let is_aligned = self.0.policy.direct.is_none_or(|alignment| {
            alignment.fits(into.pieces().iter().map(|piece| (piece.as_ptr().addr(), piece.len())))
        });
        if is_aligned {
            return self.0.reactor.submit(Op::Read { file: self.file(), offset, into }, done);
        }
        let (disk, aligned) = (self.clone(), self.arena().take_sg(into.len()));
        self.0.reactor.spawn(async move {
            let aligned = match aligned {
                Some(aligned) => Some(aligned),
                None => disk.wait_for_memory(into.len()).await,
            };
            match aligned {
                Some(aligned) => disk.read_copied(offset, into, aligned, done).await,
                None => done.complete(Outcome::with(Err(Fault::NoMemory), Data::In(into))),
            }
        });
    }

    /// Memory for an aligned copy; `None` when there is none for [`MEMORY_PATIENCE`]: the requests that have the memory
    /// may wait for some, too.
    async fn wait_for_memory(&self, len: usize) -> Option<SgMut> {
        let reactor = &self.0.reactor;
        let (mut memory, mut late) = (pin!(reactor.arena().wait_sg(len)), pin!(reactor.sleep(MEMORY_PATIENCE)));
        poll_fn(|cx| match memory.as_mut().poll(cx) {
            Poll::Ready(memory) => Poll::Ready(Some(memory)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    async fn read_copied(self, offset: u64, mut into: SgMut, aligned: SgMut, done: Done) {
        let op = Op::Read { file: self.file(), offset, into: aligned };
        let outcome = self.submit(op, &mut Completion::new()).await;
        // Memory that was not filled has old data of other requests.
        if outcome.result.is_ok() {
            let mut at = 0;
            for piece in outcome.data.into_in().pieces() {
                at += into.copy_from(at, piece);
            }
        }
        done.complete(Outcome::with(outcome.result, Data::In(into)));
    }

    /// Writes `data`; the memory that comes back may be an aligned copy of it.
    pub fn write(&self, offset: u64, data: Sg, durable: bool, done: Done) {
        let inner = &self.0;
        let durable = durable || inner.policy.durable;
        let Some(alignment) = inner.policy.direct else {
            if !durable {
                // A store that is not needed would take the cache line away from the other cores.
                if !inner.health.has_cached.load(Ordering::Relaxed) {
                    inner.health.has_cached.store(true, Ordering::Relaxed);
                }
                return inner.reactor.submit(Op::Write { file: self.file(), offset, data, durable }, done);
            }
            let disk = self.clone();
            return inner.reactor.spawn(async move { disk.write_through(offset, data, done).await });
        };
        let is_aligned = alignment.fits(data.pieces().iter().map(|piece| (piece.as_ptr().addr(), piece.len())));
        let copy = if is_aligned { None } else { copied(self.arena().take_sg(data.len()), &data) };
        if is_aligned || copy.is_some() {
            let data = copy.unwrap_or(data);
            return inner.reactor.submit(Op::Write { file: self.file(), offset, data, durable }, done);
        }
        let disk = self.clone();
        inner.reactor.spawn(async move {
            match copied(disk.wait_for_memory(data.len()).await, &data) {
                Some(data) => disk.0.reactor.submit(Op::Write { file: disk.file(), offset, data, durable }, done),
                None => done.complete(Outcome::with(Err(Fault::NoMemory), Data::Out(data))),
            }
        });
    }

    /// A durable write through the page cache. A failed write consumes the report of every failure, so the writes that
    /// ran at the same time cannot trust their success: they are repeated.
    async fn write_through(self, offset: u64, mut data: Sg, done: Done) {
        let mut completion = Completion::new();
        // Where all writes are durable, a flush of the file has no other data to write.
        if !self.0.health.has_cached.load(Ordering::Relaxed) && self.0.handles.has_own_errors {
            match self.write_and_share_sync(offset, data, &mut completion).await {
                Ok(outcome) => return done.complete(outcome),
                Err(again) => data = again,
            }
        }
        for _ in 0..WRITES_MAX {
            let before = self.failures();
            let op = Op::Write { file: self.file(), offset, data, durable: true };
            let outcome = self.submit(op, &mut completion).await;
            match (outcome.result, outcome.data) {
                (Ok(_), Data::Out(again)) if self.failures() != before => data = again,
                (result, memory) => {
                    self.count_failure(result);
                    return done.complete(Outcome::with(result, memory));
                }
            }
        }
        done.complete(Outcome::with(Err(Fault::Medium), Data::Out(data)));
    }

    /// Writes into the page cache, and shares a flush with the writes that end at the same time: the kernel executes
    /// durable writes to one file one after the other, each with a flush of its own.
    ///
    /// # Errors
    /// The data, if it is not known to be on the medium.
    async fn write_and_share_sync(&self, offset: u64, data: Sg, completion: &mut Completion) -> Result<Outcome, Sg> {
        let before = self.failures();
        let op = Op::Write { file: self.file(), offset, data, durable: false };
        let written = self.submit(op, completion).await;
        // A write into the page cache consumes no report.
        if written.result.is_err() {
            return Ok(written);
        }
        self.join(Round::Writes, completion.token());
        match (completion.wait().await.result, written.data) {
            (Ok(_), data) if self.failures() == before => Ok(Outcome::with(written.result, data)),
            (Err(fault), data) if fault == Fault::Aborted => Ok(Outcome::with(Err(fault), data)),
            (_, Data::Out(data)) => Err(data),
            (result, data) => Ok(Outcome::with(result, data)),
        }
    }

    fn failures(&self) -> u64 {
        self.0.failures.load(Ordering::Acquire)
    }

    /// Counts a failure of a durable write, which may have consumed the report of other failures.
    fn count_failure(&self, result: Result<u32, Fault>) {
        if result.is_err_and(|fault| fault != Fault::Aborted) {
            self.0.failures.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Flushes every write that was answered before.
    pub fn flush(&self, done: Done) {
        self.join(Round::Flushes, done);
    }

    /// Adds a request to the next round.
    fn join(&self, kind: Round, done: Done) {
        let requests = self.0.requests(kind);
        requests.waiting.borrow_mut().push(done);
        if !requests.is_syncing.replace(true) {
            let disk = self.clone();
            self.0.reactor.spawn(async move { disk.sync_rounds(kind).await });
        }
    }

    /// Answers requests in rounds: those that arrive during one share the next.
    async fn sync_rounds(&self, kind: Round) {
        let requests = self.0.requests(kind);
        let _syncing = Clears(&requests.is_syncing);
        let mut completion = Completion::new();
        loop {
            let round = requests.waiting.take();
            if round.is_empty() {
                return;
            }
            let result = match kind {
                Round::Flushes => self.sync(&mut completion).await,
                Round::Writes => self.sync_writes(&mut completion).await,
            };
            round.into_iter().for_each(|done| done.complete(Outcome::new(result)));
        }
    }

    /// Flushes durable writes. The description is that of the writes, so a failure is reported here or to one of them.
    async fn sync_writes(&self, completion: &mut Completion) -> Result<u32, Fault> {
        let result = self.submit(Op::Sync { file: self.file() }, completion).await.result;
        self.count_failure(result);
        result
    }

    async fn sync(&self, completion: &mut Completion) -> Result<u32, Fault> {
        let inner = &self.0;
        if inner.health.is_lost() {
            return Err(Fault::Medium);
        }
        inner.health.has_cached.store(false, Ordering::Relaxed);
        match self.submit(Op::Sync { file: inner.handles.sync.clone() }, completion).await.result {
            Err(Fault::Aborted) => Err(Fault::Aborted),
            Err(fault) => {
                inner.health.lose(fault);
                Err(fault)
            }
            // The kernel may have reported a failure to another core and not to this one.
            Ok(_) if inner.health.is_lost() => Err(Fault::Medium),
            Ok(_) => Ok(0),
        }
    }

    /// Changes the space behind a range.
    pub fn allocate(&self, how: Allocate, offset: u64, len: u64, done: Done) {
        self.change(Op::Allocate { file: self.0.handles.space.clone(), how, offset, len }, done);
    }

    /// Changes the kernel's metadata; it must be on the medium if every change must be.
    fn change(&self, op: Op, done: Done) {
        if !self.0.policy.durable {
            return self.0.reactor.submit(op, done);
        }
        let disk = self.clone();
        self.0.reactor.spawn(async move {
            let outcome = disk.submit(op, &mut Completion::new()).await;
            match outcome.result {
                // O_DSYNC applies to writes only.
                Ok(_) => disk.flush(done),
                Err(_) => done.complete(outcome),
            }
        });
    }

    /// Copies `len` bytes from `at` of another open file, or of this one, to `offset`, without memory of Lunar.
    pub fn copy(&self, from: &Self, at: u64, offset: u64, len: u64, done: Done) {
        // Handles are numbers of their driver.
        if !Rc::ptr_eq(self.0.reactor.driver(), from.0.reactor.driver()) {
            return done.complete(Outcome::new(Err(Fault::Unsupported)));
        }
        let op = Op::Copy { from: from.file(), at, file: self.file(), offset, len };
        self.change(op, done);
    }

    /// How far the bytes from `offset` on, at most `len`, have one provisioning state.
    pub fn extent(&self, offset: u64, len: u64, done: Done) {
        self.0.reactor.submit(Op::Extent { file: self.file(), offset, len }, done);
    }

    /// How much space it uses and how much is available to it. A device cannot report it: the kernel would describe
    /// the file system of its node.
    pub fn space(&self, done: Done) {
        self.0.reactor.submit(Op::Space { file: self.file() }, done);
    }
}

/// A copy in this memory, if there is any.
fn copied(memory: Option<SgMut>, data: &Sg) -> Option<Sg> {
    let (mut copy, mut at) = (memory?, 0);
    for piece in copy.pieces_mut() {
        at += data.copy_to(at, piece);
    }
    Some(copy.share())
}

/// Clears a flag when its task ends for any reason.
struct Clears<'a>(&'a Cell<bool>);

impl Drop for Clears<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
