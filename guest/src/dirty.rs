//! The log of written guest memory: a client that migrates a running guest copies these pages once more.
//!
//! A client reads the log in one of two ways: [`DirtyPages`] is a record of Lunar, which the client requests;
//! [`DirtyBitmap`] lies in memory that the client shares.

use crate::Range;
use crate::window::Window;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Most address ranges of interest, for a client that needs only some of the writes: it has a handful.
pub const RANGES_MAX: usize = 64;
/// Bytes of a page in [`DirtyPages`]: no less than the smallest page of a guest, no more than the largest.
pub const PAGE_SIZES: RangeInclusive<u64> = 4096..=1 << 30;
/// Most chunks of 32,768 pages in which any page is dirty: those of 1 TiB in pages of 4 KiB, with 32 MiB of bits.
/// Beyond this number all memory of the guest counts as dirty.
pub const CHUNKS_MAX: usize = 8192;
/// Most bytes of a bitmap in one report: 8 GiB in pages of 4 KiB.
pub const BITMAP_MAX: usize = 256 << 10;
/// Bytes of a page in [`DirtyBitmap`].
pub const BITMAP_PAGE: u64 = 4096;

/// Words of a chunk: 32,768 pages.
const WORDS: usize = 512;
const WORD_BITS: u64 = u64::BITS as u64;
const CHUNK_BITS: u64 = WORDS as u64 * WORD_BITS;

/// The pages of a chunk, and which of its words are not zero: a report looks at no others.
#[derive(Debug)]
struct Chunk {
    words: Box<[u64; WORDS]>,
    used: [u64; WORDS / WORD_BITS as usize],
}

impl Chunk {
    fn new() -> Self {
        Self { words: Box::new([0; WORDS]), used: [0; WORDS / WORD_BITS as usize] }
    }

    fn set(&mut self, bit: u64) {
        let at = bit / WORD_BITS;
        self.words[at as usize] |= 1 << (bit % WORD_BITS);
        self.used[(at / WORD_BITS) as usize] |= 1 << (at % WORD_BITS);
    }

