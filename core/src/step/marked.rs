//! Blocks that are marked as uncorrectable: marking, finding and unmarking.

use super::kinds::{Failure, SlotContext, Step, ask, fault, span};
use crate::io::{Fault, Op};
use crate::port::Transfer;
use crate::range::Span;
use crate::unit::{Admitted, Unit};

/// Marks blocks, with their range locked exclusively on every core.
pub(super) async fn mark<T: Transfer>(unit: Admitted<'_>, offset: u64, len: u64, transfer: &T) -> Result<(), Failure> {
    let span = span(offset, len);
    let _held = unit.lock_exclusive(span).await.map_err(fault(0))?;
    if transfer.aborted() {
        return Err(fault(0)(Fault::Aborted));
    }
    let saving = unit.medium.uncorrectable().mark(span, unit.geometry.block_size, &*unit.metadata);
    saving.map_err(fault(0))?.await.map_err(fault(0))
}

/// Fails if a block of a locked range is marked.
pub(super) fn readable(unit: &Unit, span: Span) -> Result<(), Fault> {
    unit.medium.uncorrectable().first_in(span).map_or(Ok(()), |_| Err(Fault::Marked))
}

/// Unmarks the blocks of a locked range, which were written.
pub(super) async fn written(unit: Admitted<'_>, span: Span, slot: &mut SlotContext) -> Result<(), Fault> {
    // Boxed: marks are rare, and this future would make that of every write larger.
    if unit.medium.uncorrectable().is_any() { Box::pin(unmark(unit, span, slot)).await } else { Ok(()) }
}

async fn unmark(unit: Admitted<'_>, span: Span, slot: &mut SlotContext) -> Result<(), Fault> {
    let marks = unit.medium.uncorrectable();
    if marks.first_in(span).is_none() {
        return Ok(());
    }
    // The new data is made durable before the mark is removed: after a crash, the old data must not be read.
    ask(&unit, Op::Flush, 0, slot).await.result?;
    if let Some(saving) = marks.unmark(span, &*unit.metadata) {
        saving.await?;
        marks.unmarked(span);
    }
    Ok(())
}

/// A failed read of a piece, with the byte of the step at which its first marked block begins.
pub(super) fn placed(unit: &Unit, step: &Step, failure: Failure) -> Failure {
    match (failure, step.reads_at()) {
        (Failure::Fault { fault: Fault::Marked, at }, Some(offset)) => {
            let first = unit.medium.uncorrectable().first_in(Span { start: offset + at, end: u64::MAX });
            Failure::Fault { fault: Fault::Marked, at: first.map_or(at, |first| first - offset) }
        }
        _ => failure,
    }
}
