use super::*;
use crate::command::Status;
use crate::lun::Lun;
use crate::medium::MediaEvent;
use crate::other_core::two_cores_of;
use crate::task::{TaskFunction, TaskResponse};
use crate::testing::{Memory, Rig, at_once};
use lunar_core::io::{Fault, Op};
use lunar_core::medium::MediumKind;
use lunar_core::unit::UnitId;
use std::cell::RefCell;
use std::rc::Rc;

const READY: [u8; 6] = [0; 6];
const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];
/// The unit of a rig.
const UNIT: UnitId = UnitId(0);
const KINDS: [MediumKind; 2] = [MediumKind::Removable, MediumKind::Optical];

/// GOOD, or the sense key, code and qualifier.
type SenseCodes = Option<(u8, u8, u8)>;
const TRAY_OPEN: SenseCodes = Some((2, 0x3a, 2));
const TRAY_CLOSED: SenseCodes = Some((2, 0x3a, 1));
const NO_MEDIUM: SenseCodes = Some((2, 0x3a, 0));
const PREVENTED: SenseCodes = Some((5, 0x53, 2));
const CHANGED: SenseCodes = Some((6, 0x28, 0));

fn run_as(rig: &Rig, nexus: &Rc<Nexus>, cdb: &[u8]) -> SenseCodes {
    let ended = rig.run_as(nexus, cdb, &[], 0);
    (ended.status != Status::GOOD).then(|| (ended.sense[2], ended.sense[12], ended.sense[13]))
}

fn run(rig: &Rig, cdb: &[u8]) -> SenseCodes {
    run_as(rig, &rig.nexus, cdb)
}

/// Another nexus, which has taken its POWER ON unit attention condition.
fn other(rig: &Rig) -> Rc<Nexus> {
    let nexus = rig.target.nexus(Rig::name("other"));
    nexus.each(|itl| while itl.take_attention().is_some() {});
    nexus
}

#[test]
fn a_client_ejects_and_loads() {
    for kind in KINDS {
        let rig = Rig::of(kind);
        let other = other(&rig);
        assert_eq!(run(&rig, &LOAD), None, "it is loaded");
        assert_eq!(run(&rig, &EJECT), None);
        assert_eq!(run(&rig, &READY), TRAY_OPEN);
        assert_eq!(rig.run(&[3, 0, 0, 0, 18, 0], &[], 18).data[12..14], [0x3a, 2], "REQUEST SENSE");
        assert_eq!(run(&rig, &START), TRAY_OPEN);
        assert_eq!([run(&rig, &STOP), run(&rig, &EJECT), run(&rig, &LOAD)], [None; 3]);
        assert_eq!(run(&rig, &READY), None, "the nexus that loaded it is not notified");
        assert_eq!([run_as(&rig, &other, &READY), run_as(&rig, &other, &READY)], [CHANGED, None]);
    }
}

#[test]
fn a_stop_does_not_stop_removable_media() {
    let rig = Rig::of(MediumKind::Removable);
    assert_eq!(run(&rig, &STOP), None);
    assert_eq!(rig.memory.asked.take(), [Op::Flush]);
    assert_eq!(run(&rig, &READY), None);
    assert_eq!(run(&rig, &[0x1b, 0, 0, 0, 4, 0]), None, "NO_FLUSH");
    // LOEJ has no meaning with a power condition.
    for power in 1..16 {
        assert_eq!([run(&rig, &[0x1b, 0, 0, 0, power << 4 | 2, 0]), run(&rig, &READY)], [None; 2]);
    }
    assert_eq!(rig.memory.asked.take(), []);
    assert_eq!(run(&Rig::default(), &EJECT), Some((5, 0x24, 0)), "a fixed disk");
}

#[test]
fn an_eject_flushes_the_write_cache() {
    let rig = Rig::of(MediumKind::Removable);
    assert_eq!(run(&rig, &EJECT), None);
    assert_eq!(rig.memory.asked.take(), [Op::Flush]);
    assert_eq!(run(&rig, &LOAD), None);
    rig.memory.fault.set(Some(Fault::Medium));
    assert!(run(&rig, &EJECT).is_some());
    assert_eq!(run(&rig, &READY), None, "a medium that cannot be flushed stays loaded");
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(at_once(rig.units.eject(UNIT, false)), Err(Stuck::Store(Fault::Medium)));
    let cd = Rig::of(MediumKind::Optical);
    assert_eq!(run(&cd, &EJECT), None);
    assert_eq!(cd.memory.asked.take(), [], "there is no data to write");
}

