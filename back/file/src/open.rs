//! The checks of a file when it is opened as a volume.

use crate::lock::{lock, strengthen};
use crate::loop_device::{BLOCK_DEVICES, backed_by};
use crate::mark::{self, Mark};
use crate::served_size;
use lunar_control::files::{self, Access};
use lunar_core::io::Traits;
use lunar_core::mem::PAGE;
use lunar_reactor::block_device::queue_limit;
use lunar_reactor::disk::Alignment;
use lunar_reactor::log;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, OFlags, Stat, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl, fstat, fstatvfs,
    fsync, ftruncate, statx,
};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// File system blocks beyond this are a preference (a network file system's transfer size), not a block.
const BLOCK_BYTES_MAX: u64 = 64 << 10;

/// How a file is opened as a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The size that it has, or gets if it is not there or empty; `None`: it is there and has its size.
    pub size: Option<u64>,
    /// A file that is missing or empty is created. Without it, the volume was served before, so a missing or empty file
    /// is refused.
    pub creates: bool,
    /// A file that is smaller grows, and of one that is larger the rest is not used; else either is refused.
    pub grows: bool,
    /// The mark ([`mark`]) that a file without a mark gets; without it, a random one.
    pub mark: Option<[u8; 16]>,
    /// Read-only. Other processes may then serve it, too, read-only.
    pub read_only: bool,
    /// Other processes that ask for the same may serve it, too, and write.
    pub shared: bool,
    /// Every change is on the medium before it is answered.
    pub durable: bool,
    /// Past the page cache.
    pub direct: bool,
    /// Bytes of the unit's logical block.
    pub block_size: u32,
}

/// Why a file cannot be a volume.
#[derive(Debug)]
pub enum Refusal {
    /// There is no such file, and no size was told to make it with.
    Missing,
    /// It was there before, and is not, or has no bytes.
    Gone,
    /// The folder that it should be made in is not there.
    NoFolder,
    /// It is a directory.
    Directory,
    /// It is neither a regular file nor a directory.
    NotRegular,
    /// This user may not read it, or not write it.
    NotPermitted,
    /// Its file system is mounted read-only.
    ReadOnlyFileSystem,
    /// Another process serves it.
    Locked {
        /// Its number, if it can be found out.
        pid: Option<u32>,
    },
    /// It backs a loop device that may be written to.
    Looped {
        /// The device.
        device: String,
    },
    /// It has no bytes.
    Empty,
    /// Its size is not a multiple of the block size.
    Uneven {
        /// Bytes.
        size: u64,
    },
    /// It is there, with another size than was told.
    OtherSize {
        /// Bytes that it has.
        size: u64,
    },
    /// It is smaller than it was when it was served last.
    Truncated {
        /// Bytes that it has.
        size: u64,
        /// Bytes with which it was served.
        served: u64,
    },
    /// Its file system has no direct I/O.
    NoDirect,
    /// Direct I/O on its file system needs larger blocks.
    DirectBlocks {
        /// Bytes.
        needs: u32,
    },
    /// Anything else.
    Io(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Gone => f.write_str("is gone"),
            Self::NoFolder => f.write_str("cannot be made: its folder does not exist"),
            Self::Directory => f.write_str("is a directory"),
            Self::NotRegular => f.write_str("is neither a regular file nor a block device"),
            Self::NotPermitted => f.write_str("may not be read and written by this user"),
            Self::ReadOnlyFileSystem => f.write_str("is on a file system that is mounted read-only"),
            Self::Locked { pid: Some(pid) } => write!(f, "is already served by process {pid}"),
            Self::Locked { pid: None } => f.write_str("is already served by another process"),
            Self::Looped { device } => write!(f, "backs the loop device {device}"),
            Self::Empty => f.write_str("is empty"),
            Self::Uneven { size } => write!(f, "has {size} bytes, which is not a whole number of blocks"),
            Self::OtherSize { size } => write!(f, "exists, with {size} bytes"),
            Self::Truncated { size, served } => write!(f, "has {size} bytes, and was served with {served} bytes"),
            Self::NoDirect => f.write_str("is on a file system without direct I/O"),
            Self::DirectBlocks { needs } => write!(f, "needs blocks of {needs} bytes for direct I/O"),
            Self::Io(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::Missing,
            Errno::ISDIR => Self::Directory,
            Errno::ACCESS | Errno::PERM => Self::NotPermitted,
            Errno::ROFS => Self::ReadOnlyFileSystem,
            Errno::NXIO => Self::NotRegular,
            other => Self::Io(other.into()),
        }
    }
}

/// A file that may be served.
pub(crate) struct Checked {
    pub(crate) file: OwnedFd,
    pub(crate) traits: Traits,
    pub(crate) alignment: Option<Alignment>,
    pub(crate) mark: Mark,
}

/// Opens a file; `held` is the same file, if this process has it locked already.
pub(crate) fn open(path: &Path, options: &Options, held: Option<BorrowedFd<'_>>) -> Result<Checked, Refusal> {
    let file = open_or_make(path, options)?;
    let stat = fstat(&file)?;
    check_type(&stat)?;
    // io_uring would answer EAGAIN to a read that has to wait for the disk.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    match held {
        // The lock belongs to the file as it was opened first, perhaps read-only and shared.
        Some(held) if same(held, file.as_fd())? => strengthen(held, path, options.read_only || options.shared)?,
        _ => lock(file.as_fd(), path, options.read_only || options.shared)?,
    }
    if !options.read_only
        && let Some(device) = backed_by(Path::new(BLOCK_DEVICES), &stat)
    {
        return Err(Refusal::Looped { device });
    }
    let served = served_size::read(file.as_fd(), stat.st_ino);
    let size = volume_size(&file, path, options, served)?;
    if !options.read_only && served != Some(size) {
        record_size(&file, path, stat.st_ino, size);
    }
    // Its size may have changed.
    let stat = fstat(&file)?;
    let alignment = if options.direct { Some(go_direct(&file, &stat, options.block_size)?) } else { None };
    let mark = mark::of(file.as_fd(), path, &stat, options);
    let traits = traits(file.as_fd(), &stat, size, options)?;
    Ok(Checked { file, traits, alignment, mark })
}

