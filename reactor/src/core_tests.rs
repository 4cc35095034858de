//! The loop itself: tasks, timers, ends of turns, mailboxes, slots. Both drivers are used, although the driver does
//! not matter.

use crate::channel::channel;
use crate::slots::{Slots, contained};
use crate::{Choice, Config, Reactor};
use lunar_core::io::Outcome;
use lunar_core::step::SlotContext;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

fn each(test: impl Fn(&Reactor)) {
    for driver in [Choice::IoUring, Choice::Epoll] {
        test(&reactor(driver));
    }
}

fn reactor(driver: Choice) -> Reactor {
    let config = Config { driver, arena_bytes: 1 << 20, ..Config::default() };
    Reactor::new(config).expect("a driver")
}

#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<u32>>>);

impl Log {
    fn add(&self, what: u32) {
        self.0.borrow_mut().push(what);
    }

    fn take(&self) -> Vec<u32> {
        self.0.take()
    }
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn run_gives_the_value_of_its_future() {
    each(|reactor| {
        assert_eq!(reactor.run(async { 7 }), 7);
        let borrowed = String::from("not static");
        assert_eq!(reactor.run(async { borrowed.len() }), 10);
    });
}

#[test]
fn tasks_stay_for_the_next_run() {
    each(|reactor| {
        let log = Log::default();
        let (other, theirs) = (reactor.clone(), log.clone());
        reactor.spawn(async move {
            theirs.add(1);
            other.sleep(Duration::from_millis(5)).await;
            theirs.add(2);
        });
        reactor.run(reactor.end_of_turn());
        assert_eq!(log.take(), [1]);
        reactor.run(reactor.sleep(Duration::from_millis(10)));
        assert_eq!(log.take(), [2]);
    });
}

#[test]
fn tasks_that_wait_for_one_end_of_turn_after_another_do_not_keep_the_driver_from_its_turn() {
    each(|reactor| {
        for _ in 0..3 {
            let other = reactor.clone();
            reactor.spawn(async move {
                loop {
                    other.end_of_turn().await;
                }
            });
        }
        reactor.run(reactor.sleep(Duration::from_millis(1)));
    });
}

#[test]
#[should_panic(expected = "once at a time")]
fn a_loop_within_the_loop_is_refused() {
    let reactor = reactor(Choice::Epoll);
    reactor.run(async { reactor.run(async {}) });
}

#[test]
fn a_panic_ends_its_task_only() {
    each(|reactor| {
        let log = Log::default();
        for i in 0..4 {
            let log = log.clone();
            reactor.spawn(async move {
                yield_once().await;
                assert!(i != 1, "task {i} fails, as the test wants");
                yield_once().await;
                log.add(i);
            });
        }
        reactor.run(reactor.sleep(Duration::from_millis(1)));
        assert_eq!(log.take(), [0, 2, 3]);
        // Its place is used again.
        for i in 4..8 {
            let log = log.clone();
            reactor.spawn(async move { log.add(i) });
        }
        reactor.run(reactor.end_of_turn());
        assert_eq!(log.take(), [4, 5, 6, 7]);
    });
}

#[test]
fn a_panic_in_a_tasks_drop_ends_nothing_else() {
    struct Fails;
    impl Drop for Fails {
        fn drop(&mut self) {
            panic!("as the test wants");
        }
    }
    each(|reactor| {
        let fails = Fails;
        reactor.spawn(poll_fn(move |_| {
            let _held = &fails;
            Poll::Ready(())
        }));
        assert_eq!(reactor.run(async { 1 }), 1);
    });
}

#[test]
fn a_panic_of_the_main_future_is_the_callers() {
    let reactor = reactor(Choice::Epoll);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        reactor.run(async { panic!("as the test wants") });
    }));
    assert!(result.is_err());
    assert_eq!(reactor.run(async { 1 }), 1);
}

#[test]
fn dropping_the_reactor_drops_tasks_that_hold_it() {
    each(|_| {
        let reactor = reactor(Choice::Epoll);
        let alive = Rc::new(());
        for _ in 0..3 {
            let (clone, alive) = (reactor.clone(), alive.clone());
            reactor.spawn(async move {
                clone.sleep(Duration::from_secs(1000)).await;
                drop(alive);
            });
        }
        reactor.run(reactor.end_of_turn());
        assert_eq!(Rc::strong_count(&alive), 4);
        drop(reactor);
        assert_eq!(Rc::strong_count(&alive), 1);
    });
}

