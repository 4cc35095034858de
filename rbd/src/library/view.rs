//! Which parts of an image are allocated. The library asks the cluster meanwhile, so threads of their own call this.

use super::{Failure, Handle, Rbd};
use lunar_core::io::Extent;
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

/// `RBD_FEATURE_OBJECT_MAP`, `RBD_FEATURE_FAST_DIFF`.
const FAST_DIFF: u64 = 1 << 3 | 1 << 4;
/// `RBD_FEATURE_MIGRATING`: data is in another image as well.
const MIGRATING: u64 = 1 << 10;
/// `RBD_FLAG_OBJECT_MAP_INVALID`, `RBD_FLAG_FAST_DIFF_INVALID`.
const INVALID: u64 = 1 << 0 | 1 << 1;
/// Objects of one question with an object map: the library loads all of it, two bits for each object of the image, and
/// looks at these, some microseconds for each. They are 1 TiB of an image with objects of 4 MiB.
const OBJECTS_MAPPED_MAX: u64 = 1 << 18;
/// Objects of one question without an object map: the library asks a store for each of them, ten at a time. They take
/// less than a second even if a store needs 30 ms, and are 1 GiB.
const OBJECTS_MAX: u64 = 256;
/// Objects of an image whose allocation is counted: the object map has 256 KiB, and counting takes some seconds at
/// most. They are 4 TiB.
const OBJECTS_COUNTED_MAX: u64 = 1 << 20;

/// The function that is called for a part of an image that exists, or has existed.
pub(super) type Each = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;
/// `rbd_diff_iterate2`.
type Difference = unsafe extern "C" fn(Handle, *const c_char, u64, u64, u8, u8, Each, *mut c_void) -> c_int;
/// A function that writes a number of an image.
type Number = unsafe extern "C" fn(Handle, *mut u64) -> c_int;

/// An open image and the functions that tell about its allocation.
#[derive(Clone, Copy)]
pub(super) struct View {
    image: Handle,
    object_bytes: u64,
    difference: Difference,
    features: Number,
    flags: Number,
    overlap: Number,
}

// SAFETY: the library allows its functions for one image on any thread at the same time. The image ends the threads
// that have a view before it is closed.
unsafe impl Send for View {}

/// The objects of a range that exist.
struct Found {
    object_bytes: u64,
    /// The first byte of the range, which begins with an object.
    begin: u64,
    /// For each object of the range, whether it exists.
    exist: Vec<bool>,
    /// Bytes that exist.
    bytes: u64,
}

/// A part of an image exists, or has existed: `argument` is a [`Found`].
extern "C" fn find(offset: u64, len: usize, exists: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller of the library has given it the only pointer for the time of the call.
    let found = unsafe { &mut *argument.cast::<Found>() };
    if exists != 0 && len > 0 {
        found.bytes = found.bytes.saturating_add(len as u64);
        let object = |byte: u64| usize::try_from(byte.saturating_sub(found.begin) / found.object_bytes);
        let last = object(offset.saturating_add(len as u64 - 1)).unwrap_or(usize::MAX);
        let end = last.saturating_add(1).min(found.exist.len());
        if let Ok(first) = object(offset)
            && let Some(objects) = found.exist.get_mut(first..end)
        {
            objects.fill(true);
        }
    }
    0
}

impl View {
    pub(super) fn new(image: Handle, object_bytes: u64, rbd: &Rbd) -> Self {
        Self {
            image,
            object_bytes: object_bytes.max(1),
            difference: rbd.rbd_diff_iterate2,
            features: rbd.rbd_get_features,
            flags: rbd.rbd_get_flags,
            overlap: rbd.rbd_get_overlap,
        }
    }

    fn number(&self, function: Number) -> Result<u64, Failure> {
        let mut number = 0;
        // SAFETY: the image is open, and the number is written.
        Failure::check(unsafe { function(self.image, &raw mut number) })?;
        Ok(number)
    }

    /// Whether the object map is there and right. Without it, each object is a question to a store.
    fn is_fast(&self) -> Result<bool, Failure> {
        Ok(self.number(self.features)? & FAST_DIFF == FAST_DIFF && self.number(self.flags)? & INVALID == 0)
    }

