//! The operations that a command consists of, and the code that executes them, for every command set.
//!
//! A command set looks at the unit and at the command and returns a [`Step`]. [`carry_out`] executes the step in one
//! straight line from the transport through the store and back, and has the fall-backs for stores that lack an
//! operation.
//!
//! A step waits for the peer and for memory only before it locks a range. With a range locked it waits for the store
//! only, so a command that needs the range exclusively always gets it.

mod blocks;
mod copy;
mod counted;
mod kinds;
mod long;
mod marked;
mod now;
mod protect;
mod space;
mod watch;
mod whole;

use crate::io::{Completion, Data, Fault, Io, Op, submit};
use crate::port::Transfer;
use crate::unit::{Admitted, Unit};
use blocks::{
    compare, compare_write, fill, flush, or_write, read, unmap, verify, write, write_atomic, write_verify, zero,
};
pub use copy::COPY_BYTES;
use copy::Copying;
use counted::{done, failed, moved, unmapped};
use kinds::fault;
pub use kinds::{Failure, FinalData, PIECE_BYTES, Protected, SlotContext, Step};
use marked::{mark, placed};
pub use now::carry_out_now;
pub use space::{space, survey};
use watch::Timed;
pub use watch::Watch;
pub use whole::{rewrite_medium, yield_once};

/// Executes a step. The last piece of a read is put into `final_data`, so that the status can travel with it.
///
/// # Errors
/// [`Failure`], with the byte at which it happened.
pub async fn carry_out<T: Transfer>(
    unit: Admitted<'_>,
    step: &Step,
    transfer: &T,
    slot: &mut SlotContext,
    final_data: &mut FinalData,
) -> Result<(), Failure> {
    let watch = slot.watch.clone();
    watch.is_at(&unit, step);
    let transfer = &Timed { transfer, watch: &watch };
    if let Some(protection) = unit.protected() {
        // Boxed: a protected unit is rare, and this future would make that of every step larger.
        let ended = Box::pin(protect::carry_out(unit, protection, step, transfer, slot, final_data)).await;
        return ended.map(|()| done(&unit, step)).map_err(|failure| failed(&unit, placed(&unit, step, failure)));
    }
    let ended = match step {
        &Step::Read { offset, len } => {
            moved(&unit, offset, len);
            read(unit, offset, len, transfer, slot, final_data).await
        }
        &Step::Write { offset, len, durable } => {
            moved(&unit, offset, len);
            write(unit, offset, len, durable, transfer, slot).await
        }
        Step::Flush => flush(unit, slot).await,
        Step::Unmap(ranges) => unmap(unit, ranges, transfer, slot).await.map(|()| unmapped(&unit, step)),
        &Step::Fill { offset, len, ref pattern, unmap } if pattern.is_empty() => {
            zero(unit, offset, len, unmap, transfer, slot).await.map(|()| unmapped(&unit, step))
        }
        &Step::Fill { offset, len, ref pattern, .. } => fill(unit, offset, len, pattern, transfer, slot).await,
        &Step::Compare { offset, len, block } => compare(unit, offset, len, block, transfer, slot).await,
        &Step::Verify { offset, len } => verify(unit, offset, len, transfer, slot).await,
        &Step::CompareWrite { offset, len, durable } => compare_write(unit, offset, len, durable, transfer, slot).await,
        &Step::OrWrite { offset, len, durable } => or_write(unit, offset, len, durable, transfer, slot).await,
        &Step::WriteAtomic { offset, len, durable } => write_atomic(unit, offset, len, durable, transfer, slot).await,
        &Step::WriteVerify { offset, len, compare } => write_verify(unit, offset, len, compare, transfer, slot).await,
        &Step::Mark { offset, len } => mark(unit, offset, len, transfer).await,
        Step::Protected(protected) => {
            let ended = Box::pin(protect::strip(unit, protected, transfer, slot)).await;
            ended.map(|()| done(&unit, &protected.step))
        }
        // Boxed: a copy is rare, and its future would make that of every step larger.
        &Step::Copy { ref from, at, offset, len } => {
            Box::pin(Copying { unit, from: Admitted::to(from), at, offset, len }.run(transfer, slot)).await
        }
    };
    ended.map_err(|failure| failed(&unit, placed(&unit, step, failure)))
}

/// Overwrites the protection store so that no block is checked until it is written, and brings that to the medium.
///
/// # Errors
/// The fault of the protection store.
pub async fn blank(unit: &Unit, slot: &mut SlotContext) -> Result<(), Failure> {
    let Some(protection) = &unit.protection else { return Ok(()) };
    protect::blank(unit, protection, 0, unit.geometry.bytes(), slot).await.map_err(fault(0))?;
    let io = Io { op: Op::Flush, offset: 0, data: Data::None };
    slot.submit(&*protection.store, io).await.result.map(|_| ()).map_err(fault(0))
}

/// Flushes the unit's store and its protection store.
///
/// # Errors
/// The fault of the first store that fails. Both are asked.
pub async fn flush_now(unit: &Unit) -> Result<(), Fault> {
    let protection = unit.protection.as_ref().map(|protection| &*protection.store);
    let mut all = Ok(());
    for store in std::iter::once(&*unit.store).chain(protection) {
        let io = Io { op: Op::Flush, offset: 0, data: Data::None };
        all = all.and(submit(store, io, &mut Completion::new()).await.result.map(drop));
    }
    all
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
