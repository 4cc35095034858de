use super::*;
use proptest::prelude::*;

/// A Data operation: STU 2 of Block 5, the last one, three bytes.
const RECORDED: [u8; 44] = [
    0x24, 0x80, 0x00, 0x02, 0x10, 0x01, 0x20, 0x02, 0xde, 0xad, 0xbe, 0xef, 0x00, 0x00, 0x00, 0x03, 0x01, 0x07, 0x02,
    0x09, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x11, 0x00, 0x00, 0x08, 0x00, 0x0a, 0x0b, 0x0c, 0x0d, 0x00, 0x00,
    0x00, 0x01, b'a', b'b', b'c', 0x00,
];

fn recorded() -> Packet {
    Packet {
        op: Op::DATA,
        flags: flags::LAST,
        param: 2,
        to_port: 0x1001,
        from_port: 0x2002,
        key: 0xdead_beef,
        to_id: 0x107,
        from_id: 0x209,
        block: 5,
        bufx: 0x11,
        offset: 0x800,
        words: 0x0a0b_0c0d_0000_0001,
        len: 3,
    }
}

#[test]
fn a_recorded_packet_is_taken_apart_and_its_padding_is_no_payload() {
    let (packet, is_checked, payload) = Packet::parse(&RECORDED).expect("whole");
    assert_eq!((packet, is_checked, payload), (recorded(), false, &b"abc"[..]));
    assert_eq!((packet.high(), packet.low(), packet.range()), (0x0a0b_0c0d, 1, (0, 1)));
    assert_eq!(Packet::parse(&RECORDED[..42]), None, "the payload is cut off");
    assert_eq!(Packet::parse(&RECORDED[..39]), None, "the header is cut off");
}

#[test]
fn a_packet_is_built_as_it_was_recorded() {
    let mut bytes = [0xa5; HEADER_LEN];
    bytes.copy_from_slice(&recorded().bytes());
    assert_eq!(bytes, RECORDED[..HEADER_LEN]);
}

#[test]
fn a_checksum_covers_every_bit_but_those_of_unused_padding() {
    let packet = recorded();
    let mut bytes = packet.checked([&b"a"[..], b"bc"]).to_vec();
    bytes.extend(b"abc");
    assert_eq!(Packet::parse(&bytes), Some((packet, true, &b"abc"[..])));
    assert_eq!(packet.checked([&b"abc"[..]]), packet.checked([&b"ab"[..], b"c"]));
    for bit in 0..bytes.len() * 8 {
        // The field of the checksum itself: with 0 there would be none.
        let mut wrong = bytes.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        assert!(Packet::parse(&wrong).is_none_or(|(_, is_checked, _)| !is_checked), "bit {bit}");
    }
}

proptest! {
    #[test]
    fn what_is_built_is_parsed(bytes in prop::collection::vec(any::<u8>(), HEADER_LEN..400)) {
        if let Some((packet, is_checked, payload)) = Packet::parse(&bytes) {
            let mut built = if is_checked { packet.checked([payload]) } else { packet.bytes() }.to_vec();
            built.extend(payload);
            prop_assert_eq!(Packet::parse(&built), Some((packet, is_checked, payload)));
        }
    }
}
