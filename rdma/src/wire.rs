//! Packets of a reliable connection (InfiniBand Architecture, volume 1, chapter 9), as RoCEv2 has them in datagrams.

use lunar_core::codes;
use lunar_core::wire::Cursor;
use lunar_core::wire::be::{U16, U32, U64};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The UDP port of RoCEv2.
pub const PORT: u16 = 4791;
/// The queue pair of the connection manager.
pub const MANAGER_QPN: u32 = 1;
/// The Q_Key of the connection manager.
pub const MANAGER_Q_KEY: u32 = 0x8001_0000;
/// The partition key of the default partition, and its bits that have to match.
const P_KEY: u16 = 0xffff;
const P_KEY_BITS: u16 = 0x7fff;
/// Bytes of the base transport header.
pub const BASE_LEN: usize = size_of::<Base>();
/// The most bytes of all headers of a packet that is sent here.
pub const HEADERS_MAX: usize = BASE_LEN + size_of::<RemoteAddress>();
/// Bytes of padding behind a payload, and of the check behind it, at most.
pub const TRAILER_MAX: usize = 3 + crate::icrc::LEN;

/// Bytes of the longest datagram: a path MTU of 4096 bytes, with its headers.
pub const DATAGRAM_MAX: usize = (128 << MTU_CODE_MAX) + HEADERS_MAX + TRAILER_MAX;

/// The path MTU of a code, 1 to 5 for 256 to 4096 bytes.
#[must_use]
pub fn mtu_bytes(code: u8) -> usize {
    128 << code.min(MTU_CODE_MAX)
}

/// The code of the largest path MTU whose packets fit into datagrams of this many bytes; 0: none does.
#[must_use]
pub fn mtu_code(datagram: usize) -> u8 {
    let room = datagram.saturating_sub(HEADERS_MAX + TRAILER_MAX);
    (1..=MTU_CODE_MAX).rev().find(|code| mtu_bytes(*code) <= room).unwrap_or(0)
}

/// The code of the largest path MTU.
const MTU_CODE_MAX: u8 = 5;

/// Numbers of queue pairs and packets have 24 bits.
pub const NUMBER_BITS: u32 = 0x00ff_ffff;

codes! {
    /// The type of a packet.
    pub struct Opcode(u8) {
        SEND_FIRST = 0x00, SEND_MIDDLE = 0x01, SEND_LAST = 0x02, SEND_LAST_IMMEDIATE = 0x03, SEND_ONLY = 0x04,
        SEND_ONLY_IMMEDIATE = 0x05, WRITE_FIRST = 0x06, WRITE_MIDDLE = 0x07, WRITE_LAST = 0x08,
        WRITE_LAST_IMMEDIATE = 0x09, WRITE_ONLY = 0x0a, WRITE_ONLY_IMMEDIATE = 0x0b, READ_REQUEST = 0x0c,
        READ_RESPONSE_FIRST = 0x0d, READ_RESPONSE_MIDDLE = 0x0e, READ_RESPONSE_LAST = 0x0f, READ_RESPONSE_ONLY = 0x10,
        ACKNOWLEDGE = 0x11, ATOMIC_ACKNOWLEDGE = 0x12, COMPARE_SWAP = 0x13, FETCH_ADD = 0x14,
        SEND_LAST_INVALIDATE = 0x16, SEND_ONLY_INVALIDATE = 0x17, DATAGRAM = 0x64,
    }
}

codes! {
    /// The syndrome of an acknowledgement. Below 20h it is positive; from 20h to 3Fh the receiver is not ready.
    pub struct Syndrome(u8) {
        ACKNOWLEDGED = 0x1f, SEQUENCE_ERROR = 0x60, INVALID_REQUEST = 0x61, ACCESS_ERROR = 0x62,
        OPERATIONAL_ERROR = 0x63,
    }
}

impl Syndrome {
    /// A receiver is not ready for the time of this code.
    const NOT_READY: u8 = 0x20;

    /// Positive.
    #[must_use]
    pub fn is_positive(self) -> bool {
        self.0 < Self::NOT_READY
    }

    /// The receiver is not ready; for so many microseconds.
    #[must_use]
    pub fn not_ready(self) -> Option<u64> {
        /// Hundredths of a millisecond of each code.
        const TIMES: [u64; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        let code = self.0.checked_sub(Self::NOT_READY)?;
        TIMES.get(usize::from(code)).map(|time| time * 10)
    }

    /// The receiver is not ready, for 1.28 ms.
    pub const WAIT: Self = Self(Self::NOT_READY | 14);
}

/// The number of a packet: 24 bits that begin again after the last one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The number of these bits.
    #[must_use]
    pub fn new(bits: u32) -> Self {
        Self(bits & NUMBER_BITS)
    }

