//! Persistent memory regions of this end: Put, Get and FetchOp of the peer, and the ends of sequences.

use super::local::{Entry, Local, Phase, Region, failure};
use super::received::{REGION_BUFX, full};
use super::sent::FETCHES;
use super::state::{Cx, Job, JobKind, PartialPut};
use super::vc::Vc;
use crate::event::{Access, Event, Id, Memory, Place, Refused, Wake};
use crate::limits::{PARTIAL_PUTS_MAX, REGION_MAX, REGIONS_MAX, TILES_MAX};
use crate::tiling::Tiling;
use crate::wire::{FetchCode, Op, Packet, Reason, State, WIDE, flags};

/// The first index from `from` on that is followed by so many free ones; `used` is in order.
fn free_from(from: u64, buffers: u64, used: &[(u64, u64)]) -> Option<u64> {
    let mut bufx = from;
    for (start, end) in used {
        if bufx + buffers <= *start {
            break;
        }
        bufx = bufx.max(*end);
    }
    (bufx + buffers <= 1 << 32).then_some(bufx)
}

impl Vc {
    fn region(&self, mx: Id) -> Option<Region> {
        match self.locals.get(mx)?.local {
            Local::Region(region) if region.is_granted => Some(region),
            _ => None,
        }
    }

    /// The place of so many bytes in a region.
    fn place_in(&self, region: &Region, (bufx, offset): (u32, u32), len: u64) -> Option<u64> {
        let buffer = self.terms.own_buffer;
        let at = u64::from(bufx.wrapping_sub(region.bufx)) << buffer | u64::from(offset);
        let fits = u64::from(offset) < 1 << buffer && at.checked_add(len).is_some_and(|end| end <= region.len);
        fits.then_some(at)
    }

    pub(crate) fn request_memory_region(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let (peer_id, number, len) = (packet.from_id, packet.block, packet.words);
        if !self.asks.is_new(number) {
            cx.counters.duplicates += 1;
            let same = |entry: &Entry| entry.is_of(peer_id, number) && matches!(entry.local, Local::Region(_));
            return match self.locals.find(same) {
                Some(id) if self.region(id).is_some() => self.answer_region(id, path, cx),
                Some(_) => {}
                None => self.reject(Op::MEMORY_REGION_AVAILABLE, packet, Reason::ABORTED, path, cx),
            };
        }
        let access = Access::of(packet.param);
        if peer_id == 0 || !self.is_of_peer(number) || len == 0 || len > REGION_MAX {
            return self.reject(Op::MEMORY_REGION_AVAILABLE, packet, Reason::BAD_PARAMETER, path, cx);
        }
        let wake = Wake::Every;
        let region = Region { peer_id, access, len, bufx: 0, wake, is_granted: false };
        let is_free = self.locals.count(|local| matches!(local, Local::Region(_))) < REGIONS_MAX;
        let id = if is_free { self.locals.add(Local::Region(region), number) } else { None };
        let Some(id) = id else {
            return self.reject(Op::MEMORY_REGION_AVAILABLE, packet, Reason::NO_RESOURCES, path, cx);
        };
        self.asks.insert(number);
        cx.events.push_back(Event::RegionAsked { vc: self.id, id, access, len });
    }

    /// Grants a region: the peer may use that much memory from now on.
    pub(crate) fn grant_region(&mut self, id: Id, access: Access, wake: Wake, cx: &mut Cx<'_>) -> Result<(), Refused> {
        let count = |len: u64, buffer: u8| len.div_ceil(1 << buffer);
        let buffer = self.terms.own_buffer;
        let Some(Local::Region(region)) = self.locals.get(id).map(|entry| entry.local) else {
            return Err(Refused::Unknown);
        };
        if region.is_granted {
            return Err(Refused::Unknown);
        }
        let buffers = count(region.len, buffer);
        let used = self.locals.iter().filter_map(|entry| match entry.local {
            Local::Region(other) if other.is_granted => {
                Some((u64::from(other.bufx), u64::from(other.bufx) + count(other.len, buffer)))
            }
            _ => None,
        });
        let mut used: Vec<(u64, u64)> = used.collect();
        used.sort_unstable();
        // Indexes take turns: a late packet for a region that has ended finds no other one in its place.
        let next = u64::from(self.next_region_bufx.max(REGION_BUFX));
        let found = [next, REGION_BUFX.into()].into_iter().find_map(|from| free_from(from, buffers, &used));
        let bufx = found.ok_or(Refused::Busy)?;
        self.next_region_bufx = u32::try_from(bufx + buffers).unwrap_or(REGION_BUFX);
        if access.fetch && self.fetched.is_empty() {
            self.fetched = vec![None; FETCHES as usize];
        }
        if let Some(entry) = self.locals.get_mut(id) {
            // Below 2^32, as checked.
            let bufx = bufx as u32;
            entry.local = Local::Region(Region { access, wake, bufx, is_granted: true, ..region });
        }
        let path = self.request_path();
        self.answer_region(id, path, cx);
        Ok(())
    }

