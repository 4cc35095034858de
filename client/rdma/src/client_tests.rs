use super::*;
use crate::keys::Registered;
use lunar_core::mem::Arena;
use lunar_rdma::engine::{Accept, Engine};
use lunar_rdma::events;
use lunar_rdma::responder::Receives;
use lunar_rdma::testing::{Lossy, Random};
use lunar_rdma::wire::{Remote, padding};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const SERVICE: u16 = 4420;
const CONNECT: Connect<'_> =
    Connect { service: SERVICE, private: &[1, 2, 3], message_max: 100, timeout: Duration::from_secs(60) };
/// Commands that may be outstanding, and bytes of the longest.
const PLACES: u16 = 6;
const LEN_MAX: u64 = 40_000;

/// Connections that have not ended.
fn open(client: &Client) -> usize {
    client.entries.iter().filter(|entry| entry.state != State::Over).count()
}

/// The bytes of a packet, without its check.
fn bytes(outgoing: Outgoing) -> Vec<u8> {
    let payload = match outgoing.payload {
        Payload::Memory(payload) => payload.to_vec(),
        Payload::Message(message) => message.to_vec(),
    };
    [&outgoing.head.bytes(payload.len())[..], &payload, &[0; 3][..padding(payload.len())]].concat()
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut random = Random(seed.into());
    (0..len).map(|_| random.below(256) as u8).collect()
}

/// A command: its place, and the key, the length and the seed of its data, which the target writes or reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Command {
    place: u16,
    is_write: bool,
    key: u32,
    len: u32,
    seed: u32,
}

impl Command {
    fn bytes(self) -> Vec<u8> {
        let numbers = [u32::from(self.place), self.is_write.into(), self.key, self.len, self.seed];
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    fn parse(bytes: &[u8]) -> Self {
        let numbers: Vec<u32> =
            bytes.chunks_exact(4).map(|number| u32::from_be_bytes(number.try_into().expect("four bytes"))).collect();
        let [place, is_write, key, len, seed] = numbers[..] else { panic!("a command") };
        Self { place: place as u16, is_write: is_write == 1, key, len, seed }
    }
}

/// A client and a target on a link with faults. The target executes the commands of the client.
struct Ends {
    client: Client,
    engine: Engine,
    there: Lossy,
    back: Lossy,
    arena: Arena,
    random: Random,
    now: Instant,
    id: ConnectionId,
    is_connected: bool,
    /// The commands that are outstanding, at the client and at the target.
    commands: BTreeMap<u16, Command>,
    reading: BTreeMap<u64, Command>,
    left: u32,
    has_ended: bool,
}

impl Ends {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let faults = [random.below(60), random.below(30), random.below(30)];
        // The target may have a smaller MTU.
        let [here, there] = [(); 2].map(|()| [600, 1472, 4172][random.below(3) as usize]);
        let mut engine = Engine::new(there, seed ^ 1);
        engine.serve(SERVICE, [9; 8]);
        let mut client = Client::new(TARGET, here, seed);
        let now = Instant(1);
        let id = client.connect(&CONNECT, now).expect("it is the first");
        Self {
            client,
            engine,
            there: Lossy::new(faults),
            back: Lossy::new(faults),
            arena: Arena::new(16 << 20),
            random,
            now,
            id,
            is_connected: false,
            commands: BTreeMap::new(),
            reading: BTreeMap::new(),
            left: 60,
            has_ended: false,
        }
    }

    /// Starts a command at a free place.
    fn start(&mut self) {
        let Some(place) = (0..PLACES).find(|place| !self.commands.contains_key(place)) else { return };
        self.left -= 1;
        let len = 1 + self.random.below(LEN_MAX) as usize;
        let (is_write, seed) = (self.random.below(2) == 0, self.random.below(1 << 32) as u32);
        let mut memory = self.arena.take_sg(len).expect("room");
        if is_write {
            memory.copy_from(0, &pattern(seed, len));
        } else {
            memory.fill_from(0, 0);
        }
        let memory = if is_write { Registered::Readable(memory.share()) } else { Registered::Writable(memory) };
        let key = self.client.keys(self.id).expect("established").register(place, memory);
        let command = Command { place, is_write, key, len: len as u32, seed };
        let message = self.arena.copy(&command.bytes()).map(Sg::from).expect("room");
        assert!(self.client.send(self.id, message.into()));
        self.commands.insert(place, command);
    }

