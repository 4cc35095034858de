//! A machine of the simulation that runs the target: as many cores as you like, built as `lunar serve` builds
//! them, on drivers of the simulator.

use crate::block::Port;
use crate::identity;
use crate::stamp::SECTOR;
use crate::watch::Watch;
use lunar::cores::{AllCores, Face, Letter, Links, OtherCores, OtherSessions, OtherViews, Served};
use lunar::steward::Errands;
use lunar_core::access::Access;
use lunar_core::io::{Completion, Data, Io, Op, Store, Traits, submit};
use lunar_core::medium::Medium;
use lunar_core::mem::Arena;
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::range::{Ranges, Span};
use lunar_core::stats::Stats;
use lunar_core::tally::Tally;
use lunar_core::time::Instant;
use lunar_core::unit::{Exclusive, Geometry, Unit, UnitId};
use lunar_iscsi::authenticator::Authenticator;
use lunar_iscsi::config;
use lunar_iscsi::directory::{Directory, Portal, PortalRef, TargetEntry};
use lunar_iscsi::registry::{Registry, SESSIONS_MAX};
use lunar_iscsi::serve::Front;
use lunar_nvme::controller::CONTROLLERS_MAX;
use lunar_nvme::directory::{Directory as Subsystems, Entry as NvmeEntry, Way as NvmeWay};
use lunar_nvme::{Board, Controllers, Subsystem, SubsystemConfig};
use lunar_nvme_tcp::serve as nvme;
use lunar_ram::RamVolume;
use lunar_reactor::Reactor;
use lunar_reactor::channel::{Receiver, Sender, channel};
use lunar_reactor::disk::{Alignment, Health, Policy};
use lunar_reactor::op::How;
use lunar_reactor::sim::{Chance, Faults, Host};
use lunar_scsi::{Clock, PortConfig, Target, TargetConfig, Tokens};
use lunar_unit::{CoreUnits, SharedUnits};
use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// The machine of the target.
pub const HOST: Host = Host(1);
/// Where it listens.
pub const PORTAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 3260);
/// Where it listens for NVMe/TCP.
pub const NVME_PORTAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4420);
/// The name of its subsystem.
pub const NQN: &str = "nqn.2026-01.io.lunar:simulated";
/// The name of its target.
pub const TARGET: &str = "iqn.2026-01.io.lunar:simulated";

/// How long commands get to finish when it stops.
const DRAIN: Duration = Duration::from_secs(10);
const PROTOCOL_ISCSI: u8 = 5;
const PORTAL_GROUP: u16 = 1;
/// How long the core that accepts rests after an error.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What a volume is kept in.
#[derive(Clone, Debug)]
pub enum Kept {
    /// In memory: gone with the process.
    Ram,
    /// In a file.
    File(Policy),
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// What it is kept in.
    pub kept: Kept,
    /// Sectors of 512 bytes.
    pub sectors: usize,
    /// Bytes of a logical block.
    pub block_size: u32,
}

impl Volume {
    fn any(chance: &mut Chance) -> Self {
        let policy = Policy {
            durable: chance.odds(200_000),
            direct: chance.odds(300_000).then_some(Alignment { memory: SECTOR, length: SECTOR }),
        };
        Self {
            kept: if chance.odds(750_000) { Kept::File(policy) } else { Kept::Ram },
            sectors: 64 << chance.within(0..=5),
            block_size: *chance.pick(&[512, 512, 4096]),
        }
    }

    /// Whether each write is on the medium when it is answered.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        matches!(self.kept, Kept::File(Policy { durable: true, .. }))
    }

    /// Whether it outlives the process.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(self.kept, Kept::File(_))
    }

    /// Sectors of a logical block.
    #[must_use]
    pub fn block_sectors(&self) -> usize {
        self.block_size as usize / SECTOR
    }

    fn traits(&self) -> Traits {
        Traits {
            size: (self.sectors * SECTOR) as u64,
            read_only: false,
            write_cache: !self.is_durable(),
            thin: true,
            unmap_granularity: 4096,
            unmap_zeroes: true,
            physical_block: 4096,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        }
    }
}

