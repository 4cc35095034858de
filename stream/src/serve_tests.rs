use super::connection::SEND_TIMEOUT;
use super::*;
use crate::protocol::{PullResult, ReceiveMode};
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, PAGE, Sg, SgMut, Slice};
use lunar_core::port::Transfer;
use lunar_core::task::TaskSet;
use lunar_reactor::sim::{Host, Peer, World};
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 1);
/// A peer that sends it wants to be gone.
const QUIT: u8 = b'q';
/// After it come so many bytes that want a place of their own.
const LARGE: u8 = b'l';
const LARGE_LEN: usize = 20_000;
/// What comes after it is looked at once what is queued was taken.
const BLOCK: u8 = b'b';
/// It has so much for an answer before it.
const WIDE: u8 = b'w';
const WIDE_LEN: usize = 200_000;
/// The key of a command whose data has to be asked for.
const ASKS: u8 = 1;
/// There is no memory for its answer.
const STARVE: u8 = b's';
/// Connections at once.
const MOST: usize = HALF_OPEN_MAX + 2;

/// Sends back what comes, until it is told to quit.
struct Echo {
    arena: Arena,
    queued: Sg,
    has_quit: bool,
    /// Bytes of something large that are still to come, and of all such that came to their place.
    left: usize,
    placed: Rc<Cell<usize>>,
    is_blocked: bool,
    is_starved: bool,
}

/// It quits.
struct Quits;

impl ProtocolMachine for Echo {
    type Action = Quits;

    fn receive_mode(&mut self) -> ReceiveMode {
        if self.has_quit || self.is_blocked {
            return ReceiveMode::Paused;
        }
        let place = self.arena.take_sg(self.left).filter(|place| !place.is_empty());
        place.map_or(ReceiveMode::Chunk, ReceiveMode::Into)
    }

    fn receive(&mut self, bytes: Slice, _now: Instant, actions: &mut Vec<Quits>) {
        let rest = &bytes[self.left.min(bytes.len())..];
        self.left -= bytes.len() - rest.len();
        if let Some(at) = rest.iter().position(|byte| *byte == LARGE) {
            self.left = LARGE_LEN.checked_sub(rest.len() - at - 1).expect("one in a chunk");
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
            actions.push(Quits);
        }
        self.queued.push(bytes);
    }

    fn placed(&mut self, mut memory: SgMut, count: usize, _now: Instant, _actions: &mut Vec<Quits>) {
        self.left -= count;
        self.placed.set(self.placed.get() + count);
        memory.split_to(count).share().into_pieces().for_each(|piece| self.queued.push(piece));
    }

    fn resume(&mut self, _actions: &mut Vec<Quits>) {
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

/// Bytes on the wire are so much more than they mean.
struct Shifted(u8);

impl Shifted {
    fn add(shift: u8, bytes: &[u8], arena: &Arena) -> Slice {
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(shift)).collect();
        arena.copy(&bytes).expect("room")
    }
}

impl RecordLayer for Shifted {
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
    stream: StreamConnection<Echo, Shifted>,
    /// Whether something runs on it, whatever it says.
    is_busy: Cell<bool>,
    has_left: Rc<Cell<usize>>,
    /// When it has to be looked at, and how often it was.
    deadline: Cell<Option<Instant>>,
    looks: Cell<usize>,
}

impl FrontConnection for Connection {
    type Session = Echo;
    type RecordLayer = Shifted;

    fn stream(&self) -> &StreamConnection<Echo, Shifted> {
        &self.stream
    }

    async fn perform(self: &Rc<Self>, actions: &mut Vec<Quits>) {
        actions.drain(..).for_each(|Quits| self.stream.stop_receiving());
    }

    async fn close(self: &Rc<Self>) {
        self.stream.finish().await;
        self.has_left.set(self.has_left.get() + 1);
    }

    fn is_idle(&self) -> bool {
        !self.is_busy.get()
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline.get()
    }

    fn tick(&self, _now: Instant, _active: bool) {
        self.looks.set(self.looks.get() + 1);
    }

    fn log(&self, _what: &str) {}
}

struct Rig {
    world: World,
    core: Reactor,
    listener: Handle,
    connections: Rc<Connections<Connection>>,
    has_left: Rc<Cell<usize>>,
    placed: Rc<Cell<usize>>,
    /// What lies between.
    shift: u8,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let core = Reactor::with_driver(world.core(Host(1)), Arena::new(8 << 20), Arc::default());
        let (listener, _) = core.driver().listen(ADDRESS).expect("nobody else listens");
        let connections = Connections::new(&core, MOST);
        Self { world, core, listener, connections, has_left: Rc::default(), placed: Rc::default(), shift: 0 }
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
        result.take().expect("it has ended")
    }

