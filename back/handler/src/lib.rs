//! Volumes and SCSI devices that another process serves: its handler, which connects to a socket of the volume. The
//! protocol is that of the crate `lunar-handler`.
//!
//! * [`backend`]: handlers as a back end of the engine; [`schema`]: its keys; `error`: refusals with advice
//! * `volume`: a volume or device that is served, for all cores; `shared`: its state; `known`: that of a device
//! * `life`: its socket, until the last user has gone; `control`: the thread that has the socket and the connection
//! * `core`: the commands of one core for blocks; `commands` and `job`: for a SCSI device; `lane`: what both have in
//!   common; `queue`: its rings and the memory of their data; `places`: parts of that memory
//! * `space`: the space of the pool of its data
//! * [`rbd`]: images of Ceph, whose handlers Lunar starts
//!
//! A handler may die, hang and lie at any time. Nothing that it writes is trusted, and:
//!
//! * Commands for blocks without an answer are kept, and sent to the next handler. A client gets an error only after
//!   `restart_time`. SCSI commands may not be repeated: they end with ABORTED COMMAND. Commands that were admitted for
//!   one handler never reach the next one, because every nexus has to learn first that the device begins anew.
//! * A command that is not answered within `command_timeout` fails. Its slot and its memory stay in use until the
//!   handler answers, because the handler may still write there. Until then the handler gets no new command on any
//!   core: it could execute the late command after a newer one, and overwrite data that was acknowledged later.
//! * A handler that breaks the protocol loses its connection. The next connection has new memory.

pub mod backend;
mod commands;
mod control;
mod core;
mod error;
mod job;
mod known;
mod lane;
mod life;
mod places;
mod queue;
pub mod rbd;
pub mod schema;
mod shared;
mod space;
mod volume;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod extent_tests;
#[cfg(test)]
mod mixed_tests;
#[cfg(test)]
mod tests;
