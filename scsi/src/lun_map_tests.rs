use super::*;
use crate::command::Status;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::sense::{Asc, SenseKey};
use crate::task::{TaskFunction, TaskResponse};
use crate::testing::{Ended, Memory, Rig, at_once};
use std::cell::RefCell;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn map(luns: &[(u16, u16, bool)]) -> LunMap {
    LunMap::new(luns.iter().map(|&(lun, unit, read_only)| (lun, Mapping { unit, read_only }))).expect("a map")
}

fn name() -> Arc<str> {
    "guests".into()
}

/// Disks 0 to 2, and a nexus with a map of them whose unit attentions were taken.
fn behind(luns: &[(u16, u16, bool)]) -> (Rig, Rc<Nexus>, Vec<Rc<Memory>>) {
    let rig = Rig::default();
    let mut memories = vec![rig.memory.clone()];
    for unit in 1..3_u16 {
        let bytes = RefCell::new(vec![unit as u8; Rig::traits().size as usize]);
        let memory = Rc::new(Memory { bytes, ..Memory::default() });
        rig.target.add_unit(unit, Rig::unit(unit.into(), Rig::traits(), memory.clone()));
        memories.push(memory);
    }
    at_once(rig.target.set_map(&name(), map(luns), ready(())));
    let nexus = rig.target.nexus_behind(Rig::name("guest"), &name());
    for nexus in [&rig.nexus, &nexus] {
        nexus.each(|itl| while itl.take_attention().is_some() {});
    }
    (rig, nexus, memories)
}

fn at(rig: &Rig, nexus: &Rc<Nexus>, lun: u16, cdb: &[u8], out: &[u8]) -> Ended {
    rig.lun.set(Lun::from_number(lun));
    rig.run_as(nexus, cdb, out, 4096)
}

fn sense(ended: &Ended) -> (SenseKey, Asc) {
    assert_eq!(ended.status, Status::CHECK_CONDITION, "{ended:?}");
    (SenseKey(ended.sense[2]), Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]])))
}

fn luns(rig: &Rig, nexus: &Rc<Nexus>) -> Vec<u8> {
    let told = at(rig, nexus, 0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0], &[]).data;
    told[8..].chunks(8).map(|lun| lun[1]).collect()
}

#[test]
fn invalid_maps_are_refused() {
    let new = |luns: &[(u16, u16)]| LunMap::new(luns.iter().map(|&(l, unit)| (l, Mapping { unit, read_only: false })));
    assert_eq!(new(&[(0, 1), (0, 2)]), Err(BadMap::Lun(0)));
    assert_eq!(new(&[(0, 1), (1, 1)]), Err(BadMap::Unit(1)));
    assert_eq!(new(&[(LUNS_MAX, 1)]), Err(BadMap::Beyond(LUNS_MAX)));
    assert_eq!(new(&[(7, 1), (3, 0)]).map(|map| map.luns().map(|(lun, _)| lun).collect()), Ok(vec![3, 7]));
}

#[test]
fn a_nexus_sees_the_luns_of_its_map_only() {
    let (rig, nexus, _) = behind(&[(0, 2, false), (5, 1, false)]);
    assert_eq!(luns(&rig, &nexus), [0, 5]);
    assert_eq!(luns(&rig, &rig.nexus), [0, 1, 2], "without a map all are seen");
    assert_eq!(at(&rig, &nexus, 0, &READ, &[]).data[..2], [2, 2]);
    assert_eq!(at(&rig, &nexus, 5, &READ, &[]).data[..2], [1, 1]);
    for lun in [1, 2, 3] {
        assert_eq!(sense(&at(&rig, &nexus, lun, &READ, &[])).1, Asc::LOGICAL_UNIT_NOT_SUPPORTED, "{lun}");
        let function = rig.target.task_management(&nexus, TaskFunction::LOGICAL_UNIT_RESET, Lun::from_number(lun), 0);
        assert_eq!(at_once(function), TaskResponse::IncorrectLun);
    }
}

#[test]
fn a_nexus_with_an_unknown_map_sees_nothing() {
    let (rig, _, _) = behind(&[(0, 0, false)]);
    let nexus = rig.target.nexus_behind(Rig::name("other"), &"unknown".into());
    assert_eq!(luns(&rig, &nexus), []);
    assert_eq!(sense(&at(&rig, &nexus, 0, &READ, &[])).1, Asc::LOGICAL_UNIT_NOT_SUPPORTED);
    assert_eq!(at(&rig, &nexus, 0, &[0x12, 0, 0, 0, 36, 0], &[]).data[0], 0x7f, "no logical unit is at LUN 0");
    rig.target.add_unit(9, Rig::unit(9, Rig::traits(), Rc::default()));
    assert_eq!(luns(&rig, &nexus), []);
}

