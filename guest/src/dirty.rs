//! Which of the guest's pages the device has written to: what a client has to copy once more that moves the guest to
//! another machine while it runs.

use crate::Range;
use std::collections::BTreeMap;

/// Ranges of addresses whose writes are remembered, for those who do not want all: a client knows a handful.
pub const LOGGED_MAX: usize = 64;
/// Bytes of a page whose writes are remembered: not less than the guest's, nor more than the largest of them.
pub const LOGGED_PAGES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;
/// Pieces of 32768 pages in which anything was written: those of 1 TiB in pages of 4 KiB, 32 MiB of bits. A guest
/// that has more written to has all of its memory told as written.
pub const CHUNKS_MAX: usize = 8192;
/// Bytes of a bitmap that is told at once: 8 GiB in pages of 4 KiB.
pub const BITMAP_MAX: usize = 256 << 10;
/// Words of a chunk: bits of 32768 pages.
const WORDS: usize = 512;
const WORD_BITS: u64 = u64::BITS as u64;
const CHUNK_BITS: u64 = WORDS as u64 * WORD_BITS;

type Chunk = Box<[u64; WORDS]>;

/// Writes are not remembered or told as was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogError;

/// What was written since it was asked last.
#[derive(Debug)]
pub struct Log {
    /// Bytes of a page, as a power of two.
    shift: u32,
    /// First and last addresses of what is of interest; none: all is.
    ranges: Vec<(u64, u64)>,
    /// By number: a page's is its address divided by its size.
    chunks: BTreeMap<u64, Chunk>,
    /// There was no room for more: everything counts as written.
    is_full: bool,
}

impl Log {
    /// Nothing was written yet. What is remembered are pages of `page_size`, or of the nearest size that can be.
    ///
    /// # Errors
    /// [`LogError`] for a size that is no power of two, and for ranges that are empty, end nowhere, or too many.
    pub fn new(page_size: u64, ranges: &[Range]) -> Result<Self, LogError> {
        if !page_size.is_power_of_two() || ranges.len() > LOGGED_MAX {
            return Err(LogError);
        }
        let shift = page_size.clamp(*LOGGED_PAGES.start(), *LOGGED_PAGES.end()).trailing_zeros();
        let ranges: Option<Vec<_>> = ranges.iter().map(|range| range.ends()).collect();
        Ok(Self { shift, ranges: ranges.ok_or(LogError)?, chunks: BTreeMap::new(), is_full: false })
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(&self) -> u64 {
        1 << self.shift
    }

    /// These bytes were written.
    pub fn mark(&mut self, address: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|len| address.checked_add(len)) else { return };
        if self.ranges.is_empty() {
            return self.set(address, last);
        }
        for at in 0..self.ranges.len() {
            let (from, to) = self.ranges[at];
            if from <= last && address <= to {
                self.set(address.max(from), last.min(to));
            }
        }
    }

    fn set(&mut self, first: u64, last: u64) {
        for page in first >> self.shift..=last >> self.shift {
            let (number, bit) = (page / CHUNK_BITS, page % CHUNK_BITS);
            if !self.chunks.contains_key(&number) && self.chunks.len() >= CHUNKS_MAX {
                self.is_full = true;
                return;
            }
            let chunk = self.chunks.entry(number).or_insert_with(|| Box::new([0; WORDS]));
            chunk[(bit / WORD_BITS) as usize] |= 1 << (bit % WORD_BITS);
        }
    }

