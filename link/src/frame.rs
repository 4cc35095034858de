//! The header of an Ethernet frame without VLAN tag (IEEE 802.3-2022 3.2), and received frames.

use lunar_core::mem::Slice;
use lunar_reactor::endpoint::MacAddress;

/// Bytes of the header.
pub const HEADER_LEN: usize = 14;

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The destination address.
    pub destination: MacAddress,
    /// The source address.
    pub source: MacAddress,
    /// The EtherType.
    pub ether_type: u16,
}

impl Header {
    /// The header of a frame; `None` if the frame is too short to have one.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (destination, rest) = frame.split_first_chunk()?;
        let (source, rest) = rest.split_first_chunk()?;
        let (ether_type, _) = rest.split_first_chunk()?;
        Some(Self {
            destination: MacAddress(*destination),
            source: MacAddress(*source),
            ether_type: u16::from_be_bytes(*ether_type),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..6].copy_from_slice(&self.destination.0);
        bytes[6..12].copy_from_slice(&self.source.0);
        bytes[12..].copy_from_slice(&self.ether_type.to_be_bytes());
        bytes
    }
}

/// A received frame. Its source is the address of one station.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The header.
    pub header: Header,
    /// The bytes behind the header, with the padding of a short frame.
    pub payload: Slice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed_and_built() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x88, 0xa2];
        let header = Header::parse(&bytes).expect("long enough");
        assert_eq!((header.destination.0, header.source.0), ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]));
        assert_eq!((header.ether_type, header.bytes()), (0x88a2, bytes));
        assert_eq!(Header::parse(&bytes[..13]), None);
    }
}
