//! Assembles a storage target: fronts, stores, unit state and cores, in one way, from a configuration.
//!
//! * [`front`]: the contract of a transport
//! * [`backend`]: the contract of a kind of store
//!
//! The engine knows no transport and no store by name. Their crates implement the two contracts, and the registries of
//! the program list them.

pub mod backend;
pub mod front;
