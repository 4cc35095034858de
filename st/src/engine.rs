//! The protocol engine: packets and time in, packets and events out, without I/O. It owns no data: received bytes go to
//! the [`Memory`] of the program, and a packet to send names the bytes that belong to it.

mod conn;
mod local;
mod received;
mod region;
mod sent;
mod state;
mod vc;

pub use sent::{FetchRequest, PutRequest};
pub use state::Counters;

use crate::event::{Access, Event, Id, Memory, Outgoing, Payload, Refused, VcId, Wake};
use crate::limits::{
    BLOCK_LOG_MAX, BUFFER_RANGE, ENDED_MAX, EVENTS_MAX, PATHS_MAX, SLOTS_DEFAULT, SLOTS_MAX, SLOTS_MIN, STRAY_MAX,
    STU_RANGE, VCS_MAX, WINDOW_DEFAULT,
};
use crate::path::Path;
use crate::wire::{Op, Packet, Reason, flags, options};
use conn::Conn;
use lunar_core::codes;
use lunar_core::time::Instant;
use state::Cx;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use vc::Vc;

/// Packets of one connection before another one has its turn.
const BURST: u32 = 64;
/// Ports of this end of connections that it opens, as the ephemeral ports of IP.
const OWN_PORTS: std::ops::Range<u16> = 0xc000..0xffff;

codes! {
    /// The protocol above a Virtual Connection.
    pub struct Ulp(u16) { SOCKET = 1, SCSI = 2, RAW = 3 }
}

/// The settings of one end of Virtual Connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The longest STU, as a power of two: an STU and its header of 40 bytes fit into a packet of the network.
    pub stu: u8,
    /// The length of a buffer, as a power of two (ST_BUFSZ).
    pub buffer: u8,
    /// Control operations that the peer may have unanswered here (ST_SLOTS).
    pub slots: u16,
    /// The longest Block, as a power of two (ST_BLOCK).
    pub block: u8,
    /// The most bytes that are granted and missing on one path.
    pub window: u32,
    /// [`options`] that this end agrees to.
    pub options: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            stu: 10,
            buffer: 16,
            slots: SLOTS_DEFAULT,
            block: 19,
            window: WINDOW_DEFAULT,
            options: options::SELECTIVE | options::ORDERED | options::STRIPING,
        }
    }
}

impl Settings {
    /// The settings, with the longest STU for a network whose packets have so many bytes.
    #[must_use]
    pub fn for_mtu(self, mtu: usize) -> Self {
        let room = mtu.saturating_sub(crate::wire::HEADER_LEN).max(1);
        let (least, most) = STU_RANGE;
        let stu = (room.ilog2() as u8).clamp(least, most);
        Self { stu, buffer: self.buffer.max(stu), ..self }
    }

    fn check(&self) -> Result<(), Refused> {
        let is_right = (STU_RANGE.0..=STU_RANGE.1).contains(&self.stu)
            && (BUFFER_RANGE.0..=BUFFER_RANGE.1).contains(&self.buffer)
            && self.stu <= self.buffer
            && (SLOTS_MIN..=SLOTS_MAX).contains(&self.slots)
            && (self.stu..=BLOCK_LOG_MAX).contains(&self.block)
            && self.window >> self.stu > 0;
        if is_right { Ok(()) } else { Err(Refused::Settings) }
    }
}

/// A port at which an engine accepts connections.
#[derive(Clone, Copy, Debug)]
struct Listener {
    ulp: Ulp,
    settings: Settings,
}

/// The protocol engine.
#[derive(Debug)]
pub struct Engine {
    conns: BTreeMap<VcId, Conn>,
    /// The times at which timers of connections may expire: none is looked at before.
    timers: BTreeSet<(Instant, VcId)>,
    listeners: BTreeMap<u16, Listener>,
    events: VecDeque<Event>,
    ready: VecDeque<VcId>,
    /// Answers to peers without a connection.
    stray: VecDeque<Outgoing>,
    burst: u32,
    secret: [u64; 2],
    drawn: u64,
    next_port: u16,
    counters: Counters,
}