    /// Refuses a region.
    pub(crate) fn refuse_region(&mut self, id: Id, reason: Reason, cx: &mut Cx<'_>) {
        let Some(Local::Region(region)) = self.locals.get(id).map(|entry| entry.local) else { return };
        let Some(entry) = self.free(id, cx) else { return };
        let path = self.request_path();
        cx.counters.overflows += 1;
        let packet = self.packet(Op::MEMORY_REGION_AVAILABLE, region.peer_id, 0);
        let packet = Packet { flags: flags::REJECT, param: reason.0, block: entry.number, ..packet };
        self.answer(path, packet, cx);
    }

    fn answer_region(&mut self, id: Id, path: usize, cx: &mut Cx<'_>) {
        let (Some(region), Some(entry)) = (self.region(id), self.locals.get(id)) else { return };
        let packet = self.packet_about(Op::MEMORY_REGION_AVAILABLE, entry);
        let (param, words, bufx) = (region.access.bits(), region.len, region.bufx);
        self.answer(path, Packet { param, words, bufx, ..packet }, cx);
    }

    /// Says which Puts are reported.
    pub(crate) fn arm(&mut self, id: Id, wake: Wake) -> Result<(), Refused> {
        match self.locals.get_mut(id).map(|entry| &mut entry.local) {
            Some(Local::Region(region)) if region.is_granted => {
                region.wake = wake;
                Ok(())
            }
            _ => Err(Refused::Unknown),
        }
    }

    /// An STU of a Put.
    pub(crate) fn put_came(
        &mut self,
        (packet, payload): (&Packet, &[u8]),
        path: usize,
        memory: &mut impl Memory,
        cx: &mut Cx<'_>,
    ) {
        let mx = packet.to_id;
        let Some(region) = self.region(mx).filter(|region| region.access.put) else {
            cx.counters.unexpected += 1;
            return;
        };
        let at = self.place_in(&region, (packet.bufx, packet.offset), payload.len() as u64);
        let index = u32::from(packet.param);
        let (Some(at), true) = (at, index < TILES_MAX && !payload.is_empty()) else {
            cx.counters.misplaced += 1;
            return;
        };
        if !self.puts_seen.is_new(packet.block) {
            cx.counters.duplicates += 1;
            if packet.has(flags::LAST) {
                self.answer_put(packet, path, cx);
            }
            return;
        }
        let (number, mask) = (packet.block, 1_u128 << index);
        let known = self.partial_puts.iter().position(|put| (put.mx, put.number) == (mx, number));
        let mut put = match known {
            Some(at) => self.partial_puts[at],
            None => PartialPut { mx, number, got: 0, start: at, len: 0, last: None },
        };
        if put.got & mask == 0 {
            put.got |= mask;
            put.start = put.start.min(at);
            // At most 128 STUs of 2^15 bytes.
            put.len += payload.len() as u32;
            memory.place(Place { vc: self.id, id: mx, offset: at }, payload);
        } else {
            cx.counters.duplicates += 1;
        }
        if packet.has(flags::LAST) {
            put.last = Some(*packet);
        }
        match put.last.filter(|last| put.got == full(u32::from(last.param) + 1)) {
            Some(last) => {
                known.into_iter().for_each(|at| {
                    self.partial_puts.remove(at);
                });
                self.put_complete(&region, &put, &last, path, cx);
            }
            None => match known {
                Some(at) => self.partial_puts[at] = put,
                None => {
                    if self.partial_puts.len() >= PARTIAL_PUTS_MAX {
                        self.partial_puts.remove(0);
                        cx.counters.overflows += 1;
                    }
                    self.partial_puts.push(put);
                }
            },
        }
    }

    fn put_complete(&mut self, region: &Region, put: &PartialPut, last: &Packet, path: usize, cx: &mut Cx<'_>) {
        self.puts_seen.insert(put.number);
        if region.wake == Wake::Every || last.has(flags::INTERRUPT) {
            let (offset, len, opaque) = (put.start, put.len, last.high());
            cx.events.push_back(Event::PutArrived { vc: self.id, region: put.mx, offset, len, opaque });
        }
        self.answer_put(last, path, cx);
    }