    /// The objects of `len` bytes from `begin` on, where an object begins.
    fn find(&self, begin: u64, len: u64, objects: u64) -> Result<Found, Failure> {
        let objects = usize::try_from(objects).map_err(|_| Failure(Errno::FBIG))?;
        let mut found = Found { object_bytes: self.object_bytes, begin, exist: vec![false; objects], bytes: 0 };
        // Whole objects: the library looks into none. Without the parent: its data is added by the overlap.
        let (parent, whole, argument) = (0, 1, (&raw mut found).cast());
        // SAFETY: the image is open, and the library uses `found` only during the call.
        Failure::check(unsafe { (self.difference)(self.image, null(), begin, len, parent, whole, find, argument) })?;
        Ok(found)
    }

    /// How far the bytes from `offset` on, at most `len`, are allocated, or are not: those read as zeroes. `len` is not
    /// zero.
    ///
    /// The library flushes before it looks, so an answered write is seen, and it marks an object in the object map
    /// before it writes to it. It is asked for whole objects, because some versions report parts of them at wrong
    /// offsets.
    ///
    /// All that may be in a parent counts as allocated. To be asked, the library would look at all of the parent each
    /// time, and some versions forget the parent of an image with an object map.
    ///
    /// # Errors
    /// Errors of the library.
    pub(super) fn extent(&self, offset: u64, len: u64) -> Result<Extent, Failure> {
        // A parent that is copied or left meanwhile leaves fewer bytes behind, and these are allocated then.
        let overlap = self.number(self.overlap)?;
        if offset < overlap || self.number(self.features)? & MIGRATING != 0 {
            let in_parent = if offset < overlap { overlap - offset } else { len };
            return Ok(Extent { len: len.min(in_parent), mapped: true });
        }
        let most = if self.is_fast()? { OBJECTS_MAPPED_MAX } else { OBJECTS_MAX };
        let begin = offset - offset % self.object_bytes;
        let end = offset.saturating_add(len).min(begin.saturating_add(most.saturating_mul(self.object_bytes)));
        let objects = (end - begin).div_ceil(self.object_bytes);
        let found = self.find(begin, objects.saturating_mul(self.object_bytes), objects)?;
        let mapped = found.exist[0];
        let same = found.exist.iter().take_while(|exists| **exists == mapped).count() as u64;
        let same_end = begin.saturating_add(same.saturating_mul(self.object_bytes));
        Ok(Extent { len: end.min(same_end) - offset, mapped })
    }

