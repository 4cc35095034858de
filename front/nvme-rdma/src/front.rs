//! NVMe over RDMA as a front of the engine: the skeleton of ports with links of their own, with controllers for
//! operators and portals for the discovery service.

use crate::command_line::NvmeRdmaOptions;
use crate::schema::{FRONT, NvmeRdma, WORD};
use crate::serve::core::Core;
use crate::serve::endpoint::Endpoint;
use crate::serve::{Opened, PortView, RdmaPorts};
use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::plan::Change;
use lunar_control::{Checked, Config};
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontPort, FrontRuntime, Prepared};
use lunar_engine::link_ports::{PortProtocol, PortsFront, PortsOnCore, RdmaSection};
use lunar_engine::nvme_sessions;
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_nvme::Controller;
use lunar_nvme::directory::Portal;
use lunar_nvme::path::RDMA;
use lunar_rdma::address::PortAddress;
use lunar_rdma::socket::NoSocket;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// The name of the front.
pub const NAME: &str = WORD;

/// NVMe over RDMA on a core.
pub type NvmeRdmaCore = PortsOnCore<RdmaPorts>;

/// NVMe over RDMA, in the registry.
pub struct NvmeRdmaFront(pub PortsFront<RdmaPorts>);

/// Its line in a registry.
pub const ENTRY: FrontEntry = FrontEntry {
    front: &NvmeRdmaFront(PortsFront { open: lunar_rdma::socket::open }),
    schema: &FRONT,
    options: Some(&NvmeRdmaOptions),
};

impl PortProtocol for RdmaPorts {
    const NAME: &'static str = NAME;
    type Section = NvmeRdma;
    type Settings = PortAddress;
    type Opened = Opened;
    type View = PortView;
    type Initiator = String;
    type Core = Core;
    type Endpoint = Endpoint;

    fn settings(port: &NvmeRdma) -> Result<PortAddress, EngineError> {
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

    /// Hosts find subsystems through portal groups; there is no SCSI target port.
    fn port(_name: &str, _port: &NvmeRdma, _config: &Config) -> Option<FrontPort> {
        None
    }

    fn view(name: &str, port: &NvmeRdma, published: &PublishedConfig<'_>) -> Option<PortView> {
        let group = port.group(&published.wanted.config)?;
        Some(PortView { name: name.into(), number: port.number(name), group })
    }

    fn session_id(port: &str, initiator: &String) -> String {
        format!("{NAME}-{initiator}-{port}")
    }
}

impl Front for NvmeRdmaFront {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(NvmeRdmaRuntime { ports: self.0.start(index, shared)?, shared: shared.clone() }))
    }

    fn paths(&self, config: &Config, runtime: &Path) -> FrontPaths {
        self.0.paths(config, runtime)
    }

    fn preload(&self, config: &Config) {
        self.0.preload(config);
    }

    fn memory(&self, config: &Config) -> u64 {
        self.0.memory(config)
    }
}

/// NVMe over RDMA of a process.
struct NvmeRdmaRuntime {
    ports: Arc<dyn FrontRuntime>,
    shared: Arc<Shared>,
}

/// Whether a controller is reached over RDMA.
fn is_own(controller: &Controller) -> bool {
    controller.path.is_rdma()
}

impl FrontRuntime for NvmeRdmaRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        self.ports.on_core(core)
    }

    fn publish(&self, published: &PublishedConfig<'_>) {
        self.ports.publish(published);
    }

    fn sessions(&self, targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let all = self.shared.controllers.all();
        let view = |controller: &Arc<Controller>| nvme_sessions::view(&self.shared, controller, NAME, targets);
        all.iter().filter(|controller| is_own(controller)).map(view).collect()
    }

    fn end_session(&self, _cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let controller = nvme_sessions::find(&self.shared, id).filter(|controller| is_own(controller))?;
        controller.end();
        Some(nvme_sessions::until_ended(&self.shared, controller))
    }

    fn leftovers(&self) -> Vec<String> {
        self.ports.leftovers()
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        self.ports.prepare(cores, change, wanted)
    }

    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        self.ports.roll_back(cores, prepared);
    }

    fn finalize(&self, cores: &FrontHandle, published: &PublishedConfig<'_>) {
        self.ports.finalize(cores, published);
    }

    fn discovery_portals(&self, published: &PublishedConfig<'_>) -> Vec<Portal> {
        let config = &published.wanted.config;
        let portal = |(name, port): (&str, &NvmeRdma)| {
            let address = Some(port.rdma().at());
            let (id, group) = (port.number(name), port.group(config)?);
            Some(Portal { id, group, transport: RDMA, address, is_secure: false })
        };
        config.section::<NvmeRdma>().filter_map(|(name, port)| portal((name, port))).collect()
    }

    fn troubles(&self) -> Vec<String> {
        self.ports.troubles()
    }
}

impl fmt::Debug for NvmeRdmaRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NvmeRdmaRuntime")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};
    use lunar_rdma::limits::DEVICE_INBOX_BYTES;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    #[test]
    fn the_memory_of_ports_on_devices_counts() {
        let port = |name, at| format!("[nvme-rdma.{name}]\naddress = '192.0.2.1'\n{at}portal-group = '1'\n");
        let memory = |ports: &str| {
            let text = format!("[portal-group.1]\ntag = 7\n{ports}");
            let checked = check(&SCHEMA, "test", &text, &LocalHost { config: PathBuf::new() }).expect("right");
            ENTRY.front.memory(&checked.config)
        };
        assert_eq!(memory(&port("a", "")), 0);
        let two = port("a", "link = 'verbs'\n") + &port("b", "link = 'verbs:rxe0'\n");
        assert_eq!(memory(&two), 2 * DEVICE_INBOX_BYTES as u64);
    }
}
