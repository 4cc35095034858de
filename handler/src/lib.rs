//! Handlers: processes outside of Lunar that serve the data of a volume, or execute the commands of a SCSI device.
//!
//! A handler connects to the socket of its volume (`SOCK_SEQPACKET`). Messages agree on the features and pass memory;
//! commands go through rings in shared memory, one pair for each core of Lunar, with the data beside them.
//! `include/lunar_handler.h` says the same to C.
//!
//! * [`wire`]: the messages, and the entries of the rings
//! * [`ring`]: both ends of the rings; each end checks everything that the other process writes
//! * [`serve`]: the loop of a handler in Rust, and the trait of blocks that it serves: [`serve::Device`]
//! * [`making`]: the messages with a process that makes a store instead of serving one
//! * [`scsi`]: the trait of SCSI commands that it serves: [`scsi::ScsiDevice`]; with both: [`scsi::MixedDevice`]
//! * [`data`]: the data of these commands, from and to files without a copy
//! * [`program`]: parts of programs that are handlers
//!
//! [`wire`], [`ring`], [`making`] and [`scsi`] have no I/O. Only [`serve`] uses sockets, and only [`data`] uses files.

pub mod data;
pub mod making;
pub mod program;
pub mod ring;
pub mod scsi;
pub mod serve;
pub mod wire;

#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;

#[cfg(test)]
mod header_tests;
