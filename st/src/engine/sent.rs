//! Transfers to the peer, and Puts, Gets and FetchOps on regions of the peer.

use super::local::{Get, Local, Put, Remote, Retry, Sending, failure};
use super::state::{Control, Cx, Job, JobKind};
use super::vc::Vc;
use crate::event::{Access, Event, Id, Place, Refused};
use crate::limits::{BLOCK_LOG_MAX, REGION_MAX, REGIONS_MAX, SLOTS_MAX, TILES_MAX, TRANSFER_MAX, WAITING};
use crate::tiling::Tiling;
use crate::window::SPAN;
use crate::wire::{FetchCode, Op, Packet, Reason, State, WIDE, flags};

/// The FetchOps of which results are kept.
pub(crate) const FETCHES: u32 = SLOTS_MAX as u32;

impl Vc {
    /// Refuses a number for a request of these kinds if one of them is not answered and so old that the peer could not
    /// tell it from a duplicate.
    fn number(&self, number: u32, span: u32, is_kind: impl Fn(&Retry) -> bool) -> Result<u32, Refused> {
        let asking = self.locals.iter().filter_map(|entry| entry.retry).filter(is_kind);
        let oldest = asking.map(|retry| number.wrapping_sub(retry.packet.block)).max();
        if oldest.is_some_and(|behind| behind >= span) { Err(Refused::Busy) } else { Ok(number) }
    }

    /// The number of the next request for a Transfer, a region or a Get: another one than those of the peer.
    pub(crate) fn ask_number(&self) -> Result<u32, Refused> {
        let is_kind = |retry: &Retry| match retry.packet.op {
            // Others have the number of the request of the peer that they answer.
            Op::REQUEST_TO_SEND => retry.packet.to_id == 0,
            op => matches!(op, Op::REQUEST_TO_RECEIVE | Op::REQUEST_MEMORY_REGION),
        };
        self.number(self.ask_number.wrapping_add(2), SPAN, is_kind)
    }

    /// Starts a Transfer to the peer, to answer the request `asked` if there is one.
    pub(crate) fn send(&mut self, len: u64, asked: Option<Id>, cx: &mut Cx<'_>) -> Result<Id, Refused> {
        if len > TRANSFER_MAX {
            return Err(Refused::TooLong);
        }
        let (reader, grant, id) = match asked {
            None => {
                let sending = self.locals.count(|local| matches!(local, Local::Sending(_)));
                if sending >= usize::from(self.terms.peer_slots) {
                    return Err(Refused::Busy);
                }
                let number = self.ask_number()?;
                self.ask_number = number;
                (0, None, self.locals.add(Local::Free, number).ok_or(Refused::Busy)?)
            }
            Some(id) => match self.locals.get(id).map(|entry| entry.local) {
                Some(Local::Asked { len: most, .. }) if len > most => return Err(Refused::TooLong),
                Some(Local::Asked { peer_id, grant, .. }) => (peer_id, grant, id),
                _ => return Err(Refused::Unknown),
            },
        };
        let block_log = grant.map(|grant| grant.block_log);
        let entry = self.locals.get_mut(id).ok_or(Refused::Unknown)?;
        entry.local = Local::Sending(Sending { peer_id: reader, len, block_log, grant });
        let entry = *entry;
        let packet = self.packet_about(Op::REQUEST_TO_SEND, &entry);
        self.ask(id, Packet { param: BLOCK_LOG_MAX.into(), words: len, ..packet }, None, cx);
        Ok(id)
    }

    /// Sends the first Block of a Transfer whose place came with the request of the peer.
    pub(crate) fn clear_granted(&mut self, id: Id) {
        let Some(Local::Sending(sending)) = self.locals.get(id).map(|entry| entry.local) else { return };
        let Some(grant) = sending.grant.filter(|_| sending.len > 0) else { return };
        let cleared = Cleared { block: 0, bufx: grant.bufx, offset: grant.offset, log: grant.block_log };
        // Without room for it the peer asks for it again.
        self.clear(id, cleared, sending.len.min(1 << grant.block_log), (0, 0), grant.path);
    }

