//! How long a command of a device may take. When the time is over, Linux aborts the command, and resets the device if
//! that does not help: so a time-out is longer than any device takes that works.

use crate::peripheral::PeripheralType;
use crate::policy::Timeout;
use std::time::Duration;

/// The time-out of a command of this class. A device that reports time-outs itself (REPORT SUPPORTED OPERATION CODES)
/// has its own.
#[must_use]
pub fn of(class: Timeout, device: PeripheralType) -> Duration {
    /// A loaded device may answer even from memory only after the command in progress.
    const QUICK: u64 = 30;
    /// Loads, rewinds and retries of removable media.
    const REMOVABLE: u64 = 900;
    /// A whole tape is erased, or all slots of a changer are looked at.
    const HOURS: u64 = 14_000;
    let is_disk = matches!(device, PeripheralType::DISK | PeripheralType::SIMPLE_DISK | PeripheralType::ZONED);
    let is_medium = matches!(device, PeripheralType::TAPE | PeripheralType::CD_DVD | PeripheralType::OPTICAL_MEMORY);
    Duration::from_secs(match class {
        Timeout::Quick => QUICK,
        Timeout::Transfer if is_disk => 60,
        Timeout::Transfer if is_medium => REMOVABLE,
        Timeout::Long if is_disk => 3600,
        Timeout::Transfer | Timeout::Long => HOURS,
    })
}
