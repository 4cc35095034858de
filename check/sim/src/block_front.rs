//! The front of block clients: it gives each core a [`Port`].

use crate::block_port::Port;
use crate::configuration::{self, EXTRA_LUN};
use lunar_control::Config;
use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::schema::FrontSchema;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Incoming, PortalRef};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_unit::LocalFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

static SCHEMA: FrontSchema = FrontSchema { portals: None, section: None, limits: None };

/// Its line in a registry.
pub const ENTRY: FrontEntry = FrontEntry { front: &BlockFront, schema: &SCHEMA, options: None };

/// The front of block clients, in the registry.
#[derive(Clone, Copy, Debug)]
pub struct BlockFront;

impl Front for BlockFront {
    fn name(&self) -> &'static str {
        "block-port"
    }

    fn start(&self, _index: usize, _shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(BlockRuntime))
    }

    fn paths(&self, _config: &Config, _runtime: &Path) -> FrontPaths {
        FrontPaths::default()
    }
}

/// The front of block clients in a process.
#[derive(Debug)]
struct BlockRuntime;

impl FrontRuntime for BlockRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        let port = Port::new(core.reactor.stats(), &core.units);
        core.reactor.spawn(port.clone().serve(core.reactor.clone()));
        Rc::new(BlockCore { port, context: core.clone() })
    }

    fn publish(&self, _published: &PublishedConfig<'_>) {}

    fn finalize(&self, cores: &FrontHandle, _published: &PublishedConfig<'_>) {
        for core in 0..cores.count() {
            cores.ask(core, async |front: Rc<BlockCore>| front.update_units()).wait();
        }
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        Vec::new()
    }

    fn end_session(&self, _cores: &FrontHandle, _id: &str) -> Option<Later<bool>> {
        None
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The port of a core.
pub struct BlockCore {
    port: Rc<Port>,
    context: CoreContext,
}

impl fmt::Debug for BlockCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockCore")
    }
}

impl BlockCore {
    /// The port.
    #[must_use]
    pub fn port(&self) -> &Rc<Port> {
        &self.port
    }

    fn update_units(&self) {
        let mut units = self.context.mesh.units();
        // A port keeps its units.
        units.retain(|unit| unit.identity.uuid != configuration::uuid(EXTRA_LUN));
        units.sort_by_key(|unit| unit.id);
        self.port.set_units(units);
    }
}

impl FrontOnCore for BlockCore {
    /// Block clients post requests at the port: no portal is for them.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    fn connections(&self) -> usize {
        self.port.clients()
    }

    fn review(&self, _ended: Arc<BTreeSet<Arc<str>>>) -> LocalFuture<'_, ()> {
        Box::pin(ready(()))
    }

    fn drain(&self) {
        self.port.drain();
    }

    fn drained(&self) -> LocalFuture<'_, ()> {
        Box::pin(self.port.drained())
    }

    fn abandon(&self) {
        self.port.close();
    }
}
