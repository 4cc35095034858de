//! The simulated target: the engine with the shipped fronts on drivers of the simulator. Its configuration is a text,
//! which is checked, planned and applied as that of `lunar` is.

use crate::backends::SimulatedDisk;
use crate::block_front::{self, BlockCore};
use crate::block_port::Port;
use crate::configuration;
use crate::engine_host::{self, SimulatedHost};
use crate::setup::{Changes, Setup};
use lunar_control::apply::{MissingPolicy, apply};
use lunar_control::check::{LocalHost, check};
use lunar_control::{Checked, Plan, Schema};
use lunar_core::mem::Arena;
use lunar_core::metadata::MetadataStore;
use lunar_engine::core_set::SteppedCores;
use lunar_engine::engine::{Engine, EngineOptions};
use lunar_engine::origin::Origin;
use lunar_engine::registry::Registry;
use lunar_iscsi::config;
use lunar_iscsi::directory::TargetEntry;
use lunar_iscsi::front::IscsiRuntime;
use lunar_ram::backend::RamBackend;
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Host, World};
use std::any::Any;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

/// The host that the target runs on.
pub const HOST: Host = Host(1);

/// The place of iSCSI in the registry.
const ISCSI: usize = 0;

/// The fronts and back ends of the simulator.
static REGISTRY: Registry = Registry {
    fronts: &[
        lunar_iscsi::front::ENTRY,
        lunar_nvme_tcp::front::ENTRY,
        lunar_vfio_user::front::ENTRY,
        block_front::ENTRY,
    ],
    backends: &[&SimulatedDisk, &RamBackend],
};

/// The schema of its configuration.
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| REGISTRY.schema());

/// The target, running.
pub struct SimulatedTarget {
    engine: Engine,
    cores: SteppedCores,
    setup: Setup,
    /// The configuration in force.
    checked: Checked,
}

impl SimulatedTarget {
    /// Starts it with metadata that is lost with the process.
    #[must_use]
    pub fn start(world: &World, setup: &Setup) -> Self {
        Self::start_keeping(world, setup, &[])
    }

    /// Starts it with the metadata stores of its volumes, by LUN.
    ///
    /// # Panics
    /// When it does not start, for example because the metadata is invalid.
    #[must_use]
    pub fn start_keeping(world: &World, setup: &Setup, keeps: &[Arc<dyn MetadataStore>]) -> Self {
        engine_host::enter(world);
        let volumes = keeps.iter().enumerate().map(|(lun, keep)| (configuration::uuid(lun), keep.clone()));
        let host = Arc::new(SimulatedHost::new(volumes.collect()));
        let empty = checked(&configuration::server(setup));
        let options = EngineOptions { registry: &REGISTRY, host, lock: None, origin: Origin::Configuration };
        let (engine, cores) = Engine::on_reactors(&empty.config, options, |shared| {
            let core = |stats| Reactor::with_driver(world.core(HOST), Arena::new(setup.arena_bytes), stats);
            shared.stats.iter().cloned().map(core).collect()
        })
        .expect("the cores start");
        let mut target = Self { engine, cores, setup: setup.clone(), checked: empty };
        target.engine.audit_to(Box::new(|_| ()));
        target.apply(setup.changes, &[]);
        target
    }

    /// Applies the configuration with these changes; meanwhile these other cores run, too.
    ///
    /// # Panics
    /// When the configuration is refused.
    pub fn apply(&mut self, changes: Changes, others: &[&Reactor]) {
        self.setup.changes = changes;
        let wanted = checked(&configuration::text(&self.setup));
        let plan = Plan::between(&self.checked, &wanted);
        let cores = self.reactors().into_iter().chain(others.iter().copied()).cloned().collect();
        engine_host::controlling(cores, || {
            let strict =
                MissingPolicy { may_be_missing: BTreeSet::new(), may_lack: BTreeSet::new(), retry: &mut |_, _| false };
            apply(&mut self.engine, &plan, &wanted, strict, || Ok(())).expect("the configuration can be applied");
            self.engine.wait_until_final();
        });
        self.set_session(&self.setup.session);
        self.checked = wanted;
    }

    /// Sets the parameters of iSCSI sessions, most of which have no key in the configuration.
    fn set_session(&self, session: &config::Config) {
        let runtime: &dyn Any = &*self.engine.core_set().shared().fronts()[ISCSI];
        let runtime: &IscsiRuntime = runtime.downcast_ref().expect("it is iSCSI");
        let mut directory = (*runtime.authenticator().directory()).clone();
        directory.session = Arc::new(session.clone());
        let targets: Vec<_> = directory.targets().cloned().collect();
        for target in targets {
            directory.add(TargetEntry { session: directory.session.clone(), ..(*target).clone() });
        }
        runtime.authenticator().set_directory(directory);
    }

    /// The reactors of its cores, to run them.
    #[must_use]
    pub fn reactors(&self) -> Vec<&Reactor> {
        self.cores.reactors()
    }

    /// The ports of block clients: one for each core.
    #[must_use]
    pub fn ports(&self) -> Vec<Rc<Port>> {
        self.cores.cores().filter_map(|core| Some(core.front_of::<BlockCore>()?.port().clone())).collect()
    }

    /// Stops it as SIGTERM does: see [`SimulatedTarget::stopped`].
    pub fn stop(&self) {
        self.engine.core_set().cores().drain();
    }

    /// Whether all cores have stopped; then, whether everything was flushed.
    #[must_use]
    pub fn stopped(&self) -> Option<bool> {
        self.cores.ended()
    }

    /// The resources that are still in use. There are none when all clients have disconnected.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.cores.leftovers()
    }
}

impl Drop for SimulatedTarget {
    fn drop(&mut self) {
        engine_host::leave();
    }
}

fn checked(text: &str) -> Checked {
    let outside = LocalHost { config: PathBuf::new() };
    check(&SCHEMA, "simulated", text, &outside).unwrap_or_else(|why| panic!("{why}\n{text}"))
}
