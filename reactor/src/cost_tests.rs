//! Measurements of the cost of the parts; they assert nothing. Alone, in release: `cargo test --release -p
//! lunar-reactor --lib cost -- --ignored --nocapture --test-threads 1`

use crate::channel::channel;
use crate::driver_tests::thread_time;
use crate::endpoint::packet::{PacketConfig, PacketLink, RingFormat};
use crate::endpoint::{BATCH_MAX, Datagram, Endpoint, ReceiveBatch, SendBatch};
use crate::op::{Handle, How, Op};
use crate::slots::Slots;
use crate::testing::network;
use crate::{Choice, Config, Reactor, Spin};
use lunar_core::io::{Completion, Done, Outcome};
use lunar_core::mem::Sg;
use lunar_core::step::SlotContext;
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn reactor(driver: Choice, spin: Spin) -> Reactor {
    Reactor::new(Config { driver, spin, ..Config::default() }).expect("a driver")
}

/// The best of many batches: the cost without disturbance.
fn measure(reactor: &Reactor, what: &str, count: usize, round: impl AsyncFn()) {
    const ROUNDS: usize = 1000;
    reactor.run(async {
        let mut best = u128::MAX;
        for _ in 0..200 {
            let started = Instant::now();
            for _ in 0..ROUNDS {
                round().await;
            }
            best = best.min(started.elapsed().as_nanos());
        }
        println!("{:6.1} ns  {what} ({count} at once)", best as f64 / (count * ROUNDS) as f64);
    });
}

#[test]
#[ignore = "a measurement"]
fn cost_of_slots_and_wakers() {
    const JOBS: usize = 32;
    let reactor = reactor(Choice::Epoll, Spin::NEVER);
    let done = Rc::new(Cell::new(0usize));
    let theirs = done.clone();
    let slots = Slots::new(&reactor, JOBS, async move |&job: &usize, _: &mut SlotContext| {
        theirs.set(theirs.get() + job);
    });
    let start_all = async || {
        for _ in 0..JOBS {
            slots.start(1).expect("free");
        }
        reactor.end_of_turn().await;
    };
    measure(&reactor, "start and finish of a slot", JOBS, start_all);
    assert!(done.get() > 0);

    let answers = Slots::new(&reactor, JOBS, async move |&job: &usize, slot: &mut SlotContext| {
        for _ in 0..job {
            let token = slot.completion.token();
            token.complete(Outcome::new(Ok(0)));
            let _ = slot.completion.wait().await;
        }
    });
    let answer_all = async || {
        for _ in 0..JOBS {
            answers.start(10).expect("free");
        }
        reactor.end_of_turn().await;
    };
    measure(&reactor, "an answer that is there at once", JOBS * 10, answer_all);

    let tokens: Rc<RefCell<Vec<Done>>> = Rc::default();
    let theirs = tokens.clone();
    let waits = Slots::new(&reactor, JOBS, async move |_: &usize, slot: &mut SlotContext| {
        let token = slot.completion.token();
        theirs.borrow_mut().push(token);
        let _ = slot.completion.wait().await;
    });
    let wait_all = async || {
        for _ in 0..JOBS {
            waits.start(1).expect("free");
        }
        reactor.end_of_turn().await;
        for token in tokens.borrow_mut().drain(..) {
            token.complete(Outcome::new(Ok(0)));
        }
        reactor.end_of_turn().await;
    };
    measure(&reactor, "start, wait, answer, wake and finish of a slot", JOBS, wait_all);
}

#[test]
#[ignore = "a measurement"]
fn cost_of_mail() {
    let reactor = reactor(Choice::Epoll, Spin::NEVER);
    let (sender, receiver) = channel::<usize>(&reactor);
    let receiver = RefCell::new(receiver);
    measure(&reactor, "a message on the same core", 1, async || {
        sender.send(1);
        assert_eq!(receiver.borrow_mut().try_recv(), Some(1));
    });
}

