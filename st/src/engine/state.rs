//! The values of a Virtual Connection: its terms, and what is on its way.

use crate::event::{Event, Id, Place};
use crate::tiling::Tiling;
use crate::wire::Packet;
use lunar_core::time::Instant;
use std::collections::VecDeque;

/// Counts of packets that were not taken. None of them is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Too short, a wrong checksum, or none where there must be one.
    pub malformed: u64,
    /// The port, the Key or the path is wrong.
    pub foreign: u64,
    /// No live sequence has this identifier, or the operation does not fit it.
    pub unexpected: u64,
    /// The place or the length is not the one that was granted.
    pub misplaced: u64,
    /// It has come before.
    pub duplicates: u64,
    /// More than this end has Slots, or than it can remember.
    pub overflows: u64,
    /// Packets that this end has sent again.
    pub resent: u64,
}

/// The surroundings of a change of a Virtual Connection.
pub(crate) struct Cx<'a> {
    pub(crate) now: Instant,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) counters: &'a mut Counters,
}

/// The terms on which both ends have agreed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    pub(crate) own_port: u16,
    pub(crate) peer_port: u16,
    pub(crate) peer_key: u32,
    /// The longest STU, as a power of two.
    pub(crate) stu: u8,
    /// The buffers of both ends, as powers of two.
    pub(crate) own_buffer: u8,
    pub(crate) peer_buffer: u8,
    pub(crate) own_slots: u16,
    pub(crate) peer_slots: u16,
    /// The longest Block that this end grants, as a power of two.
    pub(crate) block_log: u8,
    pub(crate) options: u32,
    /// The bytes that a path may have granted and missing.
    pub(crate) window: u32,
}

/// A control operation to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    Packet(usize, Packet, Option<[u8; 8]>),
    /// "Wait" to a peer that has asked for a Transfer, if the program has not decided until it is sent.
    Wait(usize, Id),
}

/// STUs to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) kind: JobKind,
    pub(crate) path: usize,
    pub(crate) tiling: Tiling,
    /// The place of the first STU in the memory of the program.
    pub(crate) place: Place,
    pub(crate) next: u32,
    pub(crate) end: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobKind {
    /// Of a Block of a Transfer.
    Block { peer_id: u16, block: u32, is_final: bool },
    /// Of a Put: the region, its number, Opaque, its flags.
    Put { mx: u16, number: u32, opaque: u32, flags: u8 },
    /// Of the data of a Get of the peer.
    Get { peer_id: u16, number: u32 },
}

/// A Block that is granted and incomplete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveBlock {
    pub(crate) id: Id,
    pub(crate) block: u32,
    pub(crate) start: u64,
    pub(crate) len: u32,
    pub(crate) tiling: Tiling,
    pub(crate) got: u128,
    pub(crate) path: usize,
    /// When it was granted, and when it was granted for the last time.
    pub(crate) granted: Instant,
    pub(crate) cleared: Instant,
    /// When data of it came.
    pub(crate) last: Instant,
    pub(crate) tries: u8,
    /// Its place in the order of all grants.
    pub(crate) order: u64,
    /// STUs of Blocks that were granted later.
    pub(crate) later: u8,
    pub(crate) is_clean: bool,
}

/// A Put of which STUs are missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialPut {
    pub(crate) mx: Id,
    pub(crate) number: u32,
    pub(crate) got: u128,
    pub(crate) start: u64,
    pub(crate) len: u32,
    /// The header of its last STU, once that has come.
    pub(crate) last: Option<Packet>,
}
