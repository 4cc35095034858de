//! Whether a file that is served is still complete, and still in its place.

use lunar_control::value::Size;
use lunar_engine::backend::{Condition, PoolSpace, StoreTrouble};
use lunar_reactor::block_device::device_bytes;
use lunar_reactor::disk::Source;
use rustix::fs::{Stat, fstat, fstatvfs};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of the unit in which the kernel tells the space of files (stat(2)).
const SECTOR: u64 = 512;

/// Looks at a file that was opened with `size` bytes.
pub(crate) fn examine(source: &Source, size: u64) -> Vec<StoreTrouble> {
    let mut troubles = Vec::new();
    let name = source.name();
    match fstat(source.file()) {
        Ok(found) => {
            let has = u64::try_from(found.st_size).unwrap_or(0);
            if has < size {
                source.health().cut_off(has);
            }
            troubles.extend(misplaced(name, source.file(), &found));
            troubles.extend(without_device(name, &found));
        }
        Err(why) => troubles.push(StoreTrouble {
            condition: Condition::Gone,
            words: format!("the file {name} cannot be examined: {why}"),
            remedy: "check its file system and its disk".to_owned(),
        }),
    }
    let end = source.health().data_end();
    if end < size {
        let (end, size) = (Size(end), Size(size));
        troubles.push(StoreTrouble {
            condition: Condition::Truncated,
            words: format!(
                "the file {name} was truncated to {end} while it was served with {size}: the data behind is lost, and \
                 commands there end with a medium error"
            ),
            remedy: format!("stop Lunar, restore {name} from a backup, and start Lunar"),
        });
    }
    if source.health().is_lost() {
        troubles.push(StoreTrouble {
            condition: Condition::LostWrites,
            words: format!("data of {name} in the page cache could not be written, and flushes fail"),
            remedy: "check the disk below it, then restart Lunar".to_owned(),
        });
    }
    troubles
}

/// The space of the file in its file system. A file that is not written takes none.
pub(crate) fn pool_space(source: &Source, size: u64, read_only: bool) -> Option<PoolSpace> {
    let (found, system) = (fstat(source.file()).ok()?, fstatvfs(source.file()).ok()?);
    let has = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(SECTOR);
    let place = Path::new(source.name()).parent().unwrap_or_else(|| Path::new("/")).display().to_string();
    Some(PoolSpace {
        pool: found.st_dev,
        noun: "file system",
        inspection: format!("df {place}"),
        place,
        free: system.f_bavail.saturating_mul(system.f_frsize),
        size: system.f_blocks.saturating_mul(system.f_frsize),
        allocated: has,
        missing: if read_only { 0 } else { size.saturating_sub(has) },
    })
}

/// Whether the device of the file system is gone, as of a disk that was unplugged while it was mounted. File systems
/// without one device of their own, such as network file systems, have no device of this number.
fn without_device(name: &str, found: &Stat) -> Option<StoreTrouble> {
    (rustix::fs::major(found.st_dev) != 0 && matches!(device_bytes(found.st_dev), None | Some(0))).then(|| {
        StoreTrouble {
            condition: Condition::Gone,
            words: format!("the device of the file system of {name} is gone"),
            remedy: "connect it again and mount its file system anew (`lsblk`, `findmnt`)".to_owned(),
        }
    })
}

/// Whether the path does not lead to the file any more.
fn misplaced(name: &str, file: BorrowedFd<'_>, found: &Stat) -> Option<StoreTrouble> {
    if found.st_nlink == 0 {
        return Some(StoreTrouble {
            condition: Condition::Deleted,
            words: format!("the file {name} was deleted while it is served: its data is gone when Lunar ends"),
            remedy: format!(
                "stop its clients and copy the data now, as root: cp --sparse=always /proc/{}/fd/{} NEW-FILE",
                std::process::id(),
                file.as_raw_fd()
            ),
        });
    }
    let words = match std::fs::metadata(name) {
        Ok(there) if (there.dev(), there.ino()) == (found.st_dev, found.st_ino) => return None,
        Ok(_) => format!("another file is at {name}: the file that is served was moved"),
        Err(why) if why.kind() == ErrorKind::NotFound => format!("the file that is served is not at {name} any more"),
        // A folder that may not be searched says nothing about the file.
        Err(_) => return None,
    };
    let remedy = format!("move the file back to {name}, or change `path` of the volume, before Lunar ends");
    Some(StoreTrouble { condition: Condition::Moved, words, remedy })
}
