//! Files and block devices, as both drivers open them and, on helper threads, use them.

use crate::op::{Allocate, How};
use crate::vector::Vector;
use lunar_core::io::{Data, Extent, Fault, Outcome, Space};
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// BLKDISCARD of linux/fs.h: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// BLKZEROOUT of linux/fs.h: `_IO(0x12, 127)`.
const BLKZEROOUT: libc::Ioctl = 0x127f;

/// FICLONERANGE of linux/fs.h: `_IOW(0x94, 13, struct file_clone_range)`.
const FICLONERANGE: libc::Ioctl = 0x4020_940d;

/// `struct file_clone_range` of linux/fs.h.
#[repr(C)]
struct CloneRange {
    from: i64,
    at: u64,
    len: u64,
    offset: u64,
}

/// The smallest unit of direct reads.
pub(crate) const SECTOR: u32 = 512;

/// Opens a file or block device.
pub(crate) fn open(path: &Path, how: How) -> io::Result<OwnedFd> {
    let mut flags = libc::O_CLOEXEC | libc::O_NOCTTY;
    if how.direct {
        flags |= libc::O_DIRECT;
    }
    if how.durable {
        flags |= libc::O_DSYNC;
    }
    let file = OpenOptions::new().read(true).write(!how.read_only).custom_flags(flags).open(path)?;
    Ok(file.into())
}

/// Whether it is open past the page cache.
pub(crate) fn is_direct(file: &OwnedFd) -> bool {
    // SAFETY: F_GETFL touches no memory of ours.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_DIRECT != 0
}

/// The mode of fallocate that does it; `None` for what is an ioctl of devices.
pub(crate) fn fallocate_mode(how: Allocate) -> Option<i32> {
    match how {
        Allocate::Punch => Some(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
        Allocate::Zero => Some(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
        Allocate::Discard | Allocate::ZeroOut => None,
    }
}

/// What a helper thread does: whatever would make a core wait. The one who gave the work keeps the files open, and
/// the memory that a vector points at alive, until the helper has answered.
pub(crate) enum Work {
    Allocate { file: RawFd, how: Allocate, offset: u64, len: u64 },
    Extent { file: RawFd, offset: u64, len: u64 },
    Space { file: RawFd },
    Read { file: RawFd, into: Vector, offset: u64 },
    Write { file: RawFd, from: Vector, offset: u64, durable: bool },
    Sync { file: RawFd },
    Copy { from: RawFd, at: u64, file: RawFd, offset: u64, len: u64 },
}

/// What came of it. Bytes count for reads and writes only.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) result: Result<u32, Fault>,
    extent: Extent,
    space: Option<Space>,
}

impl Answer {
    pub(crate) fn new(result: Result<u32, Fault>) -> Self {
        Self { result, extent: Extent::default(), space: None }
    }

    /// Adds what it tells besides its result.
    pub(crate) fn tell(self, outcome: &mut Outcome) {
        outcome.extent = self.extent;
        if let Some(space) = self.space {
            outcome.data = Data::Space(space);
        }
    }
}

/// Does it, however long that takes.
pub(crate) fn carry_out(work: Work) -> Answer {
    match work {
        Work::Allocate { file, how, offset, len } => Answer::new(allocate(file, how, offset, len).map(|()| 0)),
        Work::Extent { file, offset, len } => match extent(file, offset, len) {
            Ok(extent) => Answer { extent, ..Answer::new(Ok(0)) },
            Err(fault) => Answer::new(Err(fault)),
        },
        Work::Space { file } => match space(file) {
            Ok(space) => Answer { space: Some(space), ..Answer::new(Ok(0)) },
            Err(fault) => Answer::new(Err(fault)),
        },
        Work::Read { file, mut into, offset } => Answer::new(read(file, &mut into, offset, 0).map_err(|(_, f)| f)),
        Work::Write { file, mut from, offset, durable } => Answer::new(write(file, &mut from, offset, durable)),
        // SAFETY: the call touches no memory of ours.
        Work::Sync { file } => Answer::new(again(|| unsafe { libc::fdatasync(file) as isize }).map(|_| 0)),
        Work::Copy { from, at, file, offset, len } => Answer::new(copy(from, at, file, offset, len).map(|()| 0)),
    }
}

/// The fault of the system call that just failed.
fn last_fault() -> Fault {
    Fault::from_errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Calls until no signal interrupts it.
fn again(mut call: impl FnMut() -> isize) -> Result<isize, Fault> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result);
        }
        match last_fault() {
            Fault::Os(libc::EINTR) => {}
            fault => return Err(fault),
        }
    }
}

fn signed(value: u64) -> Result<i64, Fault> {
    i64::try_from(value).map_err(|_| Fault::Os(libc::EFBIG))
}

fn allocate(file: RawFd, how: Allocate, offset: u64, len: u64) -> Result<(), Fault> {
    if let Some(mode) = fallocate_mode(how) {
        let (offset, len) = (signed(offset)?, signed(len)?);
        // SAFETY: the call touches no memory of ours.
        return again(|| unsafe { libc::fallocate(file, mode, offset, len) as isize }).map(drop);
    }
    let request = if how == Allocate::Discard { BLKDISCARD } else { BLKZEROOUT };
    let range = [offset, len];
    // SAFETY: both requests read two 64-bit numbers from where the pointer says.
    let result = again(|| unsafe { libc::ioctl(file, request, range.as_ptr()) as isize });
    match result {
        // Not a block device.
        Err(Fault::Os(libc::ENOTTY)) => Err(Fault::Unsupported),
        other => other.map(drop),
    }
}