    fn connect(&self) -> Peer {
        let peer = self.world.connect(ADDRESS);
        let (core, listener) = (self.core.clone(), self.listener.clone());
        let incoming = self.run(async move { core.accept(&listener).await.expect("somebody comes") });
        let arena = self.core.arena().clone();
        let placed = self.placed.clone();
        let (queued, left, has_quit, is_blocked, is_starved) = (Sg::default(), 0, false, false, false);
        let echo = Echo { arena, queued, has_quit, left, placed, is_blocked, is_starved };
        self.connections.serve(incoming, |_, (socket, _, _)| Connection {
            stream: StreamConnection::new(&self.core, socket, echo, Shifted(self.shift)),
            is_busy: Cell::new(false),
            has_left: self.has_left.clone(),
            deadline: Cell::default(),
            looks: Cell::default(),
        });
        peer
    }

    /// Nobody says anything for so long.
    fn rest(&self, time: Duration) {
        let core = self.core.clone();
        self.run(async move { core.sleep(time).await });
    }

    /// Sends, and receives until so many bytes came or the other side has closed.
    fn say(&self, peer: Peer, bytes: Vec<u8>, count: usize) -> (Peer, Vec<u8>) {
        self.run(async move {
            peer.send(&bytes).await.expect("it is there");
            let mut all = Vec::new();
            while all.len() < count {
                let some = peer.receive(count).await.expect("it was not reset");
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
fn what_is_queued_leaves_and_the_last_of_it_before_the_end() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let long = vec![7; 300_000];
        let (peer, echo) = rig.say(rig.connect(), long.clone(), long.len());
        assert!(echo == long);
        let (peer, last) = rig.say(peer, vec![QUIT], 99);
        assert_eq!(last, [QUIT], "and then it has closed");
        assert_eq!(rig.connections.len(), 1, "it lingers until its peer has closed, too");
        drop(peer);
        rig.world.run(&[&rig.core], || rig.connections.is_empty());
        assert_eq!((rig.has_left.get(), rig.core.stats().connections.get()), (1, 0));
    }
}

#[test]
fn what_lies_behind_something_large_is_not_lost() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let large = |end: u8| [vec![LARGE], vec![1; LARGE_LEN], vec![end; 100]].concat();
        let all: Vec<u8> = (2..12).flat_map(large).collect();
        let (_peer, echo) = rig.say(rig.connect(), all.clone(), all.len());
        assert!(echo == all);
        assert!(rig.placed.get() > 0 && rig.placed.get() <= 10 * LARGE_LEN);
    }
}

#[test]
fn who_has_taken_everything_is_idle_and_stays() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let mut peer = rig.connect();
        // The last receives are small ones, in what is left of something large.
        for (bytes, count) in [(vec![7; 300_000], 300_000), (vec![8], 1), (vec![8], 1), (vec![WIDE], WIDE_LEN + 1)] {
            peer = rig.say(peer, bytes, count).0;
        }
        // The core has waited: what is much leaves early, and not all of it at once.
        for _ in 0..8 {
            rig.rest(Duration::from_secs(1));
            peer = rig.say(peer, vec![WIDE], WIDE_LEN + 1).0;
        }
        rig.rest(2 * SEND_TIMEOUT);
        let connection = &rig.connections.all()[0];
        assert!(connection.stream.is_idle(), "{:?}", connection.stream);
        assert_eq!(rig.core.stats().keepalive_timeouts.get(), 0);
        assert_eq!(rig.core.arena().used(), PAGE, "what the next receive waits in");
        assert_eq!(rig.say(peer, vec![8], 1).1, [8]);
    }
}

#[test]
fn who_waits_for_what_is_queued_to_leave_goes_on() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let mut peer = rig.connect();
        for bytes in [vec![BLOCK], vec![WIDE, BLOCK], vec![WIDE, BLOCK]] {
            rig.rest(Duration::from_secs(1));
            let count = bytes.len() + if bytes[0] == WIDE { WIDE_LEN } else { 0 };
            peer = rig.say(peer, bytes, count).0;
            let (back, echo) = rig.say(peer, vec![8], 1);
            assert_eq!(echo, [8]);
            peer = back;
        }
    }
}

#[test]
fn a_connection_without_memory_for_an_answer_ends() {
    for bytes in [vec![STARVE], [vec![7; 100], vec![STARVE]].concat()] {
        let rig = Rig::new(1);
        let (peer, _) = rig.say(rig.connect(), bytes, 1);
        drop(peer);
        rig.world.run(&[&rig.core], || rig.connections.is_empty());
    }
}

