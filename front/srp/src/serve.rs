//! The glue between RDMA, the SCSI device server and the reactor.
//!
//! * `endpoint`: a port on its socket: logins and information units
//! * `sessions`: the initiators of a port, and the end of their nexuses
//! * `channel`: a channel of an initiator: its credit, and what is read and written over it
//! * `commands`: commands and task management; `job`: a command, and the path of its data
//! * `core`: what all ports of a core share
//!
//! The ports of a core, and the end of service, are those of `lunar_engine::link_ports`.

mod channel;
mod commands;
pub(crate) mod core;
pub(crate) mod endpoint;
mod job;
mod sessions;

use crate::names::PortId;
use lunar_engine::link_ports::PortState;
use lunar_rdma::address::PortAddress;
pub use lunar_rdma::socket::Opened;

/// The ports of SRP.
#[derive(Debug)]
pub struct SrpPorts;

/// The state that all cores share.
pub(crate) type Common = PortState<PortId, PortAddress, Opened>;
