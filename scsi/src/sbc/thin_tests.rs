use super::*;
use crate::command::Status;
use crate::other_core::Notes;
use crate::sense::{Asc, SenseKey};
use crate::testing::{Rig, at_once};
use lunar_core::io::{Space, Traits};
use lunar_core::mem::Arena;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

const MIB: u64 = 1 << 20;
const REACHED: Asc = Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;

/// A disk of 64 threshold sets.
fn large() -> Traits {
    Traits { size: 64 * MIB, ..Rig::traits() }
}

fn slot() -> SlotContext {
    SlotContext::new(Arena::new(1 << 20))
}

/// The page: SITUA, then (ENABLED, count) of available and of used space.
fn page(single: u8, available: (u8, u8), used: (u8, u8)) -> [u8; 32] {
    let mut page = [0; 32];
    (page[0], page[1], page[3], page[4]) = (0x5c, 2, 28, single);
    (page[16], page[17], page[23]) = (available.0 << 7, 1, available.1);
    (page[24], page[25], page[31]) = (used.0 << 7 | 1, 2, used.1);
    page
}

fn arm(rig: &Rig, page: [u8; 32]) {
    let list = [&[0; 4][..], &page].concat();
    assert_eq!(rig.run(&[0x15, 0x10, 0, 0, 36, 0], &list, 0).status, Status::GOOD);
}

fn looks(rig: &Rig, used: u64, available: u64) {
    rig.memory.space.set(Some(Space { used, available }));
    at_once(rig.target.watch_space(&mut slot()));
}

/// The next unit attention of the rig's nexus.
fn told(rig: &Rig) -> Option<(SenseKey, Asc)> {
    rig.nexus.itl(0)?.take_attention().map(|sense| (sense.key, sense.asc))
}

const NEWS: Option<(SenseKey, Asc)> = Some((SenseKey::UNIT_ATTENTION, REACHED));

#[test]
fn armed_thresholds_are_reported() {
    let rig = Rig::new(large());
    let sense = |control: u8| rig.run(&[0x1a, 8, control << 6 | 0x1c, 2, 255, 0], &[], 255).data[4..].to_vec();
    let nothing = page(0, (0, 0), (0, 0));
    let mut changeable = [0; 32];
    (changeable[0], changeable[1], changeable[3], changeable[4]) = (0x5c, 2, 28, 1);
    (changeable[16], changeable[24]) = (0x80, 0x80);
    changeable[20..24].fill(0xff);
    changeable[28..].fill(0xff);
    assert_eq!((sense(0), sense(1), sense(2)), (nothing.to_vec(), changeable.to_vec(), nothing.to_vec()));
    let armed = page(1, (1, 16), (1, 48));
    arm(&rig, armed);
    assert_eq!((sense(0), sense(2)), (armed.to_vec(), nothing.to_vec()));
    // Neither the resource nor the arming may be changed.
    for byte in [16, 17, 24, 25] {
        let mut wrong = armed;
        wrong[byte] ^= 2;
        let list = [&[0; 4][..], &wrong].concat();
        assert_eq!(rig.run(&[0x15, 0x10, 0, 0, 36, 0], &list, 0).sense[15..], [0x89, 0, byte as u8 + 4]);
    }
}

#[test]
fn a_store_without_space_reports_arms_no_threshold() {
    let rig = Rig::new(large());
    rig.memory.space.set(None);
    let changeable = rig.run(&[0x1a, 8, 0x5c, 2, 255, 0], &[], 255).data;
    assert!(changeable[8..].iter().all(|byte| *byte == 0));
    let vpd = rig.run(&[0x12, 1, 0xb2, 0, 255, 0], &[], 255).data;
    assert_eq!(vpd[4], 0, "THRESHOLD EXPONENT");
    assert_eq!(rig.run(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 64, 0], &[], 64).sense[15..], [0xcd, 0, 2]);
}

#[test]
fn each_crossing_is_reported_once() {
    let rig = Rig::new(large());
    arm(&rig, page(0, (0, 0), (1, 32)));
    looks(&rig, 31 * MIB, 0);
    assert_eq!(told(&rig), None, "the threshold is not reached yet, and the other one is not enabled");
    looks(&rig, 32 * MIB, 0);
    assert_eq!((told(&rig), told(&rig)), (NEWS, None));
    // Half a set does not leave it.
    for used in [33, 40, 32] {
        looks(&rig, used * MIB - MIB / 2, 0);
        assert_eq!(told(&rig), None, "{used}");
    }
    looks(&rig, 31 * MIB, 0);
    assert_eq!(told(&rig), None);
    looks(&rig, 60 * MIB, 0);
    assert_eq!(told(&rig), NEWS, "and again");
    arm(&rig, page(0, (0, 0), (1, 50)));
    looks(&rig, 60 * MIB, 0);
    assert_eq!(told(&rig), NEWS, "one that is reached when it is set");
}

