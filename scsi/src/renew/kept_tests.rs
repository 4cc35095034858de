use super::*;
use crate::command::Status;
use crate::fuzzing::{BLOCK, Ended, Rig, at_once};
use crate::lu::MediumState;
use lunar_core::io::{Fault, Op, Traits};
use lunar_core::keep::{Forgetful, Keep};
use lunar_core::medium::Content;
use lunar_core::mem::Arena;
use proptest::prelude::*;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A process that can be killed: its background work runs when it is told to, one turn at a time.
struct Process {
    rig: Rig,
    tasks: Rc<RefCell<Vec<Task>>>,
}

impl Process {
    fn start(keep: &Arc<dyn Keep>) -> Self {
        let rig = Rig::keeping(keep.clone());
        let tasks: Rc<RefCell<Vec<Task>>> = Rc::default();
        let queue = tasks.clone();
        rig.target.run_in_background(Rc::new(move |work: Task| queue.borrow_mut().push(work)));
        Self { rig, tasks }
    }

    /// So many turns of the work; whether there is more to do.
    fn turns(&self, count: usize) -> bool {
        let Some(mut work) = self.tasks.borrow_mut().pop() else { return false };
        let is_over = (0..count).any(|_| work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        if !is_over {
            self.tasks.borrow_mut().push(work);
        }
        !is_over
    }

    fn resume(&self) {
        self.rig.target.resume(&Arena::new(4 << 20));
    }

    fn ready(&self) -> (Status, [u8; 3]) {
        code(&self.rig.run(&[0; 6], &[], 0))
    }
}

/// What a command that is not waited for has to say.
fn code(ended: &Ended) -> (Status, [u8; 3]) {
    match ended.status {
        Status::CHECK_CONDITION => (ended.status, [ended.sense[2], ended.sense[12], ended.sense[13]]),
        status => (status, [0; 3]),
    }
}

/// Has a process begin it, and do so many turns of it.
fn begins(process: &Process, cdb: &[u8], list: &[u8], turns: usize) {
    let queue = process.tasks.clone();
    process.rig.target.run_in_background(Rc::new(move |mut work: Task| {
        let is_over = (0..turns).any(|_| work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(!is_over, "it is still under way");
        queue.borrow_mut().push(work);
    }));
    assert_eq!(process.rig.run(cdb, list, 0).status, Status::GOOD);
}

const OVERWRITE_THRICE: ([u8; 10], [u8; 6]) = ([0x48, 0x81, 0, 0, 0, 0, 0, 0, 6, 0], [0x83, 0, 0, 2, 5, 6]);
const FORMAT: ([u8; 6], [u8; 4]) = ([4, 0x10, 0, 0, 0, 0], [0, 2, 0, 0]);
const GOOD: (Status, [u8; 3]) = (Status::GOOD, [0; 3]);

fn forgetful() -> Arc<dyn Keep> {
    Arc::new(Forgetful::default())
}

#[test]
fn sanitize_goes_on_after_a_kill() {
    for turns in [1, 2, 3] {
        let keep = forgetful();
        let killed = Process::start(&keep);
        begins(&killed, &OVERWRITE_THRICE.0, &OVERWRITE_THRICE.1, turns);
        drop(killed);
        let next = Process::start(&keep);
        assert_eq!(next.ready(), (Status::CHECK_CONDITION, [2, 4, 0x1b]));
        next.resume();
        assert_eq!(next.ready().1, [2, 4, 0x1b], "it is under way again");
        assert_eq!(code(&next.rig.run(&FORMAT.0, &FORMAT.1, 0)).1, [2, 4, 0x1b]);
        assert!(!next.turns(9));
        assert_eq!(next.ready(), GOOD);
        let block: Vec<u8> = [5, 6].into_iter().cycle().take(BLOCK as usize).collect();
        assert!(next.rig.memory.bytes.borrow().chunks(BLOCK as usize).all(|bytes| bytes == block), "the third pass");
        let flushes = next.rig.memory.asked.take().iter().filter(|op| **op == Op::Flush).count();
        assert_eq!(flushes, 4 - turns, "passes that were done are not done again");
        let last = Process::start(&keep);
        last.resume();
        assert_eq!((last.ready(), last.tasks.borrow().len()), (GOOD, 0));
    }
}

#[test]
fn a_format_that_was_killed_says_so_until_another_one_went_well() {
    let keep = forgetful();
    let killed = Process::start(&keep);
    begins(&killed, &FORMAT.0, &FORMAT.1, 1);
    drop(killed);
    for _ in 0..2 {
        let next = Process::start(&keep);
        next.resume();
        assert_eq!(next.ready().1, [3, 0x31, 0], "nobody goes on with it");
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
fn what_failed_is_known_after_a_restart() {
    for (cdb, list, sense, exits) in [
        (&[4, 0, 0, 0, 0, 0][..], &[][..], [3, 0x31, 1], false),
        (&[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], [3, 0x31, 3], false),
        (&[0x48, 0x22, 0, 0, 0, 0, 0, 0, 0, 0], &[], [3, 0x31, 3], true),
    ] {
        let keep = forgetful();
        let rig = Rig::keeping(keep.clone());
        rig.memory.fault.set(Some(Fault::Medium));
        assert_eq!(code(&rig.run(cdb, list, 0)).1, sense);
        let next = Process::start(&keep);
        next.resume();
        assert_eq!(next.ready().1, sense);
        let left = next.rig.run(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status == Status::GOOD;
        assert_eq!(left && sense[2] == 3, exits);
        assert_eq!(Process::start(&keep).ready() == GOOD, exits, "the way out is kept, too");
    }
}

/// Keeps, until it is told not to.
#[derive(Default)]
struct Broken(Forgetful, AtomicBool);

impl Keep for Broken {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.load(name)
    }

    fn keep(&self, name: &'static str, bytes: Vec<u8>) -> Keeping {
        match self.1.load(Ordering::Relaxed) {
            true => Box::pin(std::future::ready(Err(Fault::Medium))),
            false => self.0.keep(name, bytes),
        }
    }

    fn outlives(&self) -> bool {
        true
    }
}

#[test]
fn what_cannot_be_kept_is_not_begun_and_not_called_done() {
    let broken = Arc::new(Broken::default());
    let keep: Arc<dyn Keep> = broken.clone();
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
    assert_eq!(next.ready().1, [2, 4, 0x1b], "it was not done as far as anybody knows");
}

#[test]
fn a_disk_that_may_not_be_written_goes_on_with_nothing() {
    let keep = forgetful();
    let renewal = Renewal {
        during: MediumState::Sanitizing,
        failed: MediumState::SanitizeFailed { exits: true },
        protection: None,
        passes: vec![Pass { pattern: vec![1; 512], unmap: false }, Pass { pattern: vec![], unmap: true }],
        immediate: true,
    };
    let unit = |read_only| {
        let mut unit = Rig::unit(0, Traits { read_only, ..Rig::traits() }, Rc::default());
        Rc::get_mut(&mut unit).expect("nobody else has it").keep = keep.clone();
        unit
    };
    at_once(under_way(&unit(false), &renewal, &renewal.passes)).expect("memory");
    assert_eq!(load(&unit(false)), Kept { state: MediumState::Sanitizing, unfinished: Some(renewal.clone()) });
    assert_eq!(load(&unit(true)), Kept::settled(renewal.failed));
}

proptest! {
    #[test]
    fn what_is_not_understood_is_a_sanitize_that_failed(bytes in proptest::collection::vec(any::<u8>(), 1..40)) {
        let kept = parse(&bytes);
        let is_known = bytes[0] == VERSION && matches!(bytes.get(1), Some(FORMATTING..=SANITIZE_FAILED_EXITS));
        prop_assert!(is_known || kept.is_none());
        let unit = Rig::unit(0, Rig::traits(), Rc::default());
        at_once(unit.keep.keep(KEPT_AS, bytes)).expect("memory");
        prop_assert!(load(&unit).state != MediumState::Ready);
    }
}

#[test]
fn what_another_command_set_formats_is_kept_as_well() {
    let keep = forgetful();
    for (state, after, content) in [
        (MediumState::Formatting, MediumState::FormatCorrupted, Content::Unformatted),
        (MediumState::FormatFailed, MediumState::FormatFailed, Content::Unformatted),
        (MediumState::Ready, MediumState::Ready, Content::Whole),
    ] {
        let before = Process::start(&keep);
        at_once(before.rig.target.keep_format(0, state)).expect("memory keeps");
        let lu = Process::start(&keep).rig.target.unit(0).expect("there");
        assert_eq!((lu.medium(), lu.unit.medium.content()), (after, content));
    }
    assert_eq!(at_once(Process::start(&keep).rig.target.keep_format(9, MediumState::Ready)), Err(Fault::Gone));
}
