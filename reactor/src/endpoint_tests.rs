//! Tests of datagrams, frames and commands on every driver: the same on io_uring, on epoll and on the simulator.

use crate::driver_tests::thread_time;
use crate::endpoint::datagram::{DatagramSocket, UdpConfig};
use crate::endpoint::packet::{Filter, PacketConfig, PacketLink, RingFormat, Station};
use crate::endpoint::{Address, BATCH_MAX, Datagram, Endpoint, MacAddress, ReceiveBatch, SendBatch, Status, VlanTag};
use crate::op::{Handle, Op};
use crate::sim::{Host, World};
use crate::testing::network;
use crate::{Choice, Config, Reactor};
use lunar_core::io::{Completion, Fault};
use lunar_core::mem::{Arena, Sg};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ARENA: usize = 16 << 20;
/// An EtherType for experiments (IEEE 802).
const TYPE: u16 = 0x88b5;
const OTHER_TYPE: u16 = 0x88b6;
const HERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

/// The environment of a test: makes endpoints for its reactor.
#[derive(Clone)]
struct Ground {
    reactor: Reactor,
    /// The simulation; `None` on a real kernel.
    world: Option<World>,
}

impl Ground {
    fn real(driver: Choice) -> Self {
        let config = Config { driver, arena_bytes: ARENA, ..Config::default() };
        Self { reactor: Reactor::new(config).expect("a driver"), world: None }
    }

    fn simulated() -> Self {
        let world = World::new(1);
        let reactor = Reactor::with_driver(world.core(Host(1)), Arena::new(ARENA), Arc::default());
        Self { reactor, world: Some(world) }
    }

    fn is_simulated(&self) -> bool {
        self.world.is_some()
    }

    fn udp_endpoint(&self, config: &UdpConfig) -> io::Result<Endpoint> {
        match &self.world {
            Some(world) => world.udp(config.address),
            None => DatagramSocket::udp(config).map(Endpoint::Datagram),
        }
    }

    fn udp(&self, address: &str) -> Handle {
        self.udp_with(&UdpConfig::new(address.parse().expect("an address")))
    }

    fn udp_with(&self, config: &UdpConfig) -> Handle {
        self.reactor.attach(self.udp_endpoint(config).expect("an endpoint")).expect("attached")
    }

    fn unix(&self, path: &PathBuf, remote: Option<&PathBuf>) -> Handle {
        let endpoint = match &self.world {
            Some(world) => world.unix_datagram(path),
            None => DatagramSocket::unix(path, remote.map(PathBuf::as_path)).map(Endpoint::Datagram),
        };
        self.reactor.attach(endpoint.expect("an endpoint")).expect("attached")
    }

    fn status(&self, endpoint: &Handle) -> Status {
        self.reactor.driver().status(endpoint).expect("it has one")
    }

    fn port(&self, endpoint: &Handle) -> u16 {
        match self.status(endpoint).local {
            Address::Ip(address) => address.port(),
            other => panic!("{other:?}"),
        }
    }

    async fn send(&self, from: &Handle, datagrams: Vec<Datagram>) -> Result<usize, Fault> {
        let mut batch = SendBatch::new();
        datagrams.into_iter().for_each(|datagram| batch.push(datagram));
        let (result, batch) = self.reactor.send_batch(from, batch, &mut Completion::new()).await;
        assert!(batch.is_empty() || result.is_err());
        result
    }

    async fn receive(&self, at: &Handle, room: usize, count: usize) -> Vec<Datagram> {
        let batch = ReceiveBatch::new(room, count);
        let (result, mut batch) = self.reactor.receive_batch(at, batch, &mut Completion::new()).await;
        let datagrams: Vec<Datagram> = batch.drain().collect();
        assert_eq!(result, Ok(datagrams.len()));
        assert!((1..=count).contains(&datagrams.len()));
        datagrams
    }

    async fn receive_one(&self, at: &Handle) -> Datagram {
        self.receive(at, 2048, 1).await.pop().expect("one")
    }

    /// Waits until a condition holds.
    async fn until(&self, mut has_happened: impl FnMut() -> bool) {
        for _ in 0..5000 {
            if has_happened() {
                return;
            }
            self.reactor.sleep(Duration::from_millis(1)).await;
            self.reactor.end_of_turn().await;
        }
        panic!("it never happened");
    }

    /// `len` bytes that depend on `seed`, in pieces.
    fn data(&self, seed: usize, len: usize) -> Sg {
        let mut data = Sg::default();
        let bytes = pattern(seed, len);
        for part in bytes.chunks(700) {
            data.push(self.reactor.arena().copy(part).expect("room"));
        }
        data
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 13) as u8).collect()
}

fn ip(address: &str) -> Address {
    Address::Ip(address.parse().expect("an address"))
}

fn local(port: u16) -> Address {
    Address::Ip(SocketAddr::from(([127, 0, 0, 1], port)))
}

fn to(peer: Address, data: Sg) -> Datagram {
    Datagram { data, peer, ..Datagram::default() }
}

/// Runs a test in one environment; all memory must be free when it ends.
fn on<F: Future<Output = ()>>(ground: Ground, test: impl FnOnce(Ground) -> F) {
    let arena = ground.reactor.arena().clone();
    let Ground { reactor, world } = ground;
    reactor.run(test(Ground { reactor: reactor.clone(), world }));
    drop(reactor);
    assert_eq!(arena.used(), 0, "memory did not come back");
}

