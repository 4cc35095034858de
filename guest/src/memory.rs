//! Guest memory: regions by guest address, access to them, and the log of writes.
//!
//! A client adds and removes regions while commands run. A region stays mapped while a part of it is in use;
//! [`Region::is_in_use`] tells when a removed region is unused. The transport waits for that before it answers its
//! client.
//!
//! A region may be lost: its file was truncated, or a page of it is broken. The reactor replaces it by zeroes and
//! counts the losses of the process; see [`LossWatch`].

use crate::Range;
use crate::dirty::DirtyLog;
use crate::map::{AddressMap, MapError};
use crate::window::Window;
use lunar_core::mem::Region;
use std::cell::{Cell, RefCell, RefMut};

/// The memory of one guest.
#[derive(Debug, Default)]
pub struct Memory {
    /// The client knows a range without a region, but Lunar cannot access it: it came without a descriptor.
    map: AddressMap<Option<Region>>,
    log: RefCell<Option<DirtyLog>>,
    /// Whether there is a log: read with every write.
    is_logged: Cell<bool>,
}

impl Memory {
    /// Adds memory at `address`. Without a region the addresses are taken, and every access to them fails.
    ///
    /// # Errors
    /// [`MapError::Overlap`], [`MapError::Invalid`], [`MapError::TooMany`].
    pub fn map(&mut self, address: u64, len: u64, region: Option<Region>) -> Result<(), MapError> {
        if region.as_ref().is_some_and(|region| region.len() as u64 != len) {
            return Err(MapError::Invalid);
        }
        self.map.insert(Range { address, len }, region)
    }

    /// Removes memory that was added with exactly these addresses. Commands may still use it.
    ///
    /// # Errors
    /// [`MapError::Missing`].
    pub fn unmap(&mut self, address: u64, len: u64) -> Result<Option<Region>, MapError> {
        self.map.remove(Range { address, len })
    }

    /// Replaces all memory by a whole table, and returns the previous regions. Commands may still use them.
    ///
    /// # Errors
    /// Errors of [`Memory::map`]; then all memory is unchanged.
    pub fn replace(&mut self, table: impl IntoIterator<Item = (u64, Region)>) -> Result<Vec<Region>, MapError> {
        let mut map = AddressMap::default();
        for (address, region) in table {
            map.insert(Range { address, len: region.len() as u64 }, Some(region))?;
        }
        Ok(std::mem::replace(&mut self.map, map).clear().flatten().collect())
    }

    /// Removes all memory. Commands may still use it.
    pub fn clear(&mut self) -> Vec<Region> {
        self.map.clear().flatten().collect()
    }

    /// All regions.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.map.values().flatten()
    }

    /// `len` consecutive bytes of one region.
    #[must_use]
    pub fn window(&self, address: u64, len: usize) -> Option<Window> {
        let found = self.map.find(address)?;
        Window::new(found.value.as_ref()?, usize::try_from(found.offset).ok()?, len)
    }

    /// The region that has all of `len` bytes from `address` on, and their offset in it. `None` if there is no such
    /// region: the bytes may be in several.
    #[inline]
    #[must_use]
    pub fn region(&self, address: u64, len: usize) -> Option<(&Region, usize)> {
        let found = self.map.find(address).filter(|found| found.left >= len as u64)?;
        // Less than the length of a region.
        Some((found.value.as_ref()?, found.offset as usize))
    }

    /// Calls `visit` for each piece of `len` bytes from `address` on: region, offset in it, bytes. Stops when `visit`
    /// returns `false`. Returns whether all bytes were there and `visit` always returned `true`.
    #[inline]
    #[must_use]
    pub fn each(&self, address: u64, len: usize, mut visit: impl FnMut(&Region, usize, usize) -> bool) -> bool {
        let (mut address, mut left) = (address, len as u64);
        while left > 0 {
            let Some(found) = self.map.find(address) else { return false };
            let Some(region) = found.value else { return false };
            let count = left.min(found.left);
            // Both are less than the length of a region.
            if !visit(region, found.offset as usize, count as usize) {
                return false;
            }
            left -= count;
            // Wraps only with the last address of all, which no range contains.
            address = address.wrapping_add(count);
        }
        true
    }

    /// Copies the bytes at `address` into `into`; `false` when they are not all there.
    #[must_use]
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        // The usual case.
        if let Some((region, at)) = self.region(address, into.len()) {
            return region.read(at, into);
        }
        let mut done = 0;
        let len = into.len();
        self.each(address, len, |region, at, count| {
            let part = &mut into[done..done + count];
            done += count;
            region.read(at, part)
        })
    }

    /// Copies `from` to `address`; `false` when not all bytes are there and writable: then a part may be written.
    #[must_use]
    pub fn write(&self, address: u64, from: &[u8]) -> bool {
        let mut done = 0;
        let is_there = self.each(address, from.len(), |region, at, count| {
            let is_written = region.write(at, &from[done..done + count]);
            done += if is_written { count } else { 0 };
            is_written
        });
        self.mark(address, done as u64);
        is_there
    }

    /// Begins to record writes.
    pub fn start_log(&mut self, log: DirtyLog) {
        self.is_logged.set(true);
        self.log = RefCell::new(Some(log));
    }

    /// Ends the recording of writes, and returns the log.
    pub fn stop_log(&mut self) -> Option<DirtyLog> {
        self.is_logged.set(false);
        self.log.take()
    }

    /// Whether writes are recorded.
    #[inline]
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.is_logged.get()
    }

    /// Whether a write is missing in a log that lies in memory of the client.
    #[must_use]
    pub fn is_log_short(&self) -> bool {
        self.is_logged() && self.log().is_some_and(|log| log.is_short())
    }

    /// The log of writes.
    #[must_use]
    pub fn log(&self) -> Option<RefMut<'_, DirtyLog>> {
        RefMut::filter_map(self.log.borrow_mut(), Option::as_mut).ok()
    }

    /// Records that these bytes were written. To be called after the write: a client that reads the log earlier may
    /// copy the old bytes, and would not copy them again.
    pub fn mark(&self, address: u64, len: u64) {
        if self.is_logged()
            && let Some(mut log) = self.log()
        {
            log.mark(Range { address, len });
        }
    }
}

