//! The form of the requests of a kind of device: their parts in the memory of a slot, their pieces, their answers.

use crate::layout::{Place, STRIDE_MAX};
use crate::ring::Piece;
use lunar_core::mem::Region;
use std::fmt;

/// The form of the requests of a kind of device.
pub trait Form: fmt::Debug {
    /// A request.
    type Request;
    /// How the back-end has answered a request.
    type End: fmt::Debug;
    /// Bytes of the parts of a request besides its data.
    const CONTROL: usize;

    /// Bytes of the data of a request, in the memory of its slot; `None`: it moves none.
    fn data_len(request: &Self::Request) -> Option<u64>;

    /// Writes the parts of a request, and adds all its pieces. Returns whether there is such a request.
    fn describe(slot: &SlotMemory<'_>, request: &Self::Request, pieces: &mut Pieces) -> bool;

    /// Removes the answer of a back-end: it is not that of the next one.
    fn clear_answer(slot: &SlotMemory<'_>);

    /// The answer of the back-end.
    fn end(slot: &SlotMemory<'_>) -> Self::End;
}

/// The memory of the request of a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotMemory<'a> {
    /// The shared memory.
    pub memory: &'a Region,
    /// The place of the slot in it.
    pub place: Place,
}

impl SlotMemory<'_> {
    /// Writes to the parts of the request; returns whether the memory is there.
    #[inline]
    #[must_use]
    pub fn write(&self, at: usize, bytes: &[u8]) -> bool {
        self.memory.write(self.place.control + at, bytes)
    }

    /// Reads from the parts of the request; returns whether the memory is there.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, into: &mut [u8]) -> bool {
        self.memory.read(self.place.control + at, into)
    }

    /// The piece of a part of the request.
    #[inline]
    #[must_use]
    pub fn part(&self, at: usize, len: usize, is_written: bool) -> Piece {
        (self.place.control + at, len, is_written)
    }
}

/// The pieces of a request, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    all: [Piece; STRIDE_MAX as usize],
    count: usize,
    /// The most bytes of a piece of data.
    len_max: usize,
}

impl Pieces {
    /// None yet. Those of data have at most `len_max` bytes each.
    #[inline]
    #[must_use]
    pub fn new(len_max: usize) -> Self {
        Self { all: [(0, 0, false); STRIDE_MAX as usize], count: 0, len_max }
    }

    /// Adds a piece.
    #[inline]
    pub fn push(&mut self, piece: Piece) {
        self.all[self.count] = piece;
        self.count += 1;
    }

    /// Adds `len` bytes of data from `at` on.
    #[inline]
    pub fn push_data(&mut self, (at, len, is_written): Piece) {
        for done in (0..len).step_by(self.len_max) {
            self.push((at + done, self.len_max.min(len - done), is_written));
        }
    }

    /// The pieces.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Piece] {
        &self.all[..self.count]
    }
}
