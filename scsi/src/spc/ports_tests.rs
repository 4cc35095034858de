use crate::command::Status;
use crate::sense::{Asc, SenseKey};
use crate::testing::{Ended, Rig, at_once};
use lunar_core::unit::UnitId;
use lunar_unit::AccessState;

fn report(rig: &Rig, format: u8) -> Vec<u8> {
    rig.run(&[0xa3, format | 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256).data
}

/// Sets states: (state, group or port).
fn set(rig: &Rig, wishes: &[(u8, u16)]) -> Ended {
    let mut list = vec![0; 4];
    for (state, whose) in wishes {
        list.extend([*state, 0]);
        list.extend(whose.to_be_bytes());
    }
    set_list(rig, &list)
}

fn set_list(rig: &Rig, list: &[u8]) -> Ended {
    rig.run(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, u8::try_from(list.len()).expect("short"), 0, 0], list, 0)
}

/// Two groups of one port each.
fn two_groups() -> Rig {
    Rig::with_groups([1, 2])
}

/// Changes the state of a group as the target itself does.
fn transition(rig: &Rig, group: u16, state: AccessState, preferred: bool) {
    at_once(rig.units.set_access(UnitId(0), group, state, preferred));
}

/// State and cause of each group, as reported.
fn states(rig: &Rig) -> Vec<(u8, u8)> {
    report(rig, 0)[4..].chunks(12).map(|group| (group[0], group[5])).collect()
}

