//! A Virtual Connection that is up: its sequences, and the packets that wait to be sent.

use super::local::{Entry, Local, Locals, Retry};
use super::state::{Control, Cx, Job, JobKind, LiveBlock, PartialPut, Terms};
use crate::event::{Event, Id, Memory, Outgoing, Payload, Place, VcId};
use crate::limits::{
    BLOCK_STUS_LOG, CONTROL_MAX, GIVE_UP, PATHS_MAX, PROBE, PROBES_MAX, SILENCE, SLOTS_KEPT, SLOTS_MAX, TRIES,
};
use crate::path::{Path, PathState};
use crate::window::Window;
use crate::wire::{Op, Packet, Reason, flags, options};
use lunar_core::time::Instant;
use std::collections::VecDeque;

/// A Virtual Connection that is up.
#[derive(Debug)]
pub(crate) struct Vc {
    pub(crate) id: VcId,
    pub(crate) terms: Terms,
    pub(crate) paths: Vec<PathState>,
    pub(crate) locals: Locals,
    pub(crate) control: VecDeque<Control>,
    pub(crate) puts: VecDeque<Job>,
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) blocks: Vec<LiveBlock>,
    pub(crate) partial_puts: Vec<PartialPut>,
    /// Transfers from the peer that have Blocks to be granted.
    pub(crate) granting: VecDeque<Id>,
    /// Requests that wait for a Slot.
    pub(crate) waiting: VecDeque<Id>,
    /// Slots of the peer in use.
    pub(crate) used_slots: u32,
    /// The numbers of requests of the peer, and of this end.
    pub(crate) asks: Window,
    pub(crate) ask_number: u32,
    pub(crate) puts_seen: Window,
    pub(crate) put_number: u32,
    pub(crate) fetch_number: u32,
    /// The latest results of FetchOps of the peer, by their numbers.
    pub(crate) fetched: Vec<Option<(u32, u64)>>,
    pub(crate) fetched_highest: Option<u32>,
    pub(crate) next_bufx: u32,
    /// Where the search for buffers of regions begins, above those of Transfers.
    pub(crate) next_region_bufx: u32,
    pub(crate) grants: u64,
    /// When something came, and the questions since then that were not answered.
    pub(crate) heard: Instant,
    questions: u8,
    asked: Instant,
    /// The earliest time at which a timer may expire.
    pub(crate) wake: Instant,
    turn: usize,
}

impl Vc {
    /// A connection; `opens`: this end has asked for it. The numbers of its requests are odd then, and those of the
    /// other end are even: a number is that of one sequence at both ends.
    pub(crate) fn new(id: VcId, (terms, opens): (Terms, bool), path: Path, now: Instant) -> Self {
        let mut vc = Self {
            id,
            terms,
            paths: Vec::with_capacity(PATHS_MAX),
            locals: Locals::new(),
            control: VecDeque::with_capacity(64),
            puts: VecDeque::with_capacity(usize::from(SLOTS_MAX)),
            jobs: VecDeque::with_capacity(usize::from(terms.own_slots)),
            blocks: Vec::with_capacity(crate::limits::BLOCKS_MAX),
            partial_puts: Vec::new(),
            granting: VecDeque::with_capacity(usize::from(SLOTS_MAX)),
            waiting: VecDeque::with_capacity(usize::from(SLOTS_MAX)),
            used_slots: 0,
            asks: Window::default(),
            ask_number: u32::from(opens),
            puts_seen: Window::default(),
            put_number: 0,
            fetch_number: 0,
            fetched: Vec::new(),
            fetched_highest: None,
            next_bufx: 0,
            next_region_bufx: 0,
            grants: 0,
            heard: now,
            questions: 0,
            asked: now,
            wake: now + SILENCE,
            turn: 0,
        };
        vc.add_path(path, now);
        vc
    }

    /// The length of the Blocks of long Transfers.
    pub(crate) fn block_len(&self) -> u32 {
        1 << self.terms.block_log.min(self.terms.stu + BLOCK_STUS_LOG)
    }

    pub(crate) fn add_path(&mut self, path: Path, now: Instant) {
        if self.paths.len() < PATHS_MAX && self.paths.iter().all(|known| known.path != path) {
            let block = self.block_len();
            self.paths.push(PathState::new(path, block, self.terms.window, now));
        }
    }

    pub(crate) fn path_of(&self, path: Path) -> Option<usize> {
        self.paths.iter().position(|known| known.path == path)
    }

    pub(crate) fn has(&self, option: u32) -> bool {
        self.terms.options & option != 0
    }

    /// Something came from the peer.
    pub(crate) fn heard(&mut self, path: usize, now: Instant) {
        self.heard = now;
        self.questions = 0;
        self.paths[path].take_heard(now);
    }