#[test]
fn a_task_that_ends_may_spawn_as_it_drops() {
    struct Spawns(Reactor, Log);
    impl Drop for Spawns {
        fn drop(&mut self) {
            let log = self.1.clone();
            self.0.spawn(async move { log.add(1) });
        }
    }
    each(|reactor| {
        let log = Log::default();
        let spawns = Spawns(reactor.clone(), log.clone());
        reactor.spawn(async move {
            let _spawns = spawns;
            yield_once().await;
        });
        reactor.run(reactor.sleep(Duration::from_millis(1)));
        assert_eq!(log.take(), [1]);
    });
}

#[test]
fn a_waker_that_outlives_its_task_and_its_core_is_harmless() {
    let reactor = reactor(Choice::Epoll);
    let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
    let theirs = kept.clone();
    reactor.spawn(poll_fn(move |cx| {
        *theirs.borrow_mut() = Some(cx.waker().clone());
        Poll::Ready(())
    }));
    reactor.run(reactor.end_of_turn());
    let waker = kept.take().expect("kept");
    waker.wake_by_ref();
    reactor.run(reactor.end_of_turn());
    let abroad = waker.clone();
    std::thread::spawn(move || abroad.wake()).join().expect("no panic");
    reactor.run(reactor.end_of_turn());
    drop(reactor);
    waker.wake();
}

#[test]
fn two_cores_on_one_thread_wake_their_own() {
    let (first, second) = (reactor(Choice::Epoll), reactor(Choice::IoUring));
    let (sender, mut receiver) = channel::<u32>(&first);
    let log = Log::default();
    let theirs = log.clone();
    first.spawn(async move {
        while let Some(item) = receiver.recv().await {
            theirs.add(item);
        }
    });
    first.run(first.end_of_turn());
    second.run(async {
        sender.send(1);
        second.sleep(Duration::from_millis(1)).await;
        sender.send(2);
    });
    first.run(first.sleep(Duration::from_millis(1)));
    assert_eq!(log.take(), [1, 2]);
}

#[test]
fn timers_fire_in_order_and_not_early() {
    each(|reactor| {
        let log = Log::default();
        let start = reactor.now();
        for i in [5u32, 1, 3, 2, 4, 3] {
            let (reactor, log) = (reactor.clone(), log.clone());
            reactor.clone().spawn(async move {
                let at = start + Duration::from_millis(u64::from(i));
                reactor.sleep_until(at).await;
                assert!(reactor.now() >= at);
                log.add(i);
            });
        }
        reactor.run(reactor.sleep(Duration::from_millis(8)));
        assert_eq!(log.take(), [1, 2, 3, 3, 4, 5]);
        let late = reactor.now().since(start);
        assert!(late < Duration::from_secs(2), "{late:?}");
        // A time in the past is due at once.
        reactor.run(reactor.sleep_until(start));
    });
}

