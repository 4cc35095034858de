//! The SCSI device server: a command and its data in, steps and a status out. Pure, and knows no transport.
//!
//! * [`device_types`]: the device types, each with its table of commands; [`row`]: a row of these tables; [`policy`]:
//!   the policy of a command; [`spc`], [`sbc`], [`mmc`]: the commands and pages of all device types, of disks, and of
//!   CD and DVD drives
//! * [`execute`]: a command of an emulated logical unit from CDB to status; [`execute_forwarded`]: a command that goes
//!   to a device; `execute_others`: a command of an emulated logical unit that a handler has; [`device_server`]: the
//!   interface to devices and handlers; [`admit`]: the one place that decides whether a command may run
//! * [`target`], [`nexus`], [`lu`]: the target device, its nexuses, its logical units; [`lun_map`]: which of them a
//!   nexus sees
//! * [`change`]: the state of a unit that only SCSI has; `command_set`: the effects of unit changes on nexuses
//! * [`copy`]: third-party copies, their lists and their ends
//! * [`page`], [`pages`]: the lists of pages and what they have in common
//! * [`medium`]: sense data of media that cannot be used; `access`: asymmetric access states in the codes of SCSI
//! * [`information`]: identifying information that initiators store
//! * [`reserve`]: reservations in the terms of SCSI
//! * [`task`], [`task_management`]: tasks and their management; [`order`]: the order of commands; [`attention`]: unit
//!   attentions
//! * [`buffers`]: the buffers of READ BUFFER and WRITE BUFFER
//! * [`command`], [`lun`], [`sense`]: the interface to transports; [`fcp`]: formats that more than one of them carries
//! * `rewrite`: FORMAT UNIT and SANITIZE; `removal`: removable media
//! * [`docs`]: pages made from the tables; [`written`]: commands as an operator writes them

mod access;
pub mod admit;
pub mod attention;
pub mod buffers;
pub mod change;
pub mod command;
mod command_set;
pub mod context;
pub mod copy;
pub mod device_server;
pub mod device_types;
pub mod docs;
pub mod execute;
pub mod execute_forwarded;
mod execute_others;
mod fault;
pub mod fcp;
mod fit;
pub mod forwarding;
pub mod information;
mod inventory;
pub mod lu;
pub mod lun;
pub mod lun_map;
pub mod medium;
pub mod mmc;
pub mod nexus;
pub mod operation_code;
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
pub mod task_management;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod written;

pub use command::{Cdb, Command, Reply, Status, TaskAttribute};
pub use copy::tokens::Tokens;
pub use lun::Lun;
pub use lun_map::{LunMap, Mapping};
pub use nexus::Nexus;
pub use sense::{Asc, Sense, SenseData, SenseKey};
pub use target::{Clock, PortConfig, Target, TargetConfig};
pub use task::{Task, TaskFunction, TaskResponse, TaskSet};
