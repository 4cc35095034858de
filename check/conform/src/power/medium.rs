//! The medium of a disk with a volatile write cache, as a value: what a power cut leaves is chosen here.

use crate::test_data::Random;

/// The unit in which writes are lost. A cut never tears it: file systems expect that of a disk whose physical blocks
/// have this size.
const PAGE: u64 = 4096;
/// Bytes in the write cache, beyond which its oldest writes go to the medium, as in a disk. More than the writers of
/// one cycle produce, so that this is rare.
const CACHE_MAX: usize = 64 << 20;

/// Which writes of the cache a power cut loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// All of them.
    All,
    /// The most recent ones, from a random one on.
    Latest,
    /// Each with a probability of one half: the medium has writes that were sent after lost ones.
    Scattered,
}

impl Loss {
    pub(super) const EACH: [Self; 3] = [Self::All, Self::Latest, Self::Scattered];
}

/// A write to a part of one page.
#[derive(Debug)]
struct CachedWrite {
    offset: u64,
    len: usize,
    /// `None`: zeroes.
    data: Option<Box<[u8]>>,
}

/// Writes in the cache that a cut dropped, and that it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CutCount {
    pub(super) lost: usize,
    pub(super) left: usize,
}

/// A disk without its interface.
#[derive(Debug)]
pub(super) struct Medium {
    /// The contents after a cut that loses the whole cache.
    stable: Vec<u8>,
    /// The contents that reads return.
    current: Vec<u8>,
    cache: Vec<CachedWrite>,
    cached_bytes: usize,
    /// A disk that completes flushes without executing them: for a test of the tests.
    pub(super) ignores_flushes: bool,
}

impl Medium {
    pub(super) fn new(size: usize) -> Self {
        Self {
            stable: vec![0; size],
            current: vec![0; size],
            cache: Vec::new(),
            cached_bytes: 0,
            ignores_flushes: false,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.current.len() as u64
    }

    /// The bytes of a range; `None` outside of the disk.
    pub(super) fn read(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.current.get(start..start.checked_add(len)?)
    }

    /// Writes into the cache; `None` outside of the disk.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Option<()> {
        self.read(offset, data.len())?;
        let mut data = data;
        let mut offset = offset;
        while !data.is_empty() {
            let room = usize::try_from(PAGE - offset % PAGE).ok()?;
            let (page, rest) = data.split_at(room.min(data.len()));
            self.add(CachedWrite { offset, len: page.len(), data: Some(page.into()) });
            offset += page.len() as u64;
            data = rest;
        }
        self.evict();
        Some(())
    }

    /// Writes zeroes into the cache; `None` outside of the disk.
    pub(super) fn zero(&mut self, offset: u64, len: u64) -> Option<()> {
        self.read(offset, usize::try_from(len).ok()?)?;
        let (mut offset, end) = (offset, offset + len);
        while offset < end {
            let len = (PAGE - offset % PAGE).min(end - offset);
            // Zeroes over zeroes change nothing, also for the memory of this program.
            if self.read(offset, usize::try_from(len).ok()?)?.iter().any(|byte| *byte != 0) {
                self.add(CachedWrite { offset, len: usize::try_from(len).ok()?, data: None });
            }
            offset += len;
        }
        Some(())
    }

    fn add(&mut self, write: CachedWrite) {
        apply(&mut self.current, &write);
        self.cached_bytes += write.data.as_ref().map_or(0, |data| data.len());
        self.cache.push(write);
    }

    fn evict(&mut self) {
        if self.cached_bytes <= CACHE_MAX {
            return;
        }
        let half = self.cache.len() / 2;
        for write in self.cache.drain(..half) {
            apply(&mut self.stable, &write);
        }
        self.cached_bytes = self.cache.iter().filter_map(|write| write.data.as_ref()).map(|data| data.len()).sum();
    }

    /// Brings the cache to the medium.
    pub(super) fn flush(&mut self) {
        if self.ignores_flushes {
            return;
        }
        for write in self.cache.drain(..) {
            apply(&mut self.stable, &write);
        }
        self.cached_bytes = 0;
    }