    /// Its bits.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number so many packets later.
    #[must_use]
    pub fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// How many packets it is behind `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & NUMBER_BITS
    }

    /// Whether it is before `other`: by less than half of all numbers.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.since(other) > NUMBER_BITS / 2
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

/// The base transport header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Base {
    opcode: u8,
    flags: u8,
    p_key: U16,
    /// The number of the receiving queue pair, behind a byte of congestion bits.
    qpn: U32,
    /// The number of the packet, behind a byte whose first bit requests an acknowledgement.
    psn: U32,
}

/// The bits of `flags` that say how many bytes of padding follow the payload.
const PAD_SHIFT: u8 = 4;
const PAD_BITS: u8 = 3;
const VERSION_BITS: u8 = 0x0f;
const ACKNOWLEDGE_REQUEST: u32 = 1 << 31;

/// The datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DatagramHeader {
    q_key: U32,
    qpn: U32,
}

/// The RDMA extended transport header: memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RemoteAddress {
    address: U64,
    key: U32,
    len: U32,
}

/// Memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Its virtual address.
    pub address: u64,
    /// Its R_Key.
    pub key: u32,
}

impl Remote {
    /// The memory so many bytes behind.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self { address: self.address.wrapping_add(bytes as u64), ..self }
    }
}

/// The extension behind the base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// Nothing.
    None,
    /// Memory of the receiver, and its length.
    Remote(Remote, u32),
    /// An acknowledgement: syndrome and message sequence number.
    Acknowledge(Syndrome, u32),
    /// Q_Key, and the queue pair of the sender.
    Datagram(u32, u32),
    /// The R_Key that the receiver invalidates.
    Invalidate(u32),
}

/// The operation that a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// The request of an RDMA READ.
    ReadRequest,
    /// A response of an RDMA READ.
    ReadResponse,
    /// An acknowledgement.
    Acknowledge,
    /// A datagram.
    Datagram,
    /// An operation that initiators never use: with immediate data, with an invalidation, or atomic. Targets use a SEND
    /// with an invalidation.
    Other,
}

/// The operation of a packet, and whether it is the first and the last packet of its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The operation.
    pub kind: Kind,
    /// The first packet.
    pub is_first: bool,
    /// The last packet.
    pub is_last: bool,
}

impl Opcode {
    /// The layout of a packet; `None`: it is of no operation that is known.
    #[must_use]
    pub fn layout(self) -> Option<Layout> {
        let (kind, is_first, is_last) = match self {
            Self::SEND_FIRST => (Kind::Send, true, false),
            Self::SEND_MIDDLE => (Kind::Send, false, false),
            Self::SEND_LAST => (Kind::Send, false, true),
            Self::SEND_ONLY => (Kind::Send, true, true),
            Self::WRITE_FIRST => (Kind::Write, true, false),
            Self::WRITE_MIDDLE => (Kind::Write, false, false),
            Self::WRITE_LAST => (Kind::Write, false, true),
            Self::WRITE_ONLY => (Kind::Write, true, true),
            Self::READ_REQUEST => (Kind::ReadRequest, true, true),
            Self::READ_RESPONSE_FIRST => (Kind::ReadResponse, true, false),
            Self::READ_RESPONSE_MIDDLE => (Kind::ReadResponse, false, false),
            Self::READ_RESPONSE_LAST => (Kind::ReadResponse, false, true),
            Self::READ_RESPONSE_ONLY => (Kind::ReadResponse, true, true),
            Self::ACKNOWLEDGE => (Kind::Acknowledge, true, true),
            Self::DATAGRAM => (Kind::Datagram, true, true),
            other => {
                other.name()?;
                (Kind::Other, true, true)
            }
        };
        Some(Layout { kind, is_first, is_last })
    }

    /// The code of a packet of a SEND or an RDMA WRITE.
    #[must_use]
    pub fn of_message(is_write: bool, is_first: bool, is_last: bool) -> Self {
        match (is_write, is_first, is_last) {
            (false, true, true) => Self::SEND_ONLY,
            (false, true, false) => Self::SEND_FIRST,
            (false, false, false) => Self::SEND_MIDDLE,
            (false, false, true) => Self::SEND_LAST,
            (true, true, true) => Self::WRITE_ONLY,
            (true, true, false) => Self::WRITE_FIRST,
            (true, false, false) => Self::WRITE_MIDDLE,
            (true, false, true) => Self::WRITE_LAST,
        }
    }

