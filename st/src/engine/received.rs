//! Transfers from the peer: Blocks are granted, and data is placed. Nothing in a packet is trusted: the place and the
//! length of an STU are those that this end computes from its index.

use super::local::{Entry, Get, Grant, Local, Phase, Receiving};
use super::state::{Cx, LiveBlock};
use super::vc::Vc;
use crate::event::{Event, Id, Memory, Place, Refused};
use crate::limits::{BLOCK_LOG_MAX, BLOCKS_MAX, GIVE_UP, SLOTS_KEPT, TRANSFER_MAX, TRIES};
use crate::tiling::Tiling;
use crate::wire::{Op, Packet, Reason, flags, options};

/// The upper half of the buffer indexes is for regions, which live long.
pub(crate) const REGION_BUFX: u32 = 1 << 31;
/// STUs of later Blocks after which an STU of an earlier Block is lost.
const LATER_MAX: u8 = 3;

/// A map of so many bits.
pub(crate) fn full(count: u32) -> u128 {
    if count >= 128 { u128::MAX } else { (1 << count) - 1 }
}

impl Vc {
    /// Indexes of buffers for so many bytes, which no live sequence has.
    pub(crate) fn take_bufx(&mut self, len: u64) -> u32 {
        // At most 2^40 bytes in buffers of at least 2^8 bytes: a Transfer that has more indexes than there are is not
        // granted, see `grant`.
        let count = len.div_ceil(1 << self.terms.own_buffer).max(1) as u32;
        loop {
            if self.next_bufx.checked_add(count).is_none_or(|end| end > REGION_BUFX) {
                self.next_bufx = 0;
            }
            let start = self.next_bufx;
            let buffers = |len: u64| len.div_ceil(1 << self.terms.own_buffer).max(1) as u32;
            let used = self.locals.iter().find_map(|entry| {
                let (bufx, len) = match entry.local {
                    Local::Receiving(Receiving { phase, bufx, len, .. }) if phase != Phase::Pending => (bufx, len),
                    Local::Get(Get { tiling, .. }) => (tiling.bufx(), tiling.bytes().into()),
                    _ => return None,
                };
                let end = bufx + buffers(len);
                (start < end && bufx < start + count).then_some(end)
            });
            match used {
                // One round over all of them finds room: a few sequences live, and a few buffers are theirs.
                Some(end) => self.next_bufx = end,
                None => {
                    self.next_bufx = start + count;
                    return start;
                }
            }
        }
    }

    /// The most bytes of a Transfer to this end: live ones together have a quarter of the indexes at most.
    fn transfer_max(&self) -> u64 {
        let share = u64::from(REGION_BUFX / 4) / u64::from(self.terms.own_slots * 2);
        (share << self.terms.own_buffer).min(TRANSFER_MAX)
    }

    /// Asks the peer for a Transfer of up to so many bytes.
    pub(crate) fn request(&mut self, len: u64, cx: &mut Cx<'_>) -> Result<Id, Refused> {
        if len > self.transfer_max() {
            return Err(Refused::TooLong);
        }
        let receiving = self.locals.count(|local| matches!(local, Local::Receiving(_)));
        if receiving >= usize::from(self.terms.own_slots.min(self.terms.peer_slots)) {
            return Err(Refused::Busy);
        }
        let number = self.ask_number()?;
        let (bufx, block_log) = (self.take_bufx(len), self.block_len().trailing_zeros() as u8);
        let phase = Phase::Requested;
        let local = Receiving { phase, peer_id: 0, len, bufx, block_log, next_block: 0, done: 0 };
        let id = self.locals.add(Local::Receiving(local), number).ok_or(Refused::Busy)?;
        self.ask_number = number;
        let packet = Packet {
            flags: flags::GRANT,
            param: block_log.into(),
            block: number,
            bufx,
            words: len,
            ..self.packet(Op::REQUEST_TO_RECEIVE, 0, id)
        };
        self.ask(id, packet, None, cx);
        Ok(id)
    }

