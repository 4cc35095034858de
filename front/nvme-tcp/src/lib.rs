//! The NVMe/TCP controller side. Everything but [`serve`] is without I/O: bytes and time go in, bytes and actions come
//! out.
//!
//! From the wire upwards:
//!
//! * [`wire`]: PDU formats, digests
//! * [`session`]: one connection, which is one queue: framing, commands, data
//! * [`pdu_queue`]: PDUs that wait to be sent
//! * [`tls`]: TLS with pre-shared keys
//! * [`config`]: limits of queues, data and time
//! * [`serve`]: connects sessions to the reactor and to the controllers; the only module with I/O
//! * [`front`]: the front of the engine: portals of a configuration, controllers for operators;
//!   `dry_run`: Connect without effect, for operators
//! * `fuzzing`: entry points of the fuzz targets, and a host for tests, with the feature `testing` only

pub mod command_line;
pub mod config;
mod dry_run;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod pdu_queue;
pub mod schema;
pub mod serve;
pub mod session;
pub mod tls;
pub mod wire;