#[test]
fn golden() {
    let rig = Rig::default();
    let group = [0, 0xcf, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(report(&rig, 0), [&[0, 0, 0, 16][..], &group].concat());
    assert_eq!(report(&rig, 0x20), [&[0, 0, 0, 20, 0x10, 60, 0, 0][..], &group].concat());
    assert_eq!(rig.run(&[0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256).sense[15..], [0xcf, 0, 1]);
    let groups = [0, 0xcf, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0xcf, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(report(&two_groups(), 0), [&[0, 0, 0, 24][..], &groups].concat());
}

#[test]
fn an_initiator_sets_states_and_other_nexuses_are_notified() {
    let rig = two_groups();
    let [near, far] =
        [1, 2].map(|port| rig.target.nexus(lunar_core::port::NexusName { initiator: "b".into(), target_port: port }));
    for nexus in [&near, &far] {
        nexus.each(|itl| while itl.take_attention().is_some() {});
    }
    assert_eq!(set(&rig, &[(2, 1), (1, 2)]).status, Status::GOOD);
    assert_eq!(states(&rig), [(2, 1), (1, 1)]);
    for nexus in [&near, &far] {
        let itl = nexus.itl(0).expect("LUN exists");
        assert_eq!(itl.take_attention().map(|sense| sense.asc), Some(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED));
    }
    assert_eq!(rig.nexus.itl(0).expect("LUN exists").attention(), None, "it knows");
    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let read = |nexus| rig.run_as(nexus, &READ, &[], 512);
    assert_eq!((read(&near).status, &read(&near).sense[12..14]), (Status::CHECK_CONDITION, &[4, 0x0b][..]));
    assert_eq!(read(&far).status, Status::GOOD);
    let late = rig.target.nexus(Rig::name("late"));
    assert_eq!(late.itl(0).expect("LUN exists").access(), AccessState::Standby, "one that logs in later");
    assert_eq!(set(&rig, &[(2, 1)]).status, Status::GOOD);
    assert_eq!(far.itl(0).expect("LUN exists").attention(), None, "the state was the same");
    assert_eq!(set(&rig, &[(0, 1)]).status, Status::GOOD);
    assert_eq!(rig.run(&READ, &[], 512).status, Status::GOOD);
}

#[test]
fn a_state_is_a_disk_s_own_and_outlives_resets() {
    let rig = two_groups();
    rig.target.add_unit(1, Rig::unit(1, Rig::traits(), Default::default()));
    rig.nexus.each(|itl| while itl.take_attention().is_some() {});
    assert_eq!(set(&rig, &[(3, 1)]).status, Status::GOOD);
    let state = |lun| rig.nexus.itl(lun).expect("LUN exists").access();
    assert_eq!((state(0), state(1)), (AccessState::Unavailable, AccessState::ActiveOptimized));
    let reset = rig.target.task_management(&rig.nexus, crate::TaskFunction::LOGICAL_UNIT_RESET, rig.lun.get(), 0);
    at_once(reset);
    assert_eq!(state(0), AccessState::Unavailable);
}

#[test]
fn a_port_goes_offline_and_its_group_with_it() {
    let rig = two_groups();
    assert_eq!(set(&rig, &[(0xe, 1)]).status, Status::GOOD);
    assert_eq!(states(&rig), [(0xe, 1), (0, 0)]);
    let ready = rig.run(&[0; 6], &[], 0);
    assert_eq!(ready.sense[12..14], [4, 0x12]);
    assert_eq!(set(&rig, &[(0, 1)]).status, Status::GOOD, "and back");
    let ended = set(&Rig::default(), &[(0xe, 1)]);
    assert_eq!(ended.sense[15..], [0x80, 0, 6], "its group has another port");
}

#[test]
fn all_nexuses_are_notified_of_an_implicit_transition() {
    let rig = two_groups();
    for state in [AccessState::Transitioning, AccessState::Standby] {
        transition(&rig, 1, state, false);
        let told = rig.nexus.itl(0).expect("LUN exists").take_attention();
        assert_eq!(told.map(|sense| sense.asc), Some(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED));
        assert_eq!(states(&rig), [(crate::access::AluaState::of(state).0, 2), (0, 0)], "{state:?}");
    }
    transition(&rig, 9, AccessState::Standby, false);
    at_once(rig.units.set_access(UnitId(7), 1, AccessState::Standby, false));
    assert_eq!(states(&rig).len(), 2);
}

#[test]
fn all_nexuses_are_notified_of_the_pref_bit_and_it_persists() {
    let rig = two_groups();
    transition(&rig, 2, AccessState::ActiveOptimized, true);
    let told = rig.nexus.itl(0).expect("LUN exists").take_attention();
    assert_eq!(told.map(|sense| sense.asc), Some(Asc::ASYMMETRIC_ACCESS_STATE_CHANGED));
    assert_eq!(states(&rig), [(0, 0), (0x80, 2)]);
    assert_eq!(set(&rig, &[(1, 2)]).status, Status::GOOD);
    assert_eq!(states(&rig), [(0, 0), (0x81, 1)], "an initiator changes only the state");
    transition(&rig, 2, AccessState::ActiveOptimized, false);
    assert!(rig.nexus.itl(0).expect("LUN exists").take_attention().is_some());
    assert_eq!(states(&rig), [(0, 0), (0, 2)]);
}

#[test]
fn refusals() {
    let rig = two_groups();
    let refused: [(&[u8], u8, [u8; 3]); 7] = [
        (&[0, 0, 1, 0], 0x26, [0x80, 0, 2]),
        (&[0, 0, 0, 0, 0x12, 0, 0, 1], 0x26, [0x8f, 0, 4]),
        (&[0, 0, 0, 0, 2, 1, 0, 1], 0x26, [0x80, 0, 5]),
        (&[0, 0, 0, 0, 2, 0, 0, 3], 0x26, [0x80, 0, 6]),
        (&[0, 0, 0, 0, 2, 0, 0, 1, 4, 0, 0, 1], 0x26, [0x8b, 0, 8]),
        (&[0, 0, 0, 0, 2, 0, 0], 0x1a, [0; 3]),
        (&[0, 0, 0], 0x1a, [0; 3]),
    ];
    for (list, asc, pointer) in refused {
        let ended = set_list(&rig, list);
        assert_eq!((SenseKey(ended.sense[2]), ended.sense[12]), (SenseKey::ILLEGAL_REQUEST, asc), "{list:?}");
        assert_eq!(ended.sense[15..], pointer, "{list:?}");
    }
    let long = rig.run(&[0xa4, 0x0a, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0], &[0; 4096], 0);
    assert_eq!((long.sense[12], &long.sense[15..]), (0x24, &[0xc0, 0, 6][..]));
    assert_eq!(set_list(&rig, &[]).status, Status::GOOD);
    assert_eq!(set_list(&rig, &[0; 4]).status, Status::GOOD);
    assert_eq!(states(&rig), [(0, 0), (0, 0)]);
}