/// What a seed sets up on the target's side.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Virtual cores.
    pub cores: usize,
    /// Bytes of each core's arena.
    pub arena_bytes: usize,
    /// Its volumes, by LUN.
    pub volumes: Vec<Volume>,
    /// What sessions are offered.
    pub session: config::Config,
    /// What goes wrong.
    pub faults: Faults,
}

impl Setup {
    /// Any.
    #[must_use]
    pub fn any(chance: &mut Chance) -> Self {
        let first_burst = 512 << chance.within(0..=8);
        let session = config::Config {
            max_recv_segment: 512 << chance.within(0..=9),
            max_burst: first_burst << chance.within(0..=3),
            first_burst,
            initial_r2t: chance.odds(300_000),
            immediate_data: chance.odds(700_000),
            max_outstanding_r2t: 1 + chance.within(0..=7) as u32,
            digests: chance.odds(700_000),
            window: 1 << chance.within(0..=7),
            unsolicited_max: 1 << chance.within(14..=22),
            ..config::Config::default()
        };
        Self {
            cores: chance.within(1..=3) as usize,
            arena_bytes: (1 << 20) << chance.within(0..=4),
            volumes: (0..chance.within(1..=3)).map(|_| Volume::any(chance)).collect(),
            session,
            faults: Faults::any(chance),
        }
    }

    /// Makes the files.
    pub fn create_files(&self, watch: &Watch) {
        for (lun, volume) in self.volumes.iter().enumerate() {
            if volume.is_file() {
                watch.world().create(path(lun), volume.sectors * SECTOR);
            }
        }
    }
}

fn path(lun: usize) -> PathBuf {
    format!("volume{lun}").into()
}

/// The target, running.
pub struct Machine {
    cores: Vec<Core>,
    registry: Arc<Registry>,
    controllers: Arc<Controllers>,
    stop: Rc<Stop>,
}

struct Core {
    reactor: Reactor,
    front: Rc<Front>,
    nvme: Rc<nvme::Front>,
    block: Rc<Port>,
    mailbox: Sender<Letter>,
}

#[derive(Default)]
struct Stop {
    stopped: Cell<usize>,
    flush_failed: Cell<bool>,
}

impl Machine {
    /// Starts it. It keeps nothing beside the data over its end.
    #[must_use]
    pub fn start(watch: &Watch, setup: &Setup) -> Self {
        let keeps: Vec<_> =
            setup.volumes.iter().map(|_| Arc::new(VolatileMemory::default()) as Arc<dyn MetadataStore>).collect();
        Self::start_keeping(watch, setup, &keeps)
    }