#[test]
fn a_read_only_lun_refuses_commands_that_write() {
    let (rig, nexus, memories) = behind(&[(0, 1, true), (1, 2, false)]);
    assert_eq!(at(&rig, &nexus, 0, &READ, &[]).status, Status::GOOD);
    memories[1].asked.take();
    let block = [9; 512];
    let protected = (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    assert_eq!(sense(&at(&rig, &nexus, 0, &WRITE, &block)), protected);
    assert_eq!(sense(&at(&rig, &nexus, 0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 24])), protected, "UNMAP");
    assert_eq!(sense(&at(&rig, &nexus, 0, &[0x04, 0, 0, 0, 0, 0], &[])), protected, "FORMAT UNIT");
    assert_eq!(at(&rig, &nexus, 0, &[0x1a, 0, 0x3f, 0, 255, 0], &[]).data[2] & 0x80, 0x80, "WP");
    assert!(memories[1].asked.take().is_empty());
    assert_eq!(at(&rig, &rig.nexus, 1, &WRITE, &block).status, Status::GOOD, "others may");
    assert_eq!(at(&rig, &rig.nexus, 1, &[0x1a, 0, 0x3f, 0, 255, 0], &[]).data[2] & 0x80, 0);
    assert_eq!(at(&rig, &nexus, 1, &WRITE, &block).status, Status::GOOD);
}

/// EXTENDED COPY of four blocks from one unit of the rig to another.
fn copy(rig: &Rig, nexus: &Rc<Nexus>, lun: u16, from: u8, to: u8) -> Ended {
    let cscd = |unit: u8| {
        let mut cscd = vec![0xe4, 0, 0, 0, 0x01, 0x03, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7 + unit];
        cscd.resize(32, 0);
        cscd[30] = 2;
        cscd
    };
    let mut segment = vec![0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 4];
    segment.resize(28, 0);
    let list = [&[1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0][..], &cscd(from), &cscd(to), &segment].concat();
    let mut cdb = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[13] = u8::try_from(list.len()).expect("short");
    at(rig, nexus, lun, &cdb, &list)
}

#[test]
fn copies_reach_only_units_of_the_map() {
    let (rig, nexus, memories) = behind(&[(0, 1, false), (1, 2, true)]);
    memories.iter().for_each(|memory| drop(memory.asked.take()));
    assert_eq!(copy(&rig, &nexus, 0, 2, 1).status, Status::GOOD, "from a read-only LUN to another");
    assert_eq!(memories[1].bytes.borrow()[..4], [2; 4]);
    assert_eq!(sense(&copy(&rig, &nexus, 0, 1, 2)), (SenseKey::COPY_ABORTED, Asc::WRITE_PROTECTED));
    memories.iter().for_each(|memory| drop(memory.asked.take()));
    for (from, to) in [(0, 1), (1, 0)] {
        let refused = sense(&copy(&rig, &nexus, 0, from, to));
        assert_eq!(refused, (SenseKey::COPY_ABORTED, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE), "{from} to {to}");
    }
    assert!(memories.iter().all(|memory| memory.asked.take().is_empty()), "no block was read or written");
}

