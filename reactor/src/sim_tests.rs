use super::*;
use crate::op::{Allocate, Driver, Handle, How, Incoming, Op, Wait};
use lunar_core::io::{Completion, Data, Fault, Outcome};
use lunar_core::mem::{Arena, Sg};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 3260);
const TARGET: Host = Host(1);

/// Polls a future that needs no waking, letting the core's time pass in between.
fn wait_for<T>(core: &Core, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => return value,
            Poll::Pending => drop(core.turn(Wait::Until(None))),
        }
    }
}

struct Bench {
    world: World,
    core: Rc<Core>,
    arena: Arena,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        Self { core: world.core(TARGET), world, arena: Arena::new(4 << 20) }
    }

    fn start(&self, op: Op) -> Completion {
        let mut completion = Completion::new();
        self.core.submit(op, completion.token());
        completion
    }

    fn answer(&self, completion: &Completion) -> Outcome {
        wait_for(&self.core, completion.wait())
    }

    fn ask(&self, op: Op) -> Outcome {
        self.answer(&self.start(op))
    }

    fn data(&self, len: usize, value: u8) -> Sg {
        let mut memory = self.arena.take_sg(len).expect("enough memory");
        memory.fill_from(0, value);
        memory.share()
    }

    fn write(&self, file: &Handle, offset: u64, len: usize, value: u8, durable: bool) -> Result<u32, Fault> {
        self.ask(Op::Write { file: file.clone(), offset, data: self.data(len, value), durable }).result
    }

    fn read(&self, file: &Handle, offset: u64, len: usize) -> Result<Vec<u8>, Fault> {
        let into = self.arena.take_sg(len).expect("enough memory");
        let outcome = self.ask(Op::Read { file: file.clone(), offset, into });
        outcome.result.map(|_| outcome.data.into_in().share().to_vec())
    }

    fn file(&self) -> Handle {
        self.world.create("disk", 64 << 10);
        self.core.open(Path::new("disk"), How::default()).expect("it was made")
    }

    /// A connection: the peer, and the target's end of it.
    fn connection(&self) -> (Peer, Handle) {
        let (listener, address) = self.core.listen(ADDRESS).expect("no other listener");
        let peer = self.world.connect(address);
        let incoming = loop {
            if let Some(incoming) = self.core.accepted(&listener) {
                break incoming;
            }
            drop(self.ask(Op::Accept { listener: listener.clone() }));
        };
        let (socket, local, _) = self.core.join(incoming).expect("the peer is there");
        assert_eq!(local, address);
        (peer, socket)
    }

    fn receive(&self, socket: &Handle, len: usize) -> Result<Vec<u8>, Fault> {
        let into = self.arena.take_sg(len).expect("enough memory");
        let outcome = self.ask(Op::Receive { socket: socket.clone(), into, at_once: false });
        let count = outcome.result? as usize;
        Ok(outcome.data.into_in().share().to_vec()[..count].to_vec())
    }

    fn send(&self, socket: &Handle, data: &[u8]) -> Completion {
        let mut memory = self.arena.take_sg(data.len()).expect("enough memory");
        memory.copy_from(0, data);
        self.start(Op::Send { socket: socket.clone(), data: memory.share() })
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn files_keep_written_data() {
    for seed in 0..20 {
        let bench = Bench::new(seed);
        let file = bench.file();
        assert_eq!(bench.write(&file, 512, 8192, 7, false), Ok(8192));
        assert_eq!(bench.read(&file, 0, 1024), Ok([[0; 512], [7; 512]].concat()));
        assert_eq!(bench.ask(Op::Sync { file: file.clone() }).result, Ok(0));
        let punch = Op::Allocate { file: file.clone(), how: Allocate::Punch, offset: 4096, len: 4096 };
        assert_eq!(bench.ask(punch).result, Ok(0));
        assert_eq!(bench.read(&file, 4096 - 512, 1024), Ok([[7; 512], [0; 512]].concat()));
        let extent = bench.ask(Op::Extent { file: file.clone(), offset: 0, len: 64 << 10 }).extent;
        assert_eq!((extent.len, extent.mapped), (4096, true));
        drop(file);
        assert_eq!(bench.arena.used(), 0);
    }
}

#[test]
fn operations_end_in_any_order_but_take_time() {
    let mut reordered = false;
    for seed in 0..20 {
        let bench = Bench::new(seed);
        bench.world.set_faults(Faults { eager: 0, ..Faults::none() });
        let file = bench.file();
        let begun = bench.world.now();
        let first = bench.start(Op::Write { file: file.clone(), offset: 0, data: bench.data(512, 1), durable: false });
        let second = bench.start(Op::Write { file: file.clone(), offset: 0, data: bench.data(512, 2), durable: false });
        assert_eq!(bench.answer(&first).result, Ok(512));
        assert_eq!(bench.answer(&second).result, Ok(512));
        assert!(bench.world.now() > begun);
        reordered |= bench.read(&file, 0, 1) == Ok(vec![1]);
    }
    assert!(reordered);
}

#[test]
fn direct_files_want_alignment_and_read_only_ones_no_writes() {
    let bench = Bench::new(1);
    bench.world.create("disk", 4096);
    let direct = bench.core.open(Path::new("disk"), How { direct: true, ..How::default() }).expect("made");
    assert_eq!(bench.write(&direct, 0, 512, 1, false), Ok(512));
    assert_eq!(bench.write(&direct, 1, 512, 1, false), Err(Fault::Os(22)));
    assert_eq!(bench.write(&direct, 0, 511, 1, false), Err(Fault::Os(22)));
    let fixed = bench.core.open(Path::new("disk"), How { read_only: true, ..How::default() }).expect("made");
    assert_eq!(bench.write(&fixed, 0, 512, 1, false), Err(Fault::Gone));
    assert!(bench.core.open(Path::new("none"), How::default()).is_err());
}

#[test]
fn faults_come_at_their_odds() {
    let bench = Bench::new(1);
    let file = bench.file();
    let always = Faults { read_error: MILLION, write_error: MILLION, sync_error: MILLION, ..Faults::none() };
    bench.world.set_faults(always.clone());
    assert_eq!(bench.read(&file, 0, 512), Err(Fault::Medium));
    assert_eq!(bench.write(&file, 0, 512, 1, false), Err(Fault::Medium));
    assert_eq!(bench.ask(Op::Sync { file: file.clone() }).result, Err(Fault::Medium));
    bench.world.set_faults(Faults { no_space: MILLION, ..Faults::none() });
    assert_eq!(bench.write(&file, 0, 512, 1, false), Err(Fault::NoSpace));
    bench.world.set_faults(Faults { space: Some(2), ..Faults::none() });
    assert_eq!(bench.write(&file, 8192, 8192, 1, false), Ok(8192));
    assert_eq!(bench.write(&file, 16384, 512, 1, false), Err(Fault::NoSpace));
    assert_eq!(bench.write(&file, 8192, 512, 1, false), Ok(512));
    let mut healed = always;
    healed.heal();
    bench.world.set_faults(healed);
    assert!(bench.read(&file, 0, 512).is_ok());
}

#[test]
fn every_open_file_reports_once_that_the_cache_could_not_be_written() {
    let bench = Bench::new(1);
    let file = bench.file();
    let open = || bench.core.open(Path::new("disk"), How::default()).expect("made");
    let (other, writer) = (open(), open());
    let sync = |file: &Handle| bench.ask(Op::Sync { file: file.clone() }).result;
    bench.world.set_faults(Faults { write_error: MILLION, ..Faults::none() });
    assert_eq!(bench.write(&writer, 0, 512, 1, false), Err(Fault::Medium));
    bench.world.set_faults(Faults::none());
    assert_eq!(sync(&file), Ok(0), "nothing had reached the cache");
    bench.world.set_faults(Faults { sync_error: MILLION, ..Faults::none() });
    assert_eq!(sync(&file), Err(Fault::Medium));
    bench.world.set_faults(Faults::none());
    assert_eq!((sync(&file), sync(&other), sync(&other)), (Ok(0), Err(Fault::Medium), Ok(0)));
    assert_eq!(bench.write(&writer, 0, 512, 1, false), Ok(512));
    assert_eq!(bench.write(&writer, 0, 512, 1, true), Err(Fault::Medium));
    assert_eq!(bench.write(&writer, 0, 512, 1, true), Ok(512));
    assert_eq!(sync(&open()), Ok(0));
}

#[test]
fn a_crash_ends_operations_and_keeps_durable_data() {
    let mut lost = 0;
    for seed in 0..50 {
        let bench = Bench::new(seed);
        bench.world.set_faults(Faults { eager: 0, ..Faults::none() });
        let file = bench.file();
        assert_eq!(bench.write(&file, 0, 512, 1, true), Ok(512));
        assert_eq!(bench.write(&file, 512, 512, 2, false), Ok(512));
        let running =
            bench.start(Op::Write { file: file.clone(), offset: 1024, data: bench.data(512, 3), durable: true });
        bench.world.crash(TARGET, true);
        assert_eq!(wait_for(&bench.core, running.wait()).result, Err(Fault::Aborted));
        let core = bench.world.core(TARGET);
        let after = Bench { world: bench.world.clone(), core, arena: bench.arena.clone() };
        let file = after.core.open(Path::new("disk"), How::default()).expect("made");
        let found = after.read(&file, 0, 1536).expect("no faults");
        assert_eq!(found[..512], [1; 512]);
        lost += usize::from(found[512] == 0);
    }
    assert!((5..45).contains(&lost), "{lost}");
}

#[test]
fn bytes_travel_whole_and_in_order() {
    for seed in 0..50 {
        let bench = Bench::new(seed);
        bench.world.set_faults(Faults { buffer: (600, 5000), ..Faults::none() });
        let (peer, socket) = bench.connection();
        let bytes = pattern(10_000);
        let sending = bench.send(&socket, &bytes);
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            got.extend(wait_for(&bench.core, peer.receive(4096)).expect("no faults"));
        }
        assert_eq!(got, bytes);
        assert_eq!(bench.answer(&sending).result, Ok(10_000));
        let mut got = Vec::new();
        for chunk in bytes[..3000].chunks(500) {
            wait_for(&bench.core, peer.send(chunk)).expect("no faults");
            let end = got.len() + chunk.len();
            while got.len() < end {
                got.extend(bench.receive(&socket, 4096).expect("no faults"));
            }
        }
        assert_eq!(got, bytes[..3000]);
        peer.shutdown();
        assert_eq!(bench.receive(&socket, 10), Ok(vec![]));
        bench.core.shutdown(&socket);
        assert_eq!(wait_for(&bench.core, peer.receive(10)), Ok(vec![]));
        assert_eq!(bench.answer(&bench.send(&socket, b"x")).result, Err(Fault::Os(32)));
    }
}

