//! SCSI over Scheduled Transfer (SST), target side. **The layout is private (version 1), as that of Scheduled Transfer
//! here is: neither interoperates with ANSI NCITS 337-2000 or with the drafts of SST.**
//!
//! From the wire upwards:
//!
//! * [`wire`]: the formats of logins, commands and responses
//! * [`exchange`]: the commands of an initiator and their Transfers, without I/O
//! * [`limits`]: limits of what initiators may cause
//! * [`schema`], [`links`], [`command_line`]: the section of the configuration, its link, and the options of `lunar
//!   serve`
//! * [`directory`]: which initiators see which volumes
//! * [`front`]: the front of the engine: the ports of a configuration, and their links
//! * [`serve`]: the glue to Scheduled Transfer, the reactor and the SCSI device server, and the only module with I/O

pub mod command_line;
pub mod directory;
pub mod exchange;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod limits;
pub mod links;
pub mod schema;
pub mod serve;
pub mod wire;
