//! A handler that serves images of Ceph (RBD).
//!
//! * [`args`]: the command line
//! * [`library`]: librados and librbd
//! * [`claim`]: the exclusive lock
//! * [`serve`]: the loop
//! * [`make`]: makes images and snapshots for Lunar
//!
//! It is a program of its own: the libraries have dozens of threads, end the process when they find a fault, and are
//! under the LGPL.

pub mod args;
pub mod claim;
pub mod library;
pub mod make;
pub mod serve;