#[test]
fn a_peer_that_does_not_read_holds_up_the_sender_only() {
    let bench = Bench::new(3);
    bench.world.set_faults(Faults { buffer: (1000, 1000), eager: 0, ..Faults::none() });
    let (peer, socket) = bench.connection();
    let sending = bench.send(&socket, &pattern(5000));
    let far = bench.world.now() + Duration::from_secs(10);
    while bench.world.now() < far {
        bench.core.turn(Wait::Until(Some(far)));
    }
    let mut waiting = pin!(sending.wait());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(peer);
    assert_eq!(wait_for(&bench.core, waiting).result, Err(Fault::Os(104)));
}

#[test]
fn resets_reach_both_ends_and_cancel_ends_waiting_operations() {
    let bench = Bench::new(3);
    let (peer, socket) = bench.connection();
    let into = bench.arena.take_sg(100).expect("enough memory");
    let receiving = bench.start(Op::Receive { socket: socket.clone(), into, at_once: false });
    bench.core.cancel(&socket);
    assert_eq!(bench.answer(&receiving).result, Err(Fault::Aborted));
    peer.reset();
    assert_eq!(bench.receive(&socket, 10), Err(Fault::Os(104)));
    assert_eq!(wait_for(&bench.core, peer.receive(10)), Err(Fault::Os(104)));
    assert_eq!(bench.answer(&bench.send(&socket, b"x")).result, Err(Fault::Os(104)));
}

