//! Unix sockets and eventfds of a world, and cores that prepare_sleep.

use super::{Faults, Host, Peer, World, eventfd};
use crate::shared::quota::Quota;
use crate::unix::{Listener, Signal, Stream, are_files};
use crate::watch::Watch;
use crate::{Reactor, shared};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

fn core(world: &World, host: u32) -> Reactor {
    Reactor::with_driver(world.core(Host(host)), Arena::new(1 << 20), Arc::default())
}

fn path() -> &'static Path {
    Path::new("socket")
}

/// Connects a client to a listener of this core.
fn connected(world: &World, core: &Reactor) -> (Listener, Stream, Peer) {
    let listener = Listener::bind(core, path(), 0o600).expect("the path is free");
    let peer = world.connect_local(path()).expect("a core listens");
    let stream = core.run(listener.accept()).expect("a connection");
    (listener, stream, peer)
}

async fn send(peer: &Peer, bytes: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) {
    let mut at = 0;
    while at < bytes.len() {
        let with = if at == 0 { descriptors } else { &[] };
        at += poll_fn(|cx| peer.poll_send_with(cx, &bytes[at..], with)).await.expect("an open connection");
    }
}

#[test]
fn descriptors_arrive_with_the_bytes_that_they_were_sent_with() {
    for seed in 0..50 {
        let world = World::new(seed);
        let core = core(&world, 1);
        assert!(!are_files(&core));
        let (_listener, stream, peer) = connected(&world, &core);
        let (file, memory) = shared::share("test", 4096).expect("memory");
        core.run(async {
            send(&peer, b"first", &[]).await;
            send(&peer, b"second", &[file.as_fd()]).await;
            let (mut bytes, mut descriptors) = ([0; 5], Vec::new());
            assert_eq!(stream.receive(&mut bytes, &mut descriptors).await.expect("open"), 5);
            assert!(&bytes == b"first" && descriptors.is_empty());
            let mut bytes = [0; 6];
            assert_eq!(stream.receive(&mut bytes, &mut descriptors).await.expect("open"), 6);
            let [descriptor] = &descriptors[..] else { panic!("one descriptor") };
            let mapped = descriptor.map(&Quota::default(), 0, 4096, true).expect("the same memory");
            assert!(mapped.write(7, b"hello"));
            let mut found = [0; 5];
            assert!(memory.read(7, &mut found) && &found == b"hello");
            // The other direction.
            stream.send(b"reply", &[file.as_fd()]).await.expect("open");
            let mut reply = Vec::new();
            while reply.len() < 5 {
                reply.extend(peer.receive(8).await.expect("open"));
            }
            assert_eq!((reply.as_slice(), peer.take_descriptors().len()), (&b"reply"[..], 1));
        });
    }
}

#[test]
fn the_end_of_either_side_reaches_the_other() {
    let world = World::new(1);
    let core = core(&world, 1);
    let (listener, stream, peer) = connected(&world, &core);
    core.run(async {
        send(&peer, b"last", &[]).await;
        drop(peer);
        let (mut bytes, mut descriptors) = ([0; 8], Vec::new());
        assert_eq!(stream.receive(&mut bytes, &mut descriptors).await.expect("its end"), 4);
    });
    let peer = world.connect_local(path()).expect("a core listens");
    let stream = core.run(listener.accept()).expect("a connection");
    core.run(async {
        stream.cancel();
        assert_eq!(peer.receive(8).await, Ok(Vec::new()));
        assert_eq!(stream.receive(&mut [0; 1], &mut Vec::new()).await.expect("its end"), 0);
        assert!(stream.send(b"late", &[]).await.is_err());
    });
}

#[test]
fn a_path_has_one_listener_which_a_cancel_wakes() {
    let world = World::new(1);
    let core = core(&world, 1);
    assert!(world.connect_local(path()).is_err(), "no core listens");
    let listener = Rc::new(Listener::bind(&core, path(), 0o600).expect("the path is free"));
    let taken = Listener::bind(&core, path(), 0o600).expect_err("the path is taken");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    let (canceller, reactor) = (listener.clone(), core.clone());
    core.spawn(async move {
        reactor.sleep(Duration::from_millis(1)).await;
        canceller.cancel();
    });
    assert!(core.run(listener.accept()).is_err());
    listener.retire();
    drop(Listener::bind(&core, path(), 0o600).expect("the path is free again"));
    world.crash(Host(1), false);
    assert!(world.connect_local(path()).is_err(), "the host has crashed");
}

#[test]
fn a_connection_of_a_unix_socket_is_never_reset_by_the_network() {
    let world = World::new(3);
    world.set_faults(Faults { reset: super::MILLION, stall: super::MILLION, ..Faults::none() });
    let core = core(&world, 1);
    let (_listener, stream, peer) = connected(&world, &core);
    core.run(async {
        send(&peer, &[7; 4096], &[]).await;
        let mut bytes = [0; 4096];
        assert_eq!(stream.receive(&mut bytes, &mut Vec::new()).await.expect("open"), 4096);
    });
}

