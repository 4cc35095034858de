//! Steps on units whose blocks are protected: the protection information is read and written with the blocks, and
//! checked.
//!
//! A block and its protection information are two requests to two stores. A writer locks the range on every core, so
//! no reader sees one half of a block from before and the other from after a write.

use super::blocks::{
    fill, first_difference, first_difference_of, load, load_into, more_memory, or_into, store, zeroed,
};
use super::kinds::{Failure, FinalData, PIECE_BYTES, Protected, RESERVED_LEAST, SlotContext, Step, ask, fault, span};
use super::long::{LongStep, hold, merged};
use super::marked::{mark, written};
use crate::io::{Data, Fault, Io, Op, Store};
use crate::mem::{Sg, SgMut};
use crate::port::Transfer;
use crate::protection::{Checks, Field, INFO_BYTES, Info, Kind, Place, Protection, Terms, guard};
use crate::unit::{Admitted, Unit};
use std::borrow::Cow;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes of blocks that are moved at once: with their protection information, and two copies of it, they need much
/// less than a block of the arena.
const GUARDED_BYTES: usize = 64 << 10;

/// Executes a step on a unit whose blocks are protected.
pub(super) async fn carry_out<T: Transfer>(
    unit: Admitted<'_>,
    protection: &Protection,
    step: &Step,
    transfer: &T,
    slot: &mut SlotContext,
    final_data: &mut FinalData,
) -> Result<(), Failure> {
    let (step, terms, other) = match step {
        Step::Protected(protected) => (&protected.step, protected.terms, protected.other),
        step => (step, Terms::PLAIN, Terms::PLAIN),
    };
    let guarded = Guarded { unit, protection, terms, transfer };
    match step {
        &Step::Read { offset, len } => guarded.read(offset, len, slot, final_data).await,
        &Step::Write { offset, len, durable } => guarded.write(offset, len, GUARDED_BYTES, durable, slot).await,
        &Step::WriteAtomic { offset, len, durable } => guarded.write(offset, len, PIECE_BYTES, durable, slot).await,
        &Step::WriteVerify { offset, len, compare } => guarded.write_verify(offset, len, compare, slot).await,
        &Step::Verify { offset, len } => guarded.verify(offset, len, slot).await,
        &Step::Compare { offset, len, block: None } => guarded.compare(offset, len, slot).await,
        &Step::Compare { offset, len, .. } => guarded.compare_each(offset, len, slot).await,
        &Step::CompareWrite { offset, len, durable } => guarded.compare_write(other, offset, len, durable, slot).await,
        &Step::OrWrite { offset, len, durable } => guarded.or_write(offset, len, durable, slot).await,
        &Step::Fill { offset, len, ref pattern, unmap } => guarded.fill(offset, len, pattern, unmap, slot).await,
        Step::Unmap(ranges) => guarded.unmap(ranges, slot).await,
        Step::Flush => guarded.flush(slot).await,
        &Step::Mark { offset, len } => mark(unit, offset, len, transfer).await,
        &Step::Copy { ref from, at, offset, len } => guarded.copy((from, at, other), offset, len, slot).await,
        // No command set builds one guarded step inside another.
        Step::Protected(_) => Err(fault(0)(Fault::Unsupported)),
    }
}

/// Copies protected blocks to a unit without protection: they are checked on the way.
pub(super) async fn strip<T: Transfer>(
    unit: Admitted<'_>,
    protected: &Protected,
    transfer: &T,
    slot: &mut SlotContext,
) -> Result<(), Failure> {
    // No command set plans another step for a unit that is not protected.
    let Step::Copy { ref from, at, offset, len } = protected.step else { return Err(fault(0)(Fault::Unsupported)) };
    let gone = Failure::Origin { fault: Fault::Cleared, at: 0 };
    let protection = from.protected().ok_or(gone)?;
    let source = Guarded { unit: Admitted::to(from), protection, terms: protected.other, transfer };
    let mut done = 0;
    while done < len {
        if transfer.aborted() {
            return Err(fault(done)(Fault::Aborted));
        }
        let count = source.piece(len, done);
        let Blocks { data, .. } = source.original(at, done, count, slot).await?;
        let _entered = unit.lock_shared(span(offset + done, count as u64)).await.map_err(fault(done))?;
        store(unit, offset + done, data, false, slot).await.map_err(fault(done))?;
        done += count as u64;
    }
    Ok(())
}

