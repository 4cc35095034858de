//! The pages of a volume in memory, found without a lock: a directory of chunks that are made when first
//! written, and in each chunk its pages, each behind a lock of its own.

use lunar_core::io::{Extent, Fault};
use lunar_reactor::pages::{self, PAGE_BYTES};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Pages of a chunk: 64 MiB of volume behind 24 KiB of table.
const CHUNK_PAGES: usize = 1024;
const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_BYTES) as u64;

/// A page, if anything was ever written to it; what was not reads as zeroes.
type Page = RwLock<Option<pages::Page>>;
const _: () = assert!(CHUNK_PAGES * size_of::<Page>() == 24 << 10);

#[derive(Debug)]
pub(crate) struct Table {
    chunks: Box<[Chunk]>,
    used: Arc<AtomicU64>,
}

/// The pages of a chunk, once one was written; the same for a table and those that have grown out of it.
type Chunk = Arc<OnceLock<Box<[Page]>>>;

/// The bytes of one page that a request touches.
struct Part {
    page: u64,
    start: usize,
    end: usize,
}

/// Cuts `len` bytes at `offset` at the borders of pages.
fn parts(mut offset: u64, mut len: u64) -> impl Iterator<Item = Part> {
    std::iter::from_fn(move || {
        if len == 0 {
            return None;
        }
        let page = offset / PAGE_BYTES as u64;
        // Both are at most PAGE_BYTES, so nothing is cut off.
        let start = (offset % PAGE_BYTES as u64) as usize;
        let count = (len.min((PAGE_BYTES - start) as u64)) as usize;
        offset += count as u64;
        len -= count as u64;
        Some(Part { page, start, end: start + count })
    })
}

