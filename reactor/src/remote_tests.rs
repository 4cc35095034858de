//! Requests that real threads answer, on both drivers.

use super::*;
use crate::{Choice, Config, Reactor};
use lunar_core::io::{Completion, Io, Op, Store, Traits};
use lunar_core::mem::{Arena, PAGE, Sg, SgMut};
use std::sync::mpsc::{Sender, channel};

fn reactor(driver: Choice) -> Reactor {
    Reactor::new(Config { driver, arena_bytes: 8 << 20, ..Config::default() }).expect("a driver")
}

/// Runs a test on both drivers; all memory must be free when its core has ended.
fn each(test: impl AsyncFn(&Reactor)) {
    for driver in [Choice::IoUring, Choice::Epoll] {
        let reactor = reactor(driver);
        let arena = reactor.arena().clone();
        reactor.run(test(&reactor));
        drop(reactor);
        assert_eq!(arena.used(), 0, "memory did not come back");
    }
}

/// Memory to fill, in pieces of different lengths.
fn pieces(arena: &Arena, lengths: &[usize]) -> SgMut {
    let mut sg = SgMut::default();
    lengths.iter().for_each(|len| sg.push(arena.take(*len).expect("room")));
    sg
}

/// A thread that executes the functions that it receives, in order.
fn worker() -> Sender<Box<dyn FnOnce() + Send>> {
    let (sender, receiver) = channel::<Box<dyn FnOnce() + Send>>();
    std::thread::spawn(move || receiver.iter().for_each(|job| job()));
    sender
}

#[test]
fn a_thread_fills_memory_and_wakes_a_core_that_sleeps() {
    each(async |reactor| {
        let worker = worker();
        for round in 0..50_u8 {
            let mut completion = Completion::new();
            let data = Data::In(pieces(reactor.arena(), &[3, 5000, 1]));
            let mut token = reactor.remote(completion.token(), data).expect("room");
            assert!(token.is_writable() && token.len() == 5004);
            let job = move || {
                if round % 3 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                assert_eq!(token.write(0, &[round; 5004]), 5004);
                assert_eq!(token.write(5000, b"abcdef"), 4, "there is no more room");
                token.complete(Ok(5004));
            };
            worker.send(Box::new(job)).expect("the thread runs");
            let outcome = completion.wait().await;
            assert_eq!(outcome.result, Ok(5004));
            let bytes = outcome.data.into_in().share().to_vec();
            assert!(bytes[..5000].iter().all(|byte| *byte == round) && &bytes[5000..] == b"abcd");
        }
    });
}

#[test]
fn memory_to_be_read_is_not_written() {
    each(async |reactor| {
        let mut sg = pieces(reactor.arena(), &[10, 10]);
        sg.copy_from(0, b"0123456789abcdefghij");
        let mut completion = Completion::new();
        let mut token = reactor.remote(completion.token(), Data::Out(sg.share())).expect("room");
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 12];
            assert_eq!(token.read(5, &mut bytes), 12);
            assert_eq!(&bytes, b"56789abcdefg");
            assert_eq!(token.read(15, &mut bytes), 5);
            assert_eq!(token.read(21, &mut bytes), 0);
            assert_eq!(token.iovecs().iter().map(|piece| piece.iov_len).collect::<Vec<_>>(), [10, 10]);
            assert!(!token.is_writable());
            assert_eq!(token.write(0, b"x"), 0);
            token.complete(Ok(20));
        });
        let outcome = completion.wait().await;
        assert!(matches!(outcome.data, Data::Out(sg) if sg.to_vec() == b"0123456789abcdefghij"));
        thread.join().expect("no panic");
    });
}