    /// The target executes a command.
    fn execute(&mut self, id: ConnectionId, command: Command) {
        let Command { place, is_write, key, len, seed } = command;
        let memory = Remote { address: 0, key };
        if is_write {
            let into = self.arena.take_sg(len as usize).expect("room");
            self.reading.insert(place.into(), command);
            assert!(self.engine.read(id, memory, into, place.into()));
        } else {
            let mut data = self.arena.take_sg(len as usize).expect("room");
            data.copy_from(0, &pattern(seed, len as usize));
            assert!(self.engine.write(id, memory, data.share()));
            self.respond(id, command);
        }
    }

    fn respond(&mut self, id: ConnectionId, command: Command) {
        let data = self.arena.copy(&command.bytes()).map(Sg::from).expect("room");
        let invalidates = Some(command.key).filter(|_| command.seed.is_multiple_of(2));
        let message = requester::Message { data, posts: 1, share: None, invalidates };
        assert!(self.engine.send(id, message));
    }

    /// The client takes a response.
    fn response(&mut self, message: &[u8]) {
        let command = Command::parse(message);
        assert_eq!(self.commands.remove(&command.place), Some(command), "each command has one response");
        let memory = self.client.keys(self.id).and_then(|keys| keys.take(command.place));
        match memory.expect("it is registered") {
            Registered::Writable(memory) => {
                assert!(memory.share().to_vec() == pattern(command.seed, command.len as usize), "its data is right");
            }
            Registered::Readable(_) => assert!(command.is_write),
        }
    }

    fn events(&mut self) {
        while let Some((service, event)) = self.engine.poll_event() {
            assert_eq!(service, SERVICE);
            match event {
                events::Event::Request { id, peer, private } => {
                    assert_eq!((peer, &private[..4]), (HOST, &[1, 2, 3, 0][..]));
                    // An acknowledgement that was lost holds nothing up.
                    let receives = Receives { bytes: 64, count: usize::from(PLACES) + 100 };
                    self.engine.accept(id, &Accept::new(&[4, 5], receives), self.now).expect("room");
                }
                events::Event::Read(id, completed) => {
                    let command = self.reading.remove(&completed.token).expect("it was requested");
                    assert!(completed.data.to_vec() == pattern(command.seed, command.len as usize));
                    self.respond(id, command);
                }
                events::Event::Progress(_) => {}
                events::Event::Closed(_, why) => {
                    assert_eq!((why, self.left), (Ended::Peer, 0));
                    self.has_ended = true;
                }
            }
        }
        while let Some(event) = self.client.poll_event() {
            let Event::Connected(id, private) = event else { panic!("{event:?}") };
            assert_eq!((id, private[..3].to_vec(), self.is_connected), (self.id, vec![4, 5, 0], false));
            self.is_connected = true;
        }
    }

    /// Moves packets; returns whether there were any.
    fn exchange(&mut self) -> bool {
        let mut is_quiet = true;
        if let Some(outgoing) = self.client.poll_send(self.now) {
            assert_eq!(outgoing.peer, TARGET);
            self.there.send(bytes(outgoing), &mut self.random);
            is_quiet = false;
        }
        if let Some(outgoing) = self.engine.poll_send(self.now) {
            self.back.send(bytes(outgoing), &mut self.random);
            is_quiet = false;
        }
        if let Some(packet) = self.there.receive() {
            is_quiet = false;
            let message = self.engine.receive(HOST, &packet, self.now).map(|(id, message)| (id, message.into_owned()));
            self.events();
            if let Some((id, message)) = message {
                self.execute(id, Command::parse(&message));
            }
        }
        if let Some(packet) = self.back.receive() {
            is_quiet = false;
            let message = self.client.receive(&packet, self.now).map(|(_, message)| message.into_owned());
            message.iter().for_each(|message| self.response(message));
        }
        self.events();
        !is_quiet
    }

