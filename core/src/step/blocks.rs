//! The operations of steps on the blocks of a unit without protection information, and the parts that protected
//! units and copies share with them.

use super::kinds::{Failure, FinalData, RESERVED_LEAST, SlotContext, ask, fault, piece, span};
use super::long::{HOLD_BYTES, LongStep, hold, merged};
use super::marked::{readable, written};
use crate::io::{Data, Fault, Io, Op};
use crate::mem::{Sg, SgMut};
use crate::port::Transfer;
use crate::unit::Admitted;

pub(super) async fn read<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    transfer: &T,
    slot: &mut SlotContext,
    final_data: &mut FinalData,
) -> Result<(), Failure> {
    let mut at = 0;
    loop {
        transfer.room().await.map_err(fault(at))?;
        let whole = piece(len, at);
        final_data.offset = at as usize;
        if let Some(memory) = transfer.place(final_data.offset, whole) {
            let guard = unit.lock_shared(span(offset + at, whole as u64)).await.map_err(fault(at))?;
            load_into(unit, offset + at, memory, slot).await.map_err(fault(at))?;
            drop(guard);
            at += whole as u64;
            if at == len {
                return Ok(());
            }
            continue;
        }
        let count = transfer.reserve(whole, whole.min(RESERVED_LEAST)).await.map_err(fault(at))?;
        // The marks are checked with the range locked, so the store lends no memory while any block is marked.
        let is_marked = unit.medium.uncorrectable().is_any();
        if count > 0 && (is_marked || !unit.store.lend(offset + at, count, &mut final_data.data)) {
            let memory = slot.arena.wait_sg(count).await;
            final_data.data = load_inside(unit, offset + at, memory, slot).await.map_err(fault(at))?;
        }
        at += count as u64;
        if at == len {
            return Ok(());
        }
        transfer
            .push(final_data.offset, std::mem::take(&mut final_data.data))
            .map_err(fault(final_data.offset as u64))?;
    }
}

/// Reads from the store into new memory, with the range locked.
pub(super) async fn load(unit: Admitted<'_>, offset: u64, count: usize, slot: &mut SlotContext) -> Result<Sg, Fault> {
    if count == 0 {
        return Ok(Sg::default());
    }
    let memory = slot.arena.wait_sg(count).await;
    load_inside(unit, offset, memory, slot).await
}

/// Reads from the store into `memory`, with the range locked.
async fn load_inside(unit: Admitted<'_>, offset: u64, memory: SgMut, slot: &mut SlotContext) -> Result<Sg, Fault> {
    let _guard = unit.lock_shared(span(offset, memory.len() as u64)).await?;
    load_into(unit, offset, memory, slot).await.map(SgMut::share)
}

pub(super) async fn load_into(
    unit: Admitted<'_>,
    offset: u64,
    memory: SgMut,
    slot: &mut SlotContext,
) -> Result<SgMut, Fault> {
    readable(&unit, span(offset, memory.len() as u64))?;
    let io = Io { op: Op::Read, offset, data: Data::In(memory) };
    let outcome = slot.submit(&*unit.store, io).await;
    outcome.result.map(|_| outcome.data.into_in())
}

pub(super) async fn store(
    unit: Admitted<'_>,
    offset: u64,
    data: Sg,
    durable: bool,
    slot: &mut SlotContext,
) -> Result<(), Fault> {
    let span = span(offset, data.len() as u64);
    let io = Io { op: Op::Write { durable }, offset, data: Data::Out(data) };
    slot.submit(&*unit.store, io).await.result?;
    written(unit, span, slot).await
}

pub(super) async fn write<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    durable: bool,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let data = match transfer.lend(at as usize, count) {
            Some(data) => data,
            None => transfer.pull(at as usize, count).await.map_err(fault(at))?,
        };
        let _guard = unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, data, durable, slot).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

pub(super) async fn flush(unit: Admitted<'_>, slot: &mut SlotContext) -> Result<(), Failure> {
    ask(&unit, Op::Flush, 0, slot).await.result.map_err(fault(0))?;
    Ok(())
}

