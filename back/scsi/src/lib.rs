//! SCSI devices of this machine, to which the commands of initiators are forwarded: disks, tapes, changers and all
//! other device types that the kernel has a generic node for (`/dev/sgN`).
//!
//! * [`backend`]: the kind `scsi`; [`schema`]: its keys
//! * `resolve`: the generic node of a path; `identify`: the identity of a device, and what it says about itself
//! * `device`: a device that is served, for all cores: it may vanish and come back
//! * `connection`: the commands of one core; `reply`: the ends of commands in the terms of SCSI
//! * `timeouts`: the time-outs that a device reports

pub mod backend;
mod connection;
mod device;
mod error;
mod identify;
mod reply;
mod resolve;
pub mod schema;
mod timeouts;

#[cfg(test)]
mod tests;
