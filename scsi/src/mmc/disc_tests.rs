use super::*;
use crate::command::Status;
use crate::testing::{Ended, Rig};
use lunar_core::medium::MediumKind;

/// A CD of 512 blocks, whose lead-out is at 00:08:62.
fn cd() -> Rig {
    Rig::of(MediumKind::Optical)
}

fn toc(rig: &Rig, msf: u8, format: u8, first: u8) -> Ended {
    rig.run(&[0x43, msf, format, 0, 0, 0, first, 1, 0, 0], &[], 256)
}

#[test]
fn a_cd_has_a_table_of_contents_in_every_format() {
    let first = [0, 0x14, 1, 0, 0, 0, 0, 0];
    let lead_out = [0, 0x14, 0xaa, 0, 0, 0, 2, 0];
    let (first_msf, lead_out_msf) = ([0, 0x14, 1, 0, 0, 0, 2, 0], [0, 0x14, 0xaa, 0, 0, 0, 8, 62]);
    for (msf, format, from, expected) in [
        (0, 0, 0, [&[0, 18, 1, 1][..], &first, &lead_out].concat()),
        (0, 0, 1, [&[0, 18, 1, 1][..], &first, &lead_out].concat()),
        (2, 0, 1, [&[0, 18, 1, 1][..], &first_msf, &lead_out_msf].concat()),
        (0, 0, 0xaa, [&[0, 10, 1, 1][..], &lead_out].concat()),
        (0, 1, 0, [&[0, 10, 1, 1][..], &first].concat()),
        (2, 1, 0, [&[0, 10, 1, 1][..], &first_msf].concat()),
    ] {
        assert_eq!(toc(&cd(), msf, format, from).data, expected, "MSF {msf}, format {format}, from {from}");
    }
    let full = toc(&cd(), 0, 2, 1).data;
    assert_eq!(full[..4], [0, 46, 1, 1]);
    let points: Vec<(u8, &[u8])> = full[4..].chunks(11).map(|entry| (entry[3], &entry[8..])).collect();
    assert_eq!(points, [(0xa0, &[1, 0, 0][..]), (0xa1, &[1, 0, 0]), (0xa2, &[0, 8, 62]), (1, &[0, 2, 0])]);
    for (format, first, pointer) in
        [(0, 2, [0xc0, 0, 6]), (2, 2, [0xc0, 0, 6]), (3, 0, [0xcb, 0, 2]), (5, 0, [0xcb, 0, 2])]
    {
        assert_eq!(toc(&cd(), 0, format, first).sense[12..], [&[0x24, 0, 0][..], &pointer].concat());
    }
}

#[test]
fn addresses_convert_to_minutes_and_back() {
    for (block, address) in
        [(0, [0, 2, 0]), (74, [0, 2, 74]), (75, [0, 3, 0]), (4350, [1, 0, 0]), (359_849, [79, 59, 74])]
    {
        assert_eq!(msf(block), address);
        assert_eq!(lba(address), Some(block));
    }
    assert_eq!(msf(u64::from(u32::MAX)), [255, 59, 74]);
    for address in [[0, 1, 74], [0, 60, 0], [0, 2, 75]] {
        assert_eq!(lba(address), None, "{address:?}");
    }
}

#[test]
fn disc_information_reports_a_finalized_disc() {
    let ended = cd().run(&[0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0], &[], 34);
    let mut expected = vec![0, 32, 0x0e, 1, 1, 1, 1, 0x20];
    expected.resize(16, 0);
    expected.extend([0xff; 8]);
    expected.resize(34, 0);
    assert_eq!(ended.data, expected);
    assert_eq!(cd().run(&[0x51, 1, 0, 0, 0, 0, 0, 0, 34, 0], &[], 34).sense[15..], [0xca, 0, 1]);
}

#[test]
fn a_disc_has_one_track() {
    let track = |kind: u8, address: u8| cd().run(&[0x52, kind, 0, 0, 0, address, 0, 0, 48, 0], &[], 48);
    let data = track(0, 7).data;
    assert_eq!((data.len(), &data[..8]), (48, &[0, 46, 1, 1, 0, 4, 1, 0][..]));
    assert_eq!(data[24..32], [0, 0, 2, 0, 0, 0, 1, 255]);
    assert_eq!((track(1, 1).data, track(2, 1).data), (data.clone(), data));
    assert_eq!(track(1, 2).sense[12..], [0x24, 0, 0, 0xc0, 0, 2]);
    assert_eq!(track(3, 0).sense[12..], [0x24, 0, 0, 0xc9, 0, 1]);
    let beyond = cd().run(&[0x52, 0, 0, 0, 2, 0, 0, 0, 48, 0], &[], 48);
    assert_eq!(beyond.sense[12..14], [0x21, 0]);
}

#[test]
fn a_dvd_reports_its_structures() {
    let structure = |rig: &Rig, medium: u8, layer: u8, format: u8| {
        rig.run(&[0xad, medium, 0, 0, 0, 0, layer, format, 0x10, 0, 0, 0], &[], 4096)
    };
    let dvd = Rig::dvd();
    let physical = structure(&dvd, 0, 0, 0).data;
    assert_eq!((physical.len(), &physical[..8]), (2052, &[8, 2, 0, 0, 1, 0x0f, 1, 0][..]));
    // 2,000,000 blocks after sector 30000h.
    assert_eq!(physical[8..20], [0, 3, 0, 0, 0, 0x21, 0x84, 0x7f, 0, 0, 0, 0]);
    assert_eq!(structure(&dvd, 0, 0, 1).data, [0, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(structure(&dvd, 0, 0, 4).data.len(), 2052);
    let list = [0, 0x40, 8, 4, 1, 0x40, 0, 8, 4, 0x40, 8, 4];
    assert_eq!(structure(&dvd, 0, 0, 0xff).data, [&[0, 14, 0, 0][..], &list].concat());
    for (medium, layer, format, pointer) in [(1, 0, 0, [0xcb, 0, 1]), (0, 1, 0, [0xc0, 0, 6]), (0, 0, 2, [0xc0, 0, 7])]
    {
        assert_eq!(structure(&dvd, medium, layer, format).sense[15..], pointer);
    }
    let ended = structure(&cd(), 0, 0, 0);
    assert_eq!((ended.status, &ended.sense[12..14]), (Status::CHECK_CONDITION, &[0x30, 2][..]));
}
