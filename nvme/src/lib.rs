//! The NVMe controller: a submission queue entry and its data in, steps and a completion out. Pure, and knows no
//! transport.
//!
//! * [`table`]: the list of commands, one type each, and what derives from it; [`cmd`]: the commands by family
//! * [`log`]: log pages, [`features`]: features, [`identify`]: identify data; one row each
//! * [`subsystem`], [`controller`], [`queue`], [`namespace`]: the device, who uses it, through what, and its disks
//! * [`directory`]: what subsystems there are and who may come in; `space`: who sees which unit as which namespace
//! * [`execute`]: a command from entry to completion; [`admit`]: the one place that decides whether it may run;
//!   `abort`: what ends one early, wherever it is
//! * [`auth`]: how hosts prove their names, and who may come in
//! * `command_set`: what changes of the unit state mean to hosts; [`reserve`]: reservations in the terms of NVMe;
//!   `rewrite`: Format NVM and Sanitize
//! * [`manage`]: namespaces that hosts make
//! * [`attach`]: how a host gets a controller whose queues lie in its memory
//! * [`event`]: what hosts are told unasked; [`errors`]: what is remembered of commands that failed
//! * [`command`], [`connect`]: what transports hand over and get back
//! * [`docs`]: made from the table; [`fuzzing`]: what fuzzers call

mod abort;
pub mod admit;
pub mod attach;
pub mod auth;
pub mod cmd;
pub mod command;
mod command_set;
pub mod connect;
pub mod context;
pub mod controller;
pub mod directory;
pub mod docs;
pub mod errors;
pub mod event;
pub mod execute;
mod fault;
pub mod features;
pub mod fuzzing;
pub mod history;
pub mod host;
pub mod identify;
pub mod limits;
pub mod log;
pub mod manage;
pub mod namespace;
mod namespace_map;
mod namespace_table;
pub mod path;
pub mod plan;
pub mod policy;
pub mod pool;
mod protect;
pub mod queue;
pub mod reserve;
mod rewrite;
pub mod row;
pub mod subsystem;
pub mod table;

pub use attach::Tenant;
pub use command::{Command, Direction, Reply, Sqe, Status};
pub use connect::Caller;
pub use controller::{Controller, Controllers};
pub use directory::{Board, Directory};
pub use namespace_map::{Made, Mapping, NamespaceMap};
pub use path::{Kind, Path};
pub use queue::{Queue, Task, TaskSet};
pub use subsystem::{Alone, Environment, Subsystem, SubsystemConfig};
