//! Verifying writers: each notes what the target has promised for every place of its region, until the power is cut,
//! and checks it after that.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};

use super::client::{Address, BLOCK, Client, Protocol, Reading};
use super::ledger::{Content, Place};
use crate::test_data::{Random, pattern};

/// Bytes of a place: several pages, which a power cut can separate.
const PLACE: usize = 16 << 10;
const PLACE_BLOCKS: u32 = (PLACE / BLOCK) as u32;
/// Places of one writer.
const PLACES: u64 = 256;
/// Bytes of a writer's region.
pub(super) const REGION: u64 = PLACES * PLACE as u64;

/// Numbers of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Acknowledged writes with FUA, and flushes.
    pub(super) fua: u64,
    pub(super) flushes: u64,
    /// Writes that were durable because there was no volatile write cache: by the configuration, and by the client.
    pub(super) through: u64,
    pub(super) uncached: u64,
    /// Acknowledged Write Uncorrectable commands.
    pub(super) marks: u64,
    /// Acknowledged writes without a promise.
    pub(super) plain: u64,
    /// Places that were checked after a power cut, and those with a promised content.
    pub(super) checked: u64,
    /// Places that lost acknowledged writes which were not flushed.
    pub(super) lost: u64,
    /// Places of volumes with protection information that failed their check after such a loss.
    pub(super) unreadable: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.fua += other.fua;
        self.flushes += other.flushes;
        self.through += other.through;
        self.uncached += other.uncached;
        self.marks += other.marks;
        self.plain += other.plain;
        self.checked += other.checked;
        self.lost += other.lost;
        self.unreadable += other.unreadable;
    }

    /// Acknowledgements that promised durability.
    pub(super) fn promises(&self) -> u64 {
        self.fua + self.flushes + self.through + self.uncached + self.marks
    }
}

/// The kind of volume that a writer writes to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VolumeKind {
    pub(super) is_write_through: bool,
    pub(super) has_protection: bool,
}

/// The promises that writers ask for until a power cut. A flush of one writer covers the others, and so may any write
/// of metadata: each sort is tested without the others, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promises {
    All,
    Fua,
    Flush,
    /// Changes of the volatile write cache.
    Cache,
    /// Flushes after writes of zeroes; zeroes alone on a volume in write-through.
    Zeroes,
}

impl Promises {
    pub(super) const EACH: [Self; 5] = [Self::All, Self::Fua, Self::Flush, Self::Cache, Self::Zeroes];

    /// Of 128 requests: flushes, changes of the cache, Write Uncorrectable, zeroes, writes with FUA. The others are
    /// writes without a promise.
    fn weights(self) -> [u64; 5] {
        match self {
            Self::All => [4, 2, 8, 8, 12],
            Self::Fua => [0, 0, 0, 4, 24],
            Self::Flush => [4, 0, 0, 8, 0],
            Self::Cache => [0, 6, 0, 48, 0],
            Self::Zeroes => [1, 0, 0, 119, 0],
        }
    }
}

/// The progress of the writers of one cycle, and whether the power is cut.
#[derive(Default)]
pub(super) struct Progress {
    is_cut: AtomicBool,
    /// Requests, and promises among them, that were acknowledged.
    steps: AtomicU64,
    promises: AtomicU64,
    /// Acknowledged registrations, and changes of the configuration.
    changes: AtomicU64,
}

impl Progress {
    /// A change was acknowledged.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn has_changes(&self) -> bool {
        self.changes.load(Ordering::SeqCst) > 0
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// The power is cut now. Errors are none of the target from now on.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_reached(&self, steps: u64, promises: u64) -> bool {
        self.steps.load(Ordering::SeqCst) >= steps && self.promises.load(Ordering::SeqCst) >= promises
    }
}

/// A writer and its region.
pub(super) struct Writer {
    protocol: Protocol,
    number: usize,
    volume: VolumeKind,
    places: Vec<Place>,
    /// The number of the last write. Each write has a number of its own.
    last: u64,
    has_cache: bool,
    pub(super) promises: Promises,
    random: Random,
    pub(super) tally: Tally,
}