    /// Time passes until something is due.
    fn pass(&mut self) {
        let due = [self.client.deadline(), self.engine.deadline()].into_iter().flatten().min();
        self.now = due.unwrap_or(self.now).max(self.now + Duration::from_micros(10));
        self.client.expire(self.now);
        self.engine.expire(self.now);
        self.events();
    }
}

/// Every command has its data and one response, and the end is confirmed.
fn run_with_a_target(seed: u64) {
    let mut ends = Ends::new(seed);
    for _ in 0..300_000 {
        if ends.is_connected && ends.left > 0 && ends.random.below(4) == 0 {
            ends.start();
        }
        if !ends.exchange() && (ends.left == 0 || !ends.is_connected || ends.commands.len() == usize::from(PLACES)) {
            if ends.left == 0 && ends.commands.is_empty() {
                break;
            }
            ends.pass();
        }
    }
    assert!(ends.left == 0 && ends.commands.is_empty() && ends.reading.is_empty(), "seed {seed} has not ended");
    ends.client.disconnect(ends.id, ends.now);
    for _ in 0..10_000 {
        if !ends.exchange() {
            if open(&ends.client) == 0 && ends.has_ended {
                break;
            }
            ends.pass();
        }
    }
    // With bad luck all disconnect requests are lost, and the target notices by its own time.
    assert_eq!(open(&ends.client), 0, "seed {seed}");
    assert!(ends.client.keys(ends.id).is_none());
}

#[test]
fn commands_survive_a_link_with_faults() {
    (0..60).for_each(run_with_a_target);
}

/// The messages of the connection manager that are sent now.
fn said(client: &mut Client, now: Instant) -> Vec<Body> {
    let message = |outgoing: Outgoing| match outgoing.payload {
        Payload::Message(bytes) => Message::parse(&bytes[..]).map(|message| message.body),
        Payload::Memory(_) => None,
    };
    std::iter::from_fn(|| client.poll_send(now)).filter_map(message).collect()
}

fn say(client: &mut Client, body: Body, now: Instant) {
    let message = Message { transaction: 7, body }.bytes();
    let extension = Extension::Datagram(MANAGER_Q_KEY, MANAGER_QPN);
    let head = Head { opcode: Opcode::DATAGRAM, qpn: 1, psn: Psn::default(), wants_acknowledge: false, extension };
    assert!(client.receive(&[&head.bytes(message.len())[..], &message].concat(), now).is_none());
}

/// A client that requests a connection, and its request.
fn requested() -> (Client, ConnectionId, Request) {
    let mut client = Client::new(TARGET, 4172, 5);
    let id = client.connect(&CONNECT, Instant(1)).expect("it is the first");
    let [Body::Request(request)] = said(&mut client, Instant(1))[..] else { panic!("a request") };
    (client, id, request)
}

fn reply(request: &Request) -> Reply {
    Reply { ids: (77, request.id), qpn: 99, psn: 5, reads: 4, guid: [1; 8], private: [0; REPLY_PRIVATE] }
}

fn reject(request: &Request, reason: Reason, mtu: Option<u8>) -> Body {
    let private = [3; REJECT_PRIVATE];
    Body::Reject(Reject { ids: (0, request.id), rejected: Rejected::REQUEST, reason, mtu, private })
}

#[test]
fn a_request_is_sent_again_until_it_is_given_up_or_answered() {
    let (mut client, id, request) = requested();
    assert_eq!((request.mtu, request.port, request.is_reliable, request.reads), (5, Some(SERVICE), true, READS_MAX));
    let later = Instant(1) + REQUEST_INTERVAL;
    client.expire(later);
    assert_eq!(said(&mut client, later), [Body::Request(request)]);
    say(&mut client, Body::Receipt(77, request.id), later);
    client.expire(later + REQUEST_INTERVAL);
    assert_eq!(said(&mut client, later), [], "the peer takes longer");
    client.expire(Instant(1) + CONNECT.timeout);
    assert_eq!((client.poll_event(), open(&client)), (Some(Event::Unanswered(id)), 0));
    // A reply that comes now is rejected.
    say(&mut client, Body::Reply(reply(&request)), later);
    assert!(matches!(said(&mut client, later)[..], [Body::Reject(r)] if r.ids == (request.id, 77)));
}

