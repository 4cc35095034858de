//! SRP as a front of the engine: the ports of a configuration and their sockets. Each socket is opened before any
//! initiator is answered.

use crate::command_line::SrpOptions;
use crate::directory::PortView;
use crate::names::PortId;
use crate::schema::{FRONT, SRP, Srp};
use crate::serve;
use crate::serve::common::{Common, OpenSocket, Session};

use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::plan::{Action, Change};
use lunar_control::{Checked, Config, Kind};
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontPort, FrontRuntime, Incoming, PortalRef, Prepared};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_link::{BoundLink, LinkTable};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of the front.
pub const NAME: &str = crate::schema::WORD;
/// PROTOCOL IDENTIFIER of SRP (SPC-4 7.6.1).
const PROTOCOL_SRP: u8 = 4;
/// How long a session that an operator ends may take: commands in the store have to come back first.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// SRP, in the registry.
#[derive(Clone, Copy)]
pub struct SrpFront {
    /// Opens sockets: those of the operating system, or those of a simulation.
    pub open: OpenSocket,
}

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &SrpFront { open: lunar_rdma::port::open }, schema: &FRONT, options: Some(&SrpOptions) };

impl Front for SrpFront {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(SrpRuntime { common: Common::new(shared, self.open), state: Mutex::default() }))
    }

    fn paths(&self, _config: &Config, _runtime: &Path) -> FrontPaths {
        FrontPaths::default()
    }
}

/// A socket that is open, for the port of this name.
struct PreparedSocket {
    name: String,
    link: BoundLink<IpAddr>,
}

/// SRP of a process.
pub struct SrpRuntime {
    common: Arc<Common>,
    state: Mutex<LinkTable<IpAddr>>,
}

impl fmt::Debug for SrpRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SrpRuntime({} ports)", self.state().links().len())
    }
}

/// Why a port has no socket.
#[derive(Debug)]
struct NoSocket {
    address: IpAddr,
    why: std::io::Error,
}

