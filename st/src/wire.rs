//! The Schedule Header: 40 bytes in front of every packet. **The layout is private (version 2). It is not that of ANSI
//! NCITS 337-2000 and does not interoperate with it**: the standard's layout was not available. This file is the whole
//! codec, so that another layout can replace it; the rest of the crate sees [`Packet`] only.

use lunar_core::codes;
use lunar_core::wire::be::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The EtherType of Scheduled Transfer.
pub const ETHER_TYPE: u16 = 0x8181;
/// The UDP port unless another one is given: no registry assigns one.
pub const UDP_PORT: u16 = 18181;
/// Bytes of the header.
pub const HEADER_LEN: usize = 40;
/// The version of this layout, in a Request_Connection.
pub const VERSION: u16 = 2;

codes! {
    /// Operations.
    pub struct Op(u8) {
        REQUEST_CONNECTION = 0x01, CONNECTION_ANSWER = 0x02, REQUEST_DISCONNECT = 0x03, DISCONNECT_ANSWER = 0x04,
        DISCONNECT_COMPLETE = 0x05, REQUEST_MEMORY_REGION = 0x10, MEMORY_REGION_AVAILABLE = 0x11, PUT = 0x12,
        GET = 0x13, FETCH_OP = 0x14, FETCH_OP_COMPLETE = 0x15, REQUEST_TO_SEND = 0x20, REQUEST_TO_RECEIVE = 0x21,
        REQUEST_ANSWER = 0x22, CLEAR_TO_SEND = 0x23, DATA = 0x24, REQUEST_STATE = 0x30, REQUEST_STATE_RESPONSE = 0x31,
        END = 0x40, END_ACK = 0x41,
    }
}

codes! {
    /// Why something was refused or ended.
    pub struct Reason(u16) {
        NONE = 0, TOO_LONG = 1, NO_PORT = 2, NO_RESOURCES = 3, BAD_PARAMETER = 4, ABORTED = 5, UNEXPECTED = 6,
        TIME_OUT = 7, ACCESS = 8, RANGE = 9, VERSION = 10, COOKIE = 11,
    }
}

codes! {
    /// The state of a Transfer, in a Request_State_Response.
    pub struct State(u16) { UNKNOWN = 0, WAITING = 1, GRANTING = 2, COMPLETE = 3, ALIVE = 4 }
}

codes! {
    /// The operation of a FetchOp on one word.
    pub struct FetchCode(u8) { READ = 0, ADD = 1, AND = 2, OR = 3, XOR = 4, SWAP = 5, COMPARE_SWAP = 6 }
}

/// Added to a [`FetchCode`]: the word has 64 bits, otherwise 32.
pub const WIDE: u16 = 0x80;

/// Flags.
pub mod flags {
    /// The last STU of a Block, of a repeated range, of a Put, of the data of a Get.
    pub const LAST: u8 = 0x80;
    /// The receiving program is to be woken.
    pub const INTERRUPT: u8 = 0x40;
    /// The sender wants an answer with the state.
    pub const SOLICIT: u8 = 0x20;
    /// The answer is a refusal.
    pub const REJECT: u8 = 0x10;
    /// A Request_To_Receive has the place of the first Block.
    pub const GRANT: u8 = 0x08;
    /// The last Block of a Transfer.
    pub const FINAL: u8 = 0x04;
    /// The operation is repeated.
    pub const RESEND: u8 = 0x02;
    /// The operation adds a path to a Virtual Connection.
    pub const JOIN: u8 = 0x01;
}

/// Options of a Virtual Connection: both ends must have one that is used.
pub mod options {
    /// Packets have checksums.
    pub const CHECKSUM: u32 = 1;
    /// A Clear_To_Send may ask for a part of a Block.
    pub const SELECTIVE: u32 = 2;
    /// The lower layer mostly keeps packets in order: a hole is repaired at once.
    pub const ORDERED: u32 = 4;
    /// A Virtual Connection may have several paths.
    pub const STRIPING: u32 = 8;
    /// All of them.
    pub const ALL: u32 = CHECKSUM | SELECTIVE | ORDERED | STRIPING;
}

/// The bytes of a header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    op: u8,
    flags: u8,
    param: U16,
    to_port: U16,
    from_port: U16,
    key: U32,
    checksum: U16,
    len: U16,
    to_id: U16,
    from_id: U16,
    block: U32,
    bufx: U32,
    offset: U32,
    words: U64,
}

const _: () = assert!(size_of::<Layout>() == HEADER_LEN, "ten words");

