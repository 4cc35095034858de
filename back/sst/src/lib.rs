//! Volumes of another Lunar, over SCSI over Scheduled Transfer, as a back end of the engine: the kind `st`.
//!
//! * [`backend`]: the kind; [`schema`]: its keys; `address`: where a volume is; `error`: refusals with advice
//! * `life`: a volume that is open, for all cores, and its thread; `shared`: the state that all threads see; `found`:
//!   the volumes that are open, and those that could not be opened yet
//! * `service`: the thread with the links and the connection; `disk`: the logical unit behind it, without I/O;
//!   `facts`: its properties; `scsi`: commands, and sense data
//! * `core`: the commands of one core
//!
//! The target may be killed, and the network may fail, at any time:
//!
//! * Commands without an answer are kept. The next login ends the nexus before it, and with it all commands that the
//!   target may still have; only then they are sent again. So a command is never executed after a later one.
//! * Before any of them is sent, the logical unit shows that it is the same one as before. Another one gets no command.
//! * A command that could not be executed for `remote-timeout` fails. Later commands wait for a login or for the end of
//!   its task, so it is not executed after them either.

mod address;
pub mod backend;
mod core;
mod disk;
mod error;
mod facts;
mod found;
mod life;
pub mod schema;
mod scsi;
mod service;
mod shared;
