//! Volumes of ZFS (zvols) as a back end: the kind `zvol`.
//!
//! The data path is that of the block device of the zvol; a zvol is named by its dataset, because the number of the
//! device changes with each import of its pool. Other properties come from ZFS:
//!
//! * [`program`]: the program `zfs`
//! * [`identity`], [`space`]: the number of a zvol, and its space, which it tells
//! * [`maker`]: zvols, snapshots and clones, which it makes
//! * [`backend`], [`volume`]: the contract of the engine

pub mod backend;
mod identity;
mod maker;
pub mod program;
pub mod schema;
mod space;
pub(crate) use space::Measured;
mod volume;

#[cfg(test)]
mod tests;
