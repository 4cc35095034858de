use super::connection::SEND_TIMEOUT;
use super::*;
use crate::protocol::{PullResult, ReceiveMode};
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, PAGE, Sg, SgMut, Slice};
use lunar_core::port::Transfer;
use lunar_core::task::TaskSet;
use lunar_reactor::op::Handle;
use lunar_reactor::sim::{Host, Peer, World};
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 1);
/// The session ends the connection after this byte.
const QUIT: u8 = b'q';
/// This byte is followed by `LARGE_LEN` bytes that are received directly to their place.
const LARGE: u8 = b'l';
const LARGE_LEN: usize = 20_000;
/// The session reads no further until the queue was taken.
const BLOCK: u8 = b'b';
/// The reply to this byte is preceded by `WIDE_LEN` bytes.
const WIDE: u8 = b'w';
const WIDE_LEN: usize = 200_000;
/// The key of a command whose data has to be requested.
const ASKS: u8 = 1;
/// There is no memory for the reply to this byte.
const STARVE: u8 = b's';
/// The session panics at this byte.
const PANIC: u8 = b'p';
/// Limit of connections.
const CONNECTIONS_MAX: usize = HALF_OPEN_MAX + 2;

/// A session that sends back what it receives, until it receives `QUIT`.
struct Echo {
    arena: Arena,
    queued: Sg,
    has_quit: bool,
    /// Bytes of large data still to be received, and bytes of all large data received to their place.
    left: usize,
    placed: Rc<Cell<usize>>,
    is_blocked: bool,
    is_starved: bool,
}

/// The session ends.
struct Quit;

impl ProtocolMachine for Echo {
    type Action = Quit;

    fn receive_mode(&mut self) -> ReceiveMode {
        if self.has_quit || self.is_blocked {
            return ReceiveMode::Paused;
        }
        let place = self.arena.take_sg(self.left).filter(|place| !place.is_empty());
        place.map_or(ReceiveMode::Chunk, ReceiveMode::Into)
    }

    fn receive(&mut self, bytes: Slice, _now: Instant, actions: &mut Vec<Quit>) {
        let rest = &bytes[self.left.min(bytes.len())..];
        assert!(!rest.contains(&PANIC), "as the test wants");
        self.left -= bytes.len() - rest.len();
        if let Some(at) = rest.iter().position(|byte| *byte == LARGE) {
            self.left = LARGE_LEN.checked_sub(rest.len() - at - 1).expect("one large item per chunk");
        }
        self.is_blocked |= rest.contains(&BLOCK);
        if rest.contains(&STARVE) {
            self.is_starved = true;
            return;
        }
        if rest.contains(&WIDE) {
            self.queued.append(self.arena.take_sg(WIDE_LEN).expect("room").share());
        }
        if rest.contains(&QUIT) {
            self.has_quit = true;
            actions.push(Quit);
        }
        self.queued.push(bytes);
    }

    fn placed(&mut self, mut memory: SgMut, count: usize, _now: Instant, _actions: &mut Vec<Quit>) {
        self.left -= count;
        self.placed.set(self.placed.get() + count);
        memory.split_to(count).share().into_pieces().for_each(|piece| self.queued.push(piece));
    }

    fn resume(&mut self, _actions: &mut Vec<Quit>) {
        self.is_blocked = false;
    }

    fn take_out(&mut self) -> Sg {
        std::mem::take(&mut self.queued)
    }

    fn queued_bytes(&self) -> usize {
        self.queued.len()
    }

    fn is_out_of_memory(&self) -> bool {
        self.is_starved
    }
}

impl CommandData for Echo {
    type Key = u8;

    fn pull(&mut self, key: u8, _offset: usize, len: usize) -> PullResult {
        if key == ASKS { PullResult::NeedsMemory(len) } else { PullResult::Failed(Fault::Aborted) }
    }

    fn supply(&mut self, _key: u8, _memory: SgMut) {}

    fn push(&mut self, _key: u8, _offset: usize, _data: Sg) -> Result<(), Fault> {
        Err(Fault::Aborted)
    }
}

