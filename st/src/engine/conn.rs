//! A connection from its request until its last packets have left the network.

use super::state::{Cx, Terms};
use super::vc::Vc;
use super::{Settings, Ulp};
use crate::event::{Event, Memory, Outgoing, Payload, VcId};
use crate::limits::{
    BLOCK_LOG_MAX, BUFFER_RANGE, CONNECT_INTERVAL, CONNECT_TRIES, HALF_OPEN, LINGER, PATHS_MAX, SLOTS_MAX, SLOTS_MIN,
    STU_RANGE,
};
use crate::path::Path;
use crate::wire::{Op, Packet, Reason, VERSION, flags, options};
use lunar_core::time::Instant;
use std::collections::VecDeque;

/// A request that is repeated without a Slot: it opens or closes a connection, or adds a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeat {
    path: Path,
    packet: Packet,
    tries: u8,
    due: Instant,
}

/// The state of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// This end has asked for it.
    Opening { repeat: Repeat, others: Vec<Path>, settings: Settings },
    /// It is up. Before the peer has sent anything, its address may be wrong: it ends at the time `half_open`.
    Up { vc: Box<Vc>, half_open: Option<Instant>, joins: Vec<Repeat> },
    /// This end has said that it ends, or has answered that.
    Closing { repeat: Repeat },
    /// It is over; the last answer may have been lost.
    Lingering { until: Instant },
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: VcId,
    pub(super) own_port: u16,
    peer_port: u16,
    peer_key: u32,
    nonce: u32,
    stage: Stage,
    out: VecDeque<Outgoing>,
    pub(super) is_ready: bool,
    /// The time of its timer among those of the engine.
    pub(super) timer: Option<Instant>,
}

/// Packets that wait outside of a Virtual Connection: each has a timer of its own.
const OUT_MAX: usize = 4 * PATHS_MAX;

/// The fields of a Request_Connection or Connection_Answer.
fn offer(op: Op, (key, own_port, peer_port): (VcId, u16, u16), settings: &Settings, ulp: Ulp) -> Packet {
    Packet {
        to_port: peer_port,
        from_port: own_port,
        to_id: u16::from(settings.buffer) << 8 | u16::from(settings.stu),
        from_id: settings.slots,
        block: key.0,
        bufx: settings.options & options::ALL,
        offset: u32::from(ulp.0) << 16 | u32::from(settings.block) << 8,
        ..Packet::new(op)
    }
}

/// The terms on which both ends agree, if an offer of the peer is good.
fn agree(packet: &Packet, settings: &Settings, ulp: Ulp) -> Option<Terms> {
    let [buffer, stu] = packet.to_id.to_be_bytes();
    let slots = packet.from_id;
    let [.., block, _] = packet.offset.to_be_bytes();
    let is_right = (STU_RANGE.0..=STU_RANGE.1).contains(&stu)
        && (BUFFER_RANGE.0..=BUFFER_RANGE.1).contains(&buffer)
        && stu <= buffer
        && slots >= SLOTS_MIN
        && (stu..=BLOCK_LOG_MAX).contains(&block)
        && packet.offset >> 16 == u32::from(ulp.0)
        && packet.block != 0;
    is_right.then(|| Terms {
        own_port: packet.to_port,
        peer_port: packet.from_port,
        peer_key: packet.block,
        stu: stu.min(settings.stu).min(buffer).min(settings.buffer),
        own_buffer: settings.buffer,
        peer_buffer: buffer,
        own_slots: settings.slots,
        peer_slots: slots.min(SLOTS_MAX),
        block_log: block.min(settings.block),
        options: packet.bufx & settings.options,
        window: settings.window,
    })
}

impl Conn {
    /// A connection that this end opens.
    pub(super) fn opening(
        id: VcId,
        own_port: u16,
        (port, ulp): (u16, Ulp),
        (paths, settings): (&[Path], Settings),
        nonce: u32,
        now: Instant,
    ) -> Self {
        let packet = offer(Op::REQUEST_CONNECTION, (id, own_port, port), &settings, ulp);
        let packet = Packet { param: VERSION, words: nonce.into(), ..packet };
        let repeat = Repeat { path: paths[0], packet, tries: 0, due: now + CONNECT_INTERVAL };
        let stage = Stage::Opening { repeat, others: paths[1..].to_vec(), settings };
        let mut conn = Self {
            id,
            own_port,
            peer_port: port,
            peer_key: 0,
            nonce,
            stage,
            out: VecDeque::new(),
            is_ready: false,
            timer: None,
        };
        conn.push(paths[0], packet);
        conn
    }