    /// Calls `visit` for each bit; it is cleared when it returns `true`.
    fn visit(&mut self, mut visit: impl FnMut(u64) -> bool) {
        for (group, used) in (0..).zip(&mut self.used) {
            for within in bits(*used) {
                let at = group * WORD_BITS + within;
                let word = &mut self.words[at as usize];
                for bit in bits(*word) {
                    if visit(at * WORD_BITS + bit) {
                        *word &= !(1 << bit);
                    }
                }
                if *word == 0 {
                    *used &= !(1 << within);
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.used.iter().all(|used| *used == 0)
    }
}

/// The bits of a word that are set.
fn bits(word: u64) -> impl Iterator<Item = u64> {
    let mut left = word;
    std::iter::from_fn(move || {
        let bit = u64::from((left != 0).then(|| left.trailing_zeros())?);
        left &= left - 1;
        Some(bit)
    })
}

/// An invalid request for a log or a report: a page size that is no power of two or too small, a range that is empty
/// or extends beyond the address space, or more than a limit of this module allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogError;

/// The place of the log.
#[derive(Debug)]
pub enum DirtyLog {
    /// In Lunar, which reports it on request.
    Pages(DirtyPages),
    /// In memory of the client.
    Bitmap(DirtyBitmap),
}

impl DirtyLog {
    /// Whether a write is missing in it: see [`DirtyBitmap::is_short`].
    #[must_use]
    pub fn is_short(&self) -> bool {
        match self {
            Self::Pages(_) => false,
            Self::Bitmap(bitmap) => bitmap.is_short(),
        }
    }

    /// Records that these bytes were written.
    pub fn mark(&mut self, range: Range) {
        match self {
            Self::Pages(pages) => pages.mark(range),
            Self::Bitmap(bitmap) => bitmap.mark(range),
        }
    }
}

/// The pages that were written since they were reported last.
#[derive(Debug)]
pub struct DirtyPages {
    /// Bytes of a page, as a power of two.
    shift: u32,
    /// First and last addresses of the ranges of interest. Without any, all addresses are of interest.
    ranges: Vec<(u64, u64)>,
    /// By number. The number of a page is its address divided by the page size.
    chunks: BTreeMap<u64, Chunk>,
    /// Whether there were more than [`CHUNKS_MAX`] chunks: everything counts as dirty.
    is_full: bool,
}

impl DirtyPages {
    /// A log without dirty pages. The pages have `page_size` bytes, or the nearest of [`PAGE_SIZES`].
    ///
    /// # Errors
    /// [`LogError`] for a size that is no power of two, and for ranges that are empty, extend beyond the address space
    /// or are more than [`RANGES_MAX`].
    pub fn new(page_size: u64, ranges: &[Range]) -> Result<Self, LogError> {
        if !page_size.is_power_of_two() || ranges.len() > RANGES_MAX {
            return Err(LogError);
        }
        let shift = page_size.clamp(*PAGE_SIZES.start(), *PAGE_SIZES.end()).trailing_zeros();
        let ranges: Option<Vec<_>> = ranges.iter().map(|range| range.ends()).collect();
        Ok(Self { shift, ranges: ranges.ok_or(LogError)?, chunks: BTreeMap::new(), is_full: false })
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(&self) -> u64 {
        1 << self.shift
    }

    /// Records that these bytes were written.
    pub fn mark(&mut self, range: Range) {
        let Some((first, last)) = range.ends() else { return };
        if self.ranges.is_empty() {
            return self.set(first, last);
        }
        for at in 0..self.ranges.len() {
            let (from, to) = self.ranges[at];
            if from <= last && first <= to {
                self.set(first.max(from), last.min(to));
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
            self.chunks.entry(number).or_insert_with(Chunk::new).set(bit);
        }
    }

    /// A bit for each page of `page_size` bytes in `asked`, lowest bit first, in whole 64-bit words, little-endian: set
    /// when the page is dirty. Pages that lie in `asked` completely are clean afterwards.
    ///
    /// # Errors
    /// [`LogError`] for a page size that is no power of two or smaller than the smallest of [`PAGE_SIZES`], and for a
    /// bitmap of more than [`BITMAP_MAX`] bytes.
    pub fn report(&mut self, asked: Range, page_size: u64) -> Result<Vec<u8>, LogError> {
        let (first, last) = asked.ends().ok_or(LogError)?;
        let words = bitmap_len(asked, page_size).ok_or(LogError)? / size_of::<u64>();
        let mut bitmap = vec![0_u64; words];
        let mut report = |from: u64, to: u64| set_bits(&mut bitmap, from / page_size, to / page_size);
        if self.is_full {
            report(0, last - first);
        } else {
            let (shift, below) = (self.shift, self.page_size() - 1);
            self.visit(first >> shift, last >> shift, |page| {
                let (from, to) = (page << shift, page << shift | below);
                report(from.max(first) - first, to.min(last) - first);
                // A page that is only partly in the range stays dirty: the client did not ask for the rest of it.
                from >= first && to <= last
            });
        }
        Ok(bitmap.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Calls `visit` for each dirty page from `first` to `last`; the page is clean when it returns `true`.
    fn visit(&mut self, first: u64, last: u64, mut visit: impl FnMut(u64) -> bool) {
        let mut empty = Vec::new();
        for (number, chunk) in self.chunks.range_mut(first / CHUNK_BITS..=last / CHUNK_BITS) {
            chunk.visit(|bit| {
                let page = number * CHUNK_BITS + bit;
                (first..=last).contains(&page) && visit(page)
            });
            if chunk.is_empty() {
                empty.push(*number);
            }
        }
        for number in empty {
            self.chunks.remove(&number);
        }
    }
}

/// Sets the bits from `first` to `last`, a word at a time: a report has up to two million.
fn set_bits(words: &mut [u64], first: u64, last: u64) {
    let (from, to) = (first / WORD_BITS, last / WORD_BITS);
    for (number, word) in (from..=to).zip(&mut words[from as usize..]) {
        let low = if number == from { first % WORD_BITS } else { 0 };
        let high = if number == to { last % WORD_BITS } else { WORD_BITS - 1 };
        *word |= u64::MAX << low & u64::MAX >> (WORD_BITS - 1 - high);
    }
}

/// Bytes of the bitmap of [`DirtyPages::report`]; `None` when it returns an error.
#[must_use]
pub fn bitmap_len(asked: Range, page_size: u64) -> Option<usize> {
    if !page_size.is_power_of_two() || page_size < *PAGE_SIZES.start() || asked.ends().is_none() {
        return None;
    }
    let words = asked.len.div_ceil(page_size).div_ceil(WORD_BITS);
    usize::try_from(words).ok()?.checked_mul(size_of::<u64>()).filter(|len| *len <= BITMAP_MAX)
}

/// A bitmap in memory of the client: bit `n % 8` of byte `n / 8` is page `n` of [`BITMAP_PAGE`] bytes, counted from
/// guest address zero. Each bit is set by one atomic instruction, because the client clears bits at the same time.
#[derive(Debug)]
pub struct DirtyBitmap {
    bits: Window,
    is_short: bool,
}

impl DirtyBitmap {
    /// A log in this memory of the client.
    #[must_use]
    pub fn new(bits: Window) -> Self {
        Self { bits, is_short: false }
    }

    /// Whether a write has no bit in the bitmap, or its bit is mapped read-only: the client cannot learn of it, so the
    /// migration must fail.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Records that these bytes were written.
    pub fn mark(&mut self, range: Range) {
        let Some((first, last)) = range.ends() else { return };
        let (first, last) = (first / BITMAP_PAGE, last / BITMAP_PAGE);
        for byte in first / 8..=last / 8 {
            // The pages of this byte that lie in the range.
            let from = first.saturating_sub(byte * 8);
            let to = (last - byte * 8).min(7);
            let bits = 0xff_u8 << from & 0xff_u8 >> (7 - to);
            if !usize::try_from(byte).is_ok_and(|byte| self.bits.set_bits(byte, bits)) {
                self.is_short = true;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Region;
    use proptest::prelude::*;

    fn range(address: u64, len: u64) -> Range {
        Range { address, len }
    }

    /// The pages that are reported, by their numbers from the first on.
    fn reported(log: &mut DirtyPages, address: u64, len: u64, page_size: u64) -> Result<Vec<u64>, LogError> {
        let bitmap = log.report(range(address, len), page_size)?;
        assert_eq!(bitmap.len() % 8, 0);
        Ok((0..bitmap.len() as u64 * 8).filter(|bit| bitmap[(bit / 8) as usize] & 1 << (bit % 8) != 0).collect())
    }

    #[test]
    fn pages_are_reported_once_in_the_page_size_that_is_asked_for() {
        let mut log = DirtyPages::new(4096, &[]).expect("a page size");
        log.mark(range(0x1fff, 2));
        log.mark(range(0x8000, 0));
        log.mark(range(u64::MAX, 1));
        log.mark(range(u64::MAX, 2));
        assert_eq!(reported(&mut log, 0, 0x1800, 4096), Ok(vec![1]), "half of a page");
        assert_eq!(reported(&mut log, 0, 0x10000, 4096), Ok(vec![1, 2]), "half of a page stays dirty");
        assert_eq!(reported(&mut log, 0, 0x10000, 4096), Ok(vec![]));
        assert_eq!(reported(&mut log, u64::MAX - 0xfff, 0x1000, 4096), Ok(vec![0]));
        (0..100).for_each(|page| log.mark(range(page * 0x20_0000 + 5, 4096)));
        assert_eq!(reported(&mut log, 0, 200 << 20, 2 << 20), Ok((0..100).collect()));
        assert!(log.chunks.is_empty());
        log.mark(range(5 << 27, 4096));
        log.mark(range((5 << 27) + (1 << 26), 4096));
        assert_eq!(reported(&mut log, 5 << 27, 1 << 26, 4096), Ok(vec![0]));
        assert_eq!(reported(&mut log, 5 << 27, 1 << 27, 4096), Ok(vec![1 << 14]), "the other page of the chunk stays");
        // The log has larger pages than the request: all parts of a dirty page are dirty.
        let mut log = DirtyPages::new(16384, &[]).expect("a page size");
        log.mark(range(0x5000, 1));
        assert_eq!(reported(&mut log, 0x2000, 0x8000, 4096), Ok(vec![2, 3, 4, 5]));
        assert_eq!(
            (DirtyPages::new(512, &[]).map(|log| log.page_size()), DirtyPages::new(1 << 40, &[]).map(|log| log.shift)),
            (Ok(4096), Ok(30))
        );
    }

    #[test]
    fn only_ranges_of_interest_are_logged() {
        let mut log = DirtyPages::new(4096, &[range(0x2000, 0x1000), range(0x8800, 0x800)]).expect("good ranges");
        log.mark(range(0, 0x8800));
        assert_eq!(reported(&mut log, 0, 0x10000, 4096), Ok(vec![2]));
        log.mark(range(0x8fff, 1));
        assert_eq!(reported(&mut log, 0, 0x10000, 4096), Ok(vec![8]));
    }

    #[test]
    fn logs_and_reports_that_cannot_be_are_refused() {
        let many = vec![range(0, 4096); RANGES_MAX + 1];
        let nowhere = [range(u64::MAX, 2)];
        for (size, ranges) in [(0, &[][..]), (5000, &[]), (4096, &many), (4096, &[range(0, 0)]), (4096, &nowhere)] {
            assert_eq!(DirtyPages::new(size, ranges).err(), Some(LogError), "{size}");
        }
        let mut log = DirtyPages::new(4096, &[]).expect("a page size");
        for (address, len, size) in [
            (0, 0, 4096),
            (0, 4096, 0),
            (0, 4096, 512),
            (0, 1 << 40, 4096),
            (1, u64::MAX, 4096),
            (0, u64::MAX, 3 << 20),
        ] {
            assert_eq!(reported(&mut log, address, len, size), Err(LogError), "{address:x} {len:x} {size:x}");
        }
        assert_eq!(reported(&mut log, 0, u64::MAX, 1 << 63), Ok(vec![]));
    }

    #[test]
    fn a_log_without_room_reports_everything_as_dirty() {
        let mut log = DirtyPages::new(4096, &[]).expect("a page size");
        (0..=CHUNKS_MAX as u64).for_each(|number| log.mark(range(number << 27, 1)));
        assert_eq!((log.chunks.len(), reported(&mut log, 0x5000, 0x2001, 4096)), (CHUNKS_MAX, Ok(vec![0, 1, 2])));
        for pages in [63, 64, 65, 130] {
            assert_eq!(reported(&mut log, 0x5000, pages << 12, 4096), Ok((0..pages).collect()));
        }
    }

    fn bitmap(len: usize) -> (Region, DirtyBitmap) {
        let region = Region::zeroed(len + 16);
        let bits = Window::new(&region, 8, len).expect("within");
        (region, DirtyBitmap::new(bits))
    }

    #[test]
    fn a_bit_of_the_client_is_set_for_each_written_page_and_no_other() {
        let (region, mut log) = bitmap(4);
        log.mark(range(0x6fff, 0xa002));
        log.mark(range(0, 0));
        let mut bytes = [0; 20];
        assert!(region.read(0, &mut bytes));
        assert_eq!(bytes[8..12], [0xc0, 0xff, 0x03, 0]);
        assert!(bytes[..8].iter().chain(&bytes[12..]).all(|byte| *byte == 0) && !log.is_short());
        log.mark(range(31 << 12, 4096));
        assert!(!log.is_short());
        log.mark(range(32 << 12, 1));
        assert!(log.is_short(), "its page has no bit");
        let (_, mut log) = bitmap(4);
        log.mark(range(u64::MAX, 1));
        assert!(log.is_short());
    }

    proptest! {
        #[test]
        fn both_logs_agree_with_a_list_of_pages(
            writes in proptest::collection::vec((0..64_u64 << 12, 0..5_u64 << 12), 0..12),
        ) {
            let mut pages = DirtyPages::new(4096, &[]).expect("a page size");
            let (region, mut bits) = bitmap(10);
            let mut wanted = [false; 80];
            for (address, len) in writes {
                pages.mark(range(address, len));
                bits.mark(range(address, len));
                (address..address + len).for_each(|byte| wanted[(byte >> 12) as usize] = true);
            }
            let wanted: Vec<u64> = (0..80).filter(|page| wanted[*page as usize]).collect();
            prop_assert_eq!(reported(&mut pages, 0, 80 << 12, 4096), Ok(wanted.clone()));
            let mut found = [0_u8; 10];
            prop_assert!(region.read(8, &mut found));
            let found: Vec<u64> = (0..80).filter(|page| found[(page / 8) as usize] & 1 << (page % 8) != 0).collect();
            prop_assert_eq!(found, wanted);
            prop_assert!(!bits.is_short());
        }
    }
}
