//! A store on a block device: a disk, a partition, a logical volume.
//!
//! * [`open`]: what is checked once, when the device is opened: use by others, size, limits
//! * [`backend`]: block devices as a back end of the engine
//! * `examine`: whether the device is still there
//! * [`zvol`]: volumes of ZFS, by the names of their datasets
//!
//! Space is given back with BLKDISCARD, after which a device may read as anything. Zeroes are made by the device
//! where it can (BLKZEROOUT, or a hole that is promised to read as zeroes).

pub mod backend;
mod error;
mod examine;
pub mod open;
pub mod schema;
pub mod zvol;

use lunar_core::io::{Completion, Data, Done, Extent, Fault, Io, Op, Outcome, Store, Traits};
use lunar_engine::backend::StoreTrouble;
use lunar_reactor::Reactor;
use lunar_reactor::block_device::{device_bytes, zvol_name};
use lunar_reactor::disk::{Disk, Policy, Source};
use lunar_reactor::op::Allocate;
use open::Limits;
pub use open::{Mark, Options, Refusal, mark_at};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use zvol::Measured;

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
    block_size: u32,
    /// The space of the volume, if the system that keeps it tells it.
    space: Option<Arc<Measured>>,
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
            block_size: options.block_size,
            space: None,
        }
    }

    /// The same volume, with its space.
    pub(crate) fn with_space(self, space: Arc<Measured>) -> Self {
        Self { space: Some(space), ..self }
    }

    /// The dataset of the device, if it is a zvol.
    pub(crate) fn zvol_name(&self) -> Option<String> {
        zvol_name(self.source.first().file())
    }

    /// The number of the device.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Whether the device has become larger than the volume, by whole blocks. It asks the kernel and not the device.
    #[must_use]
    pub fn has_grown(&self) -> bool {
        let is_larger = |has: u64| has > self.traits.size && has.is_multiple_of(self.block_size.into());
        device_bytes(self.device).is_some_and(is_larger)
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
        let (traits, space) = (self.traits.clone(), self.space.clone());
        Ok(Box::new(BlockStore { disk, reactor: reactor.clone(), traits, limits: self.limits, space }))
    }
}

/// One core's view of a block device.
struct BlockStore {
    disk: Disk,
    reactor: Reactor,
    traits: Traits,
    limits: Limits,
    space: Option<Arc<Measured>>,
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
        if let Some(granularity) = self.limits.discard_zeroes.filter(|_| unmap) {
            return self.unmap_to_zeroes(offset..offset + len, granularity.into(), done);
        }
        let how = if unmap && self.limits.can_zero { Allocate::Punch } else { Allocate::ZeroOut };
        self.disk.allocate(how, offset, len, done);
    }

    /// Discards the blocks of the device in this range, and writes zeroes to the rest of it. The device reads discarded
    /// blocks as zeroes, and keeps parts of blocks.
    fn unmap_to_zeroes(&self, range: Range<u64>, granularity: u64, done: Done) {
        let start = range.start.next_multiple_of(granularity).min(range.end);
        let end = (range.end / granularity * granularity).max(start);
        let pieces = [
            (Allocate::ZeroOut, range.start..start),
            (Allocate::Discard, start..end),
            (Allocate::ZeroOut, end..range.end),
        ];
        let disk = self.disk.clone();
        self.reactor.spawn(async move {
            let mut completion = Completion::new();
            for (how, piece) in pieces.into_iter().filter(|(_, piece)| !piece.is_empty()) {
                disk.allocate(how, piece.start, piece.end - piece.start, completion.token());
                let outcome = completion.wait().await;
                if outcome.result.is_err() {
                    return done.complete(outcome);
                }
            }
            done.complete(Outcome::new(Ok(0)));
        });
    }

    fn space(&self) -> Outcome {
        match self.space.as_ref().and_then(|space| space.space()) {
            Some(space) => Outcome::with(Ok(0), Data::Space(space)),
            None => Outcome::new(Err(Fault::Unsupported)),
        }
    }
}

impl Store for BlockStore {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn measures(&self) -> bool {
        self.space.is_some()
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
            // A device shares no blocks, and a copy by the kernel would go through its cache twice.
            (Op::Copy { .. }, data) => done.complete(Outcome::with(Err(Fault::Unsupported), data)),
            (Op::Space, _) => done.complete(self.space()),
            (Op::Read | Op::Write { .. }, data) => done.complete(Outcome::with(Ok(0), data)),
        }
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
