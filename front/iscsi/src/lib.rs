//! iSCSI (RFC 7143), target side, without I/O: bytes and time go in, bytes and actions come out.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the PDU formats, additional header segments, digests
//! * [`text`]: `key=value` text

pub mod text;
pub mod wire;
