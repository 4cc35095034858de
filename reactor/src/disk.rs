//! An open file or block device, as every store over one needs it: memory aligned for direct I/O, flushes that
//! are shared, and a failure to reach the medium that is not forgotten.
//!
//! Linux tells each open file description once that data in the page cache could not be written, and then
//! drops that data: a second fdatasync succeeds and means nothing. Therefore each core opens the file anew for
//! its flushes, so that nobody else's call takes the news away from them; one flush runs at a time; and after the
//! first that failed, every flush fails, on every core, until the volume is opened anew.

use crate::log;
use crate::op::{Allocate, Handle, Op};
use crate::{Reactor, os_error};
use lunar_core::io::{Completion, Data, Done, Fault, Outcome};
use lunar_core::mem::{Arena, Sg, SgMut};
use rustix::fs::{Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often a write through the page cache is done again because another one failed at the same time.
const WRITES_MAX: usize = 4;

/// How a file or device is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    /// Every change is on the medium before it is answered.
    pub durable: bool,
    /// Past the page cache, with this alignment.
    pub direct: Option<Alignment>,
}

/// What direct I/O asks of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alignment {
    /// Bytes that each piece starts at a multiple of; at most a page.
    pub memory: usize,
    /// Bytes that each piece is a multiple of; offsets must be, too, for the caller to see to.
    pub length: usize,
}

impl Alignment {
    fn fits(self, pieces: impl Iterator<Item = (usize, usize)>) -> bool {
        let mut pieces = pieces;
        pieces.all(|(address, len)| address.is_multiple_of(self.memory) && len.is_multiple_of(self.length))
    }
}

/// An open file or device as all cores share it: opened, locked and checked once.
#[derive(Debug)]
pub struct Source {
    file: OwnedFd,
    policy: Policy,
    health: Arc<Health>,
    /// What was opened first, if not this: its description has the lock, or the device.
    first: Option<Arc<Self>>,
}

/// Whether everything that a flush answered for is there: one for all cores that have a volume open.
#[derive(Debug)]
pub struct Health {
    /// For the log.
    name: String,
    lost: AtomicBool,
}

impl Health {
    /// Of a volume that was just opened; `name` for the log.
    #[must_use]
    pub fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, lost: AtomicBool::new(false) })
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn lose(&self, fault: Fault) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            log!(
                "{}: data in the page cache could not be written ({}) and may be gone. Flushes fail from now on. \
                 Check the disk beneath, then start again.",
                self.name,
                os_error(fault)
            );
        }
    }
}

impl Source {
    /// `file` as it was opened (O_DIRECT, where `policy` says so); `name` for the log.
    #[must_use]
    pub fn new(name: String, file: OwnedFd, policy: Policy) -> Self {
        Self { file, policy, health: Health::new(name), first: None }
    }

    /// The same file or device, opened again as `file` in another way: what was lost of it is lost for both, and what
    /// was opened first stays open as long as this and its disks.
    #[must_use]
    pub fn again(self: &Arc<Self>, file: OwnedFd, policy: Policy) -> Self {
        Self { file, policy, health: self.health.clone(), first: Some(self.first().clone()) }
    }

    /// What was opened first: its description has the lock, or the device.
    #[must_use]
    pub fn first(self: &Arc<Self>) -> &Arc<Self> {
        self.first.as_ref().unwrap_or(self)
    }

    /// For the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.health.name
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// This core's own.
    ///
    /// # Errors
    /// When the process or the driver has no room for more open files.
    pub fn open(self: &Arc<Self>, reactor: &Reactor) -> io::Result<Disk> {
        let data = reactor.driver().adopt(again(self.file.as_fd())?)?;
        let sync = reactor.driver().adopt(again(self.file.as_fd())?)?;
        // What was opened to be read only cannot give space back.
        let holder = if is_writable(self.first().file())? { self.first() } else { self };
        let space = reactor.driver().adopt(holder.file.try_clone()?)?;
        Ok(Disk::build(reactor, [data, sync, space], self.policy, self.health.clone(), Some(self.clone())))
    }
}

fn is_writable(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE != OFlags::RDONLY)
}

/// The same file, opened once more: with an error cursor of its own. Where that cannot be (/proc is not there,
/// or the right to open it was given up), the same description: the shared failure still keeps flushes honest
/// but for those that end in the same microseconds as the one that failed.
fn again(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(file)? & (OFlags::RWMODE | OFlags::DIRECT) | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file),
        Err(_) => file.try_clone_to_owned(),
    }
}

