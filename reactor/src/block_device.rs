//! Block devices of this machine, as the kernel describes them: in sysfs by their numbers, without opening them, and
//! their names in ZFS.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// The attributes of a block device in sysfs that name it, the same on every machine that has access to it.
const NAMES: [&str; 4] = ["wwid", "device/wwid", "dm/uuid", "md/uuid"];
/// Its serial number. The creator of a virtual machine chooses those of its disks, so it is not unique.
const SERIALS: [&str; 2] = ["serial", "device/serial"];

/// The folder of the block device `dev` (as in `st_dev`, `st_rdev`) in sysfs.
#[must_use]
pub fn device_folder(dev: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)))
}

/// The name of the block device `dev` in the kernel, which begins with that of its driver: `sda`, `zd16`, `ublkb0`.
#[must_use]
pub fn kernel_name(dev: u64) -> Option<String> {
    Some(std::fs::read_link(device_folder(dev)).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// The name that the block device `dev` (as in `st_dev`, `st_rdev`) reports. A partition adds its number.
#[must_use]
pub fn device_name(dev: u64) -> Option<String> {
    device_attribute(dev, &NAMES)
}

/// The serial number that the block device `dev` reports. A partition adds its number.
#[must_use]
pub fn device_serial(dev: u64) -> Option<String> {
    device_attribute(dev, &SERIALS)
}

fn device_attribute(dev: u64, files: &[&str]) -> Option<String> {
    let here = device_folder(dev);
    let read = |from: &Path| {
        let text = std::fs::read_to_string(from).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let partition = read(&here.join("partition"));
    let whole = if partition.is_some() { here.join("..") } else { here };
    let part = partition.map(|number| format!(" partition {number}")).unwrap_or_default();
    files.iter().find_map(|file| read(&whole.join(file)).map(|name| format!("{file} {name}{part}")))
}

/// Bytes of the block device `dev`; `None` if the kernel knows no such device.
#[must_use]
pub fn device_bytes(dev: u64) -> Option<u64> {
    /// Bytes of the unit in which the kernel tells sizes of devices.
    const SECTOR: u64 = 512;
    let sectors = std::fs::read_to_string(device_folder(dev).join("size")).ok()?;
    sectors.trim().parse::<u64>().ok()?.checked_mul(SECTOR)
}

/// The name of the dataset whose volume this open block device is; `None` if it is no volume of ZFS.
#[must_use]
pub fn zvol_name(device: BorrowedFd<'_>) -> Option<String> {
    /// BLKZNAME of OpenZFS (include/sys/fs/zfs.h): `_IOR(0x12, 125, char[256])`.
    const BLKZNAME: u32 = 0x8100_127d;
    const NAME_BYTES: usize = 256;
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: the driver writes no more bytes than the number of the call says, which are those of the array.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), BLKZNAME as libc::Ioctl, name.as_mut_ptr()) };
    let text = name.split(|byte| *byte == 0).next().filter(|text| done == 0 && !text.is_empty())?;
    String::from_utf8(text.to_vec()).ok()
}

/// A number from the queue of the block device `dev` (as in `st_dev`, `st_rdev`), or of the disk of this partition: a
/// file below `/sys/dev/block/MAJOR:MINOR/queue`.
#[must_use]
pub fn queue_limit(dev: u64, name: &str) -> Option<u64> {
    let device = device_folder(dev);
    let read = |queue: &str| std::fs::read_to_string(device.join(queue).join(name)).ok();
    read("queue").or_else(|| read("../queue"))?.trim().parse().ok()
}
