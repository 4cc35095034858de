use crate::command::Status;
use crate::testing::{BLOCK, Ended, Rig};
use lunar_core::io::{Fault, Op};
use lunar_core::mem::Arena;
use lunar_core::metadata::{MetadataStore, Saving, VolatileMemory};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A process that can crash. Its rewrites run when the test says so, one turn at a time.
struct Process {
    rig: Rig,
    tasks: Rc<RefCell<Vec<Task>>>,
}

impl Process {
    fn start(keep: &Arc<dyn MetadataStore>) -> Self {
        let rig = Rig::keeping(keep.clone());
        let tasks: Rc<RefCell<Vec<Task>>> = Rc::default();
        let queue = tasks.clone();
        rig.units.run_in_background(Rc::new(move |work: Task| queue.borrow_mut().push(work)));
        Self { rig, tasks }
    }

    /// Runs a rewrite for this number of turns; returns whether it continues.
    fn turns(&self, count: usize) -> bool {
        let Some(mut work) = self.tasks.borrow_mut().pop() else { return false };
        let is_over = (0..count).any(|_| work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        if !is_over {
            self.tasks.borrow_mut().push(work);
        }
        !is_over
    }

    fn resume(&self) {
        self.rig.units.resume(&Arena::new(4 << 20));
    }

    fn ready(&self) -> (Status, [u8; 3]) {
        code(&self.rig.run(&[0; 6], &[], 0))
    }
}

/// The status of a command, and its sense key, code and qualifier.
fn code(ended: &Ended) -> (Status, [u8; 3]) {
    match ended.status {
        Status::CHECK_CONDITION => (ended.status, [ended.sense[2], ended.sense[12], ended.sense[13]]),
        status => (status, [0; 3]),
    }
}

/// Begins a rewrite, and runs it for this number of turns.
fn begins(process: &Process, cdb: &[u8], list: &[u8], turns: usize) {
    let queue = process.tasks.clone();
    process.rig.units.run_in_background(Rc::new(move |mut work: Task| {
        let is_over = (0..turns).any(|_| work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(!is_over, "it continues");
        queue.borrow_mut().push(work);
    }));
    assert_eq!(process.rig.run(cdb, list, 0).status, Status::GOOD);
}

const OVERWRITE_THRICE: ([u8; 10], [u8; 6]) = ([0x48, 0x81, 0, 0, 0, 0, 0, 0, 6, 0], [0x83, 0, 0, 2, 5, 6]);
const FORMAT: ([u8; 6], [u8; 4]) = ([4, 0x10, 0, 0, 0, 0], [0, 2, 0, 0]);
const GOOD: (Status, [u8; 3]) = (Status::GOOD, [0; 3]);

fn volatile() -> Arc<dyn MetadataStore> {
    Arc::new(VolatileMemory::default())
}

#[test]
fn a_sanitize_continues_after_a_crash() {
    for turns in [1, 2, 3] {
        let keep = volatile();
        let killed = Process::start(&keep);
        begins(&killed, &OVERWRITE_THRICE.0, &OVERWRITE_THRICE.1, turns);
        drop(killed);
        let next = Process::start(&keep);
        assert_eq!(next.ready(), (Status::CHECK_CONDITION, [2, 4, 0x1b]));
        next.resume();
        assert_eq!(next.ready().1, [2, 4, 0x1b], "it is in progress again");
        assert_eq!(code(&next.rig.run(&FORMAT.0, &FORMAT.1, 0)).1, [2, 4, 0x1b]);
        assert!(!next.turns(9));
        assert_eq!(next.ready(), GOOD);
        let block: Vec<u8> = [5, 6].into_iter().cycle().take(BLOCK as usize).collect();
        assert!(next.rig.memory.bytes.borrow().chunks(BLOCK as usize).all(|bytes| bytes == block), "the third pass");
        let flushes = next.rig.memory.asked.take().iter().filter(|op| **op == Op::Flush).count();
        assert_eq!(flushes, 4 - turns, "passes that are done are not done again");
        let last = Process::start(&keep);
        last.resume();
        assert_eq!((last.ready(), last.tasks.borrow().len()), (GOOD, 0));
    }
}

#[test]
fn a_format_that_crashed_is_reported_until_one_succeeds() {
    let keep = volatile();
    let killed = Process::start(&keep);
    begins(&killed, &FORMAT.0, &FORMAT.1, 1);
    drop(killed);
    for _ in 0..2 {
        let next = Process::start(&keep);
        next.resume();
        assert_eq!(next.ready().1, [3, 0x31, 0], "a format is not resumed");
        assert_eq!(code(&next.rig.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512)).1, [3, 0x31, 0]);
        assert_eq!(next.rig.run(&[3, 0, 0, 0, 18, 0], &[], 18).data[12..14], [0x31, 0]);
    }
    let next = Process::start(&keep);
    begins(&next, &FORMAT.0, &FORMAT.1, 1);
    assert!(!next.turns(9));
    assert_eq!(next.ready(), GOOD);
    assert_eq!(Process::start(&keep).ready(), GOOD);
}

#[test]
fn a_failed_rewrite_is_known_after_a_restart() {
    for (cdb, list, sense, exits) in [
        (&[4, 0, 0, 0, 0, 0][..], &[][..], [3, 0x31, 1], false),
        (&[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], [3, 0x31, 3], false),
        (&[0x48, 0x22, 0, 0, 0, 0, 0, 0, 0, 0], &[], [3, 0x31, 3], true),
    ] {
        let keep = volatile();
        let rig = Rig::keeping(keep.clone());
        rig.memory.fault.set(Some(Fault::Medium));
        assert_eq!(code(&rig.run(cdb, list, 0)).1, sense);
        let next = Process::start(&keep);
        next.resume();
        assert_eq!(next.ready().1, sense);
        let left = next.rig.run(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status == Status::GOOD;
        assert_eq!(left && sense[2] == 3, exits);
        assert_eq!(Process::start(&keep).ready() == GOOD, exits, "AUSE is durable, too");
    }
}

/// Saves records until the test stops it.
#[derive(Default)]
struct Broken(VolatileMemory, AtomicBool);

impl MetadataStore for Broken {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        match self.1.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(Fault::Medium))),
            false => self.0.save(name, bytes),
        }
    }

    fn is_durable(&self) -> bool {
        true
    }
}

#[test]
fn a_rewrite_whose_record_cannot_be_saved_does_not_begin_and_does_not_succeed() {
    let broken = Arc::new(Broken::default());
    let keep: Arc<dyn MetadataStore> = broken.clone();
    let process = Process::start(&keep);
    process.rig.memory.bytes.borrow_mut().fill(7);
    let inline = Rig::keeping(keep.clone());
    broken.1.store(true, Ordering::Relaxed);
    assert_eq!(code(&inline.run(&[4, 0, 0, 0, 0, 0], &[], 0)).1, [4, 0x44, 0]);
    assert_eq!(inline.memory.asked.take(), []);
    assert_eq!(inline.run(&[0; 6], &[], 0).status, Status::GOOD);
    broken.1.store(false, Ordering::Relaxed);
    begins(&process, &[0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0], &[], 1);
    broken.1.store(true, Ordering::Relaxed);
    assert!(!process.turns(9));
    assert_eq!(process.ready().1, [3, 0x31, 3]);
    let next = Process::start(&keep);
    assert_eq!(next.ready().1, [2, 4, 0x1b], "its end is not known");
}