#[test]
fn a_token_that_is_dropped_or_whose_thread_panics_answers_aborted() {
    each(async |reactor| {
        let mut completion = Completion::new();
        let data = Data::In(pieces(reactor.arena(), &[100]));
        let token = reactor.remote(completion.token(), data).expect("room");
        std::thread::spawn(move || drop(token)).join().expect("no panic");
        let outcome = completion.wait().await;
        assert_eq!((outcome.result, outcome.data.len()), (Err(Fault::Aborted), 100));
        let token = reactor.remote(completion.token(), Data::None).expect("room");
        assert!(token.is_empty());
        let thread = std::thread::spawn(move || {
            let _token = token;
            panic!("as the test wants");
        });
        assert_eq!(completion.wait().await.result, Err(Fault::Aborted));
        assert!(thread.join().is_err());
    });
}

#[test]
fn memory_stays_although_the_requester_has_given_up() {
    each(async |reactor| {
        let data = Data::In(pieces(reactor.arena(), &[PAGE]));
        let mut completion = Completion::new();
        let mut token = reactor.remote(completion.token(), data).expect("room");
        drop(completion);
        reactor.end_of_turn().await;
        assert_eq!(reactor.arena().used(), PAGE);
        let thread = std::thread::spawn(move || {
            token.write(0, &[7; PAGE]);
            token.complete(Ok(PAGE as u32));
        });
        while reactor.arena().used() > 0 {
            reactor.sleep(Duration::from_millis(1)).await;
        }
        thread.join().expect("no panic");
    });
}

#[test]
fn requests_beyond_the_bound_are_refused() {
    each(async |reactor| {
        let mut completions: Vec<Completion> = (0..=REMOTE_MAX).map(|_| Completion::new()).collect();
        let last = completions.pop().expect("one more than the bound");
        let mut tokens: Vec<RemoteDone> =
            completions.iter_mut().map(|one| reactor.remote(one.token(), Data::None).expect("room")).collect();
        let mut last = last;
        assert!(reactor.remote(last.token(), Data::In(pieces(reactor.arena(), &[10]))).is_none());
        let outcome = last.wait().await;
        assert_eq!((outcome.result, outcome.data.len()), (Err(Fault::NoMemory), 10));
        std::thread::spawn(move || tokens.pop().expect("many").complete(Ok(1))).join().expect("no panic");
        assert_eq!(completions.pop().expect("many").wait().await.result, Ok(1));
        assert!(reactor.remote(last.token(), Data::None).is_some(), "a place has come free");
    });
}

/// A store whose bytes belong to a thread, as in a library with threads of its own.
struct Threaded {
    reactor: Reactor,
    thread: Sender<(u64, RemoteDone)>,
    traits: Traits,
}

impl Threaded {
    fn new(reactor: &Reactor, size: usize, pause: impl Fn(u64) -> Duration + Send + 'static) -> Self {
        let (thread, requests) = channel::<(u64, RemoteDone)>();
        std::thread::spawn(move || {
            let mut bytes = vec![0; size];
            for (count, (offset, mut request)) in requests.iter().enumerate() {
                std::thread::sleep(pause(count as u64));
                let place = &mut bytes[offset as usize..][..request.len()];
                let moved = if request.is_writable() { request.write(0, place) } else { request.read(0, place) };
                request.complete(Ok(moved as u32));
            }
        });
        let traits = Traits {
            size: size as u64,
            read_only: false,
            write_cache: false,
            thin: false,
            unmap_granularity: 0,
            unmap_zeroes: false,
            physical_block: 512,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        };
        Self { reactor: reactor.clone(), thread, traits }
    }
}

impl Store for Threaded {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, io: Io, done: Done) {
        let Some(token) = self.reactor.remote(done, io.data) else { return };
        // A thread that has ended drops the token, which answers the request.
        let _ = self.thread.send((io.offset, token));
    }
}

