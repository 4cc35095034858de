use super::*;
use crate::connection::Why;
use crate::golden::{self, Golden};
use crate::icrc::Checker;
use crate::limits::{CONNECTIONS_MAX, ENDED_MAX, HALF_OPEN_MAX, RETRIES};
use crate::responder::Receives;
use crate::wire::Syndrome;
use lunar_core::mem::Arena;
use std::time::Duration;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 88, 2));
const NOW: Instant = Instant(1);
const RECEIVES: Receives = Receives { bytes: 300, count: 9 };

fn packet(golden: &Golden) -> Vec<u8> {
    let (from, to) = golden.addresses();
    Checker::default().check(from, to, &golden.bytes()).expect("its check is right").to_vec()
}

fn engine() -> Engine {
    let mut engine = Engine::new(1472, 5);
    engine.serve(5555, [9; 8]);
    engine
}

fn recorded_request() -> mad::Request {
    let bytes = packet(&golden::REQUEST);
    let message = Packet::parse(&bytes).and_then(|packet| Message::parse(packet.payload)).expect("a message");
    let Body::Request(request) = message.body else { panic!("a request") };
    request
}

fn say(engine: &mut Engine, peer: IpAddr, body: Body) {
    let message = Message { transaction: 7, body }.bytes();
    let extension = Extension::Datagram(MANAGER_Q_KEY, MANAGER_QPN);
    let head = Head { opcode: Opcode::DATAGRAM, qpn: 1, psn: Psn::default(), wants_acknowledge: false, extension };
    let bytes = [&head.bytes(message.len())[..], &message].concat();
    assert!(engine.receive(peer, &bytes, NOW).is_none());
}

/// The messages of the connection manager that are sent now.
fn said(engine: &mut Engine, now: Instant) -> Vec<Body> {
    let next = || engine.poll_send(now);
    let message = |outgoing: Outgoing| match outgoing.payload {
        Payload::Message(bytes) => Message::parse(&bytes[..]).map(|message| message.body),
        Payload::Memory(_) => None,
    };
    std::iter::from_fn(next).filter_map(message).collect()
}

/// The next event, which is of the service of the recorded request.
fn event_of(engine: &mut Engine) -> Option<Event> {
    let (service, event) = engine.poll_event()?;
    assert_eq!(service, 5555);
    Some(event)
}