    /// Starts it with what its volumes have kept beside their data.
    ///
    /// # Panics
    /// When that is not what a machine keeps.
    #[must_use]
    pub fn start_keeping(watch: &Watch, setup: &Setup, keeps: &[Arc<dyn MetadataStore>]) -> Self {
        let registry = Arc::new(Registry::new());
        let stats: Vec<Arc<Stats>> = (0..setup.cores).map(|_| Arc::default()).collect();
        let opened: Vec<Opened> = setup
            .volumes
            .iter()
            .zip(keeps)
            .enumerate()
            .map(|(lun, (volume, keep))| Opened::of(lun, volume, keep))
            .collect();
        let reactors: Vec<Reactor> = stats
            .iter()
            .map(|stats| Reactor::with_driver(watch.world().core(HOST), Arena::new(setup.arena_bytes), stats.clone()))
            .collect();
        let (mailboxes, letters): (Vec<Sender<Letter>>, Vec<Receiver<Letter>>) =
            reactors.iter().map(channel::<Letter>).unzip();
        let stop = Rc::new(Stop::default());
        let guard = Authenticator::silent(directory(setup));
        let (shared, controllers) = (Arc::new(SharedUnits::default()), Arc::new(Controllers::default()));
        for (lun, keep) in keeps.iter().enumerate() {
            shared.restore(UnitId(lun as u32), &**keep).expect("what was kept is whole");
        }
        let board = board();
        let mut cores = Vec::new();
        for (me, (reactor, letters)) in reactors.into_iter().zip(letters).enumerate() {
            let links = Links::new(me, mailboxes.clone());
            let core_units = CoreUnits::new(shared.clone(), Rc::new(OtherCores(links.clone())));
            let target = Target::new(target_config(&reactor, stats[me].clone(), core_units.clone()));
            let units = open_units(setup, &opened, &reactor, &links, &target);
            let peers = Rc::new(OtherSessions(links.clone()));
            let front = Front::new(&reactor, &target, guard.clone(), registry.clone(), me, peers);
            let subsystem = subsystem(&reactor, stats[me].clone(), &core_units, (&controllers, &board), &links);
            for (id, unit) in (1..).zip(&units) {
                subsystem.add_namespace(id, unit.clone());
            }
            let settings = nvme::Settings { advertise: None, drain: DRAIN, channels: None };
            let nvme = nvme::Front::new(&reactor, &subsystem, settings);
            let block = Port::new(&stats[me], &core_units, &units);
            reactor.spawn(block.clone().serve(reactor.clone()));
            let (iscsi, served_nvme) = (front.clone(), nvme.clone());
            let served = Served {
                units: core_units,
                target,
                subsystem,
                iscsi,
                nvme: served_nvme.into(),
                machines: OnceCell::new(),
                core: OnceCell::new(),
            };
            let served = Rc::new(served);
            let core = reactor.clone();
            reactor.spawn(async move { links.serve(&core, letters, &served).await });
            reactor.spawn(until_stopped(front.clone(), nvme.clone(), block.clone(), units, stop.clone()));
            cores.push(Core { reactor, front, nvme, block, mailbox: mailboxes[me].clone() });
        }
        let acceptor = cores[0].reactor.clone();
        for (portal, face) in [
            (PORTAL, Face::Iscsi(PortalRef { portal: 0, group: PORTAL_GROUP })),
            (NVME_PORTAL, Face::Nvme(NvmeWay::default())),
        ] {
            let (acceptor, mailboxes, stats) = (acceptor.clone(), mailboxes.clone(), stats.clone());
            cores[0].reactor.spawn(accept(acceptor, portal, face, mailboxes, stats));
        }
        Self { cores, registry, controllers, stop }
    }

    /// Its cores, to be run.
    #[must_use]
    pub fn reactors(&self) -> Vec<&Reactor> {
        self.cores.iter().map(|core| &core.reactor).collect()
    }

    /// Where virtual machines find it: one port for each core.
    #[must_use]
    pub fn ports(&self) -> Vec<Rc<Port>> {
        self.cores.iter().map(|core| core.block.clone()).collect()
    }

    /// Asks it to stop as a signal does: see [`Machine::stopped`].
    pub fn stop(&self) {
        self.cores.iter().for_each(|core| core.block.drain());
        self.cores.iter().for_each(|core| core.mailbox.send(Letter::Drain));
    }

    /// Whether all cores have stopped; then, whether everything was flushed.
    #[must_use]
    pub fn stopped(&self) -> Option<bool> {
        (self.stop.stopped.get() == self.cores.len()).then(|| !self.stop.flush_failed.get())
    }

