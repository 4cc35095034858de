//! Steps that work on many bytes of a store that answers at once: they work in parts, and other tasks run in between.

use super::kinds::{SlotContext, ask};
use super::whole::yield_once;
use crate::io::Op;
use crate::range::HOLDERS_MAX;
use crate::turn::Turn;
use crate::unit::Unit;

/// Bytes that a step reads, writes or compares before other tasks run: some hundred microseconds of copying.
const MOVED_BYTES: u64 = 1 << 20;
/// Bytes that take space and that a store zeroes or gives back at once: some hundred microseconds.
const SPACE_BYTES: u64 = 2 << 20;
/// Bytes of which a store is asked whether they take space: a store in memory looks at each of its pages.
pub(super) const EXTENT_BYTES: u64 = 256 << 20;
/// Bytes that a store zeroes or gives back at once if it takes its time, in a helper thread or in the kernel: one
/// request of a client must not keep a thread from the others for long, and an abort has to wait for the request. Large
/// enough that whole disks are given back in a few thousand requests.
const SLOW_SPACE_BYTES: u64 = 256 << 20;

/// A step that takes so much memory of its own has to wait until it may: all slots together take less than an arena
/// with smaller pieces.
const HELD_BYTES: usize = 16 << 10;

/// Waits until a step may take `count` bytes of memory that no peer waits for. It keeps them until the turn is dropped.
/// Without this, the queued commands of one client for one unit would take all memory of the core from the commands of
/// the others. It must not wait for its peer meanwhile. A step that asks has no memory in hand, or all memory could
/// belong to steps that wait here for a step that waits for memory.
pub(super) async fn hold(unit: &Unit, count: usize) -> Option<Turn<'_, HOLDERS_MAX>> {
    if count <= HELD_BYTES {
        return None;
    }
    Some(unit.ranges.holders.take().await)
}

/// Bytes of a long step after which it gives its memory up and waits for memory again, behind the other steps of the
/// unit: a short command does not wait for many long ones, and an abort does not wait long.
pub(super) const HOLD_BYTES: u64 = 8 << 20;

/// How a step shares the core with other tasks.
pub(super) struct LongStep<'a> {
    unit: &'a Unit,
    /// Whether other tasks run before each part although the step does not share: its store may answer at once.
    yields: bool,
    /// Whether the step has to share: its store answers at once, and it is long.
    shares: bool,
    /// Bytes from here on that are known to take space.
    mapped: u64,
}

impl<'a> LongStep<'a> {
    /// A step that moves `len` bytes.
    pub(super) fn moving(unit: &'a Unit, len: u64) -> Self {
        let yields = len > MOVED_BYTES;
        Self { unit, yields, shares: yields && unit.store.immediate().is_some(), mapped: 0 }
    }

    /// A step that zeroes or gives back `len` bytes.
    pub(super) fn spacing(unit: &'a Unit, len: u64) -> Self {
        Self { unit, yields: false, shares: len > SPACE_BYTES && unit.store.immediate().is_some(), mapped: 0 }
    }

    /// Waits until the step may go on; it may until the turn is dropped. `None`: it need not share.
    pub(super) async fn turn(&mut self) -> Option<Turn<'a>> {
        if !self.shares {
            // A store that may have to wait answers at once as well, from the page cache for one.
            if self.yields {
                yield_once().await;
            }
            return None;
        }
        let turn = self.unit.ranges.turns.take().await;
        // Other tasks run before each part, while the other steps of the unit wait for the turn: steps that all begin
        // at the same time do not work one after the other before other tasks run.
        yield_once().await;
        Some(turn)
    }

    /// Bytes of the next part of a step that moves `rest` more bytes, at most `most` at once.
    pub(super) fn part(&self, rest: u64, most: u64) -> u64 {
        rest.min(if self.shares { most.min(MOVED_BYTES) } else { most })
    }

    /// The turn for the next part of `rest` bytes at `offset` which are zeroed or given back, and bytes of that part.
    pub(super) async fn space(&mut self, offset: u64, rest: u64, slot: &mut SlotContext) -> (Option<Turn<'a>>, u64) {
        let turn = self.turn().await;
        let count = match turn {
            Some(_) => self.space_part(offset, rest, slot).await,
            None => rest.min(SLOW_SPACE_BYTES),
        };
        (turn, count)
    }

    /// Bytes of the next question for an extent, of `rest` bytes.
    pub(super) fn extent(&self, rest: u64) -> u64 {
        if self.shares { rest.min(EXTENT_BYTES) } else { rest }
    }

    async fn space_part(&mut self, offset: u64, rest: u64, slot: &mut SlotContext) -> u64 {
        if self.mapped == 0 {
            let len = rest.min(EXTENT_BYTES);
            let asked = ask(self.unit, Op::Extent { len }, offset, slot).await;
            match asked.result.map(|_| asked.extent) {
                // Next to nothing is to be done for a hole.
                Ok(extent) if !extent.mapped && extent.len > 0 => return extent.len.min(len),
                Ok(extent) => self.mapped = extent.len.clamp(1, len),
                Err(_) => self.mapped = len,
            }
        }
        let count = self.mapped.min(rest).min(SPACE_BYTES);
        self.mapped -= count;
        count
    }
}

/// Ranges in ascending order that do not overlap, with the same bytes: a list that names the same bytes again and
/// again costs as much as one that names them once.
pub(super) fn merged(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut merged = Vec::<(u64, u64)>::with_capacity(sorted.len());
    for (offset, len) in sorted.into_iter().filter(|(_, len)| *len > 0) {
        match merged.last_mut() {
            Some((first, before)) if offset <= *first + *before => *before = (*before).max(offset + len - *first),
            _ => merged.push((offset, len)),
        }
    }
    merged
}
