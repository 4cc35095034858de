//! SRP as a front of the engine.

use crate::command_line::SrpOptions;
use crate::directory::PortView;
use crate::names::PortId;
use crate::schema::{FRONT, Srp};
use crate::serve::core::Core;
use crate::serve::endpoint::Endpoint;
use crate::serve::{Opened, SrpPorts};
use lunar_control::Config;
use lunar_engine::error::EngineError;
use lunar_engine::front::FrontPort;
use lunar_engine::link_ports::{PortProtocol, PortsFront, PortsOnCore, RdmaSection};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_rdma::address::PortAddress;
use lunar_rdma::socket::NoSocket;
use std::io;
use std::path::PathBuf;

/// The name of the front.
pub const NAME: &str = crate::schema::WORD;
/// PROTOCOL IDENTIFIER of SRP (SPC-4 7.6.1).
const PROTOCOL_SRP: u8 = 4;

/// SRP, in the registry.
pub type SrpFront = PortsFront<SrpPorts>;

/// SRP on a core.
pub type SrpCore = PortsOnCore<SrpPorts>;

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &SrpFront { open: lunar_rdma::socket::open }, schema: &FRONT, options: Some(&SrpOptions) };

impl PortProtocol for SrpPorts {
    const NAME: &'static str = NAME;
    type Section = Srp;
    type Settings = PortAddress;
    type Opened = Opened;
    type View = PortView;
    type Initiator = PortId;
    type Core = Core;
    type Endpoint = Endpoint;

    fn settings(port: &Srp) -> Result<PortAddress, EngineError> {
        port.rdma().address().map_err(EngineError::front)
    }

    fn core(address: &PortAddress, cores: usize) -> Option<usize> {
        Some(address.core(cores))
    }

    fn not_opened(address: &PortAddress, why: io::Error) -> EngineError {
        EngineError::front(NoSocket { address: address.clone(), why })
    }

    fn folders(address: &PortAddress) -> Vec<PathBuf> {
        address.folders()
    }

    fn devices(address: &PortAddress) -> Vec<PathBuf> {
        address.devices()
    }

    fn preload(address: &PortAddress) {
        address.preload();
    }

    fn memory(address: &PortAddress) -> u64 {
        address.memory()
    }

    fn port(name: &str, port: &Srp, config: &Config) -> Option<FrontPort> {
        let names = port.names(name, config)?;
        let (group, name) = (port.group(config)?, names.port.scsi());
        Some(FrontPort { name, device: names.device, group, protocol: PROTOCOL_SRP })
    }

    fn view(name: &str, port: &Srp, published: &PublishedConfig<'_>) -> Option<PortView> {
        PortView::of(name, port, published)
    }

    fn session_id(port: &str, initiator: &PortId) -> String {
        format!("{NAME}-{initiator}-{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_names() {
        let initiator = PortId(0x5054_00ff_fe12_3402_u128.to_be_bytes());
        assert_eq!(SrpPorts::session_id("lan", &initiator), "srp-0x0000000000000000505400fffe123402-lan");
    }
}
