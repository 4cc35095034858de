//! Not tests of anything: what the parts cost. Alone, in release:
//! `cargo test --release -p lunar-reactor --lib cost -- --ignored --nocapture --test-threads 1`

use crate::channel::channel;
use crate::driver_tests::thread_time;
use crate::op::{Handle, How, Op};
use crate::slots::Slots;
use crate::{Choice, Config, Reactor, Spin};
use lunar_core::io::{Completion, Done, Outcome};
use lunar_core::mem::Sg;
use lunar_core::step::Tools;
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::Instant;

fn reactor(driver: Choice, spin: Spin) -> Reactor {
    Reactor::new(Config { driver, spin, ..Config::default() }).expect("a driver")
}

/// The best of many batches: what it costs when nobody disturbs.
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
    let slots = Slots::new(&reactor, JOBS, async move |&job: &usize, _: &mut Tools| {
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

    let answers = Slots::new(&reactor, JOBS, async move |&job: &usize, tools: &mut Tools| {
        for _ in 0..job {
            let token = tools.completion.token();
            token.complete(Outcome::new(Ok(0)));
            let _ = tools.completion.wait().await;
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
    let waits = Slots::new(&reactor, JOBS, async move |_: &usize, tools: &mut Tools| {
        let token = tools.completion.token();
        theirs.borrow_mut().push(token);
        let _ = tools.completion.wait().await;
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
    measure(&reactor, "a letter on the same core", 1, async || {
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

/// A server that answers 48 bytes with 48 and 4 KiB, against a client on another thread that keeps `depth` requests
/// under way.
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
