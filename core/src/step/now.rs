//! Steps that complete at once and need no task: most reads and writes of a store that answers immediately.

use super::counted::moved;
use super::kinds::{Failure, FinalData, PIECE_BYTES, Step, fault, span};
use crate::io::{Data, ImmediateStore, Io, Op};
use crate::mem::Arena;
use crate::port::Transfer;
use crate::unit::Unit;

/// Executes a read or a write of one piece, if the unit's store is `immediate` and the step waits for nothing. `None`:
/// nothing was done, and [`carry_out`](super::carry_out) must execute the step.
///
/// # Errors
/// Errors of [`carry_out`](super::carry_out).
#[inline]
pub fn carry_out_now<T: Transfer>(
    unit: &Unit,
    immediate: &dyn ImmediateStore,
    step: &Step,
    transfer: &T,
    arena: &Arena,
    final_data: &mut FinalData,
) -> Option<Result<(), Failure>> {
    let (offset, len, op) = match *step {
        Step::Read { offset, len } => (offset, len, Op::Read),
        Step::Write { offset, len, durable } => (offset, len, Op::Write { durable }),
        _ => return None,
    };
    let is_one_piece = (1..=PIECE_BYTES as u64).contains(&len);
    let is_marked = unit.medium.uncorrectable().is_any();
    let has_to_wait = is_marked || unit.protected().is_some() || unit.ranges.is_locked_exclusively(span(offset, len));
    if !is_one_piece || has_to_wait || transfer.aborted() {
        return None;
    }
    let count = len as usize;
    let data = match op {
        Op::Read if !transfer.has_room() => return None,
        Op::Read => match transfer.place(0, count) {
            Some(memory) => Data::In(memory),
            None if unit.store.lend(offset, count, &mut final_data.data) => {
                moved(unit, offset, len);
                return Some(Ok(()));
            }
            None => {
                let mut io = Io { op, offset, data: Data::In(arena.take_sg(count)?) };
                moved(unit, offset, len);
                let result = immediate.carry_out(&mut io);
                final_data.data = io.data.into_in().share();
                return Some(result.map(|_| ()).map_err(fault(0)));
            }
        },
        _ => Data::Out(transfer.lend(0, count).or_else(|| transfer.arrived(0, count))?),
    };
    moved(unit, offset, len);
    Some(immediate.carry_out(&mut Io { op, offset, data }).map(|_| ()).map_err(fault(0)))
}