/// A token of the first four blocks of a LUN.
fn token(rig: &Rig, nexus: &Rc<Nexus>, lun: u16) -> Vec<u8> {
    let mut list = [0_u8; 32];
    (list[1], list[15], list[27]) = (30, 16, 4);
    let mut cdb = [0x83, 0x10, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 32, 0, 0];
    assert_eq!(at(rig, nexus, lun, &cdb, &list).status, Status::GOOD);
    cdb = [0x84, 0x07, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    at(rig, nexus, lun, &cdb, &[]).data[38..].to_vec()
}

/// WRITE USING TOKEN to a LUN's first four blocks.
fn write_token(rig: &Rig, nexus: &Rc<Nexus>, lun: u16, token: &[u8]) -> Ended {
    let mut list = [&[0; 16], token, &[0; 8], &[0; 16]].concat();
    let length = list.len() - 2;
    list[..2].copy_from_slice(&u16::try_from(length).expect("short").to_be_bytes());
    (list[535], list[536 + 11]) = (16, 4);
    let mut cdb = [0x83, 0x11, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0];
    cdb[12..14].copy_from_slice(&u16::try_from(list.len()).expect("short").to_be_bytes());
    at(rig, nexus, lun, &cdb, &list)
}

#[test]
fn tokens_reach_only_units_of_the_map() {
    let (rig, nexus, memories) = behind(&[(0, 1, false), (1, 2, true)]);
    let (seen, unseen) = (token(&rig, &rig.nexus, 2), token(&rig, &rig.nexus, 0));
    assert_eq!(write_token(&rig, &nexus, 0, &seen).status, Status::GOOD);
    assert_eq!(memories[1].bytes.borrow()[..4], [2; 4]);
    assert_eq!(sense(&write_token(&rig, &nexus, 0, &unseen)), (SenseKey::ILLEGAL_REQUEST, Asc::TOKEN_UNKNOWN));
    assert_eq!(sense(&write_token(&rig, &nexus, 1, &seen)), (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED));
    let own = token(&rig, &nexus, 0);
    assert_eq!(
        write_token(&rig, &rig.nexus, 0, &own).status,
        Status::GOOD,
        "a nexus that sees the disk may use the token"
    );
}

#[test]
fn changes_and_resets_reach_a_nexus_by_its_own_luns() {
    let (rig, nexus, _) = behind(&[(0, 2, false), (2, 1, false)]);
    let told = |nexus: &Nexus, lun: u16| nexus.itl(lun).and_then(|itl| itl.take_attention()).map(|sense| sense.asc);
    let (hit, other) = (nexus.tasks.enter((1, Lun::from_number(0))), nexus.tasks.enter((2, Lun::from_number(2))));
    let everyone = &rig.nexus;
    let mut reset =
        Box::pin(rig.target.task_management(everyone, TaskFunction::LOGICAL_UNIT_RESET, Lun::from_number(2), 0));
    assert!(reset.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!((hit.aborted(), other.aborted()), (true, false), "unit 2 is LUN 0 there");
    drop(hit);
    assert_eq!(at_once(reset), TaskResponse::Complete);
    assert_eq!((told(&nexus, 0), told(&nexus, 2)), (Some(Asc::BUS_DEVICE_RESET), None));
    rig.target.remove_unit(0);
    assert_eq!((told(&nexus, 0), told(&nexus, 2)), (None, None), "the nexus never saw that one");
    rig.target.remove_unit(1);
    assert_eq!(told(&nexus, 0), Some(Asc::REPORTED_LUNS_DATA_CHANGED));
    assert_eq!(luns(&rig, &nexus), [0]);
}

#[test]
fn a_changed_map_establishes_a_unit_attention_and_aborts_tasks_of_changed_luns() {
    let (rig, nexus, _) = behind(&[(0, 0, false), (1, 1, false), (2, 2, false)]);
    let told = |lun: u16| nexus.itl(lun).and_then(|itl| itl.take_attention()).map(|sense| sense.asc);
    let (kept, gone) = (nexus.tasks.enter((1, Lun::from_number(0))), nexus.tasks.enter((2, Lun::from_number(1))));
    let name = name();
    let mut change = Box::pin(rig.target.set_map(&name, map(&[(0, 0, false), (2, 2, true), (3, 1, false)]), ready(())));
    assert!(change.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!((kept.aborted(), gone.aborted()), (false, true));
    drop(gone);
    at_once(change);
    assert_eq!(told(0), Some(Asc::REPORTED_LUNS_DATA_CHANGED));
    assert_eq!(told(2), Some(Asc::POWER_ON_OR_RESET));
    assert!(nexus.itl(1).is_none());
    assert_eq!(luns(&rig, &nexus), [0, 2, 3]);
    nexus.each(|itl| while itl.take_attention().is_some() {});
    assert_eq!(sense(&at(&rig, &nexus, 2, &WRITE, &[0; 512])).1, Asc::WRITE_PROTECTED);
    assert!(rig.nexus.itl(0).is_some_and(|itl| itl.attention().is_none()), "other nexuses are not concerned");
    at_once(rig.target.set_map(&name, map(&[(0, 0, false), (2, 2, true), (3, 1, false)]), ready(())));
    assert_eq!(told(0), None, "an equal map is no change");
}

#[test]
fn a_lun_that_becomes_another_unit_reports_other_inquiry_data() {
    let (rig, nexus, _) = behind(&[(0, 0, false), (1, 1, false)]);
    nexus.each(|itl| while itl.take_attention().is_some() {});
    for lun in [0, 1] {
        let itl = nexus.itl(lun).expect("it is mapped");
        while itl.take_attention().is_some() {}
    }
    at_once(rig.target.set_map(&name(), map(&[(0, 2, false), (1, 1, false), (3, 0, false)]), ready(())));
    let told = |lun: u16| {
        let itl = nexus.itl(lun).expect("it is mapped");
        std::iter::from_fn(|| itl.take_attention()).map(|sense| sense.asc).collect::<Vec<_>>()
    };
    let exchanged = [Asc::POWER_ON_OR_RESET, Asc::INQUIRY_DATA_CHANGED, Asc::REPORTED_LUNS_DATA_CHANGED];
    assert_eq!(told(0), exchanged);
    assert_eq!(told(1), [Asc::REPORTED_LUNS_DATA_CHANGED], "the unit is the same");
    assert_eq!(told(3), [Asc::POWER_ON_OR_RESET, Asc::REPORTED_LUNS_DATA_CHANGED], "the LUN is new");
}

#[test]
fn a_changed_reservation_is_reported_at_the_nexus_s_own_lun() {
    let (rig, nexus, _) = behind(&[(4, 0, false)]);
    let mut list = [0_u8; 24];
    list[15] = 1;
    assert_eq!(at(&rig, &rig.nexus, 0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list).status, Status::GOOD);
    (list[7], list[15]) = (1, 0);
    assert_eq!(at(&rig, &rig.nexus, 0, &[0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0], &list).status, Status::GOOD);
    assert_eq!(at(&rig, &nexus, 4, &READ, &[]).status, Status::RESERVATION_CONFLICT);
}
