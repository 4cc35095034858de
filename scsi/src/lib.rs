//! The SCSI device server: a command and its data in, steps and a status out. Pure, and knows no transport.

pub mod command;
pub mod lun;
pub mod sense;
pub mod target;
pub mod task;

pub use command::{Cdb, Command, Reply, Status, TaskAttribute};
pub use lun::Lun;
pub use sense::{Asc, Sense, SenseData, SenseKey};
pub use target::{Everywhere, Mail, Nexus, Nowhere, PortConfig, Target, TargetConfig};
pub use task::{Task, TaskFunction, TaskResponse, TaskSet};
