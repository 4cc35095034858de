//! SCSI Block Commands (SBC-3): commands and pages of direct access block devices.

pub mod atomic;
pub mod block_range;
pub mod cache;
pub mod capacity;
pub mod defects;
pub mod format;
pub mod lba_status;
pub mod limits;
pub(crate) mod log;
pub(crate) mod mode;
pub mod protect;
pub mod provisioning;
pub mod read_write;
pub mod start_stop;
pub(crate) mod state;
pub mod table;
pub mod thin;
pub mod threshold;
pub mod token;
pub mod verify;
pub(crate) mod vpd;
