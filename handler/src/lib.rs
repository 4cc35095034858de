//! Handlers: processes outside of Lunar that serve the data of a volume.
//!
//! A handler connects to the socket of its volume (`SOCK_SEQPACKET`). Messages agree on the features and pass memory;
//! commands go through rings in shared memory, one pair for each core of Lunar, with the data beside them.
//! `include/lunar_handler.h` says the same to C.
//!
//! * [`wire`]: the messages, and the entries of the rings
//! * [`ring`]: both ends of the rings; each end checks everything that the other process writes
//! * [`serve`]: the loop of a handler in Rust, and the trait that it serves: [`serve::Device`]
//!
//! [`wire`] and [`ring`] have no I/O. Only [`serve`] uses sockets.

pub mod ring;
pub mod serve;
pub mod wire;

#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;

#[cfg(test)]
mod header_tests;