#[test]
#[ignore = "a measurement"]
fn cost_of_an_operation() {
    let reactor = reactor(Choice::IoUring, Spin::NEVER);
    let file = reactor.driver().open("/dev/null".as_ref(), How::default()).expect("open");
    for count in [1, 32] {
        let completions: RefCell<Vec<Completion>> = RefCell::new((0..count).map(|_| Completion::new()).collect());
        measure(&reactor, "a write to /dev/null through the ring", count, async || {
            let mut mine = completions.take();
            for completion in &mut mine {
                let data = reactor.arena().copy(b"x").expect("room").into();
                let op = Op::Write { file: file.clone(), offset: 0, data, durable: false };
                reactor.submit(op, completion.token());
            }
            for completion in &mine {
                let _ = completion.wait().await;
            }
            completions.replace(mine);
        });
    }
}

const REQUEST: usize = 48;
const REPLY: usize = 48 + 4096;

/// A server that answers 48 bytes with 48 and 4 KiB, for a client on another thread that keeps `depth` requests in
/// progress.
#[test]
#[ignore = "a measurement"]
fn cost_of_serving() {
    for (depth, requests) in [(32, 400_000), (1, 30_000)] {
        for spin in [Spin::NEVER, Spin::default()] {
            for driver in [Choice::IoUring, Choice::Epoll] {
                let reactor = reactor(driver, spin);
                let (listener, address) = reactor.driver().listen(([127, 0, 0, 1], 0).into()).expect("listening");
                let client = std::thread::spawn(move || ask(address, depth, requests));
                let (begun, before) = (Instant::now(), thread_time());
                reactor.run(serve(&reactor, &listener));
                let (time, used) = (begun.elapsed(), thread_time() - before);
                client.join().expect("served");
                let stats = reactor.stats();
                println!(
                    "depth {depth}, {driver:?}, {spin:?}: {} ns of processor per request ({} of them polling), \
                     {:.0} requests/s, {:.1} requests per send, {} sleeps, {} turns",
                    used.as_nanos() as usize / requests,
                    stats.idle_spin_nanoseconds.get() as usize / requests,
                    requests as f64 / time.as_secs_f64(),
                    requests as f64 / stats.sends.get() as f64,
                    stats.sleeps.get(),
                    stats.turns.get(),
                );
            }
        }
    }
}

fn ask(address: SocketAddr, depth: usize, requests: usize) {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_nodelay(true).expect("set");
    let (mut sent, mut received) = (0, 0);
    let mut room = vec![0; 1 << 20];
    let bytes = vec![0; depth * REQUEST];
    while received < requests * REPLY {
        let more = (received / REPLY + depth).min(requests) - sent;
        stream.write_all(&bytes[..more * REQUEST]).expect("sent");
        sent += more;
        received += stream.read(&mut room).expect("received");
    }
}

async fn serve(reactor: &Reactor, listener: &Handle) {
    let incoming = reactor.accept(listener).await.expect("accepted");
    let (socket, ..) = reactor.driver().join(incoming).expect("joined");
    let (head, payload) = (reactor.arena().copy(&[0; 48]), reactor.arena().copy(&[0; 4096]));
    let (head, payload) = (head.expect("room"), payload.expect("room"));
    let mut completion = Completion::new();
    let (mut received, mut answered) = (0, 0);
    loop {
        let memory = reactor.arena().take_sg(65536).expect("room");
        let (result, _) = reactor.receive(&socket, memory, &mut completion).await;
        received += match result.expect("received") {
            0 => return,
            len => len,
        };
        let mut replies = Sg::default();
        while (answered + 1) * REQUEST <= received {
            replies.push(head.clone());
            replies.push(payload.clone());
            answered += 1;
        }
        reactor.send(&socket, replies, &mut completion).await.expect("sent");
    }
}

