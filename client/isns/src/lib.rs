//! An iSNS client (RFC 4171) without I/O that registers targets and their portals with an iSNS server, where initiators
//! find them.
//!
//! * [`wire`]: messages and their attributes
//! * [`registration`]: a registration, and the requests that change one registration into another
//! * [`client`]: the protocol state machine: bytes and time in, actions out
//! * [`fuzzing`]: entry point of the fuzz target

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod client;
pub mod fuzzing;
pub mod registration;
pub mod wire;

pub use client::{Action, Client, Event};
pub use registration::{Node, Registration};