#[test]
fn a_connection_without_listener_and_one_to_a_crashed_host_are_reset() {
    let bench = Bench::new(3);
    let lonely = bench.world.connect(ADDRESS);
    assert_eq!(wait_for(&bench.core, lonely.receive(1)), Err(Fault::Os(104)));
    let (peer, _socket) = bench.connection();
    let other = bench.world.core(Host(2));
    bench.world.crash(TARGET, false);
    assert_eq!(wait_for(&other, peer.receive(1)), Err(Fault::Os(104)));
}

#[test]
fn unread_bytes_turn_a_close_into_a_reset() {
    let bench = Bench::new(3);
    let (peer, socket) = bench.connection();
    wait_for(&bench.core, peer.send(b"hello")).expect("no faults");
    assert!(bench.receive(&socket, 1).is_ok());
    wait_for(&bench.core, peer.send(b"more")).expect("no faults");
    let far = bench.world.now() + Duration::from_secs(1);
    while bench.world.now() < far {
        bench.core.turn(Wait::Until(Some(far)));
    }
    drop(socket);
    assert_eq!(wait_for(&bench.core, peer.receive(1)), Err(Fault::Os(104)));
}

#[test]
fn a_bell_is_heard_once_even_if_it_rang_before() {
    let bench = Bench::new(3);
    let bell = bench.core.bell();
    bell.ring();
    assert_eq!(bench.ask(Op::Bell).result, Ok(0));
    let waiting = bench.start(Op::Bell);
    bench.core.turn(Wait::Poll);
    assert!(!bench.core.has_completions());
    bell.ring();
    assert_eq!(bench.answer(&waiting).result, Ok(0));
}

