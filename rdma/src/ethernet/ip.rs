//! Packets of IPv4 (RFC 791) and IPv6 (RFC 8200), without options and extension headers: RoCEv2 has none. Fragments
//! are not put together, because senders of RoCEv2 do not fragment.

use super::checksum::Sum;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::{U16, U32};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The EtherType of IPv4 (RFC 894).
pub const IPV4: u16 = 0x0800;
/// The EtherType of IPv6 (RFC 2464 section 3).
pub const IPV6: u16 = 0x86dd;
/// Protocol numbers (IANA).
pub const ICMP: u8 = 1;
/// See [`ICMP`].
pub const UDP: u8 = 17;
/// See [`ICMP`].
pub const ICMPV6: u8 = 58;
/// The fragment header of IPv6 (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;

/// Bytes of the longest header: that of IPv6.
pub const HEADER_MAX: usize = size_of::<V6>();
/// Version 4, and a header of five words.
const VERSION_4: u8 = 0x45;
/// Version 6, in the first four bits; traffic class and flow label follow.
const VERSION_6: u32 = 6 << 28;
/// The bit of IPv4 that forbids fragments.
const DONT_FRAGMENT: u16 = 0x4000;
/// The bits of a fragment of IPv4: more fragments, and the offset.
const FRAGMENT_BITS: u16 = 0x3fff;
/// The hop limit of packets (RFC 1122 3.2.1.7: the recommended time to live).
pub const HOP_LIMIT: u8 = 64;
/// The hop limit of messages to neighbours, which no router has forwarded (RFC 4861 section 11.2).
pub const NEIGHBOUR_HOP_LIMIT: u8 = 255;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct V4 {
    version: u8,
    class: u8,
    len: U16,
    identification: U16,
    fragment: U16,
    time_to_live: u8,
    protocol: u8,
    checksum: U16,
    from: [u8; 4],
    to: [u8; 4],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct V6 {
    version: U32,
    len: U16,
    next: u8,
    hop_limit: u8,
    from: [u8; 16],
    to: [u8; 16],
}

/// Why a packet is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// A length or a version is wrong, or there are options.
    Format,
    /// The checksum is wrong.
    Checksum,
    /// It is a fragment.
    Fragment,
}

/// A received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The source address.
    pub from: IpAddr,
    /// The destination address.
    pub to: IpAddr,
    /// The protocol of the payload.
    pub protocol: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// Identification, flags and fragment offset of IPv4, which the check of RoCEv2 covers; zeroes of IPv6.
    pub fragmentation: [u8; 4],
    /// The payload, without the padding of a short frame.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet of a frame of this EtherType.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn parse(ether_type: u16, bytes: &'a [u8]) -> Result<Self, Malformed> {
        match ether_type {
            IPV4 => Self::parse_v4(bytes),
            IPV6 => Self::parse_v6(bytes),
            _ => Err(Malformed::Format),
        }
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let header: &V4 = cursor.take().map_err(|_| Malformed::Format)?;
        if header.version != VERSION_4 {
            return Err(Malformed::Format);
        }
        if !Sum::default().with(header.as_bytes()).is_right() {
            return Err(Malformed::Checksum);
        }
        if header.fragment.get() & FRAGMENT_BITS != 0 {
            return Err(Malformed::Fragment);
        }
        let len = usize::from(header.len.get()).checked_sub(size_of::<V4>()).ok_or(Malformed::Format)?;
        let payload = cursor.rest().get(..len).ok_or(Malformed::Format)?;
        let [a, b] = header.identification.to_bytes();
        let [c, d] = header.fragment.to_bytes();
        Ok(Self {
            from: Ipv4Addr::from(header.from).into(),
            to: Ipv4Addr::from(header.to).into(),
            protocol: header.protocol,
            hop_limit: header.time_to_live,
            fragmentation: [a, b, c, d],
            payload,
        })
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let header: &V6 = cursor.take().map_err(|_| Malformed::Format)?;
        if header.version.get() >> 28 != VERSION_6 >> 28 {
            return Err(Malformed::Format);
        }
        if header.next == FRAGMENT {
            return Err(Malformed::Fragment);
        }
        let payload = cursor.rest().get(..usize::from(header.len.get())).ok_or(Malformed::Format)?;
        Ok(Self {
            from: Ipv6Addr::from(header.from).into(),
            to: Ipv6Addr::from(header.to).into(),
            protocol: header.next,
            hop_limit: header.hop_limit,
            fragmentation: [0; 4],
            payload,
        })
    }
}

/// A header to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The source address.
    pub from: IpAddr,
    /// The destination address, of the same version.
    pub to: IpAddr,
    /// The protocol of the payload.
    pub protocol: u8,
    /// The hop limit.
    pub hop_limit: u8,
}

/// The bytes of a header.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    bytes: [u8; HEADER_MAX],
    len: usize,
}

impl std::ops::Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Header {
    /// The EtherType of its frames.
    #[must_use]
    pub fn ether_type(&self) -> u16 {
        if self.from.is_ipv4() { IPV4 } else { IPV6 }
    }

    /// Its bytes, before a payload of so many bytes. Identification, traffic class and flow label are 0, and IPv4
    /// forbids fragments (RFC 6864 section 4: such a packet needs no identification).
    #[must_use]
    pub fn bytes(&self, payload: usize) -> HeaderBytes {
        let mut header = HeaderBytes { bytes: [0; HEADER_MAX], len: 0 };
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut v4 = V4 {
                    version: VERSION_4,
                    class: 0,
                    // A frame has fewer than 65,536 bytes.
                    len: ((size_of::<V4>() + payload) as u16).into(),
                    identification: 0.into(),
                    fragment: DONT_FRAGMENT.into(),
                    time_to_live: self.hop_limit,
                    protocol: self.protocol,
                    checksum: 0.into(),
                    from: from.octets(),
                    to: to.octets(),
                };
                v4.checksum = Sum::default().with(v4.as_bytes()).checksum().into();
                header.put(v4.as_bytes());
            }
            (from, to) => {
                let octets = |address| match address {
                    IpAddr::V4(address) => Ipv4Addr::to_ipv6_mapped(&address).octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                let v6 = V6 {
                    version: VERSION_6.into(),
                    len: (payload as u16).into(),
                    next: self.protocol,
                    hop_limit: self.hop_limit,
                    from: octets(from),
                    to: octets(to),
                };
                header.put(v6.as_bytes());
            }
        }
        header
    }

    /// Bytes of a header between these addresses.
    #[must_use]
    pub fn size(is_ipv4: bool) -> usize {
        if is_ipv4 { size_of::<V4>() } else { size_of::<V6>() }
    }
}

impl HeaderBytes {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len();
    }
}

#[cfg(test)]
#[path = "ip_tests.rs"]
mod tests;