    /// The peer asks for a Transfer to it.
    pub(crate) fn request_to_receive(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let (peer_id, number) = (packet.from_id, packet.block);
        if !self.asks.is_new(number) {
            cx.counters.duplicates += 1;
            let same = |entry: &Entry| entry.is_of(peer_id, number) && matches!(entry.local, Local::Asked { .. });
            return self.locals.find(same).into_iter().for_each(|id| self.queue_wait(path, id, cx));
        }
        let waiting = self.locals.count(|local| matches!(local, Local::Asked { .. }));
        if peer_id == 0 || !self.is_of_peer(number) || waiting >= usize::from(self.terms.own_slots) {
            return self.reject(Op::REQUEST_ANSWER, packet, Reason::NO_RESOURCES, path, cx);
        }
        let log = packet.param;
        let is_granted = packet.has(flags::GRANT) && (8..=u16::from(BLOCK_LOG_MAX)).contains(&log);
        let grant = Grant { bufx: packet.bufx, offset: packet.offset, block_log: log as u8, path };
        let local = Local::Asked { peer_id, len: packet.words, grant: is_granted.then_some(grant) };
        match self.locals.add(local, number) {
            Some(id) => {
                self.asks.insert(number);
                self.queue_wait(path, id, cx);
                cx.events.push_back(Event::ReceiveAsked { vc: self.id, id, peer_id, len: packet.words });
            }
            None => self.reject(Op::REQUEST_ANSWER, packet, Reason::NO_RESOURCES, path, cx),
        }
    }

    /// Refuses a request without a trace here.
    pub(crate) fn reject(&mut self, op: Op, request: &Packet, reason: Reason, path: usize, cx: &mut Cx<'_>) {
        cx.counters.overflows += 1;
        let answer = self.packet(op, request.from_id, 0);
        let packet = Packet { flags: flags::REJECT, param: reason.0, block: request.block, ..answer };
        self.answer(path, packet, cx);
    }

    /// The peer wants to send a Transfer.
    pub(crate) fn request_to_send(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let (peer_id, number, len) = (packet.from_id, packet.block, packet.words);
        if packet.to_id != 0 {
            return self.requested_send(packet, path, cx);
        }
        if !self.asks.is_new(number) {
            cx.counters.duplicates += 1;
            let same = |entry: &Entry| entry.is_of(peer_id, number) && matches!(entry.local, Local::Receiving(_));
            return self.locals.find(same).into_iter().for_each(|id| self.wait_again(id, path, cx));
        }
        let receiving = self.locals.count(|local| matches!(local, Local::Receiving(_)));
        let block_log = self.block_len().trailing_zeros().min(packet.param.into()) as u8;
        if peer_id == 0 || !self.is_of_peer(number) || len > TRANSFER_MAX || block_log < 8 {
            return self.reject(Op::REQUEST_ANSWER, packet, Reason::BAD_PARAMETER, path, cx);
        }
        let most = if len > self.transfer_max() { 0 } else { usize::from(self.terms.own_slots) };
        let phase = Phase::Pending;
        let local = Receiving { phase, peer_id, len, bufx: 0, block_log, next_block: 0, done: 0 };
        let id = if receiving < most { self.locals.add(Local::Receiving(local), number) } else { None };
        let Some(id) = id else {
            let reason = if most == 0 { Reason::TOO_LONG } else { Reason::NO_RESOURCES };
            return self.reject(Op::REQUEST_ANSWER, packet, reason, path, cx);
        };
        self.asks.insert(number);
        self.queue_wait(path, id, cx);
        cx.events.push_back(Event::SendAsked { vc: self.id, id, peer_id, len });
    }

    /// Answers a request for a Transfer to this end that has come again. It is also answered when it is granted: its
    /// Blocks may wait for Slots and windows.
    fn wait_again(&mut self, id: Id, path: usize, cx: &mut Cx<'_>) {
        let Some(entry) = self.locals.get(id).copied() else { return };
        let wait = self.packet_about(Op::REQUEST_ANSWER, &entry);
        self.answer(path, wait, cx);
    }

    /// The peer sends the Transfer that this end has asked for.
    fn requested_send(&mut self, packet: &Packet, path: usize, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        let known = self.locals.get(id).filter(|entry| entry.number == packet.block).map(|entry| entry.local);
        let Some(Local::Receiving(mut receiving)) = known else {
            cx.counters.unexpected += 1;
            if let Some(Local::Ending { .. }) = known {
                // Its End is repeated, with the right reason.
                return;
            }
            let end = self.packet(Op::END, packet.from_id, id);
            return self.answer(path, Packet { param: Reason::UNEXPECTED.0, block: packet.block, ..end }, cx);
        };
        let is_known = receiving.peer_id == packet.from_id || receiving.peer_id == 0;
        if !is_known || packet.from_id == 0 || self.is_of_peer(packet.block) {
            cx.counters.unexpected += 1;
            return;
        }
        if receiving.phase != Phase::Requested {
            cx.counters.duplicates += 1;
            return self.wait_again(id, path, cx);
        }
        receiving.peer_id = packet.from_id;
        let most = receiving.len;
        receiving.len = packet.words.min(most);
        receiving.phase = Phase::Granting;
        if let Some(entry) = self.locals.get_mut(id) {
            (entry.local, entry.wake) = (Local::Receiving(receiving), None);
        }
        if packet.words > most {
            self.end(id, Reason::TOO_LONG, 0, cx);
            return cx.events.push_back(Event::Failed { vc: self.id, id, reason: Reason::TOO_LONG });
        }
        if receiving.len > 0 {
            // The peer has the place of the first Block, and sends it at once.
            self.grant_block(id, path, cx);
        }
        self.answered(id, cx);
        self.start_granting(id, cx);
    }

