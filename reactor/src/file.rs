//! Files and block devices, as both real drivers open them and worker threads use them.

use crate::endpoint::command::{Command, WIDE};
use crate::op::{Allocate, Handle, How, Op};
use crate::vector::Vector;
use crate::worker::{Device, Task};
use lunar_core::io::{Data, Extent, Fault, Outcome, Space};
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

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

/// Most bytes that one call discards or unmaps: drives that write a table for each gibibyte need well below a second.
const UNMAP_PART: u64 = 256 << 20;
/// Most bytes that one call zeroes: a disk that has to write them needs about half a second.
const ZERO_PART: u64 = 64 << 20;
/// Most bytes that one call copies or shares: a disk that has to move them needs about a second.
const COPY_PART: u64 = 64 << 20;

/// An open file or device. Worker threads hold it while they use it, so its number is not given to another file
/// meanwhile, even if the core has ended.
#[derive(Debug)]
pub(crate) struct OpenFile {
    fd: OwnedFd,
    /// The device whose queue its tasks use: the device itself, or the one of the file system.
    device: Device,
    /// Whether it was opened with O_DIRECT.
    is_direct: bool,
}

impl OpenFile {
    pub(crate) fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { device: device_of(&fd), is_direct: is_direct(&fd), fd })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

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

fn is_direct(file: &OwnedFd) -> bool {
    // SAFETY: F_GETFL touches no memory of this process.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_DIRECT != 0
}

/// The number of a device node, or of the device that a file's file system has. Files that cannot be examined share
/// the queue of number 0.
fn device_of(file: &OwnedFd) -> Device {
    use rustix::fs::FileType;
    rustix::fs::fstat(file).map_or(0, |stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice | FileType::CharacterDevice => stat.st_rdev,
        _ => stat.st_dev,
    })
}

/// The mode of fallocate for a change of space; `None` for those that are requests to block devices.
fn fallocate_mode(how: Allocate) -> Option<i32> {
    match how {
        Allocate::Punch => Some(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
        Allocate::Zero => Some(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
        Allocate::Discard | Allocate::ZeroOut => None,
    }
}

/// Most bytes of a range that one call changes.
fn part_of(how: Allocate) -> u64 {
    match how {
        Allocate::Punch | Allocate::Discard => UNMAP_PART,
        Allocate::Zero | Allocate::ZeroOut => ZERO_PART,
    }
}

/// Bytes up to the next multiple of `part`, at most `len`: so all parts except the first begin at a multiple of the
/// device's granularity.
fn first_part(offset: u64, len: u64, part: u64) -> u64 {
    len.min(part - offset % part)
}

/// The work of a worker thread for one operation. The driver keeps the memory of a vector alive until the answer
/// arrives.
pub(crate) enum Work {
    Allocate { file: Arc<OpenFile>, how: Allocate, offset: u64, len: u64 },
    Extent { file: Arc<OpenFile>, offset: u64, len: u64 },
    Space { file: Arc<OpenFile> },
    Read { file: Arc<OpenFile>, into: Vector, offset: u64 },
    Write { file: Arc<OpenFile>, from: Vector, offset: u64, durable: bool },
    Sync { file: Arc<OpenFile> },
    Copy { from: Arc<OpenFile>, at: u64, file: Arc<OpenFile>, offset: u64, len: u64 },
    Command { file: Arc<OpenFile>, call: DeviceCall },
}

/// A command to a device as a call that waits for it. The driver keeps its memory alive until the answer arrives.
pub(crate) struct DeviceCall {
    /// The number of the call.
    pub(crate) function: u32,
    /// Its structure, into which the device writes the result.
    pub(crate) bytes: Box<[u8; WIDE]>,
    /// The list of pieces, if the structure names one.
    pub(crate) _list: Vector,
}

/// Where the result is in the structure of a call (`struct nvme_passthru_cmd64`).
const RESULT: std::ops::Range<usize> = 72..80;

impl Work {
    /// The work of an operation that changes or examines the space of a file; `None` for other operations, and if
    /// `open` has no file for a handle.
    pub(crate) fn of(op: &Op, open: impl Fn(&Handle) -> Option<Arc<OpenFile>>) -> Option<Self> {
        Some(match *op {
            Op::Allocate { ref file, how, offset, len } => Self::Allocate { file: open(file)?, how, offset, len },
            Op::Extent { ref file, offset, len } => Self::Extent { file: open(file)?, offset, len },
            Op::Space { ref file } => Self::Space { file: open(file)? },
            Op::Copy { ref from, at, ref file, offset, len } => {
                Self::Copy { from: open(from)?, at, file: open(file)?, offset, len }
            }
            Op::Sync { ref file } => Self::Sync { file: open(file)? },
            _ => return None,
        })
    }

    /// The device whose queue the work uses.
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Allocate { file, .. }
            | Self::Extent { file, .. }
            | Self::Space { file }
            | Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Sync { file }
            | Self::Copy { file, .. }
            | Self::Command { file, .. } => file.device,
        }
    }
}