    /// What is left over when no initiator is there any more.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (number, core) in self.cores.iter().enumerate() {
            let stats = core.reactor.stats();
            let counts = [
                ("connections", core.front.connections() as u64),
                ("connections of NVMe", core.nvme.connections() as u64),
                ("clients of block devices", core.block.clients() as u64),
                ("connections counted", stats.connections.get()),
                ("sessions counted", stats.sessions.get()),
                ("bytes of memory", core.reactor.arena().used() as u64),
            ];
            let over = counts.into_iter().filter(|(_, count)| *count > 0);
            left.extend(over.map(|(what, count)| format!("core {number}: {count} {what} left over")));
        }
        let controllers = self.controllers.all().len();
        if controllers > 0 {
            left.push(format!("{controllers} controllers left over"));
        }
        if !self.registry.is_empty() {
            left.push(format!("{} sessions registered", self.registry.len()));
        }
        left
    }
}

/// A volume as all cores share it.
struct Opened {
    kind: OpenedKind,
    keep: Arc<dyn MetadataStore>,
}

enum OpenedKind {
    Ram(RamVolume),
    File(Arc<Health>, Policy),
}

impl Opened {
    fn of(lun: usize, volume: &Volume, keep: &Arc<dyn MetadataStore>) -> Self {
        let kind = match volume.kept {
            Kept::Ram => OpenedKind::Ram(RamVolume::new(volume.traits().size, false).expect("small")),
            Kept::File(policy) => OpenedKind::File(Health::new(format!("volume{lun}")), policy),
        };
        Self { kind, keep: keep.clone() }
    }

