//! The glue between sessions and RDMA.
//!
//! * `endpoint`: a portal on its socket: requests for connections, and their ends
//! * `carrier`: a connection, as the carrier of a session
//! * `core`: what all portals of a core share
//!
//! The portals of a core, and the end of service, are those of `lunar_engine::link_ports`.

mod carrier;
pub(crate) mod core;
pub(crate) mod endpoint;

use lunar_engine::link_ports::PortState;
use lunar_rdma::address::PortAddress;
pub(crate) use lunar_rdma::socket::Opened;
use std::sync::Arc;

/// The portals of iSER.
#[derive(Debug)]
pub struct IserPorts;

/// A portal in a published configuration.
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
