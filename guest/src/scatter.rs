//! The data of one command, which lies in several pieces of guest memory: pages of a list, buffers of a descriptor
//! chain.

use crate::Range;
use crate::memory::Memory;
use lunar_core::mem::{Region, Sg, SgMut, Slice};
use smallvec::SmallVec;
use std::ops::Deref;

/// Bytes that are copied at once where guest memory is on one side: no reference to guest memory exists, so each part
/// goes through a buffer on the stack.
const COPIED_AT_ONCE: usize = 512;

/// Ranges that hold the data, in order. A small number needs no allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScatterList(SmallVec<[Range; 4]>);

impl ScatterList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a range. A range that continues the last one is joined with it; an empty one is left out.
    #[inline]
    pub fn push(&mut self, range: Range) {
        if range.len == 0 {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.address.checked_add(last.len) == Some(range.address) => {
                last.len = last.len.saturating_add(range.len);
            }
            _ => self.0.push(range),
        }
    }
}

impl Deref for ScatterList {
    type Target = [Range];

    fn deref(&self) -> &[Range] {
        &self.0
    }
}

/// The data of a command in guest memory. Offsets count from its first byte.
#[derive(Clone, Copy, Debug)]
pub struct Scatter<'a> {
    memory: &'a Memory,
    ranges: &'a [Range],
}

impl<'a> Scatter<'a> {
    /// The bytes of these ranges, one after the other.
    #[inline]
    #[must_use]
    pub fn new(memory: &'a Memory, ranges: &'a [Range]) -> Self {
        Self { memory, ranges }
    }

    /// Calls `visit` for each range of `len` bytes from `offset` on: guest address, bytes. Returns whether there are
    /// enough bytes and `visit` always returned `true`.
    #[inline]
    fn each(self, offset: usize, len: usize, mut visit: impl FnMut(u64, usize) -> bool) -> bool {
        let (mut offset, mut left) = (offset as u64, len as u64);
        for range in self.ranges {
            if offset >= range.len {
                offset -= range.len;
                continue;
            }
            let count = left.min(range.len - offset);
            // No more than `len`, which is a usize.
            if count > 0 && !visit(range.address.wrapping_add(offset), count as usize) {
                return false;
            }
            (offset, left) = (0, left - count);
        }
        left == 0
    }

    /// The region that has all of `len` bytes from `offset` on, and their offset in it: the usual case. A list that is
    /// made of it at once is not copied from the stack.
    #[inline]
    fn region(self, offset: usize, len: usize) -> Option<(&'a Region, usize)> {
        let [range] = self.ranges else { return None };
        let end = (offset as u64).checked_add(len as u64)?;
        (len > 0 && end <= range.len).then(|| self.memory.region(range.address.wrapping_add(offset as u64), len))?
    }

    /// Copies bytes from `offset` on into memory of Lunar, all of it; `false` when they are not all there.
    #[must_use]
    pub fn read(self, offset: usize, into: &mut SgMut) -> bool {
        let mut done = 0;
        self.each(offset, into.len(), |address, count| {
            self.memory.each(address, count, |region, at, count| {
                let Some(part) = region.slice(at, count) else { return false };
                copy(&part, into, done);
                done += count;
                true
            })
        })
    }

    /// Copies data to the bytes from `offset` on; `false` when not all of them are there and writable: then a part may
    /// be written.
    #[must_use]
    pub fn write(self, offset: usize, data: &Sg) -> bool {
        let (mut done, mut buffer) = (0, [0; COPIED_AT_ONCE]);
        self.each(offset, data.len(), |address, count| {
            let mut at = 0;
            while at < count {
                let part = (count - at).min(buffer.len());
                data.copy_to(done, &mut buffer[..part]);
                if !self.memory.write(address.wrapping_add(at as u64), &buffer[..part]) {
                    return false;
                }
                (at, done) = (at + part, done + part);
            }
            true
        })
    }

