//! Volumes of ZFS (zvols) as a back end: the kind `zvol`.
//!
//! The data path is that of the block device of the zvol; a zvol is named by its dataset, because the number of the
//! device changes with each import of its pool. What the device does not tell comes from ZFS:
//!
//! * [`identity`]: which zvol it is, from the statistics of the kernel module
//! * [`program`]: the program `zfs`, which [`maker`] makes zvols, snapshots and clones with, and [`space`] asks for space
//! * [`backend`], [`volume`]: the contract of the engine

pub mod backend;
mod identity;
mod maker;
pub mod program;
pub mod schema;
mod space;
pub(crate) use space::SpaceCell;
mod volume;

#[cfg(test)]
mod tests;