fn requested(engine: &mut Engine) -> ConnectionId {
    match event_of(engine) {
        Some(Event::Request { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

/// An engine with the connection of the recorded request.
fn connected() -> (Engine, ConnectionId, Reply) {
    let mut engine = engine();
    assert!(engine.receive(PEER, &packet(&golden::REQUEST), NOW).is_none());
    let id = requested(&mut engine);
    assert_eq!(engine.accept(id, &Accept::new(&[1, 2, 3], RECEIVES), NOW), Ok(()));
    let Some(Body::Reply(reply)) = said(&mut engine, NOW).pop() else { panic!("a reply") };
    (engine, id, reply)
}

fn send(engine: &mut Engine, id: ConnectionId, psn: u32, now: Instant) -> Option<Vec<u8>> {
    let head = Head {
        opcode: Opcode::SEND_ONLY,
        qpn: id.0,
        psn: Psn::new(psn),
        wants_acknowledge: true,
        extension: Extension::None,
    };
    let bytes = [&head.bytes(4)[..], b"data"].concat();
    engine.receive(PEER, &bytes, now).map(|(_, message)| message.into_owned())
}

#[test]
fn a_request_is_accepted_used_and_disconnected() {
    let (mut engine, id, reply) = connected();
    let request = recorded_request();
    assert_eq!((reply.ids, reply.qpn, reply.reads, reply.guid), ((id.0, request.id), id.0, 4, [9; 8]));
    assert_eq!(reply.private[..4], [1, 2, 3, 0]);
    // The reply was lost.
    engine.receive(PEER, &packet(&golden::REQUEST), NOW);
    assert_eq!(said(&mut engine, NOW), [Body::Reply(reply)]);
    assert!(!engine.send(id, requester::Message::default()), "the peer is not ready");
    say(&mut engine, PEER, Body::Ready(request.id, id.0));
    let arena = Arena::new(1 << 20);
    assert!(engine.send(id, arena.copy(b"answer").map(Sg::from).expect("room").into()));
    let first = engine.poll_send(NOW).expect("a packet");
    assert_eq!((first.peer, first.head.qpn, first.head.psn.get()), (PEER, request.qpn, request.psn));
    assert_eq!(send(&mut engine, id, reply.psn, NOW).as_deref(), Some(&b"data"[..]));
    let answer = engine.poll_send(NOW).expect("an acknowledgement").head;
    assert_eq!((answer.psn.get(), answer.extension), (reply.psn, Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 1)));
    let other = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    say(&mut engine, other, Body::Disconnect(request.id, id.0, id.0));
    assert!(event_of(&mut engine).is_none(), "another host cannot disconnect it");
    said(&mut engine, NOW);
    say(&mut engine, PEER, Body::Disconnect(request.id, id.0, id.0));
    assert_eq!(said(&mut engine, NOW), [Body::Disconnected(id.0, request.id)]);
    assert!(matches!(event_of(&mut engine), Some(Event::Closed(closed, Ended::Peer)) if closed == id));
    assert_eq!((engine.connections(), send(&mut engine, id, reply.psn + 1, NOW)), (0, None));
    engine.expire(NOW + TIME_WAIT);
    assert!(engine.entries.is_empty() && engine.by_peer.is_empty() && engine.deadlines.is_empty());
}

#[test]
fn the_first_packet_means_that_the_peer_is_ready() {
    let (mut engine, id, reply) = connected();
    assert!(send(&mut engine, id, reply.psn, NOW).is_some());
    assert!(engine.send(id, requester::Message::default()));
}

#[test]
fn messages_that_are_held_back_wait_until_they_are_posted() {
    let mut engine = engine();
    engine.receive(PEER, &packet(&golden::REQUEST), NOW);
    let id = requested(&mut engine);
    assert_eq!(engine.accept(id, &Accept { held_back: 7, ..Accept::new(&[], RECEIVES) }, NOW), Ok(()));
    let Some(Body::Reply(reply)) = said(&mut engine, NOW).pop() else { panic!("a reply") };
    let arrived = |engine: &mut Engine, number| send(engine, id, reply.psn + number, NOW).is_some();
    assert_eq!([0, 1, 2].map(|number| arrived(&mut engine, number)), [true, true, false]);
    let answer = engine.poll_send(NOW).expect("an answer").head.extension;
    assert!(matches!(answer, Extension::Acknowledge(Syndrome::WAIT, 2)), "{answer:?}");
    engine.post(id, 7);
    assert_eq!((2..10).filter(|number| arrived(&mut engine, *number)).count(), 7);
}

#[test]
fn connections_take_turns_in_bursts() {
    let mut engine = engine();
    let ids = [1, 2].map(|number| connect(&mut engine, PEER, number).expect("there is room"));
    for id in ids {
        (0..20).for_each(|_| assert!(engine.write(id, Remote::default(), Sg::default())));
    }
    let mut turns = Vec::new();
    loop {
        let mut qpns = Vec::new();
        let count = engine.poll_burst(NOW, 16, |outgoing| qpns.push(outgoing.head.qpn));
        qpns.dedup();
        match qpns[..] {
            [] => break,
            [qpn] => turns.push((qpn, count)),
            _ => panic!("packets of several connections"),
        }
    }
    assert_eq!(turns, [(1, 16), (2, 16), (1, 4), (2, 4)]);
    assert_eq!(engine.poll_burst(NOW, 0, |_| panic!("none was wanted")), 0);
}

#[test]
fn requests_are_rejected_with_the_reason() {
    let request = recorded_request();
    for (wrong, reason, mtu) in [
        (mad::Request { port: Some(5556), ..request }, Reason::INVALID_SERVICE, None),
        (mad::Request { port: None, ..request }, Reason::INVALID_SERVICE, None),
        (mad::Request { mtu: 5, ..request }, Reason::INVALID_MTU, Some(3)),
        (mad::Request { mtu: 6, ..request }, Reason::UNSUPPORTED, None),
        (mad::Request { is_reliable: false, ..request }, Reason::UNSUPPORTED, None),
    ] {
        let mut engine = engine();
        say(&mut engine, PEER, Body::Request(wrong));
        assert!(event_of(&mut engine).is_none());
        let said = said(&mut engine, NOW);
        assert!(
            matches!(said[..], [Body::Reject(r)] if (r.reason, r.mtu, r.ids.1) == (reason, mtu, request.id)),
            "{said:?}"
        );
    }
    let mut engine = engine();
    say(&mut engine, PEER, Body::Request(request));
    let id = requested(&mut engine);
    engine.reject(id, b"because");
    let said = said(&mut engine, NOW);
    assert!(matches!(said[..], [Body::Reject(r)] if r.reason == Reason::CONSUMER && r.private.starts_with(b"because")));
    let accepted = engine.accept(id, &Accept::new(&[], RECEIVES), NOW);
    assert!(accepted == Err(NotAccepted::Gone) && engine.entries.is_empty());
}

#[test]
fn a_flood_of_requests_is_bounded_and_leaves_room_for_others() {
    let mut engine = engine();
    let request = recorded_request();
    for number in 0..10_000_u32 {
        let peer = IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + number / 100));
        let mine = mad::Request { id: number, qpn: number, ..request };
        say(&mut engine, peer, Body::Request(mine));
    }
    assert_eq!((engine.entries.len(), engine.by_peer.len()), (HALF_OPEN_MAX, HALF_OPEN_MAX));
    assert!(engine.messages.len() <= MESSAGES_MAX);
    while event_of(&mut engine).is_some() {}
    // None of them is answered.
    engine.expire(NOW + ACCEPT_TIME);
    let closed = std::iter::from_fn(|| event_of(&mut engine)).count();
    assert_eq!((closed, engine.entries.len()), (HALF_OPEN_MAX, 0));
}

/// A host requests a connection and accepts the reply. The error is the rejection.
fn connect(engine: &mut Engine, peer: IpAddr, number: u32) -> Result<ConnectionId, Box<Body>> {
    say(engine, peer, Body::Request(mad::Request { id: number, qpn: number, ..recorded_request() }));
    let id = requested(engine);
    match engine.accept(id, &Accept::new(&[], RECEIVES), NOW) {
        Ok(()) => {
            said(engine, NOW);
            say(engine, peer, Body::Ready(number, id.0));
            Ok(id)
        }
        Err(why) => {
            assert_eq!(why, NotAccepted::NoRoom);
            engine.reject(id, b"no room");
            Err(said(engine, NOW).pop().expect("a rejection").into())
        }
    }
}

#[test]
fn one_host_leaves_as_many_connections_to_others_as_it_has() {
    let mut engine = engine();
    let ids: Vec<_> = (0..CONNECTIONS_MAX as u32).map_while(|number| connect(&mut engine, PEER, number).ok()).collect();
    assert_eq!((ids.len(), engine.left(ids[0])), (CONNECTIONS_MAX / 2, 0));
    let refused = connect(&mut engine, PEER, 9999).expect_err("it has half of them");
    assert!(matches!(&*refused, Body::Reject(r) if r.reason == Reason::CONSUMER && r.private.starts_with(b"no room")));
    let other = IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 88, 9));
    let of_other = connect(&mut engine, other, 1).expect("there is room for others");
    assert_eq!(engine.left(of_other), CONNECTIONS_MAX / 4 - 1);
    // One that ends makes room at once, though its peer does not confirm it. The other host has left less.
    ids[..2].iter().for_each(|id| engine.disconnect(*id, NOW));
    assert!(connect(&mut engine, PEER, 9998).is_ok() && connect(&mut engine, PEER, 9997).is_err());
}