impl Engine {
    /// An engine. Its Keys, which peers must not guess, derive from `secret`: random bits.
    #[must_use]
    pub fn new(secret: [u64; 2]) -> Self {
        Self {
            conns: BTreeMap::new(),
            timers: BTreeSet::new(),
            listeners: BTreeMap::new(),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            stray: VecDeque::new(),
            burst: 0,
            secret,
            drawn: 0,
            next_port: OWN_PORTS.start,
            counters: Counters::default(),
        }
    }

    /// Packets that were not taken, of all connections.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of connections, with those that are opened or closed just now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// A keyed hash (SipHash) of a value.
    fn hash(&self, value: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.secret, value).hash(&mut hasher);
        hasher.finish()
    }

    /// The next random number.
    fn draw(&mut self) -> u32 {
        self.drawn += 1;
        // Any part of a keyed hash is as good as the other.
        self.hash(("draw", self.drawn)) as u32
    }

    /// A Key that no connection has.
    fn new_key(&mut self) -> VcId {
        loop {
            let key = VcId(self.draw());
            if key.0 != 0 && !self.conns.contains_key(&key) {
                return key;
            }
        }
    }

    /// Accepts connections at a port.
    ///
    /// # Errors
    /// [`Refused::Settings`].
    pub fn listen(&mut self, port: u16, ulp: Ulp, settings: Settings) -> Result<(), Refused> {
        settings.check()?;
        self.listeners.insert(port, Listener { ulp, settings });
        Ok(())
    }

    /// Opens a connection to a port of a peer, over these paths. [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// [`Refused::Settings`], also without a path or with too many; [`Refused::Busy`].
    pub fn connect(
        &mut self,
        paths: &[Path],
        (port, ulp): (u16, Ulp),
        settings: Settings,
        now: Instant,
    ) -> Result<VcId, Refused> {
        settings.check()?;
        if paths.is_empty() || paths.len() > PATHS_MAX {
            return Err(Refused::Settings);
        }
        if self.conns.values().filter(|conn| conn.is_open()).count() >= VCS_MAX {
            return Err(Refused::Busy);
        }
        let (id, nonce) = (self.new_key(), self.draw());
        self.next_port = if OWN_PORTS.contains(&(self.next_port + 1)) { self.next_port + 1 } else { OWN_PORTS.start };
        let conn = Conn::opening(id, self.next_port, (port, ulp), (paths, settings), nonce, now);
        self.conns.insert(id, conn);
        self.settle(id);
        Ok(id)
    }

    /// Takes a packet that has arrived on a path.
    pub fn handle(&mut self, path: Path, bytes: &[u8], memory: &mut impl Memory, now: Instant) {
        let Some((packet, is_checked, payload)) = Packet::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if self.events.len() >= EVENTS_MAX {
            self.counters.overflows += 1;
            return;
        }
        if packet.op == Op::REQUEST_CONNECTION && !packet.has(flags::JOIN) {
            return self.connection_requested(path, &packet, now);
        }
        let id = VcId(packet.key);
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.own_port == packet.to_port) else {
            self.counters.foreign += 1;
            return;
        };
        let mut cx = Cx { now, events: &mut self.events, counters: &mut self.counters };
        conn.handle(path, (&packet, is_checked, payload), memory, &mut cx);
        self.settle(id);
    }

    /// A peer wants to connect. Nothing is remembered before it has answered with a cookie: it is at its address.
    fn connection_requested(&mut self, path: Path, packet: &Packet, now: Instant) {
        let reject = |reason: Reason, cookie: u32| Packet {
            flags: flags::REJECT,
            param: reason.0,
            to_port: packet.from_port,
            from_port: packet.to_port,
            key: packet.block,
            words: u64::from(packet.low()) << 32 | u64::from(cookie),
            ..Packet::new(Op::CONNECTION_ANSWER)
        };
        let refuse = |engine: &mut Self, reason: Reason, cookie: u32| {
            if engine.stray.len() < STRAY_MAX {
                let packet = reject(reason, cookie);
                engine.stray.push_back(Outgoing { path, packet, is_checked: false, payload: Payload::None });
            }
        };
        if packet.param != crate::wire::VERSION {
            return refuse(self, Reason::VERSION, 0);
        }
        let Some(listener) = self.listeners.get(&packet.to_port).copied() else {
            return refuse(self, Reason::NO_PORT, 0);
        };
        let cookie = |engine: &Self, epoch: u64| {
            engine.hash(("cookie", path, packet.from_port, packet.to_port, packet.block, epoch)) as u32
        };
        let epoch = now.0 / u64::try_from(crate::limits::COOKIE_TIME.as_nanos()).unwrap_or(u64::MAX);
        if ![epoch, epoch.wrapping_sub(1)].iter().any(|epoch| cookie(self, *epoch) == packet.low()) {
            let cookie = cookie(self, epoch);
            return refuse(self, Reason::COOKIE, cookie);
        }
        let is_peer = |conn: &&mut Conn| conn.is_of(path, packet.from_port, packet.to_port);
        let known = self.conns.values_mut().find(is_peer).map(|conn| (conn.id, conn.peer_key()));
        match known {
            Some((id, key)) if key == packet.block => {
                // The answer was lost.
                self.conns.get_mut(&id).into_iter().for_each(|conn| conn.answer_again(packet));
                return self.settle(id);
            }
            Some((id, _)) => {
                // The peer has restarted.
                self.remove(id);
                self.events.push_back(Event::Closed { vc: id, reason: Reason::ABORTED });
            }
            None => {}
        }
        if !self.make_room() {
            return refuse(self, Reason::NO_RESOURCES, 0);
        }
        let id = self.new_key();
        match Conn::accepted(id, path, packet, (listener.ulp, listener.settings), now) {
            Some(conn) => {
                self.conns.insert(id, conn);
                self.events.push_back(Event::Accepted { vc: id, port: packet.to_port, peer: path.peer });
                self.settle(id);
            }
            None => refuse(self, Reason::BAD_PARAMETER, 0),
        }
    }

    /// Makes room for one more connection of a peer; returns whether there is some. Peers without end, of which each
    /// connects once, must not keep others out: a connection of which the peer has sent nothing since it was answered
    /// gives way, the oldest first, and so does one that has ended.
    fn make_room(&mut self) -> bool {
        let open = self.conns.values().filter(|conn| conn.is_open()).count();
        let ended = self.conns.len() - open;
        if open >= VCS_MAX {
            let oldest = self.conns.values().filter_map(|conn| Some((conn.half_open()?, conn.id))).min();
            let Some((_, id)) = oldest else { return false };
            self.remove(id);
            self.events.push_back(Event::Closed { vc: id, reason: Reason::NO_RESOURCES });
        }
        if ended >= ENDED_MAX {
            let all = self.conns.values().filter(|conn| !conn.is_open());
            let first = all.min_by_key(|conn| conn.wake()).map(|conn| conn.id);
            first.into_iter().for_each(|id| self.remove(id));
        }
        true
    }

    fn remove(&mut self, id: VcId) {
        if let Some(timer) = self.conns.remove(&id).and_then(|conn| conn.timer) {
            self.timers.remove(&(timer, id));
        }
    }

    /// A connection may have something to send, or a timer may be earlier.
    fn settle(&mut self, id: VcId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.is_ready && conn.has_output() {
            conn.is_ready = true;
            self.ready.push_back(id);
        }
        self.schedule(id);
    }

    /// Notes when a timer of a connection may expire.
    fn schedule(&mut self, id: VcId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let at = conn.wake();
        if conn.timer != Some(at) {
            if let Some(before) = conn.timer.replace(at) {
                self.timers.remove(&(before, id));
            }
            self.timers.insert((at, id));
        }
    }

    /// The next packet to send.
    pub fn poll_send(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some(stray) = self.stray.pop_front() {
            return Some(stray);
        }
        while let Some(id) = self.ready.front().copied() {
            let conn = self.conns.get_mut(&id);
            let mut cx = Cx { now, events: &mut self.events, counters: &mut self.counters };
            let next = conn.and_then(|conn| {
                let packet = conn.next_packet(&mut cx);
                conn.is_ready = packet.is_some();
                packet
            });
            self.burst += 1;
            match next {
                Some(packet) => {
                    self.schedule(id);
                    if self.burst >= BURST {
                        self.burst = 0;
                        self.ready.rotate_left(1);
                    }
                    return Some(packet);
                }
                None => {
                    self.burst = 0;
                    self.ready.pop_front();
                }
            }
        }
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Engine::expire`] is to be called; `None`: not before a packet comes.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Looks at the timers.
    pub fn expire(&mut self, now: Instant) {
        let due: Vec<VcId> = self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        for id in due {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let mut cx = Cx { now, events: &mut self.events, counters: &mut self.counters };
            if conn.expire(&mut cx) {
                self.settle(id);
            } else {
                self.remove(id);
            }
        }
    }

    /// Closes a connection: its sequences end, and their memory is not used any more.
    pub fn close(&mut self, vc: VcId, reason: Reason, now: Instant) {
        if let Some(conn) = self.conns.get_mut(&vc) {
            conn.close(reason, now);
            self.settle(vc);
        }
    }

    /// Ends all connections at once, without telling the peers.
    pub fn abandon(&mut self) {
        self.conns.clear();
        self.timers.clear();
        self.ready.clear();
    }

    /// The agreed lengths of a connection: the longest STU in bytes, the bytes of its buffers.
    #[must_use]
    pub fn agreed(&self, vc: VcId) -> Option<(usize, usize)> {
        let terms = self.conns.get(&vc)?.vc()?.terms;
        Some((1 << terms.stu, 1 << terms.own_buffer))
    }

    /// The ports of both ends of a connection.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub(crate) fn ports(&self, vc: VcId) -> (u16, u16) {
        let terms = self.conns.get(&vc).and_then(Conn::vc).map(|vc| vc.terms);
        terms.map_or((0, 0), |terms| (terms.own_port, terms.peer_port))
    }

    /// The paths of a connection, and whether each works.
    #[must_use]
    pub fn paths(&self, vc: VcId) -> Vec<(Path, bool)> {
        let paths = self.conns.get(&vc).and_then(Conn::vc).map(|vc| &vc.paths);
        paths.into_iter().flatten().map(|path| (path.path, path.is_up)).collect()
    }

    /// The Slots of the peer that are in use, and those that it has.
    #[must_use]
    pub fn slots(&self, vc: VcId) -> Option<(u32, u32)> {
        let vc = self.conns.get(&vc)?.vc()?;
        Some((vc.used_slots, vc.terms.peer_slots.into()))
    }

    fn with<T>(
        &mut self,
        vc: VcId,
        now: Instant,
        act: impl FnOnce(&mut Vc, &mut Cx<'_>) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let mut cx = Cx { now, events: &mut self.events, counters: &mut self.counters };
        let known = self.conns.get_mut(&vc).and_then(Conn::vc_mut).ok_or(Refused::Unknown)?;
        let result = act(known, &mut cx);
        self.settle(vc);
        result
    }

    /// Starts a Transfer of so many bytes to the peer. [`Event::Done`] follows; the bytes are read until then.
    ///
    /// # Errors
    /// [`Refused::Busy`], [`Refused::TooLong`], [`Refused::Unknown`].
    pub fn send(&mut self, vc: VcId, len: u64, now: Instant) -> Result<Id, Refused> {
        self.with(vc, now, |vc, cx| vc.send(len, None, cx))
    }

    /// Answers [`Event::ReceiveAsked`] with a Transfer of so many bytes, which keeps its identifier.
    ///
    /// # Errors
    /// Errors of [`Engine::send`].
    pub fn send_asked(&mut self, vc: VcId, id: Id, len: u64, now: Instant) -> Result<(), Refused> {
        self.with(vc, now, |vc, cx| vc.send(len, Some(id), cx).map(drop))
    }

    /// Answers [`Event::SendAsked`]: there is memory for the Transfer. Returns its length. [`Event::Received`] follows.
    ///
    /// # Errors
    /// [`Refused::Unknown`].
    pub fn grant(&mut self, vc: VcId, id: Id, now: Instant) -> Result<u64, Refused> {
        self.with(vc, now, |vc, cx| vc.grant(id, cx))
    }

    /// Asks the peer for a Transfer of up to so many bytes, for which there is memory. [`Event::Received`] follows.
    ///
    /// # Errors
    /// Errors of [`Engine::send`].
    pub fn request(&mut self, vc: VcId, len: u64, now: Instant) -> Result<Id, Refused> {
        self.with(vc, now, |vc, cx| vc.request(len, cx))
    }

    /// Ends or refuses a sequence. Its memory is not used any more, and no event of it follows.
    ///
    /// # Errors
    /// [`Refused::Unknown`].
    pub fn cancel(&mut self, vc: VcId, id: Id, reason: Reason, now: Instant) -> Result<(), Refused> {
        self.with(vc, now, |vc, cx| vc.cancel(id, reason, cx))
    }

    /// Asks for a memory region of the peer. [`Event::RegionGranted`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    /// [`Refused::Busy`], [`Refused::TooLong`], [`Refused::Unknown`].
    pub fn request_region(&mut self, vc: VcId, access: Access, len: u64, now: Instant) -> Result<Id, Refused> {
        self.with(vc, now, |vc, cx| vc.request_region(access, len, cx))
    }

    /// Answers [`Event::RegionAsked`]: the peer may use that much memory with these rights.
    ///
    /// # Errors
    /// [`Refused::Unknown`], [`Refused::Busy`].
    pub fn grant_region(
        &mut self,
        vc: VcId,
        id: Id,
        (access, wake): (Access, Wake),
        now: Instant,
    ) -> Result<(), Refused> {
        self.with(vc, now, |vc, cx| vc.grant_region(id, access, wake, cx))
    }

    /// Says which Puts into a region of this end are reported.
    ///
    /// # Errors
    /// [`Refused::Unknown`].
    pub fn arm(&mut self, vc: VcId, id: Id, wake: Wake, now: Instant) -> Result<(), Refused> {
        self.with(vc, now, |vc, _| vc.arm(id, wake))
    }

    /// Writes into a region of the peer. [`Event::Done`] follows; the bytes are read until then.
    ///
    /// # Errors
    /// [`Refused::Access`], [`Refused::Range`], [`Refused::TooLong`], [`Refused::Busy`], [`Refused::Unknown`].
    pub fn put(&mut self, vc: VcId, request: &PutRequest, now: Instant) -> Result<Id, Refused> {
        self.with(vc, now, |vc, cx| vc.put(request, cx))
    }

    /// Reads from a region of the peer. [`Event::Done`] follows.
    ///
    /// # Errors
    /// Errors of [`Engine::put`].
    pub fn get(&mut self, vc: VcId, region: Id, offset: u64, len: u32, now: Instant) -> Result<Id, Refused> {
        self.with(vc, now, |vc, cx| vc.get(region, offset, len, cx))
    }

    /// Executes an operation on a word of a region of the peer, once. [`Event::Fetched`] follows.
    ///
    /// # Errors
    /// Errors of [`Engine::put`].
    pub fn fetch(&mut self, vc: VcId, request: &FetchRequest, now: Instant) -> Result<Id, Refused> {
        self.with(vc, now, |vc, cx| vc.fetch(request, cx))
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
