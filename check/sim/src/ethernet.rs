//! The scenarios of ATA over Ethernet, of Fibre Channel over Ethernet, of SCSI over Scheduled Transfer, and of SRP,
//! NVMe and iSCSI over RDMA: stations write and read disks of a target over a network that loses, duplicates and
//! reorders packets. Stores are slow, so that stations send their requests again, and the target crashes. Each sector
//! has the contents of the last write that was acknowledged.

use crate::backends::SimulatedDisk;
use crate::carrier::{Carrier, FramedSocket, Socket};
use crate::configuration::uuid;
use crate::engine_host::{self, SimulatedHost};
use crate::iser_disk;
use crate::nvme_rdma_disk;
use crate::operation::{Operation, StationEvent};
use crate::rdma_adapter;
use crate::setup::path;
use crate::srp_disk;
use crate::stamp::{self, SECTOR};
use crate::stations::{Kind, Protocol, Station};
use crate::watch::Watch;
use lunar_aoe::front::{AoeCore, AoeFront};
use lunar_aoe::wire::{Address, ETHER_TYPE};
use lunar_control::apply::{MissingPolicy, apply};
use lunar_control::check::{LocalHost, check};
use lunar_control::{Checked, Plan, Schema};
use lunar_core::mem::Arena;
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_engine::core_set::SteppedCores;
use lunar_engine::engine::{Engine, EngineOptions};
use lunar_engine::link_ports::PortsFront;
use lunar_engine::origin::Origin;
use lunar_engine::registry::{FrontEntry, Registry};
use lunar_fcoe::front::{FcoeCore, FcoeFront};
use lunar_fcoe::wire::{fip, frame};
use lunar_iscsi::front::Iscsi;
use lunar_iscsi::iser::front::{IserCore, IserFront};
use lunar_link::{Filter, Header, Link, LinkAddress, LinkConfig, MacAddress, OpenedLink};
use lunar_nvme_rdma::front::{NvmeRdmaCore, NvmeRdmaFront};
use lunar_ram::backend::RamBackend;
use lunar_rdma::address::{LinkSettings, OnLink, PortAddress};
use lunar_rdma::ethernet::network::Network;
use lunar_rdma::socket::{Opened, OpenedCarrier};
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Chance, Faults, Host, MILLION, Segment, World};
use lunar_srp::front::{SrpCore, SrpFront};
use lunar_sst::front::{StCore, StFront};
use lunar_st::port::{LinkSpec, OpenedPort};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The machines.
const TARGET: Host = Host(1);
const STATIONS: Host = Host(2);
/// The shelf, and the slot of the first volume.
const SHELF: u16 = 3;
const FIRST_SLOT: u8 = 4;
/// Sectors that one task writes and reads: no other task uses them.
const TASK_SECTORS: usize = 48;
/// Tasks of a station.
const TASKS: usize = 3;
/// The latest arrival of a frame that others overtake. The target recognises copies of the last thousand writes of a
/// station, so they must not be written in this time.
const LATE_MAX: Duration = Duration::from_millis(10);
/// The time in which the target frees all resources after the last command.
const QUIET: Duration = Duration::from_secs(30);

thread_local! {
    /// The segment of the simulation on this thread.
    static SEGMENT: Cell<Option<Segment>> = const { Cell::new(None) };
}

/// Opens the link of the target: its station of the segment.
fn open_link(config: &LinkConfig) -> io::Result<OpenedLink> {
    let segment = SEGMENT.get().ok_or(io::ErrorKind::NotFound)?;
    let endpoint = engine_host::world().link(segment, mac(0), &config.types)?;
    Ok(OpenedLink::on(endpoint, config))
}