// Code that holds a page does not panic; bytes have no invariant that it could break.
fn read(page: &Page) -> RwLockReadGuard<'_, Option<pages::Page>> {
    page.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(page: &Page) -> RwLockWriteGuard<'_, Option<pages::Page>> {
    page.write().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    pub(crate) fn new(size: u64) -> Self {
        Self { chunks: (0..size.div_ceil(CHUNK_BYTES)).map(|_| Chunk::default()).collect(), used: Arc::default() }
    }

    /// The same bytes, and more behind them.
    pub(crate) fn grown(&self, size: u64) -> Self {
        let more = (self.chunks.len() as u64..size.div_ceil(CHUNK_BYTES)).map(|_| Chunk::default());
        Self { chunks: self.chunks.iter().cloned().chain(more).collect(), used: self.used.clone() }
    }

    /// Bytes that pages take.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The page, if its chunk was ever written to.
    fn find(&self, page: u64) -> Option<&Page> {
        let chunk = self.chunks.get((page / CHUNK_PAGES as u64) as usize)?.get()?;
        Some(&chunk[(page % CHUNK_PAGES as u64) as usize])
    }

    /// The page; makes its chunk.
    fn make(&self, page: u64) -> &Page {
        let chunk = self.chunks[(page / CHUNK_PAGES as u64) as usize]
            .get_or_init(|| (0..CHUNK_PAGES).map(|_| RwLock::new(None)).collect());
        &chunk[(page % CHUNK_PAGES as u64) as usize]
    }

    /// Hands `len` bytes out part by part, with how many went before: bytes, or how many zeroes.
    pub(crate) fn read(&self, offset: u64, len: usize, mut put: impl FnMut(usize, Result<&[u8], usize>)) {
        let mut at = 0;
        for part in parts(offset, len as u64) {
            let count = part.end - part.start;
            match self.find(part.page).map(read).as_deref() {
                Some(Some(bytes)) => put(at, Ok(&bytes[part.start..part.end])),
                _ => put(at, Err(count)),
            }
            at += count;
        }
    }

    /// Has `len` bytes filled part by part, told how many went before. Fails with `NoSpace` when there is no memory for
    /// a page; what lies before it is written.
    pub(crate) fn write(&self, offset: u64, len: usize, mut get: impl FnMut(usize, &mut [u8])) -> Result<(), Fault> {
        let mut at = 0;
        for part in parts(offset, len as u64) {
            let mut page = write(self.make(part.page));
            let bytes = match &mut *page {
                Some(bytes) => bytes,
                none => {
                    let fresh = none.insert(pages::Page::zeroed()?);
                    self.used.fetch_add(PAGE_BYTES as u64, Ordering::Relaxed);
                    fresh
                }
            };
            get(at, &mut bytes[part.start..part.end]);
            at += part.end - part.start;
        }
        Ok(())
    }

    /// Zeroes; whole pages are given back if `free`. A page that was never written stays so: it reads as zeroes.
    pub(crate) fn zero(&self, offset: u64, len: u64, free: bool) {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let rest_of_chunk = CHUNK_BYTES - at % CHUNK_BYTES;
            let count = rest_of_chunk.min(end - at);
            // A chunk that was never made is skipped whole: unmapping terabytes of nothing costs nothing.
            if self.chunks[(at / CHUNK_BYTES) as usize].get().is_some() {
                parts(at, count).for_each(|part| self.zero_part(&part, free));
            }
            at += count;
        }
    }

    fn zero_part(&self, part: &Part, free: bool) {
        let Some(page) = self.find(part.page) else { return };
        if free && part.end - part.start == PAGE_BYTES {
            // Freed after the lock is let go: the kernel may take its time.
            let old = write(page).take();
            if old.is_some() {
                self.used.fetch_sub(PAGE_BYTES as u64, Ordering::Relaxed);
            }
        } else if let Some(bytes) = &mut *write(page) {
            bytes[part.start..part.end].fill(0);
        }
    }

    /// How far the space at `offset` is in one state, at most `len`.
    pub(crate) fn extent(&self, offset: u64, len: u64) -> Extent {
        let mapped = |at: u64| self.find(at / PAGE_BYTES as u64).is_some_and(|page| read(page).is_some());
        let first = mapped(offset);
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let chunk_made = self.chunks[(at / CHUNK_BYTES) as usize].get().is_some();
            if mapped(at) != first {
                break;
            }
            let step = if chunk_made { PAGE_BYTES as u64 } else { CHUNK_BYTES };
            at = (at / step + 1) * step;
        }
        Extent { len: at.min(end) - offset, mapped: first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    #[test]
    fn whole_pages_are_given_back_and_parts_zeroed() {
        let table = Table::new(8 * PAGE);
        table.write(PAGE - 2, PAGE_BYTES + 4, |_, bytes| bytes.fill(7)).expect("memory");
        assert_eq!(table.used(), 3 * PAGE);
        table.zero(0, 2 * PAGE, true);
        assert_eq!(table.used(), PAGE);
        table.zero(2 * PAGE, 1, true);
        let mut bytes = [9; 3];
        table.read(2 * PAGE - 1, 3, |at, part| match part {
            Ok(part) => bytes[at..at + part.len()].copy_from_slice(part),
            Err(zeroes) => bytes[at..at + zeroes].fill(0),
        });
        assert_eq!(bytes, [0, 0, 7]);
        table.zero(0, 8 * PAGE, false);
        assert_eq!(table.used(), PAGE, "zeroing keeps the space");
    }

    #[test]
    fn extents_end_where_the_state_changes() {
        let table = Table::new(3 * CHUNK_BYTES);
        assert_eq!(table.extent(5, 3 * CHUNK_BYTES - 5), Extent { len: 3 * CHUNK_BYTES - 5, mapped: false });
        table.write(2 * CHUNK_BYTES + PAGE, 1, |_, bytes| bytes.fill(1)).expect("memory");
        assert_eq!(
            table.extent(512, 3 * CHUNK_BYTES - 512),
            Extent { len: 2 * CHUNK_BYTES + PAGE - 512, mapped: false }
        );
        let at = 2 * CHUNK_BYTES + PAGE + 512;
        assert_eq!(table.extent(at, 3 * CHUNK_BYTES - at), Extent { len: PAGE - 512, mapped: true });
        assert_eq!(table.extent(at, 512), Extent { len: 512, mapped: true });
    }

    #[test]
    fn unmapping_terabytes_of_nothing_takes_no_time() {
        let table = Table::new(crate::SIZE_MAX);
        table.zero(0, crate::SIZE_MAX, true);
        assert_eq!(table.extent(0, crate::SIZE_MAX), Extent { len: crate::SIZE_MAX, mapped: false });
        assert_eq!(table.used(), 0);
    }
}
