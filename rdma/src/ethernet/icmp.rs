//! Messages of ICMP (RFC 792) and ICMPv6 (RFC 4443). Of the messages of ICMP only echo requests are answered: no error
//! is ever sent, and none is obeyed, because the path MTU is that of the peers.

use super::checksum::{Sum, pseudo_header};
use super::ip::{self, Malformed, Packet};
use std::net::IpAddr;

/// Type, code and checksum.
pub const HEADER_LEN: usize = 4;
/// The checksum in a message.
const CHECKSUM: std::ops::Range<usize> = 2..HEADER_LEN;
/// Echo request and echo reply of ICMP (RFC 792), and of ICMPv6 (RFC 4443 section 4).
const ECHO: [u8; 2] = [8, 0];
const ECHO_V6: [u8; 2] = [128, 129];

/// The sum that the checksum of a message between these addresses begins with: ICMPv6 has a pseudo-header (RFC 4443
/// section 2.3).
fn begin(from: IpAddr, to: IpAddr, len: usize) -> Sum {
    if from.is_ipv4() { Sum::default() } else { pseudo_header(from, to, ip::ICMPV6, len) }
}

/// A received message, whose checksum is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The type.
    pub kind: u8,
    /// The code.
    pub code: u8,
    /// The bytes behind the checksum.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message of a packet of ICMP or ICMPv6.
    ///
    /// # Errors
    /// The message is too short, or its checksum is wrong.
    pub fn parse(packet: &Packet<'a>) -> Result<Self, Malformed> {
        let bytes = packet.payload;
        let Some(([kind, code, ..], body)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(Malformed::Format);
        };
        if !begin(packet.from, packet.to, bytes.len()).with(bytes).is_right() {
            return Err(Malformed::Checksum);
        }
        Ok(Self { kind: *kind, code: *code, body })
    }

    /// Whether it is an echo request, of IPv4 or IPv6.
    #[must_use]
    pub fn is_echo_request(&self, is_ipv4: bool) -> bool {
        let [request, _] = if is_ipv4 { ECHO } else { ECHO_V6 };
        (self.kind, self.code) == (request, 0)
    }
}

/// A message between these addresses: with the header of IP.
#[must_use]
pub fn packet(from: IpAddr, to: IpAddr, hop_limit: u8, kind: u8, body: &[u8]) -> Vec<u8> {
    let protocol = if from.is_ipv4() { ip::ICMP } else { ip::ICMPV6 };
    let len = HEADER_LEN + body.len();
    let mut bytes = ip::Header { from, to, protocol, hop_limit }.bytes(len).to_vec();
    let at = bytes.len();
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend(body);
    let checksum = begin(from, to, len).with(&bytes[at..]).checksum();
    bytes[at..][CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// The answer to an echo request: its identifier, sequence number and data, and nothing more (RFC 1122 3.2.2.6).
#[must_use]
pub fn echo_reply(from: IpAddr, to: IpAddr, request: &Message<'_>) -> Vec<u8> {
    let [_, reply] = if from.is_ipv4() { ECHO } else { ECHO_V6 };
    packet(from, to, ip::HOP_LIMIT, reply, request.body)
}

/// An echo request.
#[cfg(any(test, feature = "testing"))]
#[must_use]
pub fn echo_request(from: IpAddr, to: IpAddr, body: &[u8]) -> Vec<u8> {
    let [request, _] = if from.is_ipv4() { ECHO } else { ECHO_V6 };
    packet(from, to, ip::HOP_LIMIT, request, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends(is_v4: bool) -> [IpAddr; 2] {
        match is_v4 {
            true => [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
            false => ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().expect(text)),
        }
    }

    fn ether_type(is_v4: bool) -> u16 {
        if is_v4 { ip::IPV4 } else { ip::IPV6 }
    }

    #[test]
    fn a_recorded_request_has_its_checksum() {
        // `ping -s 4`: identifier 1, sequence number 2.
        let recorded = [8, 0, 0x33, 0x36, 0, 1, 0, 2, b'a', b'b', b'c', b'd'];
        let built = echo_request(ends(true)[1], ends(true)[0], &recorded[4..]);
        assert_eq!(built[20..], recorded);
        let packet = Packet::parse(ip::IPV4, &built).expect("right");
        let message = Message::parse(&packet).expect("right");
        assert!(message.is_echo_request(true) && !message.is_echo_request(false));
        assert_eq!(message.body, &recorded[4..]);
    }

    #[test]
    fn damaged_and_short_messages_are_refused() {
        for is_v4 in [true, false] {
            let [here, peer] = ends(is_v4);
            let built = echo_request(peer, here, &[1; 8]);
            for at in ip::Header::size(is_v4)..built.len() {
                let mut damaged = built.clone();
                damaged[at] ^= 1;
                let packet = Packet::parse(ether_type(is_v4), &damaged).expect("its header is right");
                assert_eq!(Message::parse(&packet), Err(Malformed::Checksum), "byte {at}");
            }
            let short = ip::Header { from: peer, to: here, protocol: 1, hop_limit: 1 };
            let bytes = [&short.bytes(3)[..], &[0; 3]].concat();
            let packet = Packet::parse(ether_type(is_v4), &bytes).expect("right");
            assert_eq!(Message::parse(&packet), Err(Malformed::Format));
        }
    }

    proptest! {
        #[test]
        fn an_answer_has_the_data_of_its_request(body in prop::collection::vec(any::<u8>(), 0..90), is_v4: bool) {
            let [here, peer] = ends(is_v4);
            let request = echo_request(peer, here, &body);
            let packet = Packet::parse(ether_type(is_v4), &request).expect("right");
            let message = Message::parse(&packet).expect("right");
            let answer = echo_reply(here, peer, &message);
            prop_assert_eq!(answer.len(), request.len());
            let packet = Packet::parse(ether_type(is_v4), &answer).expect("right");
            let answer = Message::parse(&packet).expect("right");
            prop_assert_eq!((answer.body, answer.kind), (&body[..], if is_v4 { 0 } else { 129 }));
            prop_assert_eq!((packet.from, packet.to), (here, peer));
        }
    }
}
