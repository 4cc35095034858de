//! For tests, fuzz targets and the simulator (feature `testing`): a device with small logical units in memory, and what
//! fuzzers call.

pub mod fuzz;
mod lists;
mod rig;
mod tape;

pub use lists::lists;
pub use rig::{BLOCK, BLOCKS, DISC_BLOCK, Ended, Memory, NOW, Rig, at_once, every_row, rigs};
pub use tape::{TAPE_BLOCK_MAX, Tape};
