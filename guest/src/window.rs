//! A bounded view of a part of guest memory, in which a transport finds a ring, a page of doorbells or a log.

use lunar_core::mem::Region;

/// Consecutive bytes of one region. Every access is checked against the bounds of the window.
///
/// A window keeps its region in use: before a transport tells its client that a removed region is unused, it drops all
/// windows into that region.
#[derive(Clone, Debug)]
pub struct Window {
    region: Region,
    at: usize,
    len: usize,
}

impl Window {
    /// `len` bytes of `region` from `at` on. `None` when they do not lie within.
    #[must_use]
    pub fn new(region: &Region, at: usize, len: usize) -> Option<Self> {
        let end = at.checked_add(len)?;
        (end <= region.len()).then(|| Self { region: region.clone(), at, len })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The offset in the region of `len` bytes from `at` on, if they lie within the window.
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

    /// Copies the bytes from `at` on into `into`; `false` when they do not lie within.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, into: &mut [u8]) -> bool {
        self.place(at, into.len()).is_some_and(|at| self.region.read(at, into))
    }

    /// Copies `from` to the bytes from `at` on; `false` when they do not lie within or are read-only.
    #[inline]
    #[must_use]
    pub fn write(&self, at: usize, from: &[u8]) -> bool {
        self.place(at, from.len()).is_some_and(|at| self.region.write(at, from))
    }

    /// See [`Region::load`].
    #[inline]
    #[must_use]
    pub fn load(&self, at: usize) -> Option<u32> {
        self.region.load(self.place(at, size_of::<u32>())?)
    }

    /// See [`Region::store`].
    #[inline]
    #[must_use]
    pub fn store(&self, at: usize, value: u32) -> bool {
        self.place(at, size_of::<u32>()).is_some_and(|at| self.region.store(at, value))
    }

    /// See [`Region::load_u16`].
    #[inline]
    #[must_use]
    pub fn load_u16(&self, at: usize) -> Option<u16> {
        self.region.load_u16(self.place(at, size_of::<u16>())?)
    }

    /// See [`Region::store_u16`].
    #[inline]
    #[must_use]
    pub fn store_u16(&self, at: usize, value: u16) -> bool {
        self.place(at, size_of::<u16>()).is_some_and(|at| self.region.store_u16(at, value))
    }

    /// See [`Region::set_bits`].
    #[inline]
    #[must_use]
    pub fn set_bits(&self, at: usize, bits: u8) -> bool {
        self.place(at, 1).is_some_and(|at| self.region.set_bits(at, bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_access_leaves_its_window() {
        let region = Region::zeroed(64);
        let window = Window::new(&region, 16, 16).expect("within");
        assert!(Window::new(&region, 49, 16).is_none() && Window::new(&region, usize::MAX, 2).is_none());
        let mut bytes = [0; 4];
        assert!(window.write(12, b"abcd") && window.read(12, &mut bytes) && &bytes == b"abcd");
        assert!(window.store(0, 7) && window.store_u16(4, 8) && window.set_bits(15, 0x80));
        assert_eq!((window.load(0), window.load_u16(4), window.len()), (Some(7), Some(8), 16));
        // All of these would be within the region.
        assert!(!window.write(13, b"abcd") && !window.read(13, &mut bytes) && !window.store(16, 1));
        assert!(!window.store_u16(16, 1) && !window.set_bits(16, 1) && !window.write(usize::MAX, b"a"));
        assert_eq!((window.load(16), window.load_u16(16)), (None, None));
        let mut all = [0; 64];
        assert!(region.read(0, &mut all));
        assert!(all[..16].iter().chain(&all[32..]).all(|byte| *byte == 0));
    }

    #[test]
    fn a_window_keeps_its_region_in_use() {
        let region = Region::zeroed(64);
        let window = Window::new(&region, 0, 64).expect("within");
        assert!(region.is_in_use());
        drop(window);
        assert!(!region.is_in_use());
    }
}
