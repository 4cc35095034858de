//! The SCSI device server: a command and its data in, steps and a status out. Pure, and knows no transport.
//!
//! * [`table`]: the list of commands, one type each, and what derives from it; [`cmd`]: the commands by family
//! * [`copy`]: third-party copies, their lists and their ends
//! * [`vpd`], [`mode`], [`log`]: pages, one row each
//! * [`target`], [`nexus`], [`lu`]: the device, who uses it, its disks; [`access`]: through which ports;
//!   [`lun_map`]: which of them, by which numbers
//! * [`information`]: what initiators write on a disk
//! * [`protect`]: protection information, as commands ask for it
//! * [`reserve`]: reservations, as SCSI speaks of them
//! * [`execute`]: a command from CDB to status; [`admit`]: the one place that decides whether it may run
//! * [`task`], [`manage`]: tasks and their management; [`order`]: who runs when; [`attention`]: unit attentions
//! * [`buffers`]: what READ BUFFER and WRITE BUFFER are about
//! * [`command`], [`lun`], [`sense`]: what transports hand over and get back
//! * [`renew`]: how FORMAT UNIT and SANITIZE write a whole medium anew
//! * [`thin`]: how much space disks take, and who is told
//! * [`tray`]: media that come and go
//! * [`docs`], [`fuzzing`]: made from the table

pub mod access;
pub mod admit;
pub mod attention;
pub mod buffers;
pub mod cmd;
pub mod command;
pub mod context;
pub mod copy;
pub mod docs;
pub mod execute;
mod fault;
pub mod fuzzing;
pub mod information;
pub mod log;
pub mod lu;
pub mod lun;
pub mod lun_map;
pub mod manage;
pub mod mode;
pub mod nexus;
pub mod order;
pub mod plan;
pub mod protect;
pub mod renew;
pub mod reserve;
pub mod sense;
pub mod table;
pub mod target;
pub mod task;
pub mod thin;
pub mod tray;
pub mod vpd;

pub use command::{Cdb, Command, Reply, Status, TaskAttribute};
pub use copy::tokens::Tokens;
pub use lun::Lun;
pub use lun_map::{LunMap, Mapping};
pub use lunar_core::reserve::SharedUnits;
pub use nexus::Nexus;
pub use sense::{Asc, Sense, SenseData, SenseKey};
pub use target::{Clock, Everywhere, Mail, Nowhere, PortConfig, Target, TargetConfig};
pub use task::{Task, TaskFunction, TaskResponse, TaskSet};