    /// "Wait" or a refusal.
    pub(crate) fn request_answer(&mut self, packet: &Packet, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        let is_asking = self.is_asking(packet, &[Op::REQUEST_TO_SEND, Op::REQUEST_TO_RECEIVE]);
        let Some(entry) = self.locals.get_mut(id).filter(|_| is_asking) else {
            cx.counters.unexpected += 1;
            return;
        };
        if packet.has(flags::REJECT) {
            self.free(id, cx);
            let reason = failure(Reason(packet.param));
            return cx.events.push_back(Event::Failed { vc: self.id, id, reason });
        }
        match &mut entry.local {
            Local::Sending(Sending { peer_id, .. }) => *peer_id = packet.from_id,
            Local::Receiving(receiving) => receiving.peer_id = packet.from_id,
            _ => {}
        }
        entry.wake = Some(cx.now + WAITING);
        self.wake_by(cx.now + WAITING);
        self.answered(id, cx);
    }

    /// Whether the sequence of this answer waits for the answer of one of these operations.
    pub(crate) fn is_asking(&self, answer: &Packet, ops: &[Op]) -> bool {
        let entry = self.locals.get(answer.to_id).filter(|entry| entry.number == answer.block);
        let retry = entry.and_then(|entry| entry.retry);
        retry.is_some_and(|retry| retry.has_slot && ops.contains(&retry.packet.op))
    }

    pub(crate) fn clear_to_send(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let (id, number) = (packet.to_id, packet.high());
        let known = self.locals.get(id).filter(|entry| entry.number == number).map(|entry| entry.local);
        let Some(Local::Sending(sending)) = known else {
            // The peer keeps a Transfer that is over here.
            let end = self.packet(Op::END, packet.from_id, id);
            cx.counters.unexpected += 1;
            return self.answer(path, Packet { param: Reason::UNEXPECTED.0, block: number, ..end }, cx);
        };
        let log = packet.param;
        let is_known = sending.peer_id == packet.from_id || sending.peer_id == 0;
        let is_same = sending.block_log.is_none_or(|known| u16::from(known) == log);
        if !is_known || !is_same || log < 8 || log > u16::from(BLOCK_LOG_MAX) || packet.from_id == 0 {
            cx.counters.misplaced += 1;
            return;
        }
        let start = u64::from(packet.block) << log;
        if start >= sending.len {
            cx.counters.misplaced += 1;
            return;
        }
        let len = (sending.len - start).min(1 << log);
        if let Some(entry) = self.locals.get_mut(id) {
            let log = Some(log as u8);
            entry.local = Local::Sending(Sending { peer_id: packet.from_id, block_log: log, ..sending });
            entry.wake = Some(cx.now + WAITING);
        }
        self.wake_by(cx.now + WAITING);
        self.answered(id, cx);
        let cleared = Cleared { block: packet.block, bufx: packet.bufx, offset: packet.offset, log: log as u8 };
        if !self.clear(id, cleared, len, packet.range(), path) {
            cx.counters.overflows += 1;
        }
    }

    /// Queues the STUs of a Block; returns whether there was room.
    fn clear(&mut self, id: Id, cleared: Cleared, len: u64, (first, count): (u16, u16), path: usize) -> bool {
        let Some(Local::Sending(sending)) = self.locals.get(id).map(|entry| entry.local) else { return false };
        let (stu, buffer) = (self.terms.stu, self.terms.peer_buffer);
        // A Block has at most 2^30 bytes.
        let tiling = Tiling::new((cleared.bufx, cleared.offset), len as u32, (stu, buffer));
        let Some(tiling) = tiling.filter(|tiling| tiling.count() <= 1 << 16) else { return false };
        let first = u32::from(first);
        let end = if count == 0 { tiling.count() } else { (first + u32::from(count)).min(tiling.count()) };
        let start = u64::from(cleared.block) << cleared.log;
        let is_final = start + len == sending.len;
        let kind = JobKind::Block { peer_id: sending.peer_id, block: cleared.block, is_final };
        let place = Place { vc: self.id, id, offset: start };
        let job = Job { kind, path, tiling, place, next: first, end };
        if first >= end {
            return false;
        }
        let is_same = |other: &&mut Job| {
            let JobKind::Block { block, .. } = other.kind else { return false };
            other.place.id == id && block == cleared.block
        };
        if let Some(queued) = self.jobs.iter_mut().find(is_same) {
            // It is asked for again before it was sent, or while it is.
            let (next, end) = (queued.next.min(job.next), queued.end.max(job.end));
            *queued = Job { next, end, ..job };
            return true;
        }
        let has_room = self.jobs.len() < usize::from(self.terms.own_slots);
        if has_room {
            self.jobs.push_back(job);
        }
        has_room
    }

