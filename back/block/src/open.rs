//! The checks of a block device when it is opened as a volume.

use lunar_control::files::{self, Access};
use lunar_core::io::Traits;
use lunar_core::mem::PAGE;
use lunar_reactor::block_device::{device_folder, device_name, device_serial, kernel_name, queue_limit};
use lunar_reactor::disk::Alignment;
use lunar_reactor::linger::until_free;
use lunar_reactor::log;
use rustix::fs::{
    FileType, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, fstat, ioctl_blkpbszget, ioctl_blksszget, major, minor, seek,
    stat,
};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How a device is opened as a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Without writing.
    pub read_only: bool,
    /// Every change is on the medium before it is answered.
    pub durable: bool,
    /// Past the page cache.
    pub direct: bool,
    /// Bytes of the unit's logical block.
    pub block_size: u32,
}

/// Why a device cannot be a volume.
#[derive(Debug)]
pub enum Refusal {
    /// It is not a block device.
    NotBlock,
    /// This user may not read it, or not write it.
    NotPermitted,
    /// The device itself refuses writes.
    WriteProtected,
    /// It is mounted, part of another device, or served by another process.
    Busy {
        /// Its use, as far as it is known.
        by: Option<String>,
    },
    /// There is no medium, or no driver behind the name.
    NoMedium,
    /// Its size is not a multiple of the block size.
    Uneven {
        /// Bytes.
        size: u64,
    },
    /// It has no direct I/O.
    NoDirect,
    /// Direct I/O on it needs larger blocks.
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
            Self::NotBlock => f.write_str("is not a block device"),
            Self::NotPermitted => f.write_str("may not be read and written by this user"),
            Self::WriteProtected => f.write_str("is write-protected"),
            Self::Busy { by: Some(by) } => write!(f, "is in use: {by}"),
            Self::Busy { by: None } => f.write_str("is in use by another process"),
            Self::NoMedium => f.write_str("has no medium"),
            Self::Uneven { size } => write!(f, "has {size} bytes, which is not a whole number of blocks"),
            Self::NoDirect => f.write_str("has no direct I/O"),
            Self::DirectBlocks { needs } => write!(f, "needs blocks of {needs} bytes for direct I/O"),
            Self::Io(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => Self::NotPermitted,
            Errno::ROFS => Self::WriteProtected,
            Errno::NOMEDIUM | Errno::NXIO | Errno::NODEV => Self::NoMedium,
            other => Self::Io(other.into()),
        }
    }
}

/// The mark distinguishes a device from all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The name that it reports, the same on every machine that has access to it.
    Named(String),
    /// Where it is on this machine.
    Place(String),
}

/// The limits and abilities of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Bytes of its logical sector.
    pub(crate) sector: u32,
    /// Whether it takes BLKDISCARD.
    pub(crate) can_discard: bool,
    /// Whether it makes zeroes by itself: then a hole in it reads as zeroes (fallocate on devices).
    pub(crate) can_zero: bool,
    /// Bytes of the blocks that read as zeroes after BLKDISCARD, where the driver promises that.
    pub(crate) discard_zeroes: Option<u32>,
}

/// The driver of a device, as far as its limits mean something else than those of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    /// A ZFS volume on Linux.
    Zvol,
    /// Any other one.
    Other,
}

impl Driver {
    /// The driver of the device of this number: its name in sysfs begins with that of the driver.
    fn of(device: u64) -> Self {
        Self::of_name(&kernel_name(device).unwrap_or_default())
    }

    fn of_name(name: &str) -> Self {
        let is_zvol =
            name.strip_prefix("zd").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
        if is_zvol { Self::Zvol } else { Self::Other }
    }

    /// The optimal length of a request in bytes. A zvol reports 32 MiB, its longest request: initiators would read
    /// ahead that far.
    fn optimal_io(self, reported: u32, physical_block: u32) -> u32 {
        /// Blocks of a zvol that it reads and writes at once without delaying others.
        const ZVOL_BLOCKS: u32 = 8;
        const ZVOL_BYTES_MAX: u32 = 1 << 20;
        match self {
            Self::Zvol => physical_block.saturating_mul(ZVOL_BLOCKS).min(ZVOL_BYTES_MAX),
            Self::Other => reported,
        }
    }