    /// Cuts the power: the cache is gone, except what `loss` leaves.
    pub(super) fn cut(&mut self, loss: Loss, random: &mut Random) -> CutCount {
        let count = self.cache.len();
        let first_lost = usize::try_from(random.below(count as u64 + 1)).unwrap_or(0);
        let mut result = CutCount::default();
        let mut lost = Vec::new();
        for (at, write) in self.cache.drain(..).enumerate() {
            let is_left = match loss {
                Loss::All => false,
                Loss::Latest => at < first_lost,
                Loss::Scattered => random.below(2) == 0,
            };
            if is_left {
                apply(&mut self.stable, &write);
                result.left += 1;
            } else {
                result.lost += 1;
                lost.push((write.offset, write.len));
            }
        }
        self.cached_bytes = 0;
        // Only the pages of lost writes can differ.
        for (offset, len) in lost {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            self.current[start..start + len].copy_from_slice(&self.stable[start..start + len]);
        }
        result
    }
}

fn apply(image: &mut [u8], write: &CachedWrite) {
    let start = usize::try_from(write.offset).unwrap_or(usize::MAX);
    let part = &mut image[start..start + write.len];
    match &write.data {
        Some(data) => part.copy_from_slice(data),
        None => part.fill(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn random() -> Random {
        Random::new(7)
    }

    #[test]
    fn a_flushed_write_survives_and_an_unflushed_one_is_lost() {
        let mut disk = Medium::new(MIB);
        disk.write(1000, &[1; 8192]).unwrap();
        disk.flush();
        disk.write(1000, &[2; 8192]).unwrap();
        disk.zero(0, 100).unwrap();
        assert_eq!(disk.read(1000, 8192).unwrap(), [2; 8192]);
        // The writes touch three pages; the zeroes change nothing.
        assert_eq!(disk.cut(Loss::All, &mut random()), CutCount { lost: 3, left: 0 });
        assert_eq!(disk.read(1000, 8192).unwrap(), [1; 8192]);
        assert_eq!(disk.current, disk.stable);
    }

    #[test]
    fn each_loss_keeps_pages_whole_and_scattered_ones_break_the_order() {
        for loss in Loss::EACH {
            let mut random = random();
            let mut is_out_of_order = false;
            for _ in 0..50 {
                let mut disk = Medium::new(MIB);
                for page in 0..8_u8 {
                    disk.write(u64::from(page) * PAGE, &[page + 1; 4096]).unwrap();
                }
                let count = disk.cut(loss, &mut random);
                assert_eq!(count.lost + count.left, 8);
                assert_eq!(disk.current, disk.stable);
                let is_left: Vec<bool> = (0..8_u8)
                    .map(|page| {
                        let bytes = disk.read(u64::from(page) * PAGE, 4096).unwrap();
                        assert!(bytes == [0; 4096] || bytes == [page + 1; 4096]);
                        bytes[0] != 0
                    })
                    .collect();
                assert!(loss != Loss::All || count.left == 0);
                is_out_of_order |= is_left.windows(2).any(|pair| !pair[0] && pair[1]);
            }
            assert_eq!(is_out_of_order, loss == Loss::Scattered);
        }
    }

    #[test]
    fn a_disk_that_ignores_flushes_loses_flushed_writes() {
        let mut disk = Medium::new(MIB);
        disk.ignores_flushes = true;
        disk.write(0, &[1; 4096]).unwrap();
        disk.flush();
        disk.cut(Loss::All, &mut random());
        assert_eq!(disk.read(0, 4096).unwrap(), [0; 4096]);
    }

    #[test]
    fn a_full_cache_goes_to_the_medium_and_accesses_behind_the_end_fail() {
        let mut disk = Medium::new(CACHE_MAX + MIB);
        for piece in 0..=CACHE_MAX / MIB {
            disk.write((piece * MIB) as u64, &[3; MIB]).unwrap();
        }
        assert!(disk.cached_bytes < CACHE_MAX);
        disk.cut(Loss::All, &mut random());
        assert_eq!((disk.read(0, 1).unwrap(), disk.read(disk.size() - 1, 1).unwrap()), (&[3][..], &[0][..]));
        let size = disk.size();
        assert!(disk.read(size, 1).is_none());
        assert!(disk.write(size - 1, &[0; 2]).is_none());
        assert!(disk.zero(u64::MAX, 1).is_none());
    }
}