#[test]
fn connections_that_have_ended_take_no_room_of_others_and_are_bounded() {
    let mut engine = engine();
    for number in 0..3 * ENDED_MAX as u32 {
        let id = connect(&mut engine, PEER, number).expect("there is room");
        engine.disconnect(id, NOW);
        assert!(engine.entries.len() <= ENDED_MAX + 2 && engine.connections() == 0);
    }
    assert!(engine.deadlines.len() <= ENDED_MAX + 2 && engine.by_peer.len() <= ENDED_MAX + 2);
}

#[test]
fn the_oldest_connection_that_is_not_established_gives_way_to_a_new_one() {
    let mut engine = engine();
    let request = recorded_request();
    let peer = |number: u32| IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + number));
    for number in 0..HALF_OPEN_MAX as u32 {
        say(&mut engine, peer(number), Body::Request(mad::Request { id: number, qpn: number, ..request }));
        let id = requested(&mut engine);
        // Half of them wait for their peers, and half of them for the protocol above.
        if number % 2 == 1 {
            assert_eq!(engine.accept(id, &Accept::new(&[], RECEIVES), NOW), Ok(()));
        }
    }
    said(&mut engine, NOW);
    for (number, reason) in [(0, Some(Reason::NO_RESOURCES)), (1, None)] {
        let mine = mad::Request { id: 1000 + number, qpn: 1000 + number, ..request };
        say(&mut engine, PEER, Body::Request(mine));
        assert!(matches!(event_of(&mut engine), Some(Event::Closed(_, Ended::Late))));
        requested(&mut engine);
        let [told]: [Body; 1] = said(&mut engine, NOW).try_into().expect("its peer is told");
        let rejected = match told {
            Body::Reject(reject) => Some(reject.reason),
            Body::Disconnect(_, remote, _) => {
                assert_eq!(remote, number);
                None
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(rejected, reason);
    }
}

#[test]
fn a_peer_that_is_never_ready_is_given_up() {
    let (mut engine, id, _) = connected();
    let mut replies = 0;
    let (why, mut now) = loop {
        let now = engine.deadline().expect("it waits");
        engine.expire(now);
        replies += said(&mut engine, now).iter().filter(|body| matches!(body, Body::Reply(_))).count();
        if let Some(Event::Closed(closed, why)) = event_of(&mut engine) {
            assert_eq!(closed, id);
            break (why, now);
        }
    };
    assert_eq!((why, replies), (Ended::Late, REPLIES as usize - 1));
    while let Some(deadline) = engine.deadline() {
        now = deadline;
        engine.expire(now);
    }
    assert!(engine.entries.is_empty() && now.since(NOW) < Duration::from_secs(40));
}

#[test]
fn an_idle_peer_is_asked_whether_it_is_there() {
    let (mut engine, id, reply) = connected();
    send(&mut engine, id, reply.psn, NOW);
    while engine.poll_send(NOW).is_some() {}
    let (mut now, probe) = loop {
        let now = engine.deadline().expect("it will be asked");
        engine.expire(now);
        if let Some(probe) = engine.poll_send(now) {
            break (now, probe);
        }
    };
    assert_eq!(now, NOW + IDLE);
    assert_eq!(
        (probe.head.opcode, probe.head.extension),
        (Opcode::WRITE_ONLY, Extension::Remote(Remote::default(), 0))
    );
    let (mut repeated, mut event) = (0, None);
    while event.is_none() {
        now = engine.deadline().expect("it waits");
        engine.expire(now);
        event = event_of(&mut engine);
        repeated += if event.is_none() { std::iter::from_fn(|| engine.poll_send(now)).count() } else { 0 };
    }
    assert!(matches!(event, Some(Event::Closed(_, Ended::Failed(Why::Peer(_))))) && repeated == RETRIES as usize);
}

#[test]
fn a_peer_that_has_lost_its_state_connects_again() {
    let (mut engine, id, _) = connected();
    let request = recorded_request();
    // Another number for the same queue pair.
    say(&mut engine, PEER, Body::Request(mad::Request { id: request.id + 1, ..request }));
    assert!(matches!(event_of(&mut engine), Some(Event::Closed(closed, Ended::Peer)) if closed == id));
    let other = requested(&mut engine);
    assert_ne!(other, id);
    // The same number for another queue pair.
    say(&mut engine, PEER, Body::Request(mad::Request { id: request.id + 1, qpn: 5, ..request }));
    assert!(matches!(event_of(&mut engine), Some(Event::Closed(closed, Ended::Peer)) if closed == other));
    requested(&mut engine);
    assert_eq!(engine.entries.len(), 1);
}

#[test]
fn a_peer_that_breaks_the_rules_is_told_so_and_disconnected() {
    let (mut engine, id, reply) = connected();
    let head = Head {
        opcode: Opcode::WRITE_ONLY,
        qpn: id.0,
        psn: Psn::new(reply.psn),
        wants_acknowledge: true,
        extension: Extension::Remote(Remote::default(), 4),
    };
    engine.receive(PEER, &[&head.bytes(4)[..], b"data"].concat(), NOW);
    assert!(matches!(event_of(&mut engine), Some(Event::Closed(_, Ended::Failed(Why::Broken)))));
    let first = engine.poll_send(NOW).expect("an answer").head;
    assert!(matches!(first.extension, Extension::Acknowledge(Syndrome::ACCESS_ERROR, _)));
    let request = recorded_request();
    assert_eq!(said(&mut engine, NOW), [Body::Disconnect(id.0, request.id, request.qpn)]);
    say(&mut engine, PEER, Body::Disconnected(request.id, id.0));
    engine.expire(NOW + TIME_WAIT);
    assert!(engine.entries.is_empty() && event_of(&mut engine).is_none());
}

#[test]
fn path_mtus_fit_into_the_link() {
    assert_eq!([1472, 4172, 9000, 576, 100].map(mtu_code), [3, 5, 5, 2, 0]);
    assert_eq!(mtu_bytes(5), 4096);
}

#[test]
fn last_answers_that_are_not_sent_are_bounded() {
    let mut engine = engine();
    let request = recorded_request();
    for number in 0..3 * FAREWELLS_MAX as u32 {
        let peer = IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + number));
        say(&mut engine, peer, Body::Request(mad::Request { id: number, qpn: number, ..request }));
        let id = requested(&mut engine);
        assert_eq!(engine.accept(id, &Accept::new(&[], RECEIVES), NOW), Ok(()));
        let psn = engine.entries[&id].reply.as_ref().expect("a reply").psn;
        let head = Head {
            opcode: Opcode::WRITE_ONLY,
            qpn: id.0,
            psn: Psn::new(psn),
            wants_acknowledge: true,
            extension: Extension::Remote(Remote::default(), 4),
        };
        engine.receive(peer, &[&head.bytes(4)[..], b"data"].concat(), NOW);
        assert!(matches!(event_of(&mut engine), Some(Event::Closed(..))));
    }
    assert_eq!(engine.farewells.len(), FAREWELLS_MAX);
}

