//! iSER as a front of the engine: the skeleton of ports with sockets of their own. Targets, logins and sessions are
//! those of the front of iSCSI.

use super::command_line::IserOptions;
use super::schema::{FRONT, Iser, WORD};
use crate::config::Transport;
use crate::front::IscsiRuntime;
use crate::serve::iser::core::Core;
use crate::serve::iser::endpoint::Endpoint;
use crate::serve::iser::{IserPorts, Opened, PortView};
use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::plan::Change;
use lunar_control::{Checked, Config};
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::message::FrontJob;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontPort, FrontRuntime, Prepared};
use lunar_engine::link_ports::{PortProtocol, PortsFront, PortsOnCore, RdmaSection};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
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

/// iSER on a core.
pub type IserCore = PortsOnCore<IserPorts>;

/// iSER, in the registry.
pub struct IserFront(pub PortsFront<IserPorts>);

/// Its line in a registry, which has that of iSCSI as well.
pub const ENTRY: FrontEntry = FrontEntry {
    front: &IserFront(PortsFront { open: lunar_rdma::socket::open }),
    schema: &FRONT,
    options: Some(&IserOptions),
};

impl PortProtocol for IserPorts {
    const NAME: &'static str = NAME;
    type Section = Iser;
    type Settings = PortAddress;
    type Opened = Opened;
    type View = PortView;
    type Initiator = String;
    type Core = Core;
    type Endpoint = Endpoint;

    fn settings(portal: &Iser) -> Result<PortAddress, EngineError> {
        portal.rdma().address().map_err(EngineError::front)
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

    /// The SCSI target ports are those of portal groups.
    fn port(_name: &str, _portal: &Iser, _config: &Config) -> Option<FrontPort> {
        None
    }

    fn view(name: &str, portal: &Iser, published: &PublishedConfig<'_>) -> Option<PortView> {
        let group = portal.group(&published.wanted.config)?;
        Some(PortView { name: name.into(), number: portal.number(name), group })
    }

    fn session_id(port: &str, initiator: &String) -> String {
        format!("{NAME}-{initiator}-{port}")
    }
}

impl Front for IserFront {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(IserRuntime { index, ports: self.0.start(index, shared)?, shared: shared.clone() }))
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

/// iSER of a process.
pub struct IserRuntime {
    index: usize,
    ports: Arc<dyn FrontRuntime>,
    shared: Arc<Shared>,
}

impl IserRuntime {
    fn iscsi(&self) -> Option<&IscsiRuntime> {
        self.shared.front_of()
    }
}

impl FrontRuntime for IserRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        let index = self.index;
        let ended_by = move |connection: u64| {
            FrontJob::new(index, move |front: Option<Rc<IserCore>>| async move {
                if let Some(front) = front {
                    front.core().end_session(connection).await;
                }
            })
        };
        self.iscsi().into_iter().for_each(|iscsi| iscsi.reach_rdma(ended_by));
        self.ports.on_core(core)
    }

    /// The front of iSCSI has put the targets in force.
    fn publish(&self, _published: &PublishedConfig<'_>) {}

    fn sessions(&self, targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        self.iscsi().map(|iscsi| iscsi.sessions_over(Transport::Rdma, targets)).unwrap_or_default()
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let location = self.iscsi()?.located(Transport::Rdma, id)?;
        let cores = cores.clone();
        Some(Box::new(move || {
            let end = async move |front: Rc<IserCore>| front.core().end_session(location.connection).await;
            cores.ask(location.core, end).wait_for(crate::front::END_PATIENCE).is_some()
        }))
    }

    fn leftovers(&self) -> Vec<String> {
        // The front of iSCSI has the sessions.
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

    fn troubles(&self) -> Vec<String> {
        self.ports.troubles()
    }
}

impl fmt::Debug for IserRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IserRuntime")
    }
}
