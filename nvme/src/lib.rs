//! The NVMe controller: a submission queue entry and its data in, steps and a completion out. Pure, and knows no
//! transport.
//!
//! * [`table`]: the list of commands, one type each, and what derives from it; [`cmd`]: the commands by family
//! * [`log`]: log pages, [`features`]: features, [`identify`]: identify data; one row each
//! * [`subsystem`], [`controller`], [`queue`], [`namespace`]: the device, its controllers, their queues, and its
//!   namespaces
//! * [`directory`]: the subsystems and their access rules; `namespace_map`: the units that hosts see, and their
//!   namespace identifiers
//! * [`execute`]: a command from entry to completion; [`admit`]: the admission of commands; `abort`: Abort on any core
//! * [`auth`]: authentication and admission of hosts
//! * `command_set`: the effects of unit state changes on hosts; [`reserve`]: reservations in the terms of NVMe;
//!   `rewrite`: Format NVM and Sanitize
//! * [`namespace_management`]: namespaces that hosts create, from a [`pool`]
//! * [`connect`]: controllers and queues of NVMe over Fabrics; [`memory_based`]: controllers whose queues are in host
//!   memory
//! * [`event`]: asynchronous events; [`errors`]: the Error Information log
//! * [`command`]: the input and the output of transports; [`fused`]: which commands of a queue are executed together
//! * [`docs`]: the page of supported commands; [`fuzzing`]: the rig of fuzz targets

mod abort;
pub mod admit;
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
pub mod fused;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod history;
pub mod host;
pub mod identify;
pub mod limits;
pub mod log;
pub mod memory_based;
pub mod namespace;
pub mod namespace_management;
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

pub use command::{Command, Direction, Reply, Sqe, Status};
pub use connect::Caller;
pub use controller::{Controller, Controllers};
pub use directory::{Directory, SubsystemRegistry};
pub use memory_based::Tenant;
pub use namespace_map::{Mapping, NamespaceMap, NamespaceSharing};
pub use path::{Kind, Path};
pub use queue::{Queue, Task, TaskSet};
pub use subsystem::{SingleCoreServices, Subsystem, SubsystemConfig, SubsystemServices};
