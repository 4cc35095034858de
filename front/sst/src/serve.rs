//! The glue between Scheduled Transfer, the SCSI device server and the reactor.
//!
//! * `endpoint`: a port on its link; `connection`: a connection, its regions and Transfers
//! * `target`: the initiators of a port and their commands; `job`: a command, and the path of its data
//! * `core`: what all ports of a core share
//!
//! The ports of a core, and the end of service, are those of `lunar_engine::link_ports`.

mod connection;
pub(crate) mod core;
pub(crate) mod endpoint;
mod job;
mod target;

use lunar_engine::link_ports::PortState;
use lunar_st::port::{LinkSpec, OpenedPort};
use std::sync::Arc;

/// The ports of SCSI over Scheduled Transfer.
#[derive(Debug)]
pub struct StPorts;

/// The state that all cores share.
pub(crate) type Common = PortState<Arc<str>, LinkSpec, OpenedPort>;