/// As [`open_link`], for Scheduled Transfer.
fn open_port(spec: &LinkSpec) -> io::Result<OpenedPort> {
    match spec {
        LinkSpec::Frames(config) => open_link(config).map(OpenedPort::Frames),
        LinkSpec::Udp(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Opens the socket or the link of the target for RDMA.
fn open_rdma(address: &PortAddress) -> io::Result<Opened> {
    if let Some(on) = address.link() {
        let link = open_link(&on.link).map(|link| OpenedCarrier::Link(link, on.network, on.link.mac));
        return Opened::new(address, link);
    }
    let socket = engine_host::world().udp(SocketAddr::new(address.at.ip(), lunar_rdma::wire::PORT));
    Opened::new(address, socket.map(OpenedCarrier::Socket))
}

/// The MAC address of a station; 0 is the target.
fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

static REGISTRY: Registry = Registry {
    fronts: &[
        FrontEntry { front: &AoeFront { open: open_link }, schema: &lunar_aoe::links::FRONT, options: None },
        FrontEntry { front: &FcoeFront { open: open_link }, schema: &lunar_fcoe::links::FRONT, options: None },
        FrontEntry { front: &StFront { open: open_port }, schema: &lunar_sst::links::FRONT, options: None },
        FrontEntry { front: &SrpFront { open: open_rdma }, schema: &lunar_srp::schema::FRONT, options: None },
        FrontEntry {
            front: &NvmeRdmaFront(PortsFront { open: open_rdma }),
            schema: &lunar_nvme_rdma::schema::FRONT,
            options: None,
        },
        FrontEntry { front: &Iscsi, schema: &lunar_iscsi::schema::FRONT, options: None },
        FrontEntry {
            front: &IserFront(PortsFront { open: open_rdma }),
            schema: &lunar_iscsi::iser::schema::FRONT,
            options: None,
        },
    ],
    backends: &[&SimulatedDisk, &RamBackend],
};

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| REGISTRY.schema());

/// The set-up of a seed.
#[derive(Clone, Debug)]
struct Setup {
    cores: usize,
    volumes: usize,
    stations: usize,
    /// Whether the volumes are files, which survive crashes, or in memory.
    are_files: bool,
    /// Whether stations flush what they have written: the target has a volatile cache, which ATA over Ethernet hides.
    flushes: bool,
    mtu: usize,
    kind: Kind,
    /// Whether RDMA is on the segment, in frames.
    is_framed: bool,
    commands: usize,
    crashes: usize,
    faults: Faults,
}

impl Setup {
    /// A station, and a volume in a file, without faults: for conversations.
    #[cfg(test)]
    fn plain(kind: Kind) -> Self {
        Self {
            cores: 1,
            volumes: 1,
            stations: 1,
            are_files: true,
            flushes: false,
            mtu: 1500,
            kind,
            // Frames of a link leave together.
            is_framed: kind == Kind::Iser,
            commands: 0,
            crashes: 0,
            faults: Faults::none(),
        }
    }

    fn any(chance: &mut Chance, protocol: Protocol) -> Self {
        let (are_files, coin) = (chance.odds(700_000), chance.coin());
        let kind = match protocol {
            Protocol::Aoe => Kind::Aoe { fresh_tags: coin },
            Protocol::Fcoe => Kind::Fcoe { is_larger: coin },
            Protocol::St => Kind::St,
            Protocol::Srp => Kind::Srp,
            Protocol::NvmeRdma => Kind::NvmeRdma,
            Protocol::Iser => Kind::Iser,
        };
        let any = Faults::any(chance);
        let rate = |chance: &mut Chance, most: u32| if chance.coin() { chance.index(most as usize) as u32 } else { 0 };
        let mut faults = Faults {
            latency: (any.latency.0, any.latency.1.min(LATE_MAX / 4)),
            file_time: any.file_time,
            slow: any.slow,
            slow_time: (Duration::from_millis(1), Duration::from_millis(900)),
            stall_time: (Duration::from_micros(100), LATE_MAX),
            datagram_loss: rate(chance, 30_000),
            datagram_duplicate: rate(chance, 30_000),
            datagram_reorder: rate(chance, 30_000),
            stray_frame: any.stray_frame,
            eager: any.eager,
            ..Faults::none()
        };
        match kind {
            // A copy with another tag that the network delays until newer writes have ended is a new request for every
            // target: the protocol cannot tell.
            Kind::Aoe { fresh_tags: true } => (faults.datagram_duplicate, faults.datagram_reorder) = (0, 0),
            Kind::Aoe { fresh_tags: false } | Kind::St | Kind::Srp | Kind::NvmeRdma | Kind::Iser => {}
            // Identifiers of exchanges are used again at once: no network of a Fibre Channel duplicates frames.
            Kind::Fcoe { .. } => faults.datagram_duplicate = 0,
        }
        let is_framed = matches!(kind, Kind::Srp | Kind::NvmeRdma | Kind::Iser) && chance.coin();
        Self {
            cores: chance.within(1..=2) as usize,
            volumes: chance.within(1..=2) as usize,
            stations: chance.within(1..=3) as usize,
            are_files,
            flushes: protocol != Protocol::Aoe && are_files && chance.coin(),
            mtu: *chance.pick(&[1500, 4000, 9000]),
            kind,
            is_framed,
            commands: chance.within(10..=60) as usize,
            crashes: if are_files { chance.index(3) } else { 0 },
            faults,
        }
    }

    fn sectors(&self) -> usize {
        self.stations * TASKS * TASK_SECTORS
    }

    /// The configuration of the target.
    fn text(&self) -> String {
        let mut text = self.server();
        text += "[portal-group.p]\ntag = 1\n[target.t]\niqn = 'iqn.2026-01.io.lunar:lan'\nportal-groups = ['p']\n";
        text += &format!("nqn = '{}'\n", nvme_rdma_disk::NQN);
        for lun in 0..self.volumes {
            let digits = format!("{:032x}", u128::from_be_bytes(uuid(lun)));
            let uuid = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
            // A write to a `String` cannot fail.
            let _ = writeln!(text, "[volume.v{lun}]\nuuid = '{uuid}'\nsize = {}", self.sectors() * SECTOR);
            let _ = match self.are_files {
                true => {
                    let is_durable = !matches!(self.kind, Kind::Aoe { .. }) && !self.flushes;
                    let path = path(lun);
                    writeln!(text, "kind = 'file'\npath = '{}'\nwrite-through = {is_durable}", path.display())
                }
                false => writeln!(text, "kind = 'ram'"),
            };
        }
        let luns: Vec<String> = (0..self.volumes).map(|lun| format!("{lun} = 'v{lun}'")).collect();
        let initiators = match self.kind {
            Kind::Aoe { .. } => "02:*",
            Kind::Fcoe { .. } => "20:00:02:*",
            Kind::St => "iqn.2026-01.io.lunar:02:*",
            Kind::Srp => "0x*",
            Kind::NvmeRdma => "nqn.2026-01.io.lunar:host:*",
            Kind::Iser => iser_disk::INITIATORS,
        };
        let luns = luns.join(", ");
        text += &format!("[group.g]\ntargets = ['t']\ninitiators = ['{initiators}']\nluns = {{ {luns} }}\n");
        let first = match self.kind {
            Kind::Aoe { .. } => {
                let address = format!("shelf = {SHELF}\nfirst-slot = {FIRST_SLOT}");
                return text + &format!("[aoe.lan]\nlink = 'sim0'\n{address}\ntarget = 't'\n");
            }
            Kind::Fcoe { is_larger: true } => 50,
            Kind::Fcoe { is_larger: false } => 10,
            Kind::St => return text + "[st.lan]\nlink = 'sim0'\ntarget = 't'\n",
            Kind::Srp => {
                let (address, guid) = (self.rdma_address(), srp_disk::GUID);
                return text + &format!("[srp.lan]\n{address}target = 't'\nguid = '{guid:016x}'\n");
            }
            Kind::NvmeRdma => {
                return text + &format!("[nvme-rdma.lan]\n{}portal-group = 'p'\n", self.rdma_address());
            }
            Kind::Iser => {
                return text + &format!("[iser.lan]\n{}portal-group = 'p'\n", self.rdma_address());
            }
        };
        text + &format!("[fcoe.lan]\nlink = 'sim0'\ntarget = 't'\nwwpn = '{first}:00:00:00:00:00:00:01'\n")
    }

    /// The keys that say where a port over RDMA is.
    fn rdma_address(&self) -> String {
        let address = rdma_adapter::TARGET;
        match self.is_framed {
            true => format!("address = '{address}/24'\nlink = 'sim0'\n"),
            false => format!("address = '{address}'\n"),
        }
    }

    /// The configuration without any object: the one in force before.
    fn server(&self) -> String {
        format!("[server]\ncores = {}\ndriver = 'epoll'\ndrain = '10s'\n", self.cores)
    }
}

fn checked(text: &str) -> Checked {
    let outside = LocalHost { config: PathBuf::new() };
    check(&SCHEMA, "simulated", text, &outside).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// The metadata that outlasts crashes.
#[derive(Default)]
struct Kept {
    volumes: Vec<Arc<dyn MetadataStore>>,
    port: Arc<VolatileMemory>,
}

/// The target, running.
struct LanTarget {
    /// Ends with the target.
    engine: Engine,
    cores: SteppedCores,
    /// The configuration in force.
    applied: Checked,
}

impl LanTarget {
    fn start(world: &World, setup: &Setup, kept: &Kept, stations: &Reactor) -> Self {
        engine_host::enter(world);
        let volumes = kept.volumes.iter().enumerate().map(|(lun, keep)| (uuid(lun), keep.clone()));
        let host = Arc::new(SimulatedHost::new(volumes.collect()).keeping_port(&kept.port));
        let empty = checked(&setup.server());
        let options = EngineOptions { registry: &REGISTRY, host, lock: None, origin: Origin::Configuration };
        let (engine, cores) = Engine::on_reactors(&empty.config, options, |shared| {
            let core = |stats| Reactor::with_driver(world.core(TARGET), Arena::new(4 << 20), stats);
            shared.stats.iter().cloned().map(core).collect()
        })
        .expect("the cores start");
        let mut target = Self { engine, cores, applied: empty };
        target.engine.audit_to(Box::new(|_| ()));
        target.apply(&setup.text(), stations);
        target
    }

    /// Puts a configuration in force.
    fn apply(&mut self, text: &str, stations: &Reactor) {
        let wanted = checked(text);
        let plan = Plan::between(&self.applied, &wanted);
        let all = self.cores.reactors().into_iter().chain([stations]).cloned().collect();
        let engine = &mut self.engine;
        engine_host::controlling(all, || {
            let strict =
                MissingPolicy { may_be_missing: BTreeSet::new(), may_lack: BTreeSet::new(), retry: &mut |_, _| false };
            apply(engine, &plan, &wanted, strict, || Ok(())).expect("the configuration can be applied");
            engine.wait_until_final();
        });
        self.applied = wanted;
    }

    /// Commands in progress.
    fn in_progress(&self) -> usize {
        let aoe = self.cores.cores().filter_map(|core| core.front_of::<AoeCore>());
        let fcoe = self.cores.cores().filter_map(|core| core.front_of::<FcoeCore>());
        let st = self.cores.cores().filter_map(|core| core.front_of::<StCore>());
        let fcoe = fcoe.map(|front| front.in_progress());
        let st = st.map(|front| front.in_progress());
        let srp = self.cores.cores().filter_map(|core| core.front_of::<SrpCore>());
        let srp = srp.map(|front| front.in_progress());
        let nvme = self.cores.cores().filter_map(|core| core.front_of::<NvmeRdmaCore>());
        let nvme = nvme.map(|front| front.in_progress());
        let iser = self.cores.cores().filter_map(|core| core.front_of::<IserCore>());
        let iser = iser.map(|front| front.in_progress());
        let aoe = aoe.map(|front| front.front().in_progress());
        aoe.chain(fcoe).chain(st).chain(srp).chain(nvme).chain(iser).sum()
    }
}

impl Drop for LanTarget {
    fn drop(&mut self) {
        engine_host::leave();
    }
}

/// Runs the scenario of ATA over Ethernet.
pub fn run(watch: &Watch) {
    run_kind(watch, Protocol::Aoe);
}

/// Runs the scenario of Fibre Channel over Ethernet.
pub fn run_channel(watch: &Watch) {
    run_kind(watch, Protocol::Fcoe);
}

/// Runs the scenario of SCSI over Scheduled Transfer.
pub fn run_transfer(watch: &Watch) {
    run_kind(watch, Protocol::St);
}

/// Runs the scenario of SRP over RDMA.
pub fn run_srp(watch: &Watch) {
    run_kind(watch, Protocol::Srp);
}

/// Runs the scenario of NVMe over RDMA.
pub fn run_nvme_rdma(watch: &Watch) {
    run_kind(watch, Protocol::NvmeRdma);
}

/// Runs the scenario of iSCSI over RDMA.
pub fn run_iser(watch: &Watch) {
    run_kind(watch, Protocol::Iser);
}

fn run_kind(watch: &Watch, protocol: Protocol) {
    let world = watch.world();
    let mut chance = world.chance();
    let setup = Setup::any(&mut chance, protocol);
    world.note(format_args!("{setup:?}"));
    let segment = world.segment(setup.mtu);
    SEGMENT.set(Some(segment));
    let volumes = (0..setup.volumes).map(|_| Arc::<VolatileMemory>::default() as Arc<dyn MetadataStore>);
    let kept = Kept { volumes: volumes.collect(), ..Kept::default() };
    if setup.are_files {
        (0..setup.volumes).for_each(|lun| world.create(path(lun), setup.sectors() * SECTOR));
    }
    let stations = Reactor::with_driver(world.core(STATIONS), Arena::new(16 << 20), Arc::default());
    let mut target = LanTarget::start(world, &setup, &kept, &stations);
    world.set_faults(setup.faults.clone());
    let busy = Rc::new(Cell::new(0));
    let crashes = Rc::new(Cell::new(0));
    for number in 0..setup.stations {
        for lun in 0..setup.volumes {
            let disk = Disk::attach(&stations, world, segment, &setup, (number, lun));
            for task in 0..TASKS {
                let first = (number * TASKS + task) * TASK_SECTORS;
                let work = Task {
                    watch: watch.clone(),
                    disk: disk.clone(),
                    chance: chance.fork(),
                    first,
                    flushes: setup.flushes,
                    crashes: crashes.clone(),
                };
                let (busy, commands) = (busy.clone(), setup.commands);
                busy.set(busy.get() + 1);
                stations.spawn(async move {
                    work.run(commands).await;
                    busy.set(busy.get() - 1);
                });
            }
        }
    }
    for _ in 0..setup.crashes {
        let at = world.now() + Duration::from_micros(chance.within(1_000..=2_000_000));
        wait(watch, &target, &stations, Some(at), || busy.get() == 0);
        if busy.get() == 0 || watch.is_wrong() {
            break;
        }
        world.crash(TARGET, chance.coin());
        crashes.set(crashes.get() + 1);
        drop(target);
        let calm = Faults { datagram_loss: setup.faults.datagram_loss, ..Faults::none() };
        world.set_faults(calm);
        target = LanTarget::start(world, &setup, &kept, &stations);
        world.set_faults(setup.faults.clone());
    }
    wait(watch, &target, &stations, None, || busy.get() == 0);
    world.set_faults(Faults::none());
    let end = world.now() + QUIET;
    wait(watch, &target, &stations, Some(end), || target.in_progress() == 0);
    if target.in_progress() > 0 {
        watch.report(format!("{} commands are still in progress", target.in_progress()));
    }
    world.crash(TARGET, false);
    drop(target);
    SEGMENT.set(None);
}

/// Runs all cores until `at` or until it is done.
fn wait(
    watch: &Watch,
    target: &LanTarget,
    stations: &Reactor,
    at: Option<lunar_core::time::Instant>,
    done: impl Fn() -> bool,
) {
    let world = watch.world();
    if let Some(at) = at {
        let core = stations.clone();
        stations.spawn(async move { core.sleep_until(at).await });
    }
    let mut cores = target.cores.reactors();
    cores.push(stations);
    world.run(&cores, || done() || watch.is_wrong() || at.is_some_and(|at| world.now() >= at));
}

/// The result of a command, and the data of a read.
type Ended = (Result<(), (u8, u8)>, Vec<u8>);

/// A disk of a station, with the initiator of it.
struct Disk {
    core: Reactor,
    carrier: Carrier,
    lun: usize,
    station: RefCell<Station>,
    ended: RefCell<BTreeMap<u32, Ended>>,
    wakers: RefCell<Vec<Waker>>,
    next: Cell<u32>,
    is_lost: Cell<bool>,
}

impl Disk {
    fn attach(
        core: &Reactor,
        world: &World,
        segment: Segment,
        setup: &Setup,
        (number, lun): (usize, usize),
    ) -> Rc<Self> {
        // Each disk has a station of its own.
        let mac = mac((1 + number * setup.volumes + lun) as u8);
        let (carrier, mtu) = Self::carrier(core, world, segment, setup, mac);
        let target = Address { shelf: SHELF, slot: FIRST_SLOT + lun as u8 };
        let station = Station::new(setup.kind, mac, mtu, (target, lun as u8), world.now());
        let disk = Rc::new(Self {
            core: core.clone(),
            carrier,
            lun,
            station: RefCell::new(station),
            ended: RefCell::default(),
            wakers: RefCell::default(),
            next: Cell::new(0),
            is_lost: Cell::new(false),
        });
        let (receiver, timer) = (disk.clone(), disk.clone());
        core.spawn(async move {
            let each = |header: Option<&Header>, bytes: &[u8]| {
                let now = receiver.core.now();
                let mut on = |event: StationEvent<'_>| receiver.take(event);
                receiver.station.borrow_mut().receive(header, bytes, now, &mut on);
            };
            receiver.carrier.receive(each, || receiver.flush()).await;
        });
        core.spawn(async move { timer.run_timer().await });
        disk
    }

    /// The way to the target, and the bytes of a frame behind its header.
    fn carrier(core: &Reactor, world: &World, segment: Segment, setup: &Setup, mac: MacAddress) -> (Carrier, usize) {
        let kind = setup.kind;
        if matches!(kind, Kind::Srp | Kind::NvmeRdma | Kind::Iser) {
            let (address, port) = (rdma_adapter::address(mac.0[5]), lunar_rdma::wire::PORT);
            if setup.is_framed {
                let network = Network::new(address, 24, None).expect("an address of a station");
                let config = OnLink::new(LinkAddress::Interface("sim".into()), network, LinkSettings::default()).link;
                let endpoint = world.link(segment, mac, &config.types).expect("the address is free");
                let link = Link::attach(core, OpenedLink::on(endpoint, &config)).expect("the core runs");
                let socket = FramedSocket::attach(core, link, network, rdma_adapter::TARGET);
                return (Carrier::Framed(socket), 0);
            }
            let own = SocketAddr::new(address, port);
            let endpoint = world.udp(own).expect("the address is free");
            let target = SocketAddr::new(rdma_adapter::TARGET, port);
            return (Carrier::Datagrams(Socket::attach(core, endpoint, target)), 0);
        }
        let config = LinkConfig {
            address: LinkAddress::Interface("sim".into()),
            types: vec![ETHER_TYPE, frame::ETHER_TYPE, fip::ETHER_TYPE, lunar_st::ETHER_TYPE],
            filters: Vec::new(),
            vlan: None,
            mac: None,
            mtu: None,
        };
        let endpoint = world.link(segment, mac, &config.types).expect("the address is free");
        let link = Link::attach(core, OpenedLink::on(endpoint, &config)).expect("the core runs");
        if matches!(kind, Kind::Fcoe { .. }) {
            // The address of its port is known later.
            link.set_filter(Filter::Promiscuous, true).expect("the link is open");
        }
        let mtu = link.mtu();
        (Carrier::Frames(link), mtu)
    }

    fn take(&self, event: StationEvent<'_>) {
        let mut ended = self.ended.borrow_mut();
        match event {
            StationEvent::Data(cookie, offset, bytes) => {
                let (_, data) = ended.entry(cookie).or_insert((Err((0, 0)), Vec::new()));
                data.resize(data.len().max(offset + bytes.len()), 0);
                data[offset..offset + bytes.len()].copy_from_slice(bytes);
                // Not ended yet: tasks look at commands that are done.
                return;
            }
            StationEvent::Done(cookie, result) => {
                ended.entry(cookie).or_insert((Ok(()), Vec::new())).0 = result;
                ended.entry(cookie | DONE).or_insert((Ok(()), Vec::new()));
            }
            StationEvent::Lost => self.is_lost.set(true),
            StationEvent::Ready => {}
        }
        drop(ended);
        self.wakers.take().into_iter().for_each(Waker::wake);
    }

    fn flush(&self) {
        while let Some(bytes) = self.station.borrow_mut().next_frame() {
            self.carrier.send(&self.core, bytes);
        }
    }

    async fn run_timer(&self) {
        loop {
            self.core.sleep(Duration::from_millis(5)).await;
            let now = self.core.now();
            self.station.borrow_mut().tick(now, &mut |event| self.take(event));
            self.flush();
        }
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        poll_fn(|cx| {
            if is_so() || self.is_lost.get() {
                return Poll::Ready(());
            }
            self.wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Executes a command; `None`: the target was silent for too long.
    async fn execute(&self, operation: Operation) -> Option<Ended> {
        self.until(|| self.station.borrow().is_ready()).await;
        let cookie = self.next.get();
        self.next.set(cookie + 1);
        self.station.borrow_mut().start(cookie, operation, self.core.now());
        self.flush();
        self.until(|| self.ended.borrow().contains_key(&(cookie | DONE))).await;
        let mut ended = self.ended.borrow_mut();
        ended.remove(&(cookie | DONE)).and_then(|_| ended.remove(&cookie))
    }
}

/// The bit of a cookie that marks a command that has ended.
const DONE: u32 = 1 << 31;

/// A task of a station, with sectors of its own.
struct Task {
    watch: Watch,
    disk: Rc<Disk>,
    chance: Chance,
    first: usize,
    /// Whether a write is acknowledged only after a flush.
    flushes: bool,
    /// Crashes of the target.
    crashes: Rc<Cell<usize>>,
}

impl Task {
    /// Writes sectors so that they outlast a loss of power.
    async fn write(&self, lba: u64, data: Rc<[u8]>) -> Option<Result<(), (u8, u8)>> {
        loop {
            let before = self.crashes.get();
            let (mut result, _) = self.disk.execute(Operation::Write { lba, data: data.clone() }).await?;
            if result.is_ok() && self.flushes {
                (result, _) = self.disk.execute(Operation::Flush).await?;
                // A flush after a crash does not bring back what the cache has lost before.
                if result.is_ok() && self.crashes.get() != before {
                    continue;
                }
            }
            return Some(result);
        }
    }

    async fn run(mut self, commands: usize) {
        // The value of each sector; values of tasks differ, and 0 is the contents of a new volume.
        let mut values = vec![0_u64; TASK_SECTORS];
        let base = (self.first as u64 + 1) << 32;
        for number in 1..=commands as u64 {
            let at = self.chance.index(TASK_SECTORS);
            let count = 1 + self.chance.index((TASK_SECTORS - at).min(20));
            let sectors = self.first + at..self.first + at + count;
            let (lba, lun) = (sectors.start as u64, self.disk.lun);
            let seed = self.watch.seed();
            if self.chance.odds(MILLION / 2) {
                let data = Rc::from(stamp::fill(seed, sectors.clone(), base | number));
                let Some(result) = self.write(lba, data).await else {
                    return self.watch.report("the target is silent");
                };
                if let Err((status, error)) = result {
                    return self.watch.report(format!("a write failed with status {status:x}, error {error:x}"));
                }
                values[at..at + count].fill(base | number);
            } else {
                let operation = Operation::Read { lba, count: count as u32 };
                let Some((result, data)) = self.disk.execute(operation).await else {
                    return self.watch.report("the target is silent");
                };
                if let Err((status, error)) = result {
                    return self.watch.report(format!("a read failed with status {status:x}, error {error:x}"));
                }
                match stamp::read(seed, sectors.start, &data) {
                    Ok(read) if read == values[at..at + count] => {}
                    Ok(read) => {
                        let wanted = &values[at..at + count];
                        return self.watch.report(format!("LUN {lun} {sectors:?}: {read:x?}, not {wanted:x?}"));
                    }
                    Err(why) => return self.watch.report(format!("LUN {lun}: {why}")),
                }
            }
            self.watch.count_command();
        }
    }
}

#[cfg(test)]
#[path = "rdma_tests.rs"]
mod rdma_tests;
#[cfg(test)]
#[path = "ethernet_tests.rs"]
mod tests;