/// Frames between two interfaces that are joined by a cable, each with a core: one at a time in both directions, and
/// as many as possible in one direction.
#[test]
#[ignore = "a measurement"]
fn cost_of_frames() {
    if let Err(why) = network::enter() {
        return eprintln!("skipped: {why}");
    }
    let formats = [("va", "vb", RingFormat::Frames), ("vc", "vd", RingFormat::Blocks)];
    for (near, far, format) in formats {
        network::veth(near, far).expect("a pair of interfaces");
        for driver in [Choice::IoUring, Choice::Epoll] {
            let link = |interface: &str| {
                let (interface, types) = (interface.to_owned(), vec![0x88b5]);
                let config = PacketConfig { interface, types, filters: Vec::new(), format };
                Endpoint::Packet(PacketLink::interface(&config).expect("a link"))
            };
            let (near, far) = (link(near), link(far));
            let end = Arc::new(AtomicBool::new(false));
            let stop = end.clone();
            let echo = std::thread::spawn(move || {
                let reactor = reactor(driver, Spin::default());
                let far = reactor.attach(far).expect("attached");
                reactor.run(answer_frames(&reactor, &far, &stop))
            });
            let reactor = reactor(driver, Spin::default());
            let near = reactor.attach(near).expect("attached");
            let (trip, sent) = reactor.run(ask_frames(&reactor, &near, &end));
            let received = echo.join().expect("no panic");
            println!(
                "{format:?}, {driver:?}: {:.1} us there and back, {:.2} million frames/s of 1400 bytes, {:.1} % of \
                 them received",
                trip.as_nanos() as f64 / 1000.0,
                sent.0 as f64 / sent.1.as_secs_f64() / 1e6,
                received as f64 / sent.0 as f64 * 100.0
            );
        }
    }
}

/// Answers frames of 60 bytes, and counts the others.
async fn answer_frames(reactor: &Reactor, link: &Handle, stop: &AtomicBool) -> usize {
    let (mut completion, mut received) = (Completion::new(), 0);
    let mut batch = ReceiveBatch::new(2048, BATCH_MAX);
    while !stop.load(Ordering::Relaxed) {
        let (result, back) = reactor.receive_batch(link, batch, &mut completion).await;
        result.expect("received");
        batch = back;
        let mut answers = SendBatch::new();
        for frame in batch.drain() {
            if frame.data.len() == 60 {
                answers.push(Datagram { data: frame.data, ..Datagram::default() });
            } else {
                received += 1;
            }
        }
        if !answers.is_empty() {
            reactor.send_batch(link, answers, &mut completion).await.0.expect("sent");
        }
    }
    received
}

/// The round-trip time of a frame, and the number of frames in one direction with their time.
async fn ask_frames(reactor: &Reactor, link: &Handle, end: &AtomicBool) -> (Duration, (usize, Duration)) {
    const TRIPS: u32 = 2000;
    const FRAMES: usize = 300_000;
    let mut completion = Completion::new();
    let frame = |len: usize| {
        let mut bytes = vec![0xff; len];
        bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        reactor.arena().copy(&bytes).expect("room")
    };
    let (short, long) = (frame(60), frame(1414));
    let trip = async |completion: &mut Completion| {
        let mut batch = SendBatch::new();
        batch.push_frame(short.clone(), None);
        reactor.send_batch(link, batch, completion).await.0.expect("sent");
        reactor.receive_batch(link, ReceiveBatch::new(2048, 4), completion).await.0.expect("received");
    };
    let begun = Instant::now();
    for _ in 0..TRIPS {
        trip(&mut completion).await;
    }
    let time = begun.elapsed() / TRIPS;
    let (begun, mut sent) = (Instant::now(), 0);
    while sent < FRAMES {
        let mut batch = SendBatch::new();
        (0..BATCH_MAX).for_each(|_| batch.push_frame(long.clone(), None));
        sent += reactor.send_batch(link, batch, &mut completion).await.0.expect("sent");
    }
    let took = begun.elapsed();
    end.store(true, Ordering::Relaxed);
    // Wakes the other end, which then ends; its ring may be full until it has caught up.
    for _ in 0..20 {
        reactor.sleep(Duration::from_millis(50)).await;
        let mut batch = SendBatch::new();
        batch.push_frame(short.clone(), None);
        reactor.send_batch(link, batch, &mut completion).await.0.expect("sent");
    }
    (time, (sent, took))
}
