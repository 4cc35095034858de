//! Messages of the Address Resolution Protocol for IPv4 over Ethernet (RFC 826).

use lunar_core::codes;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::U16;
use lunar_link::MacAddress;
use std::net::Ipv4Addr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The EtherType.
pub const ETHER_TYPE: u16 = 0x0806;
/// Ethernet, among hardware types (IANA).
const ETHERNET: u16 = 1;
/// Bytes of a message.
pub const LEN: usize = size_of::<Layout>();

codes! {
    /// The operation of a message.
    pub struct Operation(u16) { REQUEST = 1, REPLY = 2 }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender_mac: [u8; 6],
    sender: [u8; 4],
    target_mac: [u8; 6],
    target: [u8; 4],
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The operation.
    pub operation: Operation,
    /// The addresses of the sender.
    pub sender: (MacAddress, Ipv4Addr),
    /// The addresses of the target; its MAC address is not known in a request.
    pub target: (MacAddress, Ipv4Addr),
}

impl Message {
    /// The message of a frame; `None`: it is of another network, or its sender is a group.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let layout: &Layout = Cursor::new(bytes).take().ok()?;
        let kind = (layout.hardware.get(), layout.protocol.get(), layout.hardware_len, layout.protocol_len);
        let sender = MacAddress(layout.sender_mac);
        if kind != (ETHERNET, super::ip::IPV4, 6, 4) || sender.is_group() {
            return None;
        }
        Some(Self {
            operation: Operation(layout.operation.get()),
            sender: (sender, layout.sender.into()),
            target: (MacAddress(layout.target_mac), layout.target.into()),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let layout = Layout {
            hardware: ETHERNET.into(),
            protocol: super::ip::IPV4.into(),
            hardware_len: 6,
            protocol_len: 4,
            operation: self.operation.0.into(),
            sender_mac: self.sender.0.0,
            sender: self.sender.1.octets(),
            target_mac: self.target.0.0,
            target: self.target.1.octets(),
        };
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_recorded_request_is_taken_apart_and_built() {
        let recorded =
            [0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0x12, 0x34, 2, 192, 168, 77, 2, 0, 0, 0, 0, 0, 0, 192, 168, 77, 1];
        let message = Message {
            operation: Operation::REQUEST,
            sender: (MacAddress([0x52, 0x54, 0, 0x12, 0x34, 2]), [192, 168, 77, 2].into()),
            target: (MacAddress([0; 6]), [192, 168, 77, 1].into()),
        };
        assert_eq!((Message::parse(&recorded), message.bytes()), (Some(message), recorded));
        let padded = [&recorded[..], &[0xa5; 18]].concat();
        assert_eq!(Message::parse(&padded), Some(message), "a short frame is padded");
        for (at, to) in [(1, 6), (2, 0x86), (4, 8), (5, 16), (8, 0x53)] {
            let mut wrong = recorded;
            wrong[at] = to;
            assert_eq!(Message::parse(&wrong), None, "byte {at}");
        }
        assert_eq!(Message::parse(&recorded[..27]), None);
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_written(operation: u16, macs: [[u8; 6]; 2], addresses: [[u8; 4]; 2]) {
            let [sender, target] = addresses.map(Ipv4Addr::from);
            let [mut from, to] = macs;
            from[0] &= 0xfe;
            let message = Message {
                operation: Operation(operation),
                sender: (MacAddress(from), sender),
                target: (MacAddress(to), target),
            };
            prop_assert_eq!(Message::parse(&message.bytes()), Some(message));
        }
    }
}
