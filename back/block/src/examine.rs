//! Whether a block device that is served is still there, and as large as it was.

use lunar_control::value::Size;
use lunar_engine::backend::{Condition, StoreTrouble};
use lunar_reactor::block_device::device_bytes;
use lunar_reactor::disk::Source;

/// Looks at the device of this number, which was opened with `size` bytes.
pub(crate) fn examine(source: &Source, device: u64, size: u64) -> Vec<StoreTrouble> {
    let name = source.name();
    let mut troubles = Vec::new();
    match device_bytes(device) {
        Some(0) | None => troubles.push(StoreTrouble {
            condition: Condition::Gone,
            words: format!("the device {name} is gone"),
            remedy: "connect it again: `lsblk` shows the devices that are there".to_owned(),
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
