//! Changes of the configuration of a simulated target: each takes effect, and nothing of the target stays in memory.

use lunar_core::mem::Arena;
use lunar_core::unit::UnitId;
use lunar_iscsi::config::Config;
use lunar_reactor::Reactor;
use lunar_reactor::disk::Policy;
use lunar_reactor::sim::{Faults, Host};
use lunar_sim::configuration::EXTRA_PORTAL;
use lunar_sim::setup::{Changes, Kept, Setup, Volume};
use lunar_sim::target::{HOST, SimulatedTarget};
use lunar_sim::watch::Watch;
use lunar_sim::{Scenario, run};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const SECTORS: usize = 64;
const GROWTH: usize = 16;

fn setup() -> Setup {
    let volume = |kept| Volume { kept, sectors: SECTORS, growth: GROWTH, block_size: 512, is_contended: false };
    Setup {
        cores: 2,
        arena_bytes: 4 << 20,
        volumes: vec![volume(Kept::Ram), volume(Kept::File(Policy { durable: false, direct: None }))],
        session: Config::default(),
        vm_sockets: 1,
        changes: Changes::default(),
        faults: Faults::none(),
    }
}

/// The size of the unit with this number, on each core.
fn sizes(target: &SimulatedTarget, unit: u32) -> Vec<u64> {
    let sizes = target.ports().into_iter().filter_map(|port| {
        let unit = port.set().unit(UnitId(unit))?;
        Some(unit.unit.traits().size)
    });
    sizes.collect()
}

/// Whether a portal keeps a connection open for a while.
fn is_listened_at(watch: &Watch, target: &SimulatedTarget, clients: &Reactor) -> bool {
    let (peer, answer) = (watch.world().connect(EXTRA_PORTAL), Rc::new(Cell::new(None)));
    let told = answer.clone();
    clients.spawn(async move {
        // Not the first byte of any login: iSCSI closes the connection, and a portal that is closed resets it.
        let sent = peer.send(&[0xff; 48]).await;
        let received = peer.receive(1).await;
        told.set(Some(sent.is_ok() && received.is_ok()));
    });
    let mut cores = target.reactors();
    cores.push(clients);
    watch.world().run(&cores, || answer.get().is_some());
    answer.get() == Some(true)
}

#[test]
fn a_change_takes_effect() {
    let (watch, setup) = (Watch::new(1, false), setup());
    setup.create_files(watch.world());
    watch.world().set_faults(Faults::none());
    let clients = Reactor::with_driver(watch.world().core(Host(2)), Arena::new(1 << 20), Arc::default());
    let mut target = SimulatedTarget::start(watch.world(), &setup);
    let before = vec![(SECTORS * 512) as u64; 2];
    assert_eq!([sizes(&target, 0), sizes(&target, 1)], [before.clone(), before]);
    assert!(!is_listened_at(&watch, &target, &clients));
    let all = Changes { has_extra_lun: true, has_extra_portal: true, growths: 1 };
    target.apply(all, &[&clients]);
    let after = vec![((SECTORS + GROWTH) * 512) as u64; 2];
    assert_eq!([sizes(&target, 0), sizes(&target, 1)], [after.clone(), after]);
    assert!(is_listened_at(&watch, &target, &clients));
    target.apply(Changes { growths: 2, ..Changes::default() }, &[&clients]);
    assert!(!is_listened_at(&watch, &target, &clients));
    let port = Rc::downgrade(&target.ports()[0]);
    watch.world().crash(HOST, true);
    drop(target);
    assert_eq!(port.strong_count(), 0, "the target is freed");
}

#[test]
fn all_changes_are_made_while_clients_work() {
    let traces: Vec<String> = (0..40).flat_map(|seed| run(Scenario::Targets, seed, true).trace).collect();
    for change in ["has_extra_lun: true", "has_extra_portal: true", "growths: 1", "growths: 4"] {
        let is_made = |line: &&String| line.contains("the configuration changes") && line.contains(change);
        assert!(traces.iter().filter(is_made).count() > 3, "{change}");
    }
}
