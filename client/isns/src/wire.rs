//! iSNSP messages (RFC 4171 5): a header of twelve bytes, and attributes of tag, length and value.
//!
//! A message may consist of several PDUs. The [`client`](crate::client) decides which messages are valid.

use lunar_core::codes;
use lunar_core::wire::be::{U16, U32};
use lunar_core::wire::{Cursor, round_up};
use std::net::{IpAddr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of a header, in bytes.
pub const HEADER_LEN: usize = 12;
/// The protocol version (5.1.1).
pub const VERSION: u16 = 1;
/// The longest payload of a PDU, in bytes: the largest value of the length field that is a multiple of 4 (5.1.3).
pub const PAYLOAD_MAX: usize = 65_532;
/// The alignment of values, in bytes (5.3.1).
const WORD: usize = 4;
/// The longest Entity Identifier with its NUL, in bytes (6.2.1).
pub const ENTITY_MAX: usize = 256;
/// The longest iSCSI name with its NUL, in bytes (6.4.1).
pub const NAME_MAX: usize = 224;
/// The longest alias with its NUL, in bytes (6.4.3).
pub const ALIAS_MAX: usize = 256;

/// Flag (5.1.4): the sender is a client.
pub const FROM_CLIENT: u16 = 0x8000;
/// Flag: the sender is the server.
pub const FROM_SERVER: u16 = 0x4000;
/// Flag: an authentication block follows the payload (5.5).
pub const SIGNED: u16 = 0x2000;
/// Flag: the registration replaces an existing one.
pub const REPLACE: u16 = 0x1000;
/// Flag: the last PDU of a message.
pub const LAST: u16 = 0x0800;
/// Flag: the first PDU of a message.
pub const FIRST: u16 = 0x0400;

/// Entity Protocol (6.2.2): iSCSI.
pub const ISCSI: u32 = 2;
/// iSCSI Node Type (6.4.2): target.
pub const TARGET: u32 = 1;

codes! {
    /// The function of a message (5.6, 5.7).
    pub struct Function(u16) {
        DEV_ATTR_REG = 0x0001, DEV_ATTR_QRY = 0x0002, DEV_DEREG = 0x0004,
        DEV_ATTR_REG_RSP = 0x8001, DEV_ATTR_QRY_RSP = 0x8002, DEV_DEREG_RSP = 0x8004,
    }
}

impl Function {
    /// The function of the response.
    #[must_use]
    pub fn response(self) -> Self {
        Self(self.0 | 0x8000)
    }
}

codes! {
    /// The status code of a response (5.4).
    pub struct Status(u32) {
        SUCCESS = 0, UNKNOWN_ERROR = 1, MESSAGE_FORMAT_ERROR = 2, INVALID_REGISTRATION = 3, INVALID_QUERY = 5,
        SOURCE_UNKNOWN = 6, SOURCE_ABSENT = 7, SOURCE_UNAUTHORIZED = 8, NO_SUCH_ENTRY = 9, VERSION_NOT_SUPPORTED = 10,
        INTERNAL_ERROR = 11, BUSY = 12, OPTION_NOT_UNDERSTOOD = 13, INVALID_UPDATE = 14, MESSAGE_NOT_SUPPORTED = 15,
        SCN_EVENT_REJECTED = 16, SCN_REGISTRATION_REJECTED = 17, ATTRIBUTE_NOT_IMPLEMENTED = 18,
        ESI_NOT_AVAILABLE = 21, INVALID_DEREGISTRATION = 22, REGISTRATION_FEATURE_NOT_SUPPORTED = 23,
    }
}

codes! {
    /// The tag of an attribute (6.1).
    pub struct Tag(u32) {
        DELIMITER = 0, ENTITY_IDENTIFIER = 1, ENTITY_PROTOCOL = 2, REGISTRATION_PERIOD = 6,
        PORTAL_ADDRESS = 16, PORTAL_PORT = 17,
        ISCSI_NAME = 32, ISCSI_NODE_TYPE = 33, ISCSI_ALIAS = 34,
        PG_ISCSI_NAME = 48, PG_PORTAL_ADDRESS = 49, PG_PORTAL_PORT = 50, PG_TAG = 51,
    }
}

/// The header of a PDU (RFC 4171 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The protocol version.
    pub version: U16,
    /// The [`Function`].
    pub function: U16,
    /// The length of the payload, in bytes.
    pub length: U16,
    /// The flags (5.1.4).
    pub flags: U16,
    /// The transaction ID, chosen by the client.
    pub transaction: U16,
    /// The sequence ID: the position of the PDU in its message, from 0.
    pub sequence: U16,
}