#[test]
fn removal_is_prevented_until_all_clients_allow_it() {
    for kind in KINDS {
        let rig = Rig::of(kind);
        let other = other(&rig);
        assert_eq!([run(&rig, &PREVENT), run_as(&rig, &other, &PREVENT), run(&rig, &ALLOW)], [None; 3]);
        assert_eq!([run(&rig, &EJECT), run_as(&rig, &other, &EJECT), run(&rig, &READY)], [PREVENTED, PREVENTED, None]);
        assert_eq!([run(&rig, &LOAD), run_as(&rig, &other, &ALLOW), run(&rig, &EJECT)], [None; 3]);
        assert_eq!([run(&rig, &PREVENT), run(&rig, &LOAD), run(&rig, &ALLOW)], [None, PREVENTED, None]);
        assert_eq!(run(&rig, &LOAD), None);
    }
    let fixed = Rig::default();
    assert_eq!(run(&fixed, &PREVENT), None);
    assert!(!fixed.nexus.itl(0).expect("LUN exists").lu.shared.state().is_removal_prevented());
}

#[test]
fn a_lost_nexus_and_a_reset_end_the_prevention_of_removal() {
    let managed =
        |rig: &Rig, function| at_once(rig.target.task_management(&rig.nexus, function, Lun::from_number(0), 0));
    for function in [
        TaskFunction::LOGICAL_UNIT_RESET,
        TaskFunction::TARGET_WARM_RESET,
        TaskFunction::TARGET_COLD_RESET,
        TaskFunction::I_T_NEXUS_RESET,
    ] {
        let rig = Rig::of(MediumKind::Removable);
        assert_eq!(run(&rig, &PREVENT), None);
        assert_eq!(managed(&rig, function), TaskResponse::Complete);
        rig.nexus.each(|itl| while itl.take_attention().is_some() {});
        assert_eq!(run(&rig, &EJECT), None, "{function:?}");
        assert_eq!(managed(&rig, TaskFunction::LOGICAL_UNIT_RESET), TaskResponse::Complete);
        assert_eq!(run(&rig, &READY).map(|told| told.0), Some(6));
        assert_eq!(run(&rig, &READY), TRAY_OPEN, "a reset moves no medium");
    }
    let rig = Rig::of(MediumKind::Removable);
    let other = other(&rig);
    assert_eq!(run_as(&rig, &other, &PREVENT), None);
    at_once(rig.target.close(&other));
    assert_eq!(run(&rig, &EJECT), None);
}

#[test]
fn a_reset_is_reported_to_the_other_nexus_before_removal_is_refused() {
    // SAM-5 5.14: the condition is established for every I_T nexus, and is reported by the first command of each.
    let rig = Rig::of(MediumKind::Removable);
    let other = other(&rig);
    let reset = rig.target.task_management(&rig.nexus, TaskFunction::LOGICAL_UNIT_RESET, Lun::from_number(0), 0);
    assert_eq!(at_once(reset), TaskResponse::Complete);
    assert_eq!(run(&rig, &READY).map(|told| told.0), Some(6));
    assert_eq!([run(&rig, &READY), run(&rig, &PREVENT), run(&rig, &EJECT)], [None, None, PREVENTED]);
    assert_eq!(run_as(&rig, &other, &EJECT).map(|told| (told.0, told.1)), Some((6, 0x29)));
    assert_eq!(run_as(&rig, &other, &EJECT), PREVENTED);
}