/// A header with the meaning of its fields. Unused fields are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The operation.
    pub op: Op,
    /// [`flags`].
    pub flags: u8,
    /// The parameter of the operation: a reason, a state, the index of an STU.
    pub param: u16,
    /// The destination port.
    pub to_port: u16,
    /// The source port.
    pub from_port: u16,
    /// The Key that the receiver has chosen for the Virtual Connection.
    pub key: u32,
    /// The identifier that the receiver has chosen for the sequence.
    pub to_id: u16,
    /// The identifier of the sender.
    pub from_id: u16,
    /// B_num: the Block, or the number of the sequence: the serial number of its request.
    pub block: u32,
    /// The index of a buffer of the receiver.
    pub bufx: u32,
    /// The offset in this buffer.
    pub offset: u32,
    /// T_len, or Opaque and a second operand.
    pub words: u64,
    /// Bytes behind the header.
    pub len: u16,
}

impl Packet {
    /// A packet of this operation, all of whose fields are 0.
    #[must_use]
    pub fn new(op: Op) -> Self {
        Self {
            op,
            flags: 0,
            param: 0,
            to_port: 0,
            from_port: 0,
            key: 0,
            to_id: 0,
            from_id: 0,
            block: 0,
            bufx: 0,
            offset: 0,
            words: 0,
            len: 0,
        }
    }

    /// Whether it has all these flags.
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The high half of the words: Opaque, the number of the Transfer of a Block, the place for the data of a Get.
    #[must_use]
    pub fn high(&self) -> u32 {
        (self.words >> 32) as u32
    }

    /// The low half of the words: the number of a Get.
    #[must_use]
    pub fn low(&self) -> u32 {
        self.words as u32
    }

    /// The 16-bit halves of the low word of a Clear_To_Send: the first STU and the count.
    #[must_use]
    pub fn range(&self) -> (u16, u16) {
        ((self.words >> 16) as u16, self.words as u16)
    }

    /// Takes a received packet apart: the header, whether it has a checksum, and the payload. Bytes behind the payload
    /// are the padding of an Ethernet frame. `None`: it is too short, or its checksum is wrong.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, bool, &[u8])> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).ok()?;
        let payload = rest.get(..usize::from(layout.len.get()))?;
        let is_checked = layout.checksum.get() != 0;
        if is_checked && sum(&[layout.as_bytes(), payload]) != 0xffff {
            return None;
        }
        let packet = Self {
            op: Op(layout.op),
            flags: layout.flags,
            param: layout.param.get(),
            to_port: layout.to_port.get(),
            from_port: layout.from_port.get(),
            key: layout.key.get(),
            to_id: layout.to_id.get(),
            from_id: layout.from_id.get(),
            block: layout.block.get(),
            bufx: layout.bufx.get(),
            offset: layout.offset.get(),
            words: layout.words.get(),
            len: layout.len.get(),
        };
        Some((packet, is_checked, payload))
    }

    /// The bytes of the header, without a checksum.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        zerocopy::transmute!(self.layout())
    }

    /// The bytes of the header with the checksum of the packet, whose payload has these pieces.
    #[must_use]
    pub fn checked<'a>(&self, payload: impl IntoIterator<Item = &'a [u8]>) -> [u8; HEADER_LEN] {
        let mut layout = self.layout();
        let mut sum = Sum::default();
        sum.add(layout.as_bytes());
        payload.into_iter().for_each(|piece| sum.add(piece));
        // The sum 0 would say that there is no checksum.
        layout.checksum = match !sum.value() {
            0 => 0xffff,
            checksum => checksum,
        }
        .into();
        zerocopy::transmute!(layout)
    }

    fn layout(&self) -> Layout {
        Layout {
            op: self.op.0,
            flags: self.flags,
            param: self.param.into(),
            to_port: self.to_port.into(),
            from_port: self.from_port.into(),
            key: self.key.into(),
            checksum: 0.into(),
            len: self.len.into(),
            to_id: self.to_id.into(),
            from_id: self.from_id.into(),
            block: self.block.into(),
            bufx: self.bufx.into(),
            offset: self.offset.into(),
            words: self.words.into(),
        }
    }
}

/// A ones' complement sum of 16-bit words (RFC 1071), over pieces of any length.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    words: u64,
    is_odd: bool,
}

impl Sum {
    fn add(&mut self, mut bytes: &[u8]) {
        if let Some((first, rest)) = bytes.split_first().filter(|_| self.is_odd) {
            self.words += u64::from(*first);
            bytes = rest;
            self.is_odd = false;
        }
        let (pairs, rest) = bytes.as_chunks::<2>();
        self.words += pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>();
        if let [last] = rest {
            self.words += u64::from(*last) << 8;
            self.is_odd = true;
        }
    }

    fn value(self) -> u16 {
        let mut words = self.words;
        while words >> 16 != 0 {
            words = (words & 0xffff) + (words >> 16);
        }
        words as u16
    }
}

fn sum(pieces: &[&[u8]]) -> u16 {
    let mut sum = Sum::default();
    pieces.iter().for_each(|piece| sum.add(piece));
    sum.value()
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