    /// The code of the last packet of a SEND whose receiver invalidates an R_Key.
    #[must_use]
    pub fn of_invalidation(is_first: bool) -> Self {
        if is_first { Self::SEND_ONLY_INVALIDATE } else { Self::SEND_LAST_INVALIDATE }
    }
}

/// A packet, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Its code.
    pub opcode: Opcode,
    /// Its operation.
    pub layout: Layout,
    /// The receiving queue pair.
    pub qpn: u32,
    /// Its number.
    pub psn: Psn,
    /// Whether it requests an acknowledgement.
    pub wants_acknowledge: bool,
    /// The extension behind the base transport header.
    pub extension: Extension,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet of a datagram, without its check. `None`: it is malformed, or belongs to another partition.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        let base: &Base = cursor.take().ok()?;
        if base.flags & VERSION_BITS != 0 || base.p_key.get() & P_KEY_BITS != P_KEY & P_KEY_BITS {
            return None;
        }
        let opcode = Opcode(base.opcode);
        let layout = opcode.layout()?;
        let has_acknowledge = match layout.kind {
            Kind::ReadResponse => layout.is_first || layout.is_last,
            kind => kind == Kind::Acknowledge,
        };
        let extension = if has_acknowledge {
            let word = cursor.take::<U32>().ok()?.get();
            Extension::Acknowledge(Syndrome((word >> 24) as u8), word & NUMBER_BITS)
        } else if layout.kind == Kind::ReadRequest || (layout.kind == Kind::Write && layout.is_first) {
            let RemoteAddress { address, key, len } = cursor.take::<RemoteAddress>().ok()?;
            Extension::Remote(Remote { address: address.get(), key: key.get() }, len.get())
        } else if layout.kind == Kind::Datagram {
            let DatagramHeader { q_key, qpn } = cursor.take().ok()?;
            Extension::Datagram(q_key.get(), qpn.get() & NUMBER_BITS)
        } else if matches!(opcode, Opcode::SEND_LAST_INVALIDATE | Opcode::SEND_ONLY_INVALIDATE) {
            Extension::Invalidate(cursor.take::<U32>().ok()?.get())
        } else {
            Extension::None
        };
        let rest = cursor.rest();
        let pad = usize::from(base.flags >> PAD_SHIFT & PAD_BITS);
        let payload = rest.get(..rest.len().checked_sub(pad)?)?;
        let (qpn, psn) = (base.qpn.get() & NUMBER_BITS, base.psn.get());
        let wants_acknowledge = psn & ACKNOWLEDGE_REQUEST != 0;
        Some(Self { opcode, layout, qpn, psn: Psn::new(psn), wants_acknowledge, extension, payload })
    }
}

/// The headers of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its code.
    pub opcode: Opcode,
    /// The receiving queue pair.
    pub qpn: u32,
    /// Its number.
    pub psn: Psn,
    /// Whether it requests an acknowledgement.
    pub wants_acknowledge: bool,
    /// The extension behind the base transport header.
    pub extension: Extension,
}

/// The bytes of the headers of a packet.
#[derive(Clone, Copy)]
pub struct HeadBytes {
    bytes: [u8; HEADERS_MAX],
    len: usize,
}

impl std::ops::Deref for HeadBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Bytes of padding behind a payload of this length.
#[must_use]
pub fn padding(len: usize) -> usize {
    len.wrapping_neg() & usize::from(PAD_BITS)
}

impl Head {
    /// The bytes of the headers, before a payload of this length.
    #[must_use]
    pub fn bytes(&self, payload: usize) -> HeadBytes {
        let acknowledge = if self.wants_acknowledge { ACKNOWLEDGE_REQUEST } else { 0 };
        let base = Base {
            opcode: self.opcode.0,
            flags: (padding(payload) as u8) << PAD_SHIFT,
            p_key: P_KEY.into(),
            qpn: (self.qpn & NUMBER_BITS).into(),
            psn: (acknowledge | self.psn.get()).into(),
        };
        let mut head = HeadBytes { bytes: [0; HEADERS_MAX], len: 0 };
        head.put(base.as_bytes());
        match self.extension {
            Extension::None => {}
            Extension::Remote(Remote { address, key }, len) => {
                head.put(RemoteAddress { address: address.into(), key: key.into(), len: len.into() }.as_bytes());
            }
            Extension::Acknowledge(syndrome, sequence) => {
                head.put(&(u32::from(syndrome.0) << 24 | sequence & NUMBER_BITS).to_be_bytes());
            }
            Extension::Datagram(q_key, qpn) => {
                head.put(DatagramHeader { q_key: q_key.into(), qpn: qpn.into() }.as_bytes());
            }
            Extension::Invalidate(key) => head.put(&key.to_be_bytes()),
        }
        head
    }
}

impl HeadBytes {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
