//! Blocks that are marked as unreadable: what marks them, what finds them, and what takes their marks away.

use super::{Failure, Step, Tools, ask, fault, span};
use crate::io::{Fault, Op};
use crate::port::Transfer;
use crate::range::Span;
use crate::unit::{Admitted, Unit};

/// Marks blocks. Nobody else uses them meanwhile, on any core.
pub(super) async fn mark<T: Transfer>(unit: Admitted<'_>, offset: u64, len: u64, transfer: &T) -> Result<(), Failure> {
    let span = span(offset, len);
    let _held = unit.hold(span).await.map_err(fault(0))?;
    if transfer.aborted() {
        return Err(fault(0)(Fault::Aborted));
    }
    let kept = unit.medium.uncorrectable().mark(span, unit.geometry.block_size, &*unit.keep);
    kept.map_err(fault(0))?.await.map_err(fault(0))
}

/// Whether a range that has been entered can be read.
pub(super) fn readable(unit: &Unit, span: Span) -> Result<(), Fault> {
    unit.medium.uncorrectable().first_in(span).map_or(Ok(()), |_| Err(Fault::Marked))
}

/// What was written into a range that has been entered can be read.
pub(super) async fn written(unit: Admitted<'_>, span: Span, tools: &mut Tools) -> Result<(), Fault> {
    // Seldom: it does not make the futures of others larger.
    if unit.medium.uncorrectable().is_any() { Box::pin(unmark(unit, span, tools)).await } else { Ok(()) }
}

async fn unmark(unit: Admitted<'_>, span: Span, tools: &mut Tools) -> Result<(), Fault> {
    let marks = unit.medium.uncorrectable();
    if marks.first_in(span).is_none() {
        return Ok(());
    }
    // What was there before must not come back without its mark.
    ask(unit, Op::Flush, 0, tools).await.result?;
    if let Some(kept) = marks.unmark(span, &*unit.keep) {
        kept.await?;
        marks.unmarked(span);
    }
    Ok(())
}

/// The failure at a marked block, with the byte of the step at which that begins: what failed was a piece.
pub(super) fn placed(unit: &Unit, step: &Step, failure: Failure) -> Failure {
    match (failure, step.reads_at()) {
        (Failure::Fault { fault: Fault::Marked, at }, Some(offset)) => {
            let first = unit.medium.uncorrectable().first_in(Span { start: offset + at, end: u64::MAX });
            Failure::Fault { fault: Fault::Marked, at: first.map_or(at, |first| first - offset) }
        }
        _ => failure,
    }
}