    fn answer_put(&mut self, last: &Packet, path: usize, cx: &mut Cx<'_>) {
        if last.has(flags::SOLICIT) && last.from_id != 0 {
            let packet = self.packet(Op::REQUEST_STATE_RESPONSE, last.from_id, last.to_id);
            self.answer(path, Packet { param: State::COMPLETE.0, block: last.block, ..packet }, cx);
        }
    }

    /// The peer reads from a region.
    pub(crate) fn get_came(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let (mx, peer_id, len) = (packet.to_id, packet.from_id, packet.block);
        let region = self.region(mx).filter(|region| region.access.get);
        let at = region.and_then(|region| self.place_in(&region, (packet.bufx, packet.offset), len.into()));
        let number = packet.low();
        let tiling = Tiling::new((packet.high(), 0), len, (self.terms.stu, self.terms.peer_buffer));
        let tiling = tiling.filter(|tiling| len > 0 && tiling.count() <= TILES_MAX);
        let (Some(offset), Some(tiling)) = (at, tiling) else {
            cx.counters.misplaced += 1;
            let reason = if region.is_some() { Reason::RANGE } else { Reason::ACCESS };
            let end = self.packet(Op::END, peer_id, mx);
            return self.answer(path, Packet { param: reason.0, block: number, ..end }, cx);
        };
        let kind = JobKind::Get { peer_id, number };
        if let Some(job) = self.jobs.iter_mut().find(|job| job.kind == kind) {
            job.next = 0;
        } else if self.jobs.len() < usize::from(self.terms.own_slots) {
            let place = Place { vc: self.id, id: mx, offset };
            self.jobs.push_back(Job { kind, path, tiling, place, next: 0, end: tiling.count() });
        } else {
            cx.counters.overflows += 1;
        }
    }

    /// The peer changes a word of a region: executed once, and the result of a repetition is that of the first.
    pub(crate) fn fetch_came(
        &mut self,
        (packet, payload): (&Packet, &[u8]),
        path: usize,
        memory: &mut impl Memory,
        cx: &mut Cx<'_>,
    ) {
        let (mx, number) = (packet.to_id, packet.block);
        let kept = self.fetched.get((number % FETCHES) as usize).copied().flatten();
        let answer = Packet { block: number, ..self.packet(Op::FETCH_OP_COMPLETE, packet.from_id, mx) };
        if let Some((_, old)) = kept.filter(|(kept, _)| *kept == number) {
            cx.counters.duplicates += 1;
            return self.answer(path, Packet { words: old, ..answer }, cx);
        }
        let behind = self.fetched_highest.map_or(u32::MAX, |highest| highest.wrapping_sub(number));
        if (FETCHES..=u32::MAX / 2).contains(&behind) {
            cx.counters.duplicates += 1;
            return;
        }
        let result = self.change_word((packet, payload), memory);
        match result {
            Ok(old) => {
                let highest = self.fetched_highest.filter(|_| behind <= u32::MAX / 2).unwrap_or(number);
                self.fetched_highest = Some(highest);
                if let Some(kept) = self.fetched.get_mut((number % FETCHES) as usize) {
                    *kept = Some((number, old));
                }
                self.answer(path, Packet { words: old, ..answer }, cx);
            }
            Err(reason) => {
                cx.counters.misplaced += 1;
                self.answer(path, Packet { flags: flags::REJECT, param: reason.0, ..answer }, cx);
            }
        }
    }

