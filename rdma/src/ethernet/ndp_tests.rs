use super::*;
use crate::ethernet::ip;
use proptest::prelude::*;

fn address(text: &str) -> Ipv6Addr {
    text.parse().expect(text)
}

/// The message of the bytes of a packet.
fn parsed(bytes: &[u8]) -> Option<Message> {
    let packet = Packet::parse(ip::IPV6, bytes).ok()?;
    Message::parse(&packet, &icmp::Message::parse(&packet).ok()?)
}

/// A packet of ICMPv6 with this body.
fn packet(from: &str, to: &str, hop_limit: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    icmp::packet(address(from).into(), address(to).into(), hop_limit, kind, body)
}

/// Target fe80::1 and the option with this MAC address.
fn body(flags: u8, option: &[u8]) -> Vec<u8> {
    [&[flags, 0, 0, 0][..], &address("fe80::1").octets(), option].concat()
}

#[test]
fn a_recorded_solicitation_is_taken_apart_and_built() {
    let option = [1, 1, 0x52, 0x54, 0, 0x12, 0x34, 2];
    let recorded = packet("fe80::2", "ff02::1:ff00:1", 255, 135, &body(0, &option));
    let message =
        Message::Solicitation { target: address("fe80::1"), sender: Some(MacAddress([0x52, 0x54, 0, 0x12, 0x34, 2])) };
    assert_eq!(parsed(&recorded), Some(message));
    assert_eq!(message.packet(address("fe80::2"), address("ff02::1:ff00:1")), recorded);
    assert_eq!((recorded.len(), recorded[40]), (72, 135));
}

#[test]
fn groups_have_addresses() {
    let group = solicited_node(address("2001:db8::12:3456"));
    assert_eq!(group, address("ff02::1:ff12:3456"));
    assert_eq!(group_mac(group), MacAddress([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
    assert_eq!(group_mac(ALL_NODES), MacAddress([0x33, 0x33, 0, 0, 0, 1]));
}

#[test]
fn messages_that_break_a_rule_are_refused() {
    let mac = [1, 1, 2, 0, 0, 0, 0, 1];
    let good = packet("fe80::2", "fe80::1", 255, 135, &body(0, &mac));
    assert!(parsed(&good).is_some());
    let zero = [1, 0, 2, 0, 0, 0, 0, 1];
    let multicast = [&[0; 4][..], &ALL_NODES.octets()].concat();
    for (what, bytes) in [
        ("a router has forwarded it", packet("fe80::2", "fe80::1", 254, 135, &body(0, &mac))),
        ("it is too short", packet("fe80::2", "fe80::1", 255, 135, &body(0, &[])[..19])),
        ("an option of no length", packet("fe80::2", "fe80::1", 255, 135, &body(0, &zero))),
        ("an option is cut", packet("fe80::2", "fe80::1", 255, 135, &body(0, &mac[..5]))),
        ("a single byte of an option", packet("fe80::2", "fe80::1", 255, 135, &body(0, &mac[..1]))),
        ("the target is a group", packet("fe80::2", "fe80::1", 255, 135, &multicast)),
        ("a probe with a MAC address", packet("::", "ff02::1:ff00:1", 255, 135, &body(0, &mac))),
        ("a probe to another group", packet("::", "ff02::1", 255, 135, &body(0, &[]))),
        ("a solicited one to a group", packet("fe80::2", "ff02::1", 255, 136, &body(0x40, &[]))),
        ("another message", packet("fe80::2", "fe80::1", 255, 134, &body(0, &[]))),
    ] {
        assert_eq!(parsed(&bytes), None, "{what}");
    }
    assert!(parsed(&packet("::", "ff02::1:ff00:1", 255, 135, &body(0, &[]))).is_some(), "a probe");
    // Options that are not known are skipped (RFC 4861 section 4.6), and a group is no MAC address.
    let others = [&[14, 2][..], &[0; 14], &[1, 1, 3, 0, 0, 0, 0, 1]].concat();
    let message = parsed(&packet("fe80::2", "fe80::1", 255, 135, &body(0, &others)));
    assert_eq!(message, Some(Message::Solicitation { target: address("fe80::1"), sender: None }));
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        bits: u128, mac: [u8; 6], has_mac: bool, is_advertisement: bool, flags: [bool; 2],
    ) {
        let target = Ipv6Addr::from_bits(bits & !(0xff << 120));
        let mac = has_mac.then_some(MacAddress([mac[0] & 0xfe, mac[1], mac[2], mac[3], mac[4], mac[5]]));
        let message = match is_advertisement {
            true => Message::Advertisement { target, mac, is_solicited: flags[0], overrides: flags[1] },
            false => Message::Solicitation { target, sender: mac },
        };
        prop_assert_eq!(parsed(&message.packet(address("fe80::2"), address("fe80::3"))), Some(message));
    }

    #[test]
    fn any_body_is_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 133_u8..138) {
        parsed(&packet("fe80::2", "fe80::1", 255, kind, &bytes));
    }
}
