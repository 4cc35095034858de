use crate::command::Status;
use crate::sense::Asc;
use crate::testing::Rig;
use lunar_core::medium::MediumKind;

const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];

fn cd() -> Rig {
    Rig::of(MediumKind::Optical)
}

fn configuration(rig: &Rig, which: u8, first: u16) -> Vec<u8> {
    let [high, low] = first.to_be_bytes();
    let ended = rig.run(&[0x46, which, high, low, 0, 0, 0, 1, 0, 0], &[], 256);
    assert_eq!(ended.status, Status::GOOD);
    assert_eq!(ended.data[..4], ((ended.data.len() - 4) as u32).to_be_bytes());
    ended.data
}

/// The codes and flags of the features in an answer.
fn features(mut rest: &[u8]) -> Vec<(u16, u8)> {
    let mut found = Vec::new();
    while let [high, low, flags, length, ..] = *rest {
        found.push((u16::from_be_bytes([high, low]), flags));
        assert!(length.is_multiple_of(4));
        rest = &rest[4 + usize::from(length)..];
    }
    assert!(rest.is_empty());
    found
}

#[test]
fn the_disc_decides_which_features_are_current() {
    let always = [(0, 3), (1, 0x0b), (2, 7), (3, 7)];
    for (rig, profile, random, multi, cd_read, dvd_read) in
        [(cd(), 8, 1, 1, 9, 4), (Rig::dvd(), 16, 1, 0, 8, 5), (ejected(), 0, 0, 0, 8, 4)]
    {
        let data = configuration(&rig, 0, 0);
        assert_eq!(data[4..8], [0, 0, 0, profile]);
        let all = features(&data[8..]);
        assert_eq!(all[..4], always);
        let others = [(0x10, random), (0x1d, multi), (0x1e, cd_read), (0x1f, dvd_read), (0x100, 3), (0x108, 3)];
        assert_eq!(all[4..], others);
        let current: Vec<_> = all.iter().copied().filter(|(_, flags)| flags & 1 != 0).collect();
        assert_eq!(features(&configuration(&rig, 1, 0)[8..]), current);
        assert_eq!(features(&configuration(&rig, 0, 0x1e)[8..]), all[6..]);
        for (code, flags) in all {
            assert_eq!(features(&configuration(&rig, 2, code)[8..]), [(code, flags)]);
        }
        assert_eq!(configuration(&rig, 2, 5).len(), 8);
    }
    let profiles = configuration(&cd(), 2, 0);
    assert_eq!(profiles[8..], [0, 0, 3, 8, 0, 0x10, 0, 0, 0, 8, 1, 0]);
    assert_eq!(configuration(&cd(), 2, 0x10)[12..], [0, 0, 8, 0, 0, 1, 1, 0]);
    assert_eq!(configuration(&cd(), 2, 0x108)[12..], *b"0123456789\0\0");
    assert_eq!(cd().run(&[0x46, 3, 0, 0, 0, 0, 0, 0, 8, 0], &[], 8).sense[15..], [0xc9, 0, 1]);
}

fn ejected() -> Rig {
    let rig = cd();
    assert_eq!(rig.run(&EJECT, &[], 0).status, Status::GOOD);
    rig
}

fn event(rig: &Rig, classes: u8) -> Vec<u8> {
    rig.run(&[0x4a, 1, 0, 0, classes, 0, 0, 0, 8, 0], &[], 8).data
}

