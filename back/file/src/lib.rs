//! A store in a regular file: through the page cache with write-back, written through, or past it.
//!
//! * [`open`]: what is checked once, when the file is opened: lock, size, alignment
//! * `lock`: the lock that one process has on a file; `loop_device`: the kernel as another user of it
//! * [`mark`]: what distinguishes this file from all others
//! * [`backend`]: files as a back end of the engine; `error`: refusals with advice to the operator
//! * `examine`: whether the file is still complete and in its place
//!
//! The size is fixed when the file is opened. A file that is truncated later has lost data: reads beyond its new end
//! fail with [`Fault::Medium`], they do not return zeroes. Once [`FileVolume::examine`] has seen that the file was
//! truncated, writes behind its end fail as well, because they would fill the gap before them with zeroes. A file that
//! is truncated and grown again between two examinations has its size again, and what was cut off reads as zeroes: the
//! size before each request would not show it either, and the other traces (ctime, allocated blocks) change with our
//! own writes and with the preallocation of file systems.

pub mod backend;
mod error;
mod examine;
mod lock;
mod loop_device;
pub mod mark;
pub mod open;
pub mod schema;
pub mod served_size;

use lunar_control::file_system::FileSystem;
use lunar_core::io::{Data, Done, Fault, Io, Op, Origin, Outcome, Store, Traits};
use lunar_engine::backend::{PoolSpace, StoreTrouble};
use lunar_reactor::Reactor;
use lunar_reactor::disk::{Disk, Health, Policy, Source};
use lunar_reactor::op::{Allocate, Handle};
use mark::Mark;
pub use open::{Options, Refusal};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// A volume in a regular file: opened, locked and checked once, for all cores.
#[derive(Clone, Debug)]
pub struct FileVolume {
    source: Arc<Source>,
    /// Whether other processes that ask for the same may have it open, too.
    is_shared: bool,
    traits: Traits,
    mark: Mark,
    is_direct: bool,
    file_system: FileSystem,
}

impl FileVolume {
    /// Opens and locks `path`. The lock is released when the last clone and every store are dropped.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(path: &Path, options: &Options) -> Result<Self, Refusal> {
        Ok(Self::build(path, open::open(path, options, None)?, options, None))
    }

    /// Opens `path` again, in another way; if it is the file of this volume, under the same lock. Both may be used at
    /// the same time, and the lock is that of the stricter one until [`FileVolume::finalize`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn reopen(&self, path: &Path, options: &Options) -> Result<Self, Refusal> {
        let first = self.source.first();
        let checked = open::open(path, options, Some(first.file()))?;
        let held = open::same(first.file(), checked.file.as_fd())?.then_some(first);
        Ok(Self::build(path, checked, options, held))
    }

    fn build(path: &Path, checked: open::Checked, options: &Options, held: Option<&Arc<Source>>) -> Self {
        let policy = Policy { durable: options.durable, direct: checked.alignment };
        let source = match held {
            Some(held) => held.again(checked.file, policy),
            None => Source::new(path.display().to_string(), checked.file, policy),
        };
        Self {
            file_system: FileSystem::of(source.file()),
            source: Arc::new(source),
            is_shared: options.read_only || options.shared,
            traits: checked.traits,
            mark: checked.mark,
            is_direct: checked.alignment.is_some(),
        }
    }

    /// The same file, locked for this process alone, or together with other processes that ask for the same; as with
    /// [`FileVolume::reopen`].
    ///
    /// # Errors
    /// [`Refusal::Locked`].
    pub fn sharing(&self, is_shared: bool) -> Result<Self, Refusal> {
        lock::strengthen(self.source.first().file(), Path::new(self.name()), is_shared)?;
        Ok(Self { is_shared, ..self.clone() })
    }

    /// Declares that of all the ways in which this process has the file open, this is the one that stays: the lock
    /// becomes what it says.
    pub fn finalize(&self) {
        lock::finalize(self.source.first().file(), Path::new(self.name()), self.is_shared);
    }

    /// The path, as it was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        self.source.name()
    }

    /// The properties of the store.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// The mark, which distinguishes the file from all others.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// The file, as it is open.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.source.file()
    }

    /// Whether I/O bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Looks at the file: whether it is complete, and whether a restart would find it. This may wait for the disk, so
    /// it is not for cores.
    #[must_use]
    pub fn examine(&self) -> Vec<StoreTrouble> {
        examine::examine(&self.source, self.traits.size)
    }

    /// The space of the file in its file system; this may wait for the disk, too.
    #[must_use]
    pub fn pool_space(&self) -> Option<PoolSpace> {
        examine::pool_space(&self.source, self.traits.size, self.traits.read_only)
    }

    /// The store of this core.
    ///
    /// # Errors
    /// When there is no room for more open files.
    pub fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        let (disk, traits, file_system) = (self.source.open(reactor)?, self.traits.clone(), self.file_system);
        Ok(Box::new(FileStore { disk, traits, file_system }))
    }
}

