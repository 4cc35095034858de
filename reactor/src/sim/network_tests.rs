//! Networks and devices of the simulator: faults, bounds, and that a seed replays.

use super::*;
use crate::endpoint::command::{Command, NvmeCommand, Request};
use crate::endpoint::packet::Filter;
use crate::endpoint::{Address, Datagram, Endpoint, MacAddress, ReceiveBatch, SendBatch, VlanTag};
use crate::op::Handle;
use lunar_core::io::{Completion, Data, Fault};
use lunar_core::mem::Arena;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const HOSTS: [Host; 3] = [Host(1), Host(2), Host(3)];
const TYPE: u16 = 0x88a2;

fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

fn reactor(world: &World, host: Host) -> Reactor {
    Reactor::with_driver(world.core(host), Arena::new(4 << 20), Arc::default())
}

fn socket(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 4791))
}

async fn send(reactor: &Reactor, from: &Handle, datagrams: impl IntoIterator<Item = Datagram>) -> usize {
    let mut batch = SendBatch::new();
    datagrams.into_iter().for_each(|datagram| batch.push(datagram));
    reactor.send_batch(from, batch, &mut Completion::new()).await.0.expect("sent")
}

fn numbered(reactor: &Reactor, number: u32) -> Datagram {
    let data = reactor.arena().copy(&number.to_le_bytes()).expect("room").into();
    Datagram { data, peer: Address::Ip(socket(2)), ..Datagram::default() }
}

/// Sends 500 numbered datagrams from one machine to another: the numbers that arrive, in order, and the hash of all
/// that happened.
fn stream(seed: u64, faults: Faults) -> (Vec<u32>, u64) {
    const COUNT: u32 = 500;
    let world = World::new(seed);
    world.set_faults(faults);
    let (client, server) = (reactor(&world, HOSTS[0]), reactor(&world, HOSTS[1]));
    let near = client.attach(world.udp(socket(1)).expect("free")).expect("attached");
    let far = server.attach(world.udp(socket(2)).expect("free")).expect("attached");
    let (got, end) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
    let (theirs, core) = (got.clone(), server.clone());
    server.spawn(async move {
        let (mut batch, mut completion) = (ReceiveBatch::new(64, 16), Completion::new());
        loop {
            let (result, back) = core.receive_batch(&far, batch, &mut completion).await;
            batch = back;
            assert_eq!(result, Ok(batch.datagrams().len()));
            for datagram in batch.drain() {
                assert_eq!(datagram.peer, Address::Ip(socket(1)));
                let bytes = datagram.data.to_vec().try_into().expect("four bytes");
                theirs.borrow_mut().push(u32::from_le_bytes(bytes));
            }
        }
    });
    let (core, flag) = (client.clone(), end.clone());
    client.spawn(async move {
        for number in 0..COUNT {
            assert_eq!(send(&core, &near, [numbered(&core, number)]).await, 1);
        }
        core.sleep(Duration::from_secs(10)).await;
        flag.set(true);
    });
    world.run(&[&client, &server], || end.get());
    let arenas = [&client, &server].map(|core| core.arena().clone());
    drop((client, server));
    arenas.iter().for_each(|arena| assert_eq!(arena.used(), 0));
    (got.take(), world.trace_hash())
}

#[test]
fn a_network_without_faults_keeps_every_datagram_and_their_order() {
    for seed in 0..10 {
        assert_eq!(stream(seed, Faults::none()).0, (0..500).collect::<Vec<_>>());
    }
}

#[test]
fn datagrams_are_lost_doubled_and_reordered_at_their_odds() {
    let faults =
        Faults { datagram_loss: 100_000, datagram_duplicate: 100_000, datagram_reorder: 100_000, ..Faults::none() };
    let (got, hash) = stream(1, faults.clone());
    let mut counts = BTreeMap::new();
    got.iter().for_each(|number| *counts.entry(*number).or_insert(0) += 1);
    let lost = 500 - counts.len();
    let doubled = counts.values().filter(|count| **count == 2).count();
    let overtaken = got.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!((20..90).contains(&lost) && (20..90).contains(&doubled) && overtaken > 10, "{lost} {doubled} {overtaken}");
    assert!(counts.values().all(|count| *count <= 2));
    assert_eq!((got, hash), stream(1, faults.clone()), "a seed replays exactly");
    assert_ne!(hash, stream(2, faults).1);
}

#[test]
fn all_faults_off_and_on_replay() {
    for seed in 0..10 {
        let faults = || Faults { latency: Faults::none().latency, ..Faults::any(&mut Chance::new(seed)) };
        assert_eq!(stream(seed, faults()), stream(seed, faults()));
    }
}

/// Texts of frames, with the identifiers of their VLANs.
type Texts = Vec<(String, Option<u16>)>;

/// A station on a core of its own.
struct Station {
    core: Reactor,
    link: Handle,
}

impl Station {
    fn new(world: &World, segment: Segment, number: u8) -> Self {
        let core = reactor(world, HOSTS[usize::from(number) - 1]);
        let link = core.attach(world.link(segment, mac(number), &[TYPE]).expect("free")).expect("attached");
        Self { core, link }
    }