    /// A bit for each page of the asked size that was written to, in words of eight bytes; and forgets those that lie
    /// within.
    ///
    /// # Errors
    /// [`LogError`] for a size that is no power of two or smaller than any page, and for more than may be told at
    /// once.
    pub fn report(&mut self, asked: Range, page_size: u64) -> Result<Vec<u8>, LogError> {
        let (first, last) = asked.ends().ok_or(LogError)?;
        let words = bitmap_len(asked, page_size).ok_or(LogError)? / size_of::<u64>();
        let mut bitmap = vec![0_u64; words];
        let mut tell = |from: u64, to: u64| {
            for bit in from / page_size..=to / page_size {
                bitmap[(bit / WORD_BITS) as usize] |= 1 << (bit % WORD_BITS);
            }
        };
        if self.is_full {
            tell(0, last - first);
        } else {
            let (shift, below) = (self.shift, self.page_size() - 1);
            self.visit(first >> shift, last >> shift, |page| {
                let (from, to) = (page << shift, page << shift | below);
                tell(from.max(first) - first, to.min(last) - first);
                // What lies beyond on the same page was not asked for.
                from >= first && to <= last
            });
        }
        Ok(bitmap.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Hands out the pages from `first` to `last` that were written to; forgets those for which that says so.
    fn visit(&mut self, first: u64, last: u64, mut what: impl FnMut(u64) -> bool) {
        let mut empty = Vec::new();
        for (number, chunk) in self.chunks.range_mut(first / CHUNK_BITS..=last / CHUNK_BITS) {
            for (at, word) in (0..).zip(chunk.iter_mut()) {
                let mut left = *word;
                while left != 0 {
                    let bit = u64::from(left.trailing_zeros());
                    left &= left - 1;
                    let page = number * CHUNK_BITS + at * WORD_BITS + bit;
                    if (first..=last).contains(&page) && what(page) {
                        *word &= !(1 << bit);
                    }
                }
            }
            if chunk.iter().all(|word| *word == 0) {
                empty.push(*number);
            }
        }
        for number in empty {
            self.chunks.remove(&number);
        }
    }
}

/// Bytes of the bitmap that is asked for; `None` for one that cannot be.
#[must_use]
pub fn bitmap_len(asked: Range, page_size: u64) -> Option<usize> {
    if !page_size.is_power_of_two() || page_size < *LOGGED_PAGES.start() || asked.ends().is_none() {
        return None;
    }
    let words = asked.len.div_ceil(page_size).div_ceil(WORD_BITS);
    usize::try_from(words).ok()?.checked_mul(size_of::<u64>()).filter(|len| *len <= BITMAP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(address: u64, len: u64) -> Range {
        Range { address, len }
    }

    /// The pages that are told, by their numbers from the first on.
    fn told(log: &mut Log, address: u64, len: u64, page_size: u64) -> Result<Vec<u64>, LogError> {
        let bitmap = log.report(span(address, len), page_size)?;
        assert_eq!(bitmap.len() % 8, 0);
        Ok((0..bitmap.len() as u64 * 8).filter(|bit| bitmap[(bit / 8) as usize] & 1 << (bit % 8) != 0).collect())
    }

    #[test]
    fn pages_are_told_once_in_the_asked_size() {
        let mut log = Log::new(4096, &[]).expect("a good size");
        log.mark(0x1fff, 2);
        log.mark(0x8000, 0);
        log.mark(u64::MAX, 1);
        log.mark(u64::MAX, 2);
        assert_eq!(told(&mut log, 0, 0x1800, 4096), Ok(vec![1]), "half of a page");
        assert_eq!(told(&mut log, 0, 0x10000, 4096), Ok(vec![1, 2]), "half of a page is not forgotten");
        assert_eq!(told(&mut log, 0, 0x10000, 4096), Ok(vec![]));
        assert_eq!(told(&mut log, u64::MAX - 0xfff, 0x1000, 4096), Ok(vec![0]));
        (0..100).for_each(|page| log.mark(page * 0x20_0000 + 5, 4096));
        assert_eq!(told(&mut log, 0, 200 << 20, 2 << 20), Ok((0..100).collect()));
        assert!(log.chunks.is_empty());
        // Larger pages than are asked for: all of each.
        let mut log = Log::new(16384, &[]).expect("a good size");
        log.mark(0x5000, 1);
        assert_eq!(told(&mut log, 0x2000, 0x8000, 4096), Ok(vec![2, 3, 4, 5]));
        assert_eq!(
            (Log::new(512, &[]).map(|log| log.page_size()), Log::new(1 << 40, &[]).map(|log| log.shift)),
            (Ok(4096), Ok(30))
        );
    }

    #[test]
    fn only_what_is_of_interest_is_remembered() {
        let mut log = Log::new(4096, &[span(0x2000, 0x1000), span(0x8800, 0x800)]).expect("good ranges");
        log.mark(0, 0x8800);
        assert_eq!(told(&mut log, 0, 0x10000, 4096), Ok(vec![2]));
        log.mark(0x8fff, 1);
        assert_eq!(told(&mut log, 0, 0x10000, 4096), Ok(vec![8]));
    }

    #[test]
    fn nonsense_is_refused() {
        let many = vec![span(0, 4096); LOGGED_MAX + 1];
        let nowhere = [span(u64::MAX, 2)];
        for (size, ranges) in [(0, &[][..]), (5000, &[]), (4096, &many), (4096, &[span(0, 0)]), (4096, &nowhere)] {
            assert_eq!(Log::new(size, ranges).err(), Some(LogError), "{size}");
        }
        let mut log = Log::new(4096, &[]).expect("a good size");
        for (address, len, size) in [
            (0, 0, 4096),
            (0, 4096, 0),
            (0, 4096, 512),
            (0, 1 << 40, 4096),
            (1, u64::MAX, 4096),
            (0, u64::MAX, 3 << 20),
        ] {
            assert_eq!(told(&mut log, address, len, size), Err(LogError), "{address:x} {len:x} {size:x}");
        }
        assert_eq!(told(&mut log, 0, u64::MAX, 1 << 63), Ok(vec![]));
    }

    #[test]
    fn without_room_everything_was_written() {
        let mut log = Log::new(4096, &[]).expect("a good size");
        (0..=CHUNKS_MAX as u64).for_each(|number| log.mark(number << 27, 1));
        assert_eq!((log.chunks.len(), told(&mut log, 0x5000, 0x2001, 4096)), (CHUNKS_MAX, Ok(vec![0, 1, 2])));
    }
}