/// One core's open file or device. Clones are the same.
#[derive(Clone)]
pub struct Disk(Rc<Inner>);

struct Inner {
    reactor: Reactor,
    /// Reads and writes.
    data: Handle,
    /// Flushes only.
    sync: Handle,
    /// Changes of space only: the description that was opened first. A device that is open exclusively lets only
    /// its holder give back space that has data in the page cache (the others get EBUSY).
    space: Handle,
    policy: Policy,
    health: Arc<Health>,
    /// The lock is not let go while something may still be written.
    _source: Option<Arc<Source>>,
    /// Flushes that wait for the next round.
    waiting: RefCell<Vec<Done>>,
    is_syncing: Cell<bool>,
    /// Durable writes through the page cache that failed so far.
    failures: Cell<u32>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({}, {:?})", self.0.health.name, self.0.policy)
    }
}

impl Disk {
    /// A file that a driver has open, thrice as [`Source::open`] has it: the simulator's.
    #[must_use]
    pub fn over(reactor: &Reactor, handles: [Handle; 3], policy: Policy, health: &Arc<Health>) -> Self {
        Self::build(reactor, handles, policy, health.clone(), None)
    }

    fn build(
        reactor: &Reactor,
        handles: [Handle; 3],
        policy: Policy,
        health: Arc<Health>,
        source: Option<Arc<Source>>,
    ) -> Self {
        let [data, sync, space] = handles;
        Self(Rc::new(Inner {
            reactor: reactor.clone(),
            data,
            sync,
            space,
            policy,
            health,
            _source: source,
            waiting: RefCell::default(),
            is_syncing: Cell::new(false),
            failures: Cell::new(0),
        }))
    }

    fn arena(&self) -> &Arena {
        self.0.reactor.arena()
    }

    fn file(&self) -> Handle {
        self.0.data.clone()
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
        let Some(aligned) = self.arena().take_sg(into.len()) else {
            return done.complete(Outcome::with(Err(Fault::NoMemory), Data::In(into)));
        };
        let disk = self.clone();
        self.0.reactor.spawn(async move { disk.read_copied(offset, into, aligned, done).await });
    }

    async fn read_copied(self, offset: u64, mut into: SgMut, aligned: SgMut, done: Done) {
        let op = Op::Read { file: self.file(), offset, into: aligned };
        let outcome = self.submit(op, &mut Completion::new()).await;
        // Memory that was not filled holds what others left there.
        if outcome.result.is_ok() {
            let mut at = 0;
            for piece in outcome.data.into_in().pieces() {
                at += into.copy_from(at, piece);
            }
        }
        done.complete(Outcome::with(outcome.result, Data::In(into)));
    }

    /// Writes `data`; what comes back with the answer may be an aligned copy of it.
    pub fn write(&self, offset: u64, data: Sg, durable: bool, done: Done) {
        let inner = &self.0;
        let durable = durable || inner.policy.durable;
        let Some(alignment) = inner.policy.direct else {
            if !durable {
                return inner.reactor.submit(Op::Write { file: self.file(), offset, data, durable }, done);
            }
            let disk = self.clone();
            return inner.reactor.spawn(async move { disk.write_through(offset, data, done).await });
        };
        let is_aligned = alignment.fits(data.pieces().iter().map(|piece| (piece.as_ptr().addr(), piece.len())));
        match if is_aligned { Ok(data) } else { copied(self.arena(), data) } {
            Ok(data) => inner.reactor.submit(Op::Write { file: self.file(), offset, data, durable }, done),
            Err(data) => done.complete(Outcome::with(Err(Fault::NoMemory), Data::Out(data))),
        }
    }

    /// A durable write through the page cache. A failed one takes the news of every failure with it, so those
    /// that ran at the same time cannot trust their success: they are done again.
    async fn write_through(self, offset: u64, mut data: Sg, done: Done) {
        let failures = &self.0.failures;
        let mut completion = Completion::new();
        for _ in 0..WRITES_MAX {
            let before = failures.get();
            let op = Op::Write { file: self.file(), offset, data, durable: true };
            let outcome = self.submit(op, &mut completion).await;
            match (outcome.result, outcome.data) {
                (Ok(_), Data::Out(again)) if failures.get() != before => data = again,
                (result, memory) => {
                    if result.is_err_and(|fault| fault != Fault::Aborted) {
                        failures.set(failures.get().wrapping_add(1));
                    }
                    return done.complete(Outcome::with(result, memory));
                }
            }
        }
        done.complete(Outcome::with(Err(Fault::Medium), Data::Out(data)));
    }

