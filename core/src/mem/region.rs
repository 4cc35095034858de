//! Memory that is shared with a guest: see [`Region`].

use super::{Backing, Buf, FOREIGN, Free, Handle, Inner, PAGE, Sg, SgMut, Slice, promise};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

/// Memory that is shared with another writer, which may change it at any time: a guest's pages. Stores fill or read
/// parts of it without a copy; each part keeps the memory mapped. No code has a reference to its bytes.
#[derive(Clone)]
pub struct Region {
    memory: Rc<Inner>,
    len: usize,
    is_writable: bool,
}

impl Region {
    /// The `len` bytes from `base` on, which `keeper` keeps mapped until it drops.
    ///
    /// # Safety
    /// The bytes are readable, and writable if `is_writable`, until `keeper` drops, and no reference to them exists
    /// meanwhile.
    #[must_use]
    pub unsafe fn new(base: NonNull<u8>, len: usize, is_writable: bool, keeper: Box<dyn Any>) -> Self {
        Self::of(Backing::Foreign(keeper), base, len, is_writable)
    }

    /// Zeroed memory of this process alone, aligned to a page: for tests and fuzzers.
    ///
    /// # Panics
    /// When `len` is zero or more than is available.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len, PAGE).expect("a region is far smaller than isize::MAX");
        assert!(len > 0, "a region has bytes");
        // SAFETY: the layout's size is not zero.
        let Some(raw) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self::of(Backing::Own { raw, layout }, raw, len, true)
    }

    fn of(backing: Backing, base: NonNull<u8>, len: usize, is_writable: bool) -> Self {
        let memory = Rc::new(Inner {
            backing,
            base,
            pages: 0,
            free: RefCell::new(Free { lists: Default::default(), pages: 0 }),
            refs: Box::default(),
            orders: Box::default(),
            waiters: RefCell::default(),
            promises: promise::Promises::new(0),
            zeroes: Cell::new(None),
        });
        Self { memory, len, is_writable }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is another handle to the region or to a part of it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        Rc::strong_count(&self.memory) > 1
    }

    /// `len` bytes from `at` on and their keeper, if they lie within the region.
    #[inline]
    fn handle(&self, at: usize, len: usize) -> Option<Handle> {
        let start = self.place(at, len)?;
        Some(Handle { arena: self.memory.clone(), start, head: FOREIGN, len: u32::try_from(len).ok()? })
    }

    /// A part of the region to read from: the data of a store's write. `None` when it does not lie within.
    #[inline]
    #[must_use]
    pub fn slice(&self, at: usize, len: usize) -> Option<Slice> {
        self.handle(at, len).map(Slice)
    }

    /// A part of the region to be filled. `None` when it does not lie within, or is not writable.
    #[inline]
    #[must_use]
    pub fn buf(&self, at: usize, len: usize) -> Option<Buf> {
        self.handle(at, len).filter(|_| self.is_writable).map(Buf)
    }

    /// The address of the `len` bytes from `at` on, if they lie within.
    #[inline]
    fn place(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        // SAFETY: the range was checked.
        (at.checked_add(len)? <= self.len).then(|| unsafe { self.memory.base.add(at) })
    }

    /// Prefetches the cache line at `at`, which will be read or written soon: it may be in the cache of another
    /// processor.
    #[inline]
    pub fn prefetch(&self, at: usize, is_written: bool) {
        let Some(place) = self.place(at, 1) else { return };
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
            let place = place.as_ptr().cast_const().cast();
            // SAFETY: a hint: no byte is read or written.
            unsafe { if is_written { _mm_prefetch::<_MM_HINT_ET0>(place) } else { _mm_prefetch::<_MM_HINT_T0>(place) } }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (place, is_written);
    }

    /// Copies the bytes from `at` on; returns whether they lie within.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, into: &mut [u8]) -> bool {
        let Some(from) = self.place(at, into.len()) else { return false };
        // SAFETY: the range was checked, and the memory stays mapped as long as the region is borrowed. The
        // destination is a slice of this process, and no region is; others may change the bytes during the copy, and
        // every value is a valid byte.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        true
    }

    /// Copies `from` to the bytes from `at` on; returns whether they lie within and are writable.
    #[inline]
    #[must_use]
    pub fn write(&self, at: usize, from: &[u8]) -> bool {
        let Some(to) = self.place(at, from.len()).filter(|_| self.is_writable) else { return false };
        // SAFETY: as in `read`; no reference to the destination exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Copies the first `count` bytes of `into` from the bytes from `at` on; returns whether both have so many.
    #[must_use]
    pub fn read_to(&self, at: usize, into: &mut SgMut, count: usize) -> bool {
        let Some(from) = self.place(at, count).filter(|_| count <= into.len()) else { return false };
        let mut done = 0;
        for piece in into.pieces_mut() {
            let part = piece.len().min(count - done);
            // SAFETY: the source range was checked, and the part lies within the piece. The piece has no other handle;
            // it may be a part of this region, so the copy allows that both overlap. Otherwise as in `read`.
            unsafe { std::ptr::copy(from.as_ptr().add(done), piece.as_mut_ptr(), part) };
            done += part;
        }
        true
    }

    /// Copies `from` to the bytes from `at` on; returns whether they lie within and are writable.
    #[must_use]
    pub fn write_from(&self, at: usize, from: &Sg) -> bool {
        let Some(to) = self.place(at, from.len()).filter(|_| self.is_writable) else { return false };
        let mut done = 0;
        for piece in from.pieces() {
            // SAFETY: the destination range was checked, and no reference to it exists. The source may be a part of a
            // region, this one even, so it is used by its address, and the copy allows that both overlap.
            unsafe { std::ptr::copy(piece.0.ptr().cast_const(), to.as_ptr().add(done), piece.len()) };
            done += piece.len();
        }
        true
    }

    #[inline]
    fn word(&self, at: usize) -> Option<&AtomicU32> {
        let start = self.place(at, size_of::<u32>())?.cast::<u32>().as_ptr();
        if !start.is_aligned() {
            return None;
        }
        // SAFETY: range and alignment were checked; all accesses are atomic or copies of bytes, and the memory stays
        // mapped as long as the region is borrowed.
        Some(unsafe { AtomicU32::from_ptr(start) })
    }

    /// The 32-bit word at `at`, little-endian; everything that the peer wrote before it is visible afterwards. `None`
    /// when it does not lie within the region, or is not aligned.
    #[inline]
    #[must_use]
    pub fn load(&self, at: usize) -> Option<u32> {
        self.word(at).map(|word| u32::from_le(word.load(Ordering::Acquire)))
    }

    /// Writes the word at `at`, little-endian, after everything that was written before; returns whether it can.
    #[inline]
    #[must_use]
    pub fn store(&self, at: usize, value: u32) -> bool {
        let word = self.word(at).filter(|_| self.is_writable);
        word.map(|word| word.store(value.to_le(), Ordering::Release)).is_some()
    }

    #[inline]
    fn half_word(&self, at: usize) -> Option<&AtomicU16> {
        let start = self.place(at, size_of::<u16>())?.cast::<u16>().as_ptr();
        if !start.is_aligned() {
            return None;
        }
        // SAFETY: as in `word`, for two bytes.
        Some(unsafe { AtomicU16::from_ptr(start) })
    }

    /// The 16-bit word at `at`, little-endian; everything that the peer wrote before it is visible after. `None` when
    /// it does not lie within the region, or is not aligned to two bytes.
    #[inline]
    #[must_use]
    pub fn load_u16(&self, at: usize) -> Option<u16> {
        self.half_word(at).map(|word| u16::from_le(word.load(Ordering::Acquire)))
    }

    /// Writes the 16-bit word at `at`, little-endian, after everything that was written before; returns whether it
    /// can.
    #[inline]
    #[must_use]
    pub fn store_u16(&self, at: usize, value: u16) -> bool {
        let word = self.half_word(at).filter(|_| self.is_writable);
        word.map(|word| word.store(value.to_le(), Ordering::Release)).is_some()
    }

    /// Sets bits of the byte at `at`, which the peer may clear at the same time, after everything that was written
    /// before; returns whether it can.
    #[inline]
    #[must_use]
    pub fn set_bits(&self, at: usize, bits: u8) -> bool {
        let Some(start) = self.place(at, 1).filter(|_| self.is_writable) else { return false };
        // SAFETY: as in `word`, for one byte, which is always aligned.
        let byte = unsafe { AtomicU8::from_ptr(start.as_ptr()) };
        byte.fetch_or(bits, Ordering::Release);
        true
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_copied_in_order_and_within_the_region() {
        let (region, other) = (Region::zeroed(2 * PAGE), Region::zeroed(PAGE));
        assert!(region.write(100, b"abcdef"));
        let mut into = SgMut::from(other.buf(0, 2).expect("within"));
        into.push(other.buf(10, 5).expect("within"));
        assert!(region.read_to(100, &mut into, 4), "both have four bytes");
        let mut found = [0; 15];
        assert!(other.read(0, &mut found));
        assert_eq!(found, *b"ab\0\0\0\0\0\0\0\0cd\0\0\0");
        assert!(!region.read_to(0, &mut into, 8), "there are seven bytes");
        assert!(!region.read_to(2 * PAGE - 3, &mut into, 4), "the region ends");
        let from = into.share();
        assert!(region.write_from(2 * PAGE - 7, &from) && !region.write_from(2 * PAGE - 6, &from));
        let mut end = [1; 7];
        assert!(region.read(2 * PAGE - 7, &mut end));
        assert_eq!(end, *b"abcd\0\0\0");
        // A part of the same region, which overlaps.
        assert!(region.write_from(102, &Sg::from(region.slice(100, 4).expect("within"))));
        let mut moved = [0; 6];
        assert!(region.read(100, &mut moved));
        assert_eq!(&moved, b"ababcd");
    }

    #[test]
    fn a_region_is_kept_by_its_parts_and_copied() {
        struct Keeper(Region, Rc<Cell<bool>>);
        impl Drop for Keeper {
            fn drop(&mut self) {
                self.1.set(true);
            }
        }
        let (memory, gone) = (Region::zeroed(2 * PAGE), Rc::new(Cell::new(false)));
        let keeper = Box::new(Keeper(memory.clone(), gone.clone()));
        // SAFETY: the keeper holds the memory, and no reference to its bytes exists.
        let region = unsafe { Region::new(keeper.0.memory.base, 2 * PAGE, true, keeper) };
        assert!(!region.is_in_use() && region.write(PAGE - 1, b"abc") && !region.write(2 * PAGE - 1, b"ab"));
        let (mut front, back) = (region.slice(PAGE - 1, 1).expect("within"), region.slice(PAGE, 2).expect("within"));
        assert!(region.slice(2 * PAGE, 1).is_none() && region.slice(usize::MAX, 1).is_none() && region.is_in_use());
        assert!(front.join(back).is_none(), "they adjoin");
        assert_eq!(Sg::from(front.part(1..3)).copy_to(0, &mut [0; 9]), 2);
        let mut filled = SgMut::from(region.buf(0, 8).expect("within"));
        filled.copy_from(4, b"wxyz");
        assert_eq!((region.load(4), region.load(6), region.load(2 * PAGE - 2)), (Some(0x7a79_7877), None, None));
        assert!(region.store(8, 7) && memory.load(8) == Some(7) && !region.store(9, 7));
        drop((region, filled));
        assert!(!gone.get());
        drop(front);
        assert!(gone.get());
    }

    #[test]
    fn half_words_and_bits_are_written_in_place_and_within_the_region_only() {
        let region = Region::zeroed(8);
        assert!(region.store_u16(6, 0x1234) && !region.store_u16(7, 1) && !region.store_u16(5, 1));
        assert_eq!((region.load_u16(6), region.load_u16(1), region.load_u16(8)), (Some(0x1234), None, None));
        assert!(region.set_bits(7, 0x81) && region.set_bits(0, 1) && region.set_bits(0, 4) && !region.set_bits(8, 1));
        let mut bytes = [0; 8];
        assert!(region.read(0, &mut bytes));
        assert_eq!(bytes, [5, 0, 0, 0, 0, 0, 0x34, 0x93]);
        // SAFETY: `region` keeps the memory as long as the test runs, and no reference to its bytes exists.
        let read_only = unsafe { Region::new(region.memory.base, 8, false, Box::new(region.clone())) };
        assert!(!read_only.store_u16(0, 1) && !read_only.set_bits(0, 8));
        assert_eq!(read_only.load_u16(0), Some(5));
    }

    #[test]
    #[should_panic(expected = "must be copied")]
    fn a_region_has_no_reference_to_its_bytes() {
        let slice = Region::zeroed(PAGE).slice(0, 4).expect("within");
        assert_eq!(slice[0], 0);
    }
}