/// Tells a transport when it has to check whether memory of its own guest was lost. One number counts the losses of
/// the whole process; finding the affected regions is expensive.
#[derive(Debug)]
pub struct LossWatch {
    seen: Cell<usize>,
}

impl LossWatch {
    /// Starts with the current number of losses of the process.
    #[must_use]
    pub fn new(losses: usize) -> Self {
        Self { seen: Cell::new(losses) }
    }

    /// Whether there were losses since the last call; `losses` is their current number.
    #[inline]
    #[must_use]
    pub fn is_new(&self, losses: usize) -> bool {
        self.seen.replace(losses) != losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::DirtyPages;

    #[test]
    fn memory_is_as_long_as_its_range() {
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
    fn bytes_are_found_across_regions_and_nowhere_else() {
        let mut memory = Memory::default();
        memory.map(0x1000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        memory.map(0x2000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        memory.map(0x3000, 0x1000, None).expect("free");
        let mut bytes = [0; 4];
        assert!(memory.write(0x1ffe, b"abcd") && memory.read(0x1ffe, &mut bytes) && &bytes == b"abcd");
        assert!(
            !memory.write(0x2ffe, b"abcd") && !memory.read(0xfff, &mut bytes) && !memory.read(u64::MAX, &mut bytes)
        );
        assert!(memory.window(0x1ffe, 4).is_none() && memory.window(0x3000, 4).is_none());
        let window = memory.window(0x1ff0, 16).expect("within");
        assert_eq!((window.load(12), window.load(16)), (Some(u32::from_le_bytes([0, 0, b'a', b'b'])), None));
        assert!(window.store(8, 5) && !window.store(14, 5) && !window.read(13, &mut bytes));
        assert!(memory.read(u64::MAX, &mut []) && memory.write(0, &[]), "no bytes are at every address");
        assert_eq!(memory.clear().len(), 2);
        assert!(!memory.read(0x1000, &mut bytes));
    }

    #[test]
    fn a_table_is_replaced_as_a_whole_or_not_at_all() {
        let mut memory = Memory::default();
        memory.map(0x1000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        let table = |second: u64| [(0x1000, Region::zeroed(0x2000)), (second, Region::zeroed(0x1000))];
        assert_eq!(memory.replace(table(0x2fff)).err(), Some(MapError::Overlap));
        assert!(memory.window(0x1000, 0x1000).is_some() && memory.window(0x2000, 1).is_none());
        let old = memory.replace(table(0x3000)).expect("no overlap");
        assert!(old.len() == 1 && !old[0].is_in_use() && memory.regions().count() == 2);
        assert!(memory.window(0x2000, 0x1000).is_some() && memory.window(0x3000, 0x1000).is_some());
    }

    #[test]
    fn only_written_bytes_are_logged() {
        let mut memory = Memory::default();
        memory.map(0x1000, 0x1000, Some(Region::zeroed(0x1000))).expect("free");
        assert!(memory.write(0x1000, b"before"));
        memory.start_log(DirtyLog::Pages(DirtyPages::new(4096, &[]).expect("a page size")));
        let all = Range { address: 0, len: 0x4000 };
        let report = |memory: &Memory| match memory.log().as_deref_mut() {
            Some(DirtyLog::Pages(pages)) => pages.report(all, 4096).ok().map(|bits| bits[0]),
            _ => None,
        };
        assert!(!memory.write(0x2000, b"nowhere") && memory.read(0x1000, &mut [0; 4]));
        assert_eq!(report(&memory), Some(0));
        assert!(!memory.write(0x1fff, b"ab"), "the second byte has no memory");
        assert_eq!(report(&memory), Some(2));
        assert!(memory.stop_log().is_some() && !memory.is_logged() && memory.log().is_none());
    }

    #[test]
    fn a_loss_is_looked_for_once() {
        let watch = LossWatch::new(3);
        assert_eq!([3, 4, 4, 9].map(|losses| watch.is_new(losses)), [false, true, false, true]);
    }
}
