use crate::change::{Change, ModeValues, ScsiChange};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::other_core::{Notes, two_cores, two_cores_of};
use crate::sense::Asc;
use crate::task::{Task, TaskFunction, TaskResponse};
use crate::testing::{Memory, Rig, at_once};
use lunar_unit::{Record, UnitChange, UnitMessage};
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

/// Sets mode parameters for the rig's own nexus.
fn set_mode(rig: &Rig, values: ModeValues, is_saved: bool) {
    let unit = rig.target.unit(0).expect("LUN exists").of_test().unit.clone();
    let record = is_saved.then(|| {
        Record::required(crate::pages::mode::KEPT_AS, crate::pages::mode::to_keep(crate::sbc::table::DISK.mode, values))
    });
    let change = ScsiChange { change: Change::Mode(values), record };
    at_once(rig.units.propose(&unit, Some(&rig.nexus.name), change.into())).expect("saved");
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
fn abort_task_aborts_one_task_and_waits_for_it() {
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
fn a_task_set_belongs_to_one_nexus() {
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
fn a_logical_unit_reset_aborts_the_tasks_of_all_nexuses_and_tells_them() {
    let rig = rig();
    let nexus = rig.target.nexus(Rig::name("b"));
    clear(&rig);
    let values = ModeValues { descriptor_sense: true, write_protect: true, ..ModeValues::default() };
    set_mode(&rig, values, false);
    clear(&rig);
    let elsewhere = nexus.tasks.enter((2, lun(1)));
    waits(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0, nexus.tasks.enter((1, lun(0))));
    assert!(!elsewhere.aborted());
    for nexus in [&rig.nexus, &nexus] {
        let attention = |lun| nexus.itl(lun).expect("LUN exists").attention().map(|(asc, _)| asc);
        assert_eq!((attention(0), attention(1)), (Some(Asc::BUS_DEVICE_RESET), None));
    }
    let lu = rig.target.unit(0).expect("LUN exists");
    assert_eq!(lu.of_test().mode(), ModeValues::default_of(&lu.of_test().unit));
}

#[test]
fn a_target_reset_resets_every_unit_that_its_nexus_sees() {
    for function in [TaskFunction::TARGET_WARM_RESET, TaskFunction::TARGET_COLD_RESET] {
        let rig = rig();
        let nexus = rig.target.nexus(Rig::name("b"));
        clear(&rig);
        waits(&rig, function, lun(0), 0, nexus.tasks.enter((1, lun(1))));
        nexus.each(|itl| assert_eq!(itl.attention(), Some((Asc::BUS_DEVICE_RESET, 1))));
    }
}

#[test]
fn a_nexus_reset_affects_no_other_nexus() {
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
fn query_async_event_reports_the_next_condition() {
    let rig = rig();
    let query = || managed(&rig, TaskFunction::QUERY_ASYNC_EVENT, lun(0), 0);
    assert_eq!(query(), DONE);
    let itl = rig.nexus.itl(0).expect("LUN exists");
    itl.establish_unit_attention(Asc::CAPACITY_DATA_CHANGED);
    assert_eq!(query(), TaskResponse::Succeeded([0x16, 0x2a, 0x09]));
    itl.establish_unit_attention(Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(query(), TaskResponse::Succeeded([0x26, 0x2a, 0x09]));
    for function in [TaskFunction::CLEAR_ACA, TaskFunction::TASK_REASSIGN, TaskFunction(99)] {
        assert_eq!(managed(&rig, function, lun(0), 0), TaskResponse::Rejected);
    }
}

#[test]
fn other_cores_are_notified_before_the_answer() {
    let notes = Rc::new(Notes::default());
    let rig = Rig::with(Rig::traits(), notes.clone());
    let far = Rig::default();
    let far_nexus = far.target.nexus(Rig::name("c"));
    clear(&far);
    rig.run(&[0x1b, 0, 0, 0, 0, 0], &[], 0);
    managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
    managed(&rig, TaskFunction::TARGET_WARM_RESET, lun(0), 0);
    let messages = notes.0.take();
    let told = |message: &UnitMessage| match message {
        UnitMessage::Changed(change) => (true, change.proposal.change.clone()),
        UnitMessage::Aborted(change) => (false, change.proposal.change.clone()),
    };
    let told: Vec<_> = messages.iter().map(told).collect();
    let stopped = &told[0].1;
    let reset = |is_change| (is_change, UnitChange::LogicalUnitReset);
    assert!(matches!(stopped, UnitChange::CommandSet(change) if change.get::<ScsiChange>().is_some()));
    assert_eq!(told[1..], [reset(true), reset(false), reset(true), reset(false)]);
    let lu = far.target.unit(0).expect("LUN exists");
    at_once(far.units.deliver(messages[0].clone()));
    assert!(lu.of_test().is_stopped());
    at_once(far.units.deliver(messages[1].clone()));
    assert!(!lu.of_test().is_stopped());
    far_nexus.each(|itl| assert_eq!(itl.attention(), Some((Asc::BUS_DEVICE_RESET, 1))));
}

#[test]
fn a_reset_waits_for_the_tasks_of_all_cores() {
    let [here, there] = two_cores(&Rig::traits());
    let mut resetting = Box::pin(here.target.task_management(&here.nexus, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0));
    let (near, far) = (here.nexus.tasks.enter((1, lun(0))), there.nexus.tasks.enter((1, lun(0))));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(resetting.as_mut().poll(&mut cx).is_pending());
    assert!(near.aborted() && far.aborted(), "all are marked before the first one is waited for");
    for rig in [&here, &there] {
        rig.nexus.each(|itl| assert_eq!(itl.attention(), Some((Asc::BUS_DEVICE_RESET, 1))));
    }
    let later = there.nexus.tasks.enter((2, lun(0)));
    drop(near);
    assert!(resetting.as_mut().poll(&mut cx).is_pending());
    drop(far);
    assert!(resetting.as_mut().poll(&mut cx).is_ready());
    assert!(!later.aborted(), "a task that comes after the reset is not aborted by it");
}

/// A proposal of mode parameters on one core, and of others on another core at the same time.
#[test]
fn changes_made_at_once_end_alike_on_all_cores() {
    let values = |write_protect| ModeValues { write_cache: true, write_protect, ..ModeValues::default() };
    for order in [[true, false], [false, true]] {
        let (rigs, ways) = two_cores_of(|way, shared| Rig::sharing(Rig::traits(), way, shared));
        ways[0].is_asleep.set(true);
        let mut changes: Vec<_> = std::iter::zip(&rigs, order)
            .map(|(rig, write_protect)| {
                let unit = rig.target.unit(0).expect("LUN exists").of_test().unit.clone();
                let change = ScsiChange { change: Change::Mode(values(write_protect)), record: None };
                Box::pin(async move { rig.units.propose(&unit, None, change.into()).await })
            })
            .collect();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(changes.iter_mut().all(|change| change.as_mut().poll(&mut cx).is_pending()));
        ways[0].is_asleep.set(false);
        for change in &mut changes {
            assert!(at_once(change).is_ok());
        }
        let protected = rigs.each_ref().map(|rig| rig.target.unit(0).expect("LUN exists").write_protected());
        assert_eq!(protected, [order[1]; 2], "the later one is in force");
    }
}

#[test]
fn changes_of_different_parameters_are_independent() {
    let [here, there] = two_cores(&Rig::traits());
    let change = |rig: &Rig, change| {
        let unit = rig.target.unit(0).expect("LUN exists").of_test().unit.clone();
        at_once(rig.units.propose(&unit, None, ScsiChange { change, record: None }.into())).expect("never refused");
    };
    change(&here, Change::Stopped(true));
    change(&there, Change::Clock(7));
    for rig in [&here, &there] {
        let lu = rig.target.unit(0).expect("LUN exists");
        assert_eq!((lu.of_test().is_stopped(), lu.of_test().clock()), (true, Some(7)));
    }
}

#[test]
fn the_nexus_that_makes_a_change_is_not_notified() {
    let [here, there] = two_cores(&Rig::traits());
    let others = [&here, &there].map(|rig| rig.target.nexus(Rig::name("b")));
    [&here, &there].into_iter().for_each(clear);
    set_mode(&here, ModeValues { write_cache: true, descriptor_sense: true, ..ModeValues::default() }, false);
    let told = |nexus: &Rc<Nexus>| nexus.itl(0).expect("LUN exists").attention().map(|(asc, _)| asc);
    assert_eq!((told(&here.nexus), others.each_ref().map(told)), (None, [Some(Asc::MODE_PARAMETERS_CHANGED); 2]));
}

#[test]
fn nexuses_are_notified_of_a_changed_inventory_or_capacity() {
    let rig = rig();
    let nexus = rig.target.nexus(Rig::name("b"));
    assert_eq!(nexus.itl(0).expect("LUN exists").attention(), Some((Asc::POWER_ON_OR_RESET, 1)));
    clear(&rig);
    let smaller = lunar_core::io::Traits { size: 1 << 19, ..Rig::traits() };
    rig.target.add_unit(0, Rig::unit(0, smaller.clone(), Rc::new(Memory::default())));
    let attention = |lun| nexus.itl(lun).expect("LUN exists").attention().map(|(asc, _)| asc);
    assert_eq!((attention(0), attention(1)), (Some(Asc::CAPACITY_DATA_CHANGED), None));
    rig.target.remove_unit(0);
    assert!(nexus.itl(0).is_none());
    assert_eq!(attention(1), Some(Asc::REPORTED_LUNS_DATA_CHANGED));
    rig.target.add_unit(0, Rig::unit(2, smaller, Rc::new(Memory::default())));
    assert_eq!(attention(0), Some(Asc::POWER_ON_OR_RESET));
}

#[test]
fn a_nexus_closes_when_its_tasks_have_ended() {
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

/// Tasks at a LUN that names another unit now may end as usual; a reset of their unit aborts them all the same.
#[test]
fn a_reset_aborts_tasks_at_luns_that_named_the_unit_before() {
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

/// Initiators that asked while there was no write cache do not flush, so a reset does not enable it.
#[test]
fn a_write_cache_is_enabled_again_only_on_request() {
    let rig = rig();
    let with = |write_cache, read_only| {
        let traits = lunar_core::io::Traits { write_cache, read_only, ..Rig::traits() };
        rig.target.add_unit(0, Rig::unit(0, traits, rig.memory.clone()));
        let attention = rig.nexus.itl(0).expect("LUN exists").take_attention().map(|sense| sense.asc);
        (attention, rig.target.unit(0).expect("LUN exists").of_test().mode().write_cache)
    };
    let told = Some(Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(with(true, false), (None, true));
    assert_eq!(with(false, false), (told, true), "a superfluous flush is harmless");
    managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
    clear(&rig);
    assert_eq!(with(true, false), (told, false));
    managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
    clear(&rig);
    assert!(!rig.target.unit(0).expect("LUN exists").of_test().mode().write_cache);
    assert_eq!(with(true, true).0, told);
}

#[test]
fn a_reset_that_disables_the_write_cache_flushes() {
    let rig = rig();
    let off = ModeValues { write_cache: false, ..rig.target.unit(0).expect("LUN exists").of_test().mode() };
    set_mode(&rig, off, true);
    let on = ModeValues { write_cache: true, ..off };
    set_mode(&rig, on, false);
    for expected in [&[lunar_core::io::Op::Flush][..], &[]] {
        managed(&rig, TaskFunction::LOGICAL_UNIT_RESET, lun(0), 0);
        assert_eq!(rig.memory.asked.take(), expected);
    }
}
