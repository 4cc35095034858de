//! Forwarded logical units: one device for many nexuses, of which the device sees one.
//!
//! * [`state`]: the properties of the device that Lunar follows, the same for all cores
//! * [`rows`]: the parts of tables of commands that only a device executes; `tape`, `changer`, `disk`, `enclosure`: the
//!   tables of device types
//! * `sending`: a command on its way; `length`: the bytes that a CDB moves; [`timeouts`]: how long a command may take
//! * `follow`: replies of the device that tell its properties, and commands of Lunar that ask for them
//! * `edit`: replies that Lunar changes, because it limits transfers, protects from writes, and refuses commands
//! * `prevention`: PREVENT ALLOW MEDIUM REMOVAL of several nexuses; `possession`: a device for one nexus at a time

mod changer;
mod disk;
pub(crate) mod edit;
mod enclosure;
pub(crate) mod follow;
pub(crate) mod length;
pub(crate) mod possession;
mod prevention;
pub mod rows;
pub(crate) mod sending;
pub mod state;
mod tape;
pub mod timeouts;

pub use state::{DeviceFacts, Terms};

use crate::row::{Row, group};
use crate::sbc::start_stop::PreventAllowMediumRemoval;

pub(crate) use changer::CHANGER;
pub(crate) use disk::{OPTICAL_MEMORY, SIMPLE_DISK, ZONED_DISK};
pub(crate) use enclosure::ENCLOSURE;
pub(crate) use tape::TAPE;

/// PREVENT ALLOW MEDIUM REMOVAL, for device types that do not have the other commands of disks.
const REMOVAL: &[Row] = group![Row: PreventAllowMediumRemoval];

#[cfg(test)]
mod tests;