/// The result of a [`Work`]. Bytes are counted for reads and writes only.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) result: Result<u32, Fault>,
    extent: Extent,
    space: Option<Space>,
    /// The number that a device returned with its result.
    returned: u64,
}

impl Answer {
    fn new(result: Result<u32, Fault>) -> Self {
        Self { result, extent: Extent::default(), space: None, returned: 0 }
    }

    /// Adds the value that the operation requested besides its result.
    pub(crate) fn complement(self, outcome: &mut Outcome) {
        outcome.extent = self.extent;
        if let Some(space) = self.space {
            outcome.data = Data::Space(space);
        }
        if let Data::Carried(value) = &mut outcome.data
            && let Some(command) = value.downcast_mut::<Command>()
        {
            command.result = [self.returned, 0];
        }
    }
}

impl From<Fault> for Answer {
    fn from(fault: Fault) -> Self {
        Self::new(Err(fault))
    }
}

impl Task for Work {
    type Answer = Answer;

    fn step(&mut self) -> Option<Answer> {
        Some(match self {
            Self::Allocate { file, how, offset, len } => {
                let part = first_part(*offset, *len, part_of(*how));
                let result = allocate(file.raw(), *how, *offset, part);
                (*offset, *len) = (offset.saturating_add(part), *len - part);
                if result.is_ok() && *len > 0 {
                    return None;
                }
                Answer::new(result.map(|()| 0))
            }
            Self::Copy { from, at, file, offset, len } => {
                let part = first_part(*offset, *len, COPY_PART);
                let result = copy(from.raw(), *at, file.raw(), *offset, part);
                (*at, *offset, *len) = (at.saturating_add(part), offset.saturating_add(part), *len - part);
                if result.is_ok() && *len > 0 {
                    return None;
                }
                Answer::new(result.map(|()| 0))
            }
            Self::Extent { file, offset, len } => match extent(file.raw(), *offset, *len) {
                Ok(extent) => Answer { extent, ..Answer::new(Ok(0)) },
                Err(fault) => fault.into(),
            },
            Self::Space { file } => match space(file.raw()) {
                Ok(space) => Answer { space: Some(space), ..Answer::new(Ok(0)) },
                Err(fault) => fault.into(),
            },
            Self::Read { file, into, offset } => Answer::new(read(file, into, *offset, 0).map_err(|(_, fault)| fault)),
            Self::Write { file, from, offset, durable } => Answer::new(write(file.raw(), from, *offset, *durable)),
            Self::Command { file, call } => execute(file.raw(), call),
            // SAFETY: the call touches no memory of this process.
            Self::Sync { file } => Answer::new(again(|| unsafe { libc::fdatasync(file.raw()) as isize }).map(|_| 0)),
        })
    }
}

