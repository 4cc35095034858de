//! The guest's memory: which addresses a device may use, and what lies there.
//!
//! Who maps it may have no descriptor for it: such addresses are known, and lead nowhere.

use crate::Range;
use crate::dirty::{Log, LogError};
use lunar_core::mem::Region;
use std::cell::{Cell, RefCell};

/// Mapped ranges of a guest's memory at most: one for each of some thousand huge pages.
pub const MAPS_MAX: usize = 8192;

/// Why memory is not mapped or unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// Other memory has some of these addresses.
    Overlap,
    /// The range is empty, goes beyond the last address, or is not as long as its memory.
    Invalid,
    /// There are [`MAPS_MAX`] ranges.
    TooMany,
    /// No range was mapped just so.
    Missing,
}

/// A range of addresses.
#[derive(Debug)]
struct Map {
    address: u64,
    size: u64,
    region: Option<Region>,
}

impl Map {
    fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// A part of the guest's memory that lies in one piece.
#[derive(Clone, Debug)]
pub struct Window {
    region: Region,
    at: usize,
    len: usize,
}

impl Window {
    /// `len` bytes of `region` from `at` on.
    #[must_use]
    pub fn new(region: &Region, at: usize, len: usize) -> Option<Self> {
        let end = at.checked_add(len)?;
        (end <= region.len()).then(|| Self { region: region.clone(), at, len })
    }

    #[inline]
    fn place(&self, at: usize, len: usize) -> Option<usize> {
        (at.checked_add(len)? <= self.len).then_some(self.at + at)
    }

    /// See [`Region::prefetch`].
    #[inline]
    pub fn prefetch(&self, at: usize, is_written: bool) {
        if let Some(at) = self.place(at, 1) {
            self.region.prefetch(at, is_written);
        }
    }

    /// Copies the bytes from `at` on; tells whether they lie within.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, into: &mut [u8]) -> bool {
        self.place(at, into.len()).is_some_and(|at| self.region.read(at, into))
    }

    /// Copies `from` to the bytes from `at` on; tells whether they lie within and may be written.
    #[inline]
    #[must_use]
    pub fn write(&self, at: usize, from: &[u8]) -> bool {
        self.place(at, from.len()).is_some_and(|at| self.region.write(at, from))
    }

    /// The word at `at`.
    #[inline]
    #[must_use]
    pub fn load(&self, at: usize) -> Option<u32> {
        self.region.load(self.place(at, 4)?)
    }

    /// Writes the word at `at`, behind all that was written before; tells whether it can be.
    #[inline]
    #[must_use]
    pub fn store(&self, at: usize, value: u32) -> bool {
        self.place(at, 4).is_some_and(|at| self.region.store(at, value))
    }
}

/// The memory of a guest.
#[derive(Debug, Default)]
pub struct Memory {
    /// In the order of addresses, none over another.
    maps: Vec<Map>,
    /// Where the last one was found.
    last: Cell<usize>,
    /// What was written, while somebody wants to know.
    log: RefCell<Option<Log>>,
    is_logged: Cell<bool>,
}

impl Memory {
    /// Adds memory; `None`: addresses that lead nowhere.
    ///
    /// # Errors
    /// [`MapError::Overlap`], [`MapError::Invalid`], [`MapError::TooMany`].
    pub fn map(&mut self, address: u64, size: u64, region: Option<Region>) -> Result<(), MapError> {
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(MapError::Invalid)?;
        if region.as_ref().is_some_and(|region| region.len() as u64 != size) {
            return Err(MapError::Invalid);
        }
        if self.maps.len() >= MAPS_MAX {
            return Err(MapError::TooMany);
        }
        let at = self.maps.partition_point(|map| map.address < address);
        let over_next = self.maps.get(at).is_some_and(|next| next.address < end);
        let over_last = at.checked_sub(1).is_some_and(|last| self.maps[last].end() > address);
        if over_next || over_last {
            return Err(MapError::Overlap);
        }
        self.maps.insert(at, Map { address, size, region });
        Ok(())
    }

    /// Takes memory away that was added just so. It may be in use yet.
    ///
    /// # Errors
    /// [`MapError::Missing`]
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<Option<Region>, MapError> {
        let at = self.maps.iter().position(|map| (map.address, map.size) == (address, size));
        Ok(self.maps.remove(at.ok_or(MapError::Missing)?).region)
    }

    /// Takes all of it away.
    pub fn clear(&mut self) -> Vec<Region> {
        self.maps.drain(..).filter_map(|map| map.region).collect()
    }

