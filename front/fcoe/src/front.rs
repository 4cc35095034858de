//! Fibre Channel over Ethernet as a front of the engine.

use crate::command_line::FcoeOptions;
use crate::directory::PortView;
use crate::links;
use crate::schema::Fcoe;
use crate::serve::FcoePorts;
use crate::serve::core::Core;
use crate::serve::endpoint::Endpoint;
use crate::wire::names::Wwn;
use lunar_control::Config;
use lunar_engine::error::EngineError;
use lunar_engine::front::FrontPort;
use lunar_engine::link_ports::{PortProtocol, PortsFront, PortsOnCore};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_link::{LinkConfig, OpenedLink};
use std::path::PathBuf;

/// The name of the front.
pub const NAME: &str = crate::schema::WORD;
/// PROTOCOL IDENTIFIER of the Fibre Channel Protocol (SPC-4 7.6.1).
const PROTOCOL_FCP: u8 = 0;

/// Fibre Channel over Ethernet, in the registry.
pub type FcoeFront = PortsFront<FcoePorts>;

/// Fibre Channel over Ethernet on a core.
pub type FcoeCore = PortsOnCore<FcoePorts>;

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &FcoeFront { open: OpenedLink::open }, schema: &links::FRONT, options: Some(&FcoeOptions) };

impl PortProtocol for FcoePorts {
    const NAME: &'static str = NAME;
    type Section = Fcoe;
    type Settings = LinkConfig;
    type Opened = OpenedLink;
    type View = PortView;
    type Initiator = Wwn;
    type Core = Core;
    type Endpoint = Endpoint;

    fn settings(port: &Fcoe) -> Result<LinkConfig, EngineError> {
        links::config(port).map_err(EngineError::front)
    }

    fn folders(link: &LinkConfig) -> Vec<PathBuf> {
        link.address.folders()
    }

    fn loads_program(link: &LinkConfig) -> bool {
        link.address.loads_program()
    }

    fn port(name: &str, port: &Fcoe, config: &Config) -> Option<FrontPort> {
        let names = port.names(name, config)?;
        let (group, name) = (port.group(config)?, names.scsi());
        Some(FrontPort { name, device: names.device, group, protocol: PROTOCOL_FCP })
    }

    fn view(name: &str, port: &Fcoe, published: &PublishedConfig<'_>) -> Option<PortView> {
        PortView::of(name, port, published)
    }

    fn session_id(port: &str, initiator: &Wwn) -> String {
        format!("{NAME}-{initiator}-{port}").replace(':', "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_names() {
        assert_eq!(FcoePorts::session_id("lan", &Wwn(0x2000_5254_0012_3402)), "fcoe-2000525400123402-lan");
    }
}
