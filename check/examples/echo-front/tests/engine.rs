//! An engine with the fronts of the program and one more, on threads and in the simulator.

use lunar::registry::{FRONTS, REGISTRY};
use lunar_control::Schema;
use lunar_control::apply::{MissingPolicy, apply};
use lunar_control::check::{Checked, LocalHost, check};
use lunar_control::live::Live as _;
use lunar_control::plan::Plan;
use lunar_control::versions::Trouble;
use lunar_core::mem::Arena;
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::time::Instant;
use lunar_echo_front::{EchoCore, NAME};
use lunar_engine::core_set::core::Core;
use lunar_engine::engine::{Engine, EngineOptions};
use lunar_engine::front::PortalRef;
use lunar_engine::host::{Host, PathError, StateFolder, StateStore, SystemHost, Work};
use lunar_engine::origin::Origin;
use lunar_engine::registry::Registry;
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Host as Node, World};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The fronts of the program, and one line for another one.
static WITH_ECHO: Registry =
    Registry { fronts: &[FRONTS[0], FRONTS[1], FRONTS[2], lunar_echo_front::ENTRY], backends: REGISTRY.backends };

/// The schema of that registry.
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| WITH_ECHO.schema());

const TARGET: &str = "
    [volume.v]\nkind = 'ram'\nsize = '1M'\nuuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6b00'\n\
    [portal-group.p]\ntag = 1\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nnqn = 'nqn.2026-01.org.example:t'\n\
    portal-groups = ['p']\n[group.g]\ntargets = ['t']\ninitiators = ['*']\nluns = { 0 = 'v' }\n";

fn checked(text: &str) -> Checked {
    let text = format!("[server]\ncores = 2\nmemory = '8M'\ndriver = 'epoll'\ndrain = '100ms'\n{text}");
    check(&SCHEMA, "lunar.toml", &text, &LocalHost { config: PathBuf::new() }).expect("it is valid")
}

fn put_in_force(engine: &mut Engine, before: &Checked, after: &Checked) {
    let strict = MissingPolicy { may_be_missing: BTreeSet::new(), may_lack: BTreeSet::new(), retry: &mut |_, _| false };
    let plan = Plan::between(before, after);
    apply(engine, &plan, after, strict, || Ok(())).expect("it can be made");
    engine.wait_until_final();
}

/// The view of a core: its units, and the names of its maps.
fn seen(core: Rc<Core>) -> std::future::Ready<(usize, Vec<String>)> {
    let maps = core.target.maps().into_iter().map(|(name, map)| format!("{name}: {} LUNs", map.luns().count()));
    std::future::ready((core.mesh.units().len(), maps.collect()))
}

#[test]
fn another_front_is_one_folder_and_one_line() {
    let folder = std::env::temp_dir().join(format!("lunar-echo-{}", std::process::id()));
    let host = SystemHost {
        state: StateFolder::open(&folder).expect("a folder"),
        runtime: folder.clone(),
        allows_path: |_| Ok(()),
        user_number: |_| None,
        group_number: |_| None,
    };
    let port =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr()).expect("a free port").port();
    let portal = format!("[portal.e]\nprotocol = 'echo'\naddress = '127.0.0.1:{port}'\ngroup = 'p'\n");
    let (first, second) = (checked(""), checked(&format!("{TARGET}{portal}")));
    let options =
        EngineOptions { registry: &WITH_ECHO, host: Arc::new(host), lock: None, origin: Origin::Configuration };
    let mut engine = Engine::start(&first.config, options).expect("cores start");
    put_in_force(&mut engine, &first, &second);
    assert_eq!(engine.core_set().cores().ask_all(seen), vec![(1, vec!["g: 1 LUNs".to_owned()]); 2]);
    let address = engine.portals()["e"].address;
    let mut streams: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        let sent = vec![number as u8; 10_000];
        stream.write_all(&sent).expect("it takes them");
        let mut received = vec![0xff; sent.len()];
        stream.read_exact(&mut received).expect("they come back");
        assert_eq!(received, sent);
    }
    let connections = engine.core_set().cores().ask_all(|core| {
        let front = core.front_of::<EchoCore>().expect("it is used");
        std::future::ready(lunar_engine::front::FrontOnCore::connections(&*front))
    });
    assert_eq!(connections.iter().sum::<usize>(), 4);
    engine.end().expect("it ends, and its connections with it");
    assert!(matches!(streams[0].read(&mut [0; 1]), Ok(0) | Err(_)));
    std::fs::remove_dir_all(folder).expect("it is ours");
}

const TARGET_NODE: Node = Node(1);
const CLIENT_NODE: Node = Node(2);
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 7);

/// Virtual time that no run takes.
const TIME_MAX: Duration = Duration::from_secs(1000);

thread_local! {
    /// The world of the simulation on this thread, and its cores.
    static SIMULATION: RefCell<Option<(World, Vec<Reactor>)>> = const { RefCell::new(None) };
}