/// The protection information of `offset..offset + len` is blank afterwards: those blocks are not checked.
pub(super) async fn blank(
    unit: &Unit,
    protection: &Protection,
    offset: u64,
    len: u64,
    slot: &mut SlotContext,
) -> Result<(), Fault> {
    let block = u64::from(unit.geometry.block_size);
    let (mut at, end) = (offset / block * INFO_BYTES as u64, (offset + len) / block * INFO_BYTES as u64);
    let info_store = &*protection.store;
    match ask_store(info_store, Op::Zero { len: end - at, unmap: true }, at, slot).await {
        Err(Fault::Unsupported) => {}
        other => return other,
    }
    let zeroes = slot.arena.zeroes().ok_or(Fault::NoMemory)?;
    while at < end {
        let count = zeroes.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        put(info_store, at, zeroes.part(0..count).into(), false, slot).await?;
        at += count as u64;
    }
    Ok(())
}

async fn ask_store(store: &dyn Store, op: Op, offset: u64, slot: &mut SlotContext) -> Result<(), Fault> {
    slot.submit(store, Io { op, offset, data: Data::None }).await.result.map(|_| ())
}

async fn put(store: &dyn Store, offset: u64, data: Sg, durable: bool, slot: &mut SlotContext) -> Result<(), Fault> {
    let io = Io { op: Op::Write { durable }, offset, data: Data::Out(data) };
    slot.submit(store, io).await.result.map(|_| ())
}

/// All bytes in one piece.
fn whole(data: &Sg) -> Cow<'_, [u8]> {
    match data.pieces() {
        [] => Cow::Borrowed(&[]),
        [one] => Cow::Borrowed(one),
        _ => Cow::Owned(data.to_vec()),
    }
}

/// Memory for blocks and for their protection information, taken at once: two steps that each wait for the second part
/// with the first in hand could wait for each other.
struct Room {
    data: SgMut,
    packed_info: SgMut,
}

/// Blocks with their protection information.
struct Blocks {
    data: Sg,
    infos: Vec<Info>,
}

struct Guarded<'a, T> {
    unit: Admitted<'a>,
    protection: &'a Protection,
    terms: Terms,
    transfer: &'a T,
}

