//! The glue between links, the SCSI device server and the reactor.
//!
//! * [`exchange_port`]: the contract between a port and the protocol above it
//! * `endpoint`: a port on its link; `outbox`: frames of exchanges that wait to be sent
//! * `fcp`: the Fibre Channel Protocol of a port: its initiators and their commands
//! * `initiator`: an initiator that is logged in; `job`: a command, and the path of its data
//! * `core`: what all ports of a core share
//!
//! The ports of a core, and the end of service, are those of `lunar_engine::link_ports`.

pub(crate) mod core;
pub(crate) mod endpoint;
pub mod exchange_port;
mod fcp;
mod initiator;
mod job;
mod outbox;

use crate::wire::names::Wwn;
use lunar_engine::link_ports::PortState;
use lunar_link::{LinkConfig, OpenedLink};

/// The ports of Fibre Channel over Ethernet.
#[derive(Debug)]
pub struct FcoePorts;

/// The state that all cores share.
pub(crate) type Common = PortState<Wwn, LinkConfig, OpenedLink>;