#[test]
fn each_connection_has_one_place_among_the_deadlines() {
    let (mut engine, id, reply) = connected();
    let mut now = NOW;
    for number in 0..100 {
        now = now + Duration::from_millis(30);
        send(&mut engine, id, reply.psn + number, now);
        engine.write(id, Remote::default(), Sg::default());
        while engine.poll_send(now).is_some() {}
        engine.expire(now);
        let own = engine.entries[&id].deadline().expect("it waits");
        assert!(engine.deadlines.len() == 1 && engine.deadline().is_some_and(|at| at <= own && at > now));
    }
}

#[test]
fn packets_of_no_connection_are_counted() {
    let (mut engine, id, reply) = connected();
    engine.take_counters();
    send(&mut engine, ConnectionId(id.0 ^ 1), reply.psn, NOW);
    engine.receive(PEER, &[1, 2, 3], NOW);
    assert_eq!(engine.take_counters(), Counters { strange: 2, repeated: 0 });
}

#[test]
fn an_engine_disconnects_the_peers_of_the_one_before() {
    let (mut before, id, _) = connected();
    before.take_changed();
    let request = recorded_request();
    assert!(before.live().is_empty());
    say(&mut before, PEER, Body::Ready(request.id, id.0));
    let live = before.live();
    assert_eq!(live, [Live { peer: PEER, local: id.0, remote: request.id, qpn: request.qpn }]);
    assert!(before.take_changed() && !before.take_changed());
    let mut after = engine();
    after.end_stale(&[live[0], live[0]], NOW);
    let farewell = Body::Disconnect(id.0, request.id, request.qpn);
    assert_eq!(said(&mut after, NOW), [farewell]);
    // It was lost.
    after.expire(NOW + REPLY_INTERVAL);
    assert_eq!(said(&mut after, NOW + REPLY_INTERVAL), [farewell]);
    say(&mut after, PEER, Body::Disconnected(request.id, id.0));
    // The peer connects again with the same numbers.
    say(&mut after, PEER, Body::Request(request));
    requested(&mut after);
    assert!(after.entries.len() == 1 && after.live().is_empty());
    say(&mut before, PEER, Body::Disconnect(request.id, id.0, id.0));
    assert!(before.take_changed() && before.live().is_empty());
}