    /// Grants the Blocks of a Transfer: its bytes may be placed from now on.
    pub(crate) fn grant(&mut self, id: Id, cx: &mut Cx<'_>) -> Result<u64, Refused> {
        let Some(Local::Receiving(receiving)) = self.locals.get(id).map(|entry| entry.local) else {
            return Err(Refused::Unknown);
        };
        if receiving.phase != Phase::Pending {
            return Err(Refused::Unknown);
        }
        let bufx = self.take_bufx(receiving.len);
        if let Some(entry) = self.locals.get_mut(id) {
            entry.local = Local::Receiving(Receiving { phase: Phase::Granting, bufx, ..receiving });
        }
        self.start_granting(id, cx);
        Ok(receiving.len)
    }

    fn start_granting(&mut self, id: Id, cx: &mut Cx<'_>) {
        let Some(Local::Receiving(receiving)) = self.locals.get(id).map(|entry| entry.local) else { return };
        if receiving.done == receiving.len {
            return self.finish(id, cx);
        }
        self.granting.push_back(id);
        self.grant_blocks(cx);
    }

    /// "Wait" for a request that the program has not decided about.
    pub(crate) fn wait_answer(&self, id: Id) -> Option<Packet> {
        let entry = self.locals.get(id)?;
        let is_undecided = match entry.local {
            Local::Receiving(receiving) => receiving.phase == Phase::Pending,
            local => matches!(local, Local::Asked { .. }),
        };
        is_undecided.then(|| self.packet_about(Op::REQUEST_ANSWER, entry))
    }

    /// Grants Blocks, as far as Slots and windows allow; Transfers take turns.
    pub(crate) fn grant_blocks(&mut self, cx: &mut Cx<'_>) {
        while let Some(id) = self.granting.front().copied() {
            let left = match self.locals.get(id).map(|entry| entry.local) {
                Some(Local::Receiving(receiving)) => {
                    let start = u64::from(receiving.next_block) << receiving.block_log;
                    receiving.len.saturating_sub(start).min(1 << receiving.block_log)
                }
                _ => 0,
            };
            if left == 0 {
                self.granting.pop_front();
                continue;
            }
            if self.used_slots + SLOTS_KEPT >= u32::from(self.terms.peer_slots) || self.blocks.len() >= BLOCKS_MAX {
                return;
            }
            let Some(path) = self.roomiest(left as u32) else { return };
            self.grant_block(id, path, cx);
            self.clear_block(self.blocks.len() - 1, 0, cx);
            self.granting.rotate_left(1);
        }
    }

    /// The path with the most room for a Block.
    fn roomiest(&self, len: u32) -> Option<usize> {
        let rooms = self.paths.iter().enumerate().filter_map(|(at, path)| Some((path.room(len)?, at)));
        rooms.max().map(|(_, at)| at)
    }

    /// Makes the next Block of a Transfer live: it has a Slot of the peer.
    fn grant_block(&mut self, id: Id, path: usize, cx: &mut Cx<'_>) {
        let (terms, now, order) = (self.terms, cx.now, self.grants);
        let Some(Local::Receiving(receiving)) = self.locals.get_mut(id).map(|entry| &mut entry.local) else { return };
        let block = receiving.next_block;
        let start = u64::from(block) << receiving.block_log;
        // A Block has at most 2^30 bytes, and there are 2^31 buffers.
        let len = (receiving.len - start).min(1 << receiving.block_log) as u32;
        let bufx = receiving.bufx + (start >> terms.own_buffer) as u32;
        let offset = (start & ((1 << terms.own_buffer) - 1)) as u32;
        let Some(tiling) = Tiling::new((bufx, offset), len, (terms.stu, terms.own_buffer)) else { return };
        receiving.next_block += 1;
        self.used_slots += 1;
        self.grants += 1;
        self.paths[path].granted += len;
        let (granted, cleared, last) = (now, now, now);
        let (got, tries, later, is_clean) = (0, 0, 0, true);
        let new = LiveBlock {
            id,
            block,
            start,
            len,
            tiling,
            got,
            path,
            granted,
            cleared,
            last,
            tries,
            order,
            later,
            is_clean,
        };
        self.blocks.push(new);
        let due = now + self.paths[path].block_patience(0);
        self.wake_by(due);
    }