/// Has the file system share the range, or the kernel copy it.
fn copy(from: RawFd, at: u64, file: RawFd, offset: u64, len: u64) -> Result<(), Fault> {
    let range = CloneRange { from: i64::from(from), at, len, offset };
    // SAFETY: the request reads one such structure from where the pointer says.
    match again(|| unsafe { libc::ioctl(file, FICLONERANGE, &raw const range) as isize }) {
        Ok(_) => return Ok(()),
        // No space to keep apart what is shared: a copy would need more.
        Err(Fault::NoSpace) => return Err(Fault::NoSpace),
        // The file system shares nothing, or not these blocks.
        Err(_) => {}
    }
    let (mut source, mut target) = (signed(at)?, signed(offset)?);
    let mut left = len;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX);
        // SAFETY: the call moves the two positions that the pointers name.
        let copied = again(|| unsafe { libc::copy_file_range(from, &raw mut source, file, &raw mut target, count, 0) });
        match copied {
            // The source ends before: it was cut off under us.
            Ok(0) => return Err(Fault::Medium),
            Ok(copied) => left = left.saturating_sub(copied as u64),
            // Not between these two, not with this alignment, not in this kernel.
            Err(Fault::Os(libc::EXDEV | libc::EINVAL | libc::ENOSYS | libc::EPERM)) => return Err(Fault::Unsupported),
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

fn extent(file: RawFd, offset: u64, len: u64) -> Result<Extent, Fault> {
    let start = signed(offset)?;
    // SAFETY: the call touches no memory of ours. It moves the file's position, which nobody uses.
    let seek = |whence| again(|| unsafe { libc::lseek(file, start, whence) as isize });
    let run = |end: isize, mapped| Extent { len: len.min((end as u64).saturating_sub(offset)), mapped };
    match seek(libc::SEEK_DATA) {
        // No data from here to the end of the file, or past it.
        Err(Fault::Gone) => Ok(Extent { len, mapped: false }),
        // The file system keeps no such record: all of it counts as data.
        Err(Fault::Os(libc::EINVAL)) => Ok(Extent { len, mapped: true }),
        Err(fault) => Err(fault),
        Ok(data) if data as u64 > offset => Ok(run(data, false)),
        Ok(_) => Ok(run(seek(libc::SEEK_HOLE)?, true)),
    }
}

fn space(file: RawFd) -> Result<Space, Fault> {
    /// Bytes of what `st_blocks` counts, whatever the file system's blocks are.
    const UNIT: u64 = 512;
    let mut stat = MaybeUninit::<libc::stat64>::uninit();
    let mut system = MaybeUninit::<libc::statvfs64>::uninit();
    // SAFETY: the call fills the structure that the pointer names.
    again(|| unsafe { libc::fstat64(file, stat.as_mut_ptr()) as isize })?;
    // SAFETY: as above.
    again(|| unsafe { libc::fstatvfs64(file, system.as_mut_ptr()) as isize })?;
    // SAFETY: both calls went well.
    let (stat, system) = unsafe { (stat.assume_init(), system.assume_init()) };
    let used = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(UNIT);
    // What only root may take is nobody's to count on.
    let available = system.f_bavail.saturating_mul(system.f_frsize);
    Ok(Space { used, available })
}

/// Reads until the vector is full or the file ends; tells how many bytes were read, also on a fault.
pub(crate) fn read(file: RawFd, into: &mut Vector, offset: u64, flags: i32) -> Result<u32, (u32, Fault)> {
    let mut done: u32 = 0;
    while !into.is_empty() {
        let at = signed(offset + u64::from(done)).map_err(|fault| (done, fault))?;
        let (iov, count) = into.raw();
        // SAFETY: the vector points at memory that is held, and that nobody else uses, until this work is answered.
        let got = match again(|| unsafe { libc::preadv2(file, iov, count as i32, at, flags) }) {
            Ok(0) => break,
            // A direct read that ended inside a sector has met the end of the file.
            Err(Fault::Os(libc::EINVAL)) if !done.is_multiple_of(SECTOR) => break,
            result => result.map_err(|fault| (done, fault))?,
        };
        done += got as u32;
        into.advance(got as usize);
    }
    Ok(done)
}

fn write(file: RawFd, from: &mut Vector, offset: u64, durable: bool) -> Result<u32, Fault> {
    let flags = if durable { libc::RWF_DSYNC } else { 0 };
    let mut done: u32 = 0;
    while !from.is_empty() {
        let at = signed(offset + u64::from(done))?;
        let (iov, count) = from.raw();
        // SAFETY: the vector points at memory that is held, and that nobody writes, until this work is answered.
        let put = again(|| unsafe { libc::pwritev2(file, iov, count as i32, at, flags) })?;
        if put == 0 {
            return Err(Fault::NoSpace);
        }
        done += put as u32;
        from.advance(put as usize);
    }
    Ok(done)
}
