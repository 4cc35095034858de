//! A store on an NVMe namespace of this machine, or on a partition of it, by commands of its own (`/dev/ngXnY`), past
//! the block layer. The kernel goes on using the namespace.
//!
//! * [`backend`]: such namespaces as a back end of the engine
//! * `resolve`: the nodes of a namespace, and where a partition of it is
//! * `identify`: what the controller says about itself and the namespace
//! * `open`: what is checked once, when the namespace is opened: use by others, format, limits
//! * `volume`: an open namespace for all cores, and whether it is still there
//! * `store`: the requests of one core as commands
//! * `status`: statuses of NVMe in the terms of stores

pub mod backend;
mod error;
mod identify;
mod open;
mod resolve;
pub mod schema;
mod status;
mod store;
mod volume;

#[cfg(test)]
mod store_tests;
