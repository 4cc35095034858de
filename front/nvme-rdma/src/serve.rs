//! The glue between RDMA, the controllers and the reactor.
//!
//! * `endpoint`: a port on its socket: requests for connections, and their ends
//! * `queue_pair`: a connection, which is one queue; `connect`: how it gets a controller, and its end
//! * `job`: a command, and the path of its data
//! * `core`: what all ports of a core share
//!
//! The ports of a core, and the end of service, are those of `lunar_engine::link_ports`.

mod connect;
pub(crate) mod core;
pub(crate) mod endpoint;
mod job;
mod queue_pair;

use lunar_engine::link_ports::PortState;
use lunar_rdma::address::PortAddress;
pub use lunar_rdma::socket::Opened;
use std::sync::Arc;

/// The ports of NVMe over RDMA.
#[derive(Debug)]
pub struct RdmaPorts;

/// A port in a published configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortView {
    /// The name of its section.
    pub name: Arc<str>,
    /// Its number among the portals of the process.
    pub number: u32,
    /// The tag of its portal group.
    pub group: u16,
}

/// The state that all cores share.
pub(crate) type Common = PortState<String, PortAddress, Opened>;