    /// A connection that a peer opens; `None` if its offer is wrong.
    pub(super) fn accepted(
        id: VcId,
        path: Path,
        packet: &Packet,
        (ulp, settings): (Ulp, Settings),
        now: Instant,
    ) -> Option<Self> {
        let terms = agree(packet, &settings, ulp)?;
        let vc = Box::new(Vc::new(id, (terms, false), path, now));
        let stage = Stage::Up { vc, half_open: Some(now + HALF_OPEN), joins: Vec::new() };
        let mut conn = Self {
            id,
            own_port: packet.to_port,
            peer_port: packet.from_port,
            peer_key: packet.block,
            nonce: packet.low(),
            stage,
            out: VecDeque::new(),
            is_ready: false,
            timer: None,
        };
        let answer = offer(Op::CONNECTION_ANSWER, (id, packet.to_port, packet.from_port), &settings, ulp);
        conn.push(path, Packet { key: packet.block, words: packet.low().into(), ..answer });
        Some(conn)
    }

    /// Whether it is that of these ports at this peer.
    pub(super) fn is_of(&self, path: Path, peer_port: u16, own_port: u16) -> bool {
        let is_path = match &self.stage {
            Stage::Up { vc, .. } => vc.path_of(path).is_some(),
            Stage::Closing { repeat } => repeat.path == path,
            Stage::Opening { .. } | Stage::Lingering { .. } => false,
        };
        is_path && self.peer_port == peer_port && self.own_port == own_port
    }

