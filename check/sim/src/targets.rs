//! The scenario of whole targets: iSCSI initiators, NVMe/TCP hosts, guests of vfio-user and block clients use the same
//! volumes of a target. The network and the stores fail, the configuration of the target changes, and the target
//! crashes or is stopped. At the end, all data that was acknowledged is read, and no resource of the target is in use.

use crate::block_client::BlockClient;
use crate::block_port::Port;
use crate::configuration::{NVME_PORTAL, PORTAL};
use crate::guest::Guest;
use crate::host::NvmeHost;
use crate::initiator::Initiator;
use crate::job::Lun;
use crate::setup::{GROWTHS_MAX, Setup};
use crate::shared::Shared;
use crate::target::{HOST, SimulatedTarget};
use crate::watch::Watch;
use lunar_core::mem::Arena;
use lunar_core::range::Span;
use lunar_core::time::Instant;
use lunar_core::unit::UnitId;
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Chance, Host};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The target of all initiators.
const CLIENTS: Host = Host(2);
/// Initiator ports at most.
const INITIATORS_MAX: u64 = 5;
/// NVMe hosts at most.
const HOSTS_MAX: usize = 2;
/// The most block clients.
const BLOCK_CLIENTS_MAX: usize = 2;
/// Changes of the configuration and ends of the target at most.
const EVENTS_MAX: usize = 5;
/// How many of a million of these are changes of the configuration.
const CHANGES: u32 = 500_000;
/// The time between two growths of contended volumes at most, in microseconds.
const GROWTH_MICROSECONDS: u64 = 50_000;
/// The time in which the target frees all resources after the last client: it detects silent connections after about 45
/// seconds, and answers that no client receives a little later.
const QUIET: Duration = Duration::from_secs(300);

/// The end of one run of the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    /// The power fails.
    Power,
    /// The process is killed.
    Kill,
    /// The target is stopped, and then the power fails.
    Stop,
}

/// Runs the scenario.
pub fn run(watch: &Watch) {
    let world = watch.world().clone();
    let mut chance = world.chance();
    let mut setup = Setup::any(&mut chance);
    world.note(format_args!("{setup:?}"));
    setup.create_files(&world);
    let clients = Reactor::with_driver(world.core(CLIENTS), Arena::new(1 << 20), Arc::default());
    let luns = setup.volumes.iter().enumerate().map(|(number, volume)| Lun::new(number, volume, &setup.faults));
    let shared = Rc::new(Shared {
        watch: watch.clone(),
        core: clients.clone(),
        luns: luns.collect(),
        faults: RefCell::new(setup.faults.clone()),
        busy: Cell::new(0),
        deaths: Cell::new(0),
        cold_until: Cell::default(),
        ports: RefCell::default(),
        vm_sockets: setup.vm_sockets(),
    });
    world.set_faults(setup.faults.clone());
    spawn_initiators(&shared, &mut chance);
    let mut target = SimulatedTarget::start(&world, &setup);
    shared.ports.replace(target.ports());
    if setup.is_contended() {
        grow(&shared, &mut chance, &mut setup, (&mut target, &clients));
    }
    for _ in 0..chance.index(EVENTS_MAX + 1) {
        let at = world.now() + Duration::from_micros(chance.within(1..=2_000_000));
        run_until(watch, &target, &clients, Some(at), || shared.busy.get() == 0);
        if watch.is_wrong() {
            return;
        }
        if shared.busy.get() == 0 {
            break;
        }
        if chance.odds(CHANGES) {
            setup.changes = setup.changes.with_any(&mut chance);
            world.note(format_args!("the configuration changes: {:?}", setup.changes));
            target.apply(setup.changes, &[&clients]);
        } else {
            let death = *chance.pick(&[Death::Power, Death::Power, Death::Kill, Death::Stop]);
            die(&shared, target, death);
            target = SimulatedTarget::start(&world, &setup);
            shared.ports.replace(target.ports());
        }
    }
    run_until(watch, &target, &clients, None, || shared.busy.get() == 0);
    finish(watch, &shared, &setup, &target);
}

/// Volumes grow again and again while commands are in progress on them.
fn grow(shared: &Shared, chance: &mut Chance, setup: &mut Setup, (target, clients): (&mut SimulatedTarget, &Reactor)) {
    let (watch, world) = (&shared.watch, shared.watch.world());
    while setup.changes.growths < GROWTHS_MAX * 3 / 4 {
        let at = world.now() + Duration::from_micros(chance.within(1..=GROWTH_MICROSECONDS));
        run_until(watch, target, clients, Some(at), || shared.busy.get() == 0);
        // Best while an atomic command has locked its blocks.
        let at = world.now() + Duration::from_micros(GROWTH_MICROSECONDS);
        let ports = target.ports();
        run_until(watch, target, clients, Some(at), || {
            shared.busy.get() == 0 || ports.iter().any(|port| is_locked_exclusively(port))
        });
        if watch.is_wrong() || shared.busy.get() == 0 {
            return;
        }
        setup.changes = setup.changes.with_growth();
        world.note(format_args!("the configuration changes: {:?}", setup.changes));
        target.apply(setup.changes, &[clients]);
    }
}