impl Header {
    /// The function of the message.
    #[must_use]
    pub fn function(&self) -> Function {
        Function(self.function.get())
    }

    /// Whether this flag is set.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }
}

/// Tag and length of an attribute, which precede its value (RFC 4171 5.1.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Label {
    /// The [`Tag`].
    pub tag: U32,
    /// The length of the value, in bytes.
    pub length: U32,
}

/// An attribute of a received payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribute<'a> {
    /// The tag.
    pub tag: Tag,
    /// The value with its padding; empty if only the tag is given.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The value as a number; `None` if it has not four bytes.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        U32::read_from_bytes(self.value).ok().map(U32::get)
    }

    /// The value as text, up to its NUL; `None` if it is not UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        std::str::from_utf8(&self.value[..end]).ok()
    }
}

/// The payload contains bytes that are no valid attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// The attributes of a payload in order. Iteration ends after a malformed attribute.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self) -> Option<Attribute<'a>> {
        let mut cursor = Cursor::new(self.0);
        let label: &Label = cursor.take().ok()?;
        let length = usize::try_from(label.length.get()).ok().filter(|length| *length <= PAYLOAD_MAX)?;
        let value = cursor.bytes(round_up(length, WORD)).ok()?;
        self.0 = cursor.rest();
        Some(Attribute { tag: Tag(label.tag.get()), value: &value[..length] })
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_none() {
            self.0 = &[];
        }
        Some(taken.ok_or(Malformed))
    }
}

/// The payload of a message to send.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// Appends an attribute with this value.
    pub fn put(&mut self, tag: Tag, value: &[u8]) -> &mut Self {
        // All values that Lunar sends are far shorter than 4 GiB.
        let label = Label { tag: U32::new(tag.0), length: U32::new(value.len() as u32) };
        self.0.extend_from_slice(label.as_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(round_up(self.0.len(), WORD), 0);
        self
    }

    /// Appends an attribute without a value.
    pub fn empty(&mut self, tag: Tag) -> &mut Self {
        self.put(tag, &[])
    }

    /// Appends a number.
    pub fn number(&mut self, tag: Tag, value: u32) -> &mut Self {
        self.put(tag, &value.to_be_bytes())
    }

    /// Appends a NUL-terminated text of at most `most` bytes; a longer text is cut at a character boundary. The length
    /// includes the padding (5.3.1).
    pub fn text(&mut self, tag: Tag, value: &str, most: usize) -> &mut Self {
        let mut end = value.len().min(most - 1);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = value.as_bytes()[..end].to_vec();
        bytes.resize(round_up(end + 1, WORD), 0);
        self.put(tag, &bytes)
    }

    /// Appends an address; IPv4 addresses are mapped to IPv6 (6.3.1).
    pub fn address(&mut self, tag: Tag, value: IpAddr) -> &mut Self {
        let value: Ipv6Addr = match value {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        self.put(tag, &value.octets())
    }

    /// Appends the attributes of another payload.
    pub fn append(&mut self, other: &Self) -> &mut Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// The encoded attributes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Encodes a request that consists of one PDU.
#[must_use]
pub fn request(function: Function, flags: u16, transaction: u16, payload: &Payload) -> Vec<u8> {
    let header = Header {
        version: U16::new(VERSION),
        function: U16::new(function.0),
        // `Registration` splits requests well below this limit.
        length: U16::new(payload.0.len().min(PAYLOAD_MAX) as u16),
        flags: U16::new(flags | FROM_CLIENT | FIRST | LAST),
        transaction: U16::new(transaction),
        sequence: U16::new(0),
    };
    [header.as_bytes(), &payload.0].concat()
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