/// Runs the cores of the simulation for one round.
fn step() {
    let (world, cores) = SIMULATION.with_borrow(|all| {
        let (world, cores) = all.as_ref().expect("it runs");
        (world.clone(), cores.clone())
    });
    let has_run = Cell::new(false);
    world.run(&cores.iter().collect::<Vec<_>>(), || has_run.replace(true));
}

/// A machine whose time is virtual, and which has no threads and no disk.
#[derive(Debug)]
struct SimulatedHost;

impl Host for SimulatedHost {
    fn now(&self) -> Instant {
        SIMULATION.with_borrow(|all| all.as_ref().map_or_else(Instant::default, |(world, _)| world.now()))
    }

    fn wall_clock(&self) -> u64 {
        self.now().0 / 1_000_000
    }

    fn random(&self, into: &mut [u8]) -> bool {
        into.fill(7);
        true
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn step(&self) {
        step();
    }

    fn spawn(&self, _name: &str, work: Work) -> Result<(), Work> {
        Err(work)
    }

    fn pause(&self, _time: Duration) {
        step();
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
        Path::new("/simulated")
    }

    fn state(&self) -> &dyn StateStore {
        self
    }
}

impl StateStore for SimulatedHost {
    fn path(&self) -> &Path {
        Path::new("/simulated")
    }

    fn subsystem(&self, _nqn: &str) -> Arc<dyn MetadataStore> {
        Arc::<VolatileMemory>::default()
    }

    fn port(&self, _name: &str) -> Arc<dyn MetadataStore> {
        Arc::<VolatileMemory>::default()
    }

    fn read(&self, _name: &str) -> Result<String, Trouble> {
        Ok(String::new())
    }

    fn write(&self, _name: &str, _text: &str) -> Result<(), Trouble> {
        Ok(())
    }

    fn forget_volume(&self, _uuid: [u8; 16]) {}
}

/// One life of a simulated target, from its start to its end or its crash. Returns the trace of the world.
fn simulate(seed: u64, crashes: bool) -> u64 {
    let world = World::new(seed);
    world.set_deadline(Instant(TIME_MAX.as_nanos() as u64));
    let clients = Reactor::with_driver(world.core(CLIENT_NODE), Arena::new(1 << 20), Arc::default());
    let (first, second) = (checked(""), checked(TARGET));
    let options = EngineOptions {
        registry: &WITH_ECHO,
        host: Arc::new(SimulatedHost),
        lock: None,
        origin: Origin::Configuration,
    };
    let (mut engine, stepped) = Engine::on_reactors(&first.config, options, |shared| {
        let core = |stats| Reactor::with_driver(world.core(TARGET_NODE), Arena::new(8 << 20), stats);
        shared.stats.iter().cloned().map(core).collect()
    })
    .expect("cores start");
    let mut all: Vec<Reactor> = stepped.reactors().into_iter().cloned().collect();
    all.push(clients.clone());
    SIMULATION.replace(Some((world.clone(), all)));
    // The control side waits for cores that run on this thread.
    put_in_force(&mut engine, &first, &second);
    assert_eq!(engine.core_set().cores().ask_all(seen), vec![(1, vec!["g: 1 LUNs".to_owned()]); 2]);
    let index = WITH_ECHO.front_index(NAME).expect("it is registered");
    engine.core_set().listen(70, ADDRESS).expect("nobody listens there");
    engine.core_set().accept(70, (index, PortalRef { portal: 70, group: 1 }));
    let (peer, echoed) = (world.connect(ADDRESS), Rc::new(Cell::new(0)));
    let count = echoed.clone();
    clients.spawn(async move {
        peer.send(&[0x5a; 1000]).await.expect("it is connected");
        while count.get() < 1000 {
            let bytes = peer.receive(1000).await.expect("it is connected");
            assert!(!bytes.is_empty() && bytes.iter().all(|byte| *byte == 0x5a));
            count.set(count.get() + bytes.len());
        }
        peer.send(&[1]).await.expect("it is connected");
        while peer.receive(10).await.is_ok_and(|bytes| !bytes.is_empty()) {}
    });
    while echoed.get() < 1000 {
        step();
    }
    assert!(engine.statistics()["volumes"]["v"].is_object() && engine.troubles().is_empty());
    put_in_force(&mut engine, &second, &first);
    assert_eq!(engine.core_set().cores().ask_all(seen), vec![(0, vec![]); 2]);
    if crashes {
        world.crash(TARGET_NODE, true);
    } else {
        engine.core_set().cores().drain();
        while stepped.ended().is_none() {
            step();
        }
        assert_eq!((stepped.ended(), stepped.leftovers()), (Some(true), vec![]));
    }
    let core = stepped.cores().next().map(Rc::downgrade).expect("there is a core");
    SIMULATION.replace(None);
    drop((engine, stepped));
    assert_eq!(core.strong_count(), 0, "nothing is left in memory");
    world.trace_hash()
}

#[test]
fn the_same_engine_runs_in_the_simulator() {
    for seed in 0..20 {
        let hash = simulate(seed, false);
        assert_eq!(simulate(seed, false), hash, "the same seed is the same run");
        let _ = simulate(seed, true);
    }
}
