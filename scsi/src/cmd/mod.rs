//! The commands, one file per family. A command is a CDB type with one `impl`; see [`crate::table`].

pub mod block;
pub mod cache;
pub mod capacity;
pub mod clock;
pub mod information;
pub mod inquiry;
pub mod luns;
pub mod mode;
pub mod persistent;
pub mod ports;
pub mod provisioning;
pub mod read_write;
pub mod ready;
pub mod reserve;
pub mod supported;
pub mod verify;