    /// An End of a Transfer to the peer.
    pub(crate) fn sending_ended(&mut self, id: Id, reason: Reason, cx: &mut Cx<'_>) {
        self.free(id, cx);
        self.jobs.retain(|job| job.place.id != id);
        let vc = self.id;
        cx.events.push_back(match reason {
            Reason::NONE => Event::Done { vc, id },
            reason => Event::Failed { vc, id, reason },
        });
    }

    /// The state of a sequence at the peer.
    pub(crate) fn state_response(&mut self, packet: &Packet, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        if id == 0 {
            return;
        }
        if self.is_asking(packet, &[Op::PUT]) {
            self.free(id, cx);
            return cx.events.push_back(Event::Done { vc: self.id, id });
        }
        if !self.is_asking(packet, &[Op::REQUEST_STATE]) {
            cx.counters.unexpected += 1;
            return;
        }
        if State(packet.param) == State::UNKNOWN {
            // An End that is on its way may say more, and is repeated: this end asks once more.
            let is_sure = self.locals.get(id).and_then(|e| e.retry).is_some_and(|retry| retry.tries > 0);
            if is_sure {
                self.free(id, cx);
                return cx.events.push_back(Event::Failed { vc: self.id, id, reason: Reason::UNEXPECTED });
            }
            return;
        }
        if let Some(entry) = self.locals.get_mut(id) {
            entry.wake = Some(cx.now + WAITING);
        }
        self.wake_by(cx.now + WAITING);
        self.answered(id, cx);
    }

    /// Asks for a region of the peer.
    pub(crate) fn request_region(&mut self, access: Access, len: u64, cx: &mut Cx<'_>) -> Result<Id, Refused> {
        if len == 0 || len > REGION_MAX {
            return Err(Refused::TooLong);
        }
        if self.locals.count(|local| matches!(local, Local::Remote(_))) >= REGIONS_MAX {
            return Err(Refused::Busy);
        }
        let number = self.ask_number()?;
        self.ask_number = number;
        let remote = Remote { mx: 0, access, len, bufx: 0, offset: 0 };
        let id = self.locals.add(Local::Remote(remote), number).ok_or(Refused::Busy)?;
        let packet = self.packet(Op::REQUEST_MEMORY_REGION, 0, id);
        self.ask(id, Packet { param: access.bits(), block: number, words: len, ..packet }, None, cx);
        Ok(id)
    }

    pub(crate) fn region_available(&mut self, packet: &Packet, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        if !self.is_asking(packet, &[Op::REQUEST_MEMORY_REGION]) {
            cx.counters.unexpected += 1;
            let known = self.locals.get(id).filter(|entry| entry.number == packet.block).map(|entry| entry.local);
            let is_known = matches!(known, Some(Local::Remote(remote)) if remote.mx == packet.from_id);
            if !is_known && !packet.has(flags::REJECT) {
                // This end has given it up meanwhile.
                let end = self.packet(Op::END, packet.from_id, id);
                let path = self.request_path();
                self.answer(path, Packet { param: Reason::ABORTED.0, block: packet.block, ..end }, cx);
            }
            return;
        }
        let (access, len) = (Access::of(packet.param), packet.words);
        let is_placed = u64::from(packet.offset) < 1 << self.terms.peer_buffer;
        if packet.has(flags::REJECT) || packet.from_id == 0 || !is_placed || len == 0 || len > REGION_MAX {
            self.free(id, cx);
            let reason = if packet.has(flags::REJECT) { Reason(packet.param) } else { Reason::BAD_PARAMETER };
            return cx.events.push_back(Event::Failed { vc: self.id, id, reason: failure(reason) });
        }
        if let Some(entry) = self.locals.get_mut(id) {
            let Packet { from_id: mx, bufx, offset, .. } = *packet;
            entry.local = Local::Remote(Remote { mx, access, len, bufx, offset });
        }
        self.answered(id, cx);
        cx.events.push_back(Event::RegionGranted { vc: self.id, id, access, len });
    }

