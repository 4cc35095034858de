//! Datagrams of UDP (RFC 768) that carry RoCEv2.
//!
//! Senders of RoCEv2 do not compute the checksum: the check of each packet covers its addresses, ports and payload. A
//! checksum of 0 is taken over IPv4, and over IPv6 as RFC 6935 section 5 allows for one port of a tunnel; the check
//! serves the purpose of the tunnel's own check of RFC 6936 section 4. A checksum that is not 0 has to be right.

use super::checksum::pseudo_header;
use super::ip::{self, Malformed, Packet};
use lunar_core::wire::Cursor;
use lunar_core::wire::be::U16;
use std::net::IpAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_LEN: usize = size_of::<Header>();

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    from: U16,
    to: U16,
    len: U16,
    checksum: U16,
}

/// A received datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The source port.
    pub from: u16,
    /// The destination port.
    pub to: u16,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// The datagram of a packet.
    ///
    /// # Errors
    /// The length of the datagram is not that of the packet, or its checksum is wrong.
    pub fn parse(packet: &Packet<'a>) -> Result<Self, Malformed> {
        let bytes = packet.payload;
        let mut cursor = Cursor::new(bytes);
        let header: &Header = cursor.take().map_err(|_| Malformed::Format)?;
        // The check of RoCEv2 covers the lengths of IP and UDP, which fit together.
        if usize::from(header.len.get()) != bytes.len() {
            return Err(Malformed::Format);
        }
        let is_checked = header.checksum.get() != 0;
        let sum = || pseudo_header(packet.from, packet.to, ip::UDP, bytes.len()).with(bytes);
        if is_checked && !sum().is_right() {
            return Err(Malformed::Checksum);
        }
        Ok(Self { from: header.from.get(), to: header.to.get(), payload: cursor.rest() })
    }
}

/// The header between these ports, before a payload of so many bytes, without a checksum.
#[must_use]
pub fn header(from: u16, to: u16, payload: usize) -> [u8; HEADER_LEN] {
    // A frame has fewer than 65,536 bytes.
    let len = (HEADER_LEN + payload) as u16;
    let header = Header { from: from.into(), to: to.into(), len: len.into(), checksum: 0.into() };
    let mut bytes = [0; HEADER_LEN];
    bytes.copy_from_slice(header.as_bytes());
    bytes
}

/// The bytes behind the header of IP that a datagram has besides its payload, and the header.
#[must_use]
pub fn overhead(address: IpAddr) -> usize {
    ip::Header::size(address.is_ipv4()) + HEADER_LEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(is_v4: bool, payload: &[u8]) -> Packet<'_> {
        let (from, to): (IpAddr, IpAddr) = match is_v4 {
            true => ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
            false => ("2001:db8::1".parse().expect("right"), "2001:db8::2".parse().expect("right")),
        };
        Packet { from, to, protocol: ip::UDP, hop_limit: 64, fragmentation: [0; 4], payload }
    }

    #[test]
    fn a_checksum_is_left_out_or_right() {
        for is_v4 in [true, false] {
            let bytes = [&header(0xc123, 4791, 3)[..], &[1, 2, 3]].concat();
            let taken = Datagram { from: 0xc123, to: 4791, payload: &[1, 2, 3] };
            assert_eq!(Datagram::parse(&packet(is_v4, &bytes)), Ok(taken));
            let at = packet(is_v4, &bytes);
            let checksum = pseudo_header(at.from, at.to, ip::UDP, bytes.len()).with(&bytes).checksum();
            let with = |checksum: u16| [&bytes[..6], &checksum.to_be_bytes(), &bytes[8..]].concat();
            assert_eq!(Datagram::parse(&packet(is_v4, &with(checksum))), Ok(taken));
            assert_eq!(Datagram::parse(&packet(is_v4, &with(checksum ^ 1))), Err(Malformed::Checksum));
        }
        assert_eq!((overhead([0; 4].into()), overhead([0_u16; 8].into())), (28, 48));
    }

    #[test]
    fn lengths_fit_to_the_packet() {
        let bytes = [&header(1, 2, 3)[..], &[1, 2, 3, 4]].concat();
        for len in [0, 7, 8, 10, 12] {
            assert_eq!(Datagram::parse(&packet(true, &bytes[..len])), Err(Malformed::Format), "{len}");
        }
        assert!(Datagram::parse(&packet(true, &bytes[..11])).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_datagram_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(datagram) = Datagram::parse(&packet(true, &bytes)) {
                prop_assert_eq!(datagram.payload.len() + HEADER_LEN, bytes.len());
            }
        }
    }
}