/// The fault of the system call that has just failed.
fn last_fault() -> Fault {
    Fault::from_errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Repeats a call until no signal interrupts it.
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
        // SAFETY: the call touches no memory of this process.
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

/// Executes a command of a device. EINTR is a result: the kernel has reset the device meanwhile.
fn execute(device: RawFd, call: &mut DeviceCall) -> Answer {
    // SAFETY: the structure has as many bytes as the number of the call says, and the memory that it names is that of
    // the operation. A device is opened on the condition that no command moves more: see `CommandDevice::open`.
    let result = unsafe { libc::ioctl(device, call.function as libc::Ioctl, call.bytes.as_mut_ptr()) };
    let mut returned = [0; 8];
    returned.copy_from_slice(&call.bytes[RESULT]);
    let result = u32::try_from(result).map_err(|_| last_fault());
    Answer { returned: u64::from_ne_bytes(returned), ..Answer::new(result) }
}

/// Makes the file system share the range, or the kernel copy it.
fn copy(from: RawFd, at: u64, file: RawFd, offset: u64, len: u64) -> Result<(), Fault> {
    if len == 0 {
        // For FICLONERANGE zero would mean the whole file.
        return Ok(());
    }
    let range = CloneRange { from: i64::from(from), at, len, offset };
    // SAFETY: the request reads one such structure from where the pointer says.
    match again(|| unsafe { libc::ioctl(file, FICLONERANGE, &raw const range) as isize }) {
        Ok(_) => return Ok(()),
        // A copy would need more space than sharing.
        Err(Fault::NoSpace) => return Err(Fault::NoSpace),
        // The file system cannot share these blocks.
        Err(_) => {}
    }
    let (mut source, mut target) = (signed(at)?, signed(offset)?);
    let mut left = len;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX);
        // SAFETY: the call moves the two positions that the pointers name.
        let copied = again(|| unsafe { libc::copy_file_range(from, &raw mut source, file, &raw mut target, count, 0) });
        match copied {
            // The source ends before: another process has truncated it.
            Ok(0) => return Err(Fault::Medium),
            Ok(copied) => left = left.saturating_sub(copied as u64),
            // The kernel cannot copy between these two files, or with this alignment.
            Err(Fault::Os(libc::EXDEV | libc::EINVAL | libc::ENOSYS | libc::EPERM)) => return Err(Fault::Unsupported),
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

fn extent(file: RawFd, offset: u64, len: u64) -> Result<Extent, Fault> {
    let start = signed(offset)?;
    // SAFETY: the call touches no memory of this process. It moves the position of the file, which is not used.
    let seek = |whence| again(|| unsafe { libc::lseek(file, start, whence) as isize });
    let run = |end: isize, mapped| Extent { len: len.min((end as u64).saturating_sub(offset)), mapped };
    match seek(libc::SEEK_DATA) {
        // No data from here to the end of the file, or past it.
        Err(Fault::Gone) => Ok(Extent { len, mapped: false }),
        // The file system has no record of holes: all of it counts as data.
        Err(Fault::Os(libc::EINVAL)) => Ok(Extent { len, mapped: true }),
        Err(fault) => Err(fault),
        Ok(data) if data as u64 > offset => Ok(run(data, false)),
        Ok(_) => Ok(run(seek(libc::SEEK_HOLE)?, true)),
    }
}

fn space(file: RawFd) -> Result<Space, Fault> {
    /// Bytes of the unit of `st_blocks`, whatever the blocks of the file system are.
    const UNIT: u64 = 512;
    let mut stat = MaybeUninit::<libc::stat64>::uninit();
    let mut system = MaybeUninit::<libc::statvfs64>::uninit();
    // SAFETY: the call fills the structure that the pointer names.
    again(|| unsafe { libc::fstat64(file, stat.as_mut_ptr()) as isize })?;
    // SAFETY: as above.
    again(|| unsafe { libc::fstatvfs64(file, system.as_mut_ptr()) as isize })?;
    // SAFETY: both calls succeeded.
    let (stat, system) = unsafe { (stat.assume_init(), system.assume_init()) };
    let used = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(UNIT);
    // Without the blocks that are reserved for root.
    let available = system.f_bavail.saturating_mul(system.f_frsize);
    Ok(Space { used, available })
}

/// Reads until the vector is full or the file ends; returns how many bytes were read, also with a fault.
pub(crate) fn read(file: &OpenFile, into: &mut Vector, offset: u64, flags: i32) -> Result<u32, (u32, Fault)> {
    let mut done: u32 = 0;
    while !into.is_empty() {
        let at = signed(offset + u64::from(done)).map_err(|fault| (done, fault))?;
        let (iov, count) = into.raw();
        // SAFETY: the vector points at memory that the operation holds, and that has no other user until the answer.
        let got = match again(|| unsafe { libc::preadv2(file.raw(), iov, count as i32, at, flags) }) {
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
        // SAFETY: the vector points at memory that the operation holds, and that is not written until the answer.
        let put = again(|| unsafe { libc::pwritev2(file, iov, count as i32, at, flags) })?;
        if put == 0 {
            return Err(Fault::NoSpace);
        }
        done += put as u32;
        from.advance(put as usize);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(len: u64) -> Arc<OpenFile> {
        let fd = memfd_create("file", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&fd, len).expect("room");
        OpenFile::new(fd)
    }

    #[test]
    fn parts_after_the_first_begin_at_multiples() {
        assert_eq!(first_part(0, 100, 64), 64);
        assert_eq!(first_part(64, 36, 64), 36);
        assert_eq!(first_part(10, 1000, 64), 54);
        assert_eq!(first_part(10, 20, 64), 20);
        assert_eq!(first_part(u64::MAX - 1, 1, 64), 1);
    }

    #[test]
    fn a_large_range_is_unmapped_in_parts() {
        let file = file(4 * UNMAP_PART);
        rustix::io::pwrite(file.fd(), b"first", 4096).expect("written");
        rustix::io::pwrite(file.fd(), b"last", 3 * UNMAP_PART).expect("written");
        let (how, offset, len) = (Allocate::Punch, 4096, 3 * UNMAP_PART);
        let mut work = Work::Allocate { file: file.clone(), how, offset, len };
        for _ in 0..3 {
            assert!(work.step().is_none(), "more parts are left");
        }
        assert_eq!(work.step().map(|answer| answer.result), Some(Ok(0)));
        let mut read = [1; 8];
        for offset in [4096, 3 * UNMAP_PART] {
            rustix::io::pread(file.fd(), &mut read, offset).expect("read");
            assert_eq!(read, [0; 8]);
        }
    }

    #[test]
    fn a_large_copy_is_done_in_parts_that_join() {
        let (from, to) = (file(2 * COPY_PART), file(0));
        let marks = [0, COPY_PART - 3, COPY_PART + 1000];
        for (at, mark) in marks.into_iter().enumerate() {
            rustix::io::pwrite(from.fd(), &[at as u8 + 1; 6], mark).expect("written");
        }
        let len = COPY_PART + 2000;
        let mut work = Work::Copy { from, at: 0, file: to.clone(), offset: 100, len };
        let first = work.step();
        match first.map(|answer| answer.result) {
            Some(Err(Fault::Unsupported)) => return eprintln!("skipped: this kernel does not copy here"),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        assert_eq!(work.step().map(|answer| answer.result), Some(Ok(0)));
        for (at, mark) in marks.into_iter().enumerate() {
            let mut read = [0; 6];
            rustix::io::pread(to.fd(), &mut read, mark + 100).expect("read");
            assert_eq!(read, [at as u8 + 1; 6]);
        }
    }

    #[test]
    fn a_fault_in_one_part_ends_the_work() {
        let mut work = Work::Allocate { file: file(0), how: Allocate::Discard, offset: 0, len: 4 * UNMAP_PART };
        assert_eq!(work.step().map(|answer| answer.result), Some(Err(Fault::Unsupported)));
    }
}