    /// The memory itself, which a store fills: `len` bytes from `offset` on. `None` when they are not all there and
    /// writable. The caller records the filled bytes with [`Scatter::mark`].
    #[inline]
    #[must_use]
    pub fn to_fill(self, offset: usize, len: usize) -> Option<SgMut> {
        if let Some((region, at)) = self.region(offset, len) {
            return region.buf(at, len).map(SgMut::from);
        }
        let mut memory = SgMut::default();
        let is_there = self.each(offset, len, |address, count| {
            self.memory
                .each(address, count, |region, at, count| region.buf(at, count).map(|part| memory.push(part)).is_some())
        });
        is_there.then_some(memory)
    }

    /// The memory itself, which a store reads: `len` bytes from `offset` on. `None` when they are not all there.
    #[inline]
    #[must_use]
    pub fn to_read(self, offset: usize, len: usize) -> Option<Sg> {
        if let Some((region, at)) = self.region(offset, len) {
            return region.slice(at, len).map(Sg::from);
        }
        let mut memory = Sg::default();
        let is_there = self.each(offset, len, |address, count| {
            self.memory.each(address, count, |region, at, count| {
                region.slice(at, count).map(|part| memory.push(part)).is_some()
            })
        });
        is_there.then_some(memory)
    }

    /// Records that `len` bytes from `offset` on were written.
    pub fn mark(self, offset: usize, len: usize) {
        let _ = self.each(offset, len, |address, count| {
            self.memory.mark(address, count as u64);
            true
        });
    }
}

