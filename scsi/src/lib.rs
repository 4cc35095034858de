//! The SCSI device server: a command and its data in, steps and a status out. Pure, and knows no transport.
//!
//! * [`table`]: the list of commands, one type each, and everything that derives from it; [`cmd`]: the commands by
//!   family
//! * [`copy`]: third-party copies, their lists and their ends
//! * [`vpd`], [`mode`], [`log`]: pages, one row each
//! * [`target`], [`nexus`], [`lu`]: the device, its users, its logical units; [`lun_map`]: which of them a user sees
//! * [`change`]: the state of a unit that only SCSI has; `command_set`: the effects of unit changes on nexuses
//! * [`medium`]: sense data of media that cannot be used; `access`: asymmetric access states in the codes of SCSI
//! * [`information`]: identifying information that initiators store
//! * [`protect`]: protection information in commands
//! * [`reserve`]: reservations in the terms of SCSI
//! * [`execute`]: a command from CDB to status; [`admit`]: the one place that decides whether it may run
//! * [`task`], [`manage`]: tasks and their management; [`order`]: the order of commands; [`attention`]: unit
//!   attentions
//! * [`buffers`]: the buffers of READ BUFFER and WRITE BUFFER
//! * [`command`], [`lun`], [`sense`]: the interface to transports
//! * `rewrite`: FORMAT UNIT and SANITIZE; `removal`: removable media
//! * [`thin`], [`threshold`]: the space that units use, and its thresholds
//! * [`docs`], [`fuzzing`]: made from the table

mod access;
pub mod admit;
pub mod attention;
pub mod buffers;
pub mod change;
pub mod command;
mod command_set;
pub mod context;
pub mod copy;
pub mod device_types;
pub mod docs;
pub mod execute;
mod fault;
mod fit;
pub mod forward;
pub mod forwarding;
pub mod information;
mod inventory;
pub mod lu;
pub mod lun;
pub mod lun_map;
pub mod manage;
pub mod medium;
pub mod mmc;
pub mod nexus;
pub mod order;
#[cfg(test)]
mod other_core;
pub mod page;
pub mod pages;
pub mod peripheral;
pub mod plan;
pub mod policy;
pub mod refusal;
mod removal;
pub mod reserve;
mod rewrite;
pub mod row;
pub mod sbc;
pub mod sense;
pub mod spc;
pub mod target;
pub mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use command::{Cdb, Command, Reply, Status, TaskAttribute};
pub use copy::tokens::Tokens;
pub use lun::Lun;
pub use lun_map::{LunMap, Mapping};
pub use nexus::Nexus;
pub use sense::{Asc, Sense, SenseData, SenseKey};
pub use target::{Clock, PortConfig, Target, TargetConfig};
pub use task::{Task, TaskFunction, TaskResponse, TaskSet};