    /// All of it that is there.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.maps.iter().filter_map(|map| map.region.as_ref())
    }

    #[inline]
    fn find(&self, address: u64) -> Option<&Map> {
        let holds = |map: &&Map| address.wrapping_sub(map.address) < map.size;
        if let Some(map) = self.maps.get(self.last.get()).filter(holds) {
            return Some(map);
        }
        let at = self.maps.partition_point(|map| map.address <= address).checked_sub(1)?;
        self.last.set(at);
        self.maps.get(at).filter(holds)
    }

    /// `len` bytes in one piece.
    #[must_use]
    pub fn window(&self, address: u64, len: usize) -> Option<Window> {
        let map = self.find(address)?;
        let at = usize::try_from(address - map.address).ok()?;
        Window::new(map.region.as_ref()?, at, len)
    }

    /// Hands out the pieces of `len` bytes: a region, where in it, how many bytes. Tells whether all of them are there.
    #[inline]
    #[must_use]
    pub fn each(&self, address: u64, len: usize, mut what: impl FnMut(&Region, usize, usize) -> bool) -> bool {
        let (mut address, mut left) = (address, len as u64);
        while left > 0 {
            let Some(map) = self.find(address) else { return false };
            let Some(region) = &map.region else { return false };
            let count = left.min(map.end() - address);
            // Both are less than a region's length.
            if !what(region, (address - map.address) as usize, count as usize) {
                return false;
            }
            left -= count;
            // Wraps at the end of all addresses: nothing is there.
            address = address.wrapping_add(count);
        }
        true
    }

    /// Copies the bytes at `address`; tells whether they are there.
    #[must_use]
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let mut done = 0;
        let len = into.len();
        self.each(address, len, |region, at, count| {
            let part = &mut into[done..done + count];
            done += count;
            region.read(at, part)
        })
    }

    /// Copies `from` to `address`; tells whether there is room.
    #[must_use]
    pub fn write(&self, address: u64, from: &[u8]) -> bool {
        let mut done = 0;
        let is_there = self.each(address, from.len(), |region, at, count| {
            let part = &from[done..done + count];
            done += count;
            region.write(at, part)
        });
        self.mark(address, done as u64);
        is_there
    }

    /// Remembers what is written from now on, or nothing any more.
    pub fn log(&mut self, log: Option<Log>) {
        self.is_logged.set(log.is_some());
        self.log = RefCell::new(log);
    }

    /// Whether it is remembered what is written.
    #[inline]
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.is_logged.get()
    }

    /// What was written.
    ///
    /// # Errors
    /// [`LogError`] when it is not remembered, or cannot be told so.
    pub fn report(&self, asked: Range, page_size: u64) -> Result<Vec<u8>, LogError> {
        self.log.borrow_mut().as_mut().ok_or(LogError)?.report(asked, page_size)
    }

    /// These bytes were written. To be told once they are: before that they may be copied as they were.
    pub fn mark(&self, address: u64, len: u64) {
        if self.is_logged()
            && let Some(log) = &mut *self.log.borrow_mut()
        {
            log.mark(address, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_do_not_lie_over_each_other() {
        let mut memory = Memory::default();
        let region = |len| Some(Region::zeroed(len));
        assert_eq!(memory.map(0x1000, 0x1000, region(0x1000)), Ok(()));
        for (address, size) in [(0x1000, 0x1000), (0xfff, 2), (0x1fff, 1), (0, 0x9000)] {
            assert_eq!(memory.map(address, size, None), Err(MapError::Overlap), "{address:x}");
        }
        assert_eq!(memory.map(u64::MAX, 2, None), Err(MapError::Invalid));
        assert_eq!(memory.map(0x9000, 0, None), Err(MapError::Invalid));
        assert_eq!(memory.map(0x9000, 0x1000, region(0x2000)), Err(MapError::Invalid));
        assert_eq!((memory.map(0x2000, 0x1000, region(0x1000)), memory.map(0, 0x1000, None)), (Ok(()), Ok(())));
        assert_eq!(memory.unmap(0x1000, 0x2000).err(), Some(MapError::Missing));
        assert!(memory.unmap(0x1000, 0x1000).is_ok_and(|region| region.is_some_and(|region| !region.is_in_use())));
    }

    #[test]
    fn bytes_are_found_across_maps_and_nowhere_else() {
        let mut memory = Memory::default();
        memory.map(0x1000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        memory.map(0x2000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        memory.map(0x3000, 0x1000, None).expect("free");
        let mut bytes = [0; 4];
        assert!(memory.write(0x1ffe, b"abcd") && memory.read(0x1ffe, &mut bytes) && &bytes == b"abcd");
        assert!(
            !memory.write(0x2ffe, b"abcd") && !memory.read(0xfff, &mut bytes) && !memory.read(u64::MAX, &mut bytes)
        );
        assert!(memory.window(0x1ffe, 4).is_none());
        let window = memory.window(0x1ff0, 16).expect("within");
        assert_eq!((window.load(12), window.load(16)), (Some(u32::from_le_bytes([0, 0, b'a', b'b'])), None));
        assert!(window.store(8, 5) && !window.store(14, 5) && !window.read(13, &mut bytes));
        assert_eq!(memory.clear().len(), 2);
        assert!(!memory.read(0x1000, &mut bytes));
    }
}
