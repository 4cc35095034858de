//! The worker threads alone, with tasks that block until the test releases them.

use super::*;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};

const PATIENCE: Duration = Duration::from_secs(10);

/// A bell that counts.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Bell for Counter {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task of several parts. Each part takes one permit, and blocks until the test gives one.
struct Parts {
    left: usize,
    permits: Receiver<()>,
    begun: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Answer(Result<u32, Fault>);

impl From<Fault> for Answer {
    fn from(fault: Fault) -> Self {
        Self(Err(fault))
    }
}

impl Task for Parts {
    type Answer = Answer;

    fn step(&mut self) -> Option<Answer> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.permits.recv_timeout(PATIENCE).expect("the test gives permits or ends");
        self.left -= 1;
        (self.left == 0).then_some(Answer(Ok(0)))
    }
}

struct Bench {
    workers: Workers<Parts>,
    bell: Arc<Counter>,
    begun: Arc<AtomicUsize>,
    permits: Vec<Sender<()>>,
}

const SMALL: Limits =
    Limits { threads: 4, threads_per_device: 2, waiting_per_device: 3, idle: Duration::from_millis(20) };

impl Bench {
    fn new(limits: Limits) -> Self {
        let bell = Arc::new(Counter::default());
        let workers = Workers::new(bell.clone(), limits);
        Self { workers, bell, begun: Arc::default(), permits: Vec::new() }
    }

    /// Gives a task; its key is the number of tasks before it.
    fn give(&mut self, device: Device, parts: usize) -> Result<(), Fault> {
        let (sender, permits) = channel();
        let key = self.permits.len() as u32;
        self.permits.push(sender);
        let task = Parts { left: parts, permits, begun: self.begun.clone() };
        self.workers.give(device, device as u32, key, task)
    }

    fn allow(&self, key: usize) {
        self.permits[key].send(()).expect("the task lives");
    }

    fn wait_begun(&self, count: usize) {
        wait_until(|| self.begun.load(Ordering::SeqCst) >= count);
        assert_eq!(self.begun.load(Ordering::SeqCst), count);
    }

    /// The next answers, `count` of them, by key.
    fn answers(&self, count: usize) -> Vec<(u32, Result<u32, Fault>)> {
        let mut answers = Vec::new();
        wait_until(|| {
            answers.extend(self.workers.answers().into_iter().map(|(key, answer)| (key, answer.0)));
            answers.len() >= count
        });
        answers.sort_unstable_by_key(|(key, _)| *key);
        answers
    }

