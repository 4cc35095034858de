//! The host of an engine in the simulator: its time is that of a world, it has no threads, and its state is in memory.

use lunar_control::versions::Trouble;
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::time::Instant;
use lunar_engine::host::{Host, PathError, StateStore, Work};
use lunar_engine::volume::metadata::MetadataError;
use lunar_reactor::Reactor;
use lunar_reactor::sim::World;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The folder that paths of the state are shown in. No file is there.
const FOLDER: &str = "/simulated";

/// A simulation, as the host of an engine runs it.
#[derive(Clone)]
struct Simulation {
    world: World,
    /// The cores that run while the control side waits.
    cores: Vec<Reactor>,
}

thread_local! {
    /// The simulation on this thread: a host is `Send` and `Sync`, and a world is neither.
    static SIMULATION: RefCell<Option<Simulation>> = const { RefCell::new(None) };
}

fn simulation() -> Simulation {
    SIMULATION.with_borrow(|simulation| simulation.clone().expect("the control side runs in `controlling` only"))
}

/// Sets the world of the host on this thread.
pub fn enter(world: &World) {
    SIMULATION.replace(Some(Simulation { world: world.clone(), cores: Vec::new() }));
}

/// Removes the world of the host on this thread.
pub fn leave() {
    drop(SIMULATION.take());
}

/// The world of the host on this thread.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn world() -> World {
    simulation().world
}

/// Does work of the control side, which waits for the cores; meanwhile these cores run.
pub fn controlling<T>(cores: Vec<Reactor>, work: impl FnOnce() -> T) -> T {
    let set = |cores| SIMULATION.with_borrow_mut(|all| all.iter_mut().for_each(|all| all.cores = Vec::clone(&cores)));
    set(cores);
    let result = work();
    set(Vec::new());
    result
}

/// The host of a simulated engine.
#[derive(Debug, Default)]
pub struct SimulatedHost {
    /// The metadata stores of volumes that are kept when the process ends, by their UUIDs. Those of other volumes are
    /// lost.
    volumes: BTreeMap<[u8; 16], Arc<dyn MetadataStore>>,
    /// The metadata store of the port of a target.
    port: Arc<VolatileMemory>,
    texts: Mutex<BTreeMap<String, String>>,
}

impl SimulatedHost {
    /// A host that keeps these metadata stores of volumes.
    #[must_use]
    pub fn new(volumes: BTreeMap<[u8; 16], Arc<dyn MetadataStore>>) -> Self {
        Self { volumes, port: Arc::default(), texts: Mutex::default() }
    }

    /// A host that keeps this metadata of the port of its target, too.
    #[must_use]
    pub fn keeping_port(self, port: &Arc<VolatileMemory>) -> Self {
        Self { port: port.clone(), ..self }
    }

    fn texts(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        // Every change is one insert, so a panic leaves the map consistent.
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for SimulatedHost {
    fn now(&self) -> Instant {
        SIMULATION.with_borrow(|all| all.as_ref().map_or_else(Instant::default, |all| all.world.now()))
    }

    fn wall_clock(&self) -> u64 {
        self.now().0 / 1_000_000
    }

    // They differ with the time, so that a target that starts again has others: no simulated client guesses.
    fn random(&self, into: &mut [u8]) -> bool {
        let mut value = simulation().world.now().0;
        for byte in into {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (value >> 56) as u8;
        }
        true
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn step(&self) {
        let Simulation { world, cores } = simulation();
        let has_run = Cell::new(false);
        world.run(&cores.iter().collect::<Vec<_>>(), || has_run.replace(true));
    }

    fn spawn(&self, _name: &str, work: Work) -> Result<(), Work> {
        Err(work)
    }

    fn pause(&self, time: Duration) {
        let Simulation { world, cores } = simulation();
        let end = world.now() + time;
        let core = cores[0].clone();
        cores[0].spawn(async move { core.sleep_until(end).await });
        world.run(&cores.iter().collect::<Vec<_>>(), || world.now() >= end);
    }

    fn allows_path(&self, _path: &Path) -> Result<(), PathError> {
        Ok(())
    }

    fn user_number(&self, _name: &str) -> Option<u32> {
        None
    }

    fn group_number(&self, _name: &str) -> Option<u32> {
        None
    }

    fn runtime(&self) -> &Path {
        Path::new(FOLDER)
    }

    fn state(&self) -> &dyn StateStore {
        self
    }
}

impl StateStore for SimulatedHost {
    fn path(&self) -> &Path {
        Path::new(FOLDER)
    }

    fn subsystem(&self, _nqn: &str) -> Arc<dyn MetadataStore> {
        Arc::<VolatileMemory>::default()
    }

    fn port(&self, _name: &str) -> Arc<dyn MetadataStore> {
        self.port.clone()
    }

    fn read(&self, name: &str) -> Result<String, Trouble> {
        Ok(self.texts().get(name).cloned().unwrap_or_default())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Trouble> {
        self.texts().insert(name.to_owned(), text.to_owned());
        Ok(())
    }

    fn volume(&self, uuid: [u8; 16], _is_exclusive: bool) -> Result<Arc<dyn MetadataStore>, MetadataError> {
        let kept = self.volumes.get(&uuid).cloned();
        Ok(kept.unwrap_or_else(|| Arc::<VolatileMemory>::default()))
    }

    fn forget_volume(&self, _uuid: [u8; 16]) {}
}
