//! Fibre Channel over Ethernet, initiator side, with or without a switch: commands and received frames in, frames and
//! results out. Nothing here moves data or waits; the user gives it frames and the time.
//!
//! * [`initiator`]: a port, its login at a target, and SCSI commands, which are repaired when frames are lost
//! * [`disk`]: one disk of the target: its capacity, reads and writes
//! * `switch`: a switch for tests

pub mod disk;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod initiator;
#[cfg(any(test, feature = "testing"))]
pub mod switch;

pub use disk::{Disk, DiskEvent, Operation};
pub use initiator::{Command, Initiator, InitiatorConfig, InitiatorEvent};
