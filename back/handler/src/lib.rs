//! A store whose data another process serves: its handler, which connects to a socket of the volume. The protocol is
//! that of the crate `lunar-handler`.
//!
//! * [`backend`]: handlers as a back end of the engine; [`schema`]: its keys; `error`: refusals with advice
//! * `volume`: a volume that is served, for all cores; `shared`: its state
//! * `control`: the thread that has the socket and the connection
//! * `core`: the commands of one core; `queue`: its rings and the memory of their data; `places`: parts of that memory
//!
//! A handler may die, hang and lie at any time. Nothing that it writes is trusted, and:
//!
//! * Commands without an answer are kept, and sent to the next handler. A client gets an error only after
//!   `restart_time`.
//! * A command that is not answered within `command_timeout` fails. Its slot and its memory stay in use until the
//!   handler answers, because the handler may still write there. Until then the handler gets no new command on any
//!   core: it could execute the late command after a newer one, and overwrite data that was acknowledged later.
//! * A handler that breaks the protocol loses its connection. The next connection has new memory.

pub mod backend;
mod control;
mod core;
mod error;
mod places;
mod queue;
pub mod schema;
mod shared;
mod volume;

#[cfg(test)]
mod tests;
