//! The commands, one file per family. A command is a CDB type with one `impl`; see [`crate::table`].

pub mod atomic;
pub mod block;
pub mod buffer;
pub mod cache;
pub mod capacity;
pub mod clock;
pub mod copy;
pub mod copy_results;
pub mod defects;
pub mod format;
pub mod information;
pub mod inquiry;
pub mod lba_status;
pub mod log;
pub mod luns;
pub mod mode;
pub mod persistent;
pub mod ports;
pub mod provisioning;
pub mod read_write;
pub mod ready;
pub mod reserve;
pub mod supported;
pub mod token;
pub mod verify;
