//! A store in a regular file: through the page cache with write-back, written through, or past it.
//!
//! * [`open`]: what is checked once, when the file is opened: lock, size, alignment
//! * `lock`: who else has it
//! * [`mark`]: what tells this file from any other, for ever
//!
//! The size is fixed when it is opened. A file that somebody cuts off meanwhile has lost data: reads beyond its
//! new end fail with [`Fault::Medium`], they do not give zeroes.

mod lock;
pub mod mark;
pub mod open;

use lunar_core::io::{Data, Done, Fault, Io, Op, Origin, Outcome, Store, Traits};
use lunar_reactor::Reactor;
use lunar_reactor::disk::{Disk, Health, Policy, Source};
use lunar_reactor::op::{Allocate, Handle};
use mark::Mark;
pub use open::{Options, Refusal};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// A volume in a regular file: opened, locked and checked once, for all cores.
#[derive(Clone, Debug)]
pub struct FileVolume {
    source: Arc<Source>,
    /// Whether others who say the same may have it, too.
    is_shared: bool,
    traits: Traits,
    mark: Mark,
    is_direct: bool,
}

impl FileVolume {
    /// Opens and locks `path`. The lock is let go when the last clone and every store are gone.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(path: &Path, options: &Options) -> Result<Self, Refusal> {
        Ok(Self::build(path, open::open(path, options, None)?, options, None))
    }

    /// Opens `path` once more, in another way; if it is the file of this volume, under the same lock. Both may be used
    /// at the same time, and the lock is that of the stricter one until [`FileVolume::settle`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn again(&self, path: &Path, options: &Options) -> Result<Self, Refusal> {
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
            source: Arc::new(source),
            is_shared: options.read_only || options.shared,
            traits: checked.traits,
            mark: checked.mark,
            is_direct: checked.alignment.is_some(),
        }
    }

    /// The same, which others who say so may have, too, or nobody else; as with [`FileVolume::again`].
    ///
    /// # Errors
    /// [`Refusal::Locked`].
    pub fn sharing(&self, path: &Path, is_shared: bool) -> Result<Self, Refusal> {
        lock::strengthen(self.source.first().file(), path, is_shared)?;
        Ok(Self { is_shared, ..self.clone() })
    }

    /// Of the ways in which the file was opened by this process, this is the one from now on: others have it no less,
    /// and no more, than it says.
    pub fn settle(&self) {
        lock::settle(self.source.first().file(), Path::new(self.source.name()), self.is_shared);
    }

    /// What it says of itself.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// What tells it from any other.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Whether it goes past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// This core's store.
    ///
    /// # Errors
    /// When there is no room for more open files.
    pub fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(FileStore { disk: self.source.open(reactor)?, traits: self.traits.clone() }))
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
    Box::new(FileStore { disk: Disk::over(reactor, handles, policy, health), traits })
}

/// One core's view of a file.
struct FileStore {
    disk: Disk,
    traits: Traits,
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
        Some(Origin::new(Rc::new(self.disk.clone())))
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