pub(super) async fn unmap<T: Transfer>(
    unit: Admitted<'_>,
    ranges: &[(u64, u64)],
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    for (offset, len) in merged(ranges) {
        let mut long = LongStep::spacing(&unit, len);
        let mut at = offset;
        while at < offset + len {
            if transfer.aborted() {
                return Err(fault(0)(Fault::Aborted));
            }
            let (_turn, count) = long.space(at, offset + len - at, slot).await;
            let part = span(at, count);
            let _guard = unit.lock_shared(part).await.map_err(fault(0))?;
            match ask(&unit, Op::Unmap { len: count }, at, slot).await.result {
                Ok(_) => written(unit, part, slot).await.map_err(fault(0))?,
                // A store may keep the data: unmapping is a hint.
                Err(Fault::Unsupported) => {}
                Err(why) => return Err(fault(0)(why)),
            }
            at += count;
        }
    }
    Ok(())
}

pub(super) async fn zero<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    unmap: bool,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    let mut long = LongStep::spacing(&unit, len);
    let mut at = 0;
    while at < len {
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        let (turn, count) = long.space(offset + at, len - at, slot).await;
        let guard = unit.lock_shared(span(offset + at, count)).await.map_err(fault(at))?;
        let asked = zeroed(unit, offset + at, count, unmap, slot).await;
        drop((guard, turn));
        match asked {
            Ok(()) => at += count,
            Err(Fault::Unsupported) => return fill(unit, offset + at, len - at, &[0; 512], transfer, slot).await,
            Err(why) => return Err(fault(at)(why)),
        }
    }
    Ok(())
}

/// Writes zeroes to a locked range, if the store has an operation for that.
pub(super) async fn zeroed(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    unmap: bool,
    slot: &mut SlotContext,
) -> Result<(), Fault> {
    ask(&unit, Op::Zero { len, unmap }, offset, slot).await.result?;
    written(unit, span(offset, len), slot).await
}

/// Writes `pattern` repeatedly; its length divides `len`.
pub(super) async fn fill<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    pattern: &[u8],
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    let _held = hold(&unit, piece(len, 0)).await;
    let mut memory = slot.arena.wait_sg(piece(len, 0)).await;
    for part in memory.pieces_mut() {
        // Pieces are whole blocks: both are powers of two and a piece is at least a page.
        part.chunks_mut(pattern.len()).for_each(|block| block.copy_from_slice(&pattern[..block.len()]));
    }
    let memory = memory.share();
    let mut long = LongStep::moving(&unit, len);
    let mut at = 0;
    while at < len {
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        let count = piece(len, at);
        let _turn = long.turn().await;
        let _guard = unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, memory.part(0..count), false, slot).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

pub(super) async fn verify<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    let mut held = hold(&unit, piece(len, 0)).await;
    let mut memory = slot.arena.wait_sg(piece(len, 0)).await;
    let mut long = LongStep::moving(&unit, len);
    let (mut at, mut held_from) = (0, 0);
    while at < len {
        if at - held_from >= HOLD_BYTES {
            drop((std::mem::take(&mut memory), held.take()));
            held = hold(&unit, piece(len, at)).await;
            memory = slot.arena.wait_sg(piece(len, at)).await;
            held_from = at;
        }
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        let part = memory.split_to(piece(len, at).min(memory.len()));
        let count = part.len() as u64;
        let _turn = long.turn().await;
        let _guard = unit.lock_shared(span(offset + at, count)).await.map_err(fault(at))?;
        memory = load_into(unit, offset + at, part, slot).await.map_err(fault(at))?;
        at += count;
    }
    Ok(())
}

pub(super) async fn compare<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    block: Option<u32>,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    let pattern = match block {
        Some(size) if len > 0 => Some(transfer.pull(0, size as usize).await.map_err(fault(0))?.to_vec()),
        _ => None,
    };
    let mut long = LongStep::moving(&unit, len);
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let wanted = match &pattern {
            Some(_) => Sg::default(),
            None => transfer.pull(at as usize, count).await.map_err(fault(at))?,
        };
        let (_held, memory) = match &pattern {
            Some(_) => (hold(&unit, count).await, slot.arena.wait_sg(count).await),
            None => (None, more_memory(slot, count).map_err(fault(at))?),
        };
        let _turn = long.turn().await;
        let found = load_inside(unit, offset + at, memory, slot).await.map_err(fault(at))?;
        let differs = match &pattern {
            Some(pattern) => (0..count)
                .step_by(pattern.len())
                .find_map(|block| first_difference(&found.part(block..block + pattern.len()), pattern)),
            None => first_difference_of(&found, &wanted).map(|byte| byte + at),
        };
        if let Some(at) = differs {
            return Err(Failure::Miscompare { at });
        }
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        at += count as u64;
    }
    Ok(())
}