/// A record layer that adds a number to each byte.
struct Shift(u8);

impl Shift {
    fn add(shift: u8, bytes: &[u8], arena: &Arena) -> Slice {
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(shift)).collect();
        arena.copy(&bytes).expect("room")
    }
}

impl RecordLayer for Shift {
    fn is_plain(&self) -> bool {
        self.0 == 0
    }

    fn open(&self, bytes: Slice, arena: &Arena, mut hand_on: impl FnMut(Slice)) -> bool {
        hand_on(Self::add(0_u8.wrapping_sub(self.0), &bytes, arena));
        true
    }

    fn seal(&self, data: Sg, arena: &Arena) -> Option<Sg> {
        let mut sealed = Sg::default();
        data.into_pieces().for_each(|piece| sealed.push(Self::add(self.0, &piece, arena)));
        Some(sealed)
    }

    fn queued_bytes(&self) -> usize {
        0
    }
}

struct Connection {
    stream: StreamConnection<Echo, Shift>,
    /// Whether a command is in progress.
    is_busy: Cell<bool>,
    closed: Rc<Cell<usize>>,
    /// The deadline of the connection, and how often it was checked.
    deadline: Cell<Option<Instant>>,
    checks: Cell<usize>,
    /// Whether the next check panics.
    fails: Cell<bool>,
}

impl FrontConnection for Connection {
    type Session = Echo;
    type RecordLayer = Shift;

    fn stream(&self) -> &StreamConnection<Echo, Shift> {
        &self.stream
    }

    async fn perform(self: &Rc<Self>, actions: &mut Vec<Quit>) {
        actions.drain(..).for_each(|Quit| self.stream.stop_receiving());
    }

    async fn close(self: &Rc<Self>) {
        self.stream.finish().await;
        self.closed.set(self.closed.get() + 1);
    }

    fn is_idle(&self) -> bool {
        !self.is_busy.get()
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline.get()
    }

    fn tick(&self, _now: Instant, _active: bool) {
        self.checks.set(self.checks.get() + 1);
        assert!(!self.fails.get(), "as the test wants");
    }

    fn log(&self, _what: &str) {}
}

struct Rig {
    world: World,
    core: Reactor,
    listener: Handle,
    connections: Rc<Connections<Connection>>,
    closed: Rc<Cell<usize>>,
    placed: Rc<Cell<usize>>,
    /// The number that the record layer adds.
    shift: u8,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let core = Reactor::with_driver(world.core(Host(1)), Arena::new(8 << 20), Arc::default());
        let (listener, _) = core.driver().listen(ADDRESS).expect("the address is free");
        let connections = Connections::new(&core, CONNECTIONS_MAX);
        Self { world, core, listener, connections, closed: Rc::default(), placed: Rc::default(), shift: 0 }
    }

    /// Runs until `future` has ended.
    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let (result, place) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(false)));
        let (to, ended) = (result.clone(), place.clone());
        self.core.spawn(async move {
            to.set(Some(future.await));
            ended.set(true);
        });
        self.world.run(&[&self.core], || place.get());
        result.take().expect("the future has ended")
    }

    fn connect(&self) -> Peer {
        let peer = self.world.connect(ADDRESS);
        let (core, listener) = (self.core.clone(), self.listener.clone());
        let incoming = self.run(async move { core.accept(&listener).await.expect("a connection") });
        let arena = self.core.arena().clone();
        let placed = self.placed.clone();
        let (queued, left, has_quit, is_blocked, is_starved) = (Sg::default(), 0, false, false, false);
        let echo = Echo { arena, queued, has_quit, left, placed, is_blocked, is_starved };
        self.connections.serve(incoming, |_, (socket, _, peer)| Connection {
            stream: StreamConnection::new(
                &self.core,
                socket,
                self.core.arena().join(peer.ip()),
                echo,
                Shift(self.shift),
            ),
            is_busy: Cell::new(false),
            closed: self.closed.clone(),
            deadline: Cell::default(),
            checks: Cell::default(),
            fails: Cell::default(),
        });
        peer
    }

    /// Lets time pass without traffic.
    fn idle(&self, time: Duration) {
        let core = self.core.clone();
        self.run(async move { core.sleep(time).await });
    }

    /// Sends bytes, and receives until `count` bytes have arrived or the other side has closed.
    fn exchange(&self, peer: Peer, bytes: Vec<u8>, count: usize) -> (Peer, Vec<u8>) {
        self.run(async move {
            peer.send(&bytes).await.expect("the peer is connected");
            let mut all = Vec::new();
            while all.len() < count {
                let some = peer.receive(count).await.expect("the connection was not reset");
                if some.is_empty() {
                    break;
                }
                all.extend(some);
            }
            (peer, all)
        })
    }
}