    fn open(&self, reactor: &Reactor, lun: usize, traits: Traits) -> Box<dyn Store> {
        match &self.kind {
            OpenedKind::Ram(ram) => ram.open(reactor).expect("memory opens"),
            OpenedKind::File(health, policy) => {
                let how = How { direct: policy.direct.is_some(), durable: policy.durable, read_only: false };
                let open = || reactor.driver().open(&path(lun), how).expect("the file was made");
                lunar_file::over(reactor, [open(), open(), open()], *policy, health, traits)
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cores.iter().for_each(|core| core.block.close());
        let fronts: Vec<_> = self.cores.iter().map(|core| (core.front.clone(), core.nvme.clone())).collect();
        // The reactors first: their tasks hold connections.
        self.cores.clear();
        for (iscsi, nvme) in fronts {
            iscsi.abandon();
            nvme.abandon();
        }
    }
}

fn target_config(reactor: &Reactor, stats: Arc<Stats>, units: Rc<CoreUnits>) -> TargetConfig {
    let port = PortConfig {
        relative: 1,
        group: PORTAL_GROUP,
        name: format!("{TARGET},t,0x{PORTAL_GROUP:04x}"),
        device: TARGET.to_owned(),
        protocol: PROTOCOL_ISCSI,
    };
    // No simulated host copies by token: there is none.
    let tokens = Tokens::new(Box::new(|_: &mut [u8]| false), Box::new(Instant::default));
    let time = reactor.clone();
    TargetConfig { ports: vec![port], clock: Clock(Rc::new(move || time.now().0 / 1_000_000)), stats, units, tokens }
}

/// NVMe's view of the same units.
fn subsystem(
    reactor: &Reactor,
    stats: Arc<Stats>,
    units: &Rc<CoreUnits>,
    (controllers, board): (&Arc<Controllers>, &Arc<Board>),
    links: &Rc<Links>,
) -> Rc<Subsystem> {
    let time = reactor.clone();
    let config = SubsystemConfig {
        clock: Rc::new(move || time.now().0 / 1_000_000),
        stats,
        units: units.clone(),
        controllers: controllers.clone(),
        board: board.clone(),
        guard: lunar_nvme::auth::guard::Guard::quiet(board.clone()),
        outside: Rc::new(lunar_nvme::fuzzing::Still::default()),
    };
    Subsystem::new(config, Rc::new(OtherViews(links.clone(), Errands::new(reactor, &Arc::default()))))
}

/// One subsystem, for everybody.
fn board() -> Arc<Board> {
    let entry = NvmeEntry {
        nqn: NQN.into(),
        serial: "1".to_owned(),
        model: "SIMULATED".to_owned(),
        firmware: "1".to_owned(),
        groups: None,
        access: Arc::new(Access::open()),
        terms: lunar_nvme::auth::exchange::Terms::default(),
        history: Arc::default(),
        controllers_max: CONTROLLERS_MAX,
        pools: std::collections::BTreeMap::new(),
    };
    let board = Arc::new(Board::default());
    board.set(Subsystems::new(vec![entry], Default::default(), None).expect("nobody proves anything"));
    board
}

fn directory(setup: &Setup) -> Directory {
    let mut directory = Directory::new(DRAIN);
    directory.session = Arc::new(setup.session.clone());
    directory.portals = vec![Portal { id: 0, group: PORTAL_GROUP, address: None, is_advertised: true }];
    directory.add(TargetEntry {
        name: TARGET.into(),
        alias: "simulated".into(),
        ports: [(PORTAL_GROUP, 1)].into(),
        access: Arc::new(Access::open()),
        session: directory.session.clone(),
        sessions_max: SESSIONS_MAX,
        moved: None,
    });
    directory
}

fn open_units(
    setup: &Setup,
    opened: &[Opened],
    reactor: &Reactor,
    links: &Rc<Links>,
    target: &Rc<Target>,
) -> Vec<Rc<Unit>> {
    let mut units = Vec::new();
    for (lun, volume) in setup.volumes.iter().enumerate() {
        let store = opened[lun].open(reactor, lun, volume.traits());
        let unit = Rc::new(Unit {
            id: UnitId(lun as u32),
            identity: Arc::new(identity(lun as u8)),
            geometry: Geometry::of(store.traits(), volume.block_size).expect("whole blocks"),
            read_only: false,
            store,
            ranges: Rc::new(Ranges::default()),
            protection: None,
            medium: Medium::default(),
            tally: Tally::default(),
            exclusive: Rc::new(LooseCores(Rc::downgrade(links))),
            metadata: opened[lun].keep.clone(),
        });
        links.add_unit(&unit);
        target.add_unit(lun as u16, unit.clone());
        units.push(unit);
    }
    units
}

/// [`AllCores`] without a hold on the links, which hold the units: a machine that crashed leaves no memory behind.
struct LooseCores(Weak<Links>);

impl Exclusive for LooseCores {
    fn lock_exclusive(&self, unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>> {
        let links = self.0.upgrade().expect("a machine keeps its links while its tasks run");
        AllCores(links).lock_exclusive(unit, span)
    }
}

/// Ends a core as `lunar serve` does: connections drain, then everything is flushed.
async fn until_stopped(front: Rc<Front>, nvme: Rc<nvme::Front>, block: Rc<Port>, units: Vec<Rc<Unit>>, stop: Rc<Stop>) {
    front.drained().await;
    nvme.drained().await;
    block.drained().await;
    for unit in &units {
        let io = Io { op: Op::Flush, offset: 0, data: Data::None };
        let outcome = submit(&*unit.store, io, &mut Completion::new()).await;
        stop.flush_failed.set(stop.flush_failed.get() || outcome.result.is_err());
    }
    stop.stopped.set(stop.stopped.get() + 1);
}

/// Hands each connection to the core that has the fewest.
async fn accept(
    reactor: Reactor,
    portal: SocketAddr,
    face: Face,
    mailboxes: Vec<Sender<Letter>>,
    stats: Vec<Arc<Stats>>,
) {
    let (listener, _) = reactor.driver().listen(portal).expect("nobody else listens");
    let mut given = vec![0_u64; mailboxes.len()];
    loop {
        match reactor.accept(&listener).await {
            Ok(incoming) => {
                let core = (0..mailboxes.len()).min_by_key(|&core| (stats[core].connections.get(), given[core]));
                let core = core.unwrap_or(0);
                given[core] += 1;
                mailboxes[core].send(Letter::Connection(face, incoming));
            }
            Err(_) => reactor.sleep(ACCEPT_REST).await,
        }
    }
}
