//! The formats of iSER (RFC 7145 9), and the private data of the connection manager (InfiniBand annex A12).

use lunar_core::wire::be::{U16, U32, U64};
use lunar_rdma::wire::Remote;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEADER_LEN: usize = size_of::<Header>();

/// The kind of a message: the high bits of its first byte.
const KIND_MASK: u8 = 0xf0;
const CONTROL: u8 = 0x10;
const HELLO: u8 = 0x20;
const HELLO_REPLY: u8 = 0x30;
/// The tag for writes, and the tag for reads, is valid.
const WRITE_VALID: u8 = 0x08;
const READ_VALID: u8 = 0x04;
/// The versions of a hello message: 10 as the highest, and as the lowest or current one.
const VERSIONS: u8 = 0xaa;
/// The target rejects the connection.
const REJECTED: u8 = 0x01;

/// The header of an iSCSI control-type PDU (RFC 7145 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// The kind of the message, and which tags are valid.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 3],
    /// The tag of the memory that the target reads.
    pub write_key: U32,
    /// The address of its first byte.
    pub write_base: U64,
    /// The tag of the memory that the target writes.
    pub read_key: U32,
    /// The address of its first byte.
    pub read_base: U64,
}

/// A hello message, or the reply to one (RFC 7145 9.3, 9.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Hello {
    /// The kind of the message.
    pub flags: u8,
    /// The highest version, and the lowest or current one.
    pub versions: u8,
    /// RDMA READs that may be outstanding.
    pub reads: U16,
    /// Reserved.
    pub reserved: [u8; 24],
}

const _: () = assert!(size_of::<Header>() == 28 && size_of::<Hello>() == 28);

/// A message of an initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A PDU.
    Pdu(Tags, &'a [u8]),
    /// A hello message, and the RDMA READs that the initiator takes at the same time (iSER-IRD); `None`: it has no
    /// version that is known.
    Hello(Option<u16>),
}

/// Memory of an initiator that a PDU names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tags {
    /// The target reads it: data that the initiator writes.
    pub write: Option<Remote>,
    /// The target writes it: data that the initiator reads.
    pub read: Option<Remote>,
}

impl Message<'_> {
    /// Takes a message apart; `None`: it is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Message<'_>> {
        let (header, rest) = Header::ref_from_prefix(bytes).ok()?;
        match header.flags & KIND_MASK {
            CONTROL => Some(Message::Pdu(header.tags(), rest)),
            HELLO => {
                let hello = Hello::ref_from_bytes(header.as_bytes()).ok()?;
                let (highest, lowest) = (hello.versions >> 4, hello.versions & 0x0f);
                let is_known = (lowest..=highest).contains(&(VERSIONS & 0x0f));
                Some(Message::Hello(is_known.then_some(hello.reads.get())))
            }
            _ => None,
        }
    }
}

impl Header {
    /// The header of a PDU of a target.
    #[must_use]
    pub fn of_target() -> Self {
        let (key, base) = (0.into(), 0.into());
        Self { flags: CONTROL, reserved: [0; 3], write_key: key, write_base: base, read_key: key, read_base: base }
    }

    /// The header of a PDU of an initiator.
    #[must_use]
    pub fn of_initiator(tags: &Tags) -> Self {
        let mut header = Self::of_target();
        if let Some(Remote { address, key }) = tags.write {
            header.flags |= WRITE_VALID;
            (header.write_key, header.write_base) = (key.into(), address.into());
        }
        if let Some(Remote { address, key }) = tags.read {
            header.flags |= READ_VALID;
            (header.read_key, header.read_base) = (key.into(), address.into());
        }
        header
    }

    fn tags(&self) -> Tags {
        let of = |valid, key: U32, base: U64| {
            (self.flags & valid != 0).then(|| Remote { address: base.get(), key: key.get() })
        };
        Tags {
            write: of(WRITE_VALID, self.write_key, self.write_base),
            read: of(READ_VALID, self.read_key, self.read_base),
        }
    }
}

impl Hello {
    /// The reply of a target to a hello message: so many RDMA READs may be outstanding; `None`: it rejects the
    /// connection.
    #[must_use]
    pub fn reply(reads: Option<u8>) -> Self {
        let flags = if reads.is_some() { HELLO_REPLY } else { HELLO_REPLY | REJECTED };
        Self { flags, versions: VERSIONS, reads: u16::from(reads.unwrap_or(0)).into(), reserved: [0; 24] }
    }
}

/// Private data: zero-based virtual addresses are not supported, nor is SEND with invalidation.
const NO_ZERO_BASED: u8 = 0x80;
const NO_INVALIDATION: u8 = 0x40;

/// Whether the private data of a request allows SEND with invalidation. Without private data it does not: then no flag
/// is set.
#[must_use]
pub fn allows_invalidation(private: &[u8]) -> bool {
    private.first().is_some_and(|flags| flags & (NO_ZERO_BASED | NO_INVALIDATION) == NO_ZERO_BASED)
}

/// The private data of a reply.
#[must_use]
pub fn reply_private(invalidates: bool) -> [u8; 4] {
    [if invalidates { NO_ZERO_BASED } else { NO_ZERO_BASED | NO_INVALIDATION }, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a command of the initiator of Linux, recorded: a READ.
    const RECORDED: [u8; 28] =
        [0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1a, 0x2b, 0, 0, 0, 0, 0x12, 0x34, 0x50, 0];

    #[test]
    fn a_header_is_taken_apart_and_built() {
        let read = Remote { address: 0x1234_5000, key: 0x1a2b };
        let tags = Tags { read: Some(read), write: None };
        let pdu = [RECORDED.as_slice(), b"pdu"].concat();
        assert_eq!(Message::parse(&pdu), Some(Message::Pdu(tags, b"pdu")));
        assert_eq!(Header::of_initiator(&tags).as_bytes(), RECORDED);
        let both = Tags { write: Some(read.plus(8)), read: Some(read) };
        assert_eq!(Message::parse(Header::of_initiator(&both).as_bytes()), Some(Message::Pdu(both, b"")));
        assert_eq!(Header::of_target().as_bytes()[..4], [0x10, 0, 0, 0]);
        for (at, first) in [(27, 0x14), (28, 0x40), (28, 0)] {
            let mut bytes = RECORDED;
            bytes[0] = first;
            assert_eq!(Message::parse(&bytes[..at]), None);
        }
    }

    #[test]
    fn a_hello_message_is_answered() {
        for (versions, reads) in [(0xaa, Some(0x102)), (0xb1, Some(0x102)), (0x91, None)] {
            let mut bytes = [0; 28];
            bytes[..4].copy_from_slice(&[0x20, versions, 1, 2]);
            assert_eq!(Message::parse(&bytes), Some(Message::Hello(reads)));
        }
        assert_eq!(Hello::reply(Some(4)).as_bytes()[..4], [0x30, 0xaa, 0, 4]);
        assert_eq!(Hello::reply(None).as_bytes()[..4], [0x31, 0xaa, 0, 0]);
    }

    #[test]
    fn keys_are_invalidated_only_if_the_initiator_says_so() {
        for (private, allowed) in
            [(&[0x80, 0, 0, 0][..], true), (&[0xc0, 0, 0, 0], false), (&[0; 56], false), (&[], false)]
        {
            assert_eq!(allows_invalidation(private), allowed);
        }
        assert_eq!((reply_private(true)[0], reply_private(false)[0]), (0x80, 0xc0));
    }
}