#[test]
fn a_signal_wakes_its_client_and_other_descriptors_are_refused() {
    let world = World::new(1);
    let core = core(&world, 1);
    let client = eventfd().expect("an eventfd");
    let signal = Signal::new(&core, client.try_clone().expect("a copy")).expect("an eventfd");
    core.run(async {
        let is_signalled = poll_fn(|cx| Poll::Ready(world.poll_signal(cx, &client).is_ready())).await;
        assert!(!is_signalled && signal.ring());
        poll_fn(|cx| world.poll_signal(cx, &client)).await;
        core.sleep(Duration::from_millis(1)).await;
        let is_signalled = poll_fn(|cx| Poll::Ready(world.poll_signal(cx, &client).is_ready())).await;
        assert!(!is_signalled && signal.ring(), "one signal for each ring");
    });
    let (file, _) = shared::share("test", 4096).expect("memory");
    assert!(Signal::new(&core, file).is_err());
}

/// Much later than any reply of these tests arrives.
const LATE: Instant = Instant(500_000_000_000);

/// Waits for a reply, at most until [`LATE`].
async fn reply_in_time(core: &Reactor, peer: &Peer) -> bool {
    let mut timer = pin!(core.sleep_until(LATE));
    poll_fn(|cx| match peer.poll_receive(cx, 8) {
        Poll::Ready(received) => Poll::Ready(received.is_ok_and(|bytes| bytes == b"reply") && core.now() < LATE),
        Poll::Pending => timer.as_mut().poll(cx).map(|()| false),
    })
    .await
}

/// A world in which a reply arrives, as the last event, one or two turns after it was sent.
fn fast(seed: u64) -> World {
    let world = World::new(seed);
    let latency = (Duration::ZERO, Duration::from_nanos(1500));
    world.set_faults(Faults { latency, partial_receive: 0, segmented_send: 0, ..Faults::none() });
    world
}

#[test]
fn a_core_gets_a_reply_that_arrives_while_the_last_core_of_a_round_turns() {
    for seed in 0..100 {
        let world = fast(seed);
        let (target, guest) = (core(&world, 1), core(&world, 2));
        let (_listener, stream, peer) = connected(&world, &target);
        let outcome = Rc::new(Cell::new(None));
        target.spawn(async move {
            stream.send(b"reply", &[]).await.expect("open");
            // Keeps the connection open.
            std::future::pending::<()>().await;
        });
        let (guest_core, found) = (guest.clone(), outcome.clone());
        guest.spawn(async move { found.set(Some(reply_in_time(&guest_core, &peer).await)) });
        world.run(&[&target, &guest], || outcome.get().is_some());
        assert_eq!(outcome.get(), Some(true), "seed {seed}");
    }
}

#[test]
fn a_core_gets_a_reply_that_arrives_as_the_core_goes_to_sleep() {
    for seed in 0..100 {
        let world = fast(seed);
        let core = core(&world, 1);
        let (_listener, stream, peer) = connected(&world, &core);
        let is_in_time = core.run(async {
            stream.send(b"reply", &[]).await.expect("open");
            reply_in_time(&core, &peer).await
        });
        assert!(is_in_time, "seed {seed}");
    }
}

/// A watch that always finds nothing, counts its looks, and may refuse to prepare_sleep.
struct Counter {
    looks: Cell<u64>,
    may_doze: Cell<bool>,
}

impl Watch for Counter {
    fn wants_poll(&self) -> bool {
        false
    }

    fn look(&self) -> bool {
        self.looks.set(self.looks.get() + 1);
        false
    }

    fn prepare_sleep(&self) -> bool {
        self.may_doze.get()
    }
}

#[test]
fn a_core_that_dozes_looks_at_nothing_until_it_is_woken() {
    let world = World::new(1);
    let core = core(&world, 1);
    let counter = Rc::new(Counter { looks: Cell::new(0), may_doze: Cell::new(false) });
    let watch: Rc<dyn Watch> = counter.clone();
    assert!(!core.has_watches());
    core.watch(&watch);
    while core.turn() {}
    assert!(core.has_watches() && !core.prepare_sleep(), "the watch has something to do");
    let looks = || counter.looks.get();
    let before = looks();
    assert!(!core.turn() && looks() == before + 1);
    counter.may_doze.set(true);
    assert!(core.prepare_sleep() && !core.turn() && looks() == before + 1);
    let sleeper = core.clone();
    core.spawn(async move { sleeper.sleep_until(Instant(1_000_000)).await });
    assert!(core.turn() && looks() == before + 2, "a task wakes the core");
}
