use super::discovery::Identity;
use super::exchange::{ExchangeKey, Requested};
use super::login::{LoginEvent, Logins, Output, Step};
use super::*;
use crate::limits::NEW_STRANGERS_MAX;
use crate::wire::els::{BasicAccept, COMPLETE, Els, ExchangeQuery, HAS_INITIATIVE, RESPONDER, RecAccept, Reject, Srr};
use crate::wire::fcp::{Command, Response, TransferReady};
use crate::wire::fip::Functions;
use crate::wire::frame::{Address, Control, Protocol, Received, Routing, UNASSIGNED, payload_of};
use crate::wire::names::{PortId, Wwn};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const STEP: Duration = Duration::from_millis(10);

fn identity(number: u8, name: u64, is_target: bool, mtu: usize) -> Identity {
    Identity {
        station: MacAddress([2, 0, 0, 0, 0, number]),
        node: Wwn(0x1000_0000_0000_0000 | u64::from(number)),
        name: Wwn(name),
        functions: Functions { target: is_target, initiator: !is_target },
        payload: payload_of(mtu),
    }
}

/// One of two ports on a segment.
enum Side {
    Target(Box<VnPort>),
    Initiator(Box<Logins>),
}

impl Side {
    fn logins(&self) -> &Logins {
        match self {
            Self::Target(port) => port.logins(),
            Self::Initiator(logins) => logins,
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Output) {
        match self {
            Self::Target(port) => port.tick(now, &|_| true, out),
            Self::Initiator(logins) => logins.tick(now, &|_| true, out),
        }
    }

    fn receive(&mut self, frame: &Outgoing, now: Instant, out: &mut Output) {
        let own = self.logins().own().station;
        let message = (frame.route.from, &frame.body[..]);
        if frame.ether_type == fip::ETHER_TYPE {
            if frame.route.to == own || frame.route.to == fip::ALL_VN2VN {
                match self {
                    Self::Target(port) => port.receive_fip(message, now, &|_| true, out),
                    Self::Initiator(logins) => logins.receive_fip(message, now, &|_| true, out),
                }
            }
            return;
        }
        if Some(frame.route.to) != self.logins().id().map(PortId::mac) {
            return;
        }
        match self {
            Self::Target(port) => drop(port.receive(message, now, &|_| true, out)),
            Self::Initiator(logins) => {
                let received = Received::parse(&frame.body).expect("the other side has built it");
                logins.receive_els(&received, now, &|_| true, out);
            }
        }
    }
}

/// Two ports and the frames between them.
struct Segment {
    sides: [Side; 2],
    flying: VecDeque<(usize, Outgoing)>,
    now: Instant,
    chance: Chance,
    /// Of a thousand frames, those that are lost.
    loss: u64,
    events: [Vec<LoginEvent>; 2],
}

impl Segment {
    fn new(names: [u64; 2], seed: u64, loss: u64) -> Self {
        let now = Instant(1);
        let logins = |at: usize| {
            let mtu = if at == 0 { 2500 } else { 1500 };
            Logins::new(identity(at as u8 + 1, names[at], at == 0, mtu), seed ^ at as u64, now)
        };
        let sides = [Side::Target(Box::new(VnPort::new(logins(0)))), Side::Initiator(Box::new(logins(1)))];
        Self { sides, flying: VecDeque::new(), now, chance: Chance(seed), loss, events: Default::default() }
    }

    /// Starts a side again, with the same names.
    fn restart(&mut self, at: usize, seed: u64) {
        let own = *self.sides[at].logins().own();
        let logins = Logins::new(own, seed, self.now);
        self.sides[at] = match at {
            0 => Side::Target(Box::new(VnPort::new(logins))),
            _ => Side::Initiator(Box::new(logins)),
        };
        self.events[at].clear();
    }

    fn collect(&mut self, at: usize, out: &mut Output) {
        for frame in out.frames.drain(..) {
            if self.chance.below(1000) >= self.loss {
                self.flying.push_back((1 - at, frame));
            }
        }
        self.events[at].append(&mut out.events);
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let mut out = Output::default();
        for at in 0..2 {
            self.sides[at].tick(self.now, &mut out);
            self.collect(at, &mut out);
        }
        for _ in 0..self.flying.len() {
            let Some((to, frame)) = self.flying.pop_front() else { return };
            self.sides[to].receive(&frame, self.now, &mut out);
            self.collect(to, &mut out);
        }
    }

