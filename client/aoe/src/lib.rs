//! ATA over Ethernet, initiator side: requests and received frames in, frames and results out. Nothing here moves data
//! or waits; the user gives it frames and the time.
//!
//! * [`initiator`]: one disk: its discovery, and commands in several frames each
//! * `timer`: when a frame is sent again, from measured times

#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod initiator;
mod timer;

pub use initiator::{Initiator, InitiatorConfig, InitiatorEvent, Operation};