/// Whether two are one file.
pub(crate) fn same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, Refusal> {
    let (one, other) = (fstat(one)?, fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn open_or_make(path: &Path, options: &Options) -> Result<OwnedFd, Refusal> {
    let access = if options.read_only { Access::Read } else { Access::Write };
    match files::open(path, access) {
        Err(Errno::NOENT) if !options.creates => return Err(Refusal::Gone),
        Err(Errno::NOENT) if options.size.is_some() && !options.read_only => {}
        other => return Ok(other?),
    }
    match files::open(path, Access::Create) {
        Err(Errno::NOENT) => Err(Refusal::NoFolder),
        // Another process has created it in the meantime. Its size is checked below.
        Err(Errno::EXIST) => Ok(files::open(path, access)?),
        other => Ok(other?),
    }
}

fn check_type(stat: &Stat) -> Result<(), Refusal> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Refusal::Directory),
        _ => Err(Refusal::NotRegular),
    }
}

/// The size of the volume. A file that is new or empty gets the requested size. A file is never made smaller, and grows
/// only if that is requested. `served` is the size with which it was served last, if that is recorded.
fn volume_size(file: &OwnedFd, path: &Path, options: &Options, served: Option<u64>) -> Result<u64, Refusal> {
    let has = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    let size = options.size.unwrap_or(has);
    if has == 0 && !options.creates {
        return Err(Refusal::Gone);
    }
    if let Some(served) = served.filter(|served| has < *served) {
        return Err(Refusal::Truncated { size: has, served });
    }
    if size == 0 {
        return Err(Refusal::Empty);
    }
    let grows = options.grows && has < size && !options.read_only;
    let is_cut = options.grows && has > size;
    if has != 0 && has != size && !grows && !is_cut {
        return Err(Refusal::OtherSize { size: has });
    }
    if !size.is_multiple_of(options.block_size.into()) {
        return Err(Refusal::Uneven { size });
    }
    if has == 0 {
        if options.read_only {
            return Err(Refusal::Empty);
        }
        ftruncate(file, size)?;
        fsync(file)?;
        sync_folder(path);
    } else if grows {
        ftruncate(file, size)?;
        fsync(file)?;
    }
    Ok(size)
}

/// Records the size with which a file is served. Without a record, the file is served all the same.
fn record_size(file: &OwnedFd, path: &Path, inode: u64, size: u64) {
    match served_size::keep(file.as_fd(), inode, size) {
        Ok(()) | Err(Errno::OPNOTSUPP) => {}
        Err(why) => log!(
            warning,
            "{}: its size could not be recorded (attribute {}), so a truncation while it is not served will not be \
             noticed: {why}",
            path.display(),
            served_size::ATTRIBUTE
        ),
    }
}

/// Syncs the folder, so that the name of a new file is on the medium, too. The file is served even if that fails.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    if let Err(why) = files::sync_folder(folder) {
        log!(warning, "{}: the folder could not be synced: {why}", folder.display());
    }
}

fn go_direct(file: &OwnedFd, stat: &Stat, block_size: u32) -> Result<Alignment, Refusal> {
    // Set on the open file: asked for at creation, some file systems make the file and then refuse.
    fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT).map_err(|_| Refusal::NoDirect)?;
    let known = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let known = known.filter(|known| known.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let (memory, length) = match known {
        Some(known) => (known.stx_dio_mem_align, known.stx_dio_offset_align),
        // Kernels before 6.1 do not tell; a block of the file system always does.
        None => (PAGE as u32, u32::try_from(stat.st_blksize).unwrap_or(PAGE as u32)),
    };
    if memory == 0 || length == 0 || memory as usize > PAGE {
        return Err(Refusal::NoDirect);
    }
    if !block_size.is_multiple_of(length) {
        return Err(Refusal::DirectBlocks { needs: length });
    }
    Ok(Alignment { memory: memory as usize, length: length as usize })
}

fn traits(file: BorrowedFd<'_>, stat: &Stat, size: u64, options: &Options) -> Result<Traits, Refusal> {
    let block = fstatvfs(file)?.f_frsize;
    let is_block = block.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(&block);
    let block = if is_block { block as u32 } else { PAGE as u32 };
    let end = size.max(u64::try_from(stat.st_size).unwrap_or(0));
    let can_punch = !options.read_only && can_punch(file, end, block);
    let preferred = u32::try_from(stat.st_blksize).unwrap_or(0);
    Ok(Traits {
        size,
        read_only: options.read_only,
        write_cache: !options.durable,
        thin: can_punch || options.read_only,
        unmap_granularity: if can_punch { block } else { 0 },
        unmap_zeroes: can_punch,
        physical_block: block.max(PAGE as u32),
        optimal_io: if preferred > block && preferred.is_power_of_two() { preferred } else { 0 },
        rotational: queue_limit(stat.st_dev, "rotational") == Some(1),
        // The page cache writes back page by page.
        atomic_write: 0,
    })
}

/// Whether the file system gives space back: asked for space behind the end of the file, where there is none.
fn can_punch(file: BorrowedFd<'_>, end: u64, block: u32) -> bool {
    let behind = end.next_multiple_of(block.into());
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, behind, block.into()).is_ok()
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod tests;