#[test]
fn queued_bytes_are_sent_and_the_last_of_them_before_the_end() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let long = vec![7; 300_000];
        let (peer, echo) = rig.exchange(rig.connect(), long.clone(), long.len());
        assert!(echo == long);
        let (peer, last) = rig.exchange(peer, vec![QUIT], 99);
        assert_eq!(last, [QUIT], "and the connection is closed after it");
        assert_eq!(rig.connections.len(), 1, "the connection lingers until its peer closes its side");
        drop(peer);
        rig.world.run(&[&rig.core], || rig.connections.is_empty());
        assert_eq!((rig.closed.get(), rig.core.stats().connections.get()), (1, 0));
    }
}

#[test]
fn a_panic_ends_its_connection_and_no_other_one() {
    let rig = Rig::new(1);
    let (peer, echo) = rig.exchange(rig.connect(), vec![PANIC], 1);
    assert!(echo.is_empty(), "it is closed");
    drop(peer);
    rig.world.run(&[&rig.core], || rig.connections.is_empty());
    assert_eq!((rig.closed.get(), rig.core.stats().connections.get()), (1, 0));
    assert_eq!(rig.exchange(rig.connect(), vec![8], 1).1, [8]);
}

#[test]
fn a_panic_in_the_check_of_a_connection_ends_it_and_no_other_one() {
    let rig = Rig::new(1);
    let (peer, other) = (rig.connect(), rig.connect());
    rig.connections.all()[0].fails.set(true);
    rig.idle(SWEEP_LATEST * 2);
    drop(peer);
    rig.world.run(&[&rig.core], || rig.connections.len() == 1);
    let checks = rig.connections.all()[0].checks.get();
    let (_other, echo) = rig.exchange(other, vec![8], 1);
    rig.idle(SWEEP_LATEST * 2);
    assert!(echo == [8] && rig.connections.all()[0].checks.get() > checks);
}

#[test]
fn bytes_after_large_data_are_not_lost() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let large = |end: u8| [vec![LARGE], vec![1; LARGE_LEN], vec![end; 100]].concat();
        let all: Vec<u8> = (2..12).flat_map(large).collect();
        let (_peer, echo) = rig.exchange(rig.connect(), all.clone(), all.len());
        assert!(echo == all);
        assert!(rig.placed.get() > 0 && rig.placed.get() <= 10 * LARGE_LEN);
    }
}

#[test]
fn a_connection_whose_peer_has_accepted_everything_is_idle_and_stays() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let mut peer = rig.connect();
        // The last receives are small, into the rest of a large buffer.
        for (bytes, count) in [(vec![7; 300_000], 300_000), (vec![8], 1), (vec![8], 1), (vec![WIDE], WIDE_LEN + 1)] {
            peer = rig.exchange(peer, bytes, count).0;
        }
        // The core was idle: large replies leave early, and in several sends.
        for _ in 0..8 {
            rig.idle(Duration::from_secs(1));
            peer = rig.exchange(peer, vec![WIDE], WIDE_LEN + 1).0;
        }
        rig.idle(2 * SEND_TIMEOUT);
        let connection = &rig.connections.all()[0];
        assert!(connection.stream.is_idle(), "{:?}", connection.stream);
        assert_eq!(rig.core.stats().keepalive_timeouts.get(), 0);
        assert_eq!(rig.core.arena().used(), PAGE, "the buffer of the next receive");
        assert_eq!(rig.exchange(peer, vec![8], 1).1, [8]);
    }
}