pub(super) async fn compare_write<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    durable: bool,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    let half = len as usize;
    // One pull: a command that has the first half must not wait for the second.
    let mut wanted = transfer.pull(0, 2 * half).await.map_err(fault(0))?;
    let compared = wanted.split_to(half);
    // Memory is taken afterwards: many commands may wait for the same blocks.
    let _held = unit.lock_exclusive(span(offset, len)).await.map_err(fault(0))?;
    let memory = more_memory(slot, half).map_err(fault(0))?;
    let found = load_into(unit, offset, memory, slot).await.map_err(fault(0))?.share();
    if let Some(at) = first_difference_of(&found, &compared) {
        return Err(Failure::Miscompare { at });
    }
    if transfer.aborted() {
        return Err(fault(0)(Fault::Aborted));
    }
    store(unit, offset, wanted, durable, slot).await.map_err(fault(0))?;
    Ok(())
}

pub(super) async fn or_write<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    durable: bool,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let data = transfer.pull(at as usize, count).await.map_err(fault(at))?;
        let _held = unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
        let memory = more_memory(slot, count).map_err(fault(at))?;
        let mut found = load_into(unit, offset + at, memory, slot).await.map_err(fault(at))?;
        or_into(&mut found, &data);
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        store(unit, offset + at, found.share(), durable, slot).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

/// Memory for a step that has some already. It does not wait: steps that waited with memory in hand could all wait for
/// each other.
pub(super) fn more_memory(slot: &SlotContext, count: usize) -> Result<SgMut, Fault> {
    slot.arena.take_sg(count).ok_or(Fault::NoMemory)
}

/// Replaces `found` by its bitwise OR with `data`, which has the same length.
pub(super) fn or_into(found: &mut SgMut, data: &Sg) {
    let mut bytes = data.pieces().iter().flat_map(|piece| piece.iter());
    for piece in found.pieces_mut() {
        piece.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to |= from);
    }
}

pub(super) async fn write_atomic<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    durable: bool,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    let data = transfer.pull(0, len as usize).await.map_err(fault(0))?;
    let _held = unit.lock_exclusive(span(offset, len)).await.map_err(fault(0))?;
    if transfer.aborted() {
        return Err(fault(0)(Fault::Aborted));
    }
    store(unit, offset, data, durable, slot).await.map_err(fault(0))
}

pub(super) async fn write_verify<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    compare: bool,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let data = transfer.pull(at as usize, count).await.map_err(fault(at))?;
        // Locked exclusively, so that no other command writes between the write and its verification.
        let _held = unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
        let memory = more_memory(slot, count).map_err(fault(at))?;
        store(unit, offset + at, data.clone(), true, slot).await.map_err(fault(at))?;
        let found = load_into(unit, offset + at, memory, slot).await.map_err(fault(at))?.share();
        if compare && let Some(byte) = first_difference_of(&found, &data) {
            return Err(Failure::Miscompare { at: at + byte });
        }
        at += count as u64;
    }
    Ok(())
}

/// First byte in which `found` and `wanted`, of the same length, differ.
pub(super) fn first_difference(found: &Sg, wanted: &[u8]) -> Option<u64> {
    let mut at = 0;
    for piece in found.pieces() {
        let other = &wanted[at..at + piece.len()];
        if piece[..] != *other {
            return piece.iter().zip(other).position(|(a, b)| a != b).map(|byte| (at + byte) as u64);
        }
        at += piece.len();
    }
    None
}

pub(super) fn first_difference_of(found: &Sg, wanted: &Sg) -> Option<u64> {
    let mut at = 0;
    for piece in wanted.pieces() {
        if let Some(byte) = first_difference(&found.part(at..at + piece.len()), piece) {
            return Some(byte + at as u64);
        }
        at += piece.len();
    }
    None
}
