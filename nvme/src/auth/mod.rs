//! DH-HMAC-CHAP: in-band authentication of hosts and of the subsystem (NVMe Base 2.0 8.13.5).
//!
//! * [`key`]: keys in their interchange format; [`hash`] and [`group`]: the computations; [`wire`]: the messages
//! * [`psk`]: pre-shared keys of TLS
//! * [`exchange`]: the exchange of one queue, as a value
//! * [`authenticator`]: admission of hosts, limits of failures, audit records
//! * [`authentication`]: the state of one queue, and what it needs from the program around it
//! * [`host`]: the other side, for tests and fuzzers

pub mod authentication;
pub mod authenticator;
pub mod exchange;
pub mod group;
pub mod hash;
pub mod host;
mod in_band;
pub mod key;
pub mod psk;
pub mod wire;

pub use authentication::{AuthServices, QueueAuthentication};