    /// Sends a Clear_To_Send for a Block: the STUs between the first and the last one that are missing.
    fn clear_block(&mut self, at: usize, flags: u8, cx: &mut Cx<'_>) {
        let live = &mut self.blocks[at];
        live.cleared = cx.now;
        live.order = self.grants;
        self.grants += 1;
        let live = *live;
        let Some(entry) = self.locals.get(live.id).copied() else { return };
        let Local::Receiving(receiving) = entry.local else { return };
        let missing = !live.got & full(live.tiling.count());
        let (first, end) = (missing.trailing_zeros(), 128 - missing.leading_zeros());
        let is_whole = live.got == 0 || !self.has(options::SELECTIVE);
        let range = if is_whole { 0 } else { u64::from(first) << 16 | u64::from(end - first) };
        let Some(tile) = live.tiling.tile(0) else { return };
        let packet = Packet {
            flags,
            param: receiving.block_log.into(),
            block: live.block,
            bufx: tile.bufx,
            offset: tile.offset,
            words: u64::from(entry.number) << 32 | range,
            ..self.packet_about(Op::CLEAR_TO_SEND, &entry)
        };
        self.answer(live.path, packet, cx);
    }

    /// Data of a Transfer or of a Get.
    pub(crate) fn data(&mut self, packet: &Packet, payload: &[u8], memory: &mut impl Memory, cx: &mut Cx<'_>) {
        let id = packet.to_id;
        let entry = self.locals.get(id).copied();
        match entry.map(|entry| entry.local) {
            Some(Local::Receiving(receiving)) if receiving.peer_id == packet.from_id => {}
            Some(Local::Get(get)) if entry.is_some_and(|entry| entry.number == packet.low()) => {
                return self.got(id, get, (packet, payload), memory, cx);
            }
            _ => {
                cx.counters.unexpected += 1;
                return;
            }
        }
        let Some(at) = self.blocks.iter().position(|live| live.id == id && live.block == packet.block) else {
            cx.counters.duplicates += 1;
            return;
        };
        let live = &mut self.blocks[at];
        let (Some(tile), mask) = (live.tiling.tile(packet.param.into()), 1_u128 << (packet.param & 127)) else {
            cx.counters.misplaced += 1;
            return;
        };
        if (tile.bufx, tile.offset, tile.len as usize) != (packet.bufx, packet.offset, payload.len()) {
            cx.counters.misplaced += 1;
            return;
        }
        let path = live.path;
        self.paths[path].last_data = cx.now;
        live.last = cx.now;
        let is_new = live.got & mask == 0;
        if is_new {
            live.got |= mask;
            live.tries = 0;
            memory.place(Place { vc: self.id, id, offset: live.start + u64::from(tile.at) }, payload);
        } else {
            cx.counters.duplicates += 1;
        }
        let (order, is_complete) = (live.order, live.got == full(live.tiling.count()));
        if at > 0 && is_new && self.has(options::ORDERED) {
            self.count_later(at, path, order, cx);
        }
        // The Block may have moved in between: blocks are only removed here and when their Transfer ends.
        if is_complete {
            self.complete_block(at, cx);
        } else if packet.has(flags::LAST) && self.has(options::ORDERED) {
            self.repair(at, cx);
        }
    }

    /// Data of a Block has come, so earlier Blocks of the same path were sent.
    fn count_later(&mut self, at: usize, path: usize, order: u64, cx: &mut Cx<'_>) {
        for earlier in 0..at {
            let live = &mut self.blocks[earlier];
            if live.path == path && live.order < order {
                live.later += 1;
                if live.later >= LATER_MAX {
                    self.repair(earlier, cx);
                }
            }
        }
    }

