//! The invariant CRC (ICRC) of a packet: it covers its payload, and all of its headers that do not change on the way.
//!
//! The headers of IP and UDP are covered, too. A socket does not show those of a datagram that it has received, and all
//! of them but two fields are known: IPv4 has an identification, and a bit that forbids fragments. They are computed
//! from the check itself: of its 32 bits 15 remain that find an error. Ethernet has a check of its own. Frames show all
//! headers, and are checked with all bits.

use crate::wire::HEADERS_MAX;
use crc32fast::Hasher;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Bytes of the check.
pub const LEN: usize = 4;
/// The header of IPv4, before its identification: what the check covers with ones.
const UDP_PROTOCOL: u8 = 17;
const UDP_LEN: usize = 8;
/// Bytes of the shortest packet, without its check: a base transport header.
const PACKET_MIN: usize = 12;
/// Packets are padded to a multiple of so many bytes.
const UNIT: usize = 4;
/// Lengths of packets whose operator is remembered: packets have at most some 4,200 bytes.
const OPERATORS_MAX: usize = 1100;
/// The polynomial of CRC-32, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Identification, flags and fragment offset of IPv4 in packets that are sent here: fragments are forbidden.
fn sent(identification: u16) -> [u8; 4] {
    let [high, low] = identification.to_be_bytes();
    [high, low, 0x40, 0]
}

/// Bytes of the longest headers of a packet, with those before them.
const COVERED_MAX: usize = 8 + 40 + UDP_LEN + HEADERS_MAX;
/// The byte of the base transport header whose bits change on the way.
const CONGESTION: usize = 4;

/// The headers that the check covers, in one piece: a hash of many short pieces costs as much as that of the payload.
struct Covered {
    bytes: [u8; COVERED_MAX],
    len: usize,
}

impl Covered {
    /// The headers before the base transport header.
    fn new(from: SocketAddr, to: SocketAddr, len: usize, fragmentation: [u8; 4]) -> Self {
        let mut covered = Self { bytes: [0; COVERED_MAX], len: 0 };
        covered.put(&[0xff; 8]);
        // A datagram has fewer than 65,536 bytes.
        let udp_len = (UDP_LEN + len) as u16;
        match (from, to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                let [high, low] = (20 + udp_len).to_be_bytes();
                let [a, b, c, d] = fragmentation;
                covered.put(&[0x45, 0xff, high, low, a, b, c, d, 0xff, UDP_PROTOCOL, 0xff, 0xff]);
                covered.put(&from.ip().octets());
                covered.put(&to.ip().octets());
            }
            _ => {
                let [high, low] = udp_len.to_be_bytes();
                covered.put(&[0x6f, 0xff, 0xff, 0xff, high, low, UDP_PROTOCOL, 0xff]);
                for address in [from, to] {
                    let IpAddr::V6(address) = address.ip() else { continue };
                    covered.put(&address.octets());
                }
            }
        }
        covered.put(&from.port().to_be_bytes());
        covered.put(&to.port().to_be_bytes());
        covered.put(&udp_len.to_be_bytes());
        covered.put(&[0xff, 0xff]);
        covered
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// The state of the check behind these headers and those of the packet.
    fn with(mut self, head: &[u8]) -> Hasher {
        let begin = self.len;
        self.put(head);
        if let Some(byte) = self.bytes[begin..self.len].get_mut(CONGESTION) {
            *byte = 0xff;
        }
        let mut hasher = Hasher::new();
        hasher.update(&self.bytes[..self.len]);
        hasher
    }
}

