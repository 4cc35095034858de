//! The largest I/O queue of an NVMe host, full.

use lunar_core::mem::Arena;
use lunar_core::outgoing::Moves;
use lunar_iscsi::config::Config;
use lunar_nvme::Status;
use lunar_nvme::controller::QUEUE_ENTRIES_MAX;
use lunar_nvme_host::command;
use lunar_nvme_host::queue::{Command, Event, Offer};
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Faults, Host};
use lunar_sim::exchange::Woken;
use lunar_sim::setup::{Changes, Kept, Setup, Volume};
use lunar_sim::target::SimulatedTarget;
use lunar_sim::watch::Watch;
use lunar_sim::wire::{Controller, HostConfig};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a block, and how many of them there are.
const BLOCK: u32 = 512;
const BLOCKS: u32 = 2048;

/// Fills the queue with reads, one for each block, and returns those that were answered with all their data.
async fn fill(watch: &Watch, core: &Reactor) -> BTreeSet<u32> {
    let config = HostConfig { number: 0, offer: Offer::default(), flow_control: true, entries: QUEUE_ENTRIES_MAX };
    let until = core.now() + Duration::from_secs(60);
    let mut controller =
        Controller::open(watch.world(), core, config, until).await.expect("so many entries are granted");
    let queue = &mut controller.io.queue;
    // One entry stays free, or a full queue would look like an empty one.
    let all = u32::from(QUEUE_ENTRIES_MAX) - 1;
    for cookie in 0..all {
        let sqe = command::read(1, u64::from(cookie), 1, false);
        queue.submit(Command { cookie, sqe, moves: Moves::In(BLOCK) }).expect("there is room");
    }
    assert_eq!((queue.outstanding(), queue.room()), (all as usize, 0));
    let (mut bytes_of, mut done) = (vec![0; all as usize], BTreeSet::new());
    while done.len() < all as usize {
        let Woken::Bytes(bytes) = controller.io.wait(core, until, (true, true), 8192).await else { break };
        let heard = controller.io.queue.receive(&bytes, &mut |event| match event {
            Event::Data { cookie, bytes, .. } => bytes_of[cookie as usize] += bytes.len(),
            Event::Done { cookie, status, .. } => {
                assert_eq!((status, bytes_of[cookie as usize]), (Status::SUCCESS, BLOCK as usize), "{cookie}");
                assert!(done.insert(cookie), "{cookie} was answered twice");
            }
            Event::Connected { .. } => {}
        });
        heard.expect("the protocol is kept to");
    }
    done
}

#[test]
fn a_queue_of_1024_entries_carries_1023_commands() {
    let watch = Watch::new(1, false);
    let setup = Setup {
        cores: 1,
        arena_bytes: 16 << 20,
        volumes: vec![Volume {
            kept: Kept::Ram,
            sectors: BLOCKS as usize,
            growth: 0,
            block_size: BLOCK,
            is_contended: false,
        }],
        session: Config::default(),
        vm_sockets: 0,
        changes: Changes::default(),
        faults: Faults::none(),
    };
    watch.world().set_faults(setup.faults.clone());
    let answered = Rc::new(RefCell::new(None));
    watch.guard(|| {
        let target = SimulatedTarget::start(watch.world(), &setup);
        let clients = Reactor::with_driver(watch.world().core(Host(2)), Arena::new(1 << 20), Arc::default());
        let (core, eyes, told) = (clients.clone(), watch.clone(), answered.clone());
        clients.spawn(async move {
            let done = fill(&eyes, &core).await;
            told.replace(Some(done));
        });
        let mut cores = target.reactors();
        cores.push(&clients);
        watch.world().run(&cores, || answered.borrow().is_some() || watch.is_wrong());
    });
    assert_eq!(watch.outcome().wrong, Vec::<String>::new());
    let all: BTreeSet<u32> = (0..u32::from(QUEUE_ENTRIES_MAX) - 1).collect();
    assert_eq!(answered.take(), Some(all));
}