    /// Asks again for what is missing of a Block.
    fn repair(&mut self, at: usize, cx: &mut Cx<'_>) {
        let (block, now) = (self.block_len(), cx.now);
        let live = &mut self.blocks[at];
        (live.is_clean, live.later) = (false, 0);
        let path = live.path;
        self.paths[path].lost(block, now);
        cx.counters.resent += 1;
        self.clear_block(at, flags::RESEND, cx);
    }

    fn complete_block(&mut self, at: usize, cx: &mut Cx<'_>) {
        let live = self.blocks.remove(at);
        self.used_slots -= 1;
        let path = &mut self.paths[live.path];
        path.granted -= live.len;
        path.complete(live.len, cx.now.since(live.granted), live.is_clean);
        let Some(Local::Receiving(receiving)) = self.locals.get_mut(live.id).map(|entry| &mut entry.local) else {
            return;
        };
        receiving.done += u64::from(live.len);
        match receiving.done == receiving.len {
            true => self.finish(live.id, cx),
            false => self.advance(cx),
        }
    }

    /// All bytes of a Transfer have come.
    fn finish(&mut self, id: Id, cx: &mut Cx<'_>) {
        let Some(Local::Receiving(receiving)) = self.locals.get(id).map(|entry| entry.local) else { return };
        cx.events.push_back(Event::Received { vc: self.id, id, len: receiving.len });
        self.end(id, Reason::NONE, receiving.len, cx);
    }

    /// Forgets the Blocks of a Transfer: nothing is placed any more.
    pub(crate) fn drop_blocks(&mut self, id: Id) {
        let (paths, used) = (&mut self.paths, &mut self.used_slots);
        self.blocks.retain(|live| {
            let is_kept = live.id != id;
            if !is_kept {
                paths[live.path].granted -= live.len;
                *used -= 1;
            }
            is_kept
        });
    }

    /// Looks at the timers of Blocks.
    pub(crate) fn expire_blocks(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let mut at = 0;
        while at < self.blocks.len() {
            let live = self.blocks[at];
            let path = &self.paths[live.path];
            let patience = path.block_patience(live.tries);
            let since = live.last.max(live.cleared);
            // While data of other Blocks comes on this path, this one may wait for its turn.
            let due = (since + patience).max((path.last_data + patience).min(since + patience * 4));
            if now < due {
                self.wake_by(due);
                at += 1;
                continue;
            }
            if live.tries >= TRIES && now.since(live.last) >= GIVE_UP {
                self.end(live.id, Reason::TIME_OUT, 0, cx);
                cx.events.push_back(Event::Failed { vc: self.id, id: live.id, reason: Reason::TIME_OUT });
                // Others of its Blocks are gone, too: the rest is looked at anew.
                return self.wake_by(now);
            }
            if self.paths[live.path].expire(now) {
                self.take_down(live.path, now);
            }
            let has_moved = self.move_block(at);
            let tries = if has_moved { 0 } else { live.tries.saturating_add(1) };
            self.blocks[at].tries = tries;
            self.repair(at, cx);
            let due = now + self.paths[self.blocks[at].path].block_patience(tries);
            self.wake_by(due);
            at += 1;
        }
    }

    /// A Block of a path that is down moves to another one; returns whether it did.
    fn move_block(&mut self, at: usize) -> bool {
        let (from, to) = (self.blocks[at].path, self.proven_path());
        if self.paths[from].is_up || from == to {
            return false;
        }
        let len = self.blocks[at].len;
        self.paths[from].granted -= len;
        self.paths[to].granted += len;
        self.blocks[at].path = to;
        true
    }

    /// Data of a Get.
    fn got(
        &mut self,
        id: Id,
        get: Get,
        (packet, payload): (&Packet, &[u8]),
        memory: &mut impl Memory,
        cx: &mut Cx<'_>,
    ) {
        let tile = get
            .tiling
            .tile(packet.param.into())
            .filter(|tile| (tile.bufx, tile.offset, tile.len as usize) == (packet.bufx, packet.offset, payload.len()));
        let Some(tile) = tile else {
            cx.counters.misplaced += 1;
            return;
        };
        let mask = 1 << (packet.param & 127);
        if get.got & mask != 0 {
            cx.counters.duplicates += 1;
            return;
        }
        memory.place(Place { vc: self.id, id, offset: tile.at.into() }, payload);
        let got = get.got | mask;
        if got == full(get.tiling.count()) {
            self.answered(id, cx);
            self.free(id, cx);
            return cx.events.push_back(Event::Done { vc: self.id, id });
        }
        if let Some(entry) = self.locals.get_mut(id) {
            entry.local = Local::Get(Get { got, ..get });
        }
    }
}