#[test]
fn each_media_event_is_reported_once() {
    let rig = cd();
    assert_eq!(event(&rig, 0x10), [0, 6, 4, 0x56, 0, 2, 0, 0]);
    assert_eq!(rig.run(&EJECT, &[], 0).status, Status::GOOD);
    assert_eq!(rig.run(&[0x4a, 1, 0, 0, 0x10, 0, 0, 0, 4, 0], &[], 8).data, [0, 6, 4, 0x56]);
    assert_eq!(event(&rig, 0x56), [0, 6, 4, 0x56, 3, 1, 0, 0], "the class with an event comes first");
    assert_eq!(event(&rig, 0x10), [0, 6, 4, 0x56, 0, 1, 0, 0]);
    assert_eq!(rig.run(&LOAD, &[], 0).status, Status::GOOD);
    assert_eq!(event(&rig, 0x04), [0, 6, 2, 0x56, 0, 1, 0, 0], "another class");
    assert_eq!(event(&rig, 0x10), [0, 6, 4, 0x56, 2, 2, 0, 0]);
    assert_eq!(event(&rig, 0x12), [0, 6, 1, 0x56, 0, 0, 0, 0], "the lowest class without an event");
    assert_eq!(event(&rig, 0x40), [0, 6, 6, 0x56, 0, 0, 0, 0]);
    assert_eq!(event(&rig, 0x28), [0, 2, 0x80, 0x56]);
    assert_eq!(rig.run(&[0x4a, 0, 0, 0, 0x10, 0, 0, 0, 8, 0], &[], 8).sense[15..], [0xc8, 0, 1]);
    // The unit attention is left to another command.
    rig.nexus.itl(0).expect("LUN exists").establish_unit_attention(Asc::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(event(&rig, 0x10), [0, 6, 4, 0x56, 0, 2, 0, 0]);
    assert_eq!(rig.run(&[0; 6], &[], 0).sense[12..14], [0x28, 0]);
}

#[test]
fn mechanism_status_reports_the_tray() {
    let status = |rig: &Rig| rig.run(&[0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &[], 8).data;
    assert_eq!(status(&cd()), [0; 8]);
    assert_eq!(status(&ejected()), [0, 0x10, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn seek_refuses_addresses_beyond_the_disc() {
    let seek = |lba: u8| cd().run(&[0x2b, 0, 0, 0, 1, lba, 0, 0, 0, 0], &[], 0);
    assert_eq!(seek(255).status, Status::GOOD);
    assert_eq!(cd().run(&[0x2b, 0, 0, 0, 2, 0, 0, 0, 0, 0], &[], 0).sense[12..14], [0x21, 0]);
}

#[test]
fn inquiry_describes_a_drive() {
    let inquiry = cd().run(&[0x12, 0, 0, 0, 96, 0], &[], 96).data;
    assert_eq!(inquiry[..8], [0x05, 0x80, 0x06, 0x12, 91, 0, 0x10, 2]);
    assert_eq!(inquiry[58..66], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xe0, 0x09, 0x60]);
    assert_eq!(cd().run(&[0x12, 1, 0, 0, 96, 0], &[], 96).data, [5, 0, 0, 5, 0, 0x80, 0x83, 0x87, 0x88]);
    assert_eq!(cd().run(&[0x12, 1, 0xb0, 0, 96, 0], &[], 96).sense[15..], [0xc0, 0, 2]);
    assert_eq!(cd().run(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).data, [0, 0, 1, 255, 0, 0, 8, 0]);
}

#[test]
fn a_drive_has_its_own_mode_pages() {
    let rig = cd();
    let all = rig.run(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 1, 0, 0], &[], 256).data;
    assert_eq!(all[2..8], [0; 6], "no block descriptors");
    let mut rest = &all[8..];
    let mut pages = Vec::new();
    while let [page, length, ..] = *rest {
        pages.push((page & 0x3f, length));
        rest = &rest[2 + usize::from(length)..];
    }
    assert_eq!(pages, [(0x01, 10), (0x1a, 38), (0x2a, 20)]);
    let tray = |rig: &Rig| rig.run(&[0x5a, 0, 0x2a, 0, 0, 0, 0, 1, 0, 0], &[], 256).data[8 + 6];
    assert_eq!(tray(&rig), 0x29);
    assert_eq!(rig.run(&[0x1e, 0, 0, 0, 1, 0], &[], 0).status, Status::GOOD);
    assert_eq!(tray(&rig), 0x2b, "removal is prevented");
}