#[test]
fn a_store_whose_answers_come_from_a_thread_serves_many_requests() {
    const COUNT: usize = 200;
    each(async |reactor| {
        let pause = |count: u64| Duration::from_micros(if count.is_multiple_of(50) { 500 } else { 0 });
        let store = Rc::new(Threaded::new(reactor, COUNT * PAGE, pause));
        let left = Rc::new(Cell::new(COUNT));
        for number in 0..COUNT {
            let (store, reactor, left) = (store.clone(), reactor.clone(), left.clone());
            reactor.clone().spawn(async move {
                let mut completion = Completion::new();
                for round in 0..5_u8 {
                    let offset = (number * PAGE) as u64;
                    let mut memory = reactor.arena().wait_sg(PAGE).await;
                    memory.fill_from(0, number as u8 ^ round);
                    let data = Data::Out(memory.share());
                    let io = Io { op: Op::Write { durable: false }, offset, data };
                    let outcome = lunar_core::io::submit(&*store, io, &mut completion).await;
                    assert_eq!(outcome.result, Ok(PAGE as u32));
                    drop(outcome);
                    let data = Data::In(reactor.arena().wait_sg(PAGE).await);
                    let outcome =
                        lunar_core::io::submit(&*store, Io { op: Op::Read, offset, data }, &mut completion).await;
                    let bytes: Sg = outcome.data.into_in().share();
                    assert!(bytes.to_vec().iter().all(|byte| *byte == number as u8 ^ round));
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            reactor.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn many_threads_answer_one_core_and_no_answer_is_lost() {
    each(async |reactor| {
        const EACH: usize = 2000;
        let workers: Vec<_> = (0..4).map(|_| worker()).collect();
        let mut completions: Vec<Completion> = (0..4).map(|_| Completion::new()).collect();
        for round in 0..EACH {
            for (completion, worker) in completions.iter_mut().zip(&workers) {
                let token = reactor.remote(completion.token(), Data::None).expect("room");
                let answer = move || {
                    (0..round % 500).for_each(|_| std::hint::spin_loop());
                    token.complete(Ok(round as u32));
                };
                worker.send(Box::new(answer)).expect("the thread runs");
            }
            for completion in &completions {
                assert_eq!(completion.wait().await.result, Ok(round as u32));
            }
        }
    });
}

#[test]
fn a_core_that_ends_first_aborts_its_requests_and_waits_for_the_memory() {
    for driver in [Choice::IoUring, Choice::Epoll] {
        let reactor = reactor(driver);
        let arena = reactor.arena().clone();
        let mut completion = Completion::new();
        let mut tokens = Vec::new();
        for _ in 0..10 {
            let data = Data::In(pieces(&arena, &[PAGE, PAGE]));
            tokens.push(reactor.remote(completion.token(), data).expect("room"));
        }
        let clone = reactor.clone();
        let thread = std::thread::spawn(move || {
            for mut token in tokens {
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(token.write(PAGE - 1, &[1; PAGE]), PAGE);
                token.complete(Ok(0));
            }
        });
        drop(reactor);
        assert_eq!(completion.take().map(|outcome| outcome.result), Some(Err(Fault::Aborted)));
        assert_eq!(arena.used(), 0, "it waited for all tokens");
        thread.join().expect("no panic");
        assert!(clone.remote(completion.token(), Data::None).is_none(), "the core has ended");
        assert_eq!(completion.take().map(|outcome| outcome.result), Some(Err(Fault::Aborted)));
    }
}

#[test]
fn memory_of_a_request_that_is_never_answered_is_not_freed_with_the_core() {
    let reactor = reactor(Choice::Epoll);
    let arena = reactor.arena().clone();
    let mut completion = Completion::new();
    let mut token = reactor.remote(completion.token(), Data::In(pieces(&arena, &[PAGE]))).expect("room");
    drop(reactor);
    assert_eq!(arena.used(), PAGE);
    drop(arena);
    let late = std::thread::spawn(move || {
        assert_eq!(token.write(0, &[1; PAGE]), PAGE, "the memory is still there");
        token.complete(Ok(0));
    });
    late.join().expect("an answer that comes too late is harmless");
}
