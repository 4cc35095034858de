//! Example of a back end that opens a device: a tape drive in memory. Lunar forwards SCSI commands to it.
//!
//! * [`backend`]: the kind `tape`
//! * `drive`: the drive, which answers CDBs by a script (SSC-5)

pub mod backend;
mod drive;

pub use drive::{BLOCK_BYTES_MAX, TAPE_BYTES_MAX};
