use crate::command::Status;
use crate::fuzzing::Rig;
use crate::sense::Asc;
use lunar_core::io::Traits;
use proptest::prelude::*;

const RECOVERY: [u8; 12] = [0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CACHING: [u8; 20] = [0x08, 0x12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CONTROL: [u8; 12] = [0x0a, 0x0a, 0x22, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
const EXCEPTIONS: [u8; 12] = [0x1c, 0x0a, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn sense6(rig: &Rig, flags: u8, page: u8, subpage: u8) -> Vec<u8> {
    let ended = rig.run(&[0x1a, flags, page, subpage, 255, 0], &[], 255);
    assert_eq!(ended.status, Status::GOOD, "{ended:?}");
    assert_eq!(usize::from(ended.data[0]), ended.data.len() - 1);
    ended.data
}

fn asc(sense: &[u8]) -> Asc {
    Asc(u16::from_be_bytes([sense[12], sense[13]]))
}

#[test]
fn golden_six() {
    let rig = Rig::default();
    let mut expected = vec![67, 0, 0x10, 8, 0, 0, 8, 0, 0, 0, 2, 0];
    expected.extend(RECOVERY.iter().chain(&CACHING).chain(&CONTROL).chain(&EXCEPTIONS));
    assert_eq!(sense6(&rig, 0, 0x3f, 0), expected);
    assert_eq!(sense6(&rig, 0, 0x3f, 0xff), expected);
    assert_eq!(sense6(&rig, 8, 0x08, 0)[4..], CACHING);
    assert_eq!(sense6(&rig, 8, 0x0a, 0xff)[4..], CONTROL);
}

#[test]
fn golden_ten() {
    let rig = Rig::default();
    let ten = |flags: u8| rig.run(&[0x5a, flags, 0x1c, 0, 0, 0, 0, 1, 0, 0], &[], 256).data;
    assert_eq!(ten(8), [&[0, 18, 0, 0x10, 0, 0, 0, 0][..], &EXCEPTIONS].concat());
    let short = [0, 26, 0, 0x10, 0, 0, 0, 8, 0, 0, 8, 0, 0, 0, 2, 0];
    assert_eq!(ten(0), [&short[..], &EXCEPTIONS].concat());
    let long = [0, 34, 0, 0x10, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    assert_eq!(ten(0x10), [&long[..], &EXCEPTIONS].concat());
}

#[test]
fn page_control() {
    let rig = Rig::default();
    let values = |control: u8, page: u8| sense6(&rig, 8, control << 6 | page, 0)[4..].to_vec();
    assert_eq!(values(1, 0x08)[2], 4);
    assert_eq!(values(1, 0x0a)[2..5], [4, 0, 8]);
    assert_eq!(values(2, 0x0a), CONTROL);
    let saved = rig.run(&[0x1a, 8, 0xc0 | 0x08, 0, 255, 0], &[], 255);
    assert_eq!(asc(&saved.sense), Asc::SAVING_NOT_SUPPORTED);
    let through = Rig::new(Traits { write_cache: false, ..Rig::traits() });
    assert_eq!(sense6(&through, 8, 0x48, 0)[6], 0);
    assert_eq!(sense6(&through, 8, 0x08, 0)[6], 0);
}

#[test]
fn pages_that_are_not_there() {
    let rig = Rig::default();
    assert_eq!(rig.run(&[0x1a, 0, 0x02, 0, 255, 0], &[], 255).sense[15..], [0xcd, 0, 2]);
    assert_eq!(rig.run(&[0x1a, 0, 0x0a, 1, 255, 0], &[], 255).sense[15..], [0xc0, 0, 3]);
}

#[test]
fn write_protection_shows() {
    let rig = Rig::new(Traits { read_only: true, ..Rig::traits() });
    assert_eq!(sense6(&rig, 8, 0x0a, 0)[2], 0x90);
}

fn select6(rig: &Rig, pages: &[&[u8]]) -> crate::fuzzing::Ended {
    let list = [&[0, 0, 0, 0][..], &pages.concat()].concat();
    rig.run(&[0x15, 0x10, 0, 0, u8::try_from(list.len()).expect("short"), 0], &list, 0)
}

#[test]
fn select_changes_what_may_be_changed() {
    let rig = Rig::default();
    let other = rig.target.nexus(Rig::name("b"));
    let itl = other.itl(0).expect("there");
    while itl.take_attention().is_some() {}
    let (mut caching, mut control) = (CACHING, CONTROL);
    (caching[2], control[2], control[4]) = (0, 0x26, 8);
    assert_eq!(select6(&rig, &[&caching, &control]).status, Status::GOOD);
    assert_eq!(itl.attention().map(|(asc, _)| asc), Some(Asc::MODE_PARAMETERS_CHANGED));
    assert_eq!(rig.nexus.itl(0).expect("there").attention(), None);
    // The cache was switched off: what it held went to the medium first.
    assert_eq!(rig.memory.asked.take(), [lunar_core::io::Op::Flush]);
    assert_eq!(sense6(&rig, 8, 0x08, 0)[4..], caching);
    assert_eq!(sense6(&rig, 8, 0x0a, 0)[2..][..4], [0x90, 0, 0x0a, 0x0a]);
    let refused = rig.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0; 512], 0);
    assert_eq!(refused.sense, [0x72, 7, 0x27, 0, 0, 0, 0, 0], "SWP, D_SENSE");
    assert_eq!(select6(&rig, &[&CONTROL]).status, Status::GOOD);
    let write = |flags: u8| rig.run(&[0x2a, flags, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512], 0).status;
    assert_eq!(write(0), Status::GOOD);
    assert_eq!(rig.memory.asked.take(), [lunar_core::io::Op::Write { durable: true }], "WCE is zero");
    assert_eq!(select6(&rig, &[&CACHING]).status, Status::GOOD);
    assert_eq!((write(0), write(8)), (Status::GOOD, Status::GOOD));
    let [plain, fua] = [false, true].map(|durable| lunar_core::io::Op::Write { durable });
    assert_eq!(rig.memory.asked.take(), [plain, fua]);
}

#[test]
fn select_refuses_the_rest_and_changes_nothing() {
    let rig = Rig::default();
    let mut control = CONTROL;
    control[2] |= 4;
    let mut caching = CACHING;
    caching[2] |= 1;
    let ended = select6(&rig, &[&control, &caching]);
    assert_eq!((asc(&ended.sense), &ended.sense[15..]), (Asc::INVALID_FIELD_IN_PARAMETER_LIST, &[0x88, 0, 18][..]));
    assert_eq!(sense6(&rig, 8, 0x0a, 0)[4..], CONTROL);
    let length = |at: usize, pages: &[&[u8]]| assert_eq!(select6(&rig, pages).sense[15..], [0x80, 0, at as u8]);
    length(5, &[&[0x0a, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0]]);
    assert_eq!(select6(&rig, &[&[0x0a, 0x0a, 0x22]]).sense[12], 0x1a);
    assert_eq!(select6(&rig, &[&[0x02, 0x0a]]).sense[15..], [0x8d, 0, 4]);
    let saved = rig.run(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4], 0);
    assert_eq!(saved.sense[15..], [0xc8, 0, 1], "SP");
    let cut = rig.run(&[0x15, 0x10, 0, 0, 16, 0], &[0; 8], 0);
    assert_eq!(asc(&cut.sense), Asc::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn select_takes_block_descriptors_that_change_nothing() {
    let rig = Rig::default();
    let ten = |header: [u8; 8], descriptor: &[u8]| {
        let list = [&header[..], descriptor, &CONTROL].concat();
        rig.run(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, 0)
    };
    let (short, long) = ([0, 0, 0, 0, 0, 0, 0, 8], [0, 0, 0, 0, 1, 0, 0, 16]);
    assert_eq!(ten(short, &[0, 0, 8, 0, 0, 0, 2, 0]).status, Status::GOOD);
    assert_eq!(ten(short, &[0; 8]).status, Status::GOOD);
    assert_eq!(ten(short, &[0, 0, 8, 1, 0, 0, 2, 0]).sense[15..], [0x80, 0, 8]);
    assert_eq!(ten(short, &[0, 0, 8, 0, 0, 0, 16, 0]).sense[15..], [0x80, 0, 13]);
    assert_eq!(ten(long, &[0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0]).status, Status::GOOD);
    assert_eq!(ten(long, &[0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 4, 0]).sense[15..], [0x80, 0, 20]);
    assert_eq!(ten([0, 0, 0, 0, 0, 0, 0, 9], &[0; 9]).sense[15..], [0x80, 0, 7]);
}

proptest! {
    #[test]
    fn a_shorter_answer_is_the_front_of_the_whole(length in 0usize..300, page in 0u8..=0xff, inquiry in any::<bool>()) {
        let rig = Rig::default();
        let [high, low] = u16::try_from(length).expect("short").to_be_bytes();
        let run = |high: u8, low: u8| match inquiry {
            true => rig.run(&[0x12, 1, page, high, low, 0], &[], u32::MAX),
            false => rig.run(&[0x5a, 0, page, 0, 0, 0, 0, high, low, 0], &[], u32::MAX),
        };
        let (whole, part) = (run(0xff, 0xff), run(high, low));
        prop_assert_eq!(part.status, whole.status);
        prop_assert_eq!(&part.data[..], &whole.data[..length.min(whole.data.len())]);
        prop_assert_eq!(part.wanted, part.data.len() as u64);
    }
}
