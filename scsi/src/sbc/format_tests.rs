use crate::command::Status;
use crate::other_core::two_cores;
use crate::testing::{Ended, Rig};
use lunar_core::io::{Fault, Op, Traits};
use lunar_unit::MediumState;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

fn written(rig: &Rig) {
    rig.memory.bytes.borrow_mut().fill(7);
}

fn overwrite(rig: &Rig, flags: u8, header: u8, pattern: &[u8]) -> Ended {
    let [high, low] = u16::try_from(pattern.len()).expect("short").to_be_bytes();
    let list = [&[header, 0, high, low], pattern].concat();
    let [high, low] = u16::try_from(list.len()).expect("short").to_be_bytes();
    rig.run(&[0x48, flags | 1, 0, 0, 0, 0, 0, high, low, 0], &list, 0)
}

fn erase(rig: &Rig, flags: u8) -> Ended {
    rig.run(&[0x48, flags | 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0)
}

fn exit(rig: &Rig) -> Ended {
    rig.run(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0)
}

fn ready(rig: &Rig) -> Ended {
    rig.run(&[0; 6], &[], 0)
}

fn code(ended: &Ended) -> [u8; 3] {
    assert_eq!(ended.status, Status::CHECK_CONDITION);
    [ended.sense[2], ended.sense[12], ended.sense[13]]
}

#[test]
fn a_formatted_unit_contains_zeroes() {
    let formats: [(&[u8], &[u8]); 4] = [
        (&[4, 0, 0, 0, 0, 0], &[]),
        (&[4, 0x10, 0, 0, 0, 0], &[0, 0xf2, 0, 0]),
        (&[4, 0x1f, 0, 0, 0, 0], &[0, 0, 0, 0]),
        (&[4, 0x30, 0, 0, 0, 0], &[0, 0x82, 0, 0, 0, 0, 0, 0]),
    ];
    for (cdb, list) in formats {
        let rig = Rig::default();
        written(&rig);
        assert_eq!(rig.run(cdb, list, 0).status, Status::GOOD);
        assert!(rig.memory.bytes.borrow().iter().all(|byte| *byte == 0));
        assert_eq!(rig.memory.asked.take(), [Op::Zero { len: 1 << 20, unmap: true }, Op::Flush]);
        assert_eq!(ready(&rig).status, Status::GOOD);
    }
    let thick = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
    assert_eq!(thick.run(&[4, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
    assert_eq!(thick.memory.asked.take()[0], Op::Zero { len: 1 << 20, unmap: false });
}

#[test]
fn a_format_that_is_not_supported_is_refused() {
    let rig = Rig::default();
    let refused = |cdb: &[u8], list: &[u8]| {
        let ended = rig.run(cdb, list, 0);
        (ended.sense[12], ended.sense[15], ended.sense[17])
    };
    assert_eq!(refused(&[4, 0x50, 0, 0, 0, 0], &[0; 4]), (0x24, 0xcf, 1), "FMTPINFO");
    let short: [u8; 6] = [4, 0x10, 0, 0, 0, 0];
    assert_eq!(refused(&short, &[0; 3]).0, 0x1a);
    assert_eq!(refused(&short, &[1, 0, 0, 0]), (0x26, 0x8a, 0));
    assert_eq!(refused(&short, &[0, 0x40, 0, 0]), (0x26, 0x8e, 1), "DPRY without FOV");
    assert_eq!(refused(&short, &[0, 0x88, 0, 0]), (0x26, 0x8b, 1), "IP");
    assert_eq!(refused(&short, &[0, 0, 0, 4]), (0x26, 0x80, 2));
    let long: [u8; 6] = [4, 0x30, 0, 0, 0, 0];
    assert_eq!(refused(&long, &[0, 0, 0, 0, 0, 0, 0, 8]), (0x26, 0x80, 4));
    assert_eq!(refused(&long, &[0, 0, 0, 1, 0, 0, 0, 0]), (0x26, 0x80, 3));
    assert_eq!(rig.memory.asked.take(), []);
}

#[test]
fn an_overwrite_repeats_its_pattern_and_inverts_it() {
    let rig = Rig::default();
    assert_eq!(overwrite(&rig, 0x20, 1, &[1, 2, 3, 4, 5]).status, Status::GOOD);
    let block: Vec<u8> = (0..512).map(|at| (at % 5) as u8 + 1).collect();
    assert!(rig.memory.bytes.borrow().chunks(512).all(|bytes| bytes == block));
    rig.memory.asked.take();
    assert_eq!(overwrite(&rig, 0, 0x82, &[0x0f; 512]).status, Status::GOOD);
    assert!(rig.memory.bytes.borrow().iter().all(|byte| *byte == 0xf0));
    let flushes = rig.memory.asked.take().iter().filter(|op| **op == Op::Flush).count();
    assert_eq!(flushes, 2, "each pass reaches the medium");
    assert_eq!(overwrite(&rig, 0, 1, &[0; 4]).status, Status::GOOD);
    assert!(rig.memory.asked.take().contains(&Op::Write { durable: false }), "zeroes are written too");
}

#[test]
fn an_overwrite_that_makes_no_sense_is_refused() {
    let rig = Rig::default();
    for (header, pattern) in [(0, &[1; 4][..]), (1, &[]), (1, &[1; 513]), (0x21, &[1; 4])] {
        assert_eq!(overwrite(&rig, 0, header, pattern).sense[12..], [0x24, 0, 0, 0xc0, 0, 7]);
    }
    let odd = rig.run(&[0x48, 1, 0, 0, 0, 0, 0, 0, 8, 0], &[1, 0, 0, 5, 0, 0, 0, 0], 0);
    assert_eq!(odd.sense[12], 0x24);
    let less = rig.run(&[0x48, 1, 0, 0, 0, 0, 0, 0, 9, 0], &[1, 0, 0, 5, 0, 0, 0, 0], 0);
    assert_eq!(less.sense[12], 0x1a);
    assert_eq!(rig.run(&[0x48, 3, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).sense[12], 0x24, "CRYPTOGRAPHIC ERASE");
    let thick = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
    assert_eq!(code(&erase(&thick, 0)), [5, 0x20, 0]);
    assert_eq!(rig.memory.asked.take(), []);
}

#[test]
fn a_failed_rewrite_is_reported_until_one_succeeds() {
    let rig = Rig::default();
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(code(&rig.run(&[4, 0, 0, 0, 0, 0], &[], 0)), [3, 0x31, 1]);
    assert_eq!(code(&ready(&rig)), [3, 0x31, 1]);
    assert_eq!(rig.run(&[3, 0, 0, 0, 18, 0], &[], 18).data[12..14], [0x31, 1]);
    assert_eq!(rig.run(&[4, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
    assert_eq!(ready(&rig).status, Status::GOOD);
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(code(&erase(&rig, 0)), [3, 0x31, 3]);
    assert_eq!(code(&rig.run(&[4, 0, 0, 0, 0, 0], &[], 0)), [3, 0x31, 3], "a format is refused");
    assert_eq!(code(&exit(&rig)), [5, 0x24, 0]);
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(code(&erase(&rig, 0x20)), [3, 0x31, 3]);
    assert_eq!(exit(&rig).status, Status::GOOD);
    assert_eq!(ready(&rig).status, Status::GOOD);
    assert_eq!(exit(&rig).status, Status::GOOD, "there is no failed sanitize");
}

#[test]
fn a_failure_is_not_exited_while_a_rewrite_is_in_progress() {
    let rig = Rig::default();
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(code(&erase(&rig, 0x20)), [3, 0x31, 3]);
    let work = rig.nexus.itl(0).expect("LUN exists").lu.shared.begin_activity();
    assert_eq!(code(&exit(&rig)), [2, 4, 0x1b]);
    assert_eq!(code(&ready(&rig)), [3, 0x31, 3]);
    drop(work);
    assert_eq!(exit(&rig).status, Status::GOOD);
}

#[test]
fn a_command_that_was_admitted_before_a_rewrite_is_cleared() {
    for work in [|rig: &Rig| erase(rig, 0), |rig: &Rig| rig.run(&[4, 0, 0, 0, 0, 0], &[], 0)] {
        let rig = Rig::default();
        let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
        let before = lunar_core::unit::Admitted::to(&unit);
        assert_eq!(work(&rig).status, Status::GOOD);
        assert_eq!(before.check(), Err(Fault::Cleared));
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Rewrites of this rig run when the test says so.
fn in_background(rig: &Rig) -> Rc<RefCell<Vec<Task>>> {
    let tasks: Rc<RefCell<Vec<Task>>> = Rc::default();
    let queue = tasks.clone();
    rig.units.run_in_background(Rc::new(move |mut task: Task| {
        // A reactor runs a new task until it waits.
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            queue.borrow_mut().push(task);
        }
    }));
    tasks
}

fn run_to_end(tasks: &RefCell<Vec<Task>>) {
    let mut work = tasks.borrow_mut().pop().expect("a rewrite is in progress");
    while work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {}
}

#[test]
fn few_commands_are_admitted_during_a_rewrite() {
    let rig = Rig::default();
    let tasks = in_background(&rig);
    let immediate = overwrite(&rig, 0x80, 2, &[9; 512]);
    assert_eq!(immediate.status, Status::GOOD);
    let refused = ready(&rig);
    assert_eq!(code(&refused), [2, 4, 0x1b]);
    assert_eq!(refused.sense[15..], [0x80, 0x80, 0], "half of it is done");
    assert_eq!(rig.run(&[3, 0, 0, 0, 18, 0], &[], 18).data[12..], [4, 0x1b, 0, 0x80, 0x80, 0]);
    assert_eq!(rig.run(&[0x12, 0, 0, 0, 36, 0], &[], 36).status, Status::GOOD);
    for cdb in [&[4, 0, 0, 0, 0, 0][..], &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
        assert_eq!(code(&rig.run(cdb, &[], 512)), [2, 4, 0x1b]);
    }
    let itl = rig.nexus.itl(0).expect("LUN exists");
    crate::testing::at_once(rig.target.task_management(
        &rig.nexus,
        crate::TaskFunction::LOGICAL_UNIT_RESET,
        crate::Lun::from_number(0),
        0,
    ));
    assert_eq!(itl.lu.of_test().medium(), MediumState::Sanitizing { can_exit: false }, "a reset does not end it");
    run_to_end(&tasks);
    assert_eq!(itl.lu.of_test().medium(), MediumState::Ready);
    assert!(rig.memory.bytes.borrow().iter().all(|byte| *byte == 9));
}

#[test]
fn an_abort_ends_the_command_and_not_the_rewrite() {
    let rig = Rc::new(Rig::default());
    let tasks: Rc<RefCell<Vec<Task>>> = Rc::default();
    let (queue, aborted) = (tasks.clone(), Rc::downgrade(&rig));
    rig.units.run_in_background(Rc::new(move |work| {
        queue.borrow_mut().push(work);
        aborted.upgrade().expect("it is there").aborted.set(true);
    }));
    written(&rig);
    assert_eq!(rig.run(&[4, 0, 0, 0, 0, 0], &[], 0).status, Status::TASK_ABORTED);
    rig.aborted.set(false);
    assert_eq!(rig.memory.asked.take(), []);
    run_to_end(&tasks);
    assert!(rig.memory.bytes.borrow().iter().all(|byte| *byte == 0));
    assert_eq!(ready(&rig).status, Status::GOOD);
}

#[test]
fn all_cores_refuse_commands_while_one_rewrites() {
    let [here, there] = two_cores(&Rig::traits());
    let tasks = in_background(&here);
    assert_eq!(overwrite(&here, 0x80, 2, &[9; 512]).status, Status::GOOD);
    assert_eq!([code(&ready(&here)), code(&ready(&there))], [[2, 4, 0x1b]; 2]);
    assert_eq!(code(&erase(&there, 0)), [2, 4, 0x1b], "one rewrite at a time, on any core");
    run_to_end(&tasks);
    assert_eq!([ready(&here).status, ready(&there).status], [Status::GOOD; 2]);
}