#[test]
fn other_nexuses_cannot_prevent_removal_under_a_reservation() {
    let rig = Rig::of(MediumKind::Removable);
    let holder = other(&rig);
    let keys = [[0; 8], [1; 8], [0; 8]].concat();
    assert_eq!(rig.run_as(&holder, &[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &keys, 0).status, Status::GOOD);
    let keys = [[1; 8], [0; 8], [0; 8]].concat();
    assert_eq!(rig.run_as(&holder, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &keys, 0).status, Status::GOOD);
    assert_eq!(rig.run(&PREVENT, &[], 0).status, Status::RESERVATION_CONFLICT);
    assert_eq!(rig.run(&ALLOW, &[], 0).status, Status::GOOD);
    assert_eq!(run_as(&rig, &holder, &PREVENT), None);
}

#[test]
fn a_medium_that_the_operator_ejects_is_out_of_reach_of_clients() {
    for (kind, empty) in [(MediumKind::Removable, NO_MEDIUM), (MediumKind::Optical, TRAY_CLOSED)] {
        let rig = Rig::of(kind);
        let (eject, load) = (|forced| at_once(rig.units.eject(UNIT, forced)), || at_once(rig.units.load(UNIT)));
        assert_eq!(eject(false), Ok(()));
        assert_eq!(run(&rig, &READY), TRAY_OPEN);
        assert_eq!([run(&rig, &LOAD), run(&rig, &READY)], [empty; 2], "a client cannot load it");
        assert_eq!([run(&rig, &EJECT), run(&rig, &READY)], [None, TRAY_OPEN]);
        assert_eq!([load(), load()], [Ok(()), Ok(())]);
        assert_eq!([run(&rig, &READY), run(&rig, &READY)], [CHANGED, None]);
        // The operator may remove a medium that a client has ejected.
        assert_eq!(run(&rig, &EJECT), None);
        assert_eq!(eject(false), Ok(()));
        assert_eq!(run(&rig, &LOAD), empty);
        assert_eq!(load(), Ok(()));
        assert_eq!([run(&rig, &READY), run(&rig, &PREVENT)], [CHANGED, None]);
        assert_eq!(eject(false), Err(Stuck::Prevented));
        assert_eq!(run(&rig, &READY), None);
        assert_eq!(rig.nexus.itl(0).expect("LUN exists").event.get(), MediaEvent::EjectRequest);
        assert_eq!(eject(true), Ok(()));
        assert_eq!(run(&rig, &READY), TRAY_OPEN);
    }
    let fixed = Rig::default();
    assert_eq!(at_once(fixed.units.eject(UNIT, true)), Err(Stuck::Fixed));
    assert_eq!(at_once(fixed.units.load(UNIT)), Err(Stuck::Fixed));
    assert_eq!(at_once(fixed.units.eject(UnitId(7), false)), Err(Stuck::NoUnit));
}

#[test]
fn a_medium_may_be_replaced_while_it_is_removed() {
    let rig = Rig::of(MediumKind::Removable);
    assert_eq!(at_once(rig.units.eject(UNIT, false)), Ok(()));
    let traits = lunar_core::io::Traits { size: 1 << 16, ..Rig::traits() };
    let memory = Rc::new(Memory { bytes: RefCell::new(vec![5; 1 << 16]), ..Memory::default() });
    rig.target.add_unit(0, Rig::unit_of(0, MediumKind::Removable, traits, memory));
    assert_eq!(run(&rig, &READY).map(|told| told.0), Some(6));
    assert_eq!(run(&rig, &READY), TRAY_OPEN);
    assert_eq!(at_once(rig.units.load(UNIT)), Ok(()));
    assert_eq!(run(&rig, &READY), CHANGED);
    assert_eq!(rig.run(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).data, [0, 0, 0, 127, 0, 0, 2, 0]);
    assert_eq!(rig.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512).data, [5; 512]);
}

#[test]
fn a_medium_that_is_formatted_is_not_ejected() {
    let rig = Rig::of(MediumKind::Removable);
    let lu = rig.nexus.itl(0).expect("LUN exists").lu.clone();
    let work = lu.shared.begin_activity().expect("free");
    assert_eq!(at_once(rig.units.eject(UNIT, true)), Err(Stuck::Busy));
    assert_eq!(run(&rig, &EJECT), Some((2, 4, 4)));
    drop(work);
    assert_eq!(run(&rig, &EJECT), None);
}

#[test]
fn all_cores_go_by_the_position_of_a_medium() {
    let ([near, far], _) = two_cores_of(|way, shared| Rig::of_sharing(MediumKind::Optical, way, shared));
    let there = other(&far);
    let events = || [&near.nexus, &there].map(|nexus| nexus.itl(0).expect("LUN exists").event.get());
    let (run_near, run_far) = (|cdb| run(&near, cdb), |cdb| run_as(&far, &there, cdb));
    assert_eq!([run_near(&PREVENT), run_far(&EJECT), run_near(&ALLOW), run_far(&EJECT)], [None, PREVENTED, None, None]);
    assert_eq!([run_near(&READY), run_far(&READY)], [TRAY_OPEN; 2]);
    assert_eq!(events(), [MediaEvent::MediaRemoval; 2]);
    assert_eq!(run_near(&LOAD), None);
    assert_eq!([run_near(&READY), run_far(&READY), run_far(&READY)], [None, CHANGED, None]);
    assert_eq!(events(), [MediaEvent::NewMedia; 2]);
    assert_eq!(at_once(far.units.eject(UNIT, false)), Ok(()));
    assert_eq!(at_once(near.units.load(UNIT)), Ok(()));
    assert_eq!([run_near(&READY), run_far(&READY)], [CHANGED; 2]);
}
