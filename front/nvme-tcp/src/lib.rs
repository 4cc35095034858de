//! NVMe/TCP, controller side, without I/O: bytes and time go in, bytes and actions come out.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the PDU formats, digests
//! * [`session`]: the machine of one connection, which is one queue: framing, commands, data
//! * [`pdu_queue`]: what waits to be sent
//! * [`tls`]: secure channels
//! * [`config`]: settings and limits
//! * [`fuzzing`]: what fuzzers call
//! * [`serve`]: the glue to the reactor and the controller: the one module with I/O

pub mod config;
pub mod fuzzing;
pub mod pdu_queue;
pub mod serve;
pub mod session;
pub mod tls;
pub mod wire;
