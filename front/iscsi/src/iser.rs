//! iSER (RFC 7145): the PDUs of iSCSI sessions over RDMA. The session is that of TCP; a data mover (RFC 5047) takes the
//! place of the byte stream.
//!
//! * [`wire`]: the header before each PDU, hello messages, private data of the connection manager
//! * [`mover`]: the data mover: messages in, PDUs out; PDUs in, messages and accesses to memory out
//! * [`schema`], [`command_line`]: the section of the configuration, and the option of `lunar serve`
//! * [`front`]: the front of the engine: the ports of a configuration

pub mod command_line;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod mover;
pub mod schema;
pub mod wire;

#[cfg(test)]
mod session_tests;
