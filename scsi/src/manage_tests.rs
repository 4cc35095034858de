use crate::fuzzing::{Memory, Rig, at_once};
use crate::lu::{Change, ModeValues, Stamp};
use crate::lun::Lun;
use crate::sense::Asc;
use crate::target::{Everywhere, Mail};
use crate::task::{Task, TaskFunction, TaskResponse};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

const DONE: TaskResponse = TaskResponse::Complete;
const FOUND: TaskResponse = TaskResponse::Succeeded([0; 3]);

fn lun(number: u16) -> Lun {
    Lun::from_number(number)
}

/// A rig with a second disk at LUN 1.
fn rig() -> Rig {
    let rig = Rig::default();
    rig.target.add_unit(1, Rig::unit(1, Rig::traits(), Rc::new(Memory::default())));
    clear(&rig);
    rig
}

fn clear(rig: &Rig) {
    for nexus in rig.target.nexuses() {
        nexus.each(|itl| while itl.take_attention().is_some() {});
    }
}

fn managed(rig: &Rig, function: TaskFunction, lun: Lun, tag: u64) -> TaskResponse {
    at_once(rig.target.task_management(&rig.nexus, function, lun, tag))
}

/// Runs a function that waits for a task: it must wait, and end when the task is gone.
fn waits(rig: &Rig, function: TaskFunction, lun: Lun, tag: u64, task: Task) {
    let mut future = Box::pin(rig.target.task_management(&rig.nexus, function, lun, tag));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending(), "{function:?} waits");
    assert!(task.aborted());
    drop(task);
    assert_eq!(at_once(future), DONE);
}

#[test]
fn abort_task_ends_one_and_waits_for_it() {
    let rig = rig();
    let (task, other) = (rig.nexus.tasks.enter((7, lun(0))), rig.nexus.tasks.enter((8, lun(0))));
    assert_eq!(managed(&rig, TaskFunction::ABORT_TASK, lun(0), 9), TaskResponse::NoTask);
    assert_eq!(managed(&rig, TaskFunction::ABORT_TASK, lun(1), 7), TaskResponse::NoTask);
    assert_eq!(managed(&rig, TaskFunction::QUERY_TASK, lun(0), 7), FOUND);
    // The same number in another form of address.
    waits(&rig, TaskFunction::ABORT_TASK, Lun([0x40, 0, 0, 0, 0, 0, 0, 0]), 7, task);
    assert_eq!(managed(&rig, TaskFunction::QUERY_TASK, lun(0), 7), DONE);
    assert!(!other.aborted());
    assert_eq!((rig.stats().tasks_aborted.get(), rig.stats().task_management.get()), (1, 5));
}

#[test]
fn task_sets_are_a_nexus_s_own() {
    for function in [TaskFunction::ABORT_TASK_SET, TaskFunction::CLEAR_TASK_SET] {
        let rig = rig();
        let nexus = rig.target.nexus(Rig::name("b"));
        let (foreign, elsewhere) = (nexus.tasks.enter((1, lun(0))), rig.nexus.tasks.enter((2, lun(1))));
        let task = rig.nexus.tasks.enter((1, lun(0)));
        assert_eq!(managed(&rig, TaskFunction::QUERY_TASK_SET, lun(0), 0), FOUND);
        waits(&rig, function, lun(0), 0, task);
        assert!(!foreign.aborted() && !elsewhere.aborted());
        assert_eq!(managed(&rig, TaskFunction::QUERY_TASK_SET, lun(0), 0), DONE);
        assert_eq!(managed(&rig, function, lun(5), 0), TaskResponse::IncorrectLun);
    }
}

#[test]
fn a_logical_unit_reset_ends_everybodys_tasks_and_tells_everybody() {
    let rig = rig();
    let nexus = rig.target.nexus(Rig::name("b"));
    clear(&rig);
    let values = ModeValues { descriptor_sense: true, write_protect: true, ..ModeValues::default() };
    at_once(rig.target.change(Some(&rig.nexus), 0, Change::Mode { values, save: false }));
    clear(&rig);
    let elsewhere = nexus.tasks.enter((2, lun(1)));
    waits(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0, nexus.tasks.enter((1, lun(0))));
    assert!(!elsewhere.aborted());
    for nexus in [&rig.nexus, &nexus] {
        let attention = |lun| nexus.itl(lun).expect("there").attention().map(|(asc, _)| asc);
        assert_eq!((attention(0), attention(1)), (Some(Asc::BUS_DEVICE_RESET), None));
    }
    let lu = rig.target.unit(0).expect("there");
    assert_eq!(lu.mode(), crate::mode::default_values(&lu.unit));
}