#[test]
fn services_of_an_address_have_their_own_connections() {
    let mut engine = engine();
    engine.serve(4420, [7; 8]);
    let recorded = recorded_request();
    for (number, service, guid) in [(1, 5555, [9; 8]), (2, 4420, [7; 8])] {
        let request = mad::Request { id: number, qpn: number, port: Some(service), ..recorded };
        say(&mut engine, PEER, Body::Request(request));
        let Some((of, Event::Request { id, .. })) = engine.poll_event() else { panic!("a request") };
        assert_eq!((of, engine.service(id)), (service, Some(service)));
        assert_eq!(engine.accept(id, &Accept::new(&[], RECEIVES), NOW), Ok(()));
        let guids = said(&mut engine, NOW).into_iter().filter_map(|body| match body {
            Body::Reply(reply) => Some(reply.guid),
            _ => None,
        });
        assert_eq!(guids.collect::<Vec<_>>(), [guid]);
    }
    engine.withdraw(4420);
    say(&mut engine, PEER, Body::Request(mad::Request { id: 3, qpn: 3, port: Some(4420), ..recorded }));
    assert!(engine.poll_event().is_none());
    assert!(matches!(&said(&mut engine, NOW)[..], [Body::Reject(reject)] if reject.reason == Reason::INVALID_SERVICE));
    assert_eq!(engine.connections(), 2, "the connections of a service stay");
}
