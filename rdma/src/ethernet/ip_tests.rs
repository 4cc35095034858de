use super::*;
use proptest::prelude::*;

/// A packet of IPv4 as Linux sends it: identification 7, fragments forbidden, four bytes of UDP, padding.
const RECORDED: [u8; 26] =
    [0x45, 0x02, 0, 24, 0, 7, 0x40, 0, 64, 17, 0xb6, 0xc4, 192, 0, 2, 1, 192, 0, 2, 2, 1, 2, 3, 4, 0, 0];

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[10..12].fill(0);
    let checksum = Sum::default().with(&bytes[..20]).checksum().to_be_bytes();
    bytes[10..12].copy_from_slice(&checksum);
    bytes
}

#[test]
fn a_recorded_packet_is_taken_apart() {
    let recorded = with_checksum(RECORDED.to_vec());
    let packet = Packet::parse(IPV4, &recorded).expect("right");
    let wanted = Packet {
        from: [192, 0, 2, 1].into(),
        to: [192, 0, 2, 2].into(),
        protocol: UDP,
        hop_limit: 64,
        fragmentation: [0, 7, 0x40, 0],
        payload: &[1, 2, 3, 4],
    };
    assert_eq!(packet, wanted, "without the padding of its frame, whatever its congestion bits are");
    assert_eq!(Packet::parse(0x88a2, &recorded), Err(Malformed::Format));
}

#[test]
fn packets_that_cannot_be_right_are_refused() {
    let changed = |at: usize, to: u8| {
        let mut bytes = RECORDED.to_vec();
        bytes[at] = to;
        Packet::parse(IPV4, &with_checksum(bytes)).expect_err("wrong")
    };
    for (at, to, why) in [
        (0, 0x46, Malformed::Format),
        (0, 0x65, Malformed::Format),
        (3, 19, Malformed::Format),
        (3, 27, Malformed::Format),
        (6, 0x20, Malformed::Fragment),
        (7, 1, Malformed::Fragment),
    ] {
        assert_eq!(changed(at, to), why, "byte {at} is {to:x}");
    }
    let mut damaged = with_checksum(RECORDED.to_vec());
    damaged[15] ^= 4;
    assert_eq!(Packet::parse(IPV4, &damaged), Err(Malformed::Checksum));
    assert_eq!(Packet::parse(IPV4, &damaged[..19]), Err(Malformed::Format));
    let v6 = Header { from: Ipv6Addr::LOCALHOST.into(), to: Ipv6Addr::LOCALHOST.into(), protocol: UDP, hop_limit: 1 };
    let whole = [&v6.bytes(3)[..], &[1, 2, 3]].concat();
    assert!(Packet::parse(IPV6, &whole).is_ok());
    assert_eq!(Packet::parse(IPV6, &whole[..42]), Err(Malformed::Format));
    assert_eq!(Packet::parse(IPV6, &whole[..39]), Err(Malformed::Format));
    let with = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        Packet::parse(IPV6, &bytes).expect_err("wrong")
    };
    assert_eq!((with(0, 0x40), with(6, FRAGMENT)), (Malformed::Format, Malformed::Fragment));
}

proptest! {
    #[test]
    fn packets_are_read_as_they_were_written(
        addresses: [u128; 2], is_v4: bool, protocol in 45_u8.., hop_limit: u8,
        payload in prop::collection::vec(any::<u8>(), 0..100), padding in 0_usize..20,
    ) {
        let address = |bits: u128| match is_v4 {
            true => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            false => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        let [from, to] = addresses.map(address);
        let header = Header { from, to, protocol, hop_limit };
        let mut frame = [0xa5; 200];
        let bytes = [&header.bytes(payload.len())[..], &payload].concat();
        frame[..bytes.len()].copy_from_slice(&bytes);
        let fragmentation = if is_v4 { [0, 0, 0x40, 0] } else { [0; 4] };
        let packet = Packet::parse(header.ether_type(), &frame[..bytes.len() + padding]).expect("right");
        prop_assert_eq!(packet, Packet { from, to, protocol, hop_limit, fragmentation, payload: &payload });
        prop_assert_eq!(bytes.len(), Header::size(is_v4) + payload.len());
    }

    #[test]
    fn any_bytes_are_taken_apart(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for ether_type in [IPV4, IPV6] {
            if let Ok(packet) = Packet::parse(ether_type, &bytes) {
                prop_assert!(packet.payload.len() + Header::size(packet.from.is_ipv4()) <= bytes.len());
            }
        }
    }
}
