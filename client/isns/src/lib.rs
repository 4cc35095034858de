//! iSNS (RFC 4171), the side that registers: targets, and the portals at which they are found, are told to a server
//! that initiators ask.
//!
//! * [`wire`]: messages, and the attributes in them
//! * [`registration`]: what is registered, and the requests that bring a server from one registration to another
//! * [`client`]: the conversation with a server, as a value: bytes and time in, bytes and words out
//! * [`fuzzing`]: any bytes from a server

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod client;
pub mod fuzzing;
pub mod registration;
pub mod wire;

pub use client::{Action, Client, Event};
pub use registration::{Node, Registration};