    /// Bytes of the blocks that read as zeroes after a discard of `granularity`, if the driver promises that. A zvol
    /// rounds a discard to its blocks, in which a partition may begin anywhere.
    fn discard_zeroes(self, granularity: u32, is_partition: bool) -> Option<u32> {
        (self == Self::Zvol && granularity > 0 && !is_partition).then_some(granularity)
    }
}

/// A device that may be served.
pub(crate) struct Checked {
    pub(crate) file: OwnedFd,
    /// The number of the device.
    pub(crate) device: u64,
    /// Whether this process had it before.
    pub(crate) is_held: bool,
    pub(crate) traits: Traits,
    pub(crate) alignment: Option<Alignment>,
    pub(crate) limits: Limits,
    pub(crate) mark: Mark,
}

/// A device that this process has for itself.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    /// Its number.
    pub(crate) device: u64,
    /// Its first open file, which is exclusive.
    pub(crate) file: BorrowedFd<'a>,
}

/// How long a process that has ended may still have the device open. The kernel does not tell which process it was.
const PATIENCE: Duration = Duration::from_secs(3);

/// O_EXCL on a device: it is not mounted, and cannot be mounted as long as it is open.
fn open_alone(path: &Path, access: Access, device: u64) -> Result<OwnedFd, Refusal> {
    let attempt = || match files::open(path, access) {
        Err(Errno::BUSY) => Err(Refusal::Busy { by: user_of(device) }),
        other => Ok(other?),
    };
    until_free(PATIENCE, attempt, |why| matches!(why, Refusal::Busy { by: None }))
}

/// Opens a device; `held` is the device that this process has for itself already.
pub(crate) fn open(path: &Path, options: &Options, held: Option<Held<'_>>) -> Result<Checked, Refusal> {
    let device = stat(path)?;
    if FileType::from_raw_mode(device.st_mode) != FileType::BlockDevice {
        return Err(Refusal::NotBlock);
    }
    let (alone, once_more) = match options.read_only {
        true => (Access::ReadDevice, Access::ReadOwnDevice),
        false => (Access::WriteDevice, Access::WriteOwnDevice),
    };
    let file = match held {
        Some(held) if held.device == device.st_rdev => files::open_again(path, once_more, held.file)?,
        _ => open_alone(path, alone, device.st_rdev)?,
    };
    let device = fstat(&file)?.st_rdev;
    let size = seek(&file, SeekFrom::End(0))?;
    if size == 0 {
        return Err(Refusal::NoMedium);
    }
    if !size.is_multiple_of(options.block_size.into()) {
        return Err(Refusal::Uneven { size });
    }
    let sector = ioctl_blksszget(&file)?;
    let driver = Driver::of(device);
    let limit = |name| queue_limit(device, name).and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
    let can_discard = !options.read_only && queue_limit(device, "discard_max_bytes").is_some_and(|max| max > 0);
    let granularity = if can_discard { limit("discard_granularity").max(sector) } else { 0 };
    let limits = Limits {
        sector,
        can_discard,
        can_zero: queue_limit(device, "write_zeroes_max_bytes").is_some_and(|max| max > 0),
        discard_zeroes: driver.discard_zeroes(granularity, is_partition(device)),
    };
    let alignment = if options.direct { Some(go_direct(&file, sector, options.block_size)?) } else { None };
    if driver == Driver::Zvol && !options.direct && !options.read_only {
        log!(
            warning,
            "{}: if its pool is full, writes through the page cache are lost and flushes fail: set `direct = true`",
            path.display()
        );
    }
    let physical_block = ioctl_blkpbszget(&file)?.max(sector);
    let traits = Traits {
        size,
        read_only: options.read_only,
        write_cache: !options.durable,
        thin: can_discard,
        unmap_granularity: granularity,
        // The content of blocks after a discard depends on the device; the kernel no longer reports it either.
        unmap_zeroes: false,
        physical_block,
        optimal_io: driver.optimal_io(limit("optimal_io_size"), physical_block),
        rotational: limit("rotational") == 1,
        // The kernel may split a write of more than one sector.
        atomic_write: 0,
    };
    Ok(Checked {
        file,
        device,
        is_held: held.is_some_and(|held| held.device == device),
        traits,
        alignment,
        limits,
        mark: mark(path, device),
    })
}

