//! Calls on files that wait for their end, with memory that another process may change: for the threads of a process
//! without an event loop.

use lunar_core::mem::{Buf, Slice};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn piece(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

fn signed(offset: u64) -> io::Result<i64> {
    i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn result(count: isize) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes `head`, `data` behind it, and `tail` behind that at `offset` with one call; returns how many bytes were
/// written.
///
/// # Errors
/// Errors of the operating system.
pub fn write_at(file: BorrowedFd<'_>, offset: u64, head: &[u8], data: &Slice, tail: &[u8]) -> io::Result<usize> {
    let own = |bytes: &[u8]| piece(bytes.as_ptr().cast_mut(), bytes.len());
    let pieces = [own(head), piece(data.as_ptr().cast_mut(), data.len()), own(tail)];
    let offset = signed(offset)?;
    // SAFETY: the kernel reads the pieces, which are borrowed until the call is over. It does not matter when another
    // process changes the second one meanwhile: no reference to its bytes exists.
    result(unsafe { libc::pwritev(file.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32, offset) })
}

/// Fills `into` with the bytes from `offset` on; returns how many the file has.
///
/// # Errors
/// Errors of the operating system.
pub fn read_at(file: BorrowedFd<'_>, offset: u64, into: &mut Buf) -> io::Result<usize> {
    let offset = signed(offset)?;
    // SAFETY: the kernel writes at most `len` bytes to memory that is writable and borrowed until the call is over.
    result(unsafe { libc::pread(file.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), offset) })
}

/// Begins to write `len` bytes from `offset` on to the medium, as far as they are in the page cache only. A later
/// synchronization has less to wait for; without one, nothing is known to be on the medium.
///
/// # Errors
/// Errors of the operating system.
pub fn begin_write_back(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (signed(offset)?, signed(len)?);
    // SAFETY: the call touches no memory of this process.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Region;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::AsFd;

    #[test]
    fn foreign_memory_is_written_between_a_head_and_a_tail_and_read_back() {
        let (file, region) = (memfd_create("file", MemfdFlags::CLOEXEC).expect("a memfd"), Region::zeroed(100));
        assert!(region.write(10, b"data"));
        let data = region.slice(10, 4).expect("within");
        assert_eq!(write_at(file.as_fd(), 3, b"head", &data, b"tail").expect("written"), 12);
        let mut into = region.buf(50, 30).expect("within");
        assert_eq!(read_at(file.as_fd(), 0, &mut into).expect("read"), 15);
        let mut found = [1; 16];
        assert!(region.read(50, &mut found) && found == *b"\0\0\0headdatatail\0");
        assert!(
            read_at(file.as_fd(), u64::MAX, &mut into).is_err()
                && write_at(file.as_fd(), u64::MAX, &[], &data, &[]).is_err()
        );
    }

    #[test]
    fn files_without_a_medium_have_nothing_to_write_back() {
        let file = memfd_create("file", MemfdFlags::CLOEXEC).expect("a memfd");
        assert!(
            begin_write_back(file.as_fd(), 0, 4096).is_ok() && begin_write_back(file.as_fd(), 0, u64::MAX).is_err()
        );
    }
}
