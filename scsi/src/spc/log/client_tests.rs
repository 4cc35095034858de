use super::*;
use crate::command::Status;
use crate::testing::{Ended, Rig, at_once};
use lunar_core::metadata::{DurableMemory, MetadataStore};
use proptest::prelude::*;

fn sense(rig: &Rig, control: u8, pointer: u8) -> Vec<u8> {
    let [high, low] = 0x4010_u16.to_be_bytes();
    let ended = rig.run(&[0x4d, 0, control << 6 | 0x0f, 0, 0, 0, pointer, high, low, 0], &[], 0x4010);
    assert_eq!(ended.status, Status::GOOD);
    ended.data
}

fn parameter(code: u8, value: u8) -> Vec<u8> {
    [&[0, code, 3, 0xfc][..], &[value; VALUE_BYTES]].concat()
}

fn list(parameters: &[Vec<u8>]) -> Vec<u8> {
    let all = parameters.concat();
    let [high, low] = u16::try_from(all.len()).expect("short").to_be_bytes();
    [&[0x0f, 0, high, low], &all[..]].concat()
}

fn select(rig: &Rig, flags: u8, list: &[u8]) -> Ended {
    let [high, low] = u16::try_from(list.len()).expect("short").to_be_bytes();
    rig.run(&[0x4c, flags, 0x40, 0, 0, 0, 0, high, low, 0], list, 0)
}

#[test]
fn values_of_one_nexus_are_read_by_all() {
    let rig = Rig::default();
    let other = rig.target.nexus(Rig::name("b"));
    other.each(|itl| while itl.take_attention().is_some() {});
    let empty = sense(&rig, 1, 0);
    assert_eq!((empty.len(), &empty[..8]), (4 + 64 * 256, &[0x8f, 0, 0x40, 0, 0, 0, 0x23, 0xfc][..]));
    assert_eq!(select(&rig, 0, &list(&[parameter(1, 7), parameter(63, 9)])).status, Status::GOOD);
    let told = || other.itl(0).expect("LUN exists").take_attention().map(|sense| sense.asc);
    assert_eq!(told(), Some(Asc::LOG_PARAMETERS_CHANGED));
    let now = sense(&rig, 1, 0);
    assert!(now[8..260].iter().all(|byte| *byte == 0));
    assert!(now[264..516].iter().all(|byte| *byte == 7));
    assert_eq!(sense(&rig, 1, 63)[4..8], [0, 63, 0x23, 0xfc]);
    assert!(sense(&rig, 1, 63)[8..].iter().all(|byte| *byte == 9));
    assert_eq!(sense(&rig, 3, 0), empty, "the default values are empty");
    // LOG SELECT accepts the data of LOG SENSE. Unchanged values establish no unit attention.
    assert_eq!(select(&rig, 0, &now).status, Status::GOOD);
    assert_eq!(told(), None);
    assert_eq!(rig.run(&[0x4c, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
    assert_eq!(sense(&rig, 1, 0), empty, "PCR");
}

#[test]
fn saved_values_persist_through_a_restart() {
    let keep = Arc::new(DurableMemory::default());
    let rig = Rig::keeping(keep.clone());
    assert_eq!(sense(&rig, 1, 63)[..8], [0x0f, 0, 1, 0, 0, 63, 3, 0xfc], "DS and TSD are 0: the values can be saved");
    assert_eq!(select(&rig, 1, &list(&[parameter(0, 5)])).status, Status::GOOD);
    assert_eq!(select(&rig, 0, &list(&[parameter(1, 6)])).status, Status::GOOD, "SP is 0: not saved");
    let not_saved = [&[0x8f][..], &list(&[parameter(2, 7)])[1..]].concat();
    assert_eq!(select(&rig, 1, &not_saved).status, Status::GOOD, "DS is 1: not saved");
    let again = Rig::keeping(keep.clone());
    let after = sense(&again, 1, 0);
    assert_eq!([8, 264, 520].map(|at| after[at]), [5, 0, 0]);
    assert_eq!(
        rig.run(&[0x4c, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status,
        Status::GOOD,
        "an empty list saves the current values"
    );
    assert_eq!([0, 252, 504].map(|at| load(&rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit)[at]), [5, 6, 7]);
    assert_eq!(rig.run(&[0x4c, 3, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
    assert!(load(&rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit).is_empty());
    at_once(keep.save(KEPT_AS, vec![1; 7])).expect("memory");
    let stored = load(&rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit);
    assert!(stored.is_empty(), "stored values of a wrong length are ignored");
}

#[test]
fn an_invalid_list_is_refused_with_a_field_pointer_and_changes_nothing() {
    let rig = Rig::default();
    let before = sense(&rig, 1, 0);
    let good = list(&[parameter(3, 1), parameter(4, 1)]);
    let with = |at: usize, byte: u8| {
        let mut list = good.clone();
        list[at] = byte;
        list
    };
    for (at, byte, pointer) in [
        (0, 0x0d, [0x8d, 0, 0]),
        (0, 0x4f, [0x8e, 0, 0]),
        (1, 1, [0x80, 0, 1]),
        (4, 1, [0x80, 0, 4]),
        (5, 64, [0x80, 0, 4]),
        (6, 0, [0x80, 0, 6]),
        (6, 0x13, [0x80, 0, 6]),
        (7, 0xfb, [0x80, 0, 7]),
        (261, 3, [0x80, 1, 4]),
    ] {
        let ended = select(&rig, 0, &with(at, byte));
        assert_eq!((ended.sense[12], &ended.sense[15..]), (0x26, &pointer[..]), "byte {at}");
    }
    for (at, byte) in [(3, 1), (2, 9)] {
        assert_eq!(select(&rig, 0, &with(at, byte)).sense[12], 0x1a, "byte {at}");
    }
    assert_eq!(select(&rig, 0, &good[..3]).sense[12], 0x1a);
    let short = rig.run(&[0x4c, 0, 0x40, 0, 0, 0, 0, 2, 0, 0], &good[..100], 0);
    assert_eq!(short.sense[12], 0x1a, "the list is shorter than its length field");
    let place = |flags: u8, page: u8| rig.run(&[0x4c, flags, page, 0, 0, 0, 0, 2, 4, 0], &good, 0).sense[12..].to_vec();
    assert_eq!(place(2, 0x40), [0x24, 0, 0, 0xc9, 0, 1], "PCR");
    assert_eq!(place(1, 0x40), [0x24, 0, 0, 0xc8, 0, 1], "SP: the unit cannot save");
    assert_eq!(place(0, 0xc0), [0x24, 0, 0, 0xcf, 0, 2], "PC");
    assert_eq!(place(0, 0x4f), [0x24, 0, 0, 0xcb, 0, 2], "PAGE CODE");
    assert_eq!(sense(&rig, 1, 0), before);
}

proptest! {
    #[test]
    fn a_list_that_is_nearly_right_does_no_harm(at in 0usize..540, value in any::<u8>(), length in 0usize..540) {
        let rig = Rig::default();
        let before = sense(&rig, 1, 0);
        let mut list = list(&[parameter(0, 1), parameter(5, 2)]);
        if let Some(byte) = list.get_mut(at) {
            *byte = value;
        }
        list.truncate(length);
        let ended = select(&rig, 0, &list);
        if ended.status != Status::GOOD {
            prop_assert_eq!(sense(&rig, 1, 0), before);
            let pointer = u16::from_be_bytes([ended.sense[16], ended.sense[17]]);
            prop_assert!(usize::from(pointer) < list.len().max(1));
        }
    }
}
