//! SCSI Primary Commands (SPC-4): commands and pages of all device types.

pub mod buffer;
pub mod clock;
pub mod copy;
pub mod copy_results;
pub(crate) mod designator;
pub mod information;
pub mod inquiry;
pub(crate) mod log;
pub mod log_sense;
pub mod luns;
pub(crate) mod mode;
pub mod mode_sense;
pub mod persistent;
pub mod ports;
pub mod ready;
pub mod reserve;
pub mod supported;
pub mod table;
pub(crate) mod vpd;