    /// Whether it has not ended: it has the memory of a Virtual Connection, or will have.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Opening { .. } | Stage::Up { .. })
    }

    /// When it ends unless the peer sends something, if the peer has sent nothing since its request was answered.
    pub(super) fn half_open(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Up { half_open, .. } => *half_open,
            _ => None,
        }
    }

    pub(super) fn peer_key(&self) -> u32 {
        self.peer_key
    }

    /// Answers a Request_Connection again, with the same Key.
    pub(super) fn answer_again(&mut self, packet: &Packet) {
        let Stage::Up { vc, .. } = &self.stage else { return };
        let (terms, path) = (vc.terms, vc.paths[0].path);
        let settings = Settings {
            stu: terms.stu,
            buffer: terms.own_buffer,
            slots: terms.own_slots,
            block: terms.block_log,
            window: terms.window,
            options: terms.options,
        };
        let ulp = Ulp((packet.offset >> 16) as u16);
        let answer = offer(Op::CONNECTION_ANSWER, (self.id, self.own_port, self.peer_port), &settings, ulp);
        self.push(path, Packet { key: self.peer_key, words: packet.low().into(), ..answer });
    }

    pub(super) fn vc(&self) -> Option<&Vc> {
        match &self.stage {
            Stage::Up { vc, .. } => Some(vc),
            _ => None,
        }
    }

    pub(super) fn vc_mut(&mut self) -> Option<&mut Vc> {
        match &mut self.stage {
            Stage::Up { vc, .. } => Some(vc),
            _ => None,
        }
    }

    fn push(&mut self, path: Path, packet: Packet) {
        if self.out.len() < OUT_MAX {
            let is_checked = self.vc().is_some_and(|vc| vc.has(options::CHECKSUM));
            self.out.push_back(Outgoing { path, packet, is_checked, payload: Payload::None });
        }
    }

    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty() || self.vc().is_some_and(Vc::has_output)
    }

    pub(super) fn next_packet(&mut self, cx: &mut Cx<'_>) -> Option<Outgoing> {
        self.out.pop_front().or_else(|| self.vc_mut()?.next_packet(cx))
    }

    /// When a timer may expire.
    pub(super) fn wake(&self) -> Instant {
        match &self.stage {
            Stage::Opening { repeat, .. } | Stage::Closing { repeat } => repeat.due,
            Stage::Up { vc, half_open, joins } => {
                let others = joins.iter().map(|join| join.due).chain(*half_open);
                others.fold(vc.wake, Instant::min)
            }
            Stage::Lingering { until } => *until,
        }
    }

    /// Looks at the timers; returns whether it still exists.
    pub(super) fn expire(&mut self, cx: &mut Cx<'_>) -> bool {
        let (now, vc_id) = (cx.now, self.id);
        let mut again = Vec::new();
        let dead = match &mut self.stage {
            Stage::Lingering { until } => return now < *until,
            Stage::Opening { repeat, .. } => match step(repeat, now, &mut again) {
                true => None,
                false => Some(Reason::TIME_OUT),
            },
            Stage::Closing { repeat } => {
                if !step(repeat, now, &mut again) {
                    return false;
                }
                None
            }
            Stage::Up { half_open: Some(until), .. } if now >= *until => Some(Reason::TIME_OUT),
            Stage::Up { vc, joins, .. } => {
                joins.retain_mut(|join| step(join, now, &mut again));
                vc.expire(cx)
            }
        };
        again.into_iter().for_each(|(path, packet)| self.push(path, packet));
        if let Some(reason) = dead {
            cx.events.push_back(Event::Closed { vc: vc_id, reason });
        }
        dead.is_none()
    }

    /// Takes a packet with the right Key.
    pub(super) fn handle(
        &mut self,
        path: Path,
        (packet, is_checked, payload): (&Packet, bool, &[u8]),
        memory: &mut impl Memory,
        cx: &mut Cx<'_>,
    ) {
        if packet.from_port != self.peer_port {
            cx.counters.foreign += 1;
            return;
        }
        if let Stage::Opening { .. } = self.stage {
            return self.answered(path, packet, cx);
        }
        match packet.op {
            Op::REQUEST_CONNECTION => return self.join(path, packet, cx),
            Op::CONNECTION_ANSWER => return self.joined(path, packet, cx),
            _ => {}
        }
        let known = match &self.stage {
            Stage::Up { vc, .. } => vc.path_of(path),
            Stage::Closing { repeat } => (repeat.path == path).then_some(0),
            Stage::Lingering { .. } => Some(0),
            Stage::Opening { .. } => None,
        };
        let Some(at) = known else {
            cx.counters.foreign += 1;
            return;
        };
        if self.vc().is_some_and(|vc| vc.has(options::CHECKSUM)) && !is_checked {
            cx.counters.malformed += 1;
            return;
        }
        match packet.op {
            Op::REQUEST_DISCONNECT => return self.disconnect_came(path, packet, cx),
            Op::DISCONNECT_ANSWER => return self.disconnect_answered(path, cx.now),
            Op::DISCONNECT_COMPLETE => {
                if matches!(self.stage, Stage::Closing { .. }) {
                    self.linger(cx.now);
                }
                return;
            }
            _ => {}
        }
        let Stage::Up { vc, half_open, .. } = &mut self.stage else {
            cx.counters.unexpected += 1;
            return;
        };
        *half_open = None;
        vc.heard(at, cx.now);
        vc.handle(at, packet, payload, memory, cx);
    }

    /// The answer to a Request_Connection.
    fn answered(&mut self, path: Path, packet: &Packet, cx: &mut Cx<'_>) {
        let Stage::Opening { repeat, others, settings } = &mut self.stage else { return };
        let is_rejected = packet.has(flags::REJECT);
        let nonce = if is_rejected { packet.high() } else { packet.low() };
        if packet.op != Op::CONNECTION_ANSWER || path != repeat.path || nonce != repeat.packet.low() {
            cx.counters.unexpected += 1;
            return;
        }
        if is_rejected && Reason(packet.param) == Reason::COOKIE {
            if repeat.packet.low() != self.nonce {
                // A second cookie: the first one is good for a minute.
                return;
            }
            repeat.packet.words = packet.low().into();
            let (path, request) = (repeat.path, repeat.packet);
            self.push(path, request);
            return;
        }
        let ulp = Ulp((repeat.packet.offset >> 16) as u16);
        let terms = if is_rejected { None } else { agree(packet, settings, ulp) };
        let Some(terms) = terms else {
            let reason = if is_rejected { Reason(packet.param) } else { Reason::BAD_PARAMETER };
            cx.events.push_back(Event::Closed { vc: self.id, reason });
            self.stage = Stage::Lingering { until: cx.now };
            return;
        };
        self.peer_key = terms.peer_key;
        let mut vc = Box::new(Vc::new(self.id, (terms, true), path, cx.now));
        // The peer ends a connection that stays silent after its request.
        vc.question(None, cx);
        let is_striped = vc.has(options::STRIPING);
        let request = repeat.packet;
        let others = std::mem::take(others);
        let join = |path: Path| {
            let packet = Packet { flags: flags::JOIN, key: terms.peer_key, ..request };
            Repeat { path, packet, tries: 0, due: cx.now + CONNECT_INTERVAL }
        };
        let joins: Vec<Repeat> = others.into_iter().filter(|_| is_striped).map(join).collect();
        joins.iter().for_each(|join| self.push(join.path, join.packet));
        self.stage = Stage::Up { vc, half_open: None, joins };
        cx.events.push_back(Event::Connected { vc: self.id });
    }

    /// The peer adds a path.
    fn join(&mut self, path: Path, packet: &Packet, cx: &mut Cx<'_>) {
        let (key, nonce) = (self.peer_key, self.nonce);
        let Stage::Up { vc, .. } = &mut self.stage else { return };
        if packet.block != key || packet.low() != nonce || !vc.has(options::STRIPING) {
            cx.counters.foreign += 1;
            return;
        }
        vc.add_path(path, cx.now);
        if vc.path_of(path).is_some() {
            let answer = vc.packet(Op::CONNECTION_ANSWER, 0, 0);
            self.push(path, Packet { flags: flags::JOIN, words: nonce.into(), ..answer });
        }
    }

    /// The peer has taken a path that this end has added.
    fn joined(&mut self, path: Path, packet: &Packet, cx: &mut Cx<'_>) {
        let Stage::Up { vc, joins, .. } = &mut self.stage else { return };
        let at = joins.iter().position(|join| join.path == path && join.packet.low() == packet.low());
        if let Some(at) = at.filter(|_| packet.has(flags::JOIN) && !packet.has(flags::REJECT)) {
            joins.swap_remove(at);
            vc.add_path(path, cx.now);
            vc.advance(cx);
        }
    }

    fn end_packet(&self, op: Op, reason: Reason) -> Packet {
        Packet {
            param: reason.0,
            to_port: self.peer_port,
            from_port: self.own_port,
            key: self.peer_key,
            ..Packet::new(op)
        }
    }

    /// This end closes the connection.
    pub(super) fn close(&mut self, reason: Reason, now: Instant) {
        let path = match &mut self.stage {
            Stage::Up { vc, .. } => {
                let path = vc.request_path();
                vc.paths[path].path
            }
            Stage::Opening { .. } => {
                // The peer forgets a connection of which it hears nothing.
                self.stage = Stage::Lingering { until: now };
                return;
            }
            Stage::Closing { .. } | Stage::Lingering { .. } => return,
        };
        let packet = self.end_packet(Op::REQUEST_DISCONNECT, reason);
        self.push(path, packet);
        self.stage = Stage::Closing { repeat: Repeat { path, packet, tries: 0, due: now + CONNECT_INTERVAL } };
    }

    /// The peer closes it.
    fn disconnect_came(&mut self, path: Path, packet: &Packet, cx: &mut Cx<'_>) {
        let answer = self.end_packet(Op::DISCONNECT_ANSWER, Reason::NONE);
        self.push(path, answer);
        if let Stage::Up { .. } = self.stage {
            cx.events.push_back(Event::Closed { vc: self.id, reason: Reason(packet.param) });
            let repeat = Repeat { path, packet: answer, tries: CONNECT_TRIES / 2, due: cx.now + CONNECT_INTERVAL };
            self.stage = Stage::Closing { repeat };
        }
    }

    fn disconnect_answered(&mut self, path: Path, now: Instant) {
        match self.stage {
            Stage::Closing { .. } | Stage::Lingering { .. } => {
                let complete = self.end_packet(Op::DISCONNECT_COMPLETE, Reason::NONE);
                self.push(path, complete);
                if matches!(self.stage, Stage::Closing { .. }) {
                    self.linger(now);
                }
            }
            _ => {}
        }
    }

    fn linger(&mut self, now: Instant) {
        self.stage = Stage::Lingering { until: now + LINGER };
    }
}

/// Repeats a request whose time has come; returns false after too many.
fn step(repeat: &mut Repeat, now: Instant, again: &mut Vec<(Path, Packet)>) -> bool {
    if now < repeat.due {
        return true;
    }
    repeat.tries += 1;
    repeat.due = now + CONNECT_INTERVAL;
    let packet = Packet { flags: repeat.packet.flags | flags::RESEND, ..repeat.packet };
    again.push((repeat.path, packet));
    repeat.tries <= CONNECT_TRIES
}