    /// The region of the peer that this end calls `region`, and the buffer of a place in it.
    fn remote(
        &self,
        region: Id,
        (offset, len): (u64, u64),
        may: impl Fn(Access) -> bool,
    ) -> Result<(u16, (u32, u32)), Refused> {
        let Some(Local::Remote(remote)) = self.locals.get(region).map(|entry| entry.local) else {
            return Err(Refused::Unknown);
        };
        if remote.mx == 0 || !may(remote.access) {
            return Err(Refused::Access);
        }
        if offset.checked_add(len).is_none_or(|end| end > remote.len) {
            return Err(Refused::Range);
        }
        let place = u64::from(remote.offset) + offset;
        let buffer = self.terms.peer_buffer;
        let bufx = remote.bufx.wrapping_add((place >> buffer) as u32);
        Ok((remote.mx, (bufx, (place & ((1 << buffer) - 1)) as u32)))
    }

    /// Writes into a region of the peer.
    pub(crate) fn put(&mut self, request: &PutRequest, cx: &mut Cx<'_>) -> Result<Id, Refused> {
        let PutRequest { region, offset, len, opaque, is_solicited, interrupts } = *request;
        let (mx, place) = self.remote(region, (offset, len.into()), |access| access.put)?;
        let tiling = Tiling::new(place, len, (self.terms.stu, self.terms.peer_buffer)).ok_or(Refused::Range)?;
        if tiling.count() > TILES_MAX {
            return Err(Refused::TooLong);
        }
        let unanswered = self.locals.count(|local| matches!(local, Local::Put(_)));
        if unanswered >= usize::from(SLOTS_MAX) || len == 0 {
            return Err(if len == 0 { Refused::Range } else { Refused::Busy });
        }
        let is_put = |retry: &Retry| retry.packet.op == Op::PUT;
        let number = self.number(self.put_number.wrapping_add(1), SPAN, is_put)?;
        let local = Local::Put(Put { is_solicited, tiling });
        let id = self.locals.add(local, number).ok_or(Refused::Busy)?;
        self.put_number = number;
        let interrupt = if interrupts { flags::INTERRUPT } else { 0 };
        let solicit = if is_solicited { flags::SOLICIT } else { 0 };
        let packet = Packet { block: number, words: u64::from(opaque) << 32, ..self.packet(Op::PUT, mx, id) };
        let packet = Packet { flags: interrupt | solicit, ..packet };
        match is_solicited {
            true => self.ask(id, packet, None, cx),
            false => {
                let path = self.request_path();
                self.queue_put((id, tiling), &packet, path, 0);
            }
        }
        Ok(id)
    }

    /// Queues the STUs of a Put that waits for an answer.
    pub(crate) fn start_put(&mut self, id: Id, flags: u8) {
        let Some(entry) = self.locals.get(id) else { return };
        let (Local::Put(put), Some(retry)) = (entry.local, entry.retry) else { return };
        if self.puts.iter().all(|job| job.place.id != id) {
            self.queue_put((id, put.tiling), &retry.packet, retry.path, flags);
        }
    }

    fn queue_put(&mut self, (id, tiling): (Id, Tiling), packet: &Packet, path: usize, flags: u8) {
        let kind =
            JobKind::Put { mx: packet.to_id, number: packet.block, opaque: packet.high(), flags: packet.flags | flags };
        let place = Place { vc: self.id, id, offset: 0 };
        self.puts.push_back(Job { kind, path, tiling, place, next: 0, end: tiling.count() });
    }

    /// All STUs of a Put were sent.
    pub(crate) fn put_sent(&mut self, id: Id, cx: &mut Cx<'_>) {
        let Some(Local::Put(put)) = self.locals.get(id).map(|entry| entry.local) else { return };
        if !put.is_solicited {
            self.free(id, cx);
            cx.events.push_back(Event::Done { vc: self.id, id });
        }
    }