/// The check of a packet that is sent, if it is over IPv4 with this identification: its headers, and its other bytes in
/// these parts.
///
/// # Panics
/// When the headers are longer than those that are sent here.
#[must_use]
pub fn of_parts<'a>(
    from: SocketAddr,
    to: SocketAddr,
    identification: u16,
    head: &[u8],
    parts: impl Iterator<Item = &'a [u8]> + Clone,
) -> u32 {
    let len = head.len() + parts.clone().map(<[u8]>::len).sum::<usize>() + LEN;
    let mut hasher = Covered::new(from, to, len, sent(identification)).with(head);
    parts.for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// The packet of a datagram without its check, and the bits in which the check differs; `None`: it is no packet.
fn compare((from, to, fragmentation): (SocketAddr, SocketAddr, [u8; 4]), datagram: &[u8]) -> Option<(&[u8], u32)> {
    let (packet, check) = datagram.split_last_chunk::<LEN>()?;
    if packet.len() < PACKET_MIN || !packet.len().is_multiple_of(UNIT) {
        return None;
    }
    let (head, rest) = packet.split_at(PACKET_MIN);
    let mut hasher = Covered::new(from, to, datagram.len(), fragmentation).with(head);
    hasher.update(rest);
    Some((packet, hasher.finalize() ^ u32::from_le_bytes(*check)))
}

/// The packet of a datagram between these addresses, whose packet has this identification, these flags and this
/// fragment offset, without its check; `None`: the check is wrong.
#[must_use]
pub fn check_whole(ends: (SocketAddr, SocketAddr), fragmentation: [u8; 4], datagram: &[u8]) -> Option<&[u8]> {
    compare((ends.0, ends.1, fragmentation), datagram)
        .and_then(|(packet, difference)| (difference == 0).then_some(packet))
}

/// A linear function of the 32 bits of a check.
#[derive(Clone, Copy)]
struct Operator([u32; 32]);

impl Operator {
    fn apply(&self, bits: u32) -> u32 {
        let columns = self.0.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
        columns.fold(0, |sum, (_, column)| sum ^ column)
    }

    fn after(&self, first: &Self) -> Self {
        Self(first.0.map(|column| self.apply(column)))
    }

    /// Undoes one bit of a computation.
    fn one_back() -> Self {
        let back = |state: u32| match state >> 31 {
            1 => (state ^ POLYNOMIAL) << 1 | 1,
            _ => state << 1,
        };
        Self(std::array::from_fn(|at| back(1 << at)))
    }

    /// Undoes so many bytes.
    fn back(bytes: usize) -> Self {
        let (mut result, mut power) = (Self(std::array::from_fn(|at| 1 << at)), Self::one_back());
        let mut left = bytes * 8;
        while left > 0 {
            if left & 1 == 1 {
                result = power.after(&result);
            }
            power = power.after(&power);
            left >>= 1;
        }
        result
    }
}

/// Checks packets that a socket has received.
#[derive(Default)]
pub struct Checker {
    /// By the bytes of the packet.
    operators: HashMap<usize, Box<Operator>>,
}

impl Checker {
    /// The packet of a datagram without its check; `None`: the check is wrong.
    pub fn check<'a>(&mut self, from: SocketAddr, to: SocketAddr, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (packet, difference) = compare((from, to, [0; 4]), datagram)?;
        let is_right = match from {
            SocketAddr::V6(_) => difference == 0,
            SocketAddr::V4(_) => {
                // The identification and the fragment bits are the four bytes before the last 12 bytes of the IPv4
                // header and the 8 of UDP.
                let [_, _, flags, offset] = self.operator(packet.len()).apply(difference).to_le_bytes();
                flags & 0xbf == 0 && offset == 0
            }
        };
        is_right.then_some(packet)
    }

    fn operator(&mut self, len: usize) -> &Operator {
        if self.operators.len() >= OPERATORS_MAX && !self.operators.contains_key(&len) {
            self.operators.clear();
        }
        self.operators.entry(len).or_insert_with(|| Box::new(Operator::back(4 + 12 + UDP_LEN + len)))
    }
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checker({} lengths)", self.operators.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use proptest::prelude::*;

    #[test]
    fn checks_of_recorded_datagrams_are_right_and_damaged_bits_are_found() {
        let mut checker = Checker::default();
        let (mut damages, mut missed) = (0, 0);
        for golden in golden::ALL {
            let ((from, to), bytes) = (golden.addresses(), golden.bytes());
            assert!(checker.check(from, to, &bytes).is_some(), "{golden:?}");
            for bit in 0..bytes.len() * 8 {
                // The congestion bits are not covered.
                if bit / 8 != 4 {
                    let mut damaged = bytes.clone();
                    damaged[bit / 8] ^= 1 << (bit % 8);
                    damages += 1;
                    missed += u32::from(checker.check(from, to, &damaged).is_some());
                }
            }
            let other = SocketAddr::new([192, 168, 88, 3].into(), from.port());
            assert!(checker.check(other, to, &bytes).is_none(), "another sender");
        }
        // Some look like another identification: 15 bits of the check are left.
        assert!(damages > 10_000 && missed <= damages / 1024, "{missed} of {damages}");
        assert!(checker.check(([1, 2, 3, 4], 5).into(), ([1, 2, 3, 4], 5).into(), &[0; 3]).is_none());
    }

    #[test]
    fn a_datagram_without_an_identification_has_the_check_that_is_sent() {
        let golden = golden::WITHOUT_IDENTIFICATION;
        let ((from, to), bytes) = (golden.addresses(), golden.bytes());
        let (packet, check) = bytes.split_last_chunk::<LEN>().expect("long enough");
        let (head, rest) = packet.split_at(12);
        let built = of_parts(from, to, 0, head, rest.chunks(5));
        assert_eq!(built.to_le_bytes(), *check);
        // A ConnectX-4 adapter has sent this, with ECN bits and an identification of IPv4: an answer to congestion.
        let packet =
            [&[0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0][..], &[0; 16], &[0x82, 0xfd, 0, 0x2a]].concat();
        let (from, to) = (([10, 0, 17, 1], 0).into(), ([10, 0, 18, 1], 4791).into());
        assert!(Checker::default().check(from, to, &packet).is_some());
    }

    #[test]
    fn a_frame_is_checked_with_all_bits() {
        let payload = [7; 40];
        let (from, to): (SocketAddr, SocketAddr) = (([10, 0, 0, 1], 5).into(), ([10, 0, 0, 2], 4791).into());
        let datagram = right(&payload);
        assert_eq!(check_whole((from, to), sent(7), &datagram), Some(&datagram[..datagram.len() - LEN]));
        for bit in 0..32 {
            let fragmentation = (u32::from_be_bytes(sent(7)) ^ 1 << bit).to_be_bytes();
            assert_eq!(check_whole((from, to), fragmentation, &datagram), None, "bit {bit} of the header of IPv4");
        }
        for bit in (0..datagram.len() * 8).filter(|bit| bit / 8 != 4) {
            let mut damaged = datagram.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check_whole((from, to), sent(7), &damaged), None, "bit {bit}");
        }
    }

    /// A datagram of so many bytes with a right check.
    fn right(payload: &[u8]) -> Vec<u8> {
        let (from, to) = (([10, 0, 0, 1], 5).into(), ([10, 0, 0, 2], 4791).into());
        let head = [4; PACKET_MIN];
        let check = of_parts(from, to, 7, &head, std::iter::once(payload)).to_le_bytes();
        [&head[..], payload, &check].concat()
    }

    #[test]
    fn lengths_that_no_packet_has_are_refused_and_not_remembered() {
        let (from, to) = (([10, 0, 0, 1], 5).into(), ([10, 0, 0, 2], 4791).into());
        let mut checker = Checker::default();
        for len in 0..64 {
            let is_right = checker.check(from, to, &right(&[7; 64][..len])).is_some();
            assert_eq!(is_right, len.is_multiple_of(UNIT), "{len}");
        }
        assert!(checker.check(from, to, &[0; 12]).is_none());
        assert_eq!(checker.operators.len(), 16);
    }

    proptest! {
        #[test]
        fn the_check_of_ipv6_is_exact(words in prop::collection::vec(any::<u32>(), 0..80), bit in 0_usize..32) {
            let payload: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
            let (from, to) = (address("[2001:db8::1]:4791"), address("[2001:db8::2]:4791"));
            let head = [4; 12];
            let check = of_parts(from, to, 0, &head, std::iter::once(&payload[..])).to_le_bytes();
            let mut datagram = [&head[..], &payload, &check].concat();
            prop_assert!(Checker::default().check(from, to, &datagram).is_some());
            let at = datagram.len() - LEN + bit / 8;
            datagram[at] ^= 1 << (bit % 8);
            prop_assert!(Checker::default().check(from, to, &datagram).is_none());
        }

        #[test]
        fn every_identification_fits(
            words in prop::collection::vec(any::<u32>(), 0..1050), identification: u16, forbids: bool,
        ) {
            let payload: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let (from, to): (SocketAddr, SocketAddr) = (([10, 0, 0, 1], 5).into(), ([10, 0, 0, 2], 4791).into());
            let len = (28 + 12 + payload.len() + LEN) as u16;
            let ip = [
                &[0x45, 0xff][..], &len.to_be_bytes(), &identification.to_be_bytes(),
                &[if forbids { 0x40 } else { 0 }, 0, 0xff, 17, 0xff, 0xff], &[10, 0, 0, 1, 10, 0, 0, 2],
            ].concat();
            let udp = [&[0, 5, 0x12, 0xb7][..], &(len - 20).to_be_bytes(), &[0xff, 0xff]].concat();
            let head = [4, 0, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7];
            let covered = [&[0xff; 8][..], &ip, &udp, &head, &payload].concat();
            let check = crc32fast::hash(&covered).to_le_bytes();
            let datagram = [&head[..], &payload, &check].concat();
            prop_assert!(Checker::default().check(from, to, &datagram).is_some());
        }
    }
}