#[test]
fn thresholds_of_available_space_are_crossed_from_above() {
    let rig = Rig::new(large());
    arm(&rig, page(0, (1, 8), (0, 0)));
    for (available, news) in [(9, None), (8, NEWS), (7, None), (9, None), (8, NEWS), (0, None)] {
        looks(&rig, 64 * MIB, available * MIB);
        assert_eq!(told(&rig), news, "{available}");
    }
    arm(&rig, page(0, (0, 8), (0, 0)));
    looks(&rig, 64 * MIB, 0);
    assert_eq!(told(&rig), None, "it is no longer enabled");
}

#[test]
fn all_nexuses_are_notified_or_one() {
    for (single, count) in [(0, 4), (1, 1)] {
        let notes = Rc::new(Notes::default());
        let (here, there) = (Rig::with(large(), notes.clone()), Rig::new(large()));
        let second = [&here, &there].map(|rig| {
            let nexus = rig.target.nexus(Rig::name("b"));
            nexus.each(|itl| while itl.take_attention().is_some() {});
            nexus
        });
        arm(&here, page(single, (0, 0), (1, 1)));
        second[0].each(|itl| while itl.take_attention().is_some() {});
        notes.0.borrow_mut().clear();
        looks(&here, MIB, 0);
        for message in notes.0.take() {
            at_once(there.units.deliver(message));
        }
        let all = [&here.nexus, &there.nexus, &second[0], &second[1]];
        let told = all.iter().filter(|nexus| nexus.itl(0).is_some_and(|itl| itl.take_attention().is_some())).count();
        assert_eq!(told, count);
    }
}

#[test]
fn the_store_is_not_asked_before_a_threshold_is_armed() {
    let rig = Rig::new(large());
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits = pin!(rig.target.until_watched());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    arm(&rig, page(0, (0, 5), (0, 5)));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    looks(&rig, 64 * MIB, 0);
    assert_eq!(rig.memory.asked.take(), []);
    arm(&rig, page(0, (1, 5), (0, 5)));
    assert!(waits.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn the_log_page_reports_the_space_of_the_store() {
    let rig = Rig::new(large());
    let log = |pointer: u8| rig.run(&[0x4d, 0, 0x4c, 0, 0, 0, pointer, 0, 64, 0], &[], 64);
    rig.memory.space.set(Some(Space { used: 3 * MIB + 1, available: 5 * MIB - 1 }));
    let available = [0, 1, 0x23, 8, 0, 0, 0, 4, 2, 0, 0, 0];
    let used = [0, 2, 0x23, 8, 0, 0, 0, 4, 1, 0, 0, 0];
    assert_eq!(log(0).data, [&[0x8c, 0, 0, 24][..], &available, &used].concat());
    assert_eq!(log(2).data, [&[0x8c, 0, 0, 12][..], &used].concat());
    assert_eq!(log(3).sense[15..], [0xc0, 0, 5]);
    let cut = rig.run(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 6, 0], &[], 64);
    assert_eq!(cut.data, [0x8c, 0, 0, 24, 0, 1]);
    rig.memory.space.set(Some(Space { used: u64::MAX, available: u64::MAX }));
    assert_eq!(log(0).data[8..12], [0xff; 4], "no more than the field holds");
    assert_eq!(rig.run(&[0x12, 1, 0xb2, 0, 255, 0], &[], 255).data[4], 11, "2^11 blocks are a MiB");
}

#[test]
fn sets_of_any_size_of_disk_fit_their_numbers() {
    for (bits, exponent) in [(20, 11), (40, 11), (51, 11), (52, 12), (62, 22)] {
        let traits = Traits { size: 1 << bits, ..Rig::traits() };
        let memory = Rc::new(crate::testing::Memory::default());
        memory.space.set(Some(Space::default()));
        let unit = Rig::unit(0, traits, memory);
        assert_eq!(super::exponent(&unit), exponent, "2^{bits} bytes");
        assert!(unit.geometry.bytes() / set_bytes(&unit) <= u64::from(u32::MAX));
    }
}