#[test]
#[should_panic(expected = "stands still")]
fn a_standstill_is_found() {
    let bench = Bench::new(3);
    let (_peer, socket) = bench.connection();
    let _ = bench.receive(&socket, 1);
}

#[test]
#[should_panic(expected = "virtual time is up")]
fn the_deadline_is_kept() {
    let bench = Bench::new(3);
    bench.world.set_deadline(Instant(1000));
    bench.core.turn(Wait::Until(Some(Instant(5000))));
}

/// Writes, reads, sends and crashes under all faults; the number of what happened.
fn busy(seed: u64) -> u64 {
    let bench = Bench::new(seed);
    let mut chance = bench.world.chance();
    bench.world.set_faults(Faults { reset: 0, accept_error: 0, ..Faults::any(&mut chance) });
    let file = bench.file();
    let (peer, socket) = bench.connection();
    for _ in 0..50 {
        let offset = 512 * chance.within(0..=100);
        match chance.index(4) {
            0 => drop(bench.write(&file, offset, 1024, chance.draw() as u8, chance.coin())),
            1 => drop(bench.read(&file, offset, 1024)),
            2 => drop(bench.ask(Op::Sync { file: file.clone() }).result),
            _ => {
                wait_for(&bench.core, peer.send(b"some bytes")).expect("no resets");
                drop(bench.receive(&socket, 5));
            }
        }
    }
    bench.world.crash(TARGET, true);
    bench.world.trace_hash()
}

#[test]
fn equal_seeds_give_equal_traces() {
    for seed in 0..20 {
        assert_eq!(busy(seed), busy(seed));
        assert_ne!(busy(seed), busy(seed + 1));
    }
}

