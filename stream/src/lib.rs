//! The common part of transports over a byte stream (iSCSI, NVMe/TCP). A front implements its protocol; this crate
//! receives, sends, queues and ends.
//!
//! * [`protocol`]: the interface of a session: bytes and time in, bytes and actions out
//! * [`input`]: reads PDUs from bytes; [`send_queue`]: bytes that wait to be sent; [`digest`]: CRC32C
//! * [`record_layer`]: encryption between a session and the socket
//! * [`serve`]: the connections of a core over the reactor, and the data path of a command; the only module with I/O

pub mod digest;
pub mod input;
pub mod protocol;
pub mod record_layer;
pub mod send_queue;
pub mod serve;
