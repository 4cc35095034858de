//! The steps, their failures, and the resources that a slot lends to them.

use super::watch::Watch;
use crate::io::{Completion, Data, Fault, Io, Op, Outcome};
use crate::mem::{Arena, Sg, ZEROES};
use crate::protection::{Field, Terms};
use crate::range::Span;
use crate::stats::Stats;
use crate::unit::Unit;
use std::rc::Rc;
use std::sync::Arc;

/// The length of a piece in bytes: small enough that a piece stays in the processor's cache between the store and the
/// wire, and large enough that the cost of another request is negligible. An arena lends as many zeroes.
pub const PIECE_BYTES: usize = ZEROES;

/// An operation on the unit. Offsets and lengths are bytes, checked against the unit's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Data-In from the store.
    Read {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Data-Out to the store.
    Write {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// Everything written is brought to the medium.
    Flush,
    /// Space is given back to the store, range by range: (offset, bytes).
    Unmap(Vec<(u64, u64)>),
    /// One block, over and over: Data-Out is that block.
    Fill {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The block; empty for zeroes.
        pattern: Vec<u8>,
        /// Whether a fill with zeroes may give back the space.
        unmap: bool,
    },
    /// Data-Out is compared with the store.
    Compare {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether Data-Out is one block that every block is compared with.
        block: Option<u32>,
    },
    /// The range is read, and what was read is dropped: the step succeeds if every byte can be read.
    Verify {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Data-Out has two halves: the first is compared with the store, then the second is written. No other command
    /// writes the range in between.
    CompareWrite {
        /// Offset.
        offset: u64,
        /// Bytes of one half, at most [`PIECE_BYTES`].
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// Bytes of a unit are written to this one. Ranges that overlap are copied as if all bytes were read first.
    Copy {
        /// The other unit, or this one.
        from: Rc<Unit>,
        /// Offset of the bytes in the other unit.
        at: u64,
        /// Offset in this unit.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The store's bytes are replaced by their bitwise OR with Data-Out. No other command writes a byte between its
    /// reading and its writing.
    OrWrite {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// Data-Out to the store as one write: no other command sees a part of it.
    WriteAtomic {
        /// Offset.
        offset: u64,
        /// Bytes, at most [`PIECE_BYTES`].
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// Blocks are marked as unreadable, until they are written.
    Mark {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Data-Out to the medium, which is then read back.
    WriteVerify {
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether the data that is read back is compared with Data-Out.
        compare: bool,
    },
    /// A step on a unit with protection information, with terms of its own. Boxed: it is rare, and would make every
    /// step larger.
    Protected(Box<Protected>),
}

impl Step {
    /// Whether the written bytes may be lost at a power failure until a flush.
    #[must_use]
    pub fn leaves_cached(&self) -> bool {
        match self {
            Self::Write { durable, .. }
            | Self::CompareWrite { durable, .. }
            | Self::OrWrite { durable, .. }
            | Self::WriteAtomic { durable, .. } => !durable,
            Self::Unmap(_) | Self::Fill { .. } | Self::Copy { .. } => true,
            Self::Read { .. }
            | Self::Flush
            | Self::Compare { .. }
            | Self::Verify { .. }
            | Self::WriteVerify { .. }
            | Self::Mark { .. } => false,
            Self::Protected(protected) => protected.step.leaves_cached(),
        }
    }

    /// The bytes of the unit that the step concerns: offset and length; the first of several ranges; `None`
    /// if it has none.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, len }
            | Self::Write { offset, len, .. }
            | Self::Fill { offset, len, .. }
            | Self::Compare { offset, len, .. }
            | Self::Verify { offset, len }
            | Self::CompareWrite { offset, len, .. }
            | Self::Copy { offset, len, .. }
            | Self::OrWrite { offset, len, .. }
            | Self::WriteAtomic { offset, len, .. }
            | Self::Mark { offset, len }
            | Self::WriteVerify { offset, len, .. } => Some((*offset, *len)),
            Self::Unmap(ranges) => ranges.first().copied(),
            Self::Protected(protected) => protected.step.range(),
            Self::Flush => None,
        }
    }

    /// The first byte that the step reads on its unit; `None` if it reads none.
    pub(super) fn reads_at(&self) -> Option<u64> {
        match self {
            Self::Read { offset, .. }
            | Self::Compare { offset, .. }
            | Self::Verify { offset, .. }
            | Self::CompareWrite { offset, .. }
            | Self::OrWrite { offset, .. } => Some(*offset),
            Self::Protected(protected) => protected.step.reads_at(),
            _ => None,
        }
    }
}

/// A step with the parameters of its command for protection information. Offsets and lengths count block data only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Protected {
    /// The step. The pattern of a [`Step::Fill`] is followed by its protection information if that is transferred.
    pub step: Step,
    /// The fields that are transferred and checked.
    pub terms: Terms,
    /// The same for the other half: for the compared half of a [`Step::CompareWrite`], and for the source of a
    /// [`Step::Copy`].
    pub other: Terms,
}

/// Why a step failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The store or the transport failed at this byte of the step.
    Fault {
        /// The fault.
        fault: Fault,
        /// Bytes from the start of the step.
        at: u64,
    },
    /// The source unit of a copy failed at this byte of the step.
    Origin {
        /// The fault.
        fault: Fault,
        /// Bytes from the start of the step.
        at: u64,
    },
    /// A check of protection information failed.
    Protection {
        /// The field that is wrong.
        field: Field,
        /// Bytes from the start of the step to the block.
        at: u64,
        /// Whether the field was compared with that of Data-Out, and not with the expected value.
        compared: bool,
    },
    /// The compared bytes differ.
    Miscompare {
        /// First byte that differs, from the start of Data-Out.
        at: u64,
    },
}

/// The memory and the completion that a slot lends to the steps of its command.
#[derive(Debug)]
pub struct SlotContext {
    /// The core's memory.
    pub arena: Arena,
    /// The completion for answers of the store.
    pub completion: Completion,
    /// The times of the command.
    pub watch: Rc<Watch>,
}

impl SlotContext {
    /// A slot with this memory, whose commands have no times.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self { arena, completion: Completion::new(), watch: Rc::default() }
    }

    /// A slot with this memory, whose commands are timed with the clock of the core.
    #[must_use]
    pub fn timed(arena: Arena, stats: &Arc<Stats>) -> Self {
        Self { watch: Rc::new(Watch::of(stats.clone())), ..Self::new(arena) }
    }
}

/// The last piece of Data-In, which has not been pushed: it travels with the status.
#[derive(Debug, Default)]
pub struct FinalData {
    /// The number of bytes that were pushed before.
    pub offset: usize,
    /// The piece.
    pub data: Sg,
}
pub(super) fn span(offset: u64, len: u64) -> Span {
    Span { start: offset, end: offset + len }
}

pub(super) fn fault(at: u64) -> impl Fn(Fault) -> Failure {
    move |fault| Failure::Fault { fault, at }
}

/// Bytes of Data-In that a peer may have in memory although others of its host do not receive theirs: a multiple of
/// every block size.
pub(super) const RESERVED_LEAST: usize = crate::mem::LEAST;

/// Bytes of the piece that starts `at` bytes into `len`.
pub(super) fn piece(len: u64, at: u64) -> usize {
    // PIECE_BYTES fits both types, so the smaller of the two does as well.
    (len - at).min(PIECE_BYTES as u64) as usize
}

pub(super) async fn ask(unit: &Unit, op: Op, offset: u64, slot: &mut SlotContext) -> Outcome {
    slot.submit(&*unit.store, Io { op, offset, data: Data::None }).await
}