#[test]
fn a_reply_is_answered_each_time_it_comes() {
    let (mut client, id, request) = requested();
    let other = Request { id: request.id ^ 1, ..request };
    say(&mut client, Body::Reply(reply(&other)), Instant(1));
    assert_eq!(client.poll_event(), None, "a reply to another request");
    said(&mut client, Instant(1));
    for _ in 0..2 {
        say(&mut client, Body::Reply(reply(&request)), Instant(1));
        assert_eq!(said(&mut client, Instant(1)), [Body::Ready(request.id, 77)]);
    }
    assert!(matches!(client.poll_event(), Some(Event::Connected(connected, _)) if connected == id));
    assert_eq!((client.poll_event(), client.mtu(id)), (None, 4096));
    say(&mut client, Body::Disconnect(78, request.id, 0), Instant(1));
    assert_eq!(client.poll_event(), None, "another connection");
    say(&mut client, Body::Disconnect(77, request.id, 0), Instant(1));
    assert_eq!((client.poll_event(), open(&client)), (Some(Event::Closed(id, Ended::Peer)), 0));
}

#[test]
fn a_smaller_mtu_is_taken_and_other_rejections_are_reported() {
    let (mut client, id, request) = requested();
    say(&mut client, reject(&request, Reason::INVALID_MTU, Some(3)), Instant(1));
    let [Body::Request(again)] = said(&mut client, Instant(1))[..] else { panic!("another request") };
    assert!(again.mtu == 3 && again.id != request.id && again.qpn == request.qpn);
    for mtu in [Some(3), Some(0), Some(15), None] {
        let (mut client, _, request) = requested();
        client.entries[0].request.mtu = 3;
        say(&mut client, reject(&request, Reason::INVALID_MTU, mtu), Instant(1));
        assert!(matches!(client.poll_event(), Some(Event::Rejected(_, Reason::INVALID_MTU, _))), "{mtu:?}");
    }
    say(&mut client, reject(&again, Reason::CONSUMER, None), Instant(1));
    let expected = Event::Rejected(id, Reason::CONSUMER, Box::new([3; REJECT_PRIVATE]));
    assert_eq!((client.poll_event(), open(&client)), (Some(expected), 0));
}

#[test]
fn a_peer_that_is_silent_or_wrong_ends_its_connection() {
    let (mut client, id, request) = requested();
    say(&mut client, Body::Reply(reply(&request)), Instant(1));
    client.poll_event();
    let arena = Arena::new(1 << 20);
    assert!(client.send(id, arena.copy(b"hello").map(Sg::from).expect("room").into()));
    let mut now = Instant(1);
    for _ in 0..100 {
        said(&mut client, now);
        now = client.deadline().unwrap_or(now).max(now + Duration::from_millis(1));
        client.expire(now);
    }
    assert!(matches!(client.poll_event(), Some(Event::Closed(closed, Ended::Failed(_))) if closed == id));
    assert_eq!(open(&client), 0, "it does not wait for the answer for ever");
    let (mut client, id, request) = requested();
    say(&mut client, Body::Reply(reply(&request)), Instant(1));
    said(&mut client, Instant(1));
    client.poll_event();
    let extension = Extension::Remote(Remote { address: 0, key: 1 }, 4);
    let head = Head {
        opcode: Opcode::WRITE_ONLY,
        qpn: request.qpn,
        psn: Psn::new(request.psn),
        wants_acknowledge: true,
        extension,
    };
    client.receive(&[&head.bytes(4)[..], b"data"].concat(), Instant(1));
    assert!(matches!(client.poll_event(), Some(Event::Closed(closed, Ended::Failed(_))) if closed == id));
    let answer = client.poll_send(Instant(1)).expect("an answer that says why").head;
    let refused = Extension::Acknowledge(lunar_rdma::wire::Syndrome::ACCESS_ERROR, 0);
    assert_eq!((answer.qpn, answer.extension), (99, refused));
    assert_eq!(said(&mut client, Instant(1)), [Body::Disconnect(request.id, 77, 99)]);
}
