//! Anonymous memory, for transports that bind memory to requests for as long as they serve a device. A page is taken
//! when it is used first. Unlike [`shared`](crate::shared) memory it has no file behind it, so no access to it fails.

use lunar_core::mem::{PAGE, Region};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

/// Keeps a mapping.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this module with this length, and no address in it is used after the drop.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// `count` regions of `len` bytes of zeroes each, in one mapping, which stays until the last of them and of their parts
/// is dropped. Each begins with a page.
///
/// # Errors
/// `OutOfMemory` when there is not so much memory; `InvalidInput` when there are no bytes.
pub fn regions(count: usize, len: usize) -> io::Result<Vec<Region>> {
    let step = len.checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    let whole = step.checked_mul(count).ok_or(io::ErrorKind::OutOfMemory)?;
    if whole == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, protection, MapFlags::PRIVATE) }?;
    let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    // The data of volumes does not belong into a core dump. Advice may be ignored. SAFETY: the mapping belongs to this
    // module; its contents stay.
    let _ = unsafe { madvise(base.as_ptr().cast(), whole, Advice::LinuxDontDump) };
    let mapping = Rc::new(Mapping { base, len: whole });
    // SAFETY: within the mapping, which is readable and writable, and which the keeper keeps; there is never a
    // reference to it.
    let region = |at: usize| unsafe { Region::new(base.add(at * step), len, true, Box::new(mapping.clone())) };
    Ok((0..count).map(region).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_apart_and_outlive_each_other() {
        let mut regions = regions(3, PAGE + 1).expect("memory");
        let last = regions.pop().expect("three");
        assert!(regions[1].write(PAGE, b"a") && !regions[1].write(PAGE, b"ab"));
        let part = last.slice(0, 2).expect("within");
        assert!(last.is_in_use() && !regions[0].is_in_use());
        drop((regions, last));
        let mut read = [1; 2];
        part.read(0, &mut read);
        assert_eq!(read, [0; 2], "the mapping is still there");
    }

    #[test]
    fn more_than_there_is_is_refused() {
        assert_eq!(regions(usize::MAX / PAGE, PAGE).expect_err("too much").kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(regions(1 << 20, 1 << 40).expect_err("too much").kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(regions(0, PAGE).expect_err("nothing").kind(), io::ErrorKind::InvalidInput);
    }
}
