//! A file with a volatile cache: what a read sees, what a crash leaves, and how far the two may lie apart.
//!
//! The medium writes sectors of 512 bytes whole. Until a sync every sector that was written may, after a crash, hold
//! what it held at the last sync or anything that was written to it since, each sector for itself: so writes are lost,
//! torn and reordered. Synced data stays.

use super::chance::Chance;
use lunar_core::io::Extent;
use lunar_core::mem::SgMut;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that the medium writes atomically.
pub const SECTOR: usize = 512;
/// The unit of allocation in bytes.
pub const SPACE_BLOCK: usize = 4096;

type Sector = [u8; SECTOR];

/// One file of a world.
#[derive(Debug)]
pub(super) struct Disk {
    /// The content that reads see.
    seen: Vec<u8>,
    /// The durable content of sectors that are not loose.
    firm: Vec<u8>,
    /// Sectors written since they were last durable, each with its contents since then, oldest first.
    loose: BTreeMap<usize, Vec<Version>>,
    /// Which blocks of [`SPACE_BLOCK`] take space.
    taken: Vec<bool>,
    /// Increases with every write, so that a sync knows the earlier writes.
    clock: u64,
    /// The number of writeback failures of the page cache: each open file reports them once.
    pub(super) failures: u64,
}

#[derive(Debug)]
struct Version {
    written: u64,
    bytes: Sector,
}

impl Disk {
    /// A file of `size` bytes of zeroes that takes no space.
    pub(super) fn new(size: usize) -> Self {
        let sectors = size.div_ceil(SECTOR) * SECTOR;
        Self {
            seen: vec![0; sectors],
            firm: vec![0; sectors],
            loose: BTreeMap::new(),
            taken: vec![false; sectors.div_ceil(SPACE_BLOCK)],
            clock: 0,
            failures: 0,
        }
    }

    /// Fills `into` from `offset` on; bytes past the end are zeroes.
    pub(super) fn read(&self, offset: usize, into: &mut SgMut) {
        let from = offset.min(self.seen.len());
        let done = into.copy_from(0, &self.seen[from..]);
        into.fill_from(done, 0);
    }

    /// The content that reads see now.
    pub(super) fn seen(&self) -> &[u8] {
        &self.seen
    }

