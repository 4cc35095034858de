use crate::command::Status;
use crate::testing::Rig;
use lunar_core::io::Traits;

fn page(rig: &Rig, page: u8) -> Vec<u8> {
    let ended = rig.run(&[0x12, 1, page, 0x10, 0, 0], &[], 4096);
    assert_eq!(ended.status, Status::GOOD);
    assert_eq!(usize::from(u16::from_be_bytes([ended.data[2], ended.data[3]])), ended.data.len() - 4);
    ended.data
}

#[test]
fn page_00_lists_all_pages() {
    let pages = [0x00, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2];
    assert_eq!(page(&Rig::default(), 0), [&[0, 0, 0, 10][..], &pages].concat());
}

#[test]
fn every_listed_page_exists_and_no_other() {
    let rig = Rig::default();
    let listed = page(&rig, 0)[4..].to_vec();
    assert!(listed.is_sorted());
    for code in 0..=255 {
        let ended = rig.run(&[0x12, 1, code, 0x10, 0, 0], &[], 4096);
        if listed.contains(&code) {
            assert_eq!(ended.data[1], code);
        } else {
            assert_eq!((ended.status, &ended.sense[12..]), (Status::CHECK_CONDITION, &[0x24, 0, 0, 0xc0, 0, 2][..]));
        }
    }
}

#[test]
fn page_80_is_the_serial_number() {
    assert_eq!(page(&Rig::default(), 0x80), *b"\x00\x80\x00\x0a0123456789");
}

#[test]
fn page_83_names_unit_port_and_device() {
    let mut expected = vec![0x00, 0x83, 0x00, 0xe0];
    expected.extend([0x01, 0x03, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7]);
    expected.extend([0x01, 0x0a, 0, 18, 0x10, 0, 0xa0, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15]);
    expected.extend(*b"\x02\x01\x00\x22LUNAR   disk            0123456789");
    expected.extend(*b"\x03\x08\x00\x18naa.3001020304050607\0\0\0\0");
    expected.extend([0x51, 0x94, 0, 4, 0, 0, 0, 1]);
    expected.extend([0x51, 0x95, 0, 4, 0, 0, 0, 1]);
    expected.extend(*b"\x53\x98\x00\x24iqn.2026-11.example:disk,t,0x0001\0\0\0");
    expected.extend(*b"\x53\xa8\x00\x1ciqn.2026-11.example:disk\0\0\0\0");
    let page = page(&Rig::default(), 0x83);
    expected[3] = u8::try_from(expected.len() - 4).expect("short");
    assert_eq!(page, expected);
}