#[test]
fn a_session_that_waits_for_a_send_continues_after_it() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let mut peer = rig.connect();
        for bytes in [vec![BLOCK], vec![WIDE, BLOCK], vec![WIDE, BLOCK]] {
            rig.idle(Duration::from_secs(1));
            let count = bytes.len() + if bytes[0] == WIDE { WIDE_LEN } else { 0 };
            peer = rig.exchange(peer, bytes, count).0;
            let (back, echo) = rig.exchange(peer, vec![8], 1);
            assert_eq!(echo, [8]);
            peer = back;
        }
    }
}

#[test]
fn a_connection_without_memory_for_an_answer_ends() {
    for bytes in [vec![STARVE], [vec![7; 100], vec![STARVE]].concat()] {
        let rig = Rig::new(1);
        let (peer, _) = rig.exchange(rig.connect(), bytes, 1);
        drop(peer);
        rig.world.run(&[&rig.core], || rig.connections.is_empty());
    }
}

#[test]
fn a_new_connection_is_checked_although_others_have_later_deadlines() {
    let rig = Rig::new(1);
    let late = |at: usize| {
        let connection = rig.connections.all()[at].clone();
        connection.deadline.set(Some(rig.core.now() + Duration::from_secs(1_000_000)));
        connection
    };
    let (first, _) = (rig.connect(), late(0));
    rig.idle(Duration::from_secs(5));
    let (second, connection) = (rig.connect(), late(1));
    rig.idle(SWEEP * 2);
    assert!(connection.checks.get() > 0);
    let before = connection.checks.get();
    rig.idle(SWEEP_LATEST * 4);
    assert!((3..9).contains(&(connection.checks.get() - before)), "{}", connection.checks.get() - before);
    drop((first, second));
}

#[test]
fn a_connection_whose_peer_accepts_nothing_ends_and_frees_its_memory() {
    let rig = Rig::new(1);
    let (peer, first) = rig.exchange(rig.connect(), vec![7], 1);
    assert_eq!(first, [7]);
    let peer = rig.run(async move {
        for _ in 0..20 {
            peer.send(&[WIDE]).await.expect("the peer is connected");
        }
        peer
    });
    rig.idle(Duration::from_secs(1));
    assert!(rig.core.arena().used() > WIDE_LEN && rig.core.arena().outgoing() > WIDE_LEN);
    rig.idle(3 * SEND_TIMEOUT);
    assert_eq!(rig.core.arena().outgoing(), 0);
    assert_eq!((rig.connections.len(), rig.core.arena().used()), (0, 0));
    assert_eq!(rig.core.stats().keepalive_timeouts.get(), 1);
    drop(peer);
}

#[test]
fn the_record_layer_sees_all_bytes() {
    let rig = Rig { shift: 3, ..Rig::new(1) };
    let (peer, echo) = rig.exchange(rig.connect(), vec![7; 100_000], 100_000);
    assert!(echo == vec![7; 100_000]);
    let (peer, echo) = rig.exchange(peer, vec![QUIT], 1);
    assert_eq!((echo, rig.connections.len()), (vec![QUIT], 1), "the byte on the wire does not end the session");
    assert_eq!(rig.exchange(peer, vec![QUIT + 3], 9).1, [QUIT + 3], "and the connection is closed after it");
}

#[test]
fn a_command_that_holds_memory_does_not_wait_for_more() {
    let rig = Rig::new(1);
    let _peer = rig.connect();
    let connection = rig.connections.all.borrow().values().next().cloned().expect("one");
    let tasks = TaskSet::<u8>::default();
    let task = tasks.enter(0);
    let data_path = DataPath::new(&connection.stream, ASKS, &task, PAGE as u32);
    let arena = rig.core.arena();
    let all: Vec<SgMut> = std::iter::from_fn(|| arena.take_sg(PAGE)).collect();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(data_path.pull(0, PAGE)).poll(&mut cx).is_pending(), "a pull without memory waits");
    let pulled = pin!(data_path.pull_more(0, PAGE)).poll(&mut cx);
    assert!(matches!(pulled, Poll::Ready(Err(Fault::NoMemory))), "{pulled:?}");
    drop(all);
}