/// An echo server on two cores: one accepts, the other serves; clients on a third. The number of what happened.
fn echo(seed: u64) -> u64 {
    let world = World::new(seed);
    let mut chance = world.chance();
    world.set_faults(Faults { accept_error: 0, reset: 0, ..Faults::any(&mut chance) });
    world.set_deadline(Instant(600_000_000_000));
    let reactor = |host| Reactor::with_driver(world.core(host), Arena::new(4 << 20), Arc::default());
    let (front, back, client) = (reactor(TARGET), reactor(TARGET), reactor(Host(2)));
    let (sender, mut receiver) = crate::channel::channel::<Incoming>(&back);
    let (listener, address) = front.driver().listen(ADDRESS).expect("free");
    let acceptor = front.clone();
    front.spawn(async move {
        while let Ok(incoming) = acceptor.accept(&listener).await {
            sender.send(incoming);
        }
    });
    let server = back.clone();
    back.spawn(async move {
        while let Some(incoming) = receiver.recv().await {
            let (socket, ..) = server.driver().join(incoming).expect("the peer waits");
            server.spawn(echo_one(server.clone(), socket));
        }
    });
    let left = Rc::new(std::cell::Cell::new(5));
    for number in 0..left.get() {
        let (left, peer, client_core) = (left.clone(), world.connect(address), client.clone());
        client.spawn(async move {
            client_core.sleep(Duration::from_millis(number)).await;
            let bytes = pattern(20_000);
            for chunk in bytes.chunks(500) {
                peer.send(chunk).await.expect("no resets");
                let mut got = Vec::new();
                while got.len() < chunk.len() {
                    got.extend(peer.receive(1000).await.expect("no resets"));
                }
                assert_eq!(got, chunk);
            }
            left.set(left.get() - 1);
        });
    }
    world.run(&[&front, &back, &client], || left.get() == 0);
    let arenas = [&front, &back].map(|core| core.arena().clone());
    drop((front, back, client));
    arenas.iter().for_each(|arena| assert_eq!(arena.used(), 0));
    world.trace_hash()
}

async fn echo_one(core: Reactor, socket: Handle) {
    let mut completion = Completion::new();
    loop {
        let into = core.arena().wait_sg(700).await;
        let (result, memory) = core.receive(&socket, into, &mut completion).await;
        let Ok(count @ 1..) = result else { return };
        core.end_of_turn().await;
        if core.send(&socket, memory.share().part(0..count), &mut completion).await.is_err() {
            return;
        }
    }
}

#[test]
fn several_cores_share_a_world_and_replay() {
    for seed in 0..10 {
        assert_eq!(echo(seed), echo(seed));
    }
}

#[test]
fn one_core_alone_runs_its_own_loop() {
    let world = World::new(1);
    let core = Reactor::with_driver(world.core(TARGET), Arena::new(1 << 20), Arc::default());
    let begun = core.now();
    core.run(core.sleep(Duration::from_secs(3600)));
    assert!(core.now().since(begun) >= Duration::from_secs(3600));
}

/// Requests that a foreign thread answers, on a core that ends early or late. The number of all that happened.
fn foreign(seed: u64) -> (u64, Vec<u32>) {
    let world = World::new(seed);
    let mut chance = world.chance();
    world.set_faults(Faults { slow: 100_000, ..Faults::any(&mut chance) });
    let driver = world.core(TARGET);
    let thread = driver.foreign_thread();
    let reactor = Reactor::with_driver(driver, Arena::new(1 << 20), Arc::default());
    let arena = reactor.arena().clone();
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..20_u32 {
        let (reactor, thread, order) = (reactor.clone(), thread.clone(), order.clone());
        reactor.clone().spawn(async move {
            let mut completion = Completion::new();
            let data = Data::In(reactor.arena().wait_sg(100).await);
            let token = reactor.remote(completion.token(), data).expect("room");
            thread.answer_later(token, move |mut token| {
                token.write(0, &[number as u8; 100]);
                if number != 13 {
                    token.complete(Ok(number));
                }
            });
            let outcome = completion.wait().await;
            assert_eq!(outcome.result, if number == 13 { Err(Fault::Aborted) } else { Ok(number) });
            assert_eq!(outcome.data.into_in().share().to_vec(), [number as u8; 100]);
            order.borrow_mut().push(number);
        });
    }
    if seed.is_multiple_of(2) {
        world.run(&[&reactor], || order.borrow().len() == 20);
    } else {
        world.run(&[&reactor], || order.borrow().len() == 5);
        world.crash(TARGET, true);
    }
    drop(reactor);
    assert_eq!(arena.used(), 0, "no token outlives its core");
    (world.trace_hash(), order.take())
}

#[test]
fn foreign_threads_answer_at_times_of_the_seed() {
    for seed in 0..20 {
        assert_eq!(foreign(seed), foreign(seed));
    }
    let (_, order) = foreign(0);
    assert_ne!(order, (0..20).collect::<Vec<_>>(), "the answers come in any order");
}