#[test]
fn page_87_says_that_mode_pages_are_shared() {
    assert_eq!(page(&Rig::default(), 0x87), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
}

#[test]
fn page_88_lists_all_ports_of_the_device() {
    let mut expected = vec![0x00, 0x88, 0x00, 0x00];
    for port in [1, 2] {
        expected.extend([0, 0, 0, port, 0, 0, 0, 0, 0, 0, 0, 48]);
        expected.extend([0x51, 0x95, 0, 4, 0, 0, 0, 1]);
        expected.extend(*b"\x53\x98\x00\x24iqn.2026-11.example:disk,t,0x000");
        expected.extend([b'0' + port, 0, 0, 0]);
    }
    expected[3] = u8::try_from(expected.len() - 4).expect("short");
    assert_eq!(page(&Rig::default(), 0x88), expected);
}

#[test]
fn page_86_reports_protection_and_cache() {
    let page = page(&Rig::default(), 0x86);
    assert_eq!(page[..14], [0, 0x86, 0, 0x3c, 0, 0x07, 0x01, 0, 0, 0, 0, 0, 0, 40]);
    assert_eq!(page[14..], [0; 50]);
}

#[test]
fn page_8f_reports_the_limits_of_copies() {
    let mut expected = vec![0, 0x8f, 0, 0];
    // Block ROD limits: ranges, maximum and default inactivity timeout, maximum and optimal blocks of a command.
    expected.extend([0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 2, 0x58, 0, 0, 0, 60]);
    expected.extend([[0, 0, 0, 0, 0, 2, 0, 0]; 2].concat());
    // Supported commands: EXTENDED COPY, tokens, COPY OPERATION ABORT, RECEIVE COPY.
    expected.extend([0, 1, 0, 16, 15, 0x83, 5, 0x00, 0x01, 0x10, 0x11, 0x1c]);
    expected.extend([0x84, 6, 0x00, 0x03, 0x04, 0x05, 0x07, 0x08]);
    // Parameter data limits: descriptors and bytes.
    expected.extend([0, 4, 0, 28, 0, 0, 0, 0, 0, 64, 0, 64, 0, 0, 0x10, 0]);
    expected.extend([0; 16]);
    expected.extend([0, 8, 0, 4, 3, 0x02, 0x0a, 0xe4]);
    expected.extend([0, 12, 0, 4, 0, 0, 0, 0]);
    // ROD token features: maximum inactivity timeout; of block devices, lengths in bytes.
    expected.extend([0x01, 0x06, 0, 92]);
    expected.extend([0; 20]);
    expected.extend([0, 0, 2, 0x58]);
    expected.extend([0; 18]);
    expected.extend([0, 48, 0, 0, 0, 44, 0, 0, 0, 0]);
    expected.extend([[0, 0, 0, 0, 4, 0, 0, 0]; 4].concat());
    expected.extend([0; 8]);
    // ROD types: access upon reference, in and out; block device zero, in.
    expected.extend([0x01, 0x08, 0, 132, 0, 0, 0, 128, 0, 1, 0, 0, 3, 0, 0x80, 0]);
    expected.extend([0; 56]);
    expected.extend([0xff, 0xff, 0, 1, 2, 0, 0x80, 0]);
    expected.extend([0; 56]);
    // General copy operations: concurrent copies, identified copies, bytes of a segment, granularity.
    expected.extend([0x80, 1, 0, 32, 0, 0, 0, 128, 0, 0, 0, 128, 0x10, 0, 0, 0, 9, 0]);
    expected.extend([0; 18]);
    let length = u16::try_from(expected.len() - 4).expect("short");
    expected[2..4].copy_from_slice(&length.to_be_bytes());
    assert_eq!(page(&Rig::default(), 0x8f), expected);
}

#[test]
fn page_b0_reports_block_limits() {
    let expected = [
        0, 0xb0, 0, 0x3c, // header
        1, 255, 0, 8, // WSNZ, compare and write, granularity
        0, 8, 0, 0, // maximum transfer: 256 MiB
        0, 0, 2, 0, // optimal transfer: 256 KiB
        0, 0x20, 0, 0, // pre-fetch: 1 GiB
        0, 0x10, 0, 0, // unmap
        0, 0, 0, 255, // descriptors
        0, 0, 0, 8, // unmap granularity
        0x80, 0, 0, 0, // unmap alignment
        0, 0, 0, 0, 0, 0x10, 0, 0, // write same
        0, 0, 0, 64, // atomic write
        0, 0, 0, 0, 0, 0, 0, 0, // atomic alignment and granularity: any
        0, 0, 0, 0, 0, 0, 0, 0, // no atomic boundaries
    ];
    assert_eq!(page(&Rig::default(), 0xb0), expected);
    for (atomic_write, blocks) in [(0, 0), (511, 0), (4096, 8), (u32::MAX, 512)] {
        let told = page(&Rig::new(Traits { atomic_write, ..Rig::traits() }), 0xb0);
        assert_eq!(told[44..48], u32::to_be_bytes(blocks), "an atomic write is one piece at most");
    }
    let thick = page(&Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() }), 0xb0);
    assert_eq!(thick[20..36], [0; 16]);
}

#[test]
fn page_b1_reports_rotation_and_erased_blocks() {
    let solid = page(&Rig::default(), 0xb1);
    assert_eq!((solid.len(), &solid[..6]), (64, &[0, 0xb1, 0, 0x3c, 0, 1][..]));
    assert_eq!(solid[6..9], [0, 0x40, 1], "WABEREQ, VBULS");
    let thick = page(&Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() }), 0xb1);
    assert_eq!(thick[6..], [0; 58]);
    let turning = page(&Rig::new(Traits { rotational: true, ..Rig::traits() }), 0xb1);
    assert_eq!(turning[4..6], [0, 0]);
}

#[test]
fn page_b2_reports_provisioning() {
    assert_eq!(page(&Rig::default(), 0xb2), [0, 0xb2, 0, 4, 11, 0xe4, 2, 0]);
    let thick = Rig::new(Traits { thin: false, unmap_granularity: 0, ..Rig::traits() });
    assert_eq!(page(&thick, 0xb2), [0, 0xb2, 0, 4, 0, 0, 0, 0]);
    let resource = Rig::new(Traits { thin: false, unmap_zeroes: false, ..Rig::traits() });
    assert_eq!(page(&resource, 0xb2), [0, 0xb2, 0, 4, 11, 0xe0, 1, 0]);
}
