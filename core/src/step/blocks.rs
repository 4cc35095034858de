//! The operations of steps on the blocks of a unit without protection information, and the parts that protected
//! units and copies share with them.

use super::kinds::{Failure, Tail, Tools, ask, fault, piece, span};
use super::marked::{readable, written};
use crate::io::{Data, Fault, Io, Op, submit};
use crate::mem::{Sg, SgMut};
use crate::port::Transfer;
use crate::unit::Admitted;

pub(super) async fn read<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    transfer: &T,
    tools: &mut Tools,
    tail: &mut Tail,
) -> Result<(), Failure> {
    let mut at = 0;
    loop {
        transfer.room().await.map_err(fault(at))?;
        let count = piece(len, at);
        tail.offset = at as usize;
        if let Some(memory) = transfer.place(tail.offset, count) {
            let guard = unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
            load_into(unit, offset + at, memory, tools).await.map_err(fault(at))?;
            drop(guard);
            at += count as u64;
            if at == len {
                return Ok(());
            }
            continue;
        }
        // Marked blocks are looked for with the range locked, so the store lends nothing while there are any.
        let is_marked = unit.medium.uncorrectable().is_any();
        if count > 0 && (is_marked || !unit.store.lend(offset + at, count, &mut tail.data)) {
            let memory = transfer.fresh(&tools.arena, count).await.map_err(fault(at))?;
            tail.data = load_inside(unit, offset + at, memory, tools).await.map_err(fault(at))?;
        }
        at += count as u64;
        if at == len {
            return Ok(());
        }
        transfer.push(tail.offset, std::mem::take(&mut tail.data)).map_err(fault(tail.offset as u64))?;
    }
}

/// Reads from the store into new memory, with the range locked.
pub(super) async fn load(unit: Admitted<'_>, offset: u64, count: usize, tools: &mut Tools) -> Result<Sg, Fault> {
    if count == 0 {
        return Ok(Sg::default());
    }
    let memory = tools.arena.wait_sg(count).await;
    load_inside(unit, offset, memory, tools).await
}

/// Reads from the store into `memory`, with the range locked.
async fn load_inside(unit: Admitted<'_>, offset: u64, memory: SgMut, tools: &mut Tools) -> Result<Sg, Fault> {
    let _guard = unit.lock_shared(span(offset, memory.len() as u64)).await?;
    load_into(unit, offset, memory, tools).await.map(SgMut::share)
}

pub(super) async fn load_into(
    unit: Admitted<'_>,
    offset: u64,
    memory: SgMut,
    tools: &mut Tools,
) -> Result<SgMut, Fault> {
    readable(&unit, span(offset, memory.len() as u64))?;
    let io = Io { op: Op::Read, offset, data: Data::In(memory) };
    let outcome = submit(&*unit.store, io, &mut tools.completion).await;
    outcome.result.map(|_| outcome.data.into_in())
}

pub(super) async fn store(
    unit: Admitted<'_>,
    offset: u64,
    data: Sg,
    durable: bool,
    tools: &mut Tools,
) -> Result<(), Fault> {
    let span = span(offset, data.len() as u64);
    let io = Io { op: Op::Write { durable }, offset, data: Data::Out(data) };
    submit(&*unit.store, io, &mut tools.completion).await.result?;
    written(unit, span, tools).await
}

pub(super) async fn write<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    durable: bool,
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let data = match transfer.lend(at as usize, count) {
            Some(data) => data,
            None => transfer.pull(at as usize, count).await.map_err(fault(at))?,
        };
        let _guard = unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, data, durable, tools).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

pub(super) async fn flush(unit: Admitted<'_>, tools: &mut Tools) -> Result<(), Failure> {
    ask(unit, Op::Flush, 0, tools).await.result.map_err(fault(0))?;
    Ok(())
}

