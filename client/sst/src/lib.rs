//! SCSI over Scheduled Transfer, initiator side. **The layout is private (version 1).** Commands, received packets and
//! the time in, packets and results out. Nothing here moves data or waits.
//!
//! * [`initiator`]: the connection to a target, its login and its commands, which begin again when it was lost
//! * [`disk`]: one disk of the target: its capacity, reads and writes
//! * [`carrier`]: the engine below, with or without links; `memory`: the bytes of the Transfers and regions

pub mod carrier;
pub mod disk;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod initiator;
mod memory;

pub use carrier::Carrier;
pub use disk::{Disk, DiskEvent, Operation};
pub use initiator::{Command, Initiator, InitiatorConfig, InitiatorEvent};
pub use lunar_sst::limits::DEPTH_MAX;
pub use lunar_sst::wire::{DATA_MAX, LoginStatus, NAME_MAX};
pub use memory::Bytes;
