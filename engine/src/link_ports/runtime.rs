//! The front of a process: the ports of a configuration and their links. Each link is opened before any initiator is
//! answered.

use super::state::Open;
use super::{BoundLink, LinkTable, PortProtocol, PortState, PortsOnCore, StateOf};
use crate::core_set::context::CoreContext;
use crate::core_set::front_handle::FrontHandle;
use crate::core_set::shared::Shared;
use crate::error::EngineError;
use crate::front::{Front, FrontOnCore, FrontPaths, FrontPort, FrontRuntime, Prepared};
use crate::published_config::PublishedConfig;
use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::plan::{Action, Change};
use lunar_control::section::Resource;
use lunar_control::{Checked, Config};
use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a session that an operator ends may take: commands in the store have to come back first.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// A front of ports, in the registry.
pub struct PortsFront<P: PortProtocol> {
    /// Opens links: those of the operating system, or those of a simulation.
    pub open: Open<P::Settings, P::Opened>,
}

impl<P: PortProtocol> Front for PortsFront<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        let state = Arc::new(PortState::new(P::NAME, shared, self.open));
        Ok(Arc::new(PortsRuntime::<P> { state, links: Mutex::default() }))
    }

    fn paths(&self, config: &Config, _runtime: &Path) -> FrontPaths {
        let settings = config.section::<P::Section>().filter_map(|(_, section)| P::settings(section).ok());
        let mut paths = FrontPaths::default();
        for settings in settings {
            paths.keep.extend(P::folders(&settings));
            paths.write.extend(P::devices(&settings));
            paths.loads_programs |= P::loads_program(&settings);
        }
        paths
    }

    fn preload(&self, config: &Config) {
        let settings = config.section::<P::Section>().filter_map(|(_, section)| P::settings(section).ok());
        settings.for_each(|settings| P::preload(&settings));
    }

    fn memory(&self, config: &Config) -> u64 {
        let settings = config.section::<P::Section>().filter_map(|(_, section)| P::settings(section).ok());
        settings.map(|settings| P::memory(&settings)).sum()
    }
}

/// A link that is open, for the port of this name.
struct PreparedLink<C> {
    name: String,
    link: BoundLink<C>,
}

/// The ports of a process.
struct PortsRuntime<P: PortProtocol> {
    state: Arc<StateOf<P>>,
    links: Mutex<LinkTable<P::Settings>>,
}

impl<P: PortProtocol> PortsRuntime<P> {
    fn links(&self) -> MutexGuard<'_, LinkTable<P::Settings>> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the link of the port of this name; `None`: it is open already.
    fn provide_link(
        &self,
        cores: &FrontHandle,
        name: &str,
        wanted: &Checked,
    ) -> Result<Option<PreparedLink<P::Settings>>, EngineError> {
        let section = wanted.config.find::<P::Section>(name).ok_or(EngineError::NotConfigured)?;
        let settings = P::settings(section)?;
        let Some(mut link) = self.links().wanted(name, settings, None, cores.count()) else { return Ok(None) };
        link.core = P::core(&link.config, cores.count()).unwrap_or(link.core);
        let opened = (self.state.open)(&link.config).map_err(|why| P::not_opened(&link.config, why))?;
        let (number, settings) = (link.number, link.config.clone());
        let attach = move |front: Rc<PortsOnCore<P>>| ready(front.attach(number, settings, opened));
        cores.ask(link.core, attach).wait().ok_or(EngineError::CoreEnded)?.map_err(EngineError::front)?;
        self.links().prepare(name.to_owned(), link.clone());
        Ok(Some(PreparedLink { name: name.to_owned(), link }))
    }

    fn close(cores: &FrontHandle, link: &BoundLink<P::Settings>) {
        let number = link.number;
        cores.ask(link.core, async move |front: Rc<PortsOnCore<P>>| front.close(number).await).wait();
    }
}

impl<P: PortProtocol> FrontRuntime for PortsRuntime<P> {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(PortsOnCore::<P>::new(core, &self.state))
    }

    fn ports(&self, config: &Config) -> Vec<FrontPort> {
        config.section::<P::Section>().filter_map(|(name, section)| P::port(name, section, config)).collect()
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        let needs_link = matches!(change.action, Action::Create | Action::Change(_));
        if !needs_link || change.object.kind != P::Section::KIND {
            return Ok(None);
        }
        let link = self.provide_link(cores, &change.object.name, wanted)?;
        Ok(link.map(|link| Box::new(link) as Prepared))
    }

    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        let Ok(prepared) = prepared.downcast::<PreparedLink<P::Settings>>() else { return };
        self.links().roll_back(&prepared.name);
        Self::close(cores, &prepared.link);
    }

    fn publish(&self, _published: &PublishedConfig<'_>) {}

    fn finalize(&self, cores: &FrontHandle, published: &PublishedConfig<'_>) {
        let config = &published.wanted.config;
        let (gone, links) = {
            let mut table = self.links();
            let gone = table.publish(|name| config.find::<P::Section>(name).is_some());
            (gone, table.links().clone())
        };
        gone.iter().for_each(|link| Self::close(cores, link));
        let mut ports: BTreeMap<usize, Vec<(u64, P::View)>> = BTreeMap::new();
        for (name, link) in &links {
            let view = config.find::<P::Section>(name).and_then(|section| P::view(name, section, published));
            ports.entry(link.core).or_default().extend(view.map(|view| (link.number, view)));
        }
        for (core, ports) in ports {
            cores.ask(core, async move |front: Rc<PortsOnCore<P>>| front.publish(ports)).wait();
        }
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        self.state.shown(P::session_id)
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let is_it = |(port, initiator): &&(Arc<str>, P::Initiator)| P::session_id(port, initiator) == id;
        let (port, initiator) = self.state.sessions().keys().find(is_it).cloned()?;
        let (core, number) = self.links().get(&port).map(|link| (link.core, link.number))?;
        let cores = cores.clone();
        Some(Box::new(move || {
            let end = async move |front: Rc<PortsOnCore<P>>| front.log_out(number, &initiator).await;
            cores.ask(core, end).wait_for(END_PATIENCE).is_some()
        }))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn troubles(&self) -> Vec<String> {
        self.state.troubles()
    }
}

impl<P: PortProtocol> fmt::Debug for PortsRuntime<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortsRuntime({}, {} links)", P::NAME, self.links().links().len())
    }
}
