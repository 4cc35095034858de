//! SCSI over Scheduled Transfer as a front of the engine.

use crate::command_line::StOptions;
use crate::directory::PortView;
use crate::links;
use crate::schema::St;
use crate::serve::StPorts;
use crate::serve::core::Core;
use crate::serve::endpoint::Endpoint;
use lunar_control::Config;
use lunar_engine::error::EngineError;
use lunar_engine::front::FrontPort;
use lunar_engine::link_ports::{PortProtocol, PortsFront, PortsOnCore};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_st::port::{LinkSpec, OpenedPort};
use std::path::PathBuf;
use std::sync::Arc;

/// The name of the front.
pub const NAME: &str = crate::schema::WORD;
/// PROTOCOL IDENTIFIER of iSCSI (SPC-4 7.6.1): Scheduled Transfer has none, and ports have names as those of iSCSI.
const PROTOCOL_ISCSI: u8 = 5;

/// SCSI over Scheduled Transfer, in the registry.
pub type StFront = PortsFront<StPorts>;

/// SCSI over Scheduled Transfer on a core.
pub type StCore = PortsOnCore<StPorts>;

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &StFront { open: LinkSpec::open }, schema: &links::FRONT, options: Some(&StOptions) };

impl PortProtocol for StPorts {
    const NAME: &'static str = NAME;
    type Section = St;
    type Settings = LinkSpec;
    type Opened = OpenedPort;
    type View = PortView;
    type Initiator = Arc<str>;
    type Core = Core;
    type Endpoint = Endpoint;

    fn settings(port: &St) -> Result<LinkSpec, EngineError> {
        links::config(port).map_err(EngineError::front)
    }

    fn folders(link: &LinkSpec) -> Vec<PathBuf> {
        match link {
            LinkSpec::Frames(link) => link.address.folders(),
            LinkSpec::Udp(_) => Vec::new(),
        }
    }

    fn loads_program(link: &LinkSpec) -> bool {
        matches!(link, LinkSpec::Frames(link) if link.address.loads_program())
    }

    fn port(name: &str, port: &St, config: &Config) -> Option<FrontPort> {
        let names = port.names(name, config)?;
        let group = port.group(config)?;
        Some(FrontPort { name: names.port, device: names.device, group, protocol: PROTOCOL_ISCSI })
    }

    fn view(name: &str, port: &St, published: &PublishedConfig<'_>) -> Option<PortView> {
        PortView::of(name, port, published)
    }

    fn session_id(port: &str, initiator: &Arc<str>) -> String {
        format!("{NAME}-{initiator}-{port}").replace(':', "-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_names() {
        let initiator = Arc::from("iqn.2026-01.org.example:a");
        assert_eq!(StPorts::session_id("lan", &initiator), "st-iqn.2026-01.org.example-a-lan");
    }
}