#[test]
fn a_peer_that_receives_nothing_leaves_memory_to_other_hosts() {
    let rig = Rig::new(1);
    let _peers: Vec<Peer> = (0..16).map(|_| rig.connect()).collect();
    let connections = rig.connections.all();
    let arena = rig.core.arena();
    let tasks = TaskSet::<u8>::default();
    let reads: Vec<_> = (0..64).map(|key| tasks.enter(key)).collect();
    let mut cx = Context::from_waker(Waker::noop());
    // Each connection has as many reads as are admitted, none of whose data leaves.
    let paths: Vec<_> = connections
        .iter()
        .flat_map(|connection| reads.iter().map(|task| DataPath::new(&connection.stream, ASKS, task, 0)))
        .collect();
    let reads: Vec<usize> = paths
        .iter()
        .filter_map(|path| match pin!(path.reserve(16 * PAGE, 2 * PAGE)).poll(&mut cx) {
            Poll::Ready(reserved) => Some(reserved.expect("no command is aborted")),
            Poll::Pending => None,
        })
        .collect();
    let reserved: usize = reads.iter().sum();
    assert!(reads.len() >= 16 && reserved <= arena.size() / 4, "{} reads of {reserved} bytes", reads.len());
    assert_eq!((reads[0], reads[reads.len() - 1]), (16 * PAGE, 2 * PAGE), "the last ones have the least");
    let newcomer = rig.connect();
    let connection = rig.connections.all().pop().expect("it is there");
    let task = tasks.enter(64);
    let path = DataPath::new(&connection.stream, ASKS, &task, 0);
    let one_more = pin!(path.reserve(16 * PAGE, 2 * PAGE)).poll(&mut cx);
    assert!(
        matches!(one_more, Poll::Ready(Ok(reserved)) if reserved == 2 * PAGE),
        "a session of the host: {one_more:?}"
    );
    let other = arena.join([198, 51, 100, 1].into()).outgoing;
    assert!(other.has_room(arena.size() / 16) && !connections[0].stream.memory.outgoing.has_room(arena.size() / 16));
    drop((paths, path, newcomer));
    assert_eq!(arena.outgoing(), 0);
}

#[test]
fn the_oldest_half_open_connection_makes_room() {
    let rig = Rig::new(1);
    let first = rig.connect();
    let known = rig.connect();
    rig.connections.mark_identified(1);
    let _others: Vec<Peer> = (2..=HALF_OPEN_MAX).map(|_| rig.connect()).collect();
    let (first, echo) = rig.exchange(first, vec![1], 1);
    assert_eq!((echo, rig.connections.len()), (vec![1], HALF_OPEN_MAX + 1));
    let _one_more = rig.connect();
    assert_eq!(
        rig.run(async move { first.receive(1).await }),
        Ok(Vec::new()),
        "the oldest half-open connection was ended"
    );
    assert_eq!(rig.exchange(known, vec![2], 1).1, [2], "a connection that is not half open was kept");
}

#[test]
fn a_drain_ends_idle_connections_and_in_the_end_all() {
    let rig = Rig::new(1);
    let (idle, busy) = (rig.connect(), rig.connect());
    rig.connections.all()[1].is_busy.set(true);
    let (connections, core) = (rig.connections.clone(), rig.core.clone());
    let begun = rig.core.now();
    rig.connections.drain();
    let ended = rig.run(async move {
        connections.until_draining().await;
        connections.end_all(begun, begun + Duration::from_secs(5)).await;
        core.now()
    });
    assert!(ended.since(begun) >= Duration::from_secs(5), "a busy connection has until the end of the drain");
    assert!(rig.connections.is_empty() && rig.connections.is_draining());
    let refused = rig.connect();
    assert_eq!(rig.connections.len(), 0, "no connection is accepted while draining");
    drop((idle, busy, refused));
}
