//! A store on a block device: a disk, a partition, a logical volume.
//!
//! * [`open`]: what is checked once, when the device is opened: use by others, size, limits
//! * [`backend`]: block devices as a back end of the engine
//! * `examine`: whether the device is still there
//!
//! Space is given back with BLKDISCARD, after which a device may read as anything. Zeroes are made by the device
//! where it can (BLKZEROOUT, or a hole that is promised to read as zeroes).

pub mod backend;
mod error;
mod examine;
pub mod open;
pub mod schema;

use lunar_core::io::{Data, Done, Extent, Fault, Io, Op, Outcome, Store, Traits};
use lunar_engine::backend::StoreTrouble;
use lunar_reactor::Reactor;
use lunar_reactor::disk::{Disk, Policy, Source};
use lunar_reactor::op::Allocate;
use open::Limits;
pub use open::{Mark, Options, Refusal, mark_at};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A volume on a block device: opened for us alone and checked once, for all cores.
#[derive(Clone, Debug)]
pub struct BlockVolume {
    source: Arc<Source>,
    /// Its number.
    device: u64,
    traits: Traits,
    limits: Limits,
    mark: Mark,
    is_direct: bool,
}

impl BlockVolume {
    /// Opens `path` exclusively, so that it cannot be mounted until the last clone and every store are dropped.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(path: &Path, options: &Options) -> Result<Self, Refusal> {
        Ok(Self::build(path, open::open(path, options, None)?, options, None))
    }

    /// Opens `path` again, in another way; if it is the device of this volume, it stays exclusive. Both may be used at
    /// the same time.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn reopen(&self, path: &Path, options: &Options) -> Result<Self, Refusal> {
        let held = open::Held { device: self.device, file: self.source.first().file() };
        let checked = open::open(path, options, Some(held))?;
        Ok(Self::build(path, checked, options, Some(&self.source)))
    }

    fn build(path: &Path, checked: open::Checked, options: &Options, held: Option<&Arc<Source>>) -> Self {
        let policy = Policy { durable: options.durable, direct: checked.alignment };
        let held = held.filter(|_| checked.is_held);
        let source = match held {
            Some(held) => held.again(checked.file, policy),
            None => Source::new(path.display().to_string(), checked.file, policy),
        };
        Self {
            source: Arc::new(source),
            device: checked.device,
            traits: checked.traits,
            limits: checked.limits,
            mark: checked.mark,
            is_direct: checked.alignment.is_some(),
        }
    }

    /// Looks at the device: whether it is still there, and complete. It asks the kernel and not the device.
    #[must_use]
    pub fn examine(&self) -> Vec<StoreTrouble> {
        examine::examine(&self.source, self.device, self.traits.size)
    }

    /// The properties of the store.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// The mark of the device: the name that it reports, else its place.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Whether I/O bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The store of this core.
    ///
    /// # Errors
    /// When there is no room for more open files.
    pub fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        let disk = self.source.open(reactor)?;
        Ok(Box::new(BlockStore { disk, traits: self.traits.clone(), limits: self.limits }))
    }
}

/// One core's view of a block device.
struct BlockStore {
    disk: Disk,
    traits: Traits,
    limits: Limits,
}

impl BlockStore {
    /// Unmaps whole sectors only: a device may keep the parts of sectors.
    fn unmap(&self, offset: u64, len: u64, data: Data, done: Done) {
        if !self.limits.can_discard {
            return done.complete(Outcome::with(Err(Fault::Unsupported), data));
        }
        let sector = u64::from(self.limits.sector);
        let start = offset.next_multiple_of(sector);
        let end = (offset + len) / sector * sector;
        if start >= end {
            return done.complete(Outcome::with(Ok(0), data));
        }
        self.disk.allocate(Allocate::Discard, start, end - start, done);
    }

    fn zero(&self, offset: u64, len: u64, unmap: bool, data: Data, done: Done) {
        let sector = u64::from(self.limits.sector);
        if !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            // The fall-back writes zeroes, which the page cache makes whole sectors of.
            return done.complete(Outcome::with(Err(Fault::Unsupported), data));
        }
        let how = if unmap && self.limits.can_zero { Allocate::Punch } else { Allocate::ZeroOut };
        self.disk.allocate(how, offset, len, done);
    }
}

impl Store for BlockStore {
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
            (Op::Unmap { len }, data) => self.unmap(offset, len, data, done),
            (Op::Zero { len, unmap }, data) => self.zero(offset, len, unmap, data, done),
            // Devices do not report which blocks are mapped.
            (Op::Extent { len }, data) => {
                done.complete(Outcome { result: Ok(0), data, extent: Extent { len, mapped: true } });
            }
            // A device shares no blocks, and a copy by the kernel would go through its cache twice. A device does not
            // report how much space it takes.
            (Op::Copy { .. } | Op::Space, data) => done.complete(Outcome::with(Err(Fault::Unsupported), data)),
            (Op::Read | Op::Write { .. }, data) => done.complete(Outcome::with(Ok(0), data)),
        }
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
