//! The events that an engine reports to its program, and the memory that its program gives it.

use crate::path::{Path, Peer};
use crate::wire::{Packet, Reason};
use std::fmt;

/// A Virtual Connection of this end, named by the Key that this end has chosen for it. A Key is not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VcId(pub(crate) u32);

impl fmt::Display for VcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// A sequence of this end on a Virtual Connection: a Transfer, a Put, a memory region and so on. The low eight bits of
/// the identifiers in use are different.
pub type Id = u16;

/// Memory of the program: the bytes of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The Virtual Connection.
    pub vc: VcId,
    /// The Transfer, Get, Put or granted region.
    pub id: Id,
    /// The first byte.
    pub offset: u64,
}

/// The memory of the program, as an engine writes it.
pub trait Memory {
    /// Places received bytes, inside the memory that the program has given for this sequence.
    fn place(&mut self, place: Place, bytes: &[u8]);
    /// Changes a word of 4 or 8 bytes of a region, for a FetchOp.
    fn change(&mut self, place: Place, len: usize, change: &mut dyn FnMut(&mut [u8]));
}

/// The payload of a packet to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// None.
    None,
    /// An operand.
    Word([u8; 8]),
    /// So many bytes of the memory of the program.
    Memory(Place, usize),
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Where to.
    pub path: Path,
    /// Its header.
    pub packet: Packet,
    /// Whether it needs a checksum: [`Packet::checked`].
    pub is_checked: bool,
    /// Its payload.
    pub payload: Payload,
}

/// The rights of a program on a region of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Put.
    pub put: bool,
    /// Get.
    pub get: bool,
    /// FetchOp.
    pub fetch: bool,
}

impl Access {
    /// All of it.
    pub const ALL: Self = Self { put: true, get: true, fetch: true };

    pub(crate) fn bits(self) -> u16 {
        u16::from(self.put) | u16::from(self.get) << 1 | u16::from(self.fetch) << 2
    }

    pub(crate) fn of(bits: u16) -> Self {
        Self { put: bits & 1 != 0, get: bits & 2 != 0, fetch: bits & 4 != 0 }
    }
}

/// Which Puts into a region are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Every complete one.
    Every,
    /// Those whose sender asks for it.
    Interrupts,
}

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "vc and id are those of the sequence")]
pub enum Event {
    /// The peer has accepted a connection of this end.
    Connected { vc: VcId },
    /// A peer has connected to a port at which this end listens.
    Accepted { vc: VcId, port: u16, peer: Peer },
    /// A connection has ended with all its sequences, or was refused.
    Closed { vc: VcId, reason: Reason },
    /// The peer, which calls the Transfer `peer_id`, wants to send so many bytes.
    SendAsked { vc: VcId, id: Id, peer_id: u16, len: u64 },
    /// The peer, which calls the Transfer `peer_id`, wants to receive up to so many bytes.
    ReceiveAsked { vc: VcId, id: Id, peer_id: u16, len: u64 },
    /// So many bytes of a Transfer are in the memory of this end, each of them.
    Received { vc: VcId, id: Id, len: u64 },
    /// The peer has all bytes of a Transfer or Put, or this end those of a Get.
    Done { vc: VcId, id: Id },
    /// A sequence has failed.
    Failed { vc: VcId, id: Id, reason: Reason },
    /// The peer wants a region of this length.
    RegionAsked { vc: VcId, id: Id, access: Access, len: u64 },
    /// The peer has granted a region, with these rights.
    RegionGranted { vc: VcId, id: Id, access: Access, len: u64 },
    /// The peer does not use a region any more, or has withdrawn it.
    RegionEnded { vc: VcId, id: Id },
    /// A Put into a region is complete.
    PutArrived { vc: VcId, region: Id, offset: u64, len: u32, opaque: u32 },
    /// The value of a word before a FetchOp.
    Fetched { vc: VcId, id: Id, old: u64 },
}

/// Why an engine does not do what its program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no such connection or sequence, or it is in another state.
    Unknown,
    /// There are as many sequences as there may be: wait until one has ended.
    Busy,
    /// More bytes than a sequence of this kind can have.
    TooLong,
    /// The peer has not granted this.
    Access,
    /// Beyond the end of the region, or not aligned.
    Range,
    /// The settings are out of range.
    Settings,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "there is no such connection or sequence",
            Self::Busy => "too many sequences are in progress: wait until one has ended",
            Self::TooLong => "more bytes than one sequence of this kind can have",
            Self::Access => "the peer has not granted this access to the region",
            Self::Range => "beyond the end of the region, or not aligned",
            Self::Settings => "the settings are out of range",
        })
    }
}

impl std::error::Error for Refused {}
