//! Fibre Channel over Ethernet, target side: SCSI targets for initiators without a fabric (FC-BB-6 VN2VN).
//!
//! From the wire upwards:
//!
//! * [`wire`]: the formats of frames
//! * [`port`]: discovery, logins and exchanges, without I/O
//! * [`limits`]: limits of what other ports may cause
//! * [`schema`], [`links`], [`command_line`]: the section of the configuration, its link and its names, and the options
//!   of `lunar serve`
//! * [`directory`]: which initiators see which volumes
//! * [`front`]: the front of the engine: the ports of a configuration, and their links
//! * [`serve`]: the glue to the reactor and the SCSI device server, and the only module with I/O

pub mod command_line;
pub mod directory;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod limits;
pub mod links;
pub mod port;
pub mod schema;
pub mod serve;
pub mod wire;