#[test]
fn target_resets_reach_every_unit() {
    for function in [TaskFunction::TARGET_WARM_RESET, TaskFunction::TARGET_COLD_RESET] {
        let rig = rig();
        let nexus = rig.target.nexus(Rig::name("b"));
        clear(&rig);
        waits(&rig, function, lun(0), 0, nexus.tasks.enter((1, lun(1))));
        nexus.each(|itl| assert_eq!(itl.attention(), Some((Asc::BUS_DEVICE_RESET, 1))));
    }
}

#[test]
fn a_nexus_reset_is_its_own() {
    let rig = rig();
    let nexus = rig.target.nexus(Rig::name("b"));
    clear(&rig);
    let foreign = nexus.tasks.enter((1, lun(1)));
    waits(&rig, TaskFunction::I_T_NEXUS_RESET, lun(0), 0, rig.nexus.tasks.enter((1, lun(1))));
    assert!(!foreign.aborted());
    rig.nexus.each(|itl| assert_eq!(itl.attention(), Some((Asc::I_T_NEXUS_LOSS, 1))));
    nexus.each(|itl| assert_eq!(itl.attention(), None));
}

#[test]
fn queries_of_events() {
    let rig = rig();
    let query = || managed(&rig, TaskFunction::QUERY_ASYNC_EVENT, lun(0), 0);
    assert_eq!(query(), DONE);
    let itl = rig.nexus.itl(0).expect("there");
    itl.attend(Asc::CAPACITY_DATA_CHANGED);
    assert_eq!(query(), TaskResponse::Succeeded([0x16, 0x2a, 0x09]));
    itl.attend(Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(query(), TaskResponse::Succeeded([0x26, 0x2a, 0x09]));
    for function in [TaskFunction::CLEAR_ACA, TaskFunction::TASK_REASSIGN, TaskFunction(99)] {
        assert_eq!(managed(&rig, function, lun(0), 0), TaskResponse::Rejected);
    }
}

/// Other cores that note what they are told.
#[derive(Default)]
struct Noted(RefCell<Vec<Mail>>);

struct Notes(Rc<Noted>);

impl Everywhere for Notes {
    fn broadcast(&self, mail: Mail) -> Pin<Box<dyn Future<Output = ()>>> {
        self.0.0.borrow_mut().push(mail);
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn other_cores_are_told_before_the_answer() {
    let noted = Rc::new(Noted::default());
    let rig = Rig::with(Rig::traits(), Rc::new(Notes(noted.clone())));
    let far = Rig::default();
    let far_nexus = far.target.nexus(Rig::name("c"));
    clear(&far);
    rig.run(&[0x1b, 0, 0, 0, 0, 0], &[], 0);
    managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
    managed(&rig, TaskFunction::TARGET_WARM_RESET, lun(0), 0);
    let stamp = |count| Stamp { count, core: 0 };
    let mails = noted.0.take();
    assert_eq!(
        mails,
        [
            Mail::Change { lun: 0, change: Change::Stopped(true), stamp: stamp(1) },
            Mail::Change { lun: 0, change: Change::Reset, stamp: stamp(2) },
            Mail::TargetReset { luns: [0].into(), stamp: stamp(3) },
        ]
    );
    let lu = far.target.unit(0).expect("there");
    at_once(far.target.deliver(mails[0].clone()));
    assert!(lu.stopped());
    at_once(far.target.deliver(mails[1].clone()));
    assert!(!lu.stopped());
    far_nexus.each(|itl| assert_eq!(itl.attention(), Some((Asc::BUS_DEVICE_RESET, 1))));
    at_once(far.target.deliver(Mail::UnitAttention { lun: 0, asc: Asc::CAPACITY_DATA_CHANGED }));
    far_nexus.each(|itl| assert_eq!(itl.attention(), Some((Asc::BUS_DEVICE_RESET, 2))));
}

#[test]
fn changes_made_at_once_end_alike_on_all_cores() {
    let on = |core| Stamp { count: 1, core };
    let values = |write_protect| Change::Mode {
        values: ModeValues { write_cache: true, write_protect, ..ModeValues::default() },
        save: false,
    };
    let mails = [(values(true), on(0)), (values(false), on(1))];
    for order in [[0, 1], [1, 0]] {
        let rig = Rig::default();
        for (change, stamp) in order.map(|at| mails[at].clone()) {
            at_once(rig.target.deliver(Mail::Change { lun: 0, change, stamp }));
        }
        assert!(!rig.target.unit(0).expect("there").write_protected());
        assert!(rig.target.stamp() > on(1));
    }
}

#[test]
fn changes_of_different_things_do_not_stand_in_each_other_s_way() {
    let on = |core| Stamp { count: 1, core };
    let mails = [(Change::Stopped(true), on(0)), (Change::Clock(7), on(1))];
    for order in [[0, 1], [1, 0]] {
        let rig = Rig::default();
        for (change, stamp) in order.map(|at| mails[at].clone()) {
            at_once(rig.target.deliver(Mail::Change { lun: 0, change, stamp }));
        }
        let lu = rig.target.unit(0).expect("there");
        assert_eq!((lu.stopped(), lu.clock()), (true, Some(7)));
    }
}

#[test]
fn the_inventory_and_the_capacity_may_change() {
    let rig = rig();
    let nexus = rig.target.nexus(Rig::name("b"));
    assert_eq!(nexus.itl(0).expect("there").attention(), Some((Asc::POWER_ON_OR_RESET, 1)));
    clear(&rig);
    let smaller = lunar_core::io::Traits { size: 1 << 19, ..Rig::traits() };
    rig.target.add_unit(0, Rig::unit(0, smaller.clone(), Rc::new(Memory::default())));
    let attention = |lun| nexus.itl(lun).expect("there").attention().map(|(asc, _)| asc);
    assert_eq!((attention(0), attention(1)), (Some(Asc::CAPACITY_DATA_CHANGED), None));
    rig.target.remove_unit(0);
    assert!(nexus.itl(0).is_none());
    assert_eq!(attention(1), Some(Asc::REPORTED_LUNS_DATA_CHANGED));
    rig.target.add_unit(0, Rig::unit(2, smaller, Rc::new(Memory::default())));
    assert_eq!(attention(0), Some(Asc::POWER_ON_OR_RESET));
}

#[test]
fn a_nexus_that_closes_leaves_nothing_behind() {
    let rig = rig();
    let nexus = rig.target.nexus(Rig::name("b"));
    let task = nexus.tasks.enter((1, lun(0)));
    let mut closing = Box::pin(rig.target.close(&nexus));
    assert!(closing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(task);
    at_once(closing);
    assert!(nexus.tasks.is_empty());
    drop(nexus);
    assert_eq!(rig.target.nexuses().len(), 1);
}

/// Who loses a LUN gets to finish what runs there: a reset of the unit ends it all the same.
#[test]
fn a_reset_ends_what_runs_where_the_unit_was_seen_before() {
    let rig = rig();
    let name: std::sync::Arc<str> = "g".into();
    let map = |unit| crate::LunMap::new([(5, crate::Mapping { unit, read_only: false })]).expect("a map");
    at_once(rig.target.set_map(&name, map(1), std::future::ready(())));
    let nexus = rig.target.nexus_behind(Rig::name("b"), &name);
    assert!(nexus.itl(5).is_some());
    let (before, elsewhere) = (nexus.tasks.enter((1, lun(5))), nexus.tasks.enter((2, lun(6))));
    let mut cx = Context::from_waker(Waker::noop());
    let mut changing = Box::pin(rig.target.set_map(&name, map(0), std::future::pending()));
    assert!(changing.as_mut().poll(&mut cx).is_pending());
    let after = nexus.tasks.enter((3, lun(5)));
    waits(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(1), 0, before);
    assert!(!elsewhere.aborted() && !after.aborted());
    assert!(changing.as_mut().poll(&mut cx).is_ready());
    assert_eq!(managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(1), 0), DONE);
    assert!(!after.aborted());
    waits(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0, after);
}

/// Initiators that asked while there was no cache do not flush: it does not come back under them.
#[test]
fn a_cache_comes_back_only_if_it_is_asked_for() {
    let rig = rig();
    let with = |write_cache, read_only| {
        let traits = lunar_core::io::Traits { write_cache, read_only, ..Rig::traits() };
        rig.target.add_unit(0, Rig::unit(0, traits, rig.memory.clone()));
        let attention = rig.nexus.itl(0).expect("there").take_attention().map(|sense| sense.asc);
        (attention, rig.target.unit(0).expect("there").mode().write_cache)
    };
    let told = Some(Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(with(true, false), (None, true));
    assert_eq!(with(false, false), (told, true), "who flushes in vain does no harm");
    managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
    clear(&rig);
    assert_eq!(with(true, false), (told, false));
    managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
    clear(&rig);
    assert!(!rig.target.unit(0).expect("there").mode().write_cache);
    assert_eq!(with(true, true).0, told);
}

/// What was written before a reset switches the cache off is on the medium.
#[test]
fn a_reset_that_switches_the_cache_off_flushes() {
    let rig = rig();
    let off = ModeValues { write_cache: false, ..rig.target.unit(0).expect("there").mode() };
    at_once(rig.target.change(Some(&rig.nexus), 0, Change::Mode { values: off, save: true }));
    let on = ModeValues { write_cache: true, ..off };
    at_once(rig.target.change(Some(&rig.nexus), 0, Change::Mode { values: on, save: false }));
    for expected in [&[lunar_core::io::Op::Flush][..], &[]] {
        managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
        assert_eq!(rig.memory.asked.take(), expected);
    }
}