/// Copies `from` to the bytes of `to` from `at` on.
fn copy(from: &Slice, to: &mut SgMut, at: usize) {
    let (mut done, mut buffer) = (0, [0; COPIED_AT_ONCE]);
    while done < from.len() {
        let count = (from.len() - done).min(buffer.len());
        from.read(done, &mut buffer[..count]);
        to.copy_from(at + done, &buffer[..count]);
        done += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::{DirtyLog, DirtyPages};
    use lunar_core::mem::{Arena, Region};

    fn range(address: u64, len: u64) -> Range {
        Range { address, len }
    }

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.map(0x1000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        memory.map(0x2000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        memory.map(0x3000, 0x1000, None).expect("free");
        memory
    }

    #[test]
    fn ranges_that_continue_each_other_are_one() {
        let mut list = ScatterList::new();
        for (address, len) in [(0x1000, 16), (0x1010, 16), (0x5000, 0), (0x1030, 1), (u64::MAX, 1), (0, 4)] {
            list.push(range(address, len));
        }
        assert_eq!(list[..], [range(0x1000, 32), range(0x1030, 1), range(u64::MAX, 1), range(0, 4)]);
    }

    #[test]
    fn bytes_are_copied_across_ranges_and_regions() {
        let (memory, arena) = (memory(), Arena::new(1 << 20));
        let ranges = [range(0x1800, 0x900), range(0x1000, 3), range(0x2fff, 1)];
        let scatter = Scatter::new(&memory, &ranges);
        let bytes: Vec<u8> = (0..0x904_u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let fresh = |len| arena.take_sg(len).expect("room");
        let mut data = fresh(bytes.len());
        data.copy_from(0, &bytes);
        assert!(scatter.write(0, &data.share()));
        for (offset, len) in [(0, 0x904), (0, 0), (0x904, 0), (0x7ff, 2), (0x8fe, 6), (0x903, 1)] {
            let mut read = fresh(len.max(1));
            let into = &mut read.split_to(len);
            assert!(scatter.read(offset, into), "{offset:x} {len:x}");
            let mut found = vec![0; len];
            std::mem::take(into).share().copy_to(0, &mut found);
            assert_eq!(found, bytes[offset..offset + len], "{offset:x} {len:x}");
        }
        assert!(!scatter.read(0x903, &mut fresh(2)) && !scatter.write(0x904, &fresh(1).share()));
        let lent = scatter.to_read(0x7fe, 8).expect("it is there");
        let mut found = [0; 8];
        lent.pieces().iter().fold(0, |at, piece| {
            piece.read(0, &mut found[at..at + piece.len()]);
            at + piece.len()
        });
        assert_eq!(found, bytes[0x7fe..0x806]);
        assert_eq!(scatter.to_fill(0x7fe, 0x106).map(|memory| memory.len()), Some(0x106));
        assert!(scatter.to_fill(0x800, 0x105).is_none() && scatter.to_read(usize::MAX, 2).is_none());
    }

    #[test]
    fn data_that_is_not_all_in_guest_memory_is_not_moved() {
        let (memory, arena) = (memory(), Arena::new(1 << 20));
        let fresh = |len| arena.take_sg(len).expect("room");
        for ranges in [
            [range(0x1000, 8), range(0xfff, 8)],
            [range(0x1000, 8), range(0x2ffc, 8)],
            [range(0x1000, 8), range(u64::MAX - 3, 8)],
            [range(0x1000, 8), range(0x3000, 8)],
        ] {
            let scatter = Scatter::new(&memory, &ranges);
            assert!(!scatter.read(4, &mut fresh(12)) && !scatter.write(4, &fresh(12).share()), "{ranges:x?}");
            assert!(scatter.to_fill(4, 12).is_none() && scatter.to_read(4, 12).is_none(), "{ranges:x?}");
            assert!(scatter.read(0, &mut fresh(8)), "the first range is there");
        }
    }

    #[test]
    fn memory_that_a_client_maps_read_only_is_not_written() {
        let (file, shared) = lunar_reactor::shared::share("guest", 0x1000).expect("memory");
        let read_only = lunar_reactor::shared::map(&file, 0, 0x1000, false).expect("mapped");
        let (mut memory, arena) = (memory(), Arena::new(1 << 20));
        memory.map(0x8000, 0x1000, Some(read_only)).expect("free");
        memory.start_log(DirtyLog::Pages(DirtyPages::new(4096, &[]).expect("a page size")));
        assert!(shared.write(0, b"theirs"));
        let mut found = [0; 6];
        assert!(memory.read(0x8000, &mut found) && &found == b"theirs");
        let ranges = [range(0x1000, 6), range(0x8000, 6)];
        let scatter = Scatter::new(&memory, &ranges);
        let mut data = arena.take_sg(12).expect("room");
        data.copy_from(0, b"ours? theirs");
        assert!(scatter.to_read(0, 12).is_some() && scatter.read(0, &mut arena.take_sg(12).expect("room")));
        assert!(scatter.to_fill(0, 12).is_none() && scatter.to_fill(6, 6).is_none() && scatter.to_fill(0, 6).is_some());
        assert!(!memory.write(0x8000, b"ours") && !scatter.write(0, &data.share()));
        let window = memory.window(0x8000, 64).expect("within");
        assert!(!window.store(0, 1) && !window.store_u16(0, 1) && !window.set_bits(0, 1) && !window.write(0, &[1]));
        assert!(shared.read(0, &mut found) && &found == b"theirs", "there was no change");
        let Some(DirtyLog::Pages(mut pages)) = memory.stop_log() else { panic!("it was started") };
        assert_eq!(pages.report(range(0, 0x10000), 4096).map(|bits| (bits[0], bits[1])), Ok((2, 0)), "the first range");
    }

    #[test]
    fn ranges_filled_by_a_store_are_logged_when_they_are_marked() {
        let mut memory = memory();
        memory.start_log(DirtyLog::Pages(DirtyPages::new(4096, &[]).expect("a page size")));
        let ranges = [range(0x1000, 8), range(0x2000, 8)];
        let scatter = Scatter::new(&memory, &ranges);
        let report = || match memory.log().as_deref_mut() {
            Some(DirtyLog::Pages(pages)) => pages.report(range(0, 0x4000), 4096).ok().map(|bits| bits[0]),
            _ => None,
        };
        assert!(scatter.to_fill(0, 16).is_some());
        assert_eq!(report(), Some(0));
        scatter.mark(8, 8);
        assert_eq!(report(), Some(4));
        scatter.mark(0, 16);
        assert_eq!(report(), Some(6));
    }
}
