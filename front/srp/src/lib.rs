//! The SCSI RDMA Protocol (SRP), target side.
//!
//! From the wire upwards:
//!
//! * [`wire`]: information units; [`names`]: port identifiers
//! * [`buffers`]: memory of initiators, as descriptors name it
//! * [`limits`]: limits of what initiators may cause
//! * [`schema`], [`command_line`]: the section of the configuration, and the options of `lunar serve`
//! * [`directory`]: which initiators see which volumes
//! * [`front`]: the front of the engine: the ports of a configuration, and their sockets
//! * [`serve`]: the glue to RDMA, the reactor and the SCSI device server, and the only module with I/O

pub mod buffers;
pub mod command_line;
pub mod directory;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod limits;
pub mod names;
pub mod schema;
pub mod serve;
pub mod wire;
