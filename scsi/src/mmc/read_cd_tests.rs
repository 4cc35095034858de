use crate::command::Status;
use crate::testing::{Ended, Rig};
use lunar_core::medium::MediumKind;

/// A CD whose blocks are filled with their LBA.
fn cd() -> Rig {
    let rig = Rig::of(MediumKind::Optical);
    let mut bytes = rig.memory.bytes.borrow_mut();
    bytes.chunks_mut(2048).zip(0_u8..=255).for_each(|(block, number)| block.fill(number));
    drop(bytes);
    rig
}

fn read(kind: u8, lba: u8, count: u8, main: u8, sub: u8) -> Ended {
    cd().run(&[0xbe, kind, 0, 0, 0, lba, 0, 0, count, main, sub, 0], &[], 1 << 20)
}

#[test]
fn read_cd_returns_the_user_data() {
    for kind in [0, 0x08] {
        let ended = read(kind, 3, 2, 0x10, 0);
        assert_eq!((ended.status, ended.data), (Status::GOOD, [[3; 2048], [4; 2048]].concat()));
    }
    let nothing = read(0, 3, 2, 0, 0);
    assert_eq!((nothing.status, nothing.data.len()), (Status::GOOD, 0));
    let msf = |from: u8, to: u8| cd().run(&[0xb9, 0, 0, 0, 2, from, 0, 2, to, 0x10, 0, 0], &[], 1 << 20);
    assert_eq!(msf(5, 7).data, [[5; 2048], [6; 2048]].concat());
    assert_eq!(msf(5, 5).data.len(), 0);
    assert_eq!(msf(5, 4).sense[15..], [0xc0, 0, 6]);
    assert_eq!(msf(75, 76).sense[15..], [0xc0, 0, 3]);
    assert_eq!(cd().run(&[0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0], &[], 2048).data, [9; 2048]);
    assert_eq!(cd().run(&[0xa8, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0], &[], 2048).data, [9; 2048]);
}

#[test]
fn parts_that_an_image_does_not_contain_are_refused() {
    for (kind, main, sub, sense) in [
        (0x04, 0x10, 0, [0x64, 0, 0, 0, 0, 0]),
        (0x0c, 0x10, 0, [0x64, 0, 0, 0, 0, 0]),
        (0x18, 0x10, 0, [0x24, 0, 0, 0xcc, 0, 1]),
        (0, 0xf8, 0, [0x24, 0, 0, 0xc0, 0, 9]),
        (0, 0x12, 0, [0x24, 0, 0, 0xc0, 0, 9]),
        (0, 0x10, 2, [0x24, 0, 0, 0xca, 0, 10]),
    ] {
        assert_eq!(read(kind, 0, 1, main, sub).sense[12..], sense, "{kind:02x} {main:02x} {sub}");
    }
    let beyond = cd().run(&[0xbe, 0, 0, 0, 2, 0, 0, 0, 1, 0x10, 0, 0], &[], 2048);
    assert_eq!(beyond.sense[12..14], [0x21, 0]);
}