    /// Reads from a region of the peer.
    pub(crate) fn get(&mut self, region: Id, offset: u64, len: u32, cx: &mut Cx<'_>) -> Result<Id, Refused> {
        let (mx, (bufx, at)) = self.remote(region, (offset, len.into()), |access| access.get)?;
        let sink = self.take_bufx(len.into());
        let tiling = Tiling::new((sink, 0), len, (self.terms.stu, self.terms.own_buffer)).ok_or(Refused::Range)?;
        if len == 0 || tiling.count() > TILES_MAX {
            return Err(if len == 0 { Refused::Range } else { Refused::TooLong });
        }
        let number = self.ask_number()?;
        let id = self.locals.add(Local::Get(Get { tiling, got: 0 }), number).ok_or(Refused::Busy)?;
        self.ask_number = number;
        let packet = Packet { block: len, bufx, offset: at, ..self.packet(Op::GET, mx, id) };
        self.ask(id, Packet { words: u64::from(sink) << 32 | u64::from(number), ..packet }, None, cx);
        Ok(id)
    }

    /// Executes an operation on a word of a region of the peer, once.
    pub(crate) fn fetch(&mut self, request: &FetchRequest, cx: &mut Cx<'_>) -> Result<Id, Refused> {
        let FetchRequest { region, offset, code, is_wide, operand, expected } = *request;
        let len = if is_wide { 8 } else { 4 };
        if offset % len != 0 {
            return Err(Refused::Range);
        }
        let (mx, (bufx, at)) = self.remote(region, (offset, len), |access| access.fetch)?;
        // The results of all that may be repeated are kept by the peer.
        let most = FETCHES.min(u32::from(self.terms.peer_slots));
        let is_fetch = |retry: &Retry| retry.packet.op == Op::FETCH_OP;
        let number = self.number(self.fetch_number.wrapping_add(1), most, is_fetch)?;
        let id = self.locals.add(Local::Fetch, number).ok_or(Refused::Busy)?;
        self.fetch_number = number;
        let param = u16::from(code.0) | if is_wide { WIDE } else { 0 };
        let packet = Packet { param, block: number, bufx, offset: at, ..self.packet(Op::FETCH_OP, mx, id) };
        let word = (code == FetchCode::COMPARE_SWAP).then(|| expected.to_be_bytes());
        self.ask(id, Packet { words: operand, ..packet }, word, cx);
        Ok(id)
    }

    pub(crate) fn fetch_complete(&mut self, packet: &Packet, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        if !self.is_asking(packet, &[Op::FETCH_OP]) {
            cx.counters.unexpected += 1;
            return;
        }
        self.free(id, cx);
        let vc = self.id;
        cx.events.push_back(match packet.has(flags::REJECT) {
            true => Event::Failed { vc, id, reason: failure(Reason(packet.param)) },
            false => Event::Fetched { vc, id, old: packet.words },
        });
    }

    /// Answers "wait" when it is sent, if the program has not decided until then.
    pub(crate) fn queue_wait(&mut self, path: usize, id: Id, cx: &mut Cx<'_>) {
        self.queue(Control::Wait(path, id), cx);
    }
}

/// The place of a Block.
#[derive(Clone, Copy)]
struct Cleared {
    block: u32,
    bufx: u32,
    offset: u32,
    log: u8,
}

/// A Put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutRequest {
    /// The region of the peer, as [`crate::Engine::request_region`] has named it.
    pub region: Id,
    /// The place in the region.
    pub offset: u64,
    /// The number of bytes.
    pub len: u32,
    /// Four bytes for the program of the peer.
    pub opaque: u32,
    /// Whether the Put is repeated until the peer has it. Otherwise a loss leaves a gap, and is not reported.
    pub is_solicited: bool,
    /// Whether the program of the peer is woken.
    pub interrupts: bool,
}

/// A FetchOp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchRequest {
    /// The region of the peer.
    pub region: Id,
    /// The place of the word, aligned to its length.
    pub offset: u64,
    /// The operation.
    pub code: FetchCode,
    /// Whether the word has 64 bits; otherwise 32.
    pub is_wide: bool,
    /// The operand; the new value of a compare-and-swap.
    pub operand: u64,
    /// The expected value of a compare-and-swap.
    pub expected: u64,
}