#[test]
fn who_comes_later_is_looked_at_however_long_others_have() {
    let rig = Rig::new(1);
    let late = |at: usize| {
        let connection = rig.connections.all()[at].clone();
        connection.deadline.set(Some(rig.core.now() + Duration::from_secs(1_000_000)));
        connection
    };
    let (first, _) = (rig.connect(), late(0));
    rig.rest(Duration::from_secs(5));
    let (second, connection) = (rig.connect(), late(1));
    rig.rest(SWEEP * 2);
    assert!(connection.looks.get() > 0);
    let before = connection.looks.get();
    rig.rest(SWEEP_LATEST * 4);
    assert!((3..9).contains(&(connection.looks.get() - before)), "{}", connection.looks.get() - before);
    drop((first, second));
}

#[test]
fn who_takes_nothing_holds_nothing_in_the_end() {
    let rig = Rig::new(1);
    let (peer, first) = rig.say(rig.connect(), vec![7], 1);
    assert_eq!(first, [7]);
    let peer = rig.run(async move {
        for _ in 0..20 {
            peer.send(&[WIDE]).await.expect("it is there");
        }
        peer
    });
    rig.rest(Duration::from_secs(1));
    assert!(rig.core.arena().used() > WIDE_LEN);
    rig.rest(3 * SEND_TIMEOUT);
    assert_eq!((rig.connections.len(), rig.core.arena().used()), (0, 0));
    assert_eq!(rig.core.stats().keepalive_timeouts.get(), 1);
    drop(peer);
}

#[test]
fn what_lies_between_sees_all_bytes() {
    let rig = Rig { shift: 3, ..Rig::new(1) };
    let (peer, echo) = rig.say(rig.connect(), vec![7; 100_000], 100_000);
    assert!(echo == vec![7; 100_000]);
    let (peer, echo) = rig.say(peer, vec![QUIT], 1);
    assert_eq!((echo, rig.connections.len()), (vec![QUIT], 1), "which means something else");
    assert_eq!(rig.say(peer, vec![QUIT + 3], 9).1, [QUIT + 3], "and then it has closed");
}

#[test]
fn who_has_memory_already_waits_for_no_more() {
    let rig = Rig::new(1);
    let _peer = rig.connect();
    let connection = rig.connections.all.borrow().values().next().cloned().expect("one");
    let tasks = TaskSet::<u8>::default();
    let task = tasks.enter(0);
    let data_path = DataPath::new(&connection.stream, ASKS, &task, PAGE as u32);
    let arena = rig.core.arena();
    let all: Vec<SgMut> = std::iter::from_fn(|| arena.take_sg(PAGE)).collect();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(data_path.pull(0, PAGE)).poll(&mut cx).is_pending(), "who has none waits");
    let pulled = pin!(data_path.pull_beside(0, PAGE)).poll(&mut cx);
    assert!(matches!(pulled, Poll::Ready(Err(Fault::NoMemory))), "{pulled:?}");
    drop(all);
}

#[test]
fn the_oldest_half_open_connection_makes_room() {
    let rig = Rig::new(1);
    let first = rig.connect();
    let known = rig.connect();
    rig.connections.mark_identified(1);
    let _others: Vec<Peer> = (2..=HALF_OPEN_MAX).map(|_| rig.connect()).collect();
    let (first, echo) = rig.say(first, vec![1], 1);
    assert_eq!((echo, rig.connections.len()), (vec![1], HALF_OPEN_MAX + 1));
    let _one_more = rig.connect();
    assert_eq!(rig.run(async move { first.receive(1).await }), Ok(Vec::new()), "it was pushed out");
    assert_eq!(rig.say(known, vec![2], 1).1, [2], "and who is known was not");
}

#[test]
fn a_drain_ends_the_quiet_ones_and_in_the_end_all() {
    let rig = Rig::new(1);
    let (quiet, busy) = (rig.connect(), rig.connect());
    rig.connections.all()[1].is_busy.set(true);
    let (connections, core) = (rig.connections.clone(), rig.core.clone());
    let begun = rig.core.now();
    rig.connections.drain();
    let ended = rig.run(async move {
        connections.until_draining().await;
        connections.end_all(begun, begun + Duration::from_secs(5)).await;
        core.now()
    });
    assert!(ended.since(begun) >= Duration::from_secs(5), "who is busy has all its time");
    assert!(rig.connections.is_empty() && rig.connections.is_draining());
    let refused = rig.connect();
    assert_eq!(rig.connections.len(), 0, "nobody comes in any more");
    drop((quiet, busy, refused));
}