impl fmt::Display for NoSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, why } = self;
        write!(f, "UDP port {} of {address} cannot be used for RDMA: {why}", lunar_rdma::wire::PORT)?;
        match why.kind() {
            std::io::ErrorKind::AddrInUse => f.write_str(
                " (an RDMA device of the kernel, as of rdma_rxe, uses it on all addresses: remove the device)",
            ),
            std::io::ErrorKind::AddrNotAvailable => f.write_str(" (give this machine the address first)"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for NoSocket {}

/// The ID of an initiator as a session.
fn session_id(port: &str, initiator: PortId) -> String {
    format!("{NAME}-{initiator}-{port}")
}

impl SrpRuntime {
    fn state(&self) -> MutexGuard<'_, LinkTable<IpAddr>> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the socket of the port of this name; `None`: it is open already.
    fn provide_socket(
        &self,
        cores: &FrontHandle,
        name: &str,
        wanted: &Checked,
    ) -> Result<Option<PreparedSocket>, EngineError> {
        let port = wanted.config.find::<Srp>(name).ok_or(EngineError::NotConfigured)?;
        let address = port.address.0;
        let Some(link) = self.state().wanted(name, address, None, cores.count()) else { return Ok(None) };
        let opened = (self.common.open)(address).map_err(|why| EngineError::front(NoSocket { address, why }))?;
        let number = link.number;
        let attach = move |front: Rc<SrpCore>| ready(front.0.attach(number, address, opened));
        cores.ask(link.core, attach).wait().ok_or(EngineError::CoreEnded)?.map_err(EngineError::front)?;
        self.state().prepare(name.to_owned(), link.clone());
        Ok(Some(PreparedSocket { name: name.to_owned(), link }))
    }

    fn close(cores: &FrontHandle, link: &BoundLink<IpAddr>) {
        let number = link.number;
        cores.ask(link.core, async move |front: Rc<SrpCore>| front.0.close(number).await).wait();
    }
}

impl FrontRuntime for SrpRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(SrpCore(serve::Front::new(core, &self.common)))
    }

    fn ports(&self, config: &Config) -> Vec<FrontPort> {
        let port = |(name, port): (&str, &Srp)| {
            let names = port.names(name, config)?;
            let (group, name) = (port.group(config)?, names.port.scsi());
            Some(FrontPort { name, device: names.device, group, protocol: PROTOCOL_SRP })
        };
        config.section::<Srp>().filter_map(port).collect()
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(SRP), Action::Create | Action::Change(_)) => {
                let link = self.provide_socket(cores, &change.object.name, wanted)?;
                Ok(link.map(|link| Box::new(link) as Prepared))
            }
            _ => Ok(None),
        }
    }

    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        let Ok(prepared) = prepared.downcast::<PreparedSocket>() else { return };
        self.state().roll_back(&prepared.name);
        Self::close(cores, &prepared.link);
    }

    fn publish(&self, _published: &PublishedConfig<'_>) {}

    fn finalize(&self, cores: &FrontHandle, published: &PublishedConfig<'_>) {
        let config = &published.wanted.config;
        let (gone, links) = {
            let mut state = self.state();
            let gone = state.publish(|name| config.find::<Srp>(name).is_some());
            (gone, state.links().clone())
        };
        gone.iter().for_each(|link| Self::close(cores, link));
        let mut ports: BTreeMap<usize, Vec<(u64, PortView)>> = BTreeMap::new();
        for (name, link) in &links {
            let view = config.find::<Srp>(name).and_then(|port| PortView::of(name, port, published));
            ports.entry(link.core).or_default().extend(view.map(|view| (link.number, view)));
        }
        for (core, ports) in ports {
            cores.ask(core, async move |front: Rc<SrpCore>| front.0.publish(ports)).wait();
        }
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let now = self.common.shared.host.now();
        let view = |((port, initiator), session): (&(Arc<str>, PortId), &Session)| SessionView {
            id: session_id(port, *initiator),
            protocol: NAME,
            discovery: false,
            initiator: initiator.to_string(),
            source: session.source.clone(),
            target: Some(session.target.clone()),
            group: Some(session.group.to_string()),
            portal_group: None,
            user: None,
            seconds: now.since(session.since).as_secs(),
            tcp: Vec::new(),
        };
        self.common.sessions().iter().map(view).collect()
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let is_it = |(port, initiator): &&(Arc<str>, PortId)| session_id(port, *initiator) == id;
        let (port, initiator) = self.common.sessions().keys().find(is_it).cloned()?;
        let link = self.state().get(&port).cloned()?;
        let cores = cores.clone();
        Some(Box::new(move || {
            let end = async move |front: Rc<SrpCore>| front.0.log_out(link.number, initiator).await;
            cores.ask(link.core, end).wait_for(END_PATIENCE).is_some()
        }))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn troubles(&self) -> Vec<String> {
        self.common.troubles()
    }
}

/// SRP on a core.
#[derive(Debug)]
pub struct SrpCore(Rc<serve::Front>);

impl SrpCore {
    /// The ports.
    #[must_use]
    pub fn front(&self) -> &Rc<serve::Front> {
        &self.0
    }
}

impl FrontOnCore for SrpCore {
    /// No portal is for SRP.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    fn connections(&self) -> usize {
        self.0.initiators() + self.0.in_progress()
    }

    fn review(&self, ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move { self.0.review(&ended).await })
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.0.drained())
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_names() {
        let initiator = PortId(0x5054_00ff_fe12_3402_u128.to_be_bytes());
        assert_eq!(session_id("lan", initiator), "srp-0x0000000000000000505400fffe123402-lan");
    }

    #[test]
    fn a_socket_that_cannot_be_opened_is_explained() {
        let address = [192, 0, 2, 1].into();
        let words = |kind: std::io::ErrorKind| NoSocket { address, why: kind.into() }.to_string();
        assert!(words(std::io::ErrorKind::AddrInUse).contains("remove the device"));
        assert!(words(std::io::ErrorKind::AddrNotAvailable).starts_with("UDP port 4791 of 192.0.2.1"));
    }
}
