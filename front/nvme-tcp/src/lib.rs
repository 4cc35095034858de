//! NVMe/TCP, controller side, without I/O: bytes and time go in, bytes and actions come out.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the PDU formats, digests
//! * [`session`]: the machine of one connection, which is one queue: framing, commands, data
//! * [`pdu_queue`]: what waits to be sent
//! * [`tls`]: secure channels
//! * [`config`]: settings and limits
//! * `fuzzing`: entry points of the fuzz targets, and a host for tests, with the feature `testing` only
//! * [`serve`]: the glue to the reactor and the controller: the one module with I/O

pub mod config;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod pdu_queue;
pub mod serve;
pub mod session;
pub mod tls;
pub mod wire;