pub(super) async fn unmap<T: Transfer>(
    unit: Admitted<'_>,
    ranges: &[(u64, u64)],
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    for &(offset, len) in ranges {
        if transfer.aborted() {
            return Err(fault(0)(Fault::Aborted));
        }
        let _guard = unit.lock_shared(span(offset, len)).await.map_err(fault(0))?;
        match ask(unit, Op::Unmap { len }, offset, tools).await.result {
            Ok(_) => written(unit, span(offset, len), tools).await.map_err(fault(0))?,
            // A store may keep the data: unmapping is a hint.
            Err(Fault::Unsupported) => {}
            Err(why) => return Err(fault(0)(why)),
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
    tools: &mut Tools,
) -> Result<(), Failure> {
    let guard = unit.lock_shared(span(offset, len)).await.map_err(fault(0))?;
    let asked = zeroed(unit, offset, len, unmap, tools).await;
    drop(guard);
    match asked {
        Ok(()) => Ok(()),
        Err(Fault::Unsupported) => fill(unit, offset, len, &[0; 512], transfer, tools).await,
        Err(why) => Err(fault(0)(why)),
    }
}

/// Writes zeroes to a locked range, if the store has an operation for that.
pub(super) async fn zeroed(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    unmap: bool,
    tools: &mut Tools,
) -> Result<(), Fault> {
    ask(unit, Op::Zero { len, unmap }, offset, tools).await.result?;
    written(unit, span(offset, len), tools).await
}

/// Writes `pattern` over and over; its length divides `len`.
pub(super) async fn fill<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    pattern: &[u8],
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    let mut memory = tools.arena.wait_sg(piece(len, 0)).await;
    for part in memory.pieces_mut() {
        // Pieces are whole blocks: both are powers of two and a piece is at least a page.
        part.chunks_mut(pattern.len()).for_each(|block| block.copy_from_slice(&pattern[..block.len()]));
    }
    let memory = memory.share();
    let mut at = 0;
    while at < len {
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        let count = piece(len, at);
        let _guard = unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, memory.part(0..count), false, tools).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

pub(super) async fn verify<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    let mut memory = tools.arena.wait_sg(piece(len, 0)).await;
    let mut at = 0;
    while at < len {
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        let part = memory.split_to(piece(len, at).min(memory.len()));
        let count = part.len() as u64;
        let _guard = unit.lock_shared(span(offset + at, count)).await.map_err(fault(at))?;
        memory = load_into(unit, offset + at, part, tools).await.map_err(fault(at))?;
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
    tools: &mut Tools,
) -> Result<(), Failure> {
    let pattern = match block {
        Some(size) if len > 0 => Some(transfer.pull(0, size as usize).await.map_err(fault(0))?.to_vec()),
        _ => None,
    };
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let wanted = match &pattern {
            Some(_) => Sg::default(),
            None => transfer.pull(at as usize, count).await.map_err(fault(at))?,
        };
        let memory = match &pattern {
            Some(_) => tools.arena.wait_sg(count).await,
            None => more_memory(tools, count).map_err(fault(at))?,
        };
        let found = load_inside(unit, offset + at, memory, tools).await.map_err(fault(at))?;
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
    tools: &mut Tools,
) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    let half = len as usize;
    // One pull: a command that has the first half must not wait for the second.
    let mut wanted = transfer.pull(0, 2 * half).await.map_err(fault(0))?;
    let compared = wanted.split_to(half);
    let memory = more_memory(tools, half).map_err(fault(0))?;
    let _held = unit.lock_exclusive(span(offset, len)).await.map_err(fault(0))?;
    let found = load_into(unit, offset, memory, tools).await.map_err(fault(0))?.share();
    if let Some(at) = first_difference_of(&found, &compared) {
        return Err(Failure::Miscompare { at });
    }
    if transfer.aborted() {
        return Err(fault(0)(Fault::Aborted));
    }
    store(unit, offset, wanted, durable, tools).await.map_err(fault(0))?;
    Ok(())
}

pub(super) async fn or_write<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    durable: bool,
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let data = transfer.pull(at as usize, count).await.map_err(fault(at))?;
        let memory = more_memory(tools, count).map_err(fault(at))?;
        let _held = unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
        let mut found = load_into(unit, offset + at, memory, tools).await.map_err(fault(at))?;
        or_into(&mut found, &data);
        if transfer.aborted() {
            return Err(fault(at)(Fault::Aborted));
        }
        store(unit, offset + at, found.share(), durable, tools).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

/// Memory for a step that has some already. It does not wait: steps that waited with memory in hand could all wait for
/// each other.
pub(super) fn more_memory(tools: &Tools, count: usize) -> Result<SgMut, Fault> {
    tools.arena.take_sg(count).ok_or(Fault::NoMemory)
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
    tools: &mut Tools,
) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    let data = transfer.pull(0, len as usize).await.map_err(fault(0))?;
    let _held = unit.lock_exclusive(span(offset, len)).await.map_err(fault(0))?;
    if transfer.aborted() {
        return Err(fault(0)(Fault::Aborted));
    }
    store(unit, offset, data, durable, tools).await.map_err(fault(0))
}

pub(super) async fn write_verify<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    compare: bool,
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < len {
        let count = piece(len, at);
        let data = transfer.pull(at as usize, count).await.map_err(fault(at))?;
        let memory = more_memory(tools, count).map_err(fault(at))?;
        // Locked exclusively, so that no other command writes between the write and its verification.
        let _held = unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, data.clone(), true, tools).await.map_err(fault(at))?;
        let found = load_into(unit, offset + at, memory, tools).await.map_err(fault(at))?.share();
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