    fn threads(&self) -> usize {
        lock(&self.workers.shared.queues).threads
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Long enough for any wrong behaviour to happen.
fn pause() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn a_device_that_hangs_delays_only_its_own_tasks() {
    let mut bench = Bench::new(Limits { waiting_per_device: 4, ..SMALL });
    for _ in 0..4 {
        bench.give(1, 1).expect("room");
    }
    bench.wait_begun(2);
    bench.give(2, 1).expect("room");
    bench.wait_begun(3);
    bench.allow(4);
    assert_eq!(bench.answers(1), [(4, Ok(0))]);
    pause();
    assert_eq!(bench.begun.load(Ordering::SeqCst), 3, "two threads work for one device at most");
    (0..4).for_each(|key| bench.allow(key));
    assert_eq!(bench.answers(4), [(0, Ok(0)), (1, Ok(0)), (2, Ok(0)), (3, Ok(0))]);
}

#[test]
fn a_burst_of_tasks_of_one_device_gets_several_threads() {
    let mut bench = Bench::new(SMALL);
    (0..2).for_each(|_| bench.give(1, 1).expect("room"));
    bench.wait_begun(2);
    (0..2).for_each(|key| bench.allow(key));
    bench.answers(2);
}

#[test]
fn the_last_threads_are_not_given_to_devices_that_have_one() {
    let mut bench = Bench::new(SMALL);
    for device in 1..=3 {
        (0..2).for_each(|_| bench.give(device, 1).expect("room"));
        pause();
    }
    // Two for the first device, then one for each.
    bench.wait_begun(4);
    (0..6).for_each(|key| bench.allow(key));
    assert_eq!(bench.answers(6).len(), 6);
}

#[test]
fn at_the_bound_devices_share_the_threads_that_come_free() {
    let mut bench = Bench::new(Limits { threads: 1, ..SMALL });
    bench.give(1, 3).expect("room");
    bench.wait_begun(1);
    bench.give(2, 1).expect("room");
    bench.give(3, 1).expect("room");
    pause();
    assert_eq!((bench.begun.load(Ordering::SeqCst), bench.threads()), (1, 1));
    bench.allow(0);
    bench.wait_begun(2);
    bench.allow(1);
    assert_eq!(bench.answers(1), [(1, Ok(0))], "the second device came before the second part of the first");
    bench.wait_begun(3);
    bench.allow(2);
    assert_eq!(bench.answers(1), [(2, Ok(0))]);
    (0..2).for_each(|_| bench.allow(0));
    assert_eq!(bench.answers(1), [(0, Ok(0))]);
}

#[test]
fn a_long_task_lets_others_of_its_device_pass_between_its_parts() {
    let mut bench = Bench::new(Limits { threads_per_device: 1, ..SMALL });
    bench.give(1, 100).expect("room");
    bench.wait_begun(1);
    bench.give(1, 1).expect("room");
    bench.allow(1);
    bench.allow(0);
    assert_eq!(bench.answers(1), [(1, Ok(0))]);
    (0..99).for_each(|_| bench.allow(0));
    assert_eq!(bench.answers(1), [(0, Ok(0))]);
}

#[test]
fn a_full_queue_refuses_and_other_devices_go_on() {
    let mut bench = Bench::new(SMALL);
    for _ in 0..5 {
        bench.give(1, 1).expect("room");
        pause();
    }
    assert_eq!(bench.give(1, 1), Err(Fault::NoMemory));
    assert_eq!(bench.give(2, 1), Ok(()));
    [0, 1, 2, 3, 4, 6].into_iter().for_each(|key| bench.allow(key));
    assert_eq!(bench.answers(6).len(), 6);
}

#[test]
fn a_cancelled_task_ends_after_its_part_and_one_that_waits_at_once() {
    let mut bench = Bench::new(Limits { threads_per_device: 1, ..SMALL });
    bench.give(1, 100).expect("room");
    bench.wait_begun(1);
    bench.give(1, 1).expect("room");
    bench.give(2, 2).expect("room");
    bench.wait_begun(2);
    assert_eq!(bench.workers.cancel(1), [1]);
    bench.allow(0);
    assert_eq!(bench.answers(1), [(0, Err(Fault::Aborted))]);
    (0..2).for_each(|_| bench.allow(2));
    assert_eq!(bench.answers(1), [(2, Ok(0))], "the task of another file goes on");
}

#[test]
fn threads_end_when_they_are_idle_and_start_again() {
    let mut bench = Bench::new(SMALL);
    for round in 0..2 {
        bench.give(1, 1).expect("room");
        bench.allow(round);
        assert_eq!(bench.answers(1).len(), 1);
        wait_until(|| bench.threads() == 0);
        assert!(lock(&bench.workers.shared.queues).devices.is_empty(), "no queue is left behind");
    }
}

#[test]
fn the_end_waits_for_tasks_that_run_and_names_those_that_hang() {
    let mut bench = Bench::new(SMALL);
    for device in 1..=2 {
        bench.give(device, 100).expect("room");
    }
    bench.wait_begun(2);
    (0..3).for_each(|_| bench.give(1, 1).expect("room"));
    let permit = bench.permits.remove(0);
    let later = std::thread::spawn(move || {
        pause();
        permit.send(()).expect("the task lives");
    });
    assert_eq!(bench.workers.end(Duration::from_millis(200)), [1]);
    later.join().expect("sent");
    assert_eq!(bench.give(3, 1), Err(Fault::Aborted));
    assert!(bench.workers.answers().is_empty());
    bench.permits[0].send(()).expect("the task lives");
    wait_until(|| bench.threads() == 0);
}

#[test]
fn an_answer_rings_the_bell_of_a_core_that_sleeps_only() {
    let mut bench = Bench::new(SMALL);
    for round in 0..2 {
        let is_asleep = round == 1;
        assert!(!is_asleep || bench.workers.prepare_sleep());
        bench.give(1, 1).expect("room");
        bench.allow(round);
        wait_until(|| bench.workers.has_answers());
        wait_until(|| !is_asleep || bench.bell.0.load(Ordering::SeqCst) == 1);
        assert_eq!(bench.bell.0.load(Ordering::SeqCst), round);
        assert!(is_asleep || !bench.workers.prepare_sleep(), "an answer is there");
        bench.workers.end_sleep();
        bench.answers(1);
    }
}