    fn change_word(&self, (packet, payload): (&Packet, &[u8]), memory: &mut impl Memory) -> Result<u64, Reason> {
        let region = self.region(packet.to_id).filter(|region| region.access.fetch).ok_or(Reason::ACCESS)?;
        let len = if packet.param & WIDE == 0 { 4 } else { 8 };
        let at = self.place_in(&region, (packet.bufx, packet.offset), len).filter(|at| at % len == 0);
        let offset = at.ok_or(Reason::RANGE)?;
        let code = u8::try_from(packet.param & !WIDE).map(FetchCode).map_err(|_| Reason::BAD_PARAMETER)?;
        let mask = if len == 4 { u64::from(u32::MAX) } else { u64::MAX };
        let (operand, expected) = (packet.words & mask, payload.try_into().ok().map(u64::from_be_bytes));
        if code.name().is_none() || (code == FetchCode::COMPARE_SWAP && expected.is_none()) {
            return Err(Reason::BAD_PARAMETER);
        }
        let mut old = 0;
        memory.change(Place { vc: self.id, id: packet.to_id, offset }, len as usize, &mut |bytes| {
            old = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
            let new = match code {
                FetchCode::ADD => old.wrapping_add(operand),
                FetchCode::AND => old & operand,
                FetchCode::OR => old | operand,
                FetchCode::XOR => old ^ operand,
                FetchCode::SWAP => operand,
                FetchCode::COMPARE_SWAP if expected == Some(old) => operand,
                _ => old,
            };
            let new = (new & mask).to_be_bytes();
            bytes.copy_from_slice(&new[new.len() - bytes.len()..]);
        });
        Ok(old)
    }

    /// The peer asks for the state of a sequence, or of the connection.
    pub(crate) fn request_state(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        let known = self.locals.get(id).filter(|entry| entry.number == packet.block);
        let local = known.map(|entry| entry.local).filter(|local| local.peer_id() == packet.from_id);
        let state = match local {
            _ if id == 0 => State::ALIVE,
            Some(Local::Receiving(receiving)) if receiving.phase == Phase::Granting => State::GRANTING,
            Some(Local::Receiving(_) | Local::Asked { .. }) => State::WAITING,
            Some(Local::Sending(_)) => State::GRANTING,
            Some(Local::Ending { .. }) => State::COMPLETE,
            _ => State::UNKNOWN,
        };
        let answer = self.packet(Op::REQUEST_STATE_RESPONSE, packet.from_id, id);
        self.answer(path, Packet { param: state.0, block: packet.block, ..answer }, cx);
    }

    /// The peer has ended a sequence. It is always acknowledged.
    pub(crate) fn end_came(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let number = packet.block;
        let acknowledged = self.packet(Op::END_ACK, packet.from_id, packet.to_id);
        self.answer(path, Packet { block: number, ..acknowledged }, cx);
        // An end that has no answer to its request knows only its own identifier.
        let same = |entry: &Entry| entry.is_of(packet.from_id, number);
        let id = if packet.to_id == 0 { self.locals.find(same).unwrap_or(0) } else { packet.to_id };
        if packet.to_id == 0 && self.is_of_peer(number) && self.asks.is_new(number) {
            // Its request is still on the way, and means nothing any more.
            self.asks.insert(number);
        }
        let Some(local) = self.locals.get(id).filter(|entry| entry.number == number).map(|entry| entry.local) else {
            return;
        };
        if local.peer_id() != packet.from_id && local.peer_id() != 0 {
            cx.counters.unexpected += 1;
            return;
        }
        let (vc, reason) = (self.id, Reason(packet.param));
        match local {
            Local::Sending(_) => self.sending_ended(id, reason, cx),
            Local::Receiving(_) | Local::Asked { .. } | Local::Get(_) => {
                self.free(id, cx);
                cx.events.push_back(Event::Failed { vc, id, reason: failure(reason) });
            }
            Local::Region(_) | Local::Remote(_) => {
                self.free(id, cx);
                self.partial_puts.retain(|put| put.mx != id);
                cx.events.push_back(Event::RegionEnded { vc, id });
            }
            Local::Ending { .. } | Local::Free | Local::Fetch | Local::Put(_) => {}
        }
    }

    pub(crate) fn end_acknowledged(&mut self, packet: &Packet, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        if self.is_asking(packet, &[Op::END]) {
            self.answered(id, cx);
            self.free(id, cx);
        }
    }

    /// Ends a sequence of this end. Its memory is not used any more.
    pub(crate) fn cancel(&mut self, id: Id, reason: Reason, cx: &mut Cx<'_>) -> Result<(), Refused> {
        let local = self.locals.get(id).ok_or(Refused::Unknown)?.local;
        match local {
            Local::Ending { .. } | Local::Free => return Err(Refused::Unknown),
            Local::Region(region) if !region.is_granted => self.refuse_region(id, reason, cx),
            // The peer knows nothing of them that it would have to forget.
            Local::Get(_) | Local::Fetch | Local::Put(_) => drop(self.free(id, cx)),
            Local::Remote(remote) if remote.mx == 0 => drop(self.free(id, cx)),
            _ => self.end(id, reason, 0, cx),
        }
        self.partial_puts.retain(|put| put.mx != id);
        Ok(())
    }
}
