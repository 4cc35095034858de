//! What a command asks for, and the one place that carries it out.
//!
//! A command set plans: it looks at the unit and the command and returns a [`Step`]. [`carry_out`] does it, in
//! one straight line from the transport through the store and back, and holds the fall-backs for stores that
//! cannot do an operation. Shared by SCSI and NVMe.
//!
//! Everything that depends on the peer or on memory is awaited *before* a range is entered: who is inside waits
//! for the store only, so an atomic command that waits for them always gets its turn.

mod copy;
mod marked;
mod now;
mod protect;
mod whole;

use crate::io::{Completion, Data, Extent, Fault, Io, Op, Outcome, Space, submit};
use crate::mem::{Arena, Sg, SgMut};
use crate::port::Transfer;
use crate::protection::{Field, Terms};
use crate::range::Span;
use crate::unit::{Admitted, Unit};
pub use copy::COPY_BYTES;
use copy::Copying;
use marked::{mark, placed, readable, written};
pub use now::carry_out_now;
use std::rc::Rc;
pub use whole::{rewrite, turn};

/// Bytes moved at once: small enough that a piece stays in the processor's cache between the store and the
/// wire, large enough that the cost of one more request does not show.
pub const PIECE_BYTES: usize = 256 << 10;

/// What a command asks of the unit. Offsets and lengths are bytes, checked against the unit's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Data-In from the store.
    Read {
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Data-Out to the store.
    Write {
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// All that was written is on the medium.
    Flush,
    /// Space is given back, range by range: (offset, bytes).
    Unmap(Vec<(u64, u64)>),
    /// One block, over and over: Data-Out is that block.
    Fill {
        /// Where.
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
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether Data-Out is one block that every block is compared with.
        block: Option<u32>,
    },
    /// The store is read and thrown away: can it be read?
    Verify {
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Data-Out is two halves: the first is compared with the store, then the second written; nothing in between.
    CompareWrite {
        /// Where.
        offset: u64,
        /// Bytes of one half, at most [`PIECE_BYTES`].
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// Bytes of a unit are written to this one. Ranges that overlap are copied as if through memory that holds all.
    Copy {
        /// The other unit, or this one.
        from: Rc<Unit>,
        /// Where the bytes are there.
        at: u64,
        /// Where they are written.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Data-Out is or'ed into the store; nothing comes between the reading and the writing of a byte.
    OrWrite {
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// Data-Out to the store all at once: no other I/O comes in between.
    WriteAtomic {
        /// Where.
        offset: u64,
        /// Bytes, at most [`PIECE_BYTES`].
        len: u64,
        /// FUA.
        durable: bool,
    },
    /// Blocks are marked as unreadable, until they are written.
    Mark {
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Data-Out to the medium, and read back.
    WriteVerify {
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether what is read back is compared with Data-Out.
        compare: bool,
    },
    /// One of these on a unit whose blocks are protected, on terms of its own. Behind a pointer, for it is seldom.
    Protected(Box<Protected>),
}

impl Step {
    /// Whether what it has written may still be lost with power.
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

    /// First byte of what it reads on its unit, if it does.
    fn reads_at(&self) -> Option<u64> {
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

/// A step and what its command says of protection information. Offsets and lengths are those of the blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Protected {
    /// What is done. The pattern of a [`Step::Fill`] has its protection information behind it, if that travels.
    pub step: Step,
    /// On which terms.
    pub terms: Terms,
    /// On which terms the other half is, where there are two: what a [`Step::CompareWrite`] compares, what a
    /// [`Step::Copy`] reads.
    pub other: Terms,
}

/// Why a step did not end well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The store or the transport failed at this byte of the step.
    Fault {
        /// Why.
        fault: Fault,
        /// Bytes from the start of the step.
        at: u64,
    },
    /// The unit that is copied from failed at this byte of the step.
    Origin {
        /// Why.
        fault: Fault,
        /// Bytes from the start of the step.
        at: u64,
    },
    /// Protection information was not as it should be.
    Protection {
        /// What of it.
        field: Field,
        /// Bytes from the start of the step to the block.
        at: u64,
        /// Whether it was compared with what came with the command, and not with what it should be.
        compared: bool,
    },
    /// A comparison found a difference.
    Miscompare {
        /// First byte that differs, from the start of Data-Out.
        at: u64,
    },
}

/// What a slot lends to the steps it carries out.
#[derive(Debug)]
pub struct Tools {
    /// The core's memory.
    pub arena: Arena,
    /// The slot's own.
    pub completion: Completion,
}

/// Data-In that has not been pushed: it travels with the status.
#[derive(Debug, Default)]
pub struct Tail {
    /// Bytes pushed before it.
    pub offset: usize,
    /// The rest.
    pub data: Sg,
}

/// Carries a step out. The last piece of a read is put into `tail`, so that status can travel with it.
///
/// # Errors
/// [`Failure`], with the byte at which it happened.
pub async fn carry_out<T: Transfer>(
    unit: Admitted<'_>,
    step: &Step,
    transfer: &T,
    tools: &mut Tools,
    tail: &mut Tail,
) -> Result<(), Failure> {
    if let Some(protection) = unit.protected() {
        // Seldom, and larger than all others: it does not make their futures larger.
        let ended = Box::pin(protect::carry_out(unit, protection, step, transfer, tools, tail)).await;
        return ended.map_err(|failure| placed(&unit, step, failure));
    }
    let ended = match step {
        &Step::Read { offset, len } => read(unit, offset, len, transfer, tools, tail).await,
        &Step::Write { offset, len, durable } => write(unit, offset, len, durable, transfer, tools).await,
        Step::Flush => flush(unit, tools).await,
        Step::Unmap(ranges) => unmap(unit, ranges, transfer, tools).await,
        &Step::Fill { offset, len, ref pattern, unmap } if pattern.is_empty() => {
            zero(unit, offset, len, unmap, transfer, tools).await
        }
        &Step::Fill { offset, len, ref pattern, .. } => fill(unit, offset, len, pattern, transfer, tools).await,
        &Step::Compare { offset, len, block } => compare(unit, offset, len, block, transfer, tools).await,
        &Step::Verify { offset, len } => verify(unit, offset, len, transfer, tools).await,
        &Step::CompareWrite { offset, len, durable } => {
            compare_write(unit, offset, len, durable, transfer, tools).await
        }
        &Step::OrWrite { offset, len, durable } => or_write(unit, offset, len, durable, transfer, tools).await,
        &Step::WriteAtomic { offset, len, durable } => write_atomic(unit, offset, len, durable, transfer, tools).await,
        &Step::WriteVerify { offset, len, compare } => write_verify(unit, offset, len, compare, transfer, tools).await,
        &Step::Mark { offset, len } => mark(unit, offset, len, transfer).await,
        Step::Protected(protected) => Box::pin(protect::strip(unit, protected, transfer, tools)).await,
        // Seldom, and larger than all others: it does not make their futures larger.
        &Step::Copy { ref from, at, offset, len } => {
            Box::pin(Copying { unit, from: Admitted::to(from), at, offset, len }.run(transfer, tools)).await
        }
    };
    ended.map_err(|failure| placed(&unit, step, failure))
}

/// What is kept beside all blocks is blank after, and on the medium: no block is checked.
///
/// # Errors
/// What the store answers.
pub async fn blank(unit: &Unit, tools: &mut Tools) -> Result<(), Failure> {
    let Some(protection) = &unit.protection else { return Ok(()) };
    protect::blank(unit, protection, 0, unit.geometry.bytes(), tools).await.map_err(fault(0))?;
    let io = Io { op: Op::Flush, offset: 0, data: Data::None };
    submit(&*protection.store, io, &mut tools.completion).await.result.map(|_| ()).map_err(fault(0))
}

/// What was written is on the medium, with what is kept beside it.
///
/// # Errors
/// What the stores answer: of the first that fails, after both were asked.
pub async fn flush_now(unit: &Unit) -> Result<(), Fault> {
    let beside = unit.protection.as_ref().map(|protection| &*protection.store);
    let mut all = Ok(());
    for store in std::iter::once(&*unit.store).chain(beside) {
        let io = Io { op: Op::Flush, offset: 0, data: Data::None };
        all = all.and(submit(store, io, &mut Completion::new()).await.result.map(drop));
    }
    all
}

fn span(offset: u64, len: u64) -> Span {
    Span { start: offset, end: offset + len }
}

fn fault(at: u64) -> impl Fn(Fault) -> Failure {
    move |fault| Failure::Fault { fault, at }
}

/// Bytes of the piece that starts `at` bytes into `len`.
fn piece(len: u64, at: u64) -> usize {
    // PIECE_BYTES fits both types, so the smaller of the two does as well.
    (len - at).min(PIECE_BYTES as u64) as usize
}

async fn read<T: Transfer>(
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
            let guard = unit.enter(span(offset + at, count as u64)).await.map_err(fault(at))?;
            load_into(unit, offset + at, memory, tools).await.map_err(fault(at))?;
            drop(guard);
            at += count as u64;
            if at == len {
                return Ok(());
            }
            continue;
        }
        // What is marked is found where the range is entered.
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

/// Reads from the store into fresh memory.
async fn load(unit: Admitted<'_>, offset: u64, count: usize, tools: &mut Tools) -> Result<Sg, Fault> {
    if count == 0 {
        return Ok(Sg::default());
    }
    let memory = tools.arena.wait_sg(count).await;
    load_inside(unit, offset, memory, tools).await
}

/// Reads from the store, inside the range.
async fn load_inside(unit: Admitted<'_>, offset: u64, memory: SgMut, tools: &mut Tools) -> Result<Sg, Fault> {
    let _guard = unit.enter(span(offset, memory.len() as u64)).await?;
    load_into(unit, offset, memory, tools).await.map(SgMut::share)
}

async fn load_into(unit: Admitted<'_>, offset: u64, memory: SgMut, tools: &mut Tools) -> Result<SgMut, Fault> {
    readable(&unit, span(offset, memory.len() as u64))?;
    let io = Io { op: Op::Read, offset, data: Data::In(memory) };
    let outcome = submit(&*unit.store, io, &mut tools.completion).await;
    outcome.result.map(|_| outcome.data.into_in())
}

async fn store(unit: Admitted<'_>, offset: u64, data: Sg, durable: bool, tools: &mut Tools) -> Result<(), Fault> {
    let span = span(offset, data.len() as u64);
    let io = Io { op: Op::Write { durable }, offset, data: Data::Out(data) };
    submit(&*unit.store, io, &mut tools.completion).await.result?;
    written(unit, span, tools).await
}

async fn ask(unit: Admitted<'_>, op: Op, offset: u64, tools: &mut Tools) -> Outcome {
    submit(&*unit.store, Io { op, offset, data: Data::None }, &mut tools.completion).await
}

async fn write<T: Transfer>(
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
        let _guard = unit.enter(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, data, durable, tools).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

async fn flush(unit: Admitted<'_>, tools: &mut Tools) -> Result<(), Failure> {
    ask(unit, Op::Flush, 0, tools).await.result.map_err(fault(0))?;
    Ok(())
}

async fn unmap<T: Transfer>(
    unit: Admitted<'_>,
    ranges: &[(u64, u64)],
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    for &(offset, len) in ranges {
        if transfer.aborted() {
            return Err(fault(0)(Fault::Aborted));
        }
        let _guard = unit.enter(span(offset, len)).await.map_err(fault(0))?;
        match ask(unit, Op::Unmap { len }, offset, tools).await.result {
            Ok(_) => written(unit, span(offset, len), tools).await.map_err(fault(0))?,
            // Unmapping is a hint: a store that cannot keeps the data.
            Err(Fault::Unsupported) => {}
            Err(why) => return Err(fault(0)(why)),
        }
    }
    Ok(())
}

async fn zero<T: Transfer>(
    unit: Admitted<'_>,
    offset: u64,
    len: u64,
    unmap: bool,
    transfer: &T,
    tools: &mut Tools,
) -> Result<(), Failure> {
    let guard = unit.enter(span(offset, len)).await.map_err(fault(0))?;
    let asked = zeroed(unit, offset, len, unmap, tools).await;
    drop(guard);
    match asked {
        Ok(()) => Ok(()),
        Err(Fault::Unsupported) => fill(unit, offset, len, &[0; 512], transfer, tools).await,
        Err(why) => Err(fault(0)(why)),
    }
}

/// Has the store make zeroes of a range that is held.
async fn zeroed(unit: Admitted<'_>, offset: u64, len: u64, unmap: bool, tools: &mut Tools) -> Result<(), Fault> {
    ask(unit, Op::Zero { len, unmap }, offset, tools).await.result?;
    written(unit, span(offset, len), tools).await
}

/// Writes `pattern` over and over; its length divides `len`.
async fn fill<T: Transfer>(
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
        let _guard = unit.enter(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, memory.part(0..count), false, tools).await.map_err(fault(at))?;
        at += count as u64;
    }
    Ok(())
}

async fn verify<T: Transfer>(
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
        let _guard = unit.enter(span(offset + at, count)).await.map_err(fault(at))?;
        memory = load_into(unit, offset + at, part, tools).await.map_err(fault(at))?;
        at += count;
    }
    Ok(())
}

async fn compare<T: Transfer>(
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
            None => memory_beside(tools, count).map_err(fault(at))?,
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

async fn compare_write<T: Transfer>(
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
    // In one: who has the first half waits for no other.
    let mut wanted = transfer.pull(0, 2 * half).await.map_err(fault(0))?;
    let compared = wanted.split_to(half);
    let memory = memory_beside(tools, half).map_err(fault(0))?;
    let _held = unit.hold(span(offset, len)).await.map_err(fault(0))?;
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

async fn or_write<T: Transfer>(
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
        let memory = memory_beside(tools, count).map_err(fault(at))?;
        let _held = unit.hold(span(offset + at, count as u64)).await.map_err(fault(at))?;
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

/// Memory for one who has some already: who waited for more while holding it might wait for others who do the same.
fn memory_beside(tools: &Tools, count: usize) -> Result<SgMut, Fault> {
    tools.arena.take_sg(count).ok_or(Fault::NoMemory)
}

/// Ors `data` into `found`, which is as long.
fn or_into(found: &mut SgMut, data: &Sg) {
    let mut bytes = data.pieces().iter().flat_map(|piece| piece.iter());
    for piece in found.pieces_mut() {
        piece.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to |= from);
    }
}

async fn write_atomic<T: Transfer>(
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
    let _held = unit.hold(span(offset, len)).await.map_err(fault(0))?;
    if transfer.aborted() {
        return Err(fault(0)(Fault::Aborted));
    }
    store(unit, offset, data, durable, tools).await.map_err(fault(0))
}

async fn write_verify<T: Transfer>(
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
        let memory = memory_beside(tools, count).map_err(fault(at))?;
        // Held, so that what is read back is this command's and no other's.
        let _held = unit.hold(span(offset + at, count as u64)).await.map_err(fault(at))?;
        store(unit, offset + at, data.clone(), true, tools).await.map_err(fault(at))?;
        let found = load_into(unit, offset + at, memory, tools).await.map_err(fault(at))?.share();
        if compare && let Some(byte) = first_difference_of(&found, &data) {
            return Err(Failure::Miscompare { at: at + byte });
        }
        at += count as u64;
    }
    Ok(())
}

/// Questions that [`survey`] asks a store at most: bounds the time of one command.
const SURVEY_ASKS_MAX: usize = 4096;

/// Which bytes of `offset..offset + len` take space, from the first on: runs of whole blocks, neighbours in different
/// states, `runs` at most. They end early where more would have to be asked than one command may.
///
/// # Errors
/// What the store answers, but for [`Fault::Unsupported`]: then all bytes count as mapped.
pub async fn survey(unit: &Unit, offset: u64, len: u64, runs: usize, tools: &mut Tools) -> Result<Vec<Extent>, Fault> {
    let block = u64::from(unit.geometry.block_size);
    let unit = Admitted::to(unit);
    let (mut found, mut at) = (Vec::<Extent>::new(), 0);
    for _ in 0..SURVEY_ASKS_MAX {
        let rest = len - at;
        if rest == 0 {
            break;
        }
        let asked = ask(unit, Op::Extent { len: rest }, offset + at, tools).await;
        let next = match asked.result {
            Ok(_) => whole_blocks(asked.extent, block),
            Err(Fault::Unsupported) => Extent { len: rest, mapped: true },
            Err(why) => return Err(why),
        };
        let next = Extent { len: next.len.min(rest), ..next };
        let is_full = found.len() == runs;
        match found.last_mut() {
            Some(last) if last.mapped == next.mapped => last.len += next.len,
            _ if is_full => break,
            _ => found.push(next),
        }
        at += next.len;
    }
    Ok(found)
}

/// How much space a unit takes and may take yet; `None` where its store cannot tell, or cannot now.
pub async fn space(unit: &Unit, tools: &mut Tools) -> Option<Space> {
    let asked = ask(Admitted::to(unit), Op::Space, 0, tools).await;
    match (asked.result, asked.data) {
        (Ok(_), Data::Space(space)) => Some(space),
        _ => None,
    }
}

/// A block of which any part takes space is mapped.
fn whole_blocks(extent: Extent, block: u64) -> Extent {
    let whole = extent.len - extent.len % block;
    if extent.mapped || whole == 0 {
        return Extent { len: extent.len.max(1).next_multiple_of(block), mapped: true };
    }
    Extent { len: whole, mapped: false }
}

/// First byte in which `found` and `wanted`, of the same length, differ.
fn first_difference(found: &Sg, wanted: &[u8]) -> Option<u64> {
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

fn first_difference_of(found: &Sg, wanted: &Sg) -> Option<u64> {
    let mut at = 0;
    for piece in wanted.pieces() {
        if let Some(byte) = first_difference(&found.part(at..at + piece.len()), piece) {
            return Some(byte + at as u64);
        }
        at += piece.len();
    }
    None
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