    /// The bytes of an image of `size` bytes that are allocated, in whole objects and without those of a parent;
    /// `None`: to count them is expensive.
    ///
    /// # Errors
    /// Errors of the library.
    pub(super) fn allocated(&self, size: u64) -> Result<Option<u64>, Failure> {
        if size.div_ceil(self.object_bytes) > OBJECTS_COUNTED_MAX || !self.is_fast()? {
            return Ok(None);
        }
        self.find(0, size, 0).map(|found| Some(found.bytes.min(size)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    const OBJECT: u64 = 4096;

    /// An image in the place of the library.
    #[derive(Debug, Default)]
    pub(crate) struct Fake {
        pub(crate) features: u64,
        pub(crate) flags: u64,
        pub(crate) overlap: u64,
        pub(crate) size: u64,
        /// The objects that exist; others that are listed have existed.
        pub(crate) objects: Vec<(u64, bool)>,
        pub(crate) error: c_int,
        /// The longest range that was asked for.
        pub(crate) longest: std::sync::atomic::AtomicU64,
    }

    fn fake<'a>(image: Handle) -> &'a Fake {
        // SAFETY: the views of these tests have a fake in the place of an image.
        unsafe { &*image.cast::<Fake>() }
    }

    extern "C" fn features(image: Handle, number: *mut u64) -> c_int {
        // SAFETY: the caller has a number.
        unsafe { *number = fake(image).features };
        0
    }

    extern "C" fn flags(image: Handle, number: *mut u64) -> c_int {
        // SAFETY: the caller has a number.
        unsafe { *number = fake(image).flags };
        0
    }

    extern "C" fn overlap(image: Handle, number: *mut u64) -> c_int {
        // SAFETY: the caller has a number.
        unsafe { *number = fake(image).overlap };
        0
    }

    extern "C" fn difference(
        image: Handle,
        from: *const c_char,
        offset: u64,
        len: u64,
        parent: u8,
        whole: u8,
        each: Each,
        argument: *mut c_void,
    ) -> c_int {
        let image = fake(image);
        image.longest.fetch_max(len, std::sync::atomic::Ordering::Relaxed);
        assert!(from.is_null() && offset.is_multiple_of(OBJECT) && (parent, whole) == (0, 1));
        let end = (offset + len).min(image.size);
        for (object, exists) in &image.objects {
            let (first, last) = (object * OBJECT, ((object + 1) * OBJECT).min(end));
            if first >= offset && first < last {
                each(first, (last - first) as usize, (*exists).into(), argument);
            }
        }
        image.error
    }

    pub(crate) fn view(fake: &Fake) -> View {
        let image = (&raw const *fake).cast_mut().cast();
        View { image, object_bytes: OBJECT, difference, features, flags, overlap }
    }

    fn mapped(len: u64) -> Extent {
        Extent { len, mapped: true }
    }

    fn hole(len: u64) -> Extent {
        Extent { len, mapped: false }
    }

    #[test]
    fn objects_that_exist_are_mapped_and_those_that_have_existed_are_not() {
        let objects = vec![(1, true), (2, true), (3, false), (5, true)];
        let image = Fake { size: 6 * OBJECT + 512, objects, ..Fake::default() };
        let view = view(&image);
        let at = |offset, len| view.extent(offset, len).expect("the library works");
        assert_eq!(at(0, image.size), hole(OBJECT));
        assert_eq!(at(512, 512), hole(512));
        assert_eq!(at(OBJECT, image.size - OBJECT), mapped(2 * OBJECT));
        assert_eq!(at(OBJECT + 512, OBJECT), mapped(OBJECT));
        assert_eq!(at(3 * OBJECT - 512, 1024), mapped(512));
        assert_eq!(at(3 * OBJECT, 3 * OBJECT), hole(2 * OBJECT));
        assert_eq!(at(6 * OBJECT, 512), hole(512));
    }

    #[test]
    fn all_that_a_parent_may_have_is_mapped() {
        let image = Fake { size: 100 * OBJECT, overlap: 10 * OBJECT + 512, ..Fake::default() };
        let of = view(&image);
        assert_eq!(of.extent(0, image.size), Ok(mapped(10 * OBJECT + 512)));
        assert_eq!(of.extent(OBJECT, 512), Ok(mapped(512)));
        assert_eq!(of.extent(10 * OBJECT + 512, 1024), Ok(hole(1024)));
        let moving = Fake { size: 100 * OBJECT, features: MIGRATING, ..Fake::default() };
        assert_eq!(view(&moving).extent(50 * OBJECT, 1024), Ok(mapped(1024)));
    }

    #[test]
    fn a_question_is_bounded_and_a_failure_is_no_hole() {
        let longest = |features, flags| {
            let image = Fake { size: 1 << 40, features, flags, ..Fake::default() };
            let extent = view(&image).extent(512, (1 << 40) - 512).expect("the library works");
            let longest = image.longest.into_inner() / OBJECT;
            assert_eq!(extent, hole(longest * OBJECT - 512));
            longest
        };
        assert_eq!([longest(0, 0), longest(FAST_DIFF, 2), longest(1 << 3, 0)], [OBJECTS_MAX; 3]);
        assert_eq!(longest(FAST_DIFF, 0), OBJECTS_MAPPED_MAX);
        let image = Fake { size: 1 << 20, error: -5, ..Fake::default() };
        assert_eq!(view(&image).extent(0, 512), Err(Failure(Errno::IO)));
    }

    #[test]
    fn allocated_bytes_are_counted_if_that_is_cheap() {
        let objects = vec![(0, true), (1, false), (7, true)];
        let image = Fake { size: 7 * OBJECT + 512, features: FAST_DIFF, objects, ..Fake::default() };
        assert_eq!(view(&image).allocated(image.size), Ok(Some(OBJECT + 512)));
        assert_eq!(view(&image).allocated(OBJECTS_COUNTED_MAX * OBJECT + 1), Ok(None));
        assert_eq!(view(&Fake { flags: 1, ..image }).allocated(OBJECT), Ok(None), "the object map is invalid");
    }

    proptest! {
        #[test]
        fn extents_are_within_their_question_and_agree_with_the_objects(
            existing in prop::collection::vec(any::<bool>(), 1..40), blocks in 1u64..400, at in 0u64..400,
        ) {
            let size = existing.len() as u64 * OBJECT;
            let mut objects: Vec<_> = (0..).zip(existing.iter().copied()).collect();
            objects.reverse();
            let image = Fake { size, objects, ..Fake::default() };
            let offset = at * 512 % size;
            let len = (blocks * 512).min(size - offset);
            let extent = view(&image).extent(offset, len).expect("the library works");
            prop_assert!(extent.len > 0 && extent.len <= len);
            for byte in (offset..offset + extent.len).step_by(512) {
                prop_assert_eq!(existing[(byte / OBJECT) as usize], extent.mapped);
            }
        }
    }
}