macro_rules! all {
    ($($name:ident;)*) => {
        mod io_uring {
            $(#[test] fn $name() { super::on(super::Ground::real(crate::Choice::IoUring), super::$name); })*
        }
        mod epoll { $(#[test] fn $name() { super::on(super::Ground::real(crate::Choice::Epoll), super::$name); })* }
        mod simulator { $(#[test] fn $name() { super::on(super::Ground::simulated(), super::$name); })* }
    };
}

macro_rules! real {
    ($($name:ident;)*) => {
        mod real_io_uring {
            $(#[test] fn $name() { super::on(super::Ground::real(crate::Choice::IoUring), super::$name); })*
        }
        mod real_epoll {
            $(#[test] fn $name() { super::on(super::Ground::real(crate::Choice::Epoll), super::$name); })*
        }
    };
}

#[path = "endpoint_tests/xdp.rs"]
mod xdp;

real! {
    frames_that_find_no_room_in_the_ring_are_counted;
    a_link_that_goes_down_reports_it_and_works_again;
    an_interface_that_is_removed_ends_nothing_else;
    a_link_that_cannot_be_opened_says_what_to_do;
    commands_reach_a_device_or_are_refused;
}

all! {
    a_datagram_brings_the_addresses_of_both_ends;
    datagrams_over_ipv6_arrive_as_well;
    a_large_batch_arrives_whole_and_in_order;
    a_datagram_that_is_longer_than_the_room_is_dropped_and_counted;
    datagrams_that_cannot_be_sent_are_dropped_and_counted;
    a_full_queue_drops_and_counts;
    several_receives_get_one_batch_each;
    cancel_ends_operations_that_wait_and_gives_their_memory_back;
    operations_that_wait_when_the_core_ends_are_harmless;
    segments_are_datagrams_of_their_own;
    an_address_in_use_is_an_error;
    an_endpoint_that_is_dropped_frees_its_address;
    unix_datagrams_carry_the_path_of_their_sender;
    a_unix_socket_with_one_peer_waits_for_it;
    waiting_for_a_datagram_costs_nothing;
    an_operation_of_another_kind_of_endpoint_is_refused;
    frames_travel_both_ways;
    frames_keep_their_vlan_tags;
    frames_of_other_types_are_not_received;
    frames_to_groups_are_received_by_their_members;
    a_frame_that_is_too_long_is_dropped_and_counted;
    a_link_knows_its_address_and_its_mtu;
}

async fn a_datagram_brings_the_addresses_of_both_ends(ground: Ground) {
    let (client, server) = (ground.udp("127.0.0.1:0"), ground.udp("0.0.0.0:0"));
    let server_port = ground.port(&server);
    let client_address = ground.status(&client).local;
    let peer = Address::Ip(SocketAddr::from(([127, 0, 0, 7], server_port)));
    assert_eq!(ground.send(&client, vec![to(peer.clone(), ground.data(1, 1000))]).await, Ok(1));
    let got = ground.receive_one(&server).await;
    assert_eq!((got.data.to_vec(), &got.peer), (pattern(1, 1000), &client_address));
    assert_eq!(got.local, Some(IpAddr::from([127, 0, 0, 7])), "the address that it was sent to");
    // The answer comes from that address.
    let answer = Datagram { local: got.local, ..to(got.peer, ground.data(2, 10)) };
    assert_eq!(ground.send(&server, vec![answer]).await, Ok(1));
    let got = ground.receive_one(&client).await;
    assert_eq!((got.data.to_vec(), got.peer), (pattern(2, 10), peer));
    let counters = ground.status(&server).counters;
    assert_eq!((counters.received, counters.sent, counters.receive_drops, counters.send_drops), (1, 1, 0, 0));
}

async fn datagrams_over_ipv6_arrive_as_well(ground: Ground) {
    let config =
        |address: &str| UdpConfig { accepts_no_checksum: true, ..UdpConfig::new(address.parse().expect("one")) };
    let Ok(first) = ground.udp_endpoint(&config("[::1]:0")) else {
        return eprintln!("skipped: this host has no IPv6");
    };
    let client = ground.reactor.attach(first).expect("attached");
    let server = ground.udp_with(&config("[::]:0"));
    let port = ground.port(&server);
    assert_eq!(ground.send(&client, vec![to(ip(&format!("[::1]:{port}")), ground.data(3, 0))]).await, Ok(1));
    let got = ground.receive_one(&server).await;
    assert_eq!((got.data.len(), got.local), (0, Some("::1".parse().expect("an address"))));
    assert_eq!(ground.send(&server, vec![to(got.peer, ground.data(4, 1400))]).await, Ok(1));
    assert_eq!(ground.receive_one(&client).await.data.to_vec(), pattern(4, 1400));
    assert_eq!(ground.send(&client, vec![to(local(port), ground.data(0, 1))]).await, Ok(0), "of another family");
    assert_eq!(ground.status(&client).counters.send_drops, 1);
}

async fn a_large_batch_arrives_whole_and_in_order(ground: Ground) {
    const COUNT: usize = 200;
    let (client, server) = (ground.udp("127.0.0.1:0"), ground.udp("127.0.0.2:0"));
    let peer = ground.status(&server).local;
    let datagrams = (0..COUNT).map(|number| to(peer.clone(), ground.data(number, number % 7 * 200))).collect();
    let (other, far) = (ground.clone(), client.clone());
    ground.reactor.spawn(async move { assert_eq!(other.send(&far, datagrams).await, Ok(COUNT)) });
    let (mut number, mut operations) = (0, 0);
    while number < COUNT {
        for datagram in ground.receive(&server, 1500, BATCH_MAX).await {
            assert_eq!(datagram.data.to_vec(), pattern(number, number % 7 * 200));
            number += 1;
        }
        operations += 1;
    }
    assert!(ground.is_simulated() || operations < COUNT / 4, "{operations} receives for {COUNT} datagrams");
    assert_eq!(ground.status(&client).counters.sent, COUNT as u64);
}

async fn a_datagram_that_is_longer_than_the_room_is_dropped_and_counted(ground: Ground) {
    let (client, server) = (ground.udp("127.0.0.1:0"), ground.udp("127.0.0.2:0"));
    let peer = ground.status(&server).local;
    let lengths = [1400, 100, 129, 128, 1000];
    let datagrams = lengths.iter().map(|len| to(peer.clone(), ground.data(*len, *len))).collect();
    assert_eq!(ground.send(&client, datagrams).await, Ok(5));
    let mut got = Vec::new();
    while got.len() < 2 {
        got.extend(ground.receive(&server, 128, 4).await);
    }
    assert_eq!([got[0].data.to_vec(), got[1].data.to_vec()], [pattern(100, 100), pattern(128, 128)]);
    assert_eq!(ground.send(&client, vec![to(peer, ground.data(0, 1))]).await, Ok(1));
    ground.receive(&server, 128, 4).await;
    let counters = ground.status(&server).counters;
    assert_eq!((counters.received, counters.receive_drops), (3, 3));
}

async fn datagrams_that_cannot_be_sent_are_dropped_and_counted(ground: Ground) {
    let (client, server) = (ground.udp("127.0.0.1:0"), ground.udp("127.0.0.2:0"));
    let peer = ground.status(&server).local;
    let too_long = || to(peer.clone(), ground.data(0, 66_000));
    let nowhere = Datagram { data: ground.data(0, 10), ..Datagram::default() };
    let good = |seed| to(peer.clone(), ground.data(seed, 10));
    let all = vec![too_long(), good(1), nowhere, too_long(), good(2), too_long()];
    let sent = ground.send(&client, all).await;
    assert_eq!(sent, Ok(2));
    let mut got = Vec::new();
    while got.len() < 2 {
        got.extend(ground.receive(&server, 128, 4).await);
    }
    assert_eq!([got[0].data.to_vec(), got[1].data.to_vec()], [pattern(1, 10), pattern(2, 10)]);
    let counters = ground.status(&client).counters;
    assert_eq!((counters.sent, counters.send_drops), (2, 4));
    // No socket listens there any more.
    drop(server);
    ground.reactor.sleep(Duration::from_millis(1)).await;
    for _ in 0..3 {
        assert_eq!(
            ground.send(&client, vec![good(3)]).await,
            Ok(1),
            "a datagram without receiver is lost without an error"
        );
    }
}

async fn a_full_queue_drops_and_counts(ground: Ground) {
    const ROUND: usize = 500;
    let (client, server) = (ground.udp("127.0.0.1:0"), ground.udp("127.0.0.2:0"));
    let peer = ground.status(&server).local;
    let mut sent = 0;
    for _ in 0..30 {
        let datagrams = (0..ROUND).map(|_| to(peer.clone(), ground.data(0, 1000))).collect();
        sent += ground.send(&client, datagrams).await.expect("sent");
    }
    ground.reactor.sleep(Duration::from_millis(20)).await;
    let mut received = 0;
    // The kernel reports the number of drops with a later datagram.
    for last in [false, true] {
        if last {
            sent += ground.send(&client, vec![to(peer.clone(), ground.data(0, 7))]).await.expect("sent");
        }
        loop {
            let got = ground.receive(&server, 1500, BATCH_MAX).await;
            received += got.len();
            let left = sent - received - ground.status(&server).counters.receive_drops as usize;
            let is_drained = got.len() < BATCH_MAX && !ground.is_simulated();
            if left == 0 || (is_drained && !last) || got.iter().any(|datagram| datagram.data.len() == 7) {
                break;
            }
        }
    }
    let counters = ground.status(&server).counters;
    assert!(counters.receive_drops > 0, "{counters:?}");
    assert_eq!((counters.received + counters.receive_drops) as usize, sent, "{counters:?}");
    assert_eq!(counters.received as usize, received);
}

async fn several_receives_get_one_batch_each(ground: Ground) {
    let (client, server) = (ground.udp("127.0.0.1:0"), ground.udp("127.0.0.2:0"));
    let peer = ground.status(&server).local;
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..4 {
        let (ground, server, order) = (ground.clone(), server.clone(), order.clone());
        ground.reactor.clone().spawn(async move {
            let got = ground.receive_one(&server).await;
            order.borrow_mut().push((number, got.data.len()));
        });
    }
    ground.reactor.end_of_turn().await;
    for len in 10..14 {
        assert_eq!(ground.send(&client, vec![to(peer.clone(), ground.data(0, len))]).await, Ok(1));
        ground.reactor.sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(*order.borrow(), [(0, 10), (1, 11), (2, 12), (3, 13)]);
}

async fn cancel_ends_operations_that_wait_and_gives_their_memory_back(ground: Ground) {
    let server = ground.udp("127.0.0.2:0");
    for pause in [Duration::ZERO, Duration::from_millis(20)] {
        let mut completions: Vec<Completion> = (0..3).map(|_| Completion::new()).collect();
        for completion in &mut completions {
            let mut into = ReceiveBatch::new(1500, 4);
            into.refill(ground.reactor.arena());
            ground.reactor.submit(Op::ReceiveBatch { endpoint: server.clone(), into }, completion.token());
        }
        // Long enough that the core sleeps, and the kernel has the operation.
        ground.reactor.sleep(pause).await;
        ground.reactor.driver().cancel(&server);
        for completion in &completions {
            let outcome = completion.wait().await;
            assert_eq!(outcome.result, Err(Fault::Aborted));
            let batch: Box<ReceiveBatch> = crate::endpoint::carried(outcome.data).expect("it comes back");
            assert_eq!(batch.free(), 4);
        }
    }
    // The endpoint continues to work.
    let client = ground.udp("127.0.0.1:0");
    let peer = ground.status(&server).local;
    assert_eq!(ground.send(&client, vec![to(peer, ground.data(5, 5))]).await, Ok(1));
    assert_eq!(ground.receive_one(&server).await.data.to_vec(), pattern(5, 5));
}

async fn operations_that_wait_when_the_core_ends_are_harmless(ground: Ground) {
    let server = ground.udp("127.0.0.2:0");
    for _ in 0..3 {
        let (ground, server) = (ground.clone(), server.clone());
        ground.reactor.clone().spawn(async move {
            ground.receive_one(&server).await;
        });
    }
    ground.reactor.sleep(Duration::from_millis(5)).await;
}

async fn segments_are_datagrams_of_their_own(ground: Ground) {
    let config = |address: &str| UdpConfig { coalesces: true, ..UdpConfig::new(address.parse().expect("an address")) };
    let (client, server) = (ground.udp("127.0.0.1:0"), ground.udp_with(&config("127.0.0.2:0")));
    let peer = ground.status(&server).local;
    let whole = ground.data(9, 10_500);
    let part = |at: usize| to(peer.clone(), whole.part(at..whole.len().min(at + 1000)));
    // Both forms: data with the length of each part, and a datagram for each.
    let divided = Datagram { segment: 1000, ..to(peer.clone(), ground.data(8, 10_500)) };
    let joined = (0..11).map(|number| Datagram { joins: number > 0, ..part(number * 1000) });
    // The datagrams of a message are sent, or dropped, together.
    let too_long = [false, true].map(|joins| Datagram { joins, ..to(peer.clone(), ground.data(0, 40_000)) });
    let alone = to(peer.clone(), ground.data(1, 500));
    let all = std::iter::once(divided).chain(joined).chain(too_long).chain([alone]).collect();
    let sent = ground.send(&client, all).await;
    let counters = ground.status(&client).counters;
    if sent == Ok(1) {
        return eprintln!("skipped: this kernel does not divide messages");
    }
    assert_eq!((sent, counters.sent, counters.send_drops), (Ok(13), 13, 2));
    let mut bytes = Vec::new();
    while bytes.len() < 21_500 {
        for datagram in ground.receive(&server, 65_536, 8).await {
            let len = datagram.data.len();
            assert!(datagram.segment == 1000 && len > 1000 || datagram.segment == 0 && len <= 1000, "{datagram:?}");
            bytes.extend(datagram.data.to_vec());
        }
    }
    assert_eq!(bytes, [pattern(8, 10_500), pattern(9, 10_500), pattern(1, 500)].concat());
}

async fn an_address_in_use_is_an_error(ground: Ground) {
    let server = ground.udp("127.0.0.2:0");
    let Address::Ip(address) = ground.status(&server).local else { panic!("it has an IP address") };
    let error = ground.udp_endpoint(&UdpConfig::new(address)).expect_err("it is in use");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

async fn an_endpoint_that_is_dropped_frees_its_address(ground: Ground) {
    let server = ground.udp("127.0.0.2:0");
    let Address::Ip(address) = ground.status(&server).local else { panic!("it has an IP address") };
    let (other, handle) = (ground.clone(), server.clone());
    ground.reactor.spawn(async move {
        let mut completion = Completion::new();
        let batch = ReceiveBatch::new(100, 1);
        let (result, _) = other.reactor.receive_batch(&handle, batch, &mut completion).await;
        assert_eq!(result, Err(Fault::Aborted));
    });
    ground.reactor.sleep(Duration::from_millis(5)).await;
    ground.reactor.driver().cancel(&server);
    drop(server);
    ground.reactor.sleep(Duration::from_millis(5)).await;
    drop(ground.udp_with(&UdpConfig::new(address)));
}

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lunar-endpoint-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn unix_datagrams_carry_the_path_of_their_sender(ground: Ground) {
    let folder = Folder::new();
    let (here, there) = (folder.path("here"), folder.path("there"));
    let (near, far) = (ground.unix(&here, None), ground.unix(&there, None));
    let peer = Address::Path(there.as_path().into());
    for round in 0..3 {
        assert_eq!(ground.send(&near, vec![to(peer.clone(), ground.data(round, 3000))]).await, Ok(1));
        let got = ground.receive(&far, 4096, 4).await.pop().expect("one");
        assert_eq!((got.data.to_vec(), &got.peer), (pattern(round, 3000), &Address::Path(here.as_path().into())));
        assert_eq!(ground.send(&far, vec![to(got.peer, ground.data(round, 5))]).await, Ok(1));
        assert_eq!(ground.receive_one(&near).await.data.len(), 5);
    }
    drop(far);
    if !ground.is_simulated() {
        assert_eq!(ground.send(&near, vec![to(peer, ground.data(0, 5))]).await, Ok(0), "no socket is there");
        assert_eq!(ground.status(&near).counters.send_drops, 1);
        assert!(here.exists() && !there.exists(), "the file of a socket is removed with it");
        // An unused socket is replaced, a file is not.
        drop(std::os::unix::net::UnixDatagram::bind(&there).expect("a socket"));
        drop(ground.unix(&there, None));
        std::fs::write(&there, "of a user").expect("a file");
        let refused = DatagramSocket::unix(&there, None).expect_err("it is no socket");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        let refused = DatagramSocket::unix(&here, None).expect_err("it is in use");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}

async fn a_unix_socket_with_one_peer_waits_for_it(ground: Ground) {
    const COUNT: usize = 400;
    let folder = Folder::new();
    let (here, there) = (folder.path("here"), folder.path("there"));
    let near = ground.unix(&here, Some(&there));
    let datagram = |number: usize| to(Address::Path(there.as_path().into()), ground.data(number, 64));
    if !ground.is_simulated() {
        assert_eq!(ground.send(&near, vec![datagram(0)]).await, Ok(0), "the peer is not there yet");
    }
    for _ in 0..2 {
        let far = ground.unix(&there, Some(&here));
        let (other, near) = (ground.clone(), near.clone());
        let is_sent = Rc::new(Cell::new(false));
        let flag = is_sent.clone();
        let all: Vec<Datagram> = (0..COUNT).map(datagram).collect();
        ground.reactor.spawn(async move {
            assert_eq!(other.send(&near, all).await, Ok(COUNT));
            flag.set(true);
        });
        ground.reactor.sleep(Duration::from_millis(20)).await;
        assert!(ground.is_simulated() || !is_sent.get(), "the queue of the peer is shorter than this");
        let mut number = 0;
        while number < COUNT.min(if ground.is_simulated() { 256 } else { COUNT }) {
            for datagram in ground.receive(&far, 128, 16).await {
                assert_eq!(datagram.data.to_vec(), pattern(number, 64));
                number += 1;
            }
        }
        ground.reactor.sleep(Duration::from_millis(5)).await;
        assert!(is_sent.get());
    }
}

async fn waiting_for_a_datagram_costs_nothing(ground: Ground) {
    let server = ground.udp("127.0.0.2:0");
    let (other, handle) = (ground.clone(), server.clone());
    ground.reactor.spawn(async move {
        other.receive_one(&handle).await;
    });
    let before = thread_time();
    ground.reactor.sleep(Duration::from_millis(500)).await;
    let used = thread_time() - before;
    assert!(used < Duration::from_millis(10), "{used:?}");
}

async fn an_operation_of_another_kind_of_endpoint_is_refused(ground: Ground) {
    let server = ground.udp("127.0.0.2:0");
    let command = crate::endpoint::command::Command::new(
        crate::endpoint::command::Request::Nvme(Default::default()),
        lunar_core::io::Data::None,
    );
    let (result, command) = ground.reactor.command(&server, command, &mut Completion::new()).await;
    assert!(result == Err(Fault::Unsupported) && command.is_some());
    let mut completion = Completion::new();
    ground.reactor.submit(Op::Extent { file: server.clone(), offset: 0, len: 1 }, completion.token());
    assert!(completion.wait().await.result.is_err());
    assert!(ground.reactor.driver().set_filter(&server, Filter::Promiscuous, true).is_err());
}

/// Two ends of a cable.
struct Cable {
    ground: Ground,
    name: &'static str,
    near: Handle,
    far: Handle,
    near_mac: MacAddress,
    far_mac: MacAddress,
    _folder: Option<Folder>,
}

/// The cables of an environment: for a real kernel, those that this process may have.
fn cables(ground: &Ground, types: &[u16]) -> Vec<Cable> {
    if let Some(world) = &ground.world {
        let segment = world.segment(1500);
        let link = |mac| world.link(segment, mac, types).expect("a link");
        return vec![Cable::new(ground, "segment", link(HERE), link(THERE), None)];
    }
    let folder = Folder::new();
    let (here, there) = (folder.path("here"), folder.path("there"));
    let station = |mac| Station { mac, mtu: 1500 };
    let near = PacketLink::unix(&here, &there, station(HERE)).expect("a socket");
    let far = PacketLink::unix(&there, &here, station(THERE)).expect("a socket");
    let mut cables = vec![Cable::new(ground, "unix", Endpoint::Packet(near), Endpoint::Packet(far), Some(folder))];
    match interface_cables(ground, types) {
        Ok(more) => cables.extend(more),
        Err(why) => eprintln!("skipped: only Unix sockets carry frames here: {why}"),
    }
    cables
}

fn interface_cables(ground: &Ground, types: &[u16]) -> Result<Vec<Cable>, String> {
    network::enter()?;
    let packet = |name: &str, format| {
        let config = PacketConfig { interface: name.to_owned(), types: types.to_vec(), filters: Vec::new(), format };
        PacketLink::interface(&config).map(Endpoint::Packet).map_err(|why| why.to_string())
    };
    let mut cables = Vec::new();
    for (name, one, other, format) in
        [("veth, frames", "va", "vb", RingFormat::Frames), ("veth, blocks", "vc", "vd", RingFormat::Blocks)]
    {
        network::veth(one, other)?;
        cables.push(Cable::new(ground, name, packet(one, format)?, packet(other, format)?, None));
    }
    network::tap("tap0")?;
    let tap = PacketLink::tap("tap0", THERE).map_err(|why| why.to_string())?;
    cables.push(Cable::new(ground, "tap", packet("tap0", RingFormat::Frames)?, Endpoint::Packet(tap), None));
    match xdp::cable(ground, types) {
        Ok(cable) => cables.push(cable),
        Err(why) => eprintln!("skipped: no frames through XDP here: {why}"),
    }
    Ok(cables)
}

impl Cable {
    fn new(ground: &Ground, name: &'static str, near: Endpoint, far: Endpoint, folder: Option<Folder>) -> Self {
        let attach = |endpoint| ground.reactor.attach(endpoint).expect("attached");
        let (near, far) = (attach(near), attach(far));
        let mac = |handle| ground.status(handle).mac.expect("a link has one");
        let (near_mac, far_mac) = (mac(&near), mac(&far));
        Self { ground: ground.clone(), name, near, far, near_mac, far_mac, _folder: folder }
    }

    /// A frame from the near end; `len` counts its payload.
    fn frame_to(&self, destination: MacAddress, ether_type: u16, seed: usize, len: usize) -> Datagram {
        let bytes = frame(destination, self.near_mac, ether_type, seed, len);
        let arena = self.ground.reactor.arena();
        // The header and the payload in pieces of their own.
        let mut data = Sg::from(arena.copy(&bytes[..14]).expect("room"));
        data.push(arena.copy(&bytes[14..]).expect("room"));
        Datagram { data, ..Datagram::default() }
    }

    fn frame(&self, seed: usize, len: usize) -> Datagram {
        self.frame_to(self.far_mac, TYPE, seed, len)
    }
}

fn frame(destination: MacAddress, source: MacAddress, ether_type: u16, seed: usize, len: usize) -> Vec<u8> {
    [&destination.0[..], &source.0[..], &ether_type.to_be_bytes(), &pattern(seed, len)].concat()
}

async fn frames_travel_both_ways(ground: Ground) {
    for cable in cables(&ground, &[TYPE]) {
        const COUNT: usize = 100;
        let frames = (0..COUNT).map(|number| cable.frame(number, 46 + number * 14)).collect();
        assert_eq!(ground.send(&cable.near, vec![cable.frame(7, 60)]).await, Ok(1), "{}", cable.name);
        assert_eq!(
            ground.receive(&cable.far, 2048, BATCH_MAX).await[0].data.to_vec(),
            frame(cable.far_mac, cable.near_mac, TYPE, 7, 60),
            "{}",
            cable.name
        );
        let (other, near) = (ground.clone(), cable.near.clone());
        ground.reactor.spawn(async move { assert_eq!(other.send(&near, frames).await, Ok(COUNT)) });
        let mut number = 0;
        while number < COUNT {
            for got in ground.receive(&cable.far, 2048, BATCH_MAX).await {
                let expected = frame(cable.far_mac, cable.near_mac, TYPE, number, 46 + number * 14);
                assert_eq!((got.data.to_vec(), got.vlan), (expected, None), "{} frame {number}", cable.name);
                number += 1;
            }
        }
        let answer = frame(cable.near_mac, cable.far_mac, TYPE, 3, 46);
        let mut batch = SendBatch::new();
        batch.push_frame(ground.reactor.arena().copy(&answer).expect("room"), None);
        let (sent, _) = ground.reactor.send_batch(&cable.far, batch, &mut Completion::new()).await;
        assert_eq!(sent, Ok(1), "{}", cable.name);
        assert_eq!(ground.receive_one(&cable.near).await.data.to_vec(), answer, "{}", cable.name);
        let counters = ground.status(&cable.far).counters;
        assert_eq!((counters.received as usize, counters.receive_drops), (COUNT + 1, 0), "{}", cable.name);
    }
}

async fn frames_keep_their_vlan_tags(ground: Ground) {
    // A link through XDP receives the frames of one VLAN only.
    for cable in cables(&ground, &[TYPE]).into_iter().filter(|cable| cable.name != "xdp") {
        let tags = [
            Some(VlanTag::new(5)),
            None,
            Some(VlanTag { protocol: VlanTag::C_VLAN, control: 0x6000 }),
            Some(VlanTag { protocol: VlanTag::S_VLAN, control: 0x2fff }),
        ];
        for tag in tags {
            let tagged = Datagram { vlan: tag, ..cable.frame(1, 46) };
            assert_eq!(ground.send(&cable.near, vec![tagged]).await, Ok(1), "{}", cable.name);
            let got = ground.receive_one(&cable.far).await;
            assert_eq!(got.vlan, tag, "{}", cable.name);
            assert_eq!(got.data.to_vec(), frame(cable.far_mac, cable.near_mac, TYPE, 1, 46), "{}", cable.name);
        }
    }
}

async fn frames_of_other_types_are_not_received(ground: Ground) {
    for cable in cables(&ground, &[TYPE, 0x8914]) {
        // A Unix socket and a TAP interface carry all frames to their one peer.
        if matches!(cable.name, "unix" | "tap") {
            continue;
        }
        let other = cable.frame_to(cable.far_mac, OTHER_TYPE, 1, 46);
        let tagged = Datagram { vlan: Some(VlanTag::new(3)), ..other.clone() };
        let second = cable.frame_to(cable.far_mac, 0x8914, 3, 46);
        let all = vec![other, cable.frame(2, 46), tagged, second];
        assert_eq!(ground.send(&cable.near, all).await, Ok(4), "{}", cable.name);
        let mut got = Vec::new();
        while got.len() < 2 {
            got.extend(ground.receive(&cable.far, 2048, BATCH_MAX).await);
        }
        assert_eq!(got[0].data.to_vec(), frame(cable.far_mac, cable.near_mac, TYPE, 2, 46), "{}", cable.name);
        assert_eq!(got[1].data.to_vec(), frame(cable.far_mac, cable.near_mac, 0x8914, 3, 46), "{}", cable.name);
        assert_eq!(ground.status(&cable.far).counters.received, 2, "{}", cable.name);
    }
}

async fn frames_to_groups_are_received_by_their_members(ground: Ground) {
    let group = MacAddress([0x01, 0x10, 0x18, 0x01, 0x00, 0x04]);
    let second = MacAddress([0x0e, 0xfd, 0, 1, 2, 3]);
    for cable in cables(&ground, &[TYPE]) {
        let driver = ground.reactor.driver();
        for filter in [Filter::Group(group), Filter::Unicast(second), Filter::AllGroups, Filter::Promiscuous] {
            driver.set_filter(&cable.far, filter, true).expect("set");
            driver.set_filter(&cable.far, filter, false).expect("removed");
        }
        driver.set_filter(&cable.far, Filter::Group(group), true).expect("set");
        driver.set_filter(&cable.far, Filter::Unicast(second), true).expect("set");
        for destination in [group, second, MacAddress::BROADCAST] {
            let sent = ground.send(&cable.near, vec![cable.frame_to(destination, TYPE, 4, 50)]).await;
            assert_eq!(sent, Ok(1), "{}", cable.name);
            let got = ground.receive_one(&cable.far).await.data.to_vec();
            assert_eq!(got, frame(destination, cable.near_mac, TYPE, 4, 50), "{}", cable.name);
        }
    }
}

async fn a_frame_that_is_too_long_is_dropped_and_counted(ground: Ground) {
    for cable in cables(&ground, &[TYPE]) {
        // A Unix socket carries whole datagrams: its receiver has the room that it has.
        let too_long = if cable.name == "unix" { 3000 } else { 1501 };
        let all = vec![cable.frame(1, too_long), cable.frame(2, 1500)];
        let sent = ground.send(&cable.near, all).await.expect("sent");
        let got = ground.receive(&cable.far, 2048, 4).await;
        assert_eq!(got[0].data.len(), 1514, "{}", cable.name);
        let (sender, receiver) = (ground.status(&cable.near).counters, ground.status(&cable.far).counters);
        assert_eq!(sender.send_drops + receiver.receive_drops, 1, "{} {sent}", cable.name);
        if cable.name == "xdp" {
            continue;
        }
        let tagged = Datagram { vlan: Some(VlanTag::new(5)), ..cable.frame(3, 1500) };
        assert_eq!(ground.send(&cable.near, vec![tagged]).await, Ok(1), "a tag does not count: {}", cable.name);
        assert_eq!(ground.receive_one(&cable.far).await.data.len(), 1514, "{}", cable.name);
    }
}

async fn a_link_knows_its_address_and_its_mtu(ground: Ground) {
    for cable in cables(&ground, &[TYPE]) {
        let (near, far) = (ground.status(&cable.near), ground.status(&cable.far));
        assert_eq!((near.mtu, far.mtu), (1500, 1500), "{}", cable.name);
        assert!(near.mac != far.mac && near.mac.is_some_and(|mac| !mac.is_group()), "{}", cable.name);
        assert_eq!(near.local, Address::None);
    }
}

/// The cables between interfaces; none, with the reason printed, where this process may not make them.
fn wires(ground: &Ground) -> Vec<Cable> {
    cables(ground, &[TYPE]).into_iter().filter(|cable| cable.name.starts_with("veth")).collect()
}

async fn frames_that_find_no_room_in_the_ring_are_counted(ground: Ground) {
    const COUNT: usize = 20_000;
    for cable in wires(&ground) {
        let mut sent = 0;
        while sent < COUNT {
            let frames = (0..200).map(|_| cable.frame(0, 1400)).collect();
            sent += ground.send(&cable.near, frames).await.expect("sent");
        }
        ground.reactor.sleep(Duration::from_millis(10)).await;
        let mut received = 0;
        while received + (ground.status(&cable.far).counters.receive_drops as usize) < sent {
            received += ground.receive(&cable.far, 2048, BATCH_MAX).await.len();
        }
        let counters = ground.status(&cable.far).counters;
        assert!(counters.receive_drops > 0 && counters.received > 1000, "{} {counters:?}", cable.name);
        assert_eq!((counters.received + counters.receive_drops) as usize, sent, "{}", cable.name);
    }
}

async fn a_link_that_goes_down_reports_it_and_works_again(ground: Ground) {
    for (cable, interface) in wires(&ground).into_iter().zip(["vb", "vd"]) {
        let (other, far) = (ground.clone(), cable.far.clone());
        let result = Rc::new(Cell::new(None));
        let theirs = result.clone();
        ground.reactor.spawn(async move {
            let batch = ReceiveBatch::new(2048, 4);
            let (got, _) = other.reactor.receive_batch(&far, batch, &mut Completion::new()).await;
            theirs.set(Some(got));
        });
        ground.reactor.sleep(Duration::from_millis(10)).await;
        network::ip(&format!("link set {interface} down")).expect("down");
        ground.until(|| result.get().is_some()).await;
        assert_eq!(result.get(), Some(Err(Fault::Os(libc::ENETDOWN))), "{}", cable.name);
        // Frames for a link that is down are lost.
        let answer = frame(cable.near_mac, cable.far_mac, TYPE, 1, 46);
        let mut batch = SendBatch::new();
        batch.push_frame(ground.reactor.arena().copy(&answer).expect("room"), None);
        let (sent, _) = ground.reactor.send_batch(&cable.far, batch, &mut Completion::new()).await;
        assert_eq!(sent, Ok(0), "{}", cable.name);
        network::ip(&format!("link set {interface} up")).expect("up");
        // The other end notices a little later, and loses frames until then.
        let (other, far, has_come) = (ground.clone(), cable.far.clone(), Rc::new(Cell::new(false)));
        let flag = has_come.clone();
        ground.reactor.spawn(async move {
            assert_eq!(other.receive_one(&far).await.data.len(), 74);
            flag.set(true);
        });
        while !has_come.get() {
            assert_eq!(ground.send(&cable.near, vec![cable.frame(5, 60)]).await, Ok(1));
            ground.reactor.sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn an_interface_that_is_removed_ends_nothing_else(ground: Ground) {
    let wires = wires(&ground);
    let [first, second] = &wires[..] else { return };
    let (other, far) = (ground.clone(), first.far.clone());
    let result = Rc::new(Cell::new(None));
    let theirs = result.clone();
    ground.reactor.spawn(async move {
        let batch = ReceiveBatch::new(2048, 4);
        let (got, _) = other.reactor.receive_batch(&far, batch, &mut Completion::new()).await;
        theirs.set(Some(got));
    });
    ground.reactor.sleep(Duration::from_millis(10)).await;
    network::ip("link del va").expect("removed");
    ground.until(|| result.get().is_some()).await;
    assert!(matches!(result.get(), Some(Err(_))), "{:?}", result.get());
    assert!(ground.reactor.driver().status(&first.far).is_err());
    assert!(matches!(ground.send(&first.near, vec![first.frame(1, 46)]).await, Ok(0) | Err(_)));
    assert_eq!(ground.send(&second.near, vec![second.frame(5, 60)]).await, Ok(1));
    assert_eq!(ground.receive_one(&second.far).await.data.len(), 74);
}

async fn a_link_that_cannot_be_opened_says_what_to_do(_: Ground) {
    let config = |interface: &str| PacketConfig {
        interface: interface.to_owned(),
        types: vec![TYPE],
        filters: Vec::new(),
        format: RingFormat::Frames,
    };
    let missing = PacketLink::interface(&config("none0")).expect_err("there is none");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    assert!(missing.to_string().contains("`none0`") && missing.to_string().contains("ip link"), "{missing}");
    let many = PacketConfig { types: (0..100).collect(), ..config("lo") };
    match PacketLink::interface(&many).expect_err("too many, or not allowed") {
        why if why.kind() == io::ErrorKind::PermissionDenied => eprintln!("skipped: {why}"),
        why => assert_eq!(why.kind(), io::ErrorKind::InvalidInput, "{why}"),
    }
    let refused = std::thread::spawn(move || {
        give_up_capabilities();
        PacketLink::interface(&config("lo")).expect_err("it is not allowed")
    });
    let refused = refused.join().expect("no panic");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    let words = refused.to_string();
    assert!(words.starts_with("lo: ") && words.contains("setcap cap_net_raw+ep"), "{words}");
}

/// Takes all capabilities from this thread, as from one of an ordinary user.
fn give_up_capabilities() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    // _LINUX_CAPABILITY_VERSION_3, and no capability in any of its sets.
    let (header, none) = (Header { version: 0x2008_0522, pid: 0 }, [0_u32; 6]);
    // SAFETY: the kernel reads both structures.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    assert_eq!(result, 0, "a thread may always give capabilities up");
}

/// On the epoll driver: the device has no such calls, so all of them fail, and their memory comes back.
async fn commands_are_calls_that_wait(ground: &Ground, nvme: &Handle) {
    use crate::endpoint::command::{Command, CommandDevice, Family, NvmeCommand, Request};
    use lunar_core::io::Data;
    let reactor = &ground.reactor;
    let read = Request::Nvme(NvmeCommand { opcode: 2, nsid: 1, ..NvmeCommand::default() });
    let mut completions: Vec<Completion> = (0..50).map(|_| Completion::new()).collect();
    for completion in &mut completions {
        let command = Command::new(read, Data::In(reactor.arena().take_sg(256 << 10).expect("room")));
        reactor.submit(Op::Command { device: nvme.clone(), command }, completion.token());
    }
    for completion in &completions {
        let outcome = completion.wait().await;
        assert_eq!(outcome.result, Err(Fault::Os(libc::ENOTTY)));
        let command = crate::endpoint::carried::<Command>(outcome.data).expect("it comes back");
        assert_eq!((command.data.len(), command.result), (256 << 10, [0; 2]));
    }
    let mut completion = Completion::new();
    let (result, _) = reactor.command(nvme, Command::new(read, Data::None), &mut completion).await;
    assert_eq!(result, Err(Fault::Unsupported), "memory that does not fit the command");
    // SAFETY: it touches no memory.
    let control = unsafe { CommandDevice::open("/dev/null".as_ref(), Family::UblkControl) }.expect("open");
    let why = reactor.attach(Endpoint::Command(control)).expect_err("only io_uring carries them");
    assert!(why.kind() == io::ErrorKind::Unsupported && why.to_string().contains("io_uring"), "{why}");
}

async fn commands_reach_a_device_or_are_refused(ground: Ground) {
    use crate::endpoint::command::{Command, CommandDevice, Family, NvmeCommand, Request, UblkQueue};
    use lunar_core::io::Data;
    // A device that takes every command, and answers 0.
    // SAFETY: it touches no memory.
    let open = |family| unsafe { CommandDevice::open("/dev/null".as_ref(), family) }.expect("open");
    let reactor = &ground.reactor;
    let nvme = reactor.attach(Endpoint::Command(open(Family::Nvme))).expect("attached");
    let mut completion = Completion::new();
    if reactor.driver().name() == "epoll" {
        return commands_are_calls_that_wait(&ground, &nvme).await;
    }
    let read = NvmeCommand { opcode: 2, nsid: 1, ..NvmeCommand::default() };
    let memory = Data::In(reactor.arena().take_sg(2 << 20).expect("room"));
    let mut command = Command::new(Request::Nvme(read), memory);
    for _ in 0..1000 {
        let (result, back) = reactor.command(&nvme, command, &mut completion).await;
        command = back.expect("it comes back");
        assert_eq!((result, command.data.len(), command.result), (Ok(0), 2 << 20, [0; 2]));
    }
    // Many at the same time, more than the ring holds.
    let mut completions: Vec<Completion> = (0..2000).map(|_| Completion::new()).collect();
    for completion in &mut completions {
        let command = Command::new(Request::Nvme(NvmeCommand::default()), Data::None);
        reactor.submit(Op::Command { device: nvme.clone(), command }, completion.token());
    }
    for completion in &completions {
        assert_eq!(completion.wait().await.result, Ok(0));
    }
    // Memory that does not fit the command.
    let wrong = Command::new(Request::Nvme(read), Data::None);
    assert_eq!(reactor.command(&nvme, wrong, &mut completion).await.0, Err(Fault::Unsupported));
    // Commands that fit into the ring of the core.
    let queue = open(Family::UblkQueue { buffer_bytes: 4096 });
    let queue = reactor.attach(Endpoint::Command(queue)).expect("attached");
    let fetch = Request::UblkQueue(UblkQueue { number: 0x20, ..UblkQueue::default() });
    let memory = Data::In(reactor.arena().take_sg(4096).expect("room"));
    let (result, command) = reactor.command(&queue, Command::new(fetch, memory), &mut completion).await;
    assert_eq!((result, command.map(|command| command.data.len())), (Ok(0), Some(4096)));
    let (result, _) = reactor.command(&nvme, Command::new(fetch, Data::None), &mut completion).await;
    assert_eq!(result, Err(Fault::Unsupported), "a command of another family");
    // A file does not take commands.
    let folder = Folder::new();
    let path = folder.path("file");
    std::fs::write(&path, b"").expect("a file");
    // SAFETY: it takes no commands.
    let file = unsafe { CommandDevice::open(&path, Family::Nvme) }.expect("open");
    let file = reactor.attach(Endpoint::Command(file)).expect("attached");
    let flush = Command::new(Request::Nvme(NvmeCommand::default()), Data::None);
    assert_eq!(reactor.command(&file, flush, &mut completion).await.0, Err(Fault::Unsupported));
    // SAFETY: there is none.
    let missing =
        unsafe { CommandDevice::open(&folder.path("none"), Family::Nvme) }.expect_err("there is no such file");
    assert!(missing.kind() == io::ErrorKind::NotFound && missing.to_string().contains("none"), "{missing}");
}
