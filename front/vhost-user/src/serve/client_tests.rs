use super::super::tests::{disk, target};
use super::*;
use crate::testing::{DriverRing, started};
use lunar_blk::testing::Rig;
use lunar_engine::vm_sockets::{Place, Role};
use lunar_reactor::{Choice, Config, Reactor};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A client whose front-end has one ring with a request in it, and the other end of its connection.
fn client(reactor: &Reactor) -> (Rc<Client>, UnixStream) {
    let rig = Rig::default();
    let core = Core::new(reactor, (&rig.set, &target(&rig)), &Arc::default());
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("a socket");
    let stream = Stream::adopt(reactor, OwnedFd::from(ours)).expect("a socket");
    let tenant = Tenant { host: "iqn.x".into(), group: None, tag: 0, queues: 1, device: disk() };
    let place = Place { path: "test".into(), role: Role::Server };
    let endpoint = Endpoint { name: "test".into(), place, tenant };
    let client = Client::new(&core, stream, &endpoint).expect("it sees a volume");
    let (device, mut driver) = started(0, 8);
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    client.device.rings.with(|state| *state = device);
    (client, theirs)
}

#[test]
fn a_connection_that_is_ended_answers_no_message_and_takes_no_request() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let (client, mut front_end) = client(&reactor);
    assert!(client.device.rings.state().has_work());
    // GET_FEATURES, twice.
    let message = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    front_end.write_all(&[message, message].concat()).expect("there is room");
    client.end();
    assert!(!client.device.rings.state().has_work());
    let ended = reactor.run(client.converse());
    assert_eq!(ended.map_err(|why| why.kind()), Err(io::ErrorKind::ConnectionAborted));
    let mut bytes = Vec::new();
    front_end.read_to_end(&mut bytes).expect("it is at its end");
    assert!(bytes.is_empty());
}

#[test]
fn a_connection_that_is_ended_waits_for_nothing() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let (client, _front_end) = client(&reactor);
    assert!(matches!(reactor.run(client.until_ended(|| true)), Ok(())));
    // A request that its store does not answer.
    let ring = RingIndex::from(0);
    assert!(client.device.rings.with(|state| state.take(ring)).is_ok_and(|chain| chain.is_some()));
    let ended = client.clone();
    reactor.spawn(async move {
        ended.core.reactor.sleep(Duration::from_millis(1)).await;
        ended.end();
    });
    assert!(matches!(reactor.run(client.stop(ring)), Err(Refused::Ended)));
    client.device.rings.forget(ring);
}

#[test]
fn a_ring_that_stops_does_not_outlast_its_front_end() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let (client, front_end) = client(&reactor);
    // A request that its store does not answer.
    let ring = RingIndex::from(0);
    assert!(client.device.rings.with(|state| state.take(ring)).is_ok_and(|chain| chain.is_some()));
    reactor.spawn({
        let reactor = reactor.clone();
        async move {
            reactor.sleep(Duration::from_millis(1)).await;
            drop(front_end);
        }
    });
    assert!(matches!(reactor.run(client.stop(ring)), Err(Refused::Ended)));
    client.device.rings.forget(ring);
}

#[test]
fn a_device_that_fails_disconnects_its_front_end_and_does_not_wait_for_what_was_lost() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let (client, _front_end) = client(&reactor);
    // A panic has ended the work at its request.
    assert!(client.device.rings.with(|state| state.take(0.into())).is_ok_and(|chain| chain.is_some()));
    assert!(!client.is_quiet());
    reactor.spawn({
        let (reactor, client) = (reactor.clone(), client.clone());
        async move {
            reactor.sleep(Duration::from_millis(1)).await;
            client.device.rings.fail();
        }
    });
    assert!(!reactor.run(client.serve()));
    assert!(client.is_quiet() && !client.device.rings.state().has_work());
    reactor.run(client.finish());
}

#[test]
fn a_front_end_is_refused_more_memory_than_others_leave_to_it() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let (client, _front_end) = client(&reactor);
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&file, 8 << 40).expect("it is sparse");
    let file = PeerFile::from(file);
    // All that one front-end gets is 16.5 TiB.
    let regions: Vec<_> = (0..2).map(|_| client.map(&file, 0, 8 << 40).expect("there is room")).collect();
    assert!(matches!(client.map(&file, 0, 8 << 40), Err(Refused::Memory(MapError::TooMany))));
    assert!(matches!(client.map(&file, 1, 8 << 40), Err(Refused::Descriptors)), "beyond its end");
    assert!(reactor.run(client.until_free(regions)).is_ok());
    assert!(client.map(&file, 0, 8 << 40).is_ok(), "they are unmapped");
    reactor.run(client.finish());
    reactor.run(async {
        while !client.has_unmapped() {
            reactor.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_driver_is_notified_of_what_was_returned_before_its_ring_stopped() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let (client, _front_end) = client(&reactor);
    let (rings, ring) = (&client.device.rings, RingIndex::from(0));
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    let signal = Signal::new(&reactor, call.try_clone().expect("a descriptor")).expect("an eventfd");
    rings.set_signal(RingEvent::Call, ring, Some(signal));
    let chain = rings.with(|state| state.take(ring)).expect("good").expect("one");
    rings.put_back(ring, &chain, 0);
    assert!(matches!(reactor.run(client.stop(ring)), Ok(Answer::Reply(..))));
    reactor.run(reactor.sleep(Duration::from_millis(1)));
    assert_eq!(rustix::io::read(&call, &mut [0; 8]), Ok(8));
}

#[test]
fn a_ring_that_was_moved_or_enabled_is_looked_at() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    // Without the features of the protocol, all rings are enabled.
    let messages: [fn(&DriverRing) -> Request<'static>; 2] =
        [|driver| Request::SetVringAddr(0.into(), driver.address(0)), |_| Request::SetFeatures(feature::VERSION_1)];
    for message in messages {
        let (client, _front_end) = client(&reactor);
        let (device, driver) = started(0, 8);
        client.device.rings.with(|state| *state = device);
        assert!(!client.device.rings.schedule.is_due());
        assert!(reactor.run(client.answer(message(&driver), Vec::new())).is_ok());
        assert!(client.device.rings.state().is_running(0.into()) && client.device.rings.schedule.is_due());
    }
}