    /// Writes; grows the file when it ends before.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.grow(end);
        self.seen[offset..end].copy_from_slice(bytes);
        self.taken[offset / SPACE_BLOCK..end.div_ceil(SPACE_BLOCK)].fill(true);
        self.loosen(offset..end);
    }

    /// Makes a range read as zeroes; whole blocks of space within it are given back if `give_back`.
    pub(super) fn zero(&mut self, range: Range<usize>, give_back: bool) {
        let range = range.start.min(self.seen.len())..range.end.min(self.seen.len());
        if range.is_empty() {
            return;
        }
        self.seen[range.clone()].fill(0);
        let whole = range.start.div_ceil(SPACE_BLOCK)..range.end / SPACE_BLOCK;
        if give_back && whole.start < whole.end {
            self.taken[whole].fill(false);
        }
        self.loosen(range);
    }

    /// Makes a range durable (a durable write).
    pub(super) fn harden(&mut self, range: Range<usize>) {
        for sector in sectors(&range) {
            self.loose.remove(&sector);
            let bytes = place(sector);
            self.firm[bytes.clone()].copy_from_slice(&self.seen[bytes]);
        }
    }

    /// The point in the stream of writes up to which a sync that starts now makes them durable.
    pub(super) fn mark(&self) -> u64 {
        self.clock
    }

    /// Everything written up to `mark` stays from now on.
    pub(super) fn sync(&mut self, mark: u64) {
        let firm = &mut self.firm;
        self.loose.retain(|&sector, versions| {
            let count = versions.iter().take_while(|version| version.written <= mark).count();
            if let Some(newest) = versions.drain(..count).next_back() {
                firm[place(sector)].copy_from_slice(&newest.bytes);
            }
            !versions.is_empty()
        });
    }

    /// A sync that fails: each sector written up to `mark` is on the medium or dropped, and counts as clean from now
    /// on. Reads may still see dropped data for a while, but no later sync makes it durable.
    pub(super) fn fail_sync(&mut self, mark: u64, chance: &mut Chance) {
        let mut dropped = Vec::new();
        let firm = &mut self.firm;
        self.loose.retain(|&sector, versions| {
            let count = versions.iter().take_while(|version| version.written <= mark).count();
            let newest = versions.drain(..count).next_back();
            match newest {
                Some(newest) if chance.coin() => firm[place(sector)].copy_from_slice(&newest.bytes),
                Some(_) if versions.is_empty() && chance.coin() => dropped.push(sector),
                _ => {}
            }
            !versions.is_empty()
        });
        dropped.into_iter().for_each(|sector| self.restore(sector));
    }

    /// Power failure: every loose sector keeps one of its contents since it was last durable, or the durable one.
    /// Returns the number of sectors that lost the content that reads saw last.
    pub(super) fn crash(&mut self, chance: &mut Chance) -> usize {
        let mut lost = 0;
        // One random bit for the whole file: often all or nothing survives, as in most real power failures.
        let mood = chance.index(4);
        for (sector, versions) in std::mem::take(&mut self.loose) {
            let kept = match mood {
                0 => 0,
                1 => versions.len(),
                _ => chance.index(versions.len() + 1),
            };
            lost += usize::from(kept < versions.len());
            if kept > 0 {
                self.firm[place(sector)].copy_from_slice(&versions[kept - 1].bytes);
            }
        }
        self.seen.copy_from_slice(&self.firm);
        for (block, bytes) in self.seen.chunks(SPACE_BLOCK).enumerate() {
            let holds_data = bytes.iter().any(|byte| *byte != 0);
            self.taken[block] = holds_data || (self.taken[block] && chance.coin());
        }
        lost
    }

    /// The program ends and another one will open the file: reads no longer see data that a failed sync dropped.
    pub(super) fn reopen(&mut self) {
        for sector in 0..self.seen.len() / SECTOR {
            if !self.loose.contains_key(&sector) {
                self.restore(sector);
            }
        }
    }

    /// Reads see the content of the medium. A block that holds data takes space again, even if the dropped write had
    /// given its space back: an extent must not be a hole where a read finds data.
    fn restore(&mut self, sector: usize) {
        let bytes = &self.firm[place(sector)];
        if bytes.iter().any(|byte| *byte != 0) {
            self.taken[sector * SECTOR / SPACE_BLOCK] = true;
        }
        self.seen[place(sector)].copy_from_slice(bytes);
    }

    /// How far from `offset` on, at most `len`, the file has data or a hole.
    pub(super) fn extent(&self, offset: usize, len: usize) -> Extent {
        let end = (offset + len).min(self.seen.len());
        if offset >= end {
            return Extent { len: len as u64, mapped: false };
        }
        let first = offset / SPACE_BLOCK;
        let mapped = self.taken[first];
        let last = (first..end.div_ceil(SPACE_BLOCK)).take_while(|&block| self.taken[block] == mapped).last();
        let until = ((last.unwrap_or(first) + 1) * SPACE_BLOCK).min(end);
        Extent { len: (until - offset) as u64, mapped }
    }

    /// Blocks that a write of this range would take anew.
    pub(super) fn wants(&self, range: Range<usize>) -> usize {
        (range.start / SPACE_BLOCK..range.end.div_ceil(SPACE_BLOCK))
            .filter(|&block| !self.taken.get(block).copied().unwrap_or(false))
            .count()
    }

    /// Blocks that take space.
    pub(super) fn takes(&self) -> usize {
        self.taken.iter().filter(|taken| **taken).count()
    }

    fn grow(&mut self, end: usize) {
        let sectors = end.div_ceil(SECTOR) * SECTOR;
        if sectors > self.seen.len() {
            self.seen.resize(sectors, 0);
            self.firm.resize(sectors, 0);
            self.taken.resize(sectors.div_ceil(SPACE_BLOCK), false);
        }
    }

    fn loosen(&mut self, range: Range<usize>) {
        self.clock += 1;
        for sector in sectors(&range) {
            let mut bytes = [0; SECTOR];
            bytes.copy_from_slice(&self.seen[place(sector)]);
            self.loose.entry(sector).or_default().push(Version { written: self.clock, bytes });
        }
    }
}

/// The sectors that a range of bytes touches.
fn sectors(range: &Range<usize>) -> Range<usize> {
    range.start / SECTOR..range.end.div_ceil(SECTOR)
}

fn place(sector: usize) -> Range<usize> {
    sector * SECTOR..(sector + 1) * SECTOR
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
