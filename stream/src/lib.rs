//! What the transports over a byte stream have in common: their fronts say what a protocol does with bytes, and this
//! is how the bytes come and go.
//!
//! * [`protocol`]: what a session is to its connection: bytes and time in, bytes and actions out
//! * [`input`]: bytes to PDUs; [`send_queue`]: what waits to be sent; [`digest`]: CRC32C
//! * [`record_layer`]: what lies between its bytes and the wire
//! * [`serve`]: the glue to the reactor: a core's connections, how each receives, sends and ends, and the ways of a
//!   command's data; the one module with I/O

pub mod digest;
pub mod input;
pub mod protocol;
pub mod record_layer;
pub mod send_queue;
pub mod serve;