    /// The timers have to be looked at no later than this.
    pub(crate) fn wake_by(&mut self, at: Instant) {
        self.wake = self.wake.min(at);
    }

    /// The path of the next request: those that are up take turns.
    pub(crate) fn request_path(&mut self) -> usize {
        let count = self.paths.len();
        self.turn = (self.turn + 1) % count;
        let all = (0..count).map(|step| (self.turn + step) % count);
        all.clone().find(|at| self.paths[*at].is_up).unwrap_or(self.turn)
    }

    /// The path on which the peer was heard last, of those that are up: for what was lost on another one.
    pub(crate) fn proven_path(&self) -> usize {
        let all = self.paths.iter().enumerate();
        all.max_by_key(|(_, path)| (path.is_up, path.heard)).map_or(0, |(at, _)| at)
    }

    /// A packet to the peer.
    pub(crate) fn packet(&self, op: Op, to_id: u16, from_id: u16) -> Packet {
        let Terms { own_port, peer_port, peer_key, .. } = self.terms;
        Packet { to_port: peer_port, from_port: own_port, key: peer_key, to_id, from_id, ..Packet::new(op) }
    }

    /// Queues a control operation. One that does not fit is lost, as on the network.
    pub(crate) fn queue(&mut self, control: Control, cx: &mut Cx<'_>) {
        match self.control.len() < CONTROL_MAX {
            true => self.control.push_back(control),
            false => cx.counters.overflows += 1,
        }
    }

    pub(crate) fn answer(&mut self, path: usize, packet: Packet, cx: &mut Cx<'_>) {
        self.queue(Control::Packet(path, packet, None), cx);
    }

    /// A packet to the peer about a sequence of this end, with the number of the sequence.
    pub(crate) fn packet_about(&self, op: Op, entry: &Entry) -> Packet {
        Packet { block: entry.number, ..self.packet(op, entry.local.peer_id(), entry.id) }
    }

    /// Whether a number is that of a request of the peer.
    pub(crate) fn is_of_peer(&self, number: u32) -> bool {
        (number ^ self.ask_number) & 1 != 0
    }

    /// Sends the request of a sequence, as soon as the peer has a Slot for it, until it is answered.
    pub(crate) fn ask(&mut self, id: Id, packet: Packet, word: Option<[u8; 8]>, cx: &mut Cx<'_>) {
        let (path, now) = (self.request_path(), cx.now);
        let due = now + self.paths[path].request_time(0);
        let retry = Retry { packet, word, path, tries: 0, first: now, last: now, due, has_slot: false };
        if let Some(entry) = self.locals.get_mut(id) {
            if entry.retry.take().is_some_and(|old| old.has_slot) {
                self.used_slots -= 1;
            }
            entry.retry = Some(retry);
            if !self.start_asking(id, cx) {
                self.waiting.push_back(id);
            }
        }
    }

    /// Sends a request for the first time, if there is a Slot.
    fn start_asking(&mut self, id: Id, cx: &mut Cx<'_>) -> bool {
        let (used, slots, now) = (self.used_slots, u32::from(self.terms.peer_slots), cx.now);
        let Some(retry) = self.locals.get_mut(id).and_then(|entry| entry.retry.as_mut()) else { return true };
        let kept = match retry.packet.op {
            Op::END | Op::REQUEST_STATE => SLOTS_KEPT - 1,
            _ => SLOTS_KEPT,
        };
        if retry.has_slot {
            return true;
        }
        if used + kept >= slots {
            return false;
        }
        retry.has_slot = true;
        (retry.first, retry.last) = (now, now);
        let (path, packet, word) = (retry.path, retry.packet, retry.word);
        let due = now + self.paths[path].request_time(0);
        retry.due = due;
        self.used_slots += 1;
        self.wake_by(due);
        match packet.op {
            Op::PUT => self.start_put(id, 0),
            _ => self.queue(Control::Packet(path, packet, word), cx),
        }
        if packet.op == Op::REQUEST_TO_SEND {
            self.clear_granted(id);
        }
        true
    }

    /// The request of a sequence was answered.
    pub(crate) fn answered(&mut self, id: Id, cx: &mut Cx<'_>) {
        let Some(retry) = self.locals.get_mut(id).and_then(|entry| entry.retry.take()) else { return };
        if retry.has_slot {
            self.used_slots -= 1;
            if retry.tries == 0 {
                self.paths[retry.path].measure(cx.now.since(retry.last));
            }
        }
        self.advance(cx);
    }

    /// Frees a sequence.
    pub(crate) fn free(&mut self, id: Id, cx: &mut Cx<'_>) -> Option<Entry> {
        let entry = self.locals.free(id)?;
        if entry.retry.is_some_and(|retry| retry.has_slot) {
            self.used_slots -= 1;
        }
        self.drop_blocks(id);
        self.advance(cx);
        Some(entry)
    }