    fn frame(&self, to: MacAddress, ether_type: u16, text: &str) -> Datagram {
        let bytes = [&to.0[..], &mac(9).0, &ether_type.to_be_bytes(), text.as_bytes()].concat();
        Datagram { data: self.core.arena().copy(&bytes).expect("room").into(), ..Datagram::default() }
    }

    /// Collects the texts of the frames that arrive.
    fn listen(&self) -> Rc<RefCell<Texts>> {
        let got: Rc<RefCell<Vec<_>>> = Rc::default();
        let (core, link, theirs) = (self.core.clone(), self.link.clone(), got.clone());
        self.core.spawn(async move {
            let (mut batch, mut completion) = (ReceiveBatch::new(2000, 8), Completion::new());
            loop {
                let (result, back) = core.receive_batch(&link, batch, &mut completion).await;
                batch = back;
                if result.is_err() {
                    return;
                }
                for frame in batch.drain() {
                    let text = String::from_utf8(frame.data.to_vec()[14..].to_vec()).expect("text");
                    theirs.borrow_mut().push((text, frame.vlan.map(VlanTag::id)));
                }
            }
        });
        got
    }
}

/// Sends these frames from the first of three stations: what the others receive. The third one asks for a group.
fn segment(faults: Faults, frames: impl Fn(&Station) -> Vec<Datagram> + 'static) -> [Texts; 2] {
    let world = World::new(5);
    world.set_faults(faults);
    let cable = world.segment(1500);
    let [first, second, third] = [1, 2, 3].map(|number| Station::new(&world, cable, number));
    third.core.driver().set_filter(&third.link, Filter::Group(group()), true).expect("a link");
    let got = [second.listen(), third.listen()];
    let end = Rc::new(Cell::new(false));
    let (core, link, flag) = (first.core.clone(), first.link.clone(), end.clone());
    let all = frames(&first);
    first.core.spawn(async move {
        send(&core, &link, all).await;
        core.sleep(Duration::from_secs(1)).await;
        flag.set(true);
    });
    world.run(&[&first.core, &second.core, &third.core], || end.get());
    got.map(|list| list.take())
}

fn group() -> MacAddress {
    MacAddress([1, 0x10, 0x18, 1, 0, 4])
}

fn texts(texts: &[&str]) -> Texts {
    texts.iter().map(|text| ((*text).to_owned(), None)).collect()
}

#[test]
fn frames_reach_the_stations_that_they_are_for() {
    let got = segment(Faults::none(), |station| {
        vec![
            station.frame(mac(2), TYPE, "to the second"),
            station.frame(mac(3), TYPE, "to the third"),
            station.frame(MacAddress::BROADCAST, TYPE, "to all"),
            station.frame(group(), TYPE, "to the group"),
            station.frame(MacAddress::BROADCAST, 0x0806, "of another type"),
            station.frame(mac(1), TYPE, "to oneself"),
        ]
    });
    assert_eq!(got, [texts(&["to the second", "to all"]), texts(&["to the third", "to all", "to the group"])]);
}

#[test]
fn frames_keep_their_tag_and_are_not_padded() {
    let got = segment(Faults::none(), |station| {
        vec![Datagram { vlan: Some(VlanTag::new(7)), ..station.frame(mac(2), TYPE, "x") }]
    });
    assert_eq!(got, [vec![("x".to_owned(), Some(7))], vec![]]);
}

#[test]
fn frames_for_others_stray_to_a_station_at_their_odds() {
    let faults = Faults { stray_frame: MILLION, ..Faults::none() };
    let got = segment(faults, |station| vec![station.frame(mac(2), TYPE, "stray")]);
    assert_eq!(got, [texts(&["stray"]), texts(&["stray"])]);
}

#[test]
fn a_queue_that_is_full_drops_and_counts() {
    let world = World::new(3);
    let core = reactor(&world, HOSTS[0]);
    let near = core.attach(world.udp(socket(1)).expect("free")).expect("attached");
    let far = core.attach(world.udp(socket(2)).expect("free")).expect("attached");
    core.run(async {
        let all: Vec<Datagram> = (0..300).map(|number| numbered(&core, number)).collect();
        assert_eq!(send(&core, &near, all).await, 300);
        core.sleep(Duration::from_secs(1)).await;
    });
    let counters = core.driver().status(&far).expect("it has one").counters;
    assert_eq!((counters.receive_drops, counters.received), (44, 0));
}