#[test]
fn a_timer_that_is_dropped_is_gone() {
    each(|reactor| {
        reactor.run(async {
            let mut sleep = Box::pin(reactor.sleep(Duration::from_millis(1)));
            poll_fn(|cx| {
                assert!(sleep.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(sleep);
            assert_eq!(reactor.inner.timers.next(), None);
        });
    });
}

#[test]
fn the_end_of_the_turn_comes_after_all_that_is_ready() {
    each(|reactor| {
        let log = Log::default();
        let ends = |what: u32| {
            let (reactor, log) = (reactor.clone(), log.clone());
            async move {
                reactor.end_of_turn().await;
                log.add(what);
                reactor.end_of_turn().await;
                log.add(what + 10);
            }
        };
        reactor.spawn(ends(100));
        for i in 0..3 {
            let log = log.clone();
            reactor.spawn(async move {
                for round in 0..3 {
                    log.add(round * 3 + i);
                    yield_once().await;
                }
            });
        }
        reactor.spawn(ends(101));
        reactor.run(reactor.sleep(Duration::from_millis(1)));
        assert_eq!(log.take(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 100, 101, 110, 111]);
    });
}

#[test]
fn a_task_that_is_always_ready_starves_no_other_task() {
    each(|reactor| {
        let stop = Rc::new(Cell::new(false));
        let theirs = stop.clone();
        reactor.spawn(async move {
            while !theirs.get() {
                yield_once().await;
            }
        });
        reactor.run(async {
            reactor.sleep(Duration::from_millis(2)).await;
            reactor.end_of_turn().await;
        });
        stop.set(true);
        reactor.run(reactor.end_of_turn());
    });
}

#[test]
fn a_task_that_is_always_ready_and_works_long_starves_nobody() {
    const PARTS: u32 = 400;
    each(|reactor| {
        let done = Rc::new(Cell::new(0));
        let theirs = done.clone();
        reactor.spawn(async move {
            while theirs.get() < PARTS {
                let begun = std::time::Instant::now();
                while begun.elapsed() < Duration::from_micros(500) {}
                theirs.set(theirs.get() + 1);
                yield_once().await;
            }
        });
        // Timers fire when a turn begins.
        reactor.run(reactor.sleep(Duration::from_millis(1)));
        assert!(done.get() < PARTS / 4, "{} parts of half a millisecond in a millisecond", done.get());
    });
}

#[test]
fn mail_arrives_in_order_and_ends_with_its_senders() {
    each(|reactor| {
        let (sender, mut receiver) = channel::<u32>(reactor);
        let second = sender.clone();
        let thread = std::thread::spawn(move || {
            for i in 0..1000 {
                second.send(i);
                if i % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        drop(sender);
        reactor.run(async {
            for i in 0..1000 {
                assert_eq!(receiver.recv().await, Some(i));
            }
            assert_eq!(receiver.recv().await, None);
            assert_eq!(receiver.try_recv(), None);
        });
        thread.join().expect("sent");
    });
}

#[test]
fn messages_without_a_receiver_are_dropped() {
    each(|reactor| {
        let (sender, receiver) = channel::<Arc<()>>(reactor);
        let item = Arc::new(());
        sender.send(item.clone());
        assert!(!sender.is_closed());
        drop(receiver);
        sender.send(item.clone());
        assert!(sender.is_closed());
        assert_eq!(Arc::strong_count(&item), 1);
    });
}

/// Two cores exchange messages, with pauses in which they sleep, poll, or are about to do either: a lost wake-up stops
/// the exchange.
#[test]
fn no_wake_up_is_lost() {
    for drivers in [[Choice::IoUring, Choice::IoUring], [Choice::Epoll, Choice::IoUring]] {
        const ROUNDS: u32 = 20_000;
        let here = reactor(drivers[0]);
        let (to_here, mut from_there) = channel::<u32>(&here);
        let (give, take) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let there = reactor(drivers[1]);
            let (to_there, mut from_here) = channel::<u32>(&there);
            give.send(to_there).expect("the other core waits for it");
            there.run(async {
                while let Some(ball) = from_here.recv().await {
                    pause(&there, ball.wrapping_mul(7)).await;
                    to_here.send(ball);
                }
            });
        });
        let to_there = take.recv().expect("the other core sends it");
        here.run(async {
            for ball in 0..ROUNDS {
                to_there.send(ball);
                pause(&here, ball).await;
                assert_eq!(from_there.recv().await, Some(ball));
            }
            drop(to_there);
            assert_eq!(from_there.recv().await, None);
        });
        thread.join().expect("no panic");
    }
}

async fn pause(reactor: &Reactor, seed: u32) {
    match seed % 97 {
        0 => reactor.sleep(Duration::from_micros(200)).await,
        1 => reactor.end_of_turn().await,
        2..20 => (0..seed % 1000).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

#[test]
fn many_threads_send_to_one_core() {
    each(|reactor| {
        const EACH: usize = 5000;
        let (sender, mut receiver) = channel::<usize>(reactor);
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    for i in 0..EACH {
                        sender.send(number);
                        if i % 977 == 0 {
                            std::thread::sleep(Duration::from_micros(300));
                        }
                    }
                })
            })
            .collect();
        drop(sender);
        let mut counts = [0; 4];
        reactor.run(async {
            while let Some(number) = receiver.recv().await {
                counts[number] += 1;
            }
        });
        assert_eq!(counts, [EACH; 4]);
        threads.into_iter().for_each(|thread| thread.join().expect("sent"));
    });
}

#[test]
fn slots_take_as_many_jobs_as_there_are() {
    each(|reactor| {
        let log = Log::default();
        let (theirs, other) = (log.clone(), reactor.clone());
        let slots = Slots::new(reactor, 3, async move |&job: &u32, slot: &mut SlotContext| {
            assert!(slot.arena.size() > 0);
            theirs.add(job);
            other.sleep(Duration::from_millis(1)).await;
            theirs.add(job + 10);
        });
        assert_eq!(slots.free(), 3);
        for job in 0..3 {
            assert_eq!(slots.start(job), Ok(()));
        }
        assert_eq!(slots.start(3), Err(3));
        assert_eq!(slots.free(), 0);
        reactor.run(reactor.end_of_turn());
        assert_eq!(log.take(), [0, 1, 2]);
        assert_eq!(slots.start(4), Err(4));
        reactor.run(reactor.sleep(Duration::from_millis(3)));
        assert_eq!(log.take(), [10, 11, 12]);
        assert_eq!(slots.free(), 3);
        assert_eq!(slots.start(5), Ok(()));
        reactor.run(reactor.end_of_turn());
        assert_eq!(log.take(), [5]);
    });
}

#[test]
fn a_job_starts_another_as_it_ends() {
    each(|reactor| {
        let cell: Rc<RefCell<Option<Slots<u32>>>> = Rc::default();
        let (log, theirs) = (Log::default(), cell.clone());
        let list = log.clone();
        let slots = Slots::new(reactor, 6, async move |&job: &u32, _: &mut SlotContext| {
            list.add(job);
            let slots = theirs.borrow().clone();
            if job < 5
                && let Some(slots) = slots
            {
                slots.start(job + 1).expect("a slot is free");
                yield_once().await;
            }
        });
        *cell.borrow_mut() = Some(slots.clone());
        reactor.run(reactor.end_of_turn());
        slots.start(0).expect("free");
        reactor.run(reactor.end_of_turn());
        assert_eq!((log.take(), slots.free()), (vec![0, 1, 2, 3, 4, 5], 6));
        cell.take();
    });
}

#[test]
fn a_slot_outlives_the_panic_of_its_job() {
    each(|reactor| {
        let log = Log::default();
        let theirs = log.clone();
        let slots = Slots::new(reactor, 2, async move |&job: &u32, _: &mut SlotContext| {
            yield_once().await;
            assert!(job != 0, "job 0 fails, as the test wants");
            theirs.add(job);
        });
        for round in 0..3 {
            assert_eq!(slots.start(0), Ok(()));
            assert_eq!(slots.start(round + 1), Ok(()));
            reactor.run(reactor.sleep(Duration::from_millis(1)));
            assert_eq!((log.take(), slots.free()), (vec![round + 1], 2));
        }
    });
}

#[test]
fn a_job_that_panics_keeps_its_slot_until_its_store_has_answered() {
    each(|reactor| {
        let (log, tokens) = (Log::default(), Rc::new(RefCell::new(Vec::new())));
        let (theirs, given) = (log.clone(), tokens.clone());
        let work = async move |&job: &u32, slot: &mut SlotContext| {
            let done = slot.completion.token();
            if job > 0 {
                given.borrow_mut().push(done);
            }
            yield_once().await;
            panic!("job {job} fails, as the test wants");
        };
        let slots = Slots::with_failure(reactor, 2, work, move |job| theirs.add(job));
        let pause = || reactor.run(reactor.sleep(Duration::from_millis(1)));
        for job in 0..2 {
            assert_eq!(slots.start(job), Ok(()));
        }
        pause();
        assert_eq!((log.take(), slots.free()), (vec![0], 1), "the store has answered the first one only");
        assert_eq!(slots.start(2), Ok(()));
        pause();
        assert_eq!((log.take(), slots.free()), (vec![], 0));
        for job in 1..3 {
            // The second token is dropped, which is an answer as well.
            let done = tokens.borrow_mut().remove(0);
            if job == 1 {
                done.complete(Outcome::new(Ok(0)));
            } else {
                drop(done);
            }
            pause();
            assert_eq!((log.take(), slots.free()), (vec![job], job as usize));
        }
    });
}

#[test]
fn a_panic_of_a_contained_future_does_not_end_its_task() {
    each(|reactor| {
        reactor.run(async {
            assert_eq!(contained(async { 5 }).await, Some(5));
            let failing = async {
                yield_once().await;
                panic!("as the test wants");
            };
            assert_eq!(contained::<()>(failing).await, None);
        });
    });
}

#[test]
fn wakers_of_other_runtimes_may_be_woken_by_tasks() {
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(flag.clone());
    reactor(Choice::Epoll).run(async move { waker.wake() });
    assert!(flag.0.load(Ordering::Relaxed));
}
