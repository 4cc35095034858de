//! ATA over Ethernet as a front of the engine: the shelves of a configuration and their links. Each link is opened
//! before any station is answered.

use crate::command_line::AoeOptions;
use crate::directory::Shelf;
use crate::links;
use crate::schema::{AOE, Aoe};
use crate::serve;
use crate::serve::common::{Common, OpenLink};

use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::plan::{Action, Change};
use lunar_control::{Checked, Config, Kind};
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Incoming, PortalRef, Prepared};
use lunar_engine::link_ports::{BoundLink, LinkTable};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_link::{LinkConfig, MacAddress, OpenedLink};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of the front.
pub const NAME: &str = crate::schema::WORD;

/// ATA over Ethernet, in the registry.
#[derive(Clone, Copy)]
pub struct AoeFront {
    /// Opens links: those of the operating system, or those of a simulation.
    pub open: OpenLink,
}

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &AoeFront { open: OpenedLink::open }, schema: &links::FRONT, options: Some(&AoeOptions) };

impl Front for AoeFront {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(AoeRuntime { common: Common::new(shared, self.open), state: Mutex::default() }))
    }

    fn paths(&self, config: &Config, _runtime: &Path) -> FrontPaths {
        let mut paths = FrontPaths::default();
        for link in config.section::<Aoe>().filter_map(|(_, aoe)| links::config(aoe).ok()) {
            paths.keep.extend(link.address.folders());
            paths.loads_programs |= link.address.loads_program();
        }
        paths
    }
}

/// A link that is open, for the shelf of this name.
struct PreparedLink {
    name: String,
    link: BoundLink<LinkConfig>,
}

/// ATA over Ethernet of a process.
pub struct AoeRuntime {
    common: Arc<Common>,
    state: Mutex<LinkTable<LinkConfig>>,
}

impl fmt::Debug for AoeRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AoeRuntime({} links)", self.state().links().len())
    }
}

/// The ID of a station as a session.
fn session_id(shelf: &str, mac: MacAddress) -> String {
    format!("{NAME}-{mac}-{shelf}").replace(':', "")
}

impl AoeRuntime {
    fn state(&self) -> MutexGuard<'_, LinkTable<LinkConfig>> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the link of the shelf of this name; `None`: it is open already.
    fn provide_link(
        &self,
        cores: &FrontHandle,
        name: &str,
        wanted: &Checked,
    ) -> Result<Option<PreparedLink>, EngineError> {
        let aoe = wanted.config.find::<Aoe>(name).ok_or(EngineError::NotConfigured)?;
        let config = links::config(aoe).map_err(EngineError::front)?;
        // All links of a shelf have one core.
        let group = Some(aoe.shelf.get() as u16);
        let Some(link) = self.state().wanted(name, config, group, cores.count()) else { return Ok(None) };
        let opened = (self.common.ports.open)(&link.config).map_err(EngineError::front)?;
        let (number, config) = (link.number, link.config.clone());
        let attach = move |front: Rc<AoeCore>| ready(front.0.attach(number, config, opened));
        cores.ask(link.core, attach).wait().ok_or(EngineError::CoreEnded)?.map_err(EngineError::front)?;
        self.state().prepare(name.to_owned(), link.clone());
        Ok(Some(PreparedLink { name: name.to_owned(), link }))
    }

    fn close(cores: &FrontHandle, link: &BoundLink<LinkConfig>) {
        let number = link.number;
        cores.ask(link.core, async move |front: Rc<AoeCore>| front.0.close(number)).wait();
    }
}

impl FrontRuntime for AoeRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(AoeCore(serve::Front::new(core, &self.common)))
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(AOE), Action::Create | Action::Change(_)) => {
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
            let gone = state.publish(|name| config.find::<Aoe>(name).is_some());
            (gone, state.links().clone())
        };
        gone.iter().for_each(|link| Self::close(cores, link));
        let mut shelves: BTreeMap<usize, Vec<(u64, Shelf)>> = BTreeMap::new();
        for (name, link) in &links {
            let Some(aoe) = config.find::<Aoe>(name) else { continue };
            shelves.entry(link.core).or_default().push((link.number, Shelf::of(name, aoe, published)));
        }
        for core in gone.iter().map(|link| link.core) {
            shelves.entry(core).or_default();
        }
        for (core, shelves) in shelves {
            cores.ask(core, async move |front: Rc<AoeCore>| front.0.publish(shelves)).wait();
        }
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        self.common.ports.shown(|shelf, mac| session_id(shelf, *mac))
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let found = self.common.ports.sessions().keys().find(|(shelf, mac)| session_id(shelf, *mac) == id).cloned();
        let (shelf, mac) = found?;
        let link = self.state().get(&shelf).cloned()?;
        let number = link.number;
        let answer = cores.ask(link.core, move |front: Rc<AoeCore>| ready(front.0.forget(number, mac)));
        Some(Box::new(move || answer.wait().unwrap_or(true)))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn troubles(&self) -> Vec<String> {
        self.common.ports.troubles()
    }
}

/// ATA over Ethernet on a core.
#[derive(Debug)]
pub struct AoeCore(Rc<serve::Front>);

impl AoeCore {
    /// The shelves.
    #[must_use]
    pub fn front(&self) -> &Rc<serve::Front> {
        &self.0
    }
}

impl FrontOnCore for AoeCore {
    /// No portal is for stations.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    /// Stations have no connections: the commands in progress.
    fn connections(&self) -> usize {
        self.0.in_progress()
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
        let mac = crate::wire::mac_of("52:54:00:12:34:02").expect("right");
        assert_eq!(session_id("lan", mac), "aoe-525400123402-lan");
    }
}
