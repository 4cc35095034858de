//! The scenario of whole targets: iSCSI initiators, NVMe hosts and virtual machines use the same volumes of a target,
//! over a network that fails; its stores fail, its machine crashes or is stopped, and in the end everything that was
//! promised is there and nothing is left over.

use crate::block::Vm;
use crate::host::NvmeHost;
use crate::initiator::{Initiator, Shared};
use crate::job::Lun;
use crate::machine::{HOST, Machine, NVME_PORTAL, PORTAL, Setup};
use crate::watch::Watch;
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Chance, Host};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The machine of all initiators.
const CLIENTS: Host = Host(2);
/// Initiator ports at most.
const INITIATORS_MAX: u64 = 5;
/// NVMe hosts at most.
const HOSTS_MAX: usize = 2;
/// Virtual machines with block devices at most.
const VMS_MAX: usize = 2;
/// Once nobody is there any more, everything is given back by then: silent connections are found out after some 45
/// seconds, and a last answer that nobody takes after some more.
const QUIET: Duration = Duration::from_secs(300);

/// How a life of the target ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    /// The power fails.
    Power,
    /// The process is killed.
    Kill,
    /// It is asked to stop, and then the power fails.
    Stop,
}

/// Runs the scenario.
pub fn run(watch: &Watch) {
    let world = watch.world().clone();
    let mut chance = world.chance();
    let setup = Setup::any(&mut chance);
    world.note(format_args!("{setup:?}"));
    setup.create_files(watch);
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
    });
    world.set_faults(setup.faults.clone());
    spawn_initiators(&shared, &mut chance);
    let mut machine = Machine::start(watch, &setup);
    shared.ports.replace(machine.ports());
    for _ in 0..chance.index(4) {
        let at = world.now() + Duration::from_micros(chance.within(1..=2_000_000));
        run_until(watch, &machine, &clients, Some(at), || shared.busy.get() == 0);
        if watch.is_wrong() {
            return;
        }
        if shared.busy.get() > 0 {
            let death = *chance.pick(&[Death::Power, Death::Power, Death::Kill, Death::Stop]);
            die(&shared, machine, death);
            machine = Machine::start(watch, &setup);
            shared.ports.replace(machine.ports());
        }
    }
    run_until(watch, &machine, &clients, None, || shared.busy.get() == 0);
    finish(watch, &shared, &setup, &machine);
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
    for number in 0..chance.index(VMS_MAX + 1) as u8 {
        let vm = Vm::any(shared, chance.fork(), number);
        shared.busy.set(shared.busy.get() + 1);
        shared.core.spawn(vm.work());
    }
    for _ in 0..chance.index(3) {
        shared.core.spawn(stranger(shared.clone(), chance.fork()));
    }
}

/// Runs the cores until `at` or until it is done.
fn run_until(watch: &Watch, machine: &Machine, clients: &Reactor, at: Option<Instant>, done: impl Fn() -> bool) {
    let world = watch.world();
    if let Some(at) = at {
        let core = clients.clone();
        clients.spawn(async move { core.sleep_until(at).await });
    }
    let mut cores = machine.reactors();
    cores.push(clients);
    world.run(&cores, || done() || watch.is_wrong() || at.is_some_and(|at| world.now() >= at));
}

/// Ends a life of the target.
fn die(shared: &Shared, machine: Machine, death: Death) {
    let (watch, world) = (&shared.watch, shared.watch.world());
    world.note(format_args!("the target dies: {death:?}"));
    shared.deaths.set(shared.deaths.get() + 1);
    if death == Death::Stop {
        let flushes: Vec<_> = shared.luns.iter().map(|lun| lun.model.borrow_mut().begin_flush()).collect();
        machine.stop();
        run_until(watch, &machine, &shared.core, None, || machine.stopped().is_some());
        let good = machine.stopped() == Some(true);
        for (lun, flush) in shared.luns.iter().zip(flushes) {
            lun.model.borrow_mut().end_flush(flush, good);
        }
    }
    let power = death != Death::Kill;
    world.crash(HOST, power);
    shared.deaths.set(shared.deaths.get() + 1);
    shared.luns.iter().for_each(|lun| lun.crash(power));
    drop(machine);
}

/// Nobody is there any more: nothing may be left over, and everything is read once more.
fn finish(watch: &Watch, shared: &Rc<Shared>, setup: &Setup, machine: &Machine) {
    let world = watch.world();
    if watch.is_wrong() {
        return;
    }
    let mut healed = setup.faults.clone();
    healed.heal();
    world.set_faults(healed.clone());
    shared.faults.replace(healed);
    let end = world.now() + QUIET;
    run_until(watch, machine, &shared.core, Some(end), || machine.leftovers().is_empty());
    machine.leftovers().into_iter().for_each(|what| watch.report(what));
    let last = Initiator::last(shared, world.chance());
    shared.busy.set(1);
    shared.core.spawn(last.work());
    run_until(watch, machine, &shared.core, None, || shared.busy.get() == 0);
}

/// Somebody who sends anything, or nothing, and goes at some time.
async fn stranger(shared: Rc<Shared>, mut chance: Chance) {
    let core = &shared.core;
    core.sleep(Duration::from_micros(chance.within(0..=500_000))).await;
    let peer = shared.watch.world().connect(if chance.coin() { PORTAL } else { NVME_PORTAL });
    let mut bytes: Vec<u8> = (0..chance.index(600)).map(|_| chance.draw() as u8).collect();
    if let Some(first) = bytes.first_mut().filter(|_| chance.coin()) {
        // A login request, as far as its first byte goes.
        *first = 0x43;
    }
    // Whoever is hung up on has reached what it came for.
    let _ = peer.send(&bytes).await;
    core.sleep(Duration::from_micros(chance.within(0..=20_000_000))).await;
}