/// Whether an atomic command has locked blocks of a unit on the core of this port.
fn is_locked_exclusively(port: &Port) -> bool {
    let all = Span { start: 0, end: u64::MAX };
    (0..port.units()).any(|unit| {
        let unit = port.set().unit(UnitId(unit as u32));
        unit.is_some_and(|unit| unit.unit.ranges.is_locked_exclusively(all))
    })
}

fn spawn_initiators(shared: &Rc<Shared>, chance: &mut Chance) {
    for number in 0..chance.within(1..=INITIATORS_MAX) as u8 {
        let initiator = Initiator::any(shared, chance.fork(), number);
        shared.busy.set(shared.busy.get() + 1);
        shared.core.spawn(initiator.work());
    }
    for number in 0..chance.index(HOSTS_MAX + 1) as u8 {
        let host = NvmeHost::any(shared, chance.fork(), number);
        shared.busy.set(shared.busy.get() + 1);
        shared.core.spawn(host.work());
    }
    for number in 0..chance.index(BLOCK_CLIENTS_MAX + 1) as u8 {
        let client = BlockClient::any(shared, chance.fork(), number);
        shared.busy.set(shared.busy.get() + 1);
        shared.core.spawn(client.work());
    }
    for number in 0..shared.vm_sockets.len() {
        let guest = Guest::any(shared, chance.fork(), number);
        shared.busy.set(shared.busy.get() + 1);
        shared.core.spawn(guest.work());
    }
    for _ in 0..chance.index(3) {
        shared.core.spawn(stranger(shared.clone(), chance.fork()));
    }
}

/// Runs the cores until `at` or until it is done.
fn run_until(watch: &Watch, target: &SimulatedTarget, clients: &Reactor, at: Option<Instant>, done: impl Fn() -> bool) {
    let world = watch.world();
    if let Some(at) = at {
        let core = clients.clone();
        clients.spawn(async move { core.sleep_until(at).await });
    }
    let mut cores = target.reactors();
    cores.push(clients);
    world.run(&cores, || done() || watch.is_wrong() || at.is_some_and(|at| world.now() >= at));
}

/// Ends one run of the target.
fn die(shared: &Shared, target: SimulatedTarget, death: Death) {
    let (watch, world) = (&shared.watch, shared.watch.world());
    world.note(format_args!("the target dies: {death:?}"));
    shared.deaths.set(shared.deaths.get() + 1);
    if death == Death::Stop {
        let flushes: Vec<_> = shared.luns.iter().map(|lun| lun.model.borrow_mut().begin_flush()).collect();
        target.stop();
        run_until(watch, &target, &shared.core, None, || target.stopped().is_some());
        let good = target.stopped() == Some(true);
        for (lun, flush) in shared.luns.iter().zip(flushes) {
            lun.model.borrow_mut().end_flush(flush, good);
        }
    }
    let power = death != Death::Kill;
    world.crash(HOST, power);
    shared.deaths.set(shared.deaths.get() + 1);
    shared.luns.iter().for_each(|lun| lun.crash(power));
    drop(target);
}

/// All clients have finished: no resource may be in use, and all data is read once more.
fn finish(watch: &Watch, shared: &Rc<Shared>, setup: &Setup, target: &SimulatedTarget) {
    let world = watch.world();
    if watch.is_wrong() {
        return;
    }
    let mut healed = setup.faults.clone();
    healed.heal();
    world.set_faults(healed.clone());
    shared.faults.replace(healed);
    let end = world.now() + QUIET;
    run_until(watch, target, &shared.core, Some(end), || target.leftovers().is_empty());
    target.leftovers().into_iter().for_each(|what| watch.report(what));
    let last = Initiator::last(shared, world.chance());
    shared.busy.set(1);
    shared.core.spawn(last.work());
    run_until(watch, target, &shared.core, None, || shared.busy.get() == 0);
}

/// A stranger, which sends random bytes, or none, and closes the connection later.
async fn stranger(shared: Rc<Shared>, mut chance: Chance) {
    let core = &shared.core;
    core.sleep(Duration::from_micros(chance.within(0..=500_000))).await;
    let peer = shared.watch.world().connect(if chance.coin() { PORTAL } else { NVME_PORTAL });
    let mut bytes: Vec<u8> = (0..chance.index(600)).map(|_| chance.draw() as u8).collect();
    if let Some(first) = bytes.first_mut().filter(|_| chance.coin()) {
        // A login request, as far as its first byte goes.
        *first = 0x43;
    }
    // A target that closes the connection is right.
    let _ = peer.send(&bytes).await;
    core.sleep(Duration::from_micros(chance.within(0..=20_000_000))).await;
}
