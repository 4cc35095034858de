//! Copies from one unit to another, or within one: by the stores where they can, else through memory.

use super::blocks::store;
use super::kinds::{Failure, PIECE_BYTES, SlotContext, fault, span};
use super::long::{LongStep, hold};
use super::marked::{readable, written};
use crate::io::{Completion, Data, Fault, Io, Op};
use crate::mem::Sg;
use crate::port::Transfer;
use crate::range::Span;
use crate::unit::Admitted;

/// Bytes that a store copies at once: few calls for a large copy. A store that copies byte by byte delays an abort, and
/// other work of the same threads, no longer than a disk takes for these bytes.
pub const COPY_BYTES: u64 = 4 << 20;

/// A copy from one unit to another, or within one.
pub(super) struct Copying<'a> {
    pub(super) unit: Admitted<'a>,
    pub(super) from: Admitted<'a>,
    pub(super) at: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A part of a copy: bytes from its start, and how many.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    len: usize,
}

impl Copying<'_> {
    pub(super) async fn run<T: Transfer>(&self, transfer: &T, slot: &mut SlotContext) -> Result<(), Failure> {
        let done = self.within_stores(transfer, slot).await?;
        self.through_memory(done, transfer, slot).await
    }

    fn overlaps(&self) -> bool {
        let source = span(self.at, self.len);
        *self.unit == *self.from && source.overlaps(span(self.offset, self.len))
    }

    fn source(&self, part: Part) -> Span {
        span(self.at + part.start, part.len as u64)
    }

    fn target(&self, part: Part) -> Span {
        span(self.offset + part.start, part.len as u64)
    }

    /// Fails if a block of a part whose range is locked is marked.
    fn readable(&self, part: Part) -> Result<(), Failure> {
        readable(&self.from, self.source(part)).map_err(|fault| Failure::Origin { fault, at: part.start })
    }

    /// Copies as long as the store can; returns the bytes that it copied.
    async fn within_stores<T: Transfer>(&self, transfer: &T, slot: &mut SlotContext) -> Result<u64, Failure> {
        let Some(origin) = self.from.store.origin().filter(|_| !self.overlaps()) else { return Ok(0) };
        let mut long = LongStep::moving(&self.unit, self.len);
        let mut done = 0;
        while done < self.len {
            if transfer.aborted() {
                return Err(fault(done)(Fault::Aborted));
            }
            let part = Part { start: done, len: long.part(self.len - done, COPY_BYTES) as usize };
            let _turn = long.turn().await;
            let (source, target) = (self.source(part), self.target(part));
            let guards = self.from.lock_shared_both(source, &self.unit, target).await;
            let _guards = guards.map_err(fault(done))?;
            self.readable(part)?;
            let op = Op::Copy { from: source.start, len: part.len as u64 };
            let io = Io { op, offset: target.start, data: Data::From(origin.clone()) };
            match slot.submit(&*self.unit.store, io).await.result {
                Ok(_) => written(self.unit, target, slot).await.map_err(fault(done))?,
                Err(Fault::Unsupported) => break,
                Err(why) => return Err(fault(done)(why)),
            }
            done += part.len as u64;
        }
        Ok(done)
    }

    /// The part of this number. A copy to a range that overlaps its source and begins behind it starts with the last
    /// part: each part is read before it is overwritten, although the next part is read while one is written.
    fn part(&self, done: u64, number: u64) -> Part {
        let piece = PIECE_BYTES as u64;
        let count = (self.len - done).div_ceil(piece);
        let backwards = self.overlaps() && self.offset > self.at;
        let start = done + piece * if backwards { count - 1 - number } else { number };
        Part { start, len: (self.len - start).min(piece) as usize }
    }

    /// Copies piece by piece, and reads the next piece while one is written.
    async fn through_memory<T: Transfer>(
        &self,
        done: u64,
        transfer: &T,
        slot: &mut SlotContext,
    ) -> Result<(), Failure> {
        let count = (self.len - done).div_ceil(PIECE_BYTES as u64);
        let _held = hold(&self.unit, (self.len - done).min(PIECE_BYTES as u64) as usize).await;
        let mut reading = Completion::new();
        let mut loaded: Option<(Part, Sg)> = None;
        let mut long = LongStep::moving(&self.unit, self.len - done);
        let mut number = 0;
        while number < count || loaded.is_some() {
            if transfer.aborted() {
                return Err(fault(0)(Fault::Aborted));
            }
            let next = match (number < count).then(|| self.part(done, number)) {
                None => None,
                Some(part) if loaded.is_none() => Some((part, slot.arena.wait_sg(part.len).await)),
                // No waiting for memory with memory in hand: copies that did could all wait for each other.
                Some(part) => slot.arena.take_sg(part.len).map(|memory| (part, memory)),
            };
            let _turn = long.turn().await;
            // Without a part the range to lock is empty.
            let source = next.as_ref().map(|(part, _)| self.source(*part)).unwrap_or_default();
            let target = loaded.as_ref().map(|(part, _)| self.target(*part)).unwrap_or_default();
            let _guards = self.from.lock_shared_both(source, &self.unit, target).await.map_err(fault(0))?;
            next.as_ref().map_or(Ok(()), |(part, _)| self.readable(*part))?;
            let begun = next.map(|(part, memory)| {
                let io = Io { op: Op::Read, offset: source.start, data: Data::In(memory) };
                self.from.store.submit(io, reading.token());
                part
            });
            let written = match loaded.take() {
                Some((part, data)) => {
                    store(self.unit, target.start, data, false, slot).await.map_err(fault(part.start))
                }
                None => Ok(()),
            };
            // A step that ends must have no request at the store, so the read is waited for after a failed write too.
            if let Some(part) = begun {
                let outcome = slot.watch.storing(reading.wait()).await;
                outcome.result.map_err(|fault| Failure::Origin { fault, at: part.start })?;
                loaded = Some((part, outcome.data.into_in().share()));
                number += 1;
            }
            written?;
        }
        Ok(())
    }
}