    fn is_ready(&self) -> bool {
        self.sides.iter().zip([1, 0]).all(|(side, other)| {
            let id = self.sides[other].logins().id();
            let remote = id.and_then(|id| side.logins().remote(id));
            remote.is_some_and(|remote| remote.step == Step::Ready)
        })
    }

    /// The time until both are logged in.
    fn until_ready(&mut self) -> Option<Duration> {
        let begin = self.now;
        for _ in 0..60_000 {
            if self.is_ready() {
                return Some(self.now.since(begin));
            }
            self.step();
        }
        None
    }
}

const LOW: u64 = 0x2000_0000_0000_0007;
const HIGH: u64 = 0x2000_0000_0000_0107;

#[test]
fn either_port_may_have_the_larger_name() {
    for names in [[LOW, HIGH], [HIGH, LOW]] {
        let mut segment = Segment::new(names, 1, 0);
        let time = segment.until_ready().expect("they log in");
        assert!(time < Duration::from_secs(3), "{time:?}");
        let Side::Target(port) = &segment.sides[0] else { panic!("it is the target") };
        let initiator = segment.sides[1].logins().id().expect("it is up");
        assert_eq!(port.payload(initiator), 1452, "the smaller size counts");
        let ready = |events: &[LoginEvent]| events.iter().filter(|event| matches!(event, LoginEvent::Ready(_))).count();
        assert_eq!(ready(&segment.events[0]), 1, "{:?}", segment.events[0]);
    }
}

#[test]
fn ports_that_propose_one_identifier_get_two() {
    // The low bytes of the names are the same.
    for names in [[LOW, LOW | 1 << 32], [LOW | 1 << 32, LOW]] {
        let mut segment = Segment::new(names, 3, 0);
        assert!(segment.until_ready().is_some());
        let [one, other] = [0, 1].map(|at| segment.sides[at].logins().id().expect("it is up"));
        assert_ne!(one, other);
    }
}

#[test]
fn a_port_that_starts_again_is_logged_in_again() {
    for names in [[LOW, HIGH], [HIGH, LOW]] {
        for at in 0..2 {
            let mut segment = Segment::new(names, 5, 0);
            assert!(segment.until_ready().is_some());
            segment.restart(at, 6);
            let time = segment.until_ready().expect("they log in again");
            assert!(time < Duration::from_secs(20), "{time:?}");
            let other = &segment.events[1 - at];
            assert!(other.iter().any(|event| matches!(event, LoginEvent::Ended(_))), "{other:?}");
        }
    }
}

#[test]
fn a_silent_port_is_gone() {
    let mut segment = Segment::new([LOW, HIGH], 7, 0);
    assert!(segment.until_ready().is_some());
    segment.loss = 1000;
    (0..2100).for_each(|_| segment.step());
    assert!(segment.events.iter().all(|events| matches!(events.last(), Some(LoginEvent::Ended(_)))));
    segment.loss = 0;
    assert!(segment.until_ready().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn ports_log_in_over_a_lossy_link(
        seed in any::<u64>(), loss in 0u64..200, is_larger in any::<bool>(), clash in any::<bool>(),
    ) {
        let other = if clash { LOW | 1 << 32 } else { HIGH };
        let names = if is_larger { [other, LOW] } else { [LOW, other] };
        let mut segment = Segment::new(names, seed, loss);
        prop_assert!(segment.until_ready().is_some());
        segment.restart((seed % 2) as usize, !seed);
        prop_assert!(segment.until_ready().is_some());
    }
}

/// A target port with an initiator that is logged in, and the frames of its exchanges.
struct Exchange {
    segment: Segment,
    own: PortId,
    peer: PortId,
    arena: Arena,
}

impl Exchange {
    fn new() -> Self {
        let mut segment = Segment::new([HIGH, LOW], 9, 0);
        assert!(segment.until_ready().is_some());
        let [own, peer] = [0, 1].map(|at| segment.sides[at].logins().id().expect("it is up"));
        Self { segment, own, peer, arena: Arena::new(1 << 20) }
    }

    fn port(&mut self) -> &mut VnPort {
        match &mut self.segment.sides[0] {
            Side::Target(port) => port,
            Side::Initiator(_) => panic!("it is the target"),
        }
    }

    fn header(&self, routing: Routing, protocol: Protocol, control: Control, (ox_id, rx_id): (u16, u16)) -> Header {
        Header::new(routing, protocol, control, Address { source: self.peer, destination: self.own, ox_id, rx_id })
    }

    /// Gives the port a frame; returns a digest of the event, and the payloads of its answers.
    fn send(&mut self, header: Header, payload: &[u8]) -> (String, Vec<Vec<u8>>) {
        let (bytes, source, now) = (encapsulated(header, payload), self.peer.mac(), self.segment.now);
        let mut out = Output::default();
        let event = self.port().receive((source, &bytes), now, &|_| true, &mut out);
        let event = match event {
            None => String::new(),
            Some(PortEvent::Command(command)) => format!("command {:?}", command.key.map(|key| key.number)),
            Some(PortEvent::Data(_)) => "data".into(),
            Some(PortEvent::Abort(_)) => "abort".into(),
            Some(PortEvent::Replaced(_)) => "replaced".into(),
        };
        let payload = |frame: Outgoing| Received::parse(&frame.body).expect("built here").payload.to_vec();
        (event, out.frames.into_iter().map(payload).collect())
    }

    fn command(&mut self, ox_id: u16, data_out: u32) -> String {
        let cdb = [0x2a; 16];
        let body = Command { lun: [0; 8], attribute: 0, task: 0, cdb: &cdb, data_in: 0, data_out }.bytes();
        let header = self.header(Routing::COMMAND, Protocol::FCP, Control::REQUEST, (ox_id, UNASSIGNED));
        self.send(header, &body).0
    }

    /// E_STAT and the number of bytes of an exchange.
    fn rec(&mut self, ox_id: u16) -> Option<(u32, u32)> {
        self.rec_of(ox_id, UNASSIGNED)
    }

    fn rec_of(&mut self, ox_id: u16, rx_id: u16) -> Option<(u32, u32)> {
        let header = self.header(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, (77, UNASSIGNED));
        let body = ExchangeQuery::new(Els::REC, self.peer, ox_id, rx_id);
        let (_, answers) = self.send(header, body.as_bytes());
        let (accept, _) = RecAccept::ref_from_prefix(&answers[0]).ok()?;
        Some((accept.status.get(), accept.transferred.get()))
    }
}

#[test]
fn a_lost_command_and_a_lost_response_are_told_apart() {
    let mut exchange = Exchange::new();
    assert_eq!(exchange.rec(5), None, "it has not arrived");
    assert_eq!((exchange.command(5, 0).as_str(), exchange.command(5, 0).as_str()), ("command Some(1)", ""));
    assert_eq!(exchange.rec(5), Some((RESPONDER | HAS_INITIATIVE, 0)), "it runs");
    let key = ExchangeKey { peer: exchange.peer, ox_id: 5, number: 1 };
    let response = Response { status: 8, ..Response::default() }.bytes();
    let now = exchange.segment.now;
    assert!(exchange.port().respond(key, &response, now).is_some());
    assert_eq!(exchange.rec_of(5, key.rx_id()), Some((RESPONDER | COMPLETE, 0)), "it has ended");
    assert_eq!(exchange.rec(5), None, "a later command with the same identifier may be lost");
    let srr = Srr::new(5, key.rx_id(), 0, Routing::COMMAND_STATUS.0);
    let header = exchange.header(Routing::FC4_ELS_REQUEST, Protocol::FCP, Control::REQUEST, (78, UNASSIGNED));
    let (_, answers) = exchange.send(header, srr.as_bytes());
    assert_eq!((answers[0][0], &answers[1][..]), (Els::LS_ACC.0, &*response), "the response comes again");
    let srr = Srr::new(5, key.rx_id(), 0, Routing::DATA.0);
    let (_, answers) = exchange.send(header, srr.as_bytes());
    assert_eq!((answers.len(), answers[0][0]), (1, Els::LS_RJT.0), "data of reads is not kept");
}

#[test]
fn lost_data_of_a_write_is_requested_again() {
    let mut exchange = Exchange::new();
    assert_eq!(exchange.command(5, 2048), "command Some(1)");
    let key = ExchangeKey { peer: exchange.peer, ox_id: 5, number: 1 };
    let memory = exchange.arena.take_sg(2048).expect("room");
    let (_, header, ready) = exchange.port().request(key, 0, memory).expect("it runs");
    assert_eq!((header.rx_id.get(), ready.len.get()), (key.rx_id(), 2048));
    let data = |exchange: &mut Exchange, rx_id: u16, offset: u32, byte: u8| {
        let mut header = exchange.header(Routing::DATA, Protocol::FCP, Control::OFFSET, (5, rx_id));
        header.parameter = offset.into();
        exchange.send(header, &[byte; 1024]).0
    };
    assert_eq!(data(&mut exchange, key.rx_id(), 1024, 2), "");
    assert_eq!(exchange.rec(5), Some((RESPONDER, 0)), "the initiator has the initiative");
    let srr = Srr::new(5, key.rx_id(), 0, Routing::DATA_DESCRIPTOR.0);
    let header = exchange.header(Routing::FC4_ELS_REQUEST, Protocol::FCP, Control::REQUEST, (78, UNASSIGNED));
    let (_, answers) = exchange.send(header, srr.as_bytes());
    assert_eq!(answers[1], TransferReady::new(0, 2048).as_bytes());
    assert_eq!(data(&mut exchange, UNASSIGNED, 0, 9), "", "another identifier");
    assert_eq!(data(&mut exchange, key.rx_id(), 0, 1), "");
    assert_eq!(data(&mut exchange, key.rx_id(), 1024, 2), "data");
    let Requested::Arrived(bytes) = exchange.port().take(key) else { panic!("it has arrived") };
    assert_eq!(bytes.to_vec(), [[1; 1024], [2; 1024]].concat());
}

#[test]
fn an_abort_is_answered_when_the_command_has_ended() {
    let mut exchange = Exchange::new();
    assert_eq!(exchange.command(5, 0), "command Some(1)");
    let abts = |exchange: &mut Exchange, ox_id| {
        let control = Control::END.and(Control::INITIATIVE);
        let header = exchange.header(Routing::ABTS, Protocol::BASIC, control, (ox_id, UNASSIGNED));
        exchange.send(header, &[])
    };
    assert_eq!(abts(&mut exchange, 5), ("abort".into(), Vec::new()));
    assert_eq!(abts(&mut exchange, 5), (String::new(), Vec::new()), "it is answered once");
    assert_eq!(exchange.rec(5), Some((RESPONDER | HAS_INITIATIVE, 0)));
    let key = ExchangeKey { peer: exchange.peer, ox_id: 5, number: 1 };
    let now = exchange.segment.now;
    assert!(exchange.port().respond(key, &Response::default().bytes(), now).is_none());
    let answer = exchange.port().aborted(key).expect("it is up");
    let answer = Received::parse(&answer.body).expect("built here");
    assert_eq!(answer.payload, BasicAccept::new(5, key.rx_id()).as_bytes());
    // Nothing is in progress.
    assert_eq!(abts(&mut exchange, 6).1, [BasicAccept::new(6, UNASSIGNED).as_bytes()]);
    let rrq = ExchangeQuery::new(Els::RRQ, exchange.peer, 5, key.rx_id());
    let header = exchange.header(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, (79, UNASSIGNED));
    assert_eq!(exchange.send(header, rrq.as_bytes()).1[0][0], Els::LS_ACC.0);
}

#[test]
fn a_port_that_is_not_logged_in_is_asked_to_log_out() {
    let mut exchange = Exchange::new();
    let logo = exchange.header(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, (80, UNASSIGNED));
    let (_, answers) = exchange.send(logo, &[Els::LOGO.0, 0, 0, 0]);
    assert_eq!(answers[0][0], Els::LS_ACC.0);
    let (now, source) = (exchange.segment.now, exchange.peer.mac());
    let body = Command { lun: [0; 8], attribute: 0, task: 0, cdb: &[0; 16], data_in: 0, data_out: 0 }.bytes();
    let header = exchange.header(Routing::COMMAND, Protocol::FCP, Control::REQUEST, (5, UNASSIGNED));
    let frame = encapsulated(header, &body);
    let mut out = Output::default();
    for _ in 0..3 {
        assert!(exchange.port().receive((source, &frame), now, &|_| true, &mut out).is_none());
    }
    assert_eq!(out.frames.iter().filter(|frame| frame.ether_type == fip::ETHER_TYPE).count(), 1, "once a second");
    // Other services need a login.
    let rtv = exchange.header(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, (81, UNASSIGNED));
    let (_, answers) = exchange.send(rtv, &[Els::RTV.0, 0, 0, 0]);
    let (reject, _) = Reject::ref_from_prefix(&answers[0]).expect("a rejection");
    assert_eq!((reject.reason, reject.explanation), (0x09, 0x1e));
}

/// The claim of a port at a station.
fn claim(station: MacAddress, name: u64, id: PortId) -> Outgoing {
    let port = fip::Neighbour { station, node: Wwn(1), name: Wwn(name), id };
    let body = fip::announcement(fip::Operation::CLAIM_NOTIFICATION, &port, (Functions::default(), 1498));
    Outgoing::fip(Route { to: fip::ALL_VN2VN, from: station }, body)
}

#[test]
fn a_forged_claim_of_the_identifier_of_a_port_that_is_logged_in_and_heard_is_ignored() {
    let mut segment = Segment::new([HIGH, LOW], 12, 0);
    assert!(segment.until_ready().is_some());
    let id = segment.sides[1].logins().id().expect("it is up");
    let forged = claim(MacAddress([2, 9, 9, 9, 9, 9]), 7 << 32, id);
    let mut out = Output::default();
    segment.sides[0].receive(&forged, segment.now, &mut out);
    assert!(out.events.is_empty() && segment.is_ready(), "{:?}", out.events);
    // A port that is silent may be gone.
    segment.sides[0].receive(&forged, segment.now + Duration::from_secs(11), &mut out);
    assert!(out.events.contains(&LoginEvent::Ended(id)), "{:?}", out.events);
}

#[test]
fn ports_of_no_group_do_not_keep_others_out() {
    let mut segment = Segment::new([HIGH, LOW], 13, 0);
    assert!(segment.until_ready().is_some());
    let Side::Target(port) = &mut segment.sides[0] else { panic!("it is the target") };
    let (now, mut out) = (segment.now, Output::default());
    let mut take = |port: &mut VnPort, number: u8, name: u64| {
        let id = PortId::of_neighbour(4096 + u16::from(number)).expect("valid");
        let frame = claim(MacAddress([2, 9, 9, 9, 9, number]), name, id);
        port.receive_fip((frame.route.from, &frame.body), now, &|name| name.0 >> 60 == 2, &mut out);
        match port.logins().network() {
            network::Network::Neighbours(discovery) => discovery.neighbour(id).is_some(),
            network::Network::Fabric(_) => panic!("there is none"),
        }
    };
    let strangers = (1..=200).filter(|number| take(port, *number, 1 << 60 | u64::from(*number))).count();
    assert_eq!(strangers, NEW_STRANGERS_MAX as usize);
    assert!(take(port, 201, 2 << 60 | 201));
}

#[test]
fn forged_claims_do_not_displace_a_port_that_is_logged_in() {
    let mut segment = Segment::new([HIGH, LOW], 11, 0);
    assert!(segment.until_ready().is_some());
    for number in 1..2000_u16 {
        if number.is_multiple_of(20) {
            segment.step();
        }
        let Some(id) = PortId::of_neighbour(number + 4096) else { continue };
        let [low, high] = number.to_le_bytes();
        let frame = claim(MacAddress([2, 9, 9, 9, high, low]), u64::from(number) | 1 << 60, id);
        let mut out = Output::default();
        segment.sides[0].receive(&frame, segment.now, &mut out);
        assert!(out.frames.len() <= 1);
        segment.events[0].append(&mut out.events);
    }
    assert!(segment.is_ready() && !segment.events[0].iter().any(|event| matches!(event, LoginEvent::Ended(_))));
    // A claim whose sender is another station is not answered.
    let mut frame = claim(MacAddress([2, 9, 9, 9, 9, 9]), 2, PortId::of_neighbour(9).expect("valid"));
    let mut out = Output::default();
    frame.route.from = MacAddress([2, 9, 9, 9, 9, 8]);
    segment.sides[0].receive(&frame, segment.now, &mut out);
    assert_eq!(out.frames, []);
}
