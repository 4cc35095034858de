//! The counters of a unit that only the steps know: the bytes that were unmapped, misaligned reads and writes,
//! protection information that did not match.

use super::kinds::{Failure, Step};
use crate::tally::Event;
use crate::unit::Unit;

/// Reads and writes that are no multiples of this, or not at one, make most stores read and write more than they move.
const ALIGNMENT: u64 = 4096;

/// Counts a step of a unit with protection information, or one with terms of its own, that has succeeded.
pub(super) fn done(unit: &Unit, step: &Step) {
    match *step {
        Step::Read { offset, len } | Step::Write { offset, len, .. } => moved(unit, offset, len),
        Step::Protected(ref protected) => done(unit, &protected.step),
        ref step => unmapped(unit, step),
    }
}

/// Counts the bytes that a step has unmapped.
pub(super) fn unmapped(unit: &Unit, step: &Step) {
    let bytes = match step {
        Step::Unmap(ranges) => ranges.iter().map(|(_, len)| *len).sum(),
        Step::Fill { len, unmap: true, .. } => *len,
        _ => return,
    };
    unit.tally.add(Event::UnmappedBytes, bytes);
}

/// Counts a read or write.
#[inline]
pub(super) fn moved(unit: &Unit, offset: u64, len: u64) {
    if (offset | len) & (ALIGNMENT - 1) != 0 {
        misaligned(unit);
    }
}

#[cold]
fn misaligned(unit: &Unit) {
    unit.tally.add(Event::Misaligned, 1);
}

/// Counts a step that has failed.
#[cold]
pub(super) fn failed(unit: &Unit, failure: Failure) -> Failure {
    if let Failure::Protection { .. } = failure {
        unit.tally.add(Event::ProtectionError, 1);
    }
    failure
}