/// A store over a file that a driver has open: the simulator's. See [`Disk::over`].
#[must_use]
pub fn over(
    reactor: &Reactor,
    handles: [Handle; 3],
    policy: Policy,
    health: &Arc<Health>,
    traits: Traits,
) -> Box<dyn Store> {
    let disk = Disk::over(reactor, handles, policy, health);
    Box::new(FileStore { disk, traits, file_system: FileSystem::Other })
}

/// One core's view of a file.
struct FileStore {
    disk: Disk,
    traits: Traits,
    file_system: FileSystem,
}

impl FileStore {
    fn can_punch(&self) -> bool {
        self.traits.unmap_granularity > 0
    }
}

impl Store for FileStore {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, io: Io, done: Done) {
        if !io.within(self.traits.size) {
            return done.complete(Outcome::with(Err(Fault::OUT_OF_RANGE), io.data));
        }
        // Data that was cut off reads as zeroes once the file grows again, and a write behind its end lets it grow.
        if !io.within(self.disk.data_end()) {
            return done.complete(Outcome::with(Err(Fault::Medium), io.data));
        }
        let offset = io.offset;
        match (io.op, io.data) {
            (Op::Read, Data::In(into)) => self.disk.read(offset, into, done),
            (Op::Write { durable }, Data::Out(data)) => self.disk.write(offset, data, durable, done),
            (Op::Flush, _) => self.disk.flush(done),
            (Op::Unmap { len: 0 } | Op::Zero { len: 0, .. }, data) => done.complete(Outcome::with(Ok(0), data)),
            (Op::Unmap { .. }, data) if !self.can_punch() => {
                done.complete(Outcome::with(Err(Fault::Unsupported), data));
            }
            (Op::Unmap { len }, _) => self.disk.allocate(Allocate::Punch, offset, len, done),
            (Op::Zero { len, unmap }, _) => {
                let how = if unmap && self.can_punch() { Allocate::Punch } else { Allocate::Zero };
                self.disk.allocate(how, offset, len, done);
            }
            (Op::Extent { len }, _) => self.disk.extent(offset, len, done),
            (Op::Space, _) => self.disk.space(done),
            (Op::Copy { len: 0, .. }, _) => done.complete(Outcome::new(Ok(0))),
            (Op::Copy { from, len }, Data::From(origin)) => match origin.is::<Disk>() {
                Some(source) if from.saturating_add(len) > source.data_end() => {
                    done.complete(Outcome::new(Err(Fault::Medium)));
                }
                Some(source) => self.disk.copy(source, from, offset, len, done),
                None => done.complete(Outcome::new(Err(Fault::Unsupported))),
            },
            (Op::Copy { .. }, data) => done.complete(Outcome::with(Err(Fault::Unsupported), data)),
            (Op::Read | Op::Write { .. }, data) => done.complete(Outcome::with(Ok(0), data)),
        }
    }

    fn measures(&self) -> bool {
        true
    }

    fn origin(&self) -> Option<Origin> {
        // The kernel may clone instead of copying. Without an origin, the caller reads and writes the bytes.
        let is_safe = self.file_system.clones_what_it_reads();
        is_safe.then(|| Origin::new(Rc::new(self.disk.clone())))
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
