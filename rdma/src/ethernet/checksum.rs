//! The checksum of IPv4, UDP and ICMP (RFC 1071).

use std::net::IpAddr;

/// A sum of 16-bit words, for the checksum of several parts. All parts but the last have an even length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds the words of a part; an odd byte at the end is the high one of a word (RFC 1071 section 1).
    #[must_use]
    pub fn with(self, part: &[u8]) -> Self {
        let (words, rest) = part.as_chunks::<2>();
        let sum: u64 = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum();
        let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
        Self(self.0 + sum + last)
    }

    /// The checksum: the complement of the sum in one's complement.
    #[must_use]
    pub fn checksum(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    /// Whether the parts, with their checksum, are right.
    #[must_use]
    pub fn is_right(self) -> bool {
        self.checksum() == 0
    }
}

/// The sum of the pseudo-header before a message of so many bytes (RFC 768; RFC 8200 section 8.1).
#[must_use]
pub fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, len: usize) -> Sum {
    let sum = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Sum::default().with(&from.octets()).with(&to.octets()),
        (from, to) => [from, to].into_iter().fold(Sum::default(), |sum, address| match address {
            IpAddr::V4(address) => sum.with(&address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => sum.with(&address.octets()),
        }),
    };
    sum.with(&[0, protocol]).with(&(len as u32).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_has_its_sum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().with(&bytes).checksum(), !0xddf2);
        assert_eq!(Sum::default().with(&bytes[..4]).with(&bytes[4..]).checksum(), !0xddf2);
        assert!(Sum::default().with(&bytes).with(&(!0xddf2_u16).to_be_bytes()).is_right());
    }

    #[test]
    fn an_odd_byte_is_followed_by_a_zero() {
        assert_eq!(Sum::default().with(&[1, 2, 3]), Sum::default().with(&[1, 2, 3, 0]));
        assert_eq!(Sum::default().with(&[0xff; 70_000]).checksum(), 0);
    }

    #[test]
    fn a_pseudo_header_has_addresses_protocol_and_length() {
        let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let words = [192, 0, 2, 1, 192, 0, 2, 2, 0, 17, 0, 9];
        assert_eq!(pseudo_header(one, other, 17, 9).checksum(), Sum::default().with(&words).checksum());
        let (one, other): (IpAddr, IpAddr) =
            ("2001:db8::1".parse().expect("right"), "2001:db8::2".parse().expect("right"));
        let sum = 2 * (0x2001 + 0x0db8) + 1 + 2 + 58 + 9;
        assert_eq!(pseudo_header(one, other, 58, 9).checksum(), !(sum as u16));
    }
}