    /// Everything whose write was answered before is on the medium.
    pub fn flush(&self, done: Done) {
        let inner = &self.0;
        inner.waiting.borrow_mut().push(done);
        if !inner.is_syncing.replace(true) {
            let disk = self.clone();
            inner.reactor.spawn(async move { disk.sync_rounds().await });
        }
    }

    /// Answers flushes in rounds: those that come while one runs share the next.
    async fn sync_rounds(&self) {
        let inner = &self.0;
        let _syncing = Clears(&inner.is_syncing);
        let mut completion = Completion::new();
        loop {
            let round = inner.waiting.take();
            if round.is_empty() {
                return;
            }
            let result = self.sync(&mut completion).await;
            round.into_iter().for_each(|done| done.complete(Outcome::new(result)));
        }
    }

    async fn sync(&self, completion: &mut Completion) -> Result<u32, Fault> {
        let inner = &self.0;
        if inner.health.is_lost() {
            return Err(Fault::Medium);
        }
        match self.submit(Op::Sync { file: inner.sync.clone() }, completion).await.result {
            Err(Fault::Aborted) => Err(Fault::Aborted),
            Err(fault) => {
                inner.health.lose(fault);
                Err(fault)
            }
            // Another core may have been told meanwhile what this one was not.
            Ok(_) if inner.health.is_lost() => Err(Fault::Medium),
            Ok(_) => Ok(0),
        }
    }

    /// Changes the space behind a range.
    pub fn allocate(&self, how: Allocate, offset: u64, len: u64, done: Done) {
        self.change(Op::Allocate { file: self.0.space.clone(), how, offset, len }, done);
    }

    /// Changes what the kernel keeps; on the medium, where every change is.
    fn change(&self, op: Op, done: Done) {
        if !self.0.policy.durable {
            return self.0.reactor.submit(op, done);
        }
        let disk = self.clone();
        self.0.reactor.spawn(async move {
            let outcome = disk.submit(op, &mut Completion::new()).await;
            match outcome.result {
                // O_DSYNC is for writes alone.
                Ok(_) => disk.flush(done),
                Err(_) => done.complete(outcome),
            }
        });
    }

    /// Copies `len` bytes from `at` of another open file, or of this one, to `offset`, past memory of ours.
    pub fn copy(&self, from: &Self, at: u64, offset: u64, len: u64, done: Done) {
        // Handles are numbers of their driver.
        if !Rc::ptr_eq(self.0.reactor.driver(), from.0.reactor.driver()) {
            return done.complete(Outcome::new(Err(Fault::Unsupported)));
        }
        let op = Op::Copy { from: from.file(), at, file: self.file(), offset, len };
        self.change(op, done);
    }

    /// How far the space from `offset` on is in one state, at most `len`.
    pub fn extent(&self, offset: u64, len: u64, done: Done) {
        self.0.reactor.submit(Op::Extent { file: self.file(), offset, len }, done);
    }

    /// How much space it takes and may take yet. Of a device that is not known: it would be that of its node.
    pub fn space(&self, done: Done) {
        self.0.reactor.submit(Op::Space { file: self.file() }, done);
    }
}

/// A copy in aligned memory, or the data back when there is no memory.
fn copied(arena: &Arena, data: Sg) -> Result<Sg, Sg> {
    let Some(mut copy) = arena.take_sg(data.len()) else { return Err(data) };
    let mut at = 0;
    for piece in copy.pieces_mut() {
        at += data.copy_to(at, piece);
    }
    Ok(copy.share())
}

/// Clears a flag however its task ends.
struct Clears<'a>(&'a Cell<bool>);

impl Drop for Clears<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A number from the queue of the block device `dev` (as in `st_dev`, `st_rdev`), or of the one that it is a
/// partition of: a file below `/sys/dev/block/MAJOR:MINOR/queue`.
#[must_use]
pub fn queue_limit(dev: u64, name: &str) -> Option<u64> {
    let device = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let read = |queue: &str| std::fs::read_to_string(format!("{device}/{queue}/{name}")).ok();
    read("queue").or_else(|| read("../queue"))?.trim().parse().ok()
}