impl Writer {
    pub(super) fn new(protocol: Protocol, number: usize, volume: VolumeKind, seed: u64) -> Self {
        let places = (0..PLACES).map(|_| Place::new()).collect();
        let random = Random::new(seed ^ (number as u64 + 1) << 32);
        let (promises, tally) = (Promises::All, Tally::default());
        Self { protocol, number, volume, places, last: 0, has_cache: true, promises, random, tally }
    }

    fn lba(&self, place: usize) -> u64 {
        (self.number as u64 * PLACES + place as u64) * u64::from(PLACE_BLOCKS)
    }

    /// The place as its data names it: unique in the volume.
    fn name(&self, place: usize) -> u64 {
        self.number as u64 * PLACES + place as u64
    }

    /// Writes until the power is cut. An error before that is one of the target.
    pub(super) fn write_until_cut(&mut self, address: &Address, progress: &Progress) -> Result<()> {
        match self.write_all(address, progress) {
            Err(_) if progress.is_cut() => Ok(()),
            outcome => outcome.with_context(|| format!("{:?} writer {}", self.protocol, self.number)),
        }
    }

    fn write_all(&mut self, address: &Address, progress: &Progress) -> Result<()> {
        let mut client = Client::open(self.protocol, address, self.number).context("login of a writer")?;
        // The setting of a client ends with its session at the latest.
        self.has_cache = true;
        loop {
            let before = self.tally.promises();
            self.step(&mut client)?;
            progress.steps.fetch_add(1, Ordering::SeqCst);
            progress.promises.fetch_add(self.tally.promises() - before, Ordering::SeqCst);
        }
    }

    fn step(&mut self, client: &mut Client) -> Result<()> {
        let place = usize::try_from(self.random.below(PLACES))?;
        let mut left = self.random.below(128);
        let choice = self.promises.weights().iter().position(|weight| {
            let is_chosen = left < *weight;
            left = left.saturating_sub(*weight);
            is_chosen
        });
        match choice {
            _ if self.places[place].is_full() => self.flush(client),
            Some(0) => self.flush(client),
            // Changes of the caching page concern every initiator: only one makes them.
            Some(1) if !self.volume.is_write_through && (self.number == 0 || self.protocol == Protocol::NvmeTcp) => {
                self.set_cache(client)
            }
            Some(2) if self.protocol == Protocol::NvmeTcp => self.mark(client, place),
            Some(3) => self.change(client, place, Content::Zero, false),
            Some(4) => self.write(client, place, true),
            _ => self.write(client, place, false),
        }
    }

    fn flush(&mut self, client: &mut Client) -> Result<()> {
        client.flush().context("flush")?;
        self.tally.flushes += 1;
        self.flushed();
        Ok(())
    }

    /// Switches the volatile write cache off, or on again.
    fn set_cache(&mut self, client: &mut Client) -> Result<()> {
        client.set_cache(!self.has_cache).context("change of the volatile write cache")?;
        self.has_cache = !self.has_cache;
        if !self.has_cache {
            self.tally.uncached += 1;
            self.flushed();
        }
        Ok(())
    }

    /// Writes some places without a promise.
    pub(super) fn write_plain(&mut self, client: &mut Client, count: usize) -> Result<()> {
        for _ in 0..count {
            let place = usize::try_from(self.random.below(PLACES))?;
            self.write(client, place, false)?;
        }
        Ok(())
    }

    /// Everything that was acknowledged is durable.
    pub(super) fn flushed(&mut self) {
        self.places.iter_mut().for_each(Place::flushed);
    }

    fn write(&mut self, client: &mut Client, place: usize, has_fua: bool) -> Result<()> {
        self.last += 1;
        self.change(client, place, Content::Data(self.last), has_fua)
    }