/// The mark of the device at this path; `None` if there is no device.
#[must_use]
pub fn mark_at(path: &Path) -> Option<Mark> {
    let device = stat(path).ok()?;
    (FileType::from_raw_mode(device.st_mode) == FileType::BlockDevice).then(|| mark(path, device.st_rdev))
}

fn is_partition(device: u64) -> bool {
    device_folder(device).join("partition").exists()
}

fn go_direct(file: &OwnedFd, sector: u32, block_size: u32) -> Result<Alignment, Refusal> {
    fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT).map_err(|_| Refusal::NoDirect)?;
    if !block_size.is_multiple_of(sector) {
        return Err(Refusal::DirectBlocks { needs: sector });
    }
    // Older kernels want memory aligned like sectors; newer ones less.
    Ok(Alignment { memory: (sector as usize).min(PAGE), length: sector as usize })
}

/// The user of a device that cannot be opened: a mount, or a device on top of it.
fn user_of(device: u64) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(place) = mounted_at(&mounts, device) {
        return Some(format!("mounted at {place}"));
    }
    // A mounted partition keeps its whole disk busy, too.
    let below = std::fs::read_dir(device_folder(device)).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.path().join("partition").exists()) {
        let number = std::fs::read_to_string(entry.path().join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        let partition = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        if let Some(place) = mounted_at(&mounts, partition) {
            return Some(format!("its partition {} is mounted at {place}", entry.file_name().display()));
        }
    }
    let holder = std::fs::read_dir(device_folder(device).join("holders")).ok()?.flatten().next()?;
    Some(format!("part of {}", holder.file_name().display()))
}

/// A line is `36 35 98:0 /root /place options ... - type source options`.
fn mounted_at(mounts: &str, device: u64) -> Option<&str> {
    let number = format!("{}:{}", major(device), minor(device));
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        let is_ours = words.next()? == number;
        words.nth(1).filter(|_| is_ours)
    })
}

/// The name that the device reports; its place, if it has no name.
fn mark(path: &Path, device: u64) -> Mark {
    if let Some(name) = device_name(device) {
        return Mark::Named(name);
    }
    // As it was named, not where the name leads to: /dev/disk/by-* is steadier than /dev/sdb.
    let path = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
    Mark::Place(device_serial(device).unwrap_or_else(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zvol_asks_for_few_of_its_blocks_at_once() {
        let [zvol, other] = ["zd16", "sdb"].map(Driver::of_name);
        assert_eq!((zvol, other), (Driver::Zvol, Driver::Other));
        assert!(["zd", "zda", "zram0", "dm-1", ""].into_iter().all(|name| Driver::of_name(name) == Driver::Other));
        assert_eq!(
            [4096, 16384, 131_072, 1 << 24].map(|block| zvol.optimal_io(32 << 20, block)),
            [32768, 131_072, 1 << 20, 1 << 20]
        );
        assert_eq!(other.optimal_io(32 << 20, 4096), 32 << 20);
    }

    #[test]
    fn only_whole_zvols_promise_zeroes_after_a_discard() {
        let [zvol, partition] = ["zd16", "zd16p1"].map(Driver::of_name);
        assert_eq!(zvol.discard_zeroes(16384, false), Some(16384));
        assert_eq!((zvol.discard_zeroes(0, false), partition.discard_zeroes(16384, true)), (None, None));
        assert_eq!(Driver::Other.discard_zeroes(4096, false), None);
    }

    #[test]
    fn finds_where_a_device_is_mounted() {
        let mounts = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                      36 35 98:3 / /srv/a\\040b rw,noatime master:1 - ext4 /dev/sdb3 rw\n";
        assert_eq!(mounted_at(mounts, rustix::fs::makedev(98, 3)), Some("/srv/a\\040b"));
        assert_eq!(mounted_at(mounts, rustix::fs::makedev(98, 4)), None);
        assert_eq!(mounted_at("", 0), None);
    }
}
