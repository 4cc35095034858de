//! Images of Ceph as a back end: the kind `rbd`. Lunar starts `lunar-rbd`, which serves one image as a handler.
//!
//! * [`backend`]: the back end; [`schema`]: its keys; `volume`: an image that is served
//! * [`process`]: the process of an image, and who starts it; `supervisor`: starts it again, and logs what it says
//! * `maker`: makes images, snapshots and clones in the cluster
//! * `waiting`: images whose process has not connected yet; `found`: images that processes have found

pub mod backend;
mod found;
mod maker;
pub mod process;
pub mod schema;
pub(crate) mod supervisor;
mod volume;
mod waiting;

#[cfg(test)]
mod tests;