    fn change(&mut self, client: &mut Client, place: usize, content: Content, has_fua: bool) -> Result<()> {
        let lba = self.lba(place);
        self.places[place].issued(content);
        match content {
            Content::Data(number) => client.write(lba, pattern(self.name(place), number, PLACE), has_fua),
            _ => client.zero(lba, PLACE_BLOCKS),
        }
        .context("write")?;
        self.places[place].acknowledged();
        let count = if has_fua {
            &mut self.tally.fua
        } else if self.volume.is_write_through {
            &mut self.tally.through
        } else if !self.has_cache {
            &mut self.tally.uncached
        } else {
            self.tally.plain += 1;
            return Ok(());
        };
        *count += 1;
        self.places[place].flushed();
        Ok(())
    }

    fn mark(&mut self, client: &mut Client, place: usize) -> Result<()> {
        let lba = self.lba(place);
        self.places[place].issued(Content::Marked);
        client.mark(lba, PLACE_BLOCKS).context("Write Uncorrectable")?;
        self.places[place].acknowledged();
        self.places[place].flushed();
        self.tally.marks += 1;
        Ok(())
    }

    /// Checks every place after a power cut.
    pub(super) fn check(&mut self, address: &Address) -> Result<()> {
        let mut client = Client::open(self.protocol, address, self.number).context("login after the power cut")?;
        for place in 0..self.places.len() {
            let found = self.read(&mut client, place)?;
            self.tally.checked += 1;
            let known = &mut self.places[place];
            self.tally.lost += u64::from(known.lost(&found));
            if found == [Content::Marked] && !known.allows(Content::Marked) {
                // Documented: a block and its protection information are two writes until they are flushed.
                ensure!(
                    self.volume.has_protection && !known.is_settled(),
                    "place {place} of {:?} writer {} is unreadable; allowed: {known:?}",
                    self.protocol,
                    self.number
                );
                self.tally.unreadable += 1;
                self.write(&mut client, place, true)?;
                continue;
            }
            if let Some(wrong) = found.iter().find(|content| !known.allows(**content)) {
                bail!(
                    "place {place} of {:?} writer {} has {wrong:?}: a durable write is lost; allowed: {known:?}",
                    self.protocol,
                    self.number
                );
            }
            known.found(&found);
        }
        Ok(())
    }

    /// The different contents of the blocks of a place.
    fn read(&self, client: &mut Client, place: usize) -> Result<Vec<Content>> {
        match client.read(self.lba(place), PLACE_BLOCKS).context("read after the power cut")? {
            Reading::Unreadable => Ok(vec![Content::Marked]),
            Reading::Data(data) => self.contents(place, &data),
        }
    }

    fn contents(&self, place: usize, data: &[u8]) -> Result<Vec<Content>> {
        let mut found = Vec::new();
        for (at, block) in data.chunks(BLOCK).enumerate() {
            let number = u64::from_be_bytes(*block[8..].first_chunk().context("a short block")?);
            let content = if block.iter().all(|byte| *byte == 0) { Content::Zero } else { Content::Data(number) };
            let is_whole = content == Content::Zero || block == pattern(self.name(place), number, BLOCK);
            ensure!(is_whole, "block {at} of place {place} has foreign data: {:02x?}", &block[..32]);
            if !found.contains(&content) {
                found.push(content);
            }
        }
        Ok(found)
    }

    /// The contents of the places now, for [`Writer::check_copy`].
    pub(super) fn current(&self) -> Vec<Vec<Content>> {
        self.places.iter().map(|place| place.current().to_vec()).collect()
    }

    /// Checks a file that was copied from the volume when its places had these contents.
    pub(super) fn check_copy(&self, file: &Path, wanted: &[Vec<Content>]) -> Result<()> {
        let whole = std::fs::read(file).with_context(|| format!("{}", file.display()))?;
        let first = usize::try_from(self.lba(0))? * BLOCK;
        for (place, wanted) in wanted.iter().enumerate() {
            let start = first + place * PLACE;
            let data = whole.get(start..start + PLACE).with_context(|| format!("{} is short", file.display()))?;
            let found = self.contents(place, data)?;
            ensure!(
                found.iter().all(|content| wanted.contains(content)),
                "place {place} of {} has {found:?} instead of {wanted:?}",
                file.display()
            );
        }
        Ok(())
    }
}
