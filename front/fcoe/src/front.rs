//! Fibre Channel over Ethernet as a front of the engine: the ports of a configuration and their links. Each link is
//! opened before any initiator is answered.

use crate::command_line::FcoeOptions;
use crate::directory::PortView;
use crate::links;
use crate::schema::{FCOE, Fcoe};
use crate::serve;
use crate::serve::common::{Common, OpenLink, Session};
use crate::wire::names::Wwn;

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
use lunar_link::{BoundLink, LinkTable, OpenedLink};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of the front.
pub const NAME: &str = crate::schema::WORD;
/// PROTOCOL IDENTIFIER of the Fibre Channel Protocol (SPC-4 7.6.1).
const PROTOCOL_FCP: u8 = 0;
/// How long a session that an operator ends may take: commands in the store have to come back first.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// Fibre Channel over Ethernet, in the registry.
#[derive(Clone, Copy)]
pub struct FcoeFront {
    /// Opens links: those of the operating system, or those of a simulation.
    pub open: OpenLink,
}

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &FcoeFront { open: OpenedLink::open }, schema: &links::FRONT, options: Some(&FcoeOptions) };

impl Front for FcoeFront {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(FcoeRuntime { common: Common::new(shared, self.open), state: Mutex::default() }))
    }

    fn paths(&self, config: &Config, _runtime: &Path) -> FrontPaths {
        let folders = config
            .section::<Fcoe>()
            .filter_map(|(_, port)| links::config(port).ok())
            .flat_map(|link| link.address.folders());
        FrontPaths { keep: folders.collect(), ..FrontPaths::default() }
    }
}

/// A link that is open, for the port of this name.
struct PreparedLink {
    name: String,
    link: BoundLink,
}

/// Fibre Channel over Ethernet of a process.
pub struct FcoeRuntime {
    common: Arc<Common>,
    state: Mutex<LinkTable>,
}

impl fmt::Debug for FcoeRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FcoeRuntime({} links)", self.state().links().len())
    }
}

/// The ID of an initiator as a session.
fn session_id(port: &str, initiator: Wwn) -> String {
    format!("{NAME}-{initiator}-{port}").replace(':', "")
}

impl FcoeRuntime {
    fn state(&self) -> MutexGuard<'_, LinkTable> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the link of the port of this name; `None`: it is open already.
    fn provide_link(
        &self,
        cores: &FrontHandle,
        name: &str,
        wanted: &Checked,
    ) -> Result<Option<PreparedLink>, EngineError> {
        let port = wanted.config.find::<Fcoe>(name).ok_or(EngineError::NotConfigured)?;
        let config = links::config(port).map_err(EngineError::front)?;
        let Some(link) = self.state().wanted(name, config, None, cores.count()) else { return Ok(None) };
        let opened = (self.common.open)(&link.config).map_err(EngineError::front)?;
        let (number, config) = (link.number, link.config.clone());
        let attach = move |front: Rc<FcoeCore>| ready(front.0.attach(number, config, opened));
        cores.ask(link.core, attach).wait().ok_or(EngineError::CoreEnded)?.map_err(EngineError::front)?;
        self.state().prepare(name.to_owned(), link.clone());
        Ok(Some(PreparedLink { name: name.to_owned(), link }))
    }

    fn close(cores: &FrontHandle, link: &BoundLink) {
        let number = link.number;
        cores.ask(link.core, async move |front: Rc<FcoeCore>| front.0.close(number).await).wait();
    }
}

impl FrontRuntime for FcoeRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(FcoeCore(serve::Front::new(core, &self.common)))
    }

    fn ports(&self, config: &Config) -> Vec<FrontPort> {
        let port = |(name, port): (&str, &Fcoe)| {
            let names = port.names(name, config)?;
            let (group, name) = (port.group(config)?, names.scsi());
            Some(FrontPort { name, device: names.device, group, protocol: PROTOCOL_FCP })
        };
        config.section::<Fcoe>().filter_map(port).collect()
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(FCOE), Action::Create | Action::Change(_)) => {
                let link = self.provide_link(cores, &change.object.name, wanted)?;
                Ok(link.map(|link| Box::new(link) as Prepared))
            }
            _ => Ok(None),
        }
    }

    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        let Ok(prepared) = prepared.downcast::<PreparedLink>() else { return };
        self.state().roll_back(&prepared.name);
        Self::close(cores, &prepared.link);
    }

    fn publish(&self, _published: &PublishedConfig<'_>) {}

    fn finalize(&self, cores: &FrontHandle, published: &PublishedConfig<'_>) {
        let config = &published.wanted.config;
        let (gone, links) = {
            let mut state = self.state();
            let gone = state.publish(|name| config.find::<Fcoe>(name).is_some());
            (gone, state.links().clone())
        };
        gone.iter().for_each(|link| Self::close(cores, link));
        let mut ports: BTreeMap<usize, Vec<(u64, PortView)>> = BTreeMap::new();
        for (name, link) in &links {
            let view = config.find::<Fcoe>(name).and_then(|port| PortView::of(name, port, published));
            ports.entry(link.core).or_default().extend(view.map(|view| (link.number, view)));
        }
        for (core, ports) in ports {
            cores.ask(core, async move |front: Rc<FcoeCore>| front.0.publish(ports)).wait();
        }
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let now = self.common.shared.host.now();
        let view = |((port, initiator), session): (&(Arc<str>, Wwn), &Session)| SessionView {
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
        let is_it = |(port, initiator): &&(Arc<str>, Wwn)| session_id(port, *initiator) == id;
        let (port, initiator) = self.common.sessions().keys().find(is_it).cloned()?;
        let link = self.state().get(&port).cloned()?;
        let cores = cores.clone();
        Some(Box::new(move || {
            let end = async move |front: Rc<FcoeCore>| front.0.log_out(link.number, initiator).await;
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

/// Fibre Channel over Ethernet on a core.
#[derive(Debug)]
pub struct FcoeCore(Rc<serve::Front>);

impl FcoeCore {
    /// The ports.
    #[must_use]
    pub fn front(&self) -> &Rc<serve::Front> {
        &self.0
    }
}

impl FrontOnCore for FcoeCore {
    /// No portal is for initiators of a Fibre Channel.
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
        assert_eq!(session_id("lan", Wwn(0x2000_5254_0012_3402)), "fcoe-2000525400123402-lan");
    }
}