impl<T: Transfer> Guarded<'_, T> {
    fn block(&self) -> usize {
        self.unit.geometry.block_size as usize
    }

    /// The length on the wire of this number of bytes of blocks.
    fn wire(&self, bytes: u64) -> u64 {
        self.terms.wire(bytes, self.unit.geometry.block_size)
    }

    /// Bytes of protection information for this number of bytes of blocks.
    fn info_len(&self, bytes: u64) -> u64 {
        bytes / self.block() as u64 * INFO_BYTES as u64
    }

    /// The block that is `index` blocks behind byte `at` of a step that begins at `offset`.
    fn place(&self, offset: u64, at: u64, index: usize) -> Place {
        let block = self.block() as u64;
        Place { lba: (offset + at) / block + index as u64, index: at / block + index as u64 }
    }

    /// Bytes of the piece that starts `at` bytes into `len`.
    fn piece(&self, len: u64, at: u64) -> usize {
        (len - at).min(GUARDED_BYTES as u64) as usize
    }

    fn failure(&self, field: Field, at: u64, index: usize, compared: bool) -> Failure {
        Failure::Protection { field, at: at + (index * self.block()) as u64, compared }
    }

    async fn room(&self, count: usize, slot: &SlotContext) -> Room {
        let mut packed_info = slot.arena.wait_sg(count + self.info_len(count as u64) as usize).await;
        Room { data: packed_info.split_to(count), packed_info }
    }

    /// As [`Guarded::room`], for a step that has memory already.
    fn room_now(&self, count: usize, slot: &SlotContext) -> Result<Room, Fault> {
        let mut packed_info = more_memory(slot, count + self.info_len(count as u64) as usize)?;
        Ok(Room { data: packed_info.split_to(count), packed_info })
    }

    /// Reads blocks and their protection information. The caller has locked the range.
    async fn fetch(&self, offset: u64, room: Room, slot: &mut SlotContext) -> Result<(Sg, SgMut), Fault> {
        let data = load_into(self.unit, offset, room.data, slot).await?.share();
        let io = Io { op: Op::Read, offset: self.info_len(offset), data: Data::In(room.packed_info) };
        let outcome = slot.submit(&*self.protection.store, io).await;
        outcome.result?;
        let mut packed_info = outcome.data.into_in();
        for piece in packed_info.pieces_mut() {
            piece.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok((data, packed_info))
    }

    /// Reads blocks and checks them. The caller has locked the range.
    async fn kept(&self, offset: u64, at: u64, room: Room, slot: &mut SlotContext) -> Result<Blocks, Failure> {
        let (data, packed_info) = self.fetch(offset + at, room, slot).await.map_err(fault(at))?;
        let kept = Blocks { infos: infos(&packed_info), data };
        self.check(&kept, offset, at)?;
        Ok(kept)
    }

    /// Checks blocks from the medium.
    fn check(&self, kept: &Blocks, offset: u64, at: u64) -> Result<(), Failure> {
        if self.terms.kept == Checks::NONE {
            return Ok(());
        }
        for (index, (block, info)) in whole(&kept.data).chunks(self.block()).zip(&kept.infos).enumerate() {
            let place = self.place(offset, at, index);
            if let Some(field) = self.protection.check_kept(block, *info, place, &self.terms) {
                return Err(self.failure(field, at, index, false));
            }
        }
        Ok(())
    }

    /// Data-Out from byte `at` of its blocks on, with its protection information, which is checked or made.
    async fn sent(&self, offset: u64, at: u64, count: usize) -> Result<Blocks, Failure> {
        let arrived =
            self.gathered(self.wire(at) as usize, self.wire(count as u64) as usize).await.map_err(fault(at))?;
        self.taken_apart(arrived, offset, at)
    }

    /// Data-Out of more than one piece. Only the first piece waits for memory: see [`Transfer::pull_more`].
    async fn gathered(&self, first: usize, length: usize) -> Result<Sg, Fault> {
        let mut arrived = self.transfer.pull(first, length.min(PIECE_BYTES)).await?;
        while arrived.len() < length {
            let part = (length - arrived.len()).min(PIECE_BYTES);
            arrived.append(self.transfer.pull_more(first + arrived.len(), part).await?);
        }
        Ok(arrived)
    }

    /// Takes protection information that travelled separately; `at` is the position of its first block in the step.
    fn taken_apart(&self, mut arrived: Sg, offset: u64, at: u64) -> Result<Blocks, Failure> {
        let block = self.block();
        let mut blocks = Blocks { data: Sg::default(), infos: Vec::new() };
        if !self.terms.carried {
            let made = |(index, block)| self.protection.made(block, self.place(offset, at, index), &self.terms);
            blocks.infos = whole(&arrived).chunks(block).enumerate().map(made).collect();
            blocks.data = arrived;
            return Ok(blocks);
        }
        blocks.data.reserve(arrived.len() / (block + INFO_BYTES));
        while !arrived.is_empty() {
            let data = arrived.split_to(block);
            let mut info = Info::new_zeroed();
            arrived.split_to(INFO_BYTES).copy_to(0, info.as_mut_bytes());
            let index = blocks.infos.len();
            let place = self.place(offset, at, index);
            if let Some(field) = self.protection.check_sent(&whole(&data), info, place, &self.terms) {
                return Err(self.failure(field, at, index, false));
            }
            blocks.data.append(data);
            blocks.infos.push(info);
        }
        Ok(blocks)
    }

    /// Writes blocks and their packed protection information. The caller has locked the range.
    async fn put(
        &self,
        offset: u64,
        data: Sg,
        packed_info: Sg,
        durable: bool,
        slot: &mut SlotContext,
    ) -> Result<(), Fault> {
        store(self.unit, offset, data, durable, slot).await?;
        put(&*self.protection.store, self.info_len(offset), packed_info, durable, slot).await
    }

    async fn read(
        &self,
        offset: u64,
        len: u64,
        slot: &mut SlotContext,
        final_data: &mut FinalData,
    ) -> Result<(), Failure> {
        let mut at = 0;
        while at < len {
            self.transfer.room().await.map_err(fault(at))?;
            let whole = self.piece(len, at);
            // A multiple of the block size, as both bounds are.
            let count = self.transfer.reserve(whole, whole.min(RESERVED_LEAST)).await.map_err(fault(at))?;
            let room = self.room(count, slot).await;
            let entered = self.unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
            let (data, packed_info) = self.fetch(offset + at, room, slot).await.map_err(fault(at))?;
            drop(entered);
            let kept = Blocks { infos: infos(&packed_info), data };
            self.check(&kept, offset, at)?;
            final_data.offset = self.wire(at) as usize;
            final_data.data =
                if self.terms.carried { joined(kept.data, packed_info.share(), self.block()) } else { kept.data };
            at += count as u64;
            if at < len {
                let data = std::mem::take(&mut final_data.data);
                self.transfer.push(final_data.offset, data).map_err(fault(at))?;
            }
        }
        Ok(())
    }

    /// Data-Out in pieces of at most this number of bytes.
    async fn write(
        &self,
        offset: u64,
        len: u64,
        piece: usize,
        durable: bool,
        slot: &mut SlotContext,
    ) -> Result<(), Failure> {
        let mut at = 0;
        while at < len {
            let count = (len - at).min(piece as u64) as usize;
            let Blocks { data, infos } = self.sent(offset, at, count).await?;
            let packed_info = packed(&infos, slot).map_err(fault(at))?;
            let _held = self.unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
            if self.transfer.aborted() {
                return Err(fault(at)(Fault::Aborted));
            }
            self.put(offset + at, data, packed_info, durable, slot).await.map_err(fault(at))?;
            at += count as u64;
        }
        Ok(())
    }

    async fn write_verify(&self, offset: u64, len: u64, compare: bool, slot: &mut SlotContext) -> Result<(), Failure> {
        let mut at = 0;
        while at < len {
            let count = self.piece(len, at);
            let Blocks { data, infos } = self.sent(offset, at, count).await?;
            let packed_info = packed(&infos, slot).map_err(fault(at))?;
            let room = self.room_now(count, slot).map_err(fault(at))?;
            let _held = self.unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
            self.put(offset + at, data.clone(), packed_info, true, slot).await.map_err(fault(at))?;
            let (found, kept) = self.fetch(offset + at, room, slot).await.map_err(fault(at))?;
            let kept = Blocks { infos: self::infos(&kept), data: found };
            if compare {
                let terms = Terms { compared: Checks::ALL, ..self.terms };
                self.compare_blocks(&Blocks { data, infos }, &kept, &terms, at)?;
            }
            at += count as u64;
        }
        Ok(())
    }

    async fn verify(&self, offset: u64, len: u64, slot: &mut SlotContext) -> Result<(), Failure> {
        let mut long = LongStep::moving(&self.unit, len);
        let mut at = 0;
        while at < len {
            let count = self.piece(len, at);
            let _held = hold(&self.unit, count).await;
            let room = self.room(count, slot).await;
            let _turn = long.turn().await;
            let _entered = self.unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
            if self.transfer.aborted() {
                return Err(fault(at)(Fault::Aborted));
            }
            self.kept(offset, at, room, slot).await?;
            at += count as u64;
        }
        Ok(())
    }

    async fn compare(&self, offset: u64, len: u64, slot: &mut SlotContext) -> Result<(), Failure> {
        let mut at = 0;
        while at < len {
            let count = self.piece(len, at);
            let sent = self.sent(offset, at, count).await?;
            let room = self.room_now(count, slot).map_err(fault(at))?;
            let entered = self.unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
            let kept = self.kept(offset, at, room, slot).await?;
            drop(entered);
            self.compare_blocks(&sent, &kept, &self.terms, at)?;
            if self.transfer.aborted() {
                return Err(fault(at)(Fault::Aborted));
            }
            at += count as u64;
        }
        Ok(())
    }

    /// Compares every block with the one block of Data-Out.
    async fn compare_each(&self, offset: u64, len: u64, slot: &mut SlotContext) -> Result<(), Failure> {
        if len == 0 {
            return Ok(());
        }
        let sent = self.sent(offset, 0, self.block()).await?;
        let (pattern, first) = (sent.data.to_vec(), sent.infos.first().copied().unwrap_or(Info::BLANK));
        drop(sent);
        let mut long = LongStep::moving(&self.unit, len);
        let mut at = 0;
        while at < len {
            let count = self.piece(len, at);
            let _held = hold(&self.unit, count).await;
            let room = self.room_now(count, slot).map_err(fault(at))?;
            let _turn = long.turn().await;
            let entered = self.unit.lock_shared(span(offset + at, count as u64)).await.map_err(fault(at))?;
            let kept = self.kept(offset, at, room, slot).await?;
            drop(entered);
            for (index, info) in kept.infos.iter().enumerate() {
                let from = index * self.block();
                if let Some(at) = first_difference(&kept.data.part(from..from + self.block()), &pattern) {
                    return Err(Failure::Miscompare { at });
                }
                let sent = self.following(first, self.place(offset, at, index).index);
                if let Some(field) = self.protection.compare(sent, *info, &self.terms) {
                    return Err(self.failure(field, at, index, true));
                }
            }
            if self.transfer.aborted() {
                return Err(fault(at)(Fault::Aborted));
            }
            at += count as u64;
        }
        Ok(())
    }

    /// The protection information of the one block, for the block this number of blocks behind it: reference tags
    /// count up, except those that belong to the initiators.
    fn following(&self, mut info: Info, index: u64) -> Info {
        if self.protection.kind() != Kind::Three {
            info.reference.set(info.reference.get().wrapping_add(index as u32));
        }
        info
    }

    fn compare_blocks(&self, sent: &Blocks, kept: &Blocks, terms: &Terms, at: u64) -> Result<(), Failure> {
        if let Some(byte) = first_difference_of(&kept.data, &sent.data) {
            let before = byte - byte % self.block() as u64;
            return Err(Failure::Miscompare { at: self.wire(at + before) + (byte - before) });
        }
        for (index, (sent, kept)) in sent.infos.iter().zip(&kept.infos).enumerate() {
            if let Some(field) = self.protection.compare(*sent, *kept, terms) {
                return Err(self.failure(field, at, index, true));
            }
        }
        Ok(())
    }

    async fn compare_write(
        &self,
        compared: Terms,
        offset: u64,
        len: u64,
        durable: bool,
        slot: &mut SlotContext,
    ) -> Result<(), Failure> {
        if len == 0 {
            return Ok(());
        }
        let first = Guarded { terms: compared, unit: self.unit, ..*self };
        let (half, other) = (first.wire(len) as usize, self.wire(len) as usize);
        let mut arrived = self.gathered(0, half + other).await.map_err(fault(0))?;
        let compared = first.taken_apart(arrived.split_to(half), offset, 0)?;
        let Blocks { data, infos } = self.taken_apart(arrived, offset, 0)?;
        // Memory is taken afterwards: many commands may wait for the same blocks.
        let _held = self.unit.lock_exclusive(span(offset, len)).await.map_err(fault(0))?;
        let packed_info = packed(&infos, slot).map_err(fault(0))?;
        let room = self.room_now(len as usize, slot).map_err(fault(0))?;
        let kept = first.kept(offset, 0, room, slot).await?;
        first.compare_blocks(&compared, &kept, &first.terms, 0)?;
        if self.transfer.aborted() {
            return Err(fault(0)(Fault::Aborted));
        }
        self.put(offset, data, packed_info, durable, slot).await.map_err(fault(0))
    }

    async fn or_write(&self, offset: u64, len: u64, durable: bool, slot: &mut SlotContext) -> Result<(), Failure> {
        let mut at = 0;
        while at < len {
            let count = self.piece(len, at);
            let sent = self.sent(offset, at, count).await?;
            let _held = self.unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
            let room = self.room_now(count, slot).map_err(fault(at))?;
            let mut memory = more_memory(slot, count).map_err(fault(at))?;
            let kept = self.kept(offset, at, room, slot).await?;
            memory.copy_from(0, &whole(&kept.data));
            or_into(&mut memory, &sent.data);
            let data = memory.share();
            let of_result = |(block, info): (&[u8], &Info)| Info { guard: guard(block).into(), ..*info };
            let infos: Vec<Info> = whole(&data).chunks(self.block()).zip(&sent.infos).map(of_result).collect();
            let packed_info = packed(&infos, slot).map_err(fault(at))?;
            if self.transfer.aborted() {
                return Err(fault(at)(Fault::Aborted));
            }
            self.put(offset + at, data, packed_info, durable, slot).await.map_err(fault(at))?;
            at += count as u64;
        }
        Ok(())
    }

    /// `pattern` is a block, with its protection information if that is transferred; empty for zeroes without any.
    async fn fill(
        &self,
        offset: u64,
        len: u64,
        pattern: &[u8],
        unmap: bool,
        slot: &mut SlotContext,
    ) -> Result<(), Failure> {
        let (data, info) = match pattern.split_at_checked(self.block()) {
            Some((data, rest)) => (data, Info::read_from_bytes(rest).ok()),
            None => (&[][..], None),
        };
        if let Some(info) = info
            && let Some(field) = self.protection.check_sent(data, info, self.place(offset, 0, 0), &self.terms)
        {
            return Err(self.failure(field, 0, 0, false));
        }
        // Blocks that must read as unmapped may be unmapped.
        let is_blank = data.iter().all(|byte| *byte == 0) && info.is_none_or(|info| info == Info::BLANK);
        if data.is_empty() || unmap && is_blank {
            return self.clear(offset, len, unmap, slot).await;
        }
        let _holder = hold(&self.unit, self.piece(len, 0)).await;
        let mut memory = slot.arena.wait_sg(self.piece(len, 0)).await;
        for part in memory.pieces_mut() {
            part.chunks_mut(data.len()).for_each(|block| block.copy_from_slice(&data[..block.len()]));
        }
        let memory = memory.share();
        let mut long = LongStep::moving(&self.unit, len);
        let mut at = 0;
        while at < len {
            if self.transfer.aborted() {
                return Err(fault(at)(Fault::Aborted));
            }
            let count = self.piece(len, at);
            let _turn = long.turn().await;
            let of = |index| match info {
                Some(info) => self.following(info, self.place(offset, at, index).index),
                None => self.protection.made(data, self.place(offset, at, index), &self.terms),
            };
            let infos: Vec<Info> = (0..count / self.block()).map(of).collect();
            let packed_info = packed(&infos, slot).map_err(fault(at))?;
            let _held = self.unit.lock_exclusive(span(offset + at, count as u64)).await.map_err(fault(at))?;
            self.put(offset + at, memory.part(0..count), packed_info, false, slot).await.map_err(fault(at))?;
            at += count as u64;
        }
        Ok(())
    }

    /// Zeroes without protection information. The protection information is cleared first: wherever this ends, the
    /// remaining blocks pass their checks.
    async fn clear(&self, offset: u64, len: u64, unmap: bool, slot: &mut SlotContext) -> Result<(), Failure> {
        let mut long = LongStep::spacing(&self.unit, len);
        let mut at = 0;
        while at < len {
            if self.transfer.aborted() {
                return Err(fault(at)(Fault::Aborted));
            }
            let (_turn, count) = long.space(offset + at, len - at, slot).await;
            let held = self.unit.lock_exclusive(span(offset + at, count)).await.map_err(fault(at))?;
            blank(&self.unit, self.protection, offset + at, count, slot).await.map_err(fault(at))?;
            let asked = zeroed(self.unit, offset + at, count, unmap, slot).await;
            drop(held);
            match asked {
                Ok(()) => at += count,
                Err(Fault::Unsupported) => {
                    return fill(self.unit, offset + at, len - at, &[0; 512], self.transfer, slot).await;
                }
                Err(why) => return Err(fault(at)(why)),
            }
        }
        Ok(())
    }

    async fn unmap(&self, ranges: &[(u64, u64)], slot: &mut SlotContext) -> Result<(), Failure> {
        for (offset, len) in merged(ranges) {
            let mut long = LongStep::spacing(&self.unit, len);
            let mut at = offset;
            while at < offset + len {
                if self.transfer.aborted() {
                    return Err(fault(0)(Fault::Aborted));
                }
                let (_turn, count) = long.space(at, offset + len - at, slot).await;
                let part = span(at, count);
                let _held = self.unit.lock_exclusive(part).await.map_err(fault(0))?;
                blank(&self.unit, self.protection, at, count, slot).await.map_err(fault(0))?;
                match ask(&self.unit, Op::Unmap { len: count }, at, slot).await.result {
                    Ok(_) => written(self.unit, part, slot).await.map_err(fault(0))?,
                    // Unmapping is a hint: a store that cannot keeps the data.
                    Err(Fault::Unsupported) => {}
                    Err(why) => return Err(fault(0)(why)),
                }
                at += count;
            }
        }
        Ok(())
    }

    async fn flush(&self, slot: &mut SlotContext) -> Result<(), Failure> {
        ask(&self.unit, Op::Flush, 0, slot).await.result.map_err(fault(0))?;
        ask_store(&*self.protection.store, Op::Flush, 0, slot).await.map_err(fault(0))
    }

    /// Blocks of another unit, or of this one, through memory: they need the protection information of their new
    /// place, or bring theirs.
    async fn copy(
        &self,
        (from, at, terms): (&Rc<Unit>, u64, Terms),
        offset: u64,
        len: u64,
        slot: &mut SlotContext,
    ) -> Result<(), Failure> {
        let overlaps = **from == *self.unit && span(at, len).overlaps(span(offset, len));
        let backwards = overlaps && offset > at;
        let count = len.div_ceil(GUARDED_BYTES as u64);
        let mut long = LongStep::moving(&self.unit, len);
        for number in 0..count {
            if self.transfer.aborted() {
                return Err(fault(0)(Fault::Aborted));
            }
            // The turn is not kept: memory is waited for.
            drop(long.turn().await);
            let done = GUARDED_BYTES as u64 * if backwards { count - 1 - number } else { number };
            let part = self.piece(len, done);
            let _holder = hold(&self.unit, part).await;
            let unit = Admitted::to(from);
            let source = match from.protected() {
                Some(protection) => {
                    let source = Guarded { unit, protection, terms, transfer: self.transfer };
                    source.original(at, done, part, slot).await?
                }
                // The unit was formatted after the admission of the command.
                None if self.terms.carried => return Err(Failure::Origin { fault: Fault::Cleared, at: done }),
                None => {
                    let loaded = load(unit, at + done, part, slot).await;
                    let data = loaded.map_err(|fault| Failure::Origin { fault, at: done })?;
                    Blocks { data, infos: Vec::new() }
                }
            };
            let Blocks { data, infos } = match self.terms.carried {
                true => self.taken_over(source, offset, done)?,
                false => self.taken_apart(source.data, offset, done)?,
            };
            let packed_info = packed(&infos, slot).map_err(fault(done))?;
            let _held = self.unit.lock_exclusive(span(offset + done, part as u64)).await.map_err(fault(done))?;
            self.put(offset + done, data, packed_info, false, slot).await.map_err(fault(done))?;
        }
        Ok(())
    }

    /// Blocks from byte `at` of a copy on, whose destination begins at `offset`; they are checked.
    async fn original(&self, offset: u64, at: u64, count: usize, slot: &mut SlotContext) -> Result<Blocks, Failure> {
        let origin = |fault| Failure::Origin { fault, at };
        let room = self.room(count, slot).await;
        let _entered = self.unit.lock_shared(span(offset + at, count as u64)).await.map_err(origin)?;
        match self.kept(offset, at, room, slot).await {
            Err(Failure::Fault { fault, .. }) => Err(origin(fault)),
            // For a command that does not know protection information this is a medium error.
            Err(_) if self.terms == Terms::PLAIN => Err(origin(Fault::Medium)),
            other => other,
        }
    }

    /// Blocks with protection information that is transferred, checked like data from the initiator.
    fn taken_over(&self, blocks: Blocks, offset: u64, at: u64) -> Result<Blocks, Failure> {
        for (index, (block, info)) in whole(&blocks.data).chunks(self.block()).zip(&blocks.infos).enumerate() {
            let place = self.place(offset, at, index);
            if let Some(field) = self.protection.check_sent(block, *info, place, &self.terms) {
                return Err(self.failure(field, at, index, false));
            }
        }
        Ok(blocks)
    }
}

/// The protection information that was read with blocks.
fn infos(packed_info: &SgMut) -> Vec<Info> {
    let bytes: Vec<u8> = packed_info.pieces().iter().flat_map(|piece| piece.iter().copied()).collect();
    bytes.chunks_exact(INFO_BYTES).filter_map(|info| Info::read_from_bytes(info).ok()).collect()
}

/// Protection information in its stored form, in memory to write from.
fn packed(infos: &[Info], slot: &SlotContext) -> Result<Sg, Fault> {
    let mut memory = more_memory(slot, infos.len() * INFO_BYTES)?;
    for (index, info) in infos.iter().enumerate() {
        memory.copy_from(index * INFO_BYTES, info.inverted().as_bytes());
    }
    Ok(memory.share())
}

/// Blocks, each followed by its protection information, as they travel: parts of the memory that was read, without a
/// copy.
fn joined(data: Sg, packed_info: Sg, block: usize) -> Sg {
    let (mut data, mut packed_info, mut joined) = (data, packed_info, Sg::default());
    joined.reserve(data.len() / block * 2);
    while !data.is_empty() {
        joined.append(data.split_to(block));
        joined.append(packed_info.split_to(INFO_BYTES));
    }
    joined
}
