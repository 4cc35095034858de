//! Whether a block device that is served is still there, and as large as it was.

use lunar_control::value::Size;
use lunar_engine::backend::{Condition, StoreTrouble};
use lunar_reactor::disk::Source;

/// Bytes of the unit in which the kernel tells sizes of devices.
const SECTOR: u64 = 512;

/// Looks at the device of this number, which was opened with `size` bytes.
pub(crate) fn examine(source: &Source, device: u64, size: u64) -> Vec<StoreTrouble> {
    let name = source.name();
    let mut troubles = Vec::new();
    match bytes_of(device) {
        Some(0) | None => troubles.push(StoreTrouble {
            condition: Condition::Gone,
            words: format!("the device {name} is gone"),
            remedy: "connect it again and restart Lunar: `lsblk` shows the devices that are there".to_owned(),
        }),
        Some(has) if has < size => troubles.push(StoreTrouble {
            condition: Condition::Truncated,
            words: format!("the device {name} became smaller while it was served: {} of {}", Size(has), Size(size)),
            remedy: "give it its size back, and restart Lunar".to_owned(),
        }),
        Some(_) => {}
    }
    if source.health().is_lost() {
        troubles.push(StoreTrouble {
            condition: Condition::LostWrites,
            words: format!("data of {name} in the page cache could not be written, and flushes fail"),
            remedy: "check the disk, then restart Lunar".to_owned(),
        });
    }
    troubles
}

/// The size of the block device of this number in bytes; `None` if the kernel knows no such device.
fn bytes_of(device: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let sectors = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    sectors.trim().parse::<u64>().ok()?.checked_mul(SECTOR)
}
