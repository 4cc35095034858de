use super::*;
use crate::golden::{self, Golden};
use crate::icrc::Checker;
use proptest::prelude::*;

fn packet(golden: &Golden) -> Vec<u8> {
    let (from, to) = golden.addresses();
    Checker::default().check(from, to, &golden.bytes()).expect("its check is right").to_vec()
}

#[test]
fn recorded_packets_are_taken_apart() {
    let bytes = packet(&golden::READ);
    let read = Packet::parse(&bytes).expect("right");
    assert_eq!((read.opcode, read.wants_acknowledge), (Opcode::READ_REQUEST, true));
    assert!(matches!(read.extension, Extension::Remote(Remote { key, .. }, len) if key != 0 && len > 1024));
    let bytes = packet(&golden::READ_RESPONSE);
    let response = Packet::parse(&bytes).expect("right");
    assert_eq!((response.opcode, response.payload), (Opcode::READ_RESPONSE_ONLY, &[b'A'; 512][..]));
    let bytes = packet(&golden::ACKNOWLEDGE);
    let acknowledge = Packet::parse(&bytes).expect("right");
    let syndrome = Extension::Acknowledge(Syndrome::ACKNOWLEDGED, 1);
    assert_eq!((acknowledge.layout.kind, acknowledge.extension), (Kind::Acknowledge, syndrome));
    let bytes = packet(&golden::PROBE);
    let probe = Packet::parse(&bytes).expect("right");
    let nothing = Extension::Remote(Remote::default(), 0);
    assert_eq!((probe.opcode, probe.extension, probe.payload), (Opcode::WRITE_ONLY, nothing, &[][..]));
    let bytes = packet(&golden::INVALIDATION);
    let response = Packet::parse(&bytes).expect("right");
    assert_eq!((response.extension, response.payload.len()), (Extension::Invalidate(0x344), 16));
    let bytes = packet(&golden::REQUEST);
    let request = Packet::parse(&bytes).expect("right");
    let manager = Extension::Datagram(MANAGER_Q_KEY, MANAGER_QPN);
    assert_eq!((request.qpn, request.extension, request.payload.len()), (MANAGER_QPN, manager, 256));
}

#[test]
fn recorded_packets_are_built_again() {
    for golden in golden::ALL {
        let bytes = packet(golden);
        let Packet { opcode, qpn, psn, wants_acknowledge, extension, payload, .. } =
            Packet::parse(&bytes).expect("right");
        let head = Head { opcode, qpn, psn, wants_acknowledge, extension }.bytes(payload.len());
        let pad = &[0; 3][..padding(payload.len())];
        let mut built = [&head[..], payload, pad].concat();
        // A request for a solicited event has no meaning here.
        built[1] |= bytes[1] & 0x80;
        assert_eq!(built, bytes, "{golden:?}");
    }
}

#[test]
fn times_of_receivers_that_are_not_ready() {
    assert_eq!([0x1f, 0x40, 0x60].map(|code| Syndrome(code).not_ready()), [None; 3]);
    assert_eq!(
        [0x20, 0x21, 0x34, 0x3f].map(|code| Syndrome(code).not_ready()),
        [655_360, 10, 10_240, 491_520].map(Some)
    );
    assert_eq!(Syndrome::WAIT.not_ready(), Some(1280));
}

#[test]
fn malformed_packets_are_dropped() {
    let good = packet(&golden::COMMAND);
    assert!(Packet::parse(&good).is_some());
    for (at, byte) in [(0, 0x1f), (1, 0x01), (2, 0x00)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert!(Packet::parse(&bad).is_none(), "byte {at}");
    }
    for len in 0..BASE_LEN {
        assert!(Packet::parse(&good[..len]).is_none(), "{len}");
    }
    let mut padded = good[..BASE_LEN + 2].to_vec();
    padded[1] = 0x30;
    assert!(Packet::parse(&padded).is_none(), "more padding than payload");
}

proptest! {
    #[test]
    fn numbers_are_ordered_around_their_end(start in 0..=NUMBER_BITS, ahead in 1_u32..0x40_0000) {
        let start = Psn::new(start);
        prop_assert!(start.is_before(start.plus(ahead)) && !start.plus(ahead).is_before(start));
        prop_assert_eq!(start.plus(ahead).since(start), ahead);
    }
}