#[test]
fn a_crashed_machine_loses_its_endpoints() {
    for seed in 0..20 {
        let world = World::new(seed);
        let (client, server) = (reactor(&world, HOSTS[0]), reactor(&world, HOSTS[1]));
        let near = client.attach(world.udp(socket(1)).expect("free")).expect("attached");
        let far = server.attach(world.udp(socket(2)).expect("free")).expect("attached");
        let core = server.clone();
        server.spawn(async move {
            let mut completion = Completion::new();
            let (result, _) = core.receive_batch(&far, ReceiveBatch::new(64, 4), &mut completion).await;
            assert!(result.is_err() || result == Ok(1));
        });
        let (core, step) = (client.clone(), Rc::new(Cell::new(0)));
        let theirs = step.clone();
        client.spawn(async move {
            loop {
                assert_eq!(send(&core, &near, [numbered(&core, 1)]).await, 1);
                theirs.set(theirs.get() + 1);
            }
        });
        world.run(&[&client, &server], || step.get() >= 1);
        world.crash(HOSTS[1], true);
        let arena = server.arena().clone();
        drop(server);
        assert_eq!(arena.used(), 0);
        let before = step.get();
        world.run(&[&client], || step.get() >= before + 3);
        assert!(world.udp(socket(2)).is_ok(), "its address is free again");
    }
}

/// Gives 30 commands to a device that stores one number per namespace: the order in which they end, and the hash of all
/// that happened.
fn commands(seed: u64) -> (Vec<u32>, u64) {
    let world = World::new(seed);
    world.set_faults(Faults { slow: 100_000, command_error: 100_000, ..Faults::none() });
    let core = reactor(&world, HOSTS[0]);
    let mut numbers = BTreeMap::new();
    let device = world.device(move |command: &mut Command| {
        let Request::Nvme(NvmeCommand { opcode, nsid, .. }) = command.request else { return Err(Fault::Unsupported) };
        match (opcode, &mut command.data) {
            (1, Data::Out(data)) => drop(numbers.insert(nsid, data.to_vec())),
            (2, Data::In(data)) => drop(data.copy_from(0, &numbers[&nsid])),
            _ => return Ok(1),
        }
        command.result = [u64::from(nsid), 0];
        Ok(0)
    });
    let device = core.attach(device).expect("attached");
    let order = Rc::new(RefCell::new(Vec::new()));
    for nsid in 0..30_u32 {
        let (core, device, order) = (core.clone(), device.clone(), order.clone());
        core.clone().spawn(async move {
            let mut completion = Completion::new();
            let request = |opcode| Request::Nvme(NvmeCommand { opcode, nsid, ..NvmeCommand::default() });
            let data = Data::Out(core.arena().copy(&nsid.to_le_bytes()).expect("room").into());
            let (result, command) = core.command(&device, Command::new(request(1), data), &mut completion).await;
            assert!(result == Ok(0) || result == Err(Fault::Medium));
            let command = command.expect("the command is returned");
            assert_eq!(command.result[0], if result.is_ok() { u64::from(nsid) } else { 0 });
            if result.is_ok() {
                let data = Data::In(core.arena().take_sg(4).expect("room"));
                let (result, command) = core.command(&device, Command::new(request(2), data), &mut completion).await;
                let data = command.expect("the command is returned").data.into_in().share().to_vec();
                assert!(result == Err(Fault::Medium) || data == nsid.to_le_bytes());
            }
            order.borrow_mut().push(nsid);
        });
    }
    world.run(&[&core], || order.borrow().len() == 30);
    drop(core);
    (order.take(), world.trace_hash())
}

#[test]
fn devices_answer_commands_in_any_order_and_replay() {
    for seed in 0..10 {
        assert_eq!(commands(seed), commands(seed));
    }
    assert_ne!(commands(0).0, (0..30).collect::<Vec<_>>());
}

#[test]
fn commands_of_a_core_that_ends_are_dropped() {
    let world = World::new(1);
    let core = reactor(&world, HOSTS[0]);
    let device = core.attach(world.device(|_: &mut Command| Ok(0))).expect("attached");
    let other = core.attach(world.udp(socket(1)).expect("free")).expect("attached");
    let mut completions = [Completion::new(), Completion::new()];
    for (completion, handle) in completions.iter_mut().zip([&device, &other]) {
        let data = Data::In(core.arena().take_sg(100).expect("room"));
        let command = Command::new(Request::Nvme(NvmeCommand::default()), data);
        let device = handle.clone();
        core.submit(crate::op::Op::Command { device, command }, completion.token());
    }
    core.turn();
    assert_eq!(completions[1].take().map(|outcome| outcome.result), Some(Err(Fault::Unsupported)));
    let arena = core.arena().clone();
    drop((core, device, other));
    assert_eq!(completions[0].take().map(|outcome| outcome.result), Some(Err(Fault::Aborted)));
    assert_eq!(arena.used(), 0);
}

#[test]
fn an_endpoint_is_attached_once() {
    let world = World::new(1);
    let core = reactor(&world, HOSTS[0]);
    let Endpoint::Simulated(id) = world.udp(socket(1)).expect("free") else { panic!("it is simulated") };
    let handle = core.attach(Endpoint::Simulated(id)).expect("attached");
    assert!(core.attach(Endpoint::Simulated(id)).is_err());
    assert!(core.attach(Endpoint::Simulated(id + 1000)).is_err());
    drop(handle);
    assert!(world.udp(socket(1)).is_ok(), "its address is free again");
}