    /// Ends a sequence here, and tells the peer until it has acknowledged that.
    pub(crate) fn end(&mut self, id: Id, reason: Reason, done: u64, cx: &mut Cx<'_>) {
        let Some(entry) = self.locals.get_mut(id) else { return };
        entry.local = Local::Ending { peer_id: entry.local.peer_id() };
        entry.wake = None;
        let entry = *entry;
        self.drop_blocks(id);
        let packet = self.packet_about(Op::END, &entry);
        self.ask(id, Packet { param: reason.0, words: done, ..packet }, None, cx);
        self.advance(cx);
    }

    /// Sends the requests that wait for Slots, then grants Blocks.
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_>) {
        // Recovery has Slots of its own: it does not wait behind others.
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { break };
            if !self.start_asking(id, cx) {
                self.waiting.push_back(id);
            }
        }
        self.grant_blocks(cx);
    }

    /// Looks at all timers. Returns the reason if the connection is dead.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_>) -> Option<Reason> {
        let now = cx.now;
        if now < self.wake {
            return None;
        }
        let mut wake = self.heard + SILENCE;
        if now >= wake {
            wake = self.asked + PROBE;
            if self.questions == 0 || now >= wake {
                if self.questions == PROBES_MAX {
                    return Some(Reason::TIME_OUT);
                }
                self.questions += 1;
                self.asked = now;
                wake = now + PROBE;
                self.question(None, cx);
            }
        }
        self.wake = wake;
        let mut place = 0;
        while let Some((next, id)) = self.locals.next_from(place) {
            place = next;
            self.expire_local(id, cx);
        }
        self.expire_blocks(cx);
        for path in 0..self.paths.len() {
            let state = &mut self.paths[path];
            if state.is_up {
                continue;
            }
            if now >= state.probe {
                state.probe = now + PROBE;
                self.question(Some(path), cx);
            }
            let probe = self.paths[path].probe;
            self.wake_by(probe);
        }
        None
    }

    /// Asks the peer whether it is alive.
    pub(crate) fn question(&mut self, path: Option<usize>, cx: &mut Cx<'_>) {
        let path = path.unwrap_or_else(|| self.request_path());
        let packet = self.packet(Op::REQUEST_STATE, 0, 0);
        self.answer(path, packet, cx);
    }

    fn expire_local(&mut self, id: Id, cx: &mut Cx<'_>) {
        let now = cx.now;
        let Some(entry) = self.locals.get_mut(id) else { return };
        if entry.wake.is_some_and(|wake| now >= wake) && entry.retry.is_none() {
            entry.wake = None;
            let entry = *entry;
            let packet = self.packet_about(Op::REQUEST_STATE, &entry);
            self.ask(id, packet, None, cx);
        }
        let wake = self.locals.get(id).and_then(|entry| entry.wake);
        wake.into_iter().for_each(|wake| self.wake_by(wake));
        let Some(retry) = self.locals.get(id).and_then(|entry| entry.retry).filter(|retry| retry.has_slot) else {
            return;
        };
        if now < retry.due {
            return self.wake_by(retry.due);
        }
        if retry.tries >= TRIES && now.since(retry.first) >= GIVE_UP {
            return self.give_up(id, cx);
        }
        cx.counters.resent += 1;
        if self.paths[retry.path].expire(now) && self.paths.len() > 1 {
            self.take_down(retry.path, now);
        }
        let path = self.proven_path();
        let due = now + self.paths[path].request_time(retry.tries + 1);
        let packet = Packet { flags: retry.packet.flags | flags::RESEND, ..retry.packet };
        if let Some(entry) = self.locals.get_mut(id) {
            let tries = retry.tries.saturating_add(1);
            entry.retry = Some(Retry { packet, path, tries, last: now, due, ..retry });
        }
        self.wake_by(due);
        match packet.op {
            Op::PUT => self.start_put(id, flags::RESEND),
            _ => self.queue(Control::Packet(path, packet, retry.word), cx),
        }
    }

    /// The peer does not answer.
    fn give_up(&mut self, id: Id, cx: &mut Cx<'_>) {
        let Some(entry) = self.free(id, cx) else { return };
        if !matches!(entry.local, Local::Ending { .. }) {
            cx.events.push_back(Event::Failed { vc: self.id, id, reason: Reason::TIME_OUT });
        }
    }

    /// A path does not work: its Blocks are granted again on others when their timers expire.
    pub(crate) fn take_down(&mut self, path: usize, now: Instant) {
        let others = self.paths.iter().enumerate().any(|(at, other)| at != path && other.is_up);
        let state = &mut self.paths[path];
        if others && state.is_up {
            state.is_up = false;
            state.probe = now + PROBE;
            let probe = state.probe;
            self.wake_by(probe);
        }
    }

    /// Takes a packet of the peer.
    pub(crate) fn handle(
        &mut self,
        path: usize,
        packet: &Packet,
        payload: &[u8],
        memory: &mut impl Memory,
        cx: &mut Cx<'_>,
    ) {
        match packet.op {
            Op::DATA => self.data(packet, payload, memory, cx),
            Op::PUT => self.put_came((packet, payload), path, memory, cx),
            Op::CLEAR_TO_SEND => self.clear_to_send(packet, path, cx),
            Op::REQUEST_TO_SEND => self.request_to_send(packet, path, cx),
            Op::REQUEST_TO_RECEIVE => self.request_to_receive(packet, path, cx),
            Op::REQUEST_ANSWER => self.request_answer(packet, cx),
            Op::GET => self.get_came(packet, path, cx),
            Op::FETCH_OP => self.fetch_came((packet, payload), path, memory, cx),
            Op::FETCH_OP_COMPLETE => self.fetch_complete(packet, cx),
            Op::REQUEST_MEMORY_REGION => self.request_memory_region(packet, path, cx),
            Op::MEMORY_REGION_AVAILABLE => self.region_available(packet, cx),
            Op::REQUEST_STATE => self.request_state(packet, path, cx),
            Op::REQUEST_STATE_RESPONSE => self.state_response(packet, cx),
            Op::END => self.end_came(packet, path, cx),
            Op::END_ACK => self.end_acknowledged(packet, cx),
            _ => cx.counters.unexpected += 1,
        }
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !(self.control.is_empty() && self.puts.is_empty() && self.jobs.is_empty())
    }

    /// The next packet to send.
    pub(crate) fn next_packet(&mut self, cx: &mut Cx<'_>) -> Option<Outgoing> {
        let is_checked = self.has(options::CHECKSUM);
        while let Some(control) = self.control.pop_front() {
            let (path, packet, word) = match control {
                Control::Packet(path, packet, word) => (path, packet, word),
                Control::Wait(path, id) => match self.wait_answer(id) {
                    Some(packet) => (path, packet, None),
                    None => continue,
                },
            };
            let (packet, payload) = match word {
                Some(word) => (Packet { len: 8, ..packet }, Payload::Word(word)),
                None => (packet, Payload::None),
            };
            return Some(Outgoing { path: self.paths[path].path, packet, is_checked, payload });
        }
        loop {
            let is_put = !self.puts.is_empty();
            let queue = if is_put { &mut self.puts } else { &mut self.jobs };
            let job = *queue.front()?;
            let is_last = job.next + 1 >= job.end;
            match is_last {
                true => drop(queue.pop_front()),
                false => queue.iter_mut().take(1).for_each(|job| job.next += 1),
            }
            if let Some((packet, place)) = self.stu(&job, is_last) {
                if let (true, JobKind::Put { .. }) = (is_last, job.kind) {
                    self.put_sent(job.place.id, cx);
                }
                let payload = Payload::Memory(place, usize::from(packet.len));
                return Some(Outgoing { path: self.paths[job.path].path, packet, is_checked, payload });
            }
            // Its sequence has ended.
            let queue = if is_put { &mut self.puts } else { &mut self.jobs };
            if !is_last {
                queue.pop_front();
            }
        }
    }

    /// The next STU of a job, if its sequence is alive.
    fn stu(&self, job: &Job, is_last: bool) -> Option<(Packet, Place)> {
        let tile = job.tiling.tile(job.next)?;
        let local = &self.locals.get(job.place.id)?.local;
        let last = if is_last { flags::LAST } else { 0 };
        let packet = match (job.kind, local) {
            (JobKind::Block { peer_id, block, is_final }, Local::Sending(_)) => {
                let fin = if is_final { flags::FINAL } else { 0 };
                Packet { flags: last | fin, block, ..self.packet(Op::DATA, peer_id, job.place.id) }
            }
            (JobKind::Put { mx, number, opaque, flags }, Local::Put(put)) => {
                let from = if put.is_solicited { job.place.id } else { 0 };
                let flags = if is_last { flags | last } else { flags & flags::RESEND };
                Packet { flags, block: number, words: u64::from(opaque) << 32, ..self.packet(Op::PUT, mx, from) }
            }
            (JobKind::Get { peer_id, number }, Local::Region(_)) => {
                Packet { flags: last, words: number.into(), ..self.packet(Op::DATA, peer_id, job.place.id) }
            }
            _ => return None,
        };
        let place = Place { offset: job.place.offset + u64::from(tile.at), ..job.place };
        // An index has 16 bits: longer jobs are refused. An STU has at most 2^15 bytes.
        let (param, len) = (job.next as u16, tile.len as u16);
        Some((Packet { param, bufx: tile.bufx, offset: tile.offset, len, ..packet }, place))
    }
}
