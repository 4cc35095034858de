//! DH-HMAC-CHAP: how a host proves its name in band, and the subsystem its own (NVMe Base 2.0 8.13.5).
//!
//! * [`key`]: keys as they are written; [`hash`] and [`group`]: what is computed; [`wire`]: the messages
//! * [`psk`]: keys of secure channels
//! * [`exchange`]: the exchange of one queue, as a value
//! * [`guard`]: who may come in, how often he may fail, and who is told
//! * [`authentication`]: the state of one queue, and what it needs from the program around it
//! * [`host`]: the other side, for tests and fuzzers

pub mod authentication;
pub mod exchange;
pub mod group;
pub mod guard;
pub mod hash;
pub mod host;
mod in_band;
pub mod key;
pub mod psk;
pub mod wire;

pub use authentication::{Outside, Proof};
