//! The connections of an address, and the connection manager, without I/O: packets and time go in, packets and events
//! come out.
//!
//! A peer requests a connection (REQ). The protocol above accepts (REP) or rejects it (REJ). The peer says that it is
//! ready (RTU), or just uses the connection. Either end disconnects (DREQ, DREP).

use crate::admission::{Admission, Arrival, forgotten, gives_way};
use crate::connection::{Connection, Effect, Settings};
use crate::limits::{ACCEPT_TIME, FAREWELLS_MAX, IDLE, MESSAGES_MAX, READS_MAX, REPLIES, REPLY_INTERVAL, TIME_WAIT};
use crate::live::Live;
use crate::mad::{
    self, Body, Message, REJECT_PRIVATE, REPLY_PRIVATE, REQUEST_PRIVATE, Reason, Reject, Rejected, Reply,
};
use crate::requester::{self, Attempt};
use crate::wire::{
    Extension, Head, Kind, MANAGER_Q_KEY, MANAGER_QPN, NUMBER_BITS, Opcode, Packet, Psn, Remote, mtu_bytes, mtu_code,
};
use lunar_core::mem::{Sg, SgMut};
use lunar_core::shares::Share;
use lunar_core::time::Instant;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

pub use crate::events::{Accept, ConnectionId, Counters, Ended, Event, NotAccepted, Outgoing, Payload};

#[derive(Debug)]
enum State {
    /// The protocol above has not answered.
    Requested,
    /// A reply was sent so often.
    Replied(u32),
    Established,
    /// A disconnect request was sent so often.
    Disconnecting(u32),
    /// Its numbers are not used again yet.
    Over,
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    state: State,
    arrival: Arrival,
    /// Its place among the connections that were accepted.
    place: Option<Share>,
    request: mad::Request,
    transaction: u64,
    /// The reply, which is sent again if the request comes again.
    reply: Option<Box<Reply>>,
    connection: Option<Connection>,
    /// When the state changes.
    deadline: Instant,
    /// Its place among the deadlines of the engine: not later than its own one.
    scheduled: Option<Instant>,
    /// When the peer was heard last, and whether it was asked since.
    heard: Instant,
    is_ready: bool,
}

/// The connections of an address.
#[derive(Debug)]
pub struct Engine {
    /// The largest datagram that the link takes.
    mtu: usize,
    random: u64,
    /// The GUIDs of services, by their TCP ports. Requests for others are rejected.
    services: BTreeMap<u16, [u8; 8]>,
    entries: BTreeMap<ConnectionId, Entry>,
    admission: Admission,
    /// When connections are looked at. Packets move the deadline of a connection all the time, mostly to a later one:
    /// its place here changes when it becomes earlier, or when the connection was looked at.
    deadlines: BTreeSet<(Instant, ConnectionId)>,
    /// The connections of peers, by their numbers there.
    by_peer: HashMap<(IpAddr, u32), ConnectionId>,
    next: u32,
    /// Messages of the connection manager to send.
    messages: VecDeque<(IpAddr, Box<[u8; mad::LEN]>)>,
    manager_psn: Psn,
    /// Events, with the services of their connections.
    events: VecDeque<(u16, Event)>,
    /// Connections that may have something to send, in turn.
    ready: VecDeque<ConnectionId>,
    /// The last answers of connections that have failed.
    farewells: VecDeque<(IpAddr, Head)>,
    /// Connections were established or have ended.
    has_changed: bool,
    counters: Counters,
}

fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    let len = bytes.len().min(N);
    padded[..len].copy_from_slice(&bytes[..len]);
    padded
}

impl Engine {
    /// An engine without connections and without a service, on a link that takes datagrams of this many bytes. `seed`
    /// are random bits.
    #[must_use]
    pub fn new(mtu: usize, seed: u64) -> Self {
        let mut engine = Self {
            mtu,
            random: seed,
            services: BTreeMap::new(),
            entries: BTreeMap::new(),
            admission: Admission::default(),
            deadlines: BTreeSet::new(),
            by_peer: HashMap::new(),
            next: 0,
            messages: VecDeque::new(),
            manager_psn: Psn::default(),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            farewells: VecDeque::new(),
            has_changed: false,
            counters: Counters::default(),
        };
        // A restarted process does not begin with the numbers of connections that peers still use.
        engine.next = engine.random() & NUMBER_BITS;
        engine
    }

    /// Takes requests for the service at this TCP port, as a device with this GUID.
    pub fn serve(&mut self, service: u16, guid: [u8; 8]) {
        self.services.insert(service, guid);
    }

    /// Rejects requests for this service from now on. Its connections stay.
    pub fn withdraw(&mut self, service: u16) {
        self.services.remove(&service);
    }

    /// The service of a connection.
    #[must_use]
    pub fn service(&self, id: ConnectionId) -> Option<u16> {
        self.entries.get(&id)?.request.port
    }

    /// Queues an event for the service of its connection.
    fn tell(&mut self, service: Option<u16>, event: Event) {
        // A connection of an engine before has none.
        self.events.extend(service.map(|service| (service, event)));
    }

    /// Random bits (SplitMix64).
    fn random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as u32
    }

    /// Connections that have not ended.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.entries.values().filter(|entry| !entry.has_ended()).count()
    }

    /// Messages of the connection manager that wait to be sent.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn messages_queued(&self) -> usize {
        self.messages.len()
    }

    /// Dropped and repeated packets since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    /// The next event, and the service of its connection.
    pub fn poll_event(&mut self) -> Option<(u16, Event)> {
        self.events.pop_front()
    }

    /// Takes a packet whose check is right. Returns a message of a connection.
    pub fn receive<'a>(
        &mut self,
        peer: IpAddr,
        bytes: &'a [u8],
        now: Instant,
    ) -> Option<(ConnectionId, Cow<'a, [u8]>)> {
        let Some(packet) = Packet::parse(bytes) else {
            self.counters.strange += 1;
            return None;
        };
        if packet.qpn == MANAGER_QPN {
            match (packet.layout.kind, packet.extension, Message::parse(packet.payload)) {
                (Kind::Datagram, Extension::Datagram(MANAGER_Q_KEY, _), Some(message)) => {
                    self.manage(peer, &message, now);
                }
                _ => self.counters.strange += 1,
            }
            return None;
        }
        let id = ConnectionId(packet.qpn);
        let entry = self.entries.get_mut(&id).filter(|entry| entry.peer == peer);
        let Some(Entry { connection: Some(connection), state, heard, is_ready, request, .. }) = entry else {
            self.counters.strange += 1;
            return None;
        };
        *heard = now;
        if matches!(state, State::Replied(_)) {
            *state = State::Established;
            self.has_changed = true;
        }
        if !matches!(state, State::Established) {
            return None;
        }
        let (service, queued) = (request.port, connection.queued());
        let effect = connection.receive(&packet, now);
        let has_progress = connection.queued() != queued;
        self.counters.repeated += connection.requester().take_repeated();
        if !std::mem::replace(is_ready, true) {
            self.ready.push_back(id);
        }
        if has_progress {
            self.tell(service, Event::Progress(id));
        }
        self.schedule(id);
        match effect {
            Effect::None => None,
            Effect::Message(message) => Some((id, message)),
            Effect::Read(completed) => {
                self.tell(service, Event::Read(id, completed));
                None
            }
            Effect::Failed(why) => {
                self.end(id, Ended::Failed(why), now);
                None
            }
        }
    }

    /// Takes a message of the connection manager.
    fn manage(&mut self, peer: IpAddr, message: &Message, now: Instant) {
        let transaction = message.transaction;
        match message.body {
            Body::Request(request) => self.request(peer, transaction, request, now),
            Body::Ready(remote, local) => {
                if let Some(entry) = self.named(peer, (remote, local))
                    && matches!(entry.state, State::Replied(_))
                {
                    (entry.state, entry.heard) = (State::Established, now);
                    self.has_changed = true;
                    self.schedule(ConnectionId(local));
                }
            }
            Body::Disconnect(remote, local, _) => {
                // Also for a connection that is not known: it has ended then.
                self.say(peer, transaction, Body::Disconnected(local, remote));
                self.ended_by_peer(peer, (remote, local), now);
            }
            Body::Disconnected(remote, local) => {
                if let Some(entry) = self.named(peer, (remote, local))
                    && matches!(entry.state, State::Disconnecting(_))
                {
                    entry.end(State::Over, now + TIME_WAIT);
                    self.schedule(ConnectionId(local));
                }
            }
            Body::Reject(Reject { ids: (remote, local), .. }) => {
                // A peer that gives up has no number of its own here.
                let by_number = self.by_peer.get(&(peer, remote)).is_some_and(|id| id.0 == local);
                if by_number {
                    self.ended_by_peer(peer, (remote, local), now);
                }
            }
            Body::Receipt(..) | Body::Reply(_) => {}
        }
    }

    /// The connection with these numbers at the peer and here.
    fn named(&mut self, peer: IpAddr, (remote, local): (u32, u32)) -> Option<&mut Entry> {
        let id = self.by_peer.get(&(peer, remote)).copied().filter(|id| id.0 == local)?;
        self.entries.get_mut(&id)
    }

    fn ended_by_peer(&mut self, peer: IpAddr, ids: (u32, u32), now: Instant) {
        let Some(entry) = self.named(peer, ids) else { return };
        let (is_closing, service) = (entry.has_ended(), entry.request.port);
        entry.end(State::Over, now + TIME_WAIT);
        self.has_changed = true;
        self.schedule(ConnectionId(ids.1));
        if !is_closing {
            self.tell(service, Event::Closed(ConnectionId(ids.1), Ended::Peer));
        }
    }

    /// Queues a message of the connection manager.
    fn say(&mut self, peer: IpAddr, transaction: u64, body: Body) {
        if self.messages.len() < MESSAGES_MAX {
            self.messages.push_back((peer, Box::new(Message { transaction, body }.bytes())));
        }
    }

    fn refuse(&mut self, peer: IpAddr, transaction: u64, reject: Reject) {
        self.say(peer, transaction, Body::Reject(reject));
    }

    fn request(&mut self, peer: IpAddr, transaction: u64, request: mad::Request, now: Instant) {
        if let Some(id) = self.by_peer.get(&(peer, request.id)).copied() {
            let known = self.entries.get(&id).filter(|entry| entry.request == request);
            match known.map(|entry| (&entry.state, entry.reply.clone())) {
                // Its reply was lost, or there is none yet.
                Some((State::Replied(_), Some(reply))) => return self.say(peer, transaction, Body::Reply(*reply)),
                Some((State::Over, _)) | None => {}
                Some(_) => return,
            }
            // The peer uses its number again.
            self.forget(id);
        }
        let reject = |reason| Reject {
            ids: (0, request.id),
            rejected: Rejected::REQUEST,
            reason,
            mtu: None,
            private: [0; REJECT_PRIVATE],
        };
        let most = mtu_code(self.mtu);
        if !request.port.is_some_and(|service| self.services.contains_key(&service)) {
            return self.refuse(peer, transaction, reject(Reason::INVALID_SERVICE));
        }
        if !request.is_reliable || !(1..=5).contains(&request.mtu) {
            return self.refuse(peer, transaction, reject(Reason::UNSUPPORTED));
        }
        if request.mtu > most {
            let mtu = Some(most);
            return self.refuse(peer, transaction, Reject { mtu, ..reject(Reason::INVALID_MTU) });
        }
        // A peer that requests a connection for a queue pair has no other one there.
        let same = |entry: &Entry| entry.peer == peer && entry.request.qpn == request.qpn;
        let stale: Vec<ConnectionId> =
            self.entries.iter().filter(|(_, entry)| same(entry)).map(|(id, _)| *id).collect();
        stale.into_iter().for_each(|id| self.forget(id));
        self.make_room(peer, now);
        let id = self.number();
        let entry = Entry {
            peer,
            state: State::Requested,
            arrival: self.admission.arrive(),
            place: None,
            request,
            transaction,
            reply: None,
            connection: None,
            deadline: now + ACCEPT_TIME,
            scheduled: None,
            heard: now,
            is_ready: false,
        };
        self.entries.insert(id, entry);
        self.by_peer.insert((peer, request.id), id);
        self.schedule(id);
        self.tell(request.port, Event::Request { id, peer, private: request.private });
    }

    /// Makes room for another request of a peer.
    fn make_room(&mut self, peer: IpAddr, now: Instant) {
        let ended = self.entries.iter().filter(|(_, entry)| entry.has_ended());
        let forgotten = forgotten(ended.map(|(id, entry)| (entry.deadline, *id)));
        forgotten.into_iter().for_each(|(_, id)| self.forget(id));
        let is_half_open =
            |(_, entry): &(&ConnectionId, &Entry)| matches!(entry.state, State::Requested | State::Replied(_));
        let half_open = self.entries.iter().filter(is_half_open).map(|(id, entry)| ((entry.arrival, *id), entry.peer));
        match gives_way(peer, half_open) {
            Some((_, id)) if matches!(self.entries[&id].state, State::Requested) => {
                let service = self.service(id);
                self.reject_as(id, Reason::NO_RESOURCES, &[]);
                self.tell(service, Event::Closed(id, Ended::Late));
            }
            Some((_, id)) => self.end(id, Ended::Late, now),
            None => {}
        }
    }

    /// A number that no connection has.
    fn number(&mut self) -> ConnectionId {
        loop {
            self.next = self.next.wrapping_add(1) & NUMBER_BITS;
            let id = ConnectionId(self.next);
            // 0 and 1 are those of management.
            if self.next > MANAGER_QPN && self.next != NUMBER_BITS && !self.entries.contains_key(&id) {
                return id;
            }
        }
    }

    /// Removes a connection.
    fn remove(&mut self, id: ConnectionId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.by_peer.remove(&(entry.peer, entry.request.id));
        if let Some(at) = entry.scheduled {
            self.deadlines.remove(&(at, id));
        }
        Some(entry)
    }

    /// Puts a connection among the deadlines.
    fn schedule(&mut self, id: ConnectionId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let Some(deadline) = entry.deadline() else { return };
        if entry.scheduled.is_some_and(|at| at <= deadline) {
            return;
        }
        if let Some(before) = entry.scheduled.replace(deadline) {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.insert((deadline, id));
    }

    /// Removes a connection in whose place the peer requests another one.
    fn forget(&mut self, id: ConnectionId) {
        let Some(entry) = self.remove(id) else { return };
        self.has_changed = true;
        if !entry.has_ended() {
            self.tell(entry.request.port, Event::Closed(id, Ended::Peer));
        }
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// [`NotAccepted`].
    pub fn accept(&mut self, id: ConnectionId, accept: &Accept<'_>, now: Instant) -> Result<(), NotAccepted> {
        let first = self.random() & NUMBER_BITS;
        let requested = self.entries.get_mut(&id).filter(|entry| matches!(entry.state, State::Requested));
        let entry = requested.ok_or(NotAccepted::Gone)?;
        let place = self.admission.take(entry.peer).ok_or(NotAccepted::NoRoom)?;
        let request = &entry.request;
        let guid = request.port.and_then(|service| self.services.get(&service)).copied().unwrap_or_default();
        let reads = entry.reads();
        let settings = Settings {
            mtu: mtu_bytes(request.mtu),
            // Each end says where the other one begins.
            first: Psn::new(request.psn),
            expected: Psn::new(first),
            reads,
            receives: accept.first(),
        };
        let private = padded::<REPLY_PRIVATE>(accept.private);
        let reply = Reply { ids: (id.0, request.id), qpn: id.0, psn: first, reads, guid, private };
        let (peer, transaction) = (entry.peer, entry.transaction);
        (entry.connection, entry.place) = (Some(Connection::new(&settings)), Some(place));
        entry.reply = Some(Box::new(reply));
        (entry.state, entry.deadline, entry.heard) = (State::Replied(1), now + REPLY_INTERVAL, now);
        self.schedule(id);
        self.say(peer, transaction, Body::Reply(reply));
        Ok(())
    }

    /// Rejects a request.
    pub fn reject(&mut self, id: ConnectionId, private: &[u8]) {
        self.reject_as(id, Reason::CONSUMER, private);
    }

    fn reject_as(&mut self, id: ConnectionId, reason: Reason, private: &[u8]) {
        let Some(entry) = self.entries.get(&id).filter(|entry| matches!(entry.state, State::Requested)) else { return };
        let (peer, transaction, remote) = (entry.peer, entry.transaction, entry.request.id);
        let reject = Reject {
            ids: (0, remote),
            rejected: Rejected::REQUEST,
            reason,
            mtu: None,
            private: padded::<REJECT_PRIVATE>(private),
        };
        self.remove(id);
        self.refuse(peer, transaction, reject);
    }

    /// Uses a connection that is established; `None`: it has ended.
    fn with<T>(&mut self, id: ConnectionId, act: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        let entry = self.entries.get_mut(&id).filter(|entry| matches!(entry.state, State::Established))?;
        let result = act(entry.connection.as_mut()?);
        if !std::mem::replace(&mut entry.is_ready, true) {
            self.ready.push_back(id);
        }
        self.schedule(id);
        Some(result)
    }

    /// Sends a message; returns whether the connection is established.
    pub fn send(&mut self, id: ConnectionId, message: requester::Message) -> bool {
        self.with(id, |connection| connection.requester().send(message)).is_some()
    }

    /// Writes into memory of the peer; returns whether the connection is established.
    pub fn write(&mut self, id: ConnectionId, to: Remote, data: Sg) -> bool {
        self.with(id, |connection| connection.requester().write(to, data)).is_some()
    }

    /// Reads memory of the peer, as much as there is room for; returns whether the connection is established.
    pub fn read(&mut self, id: ConnectionId, from: Remote, into: SgMut, token: u64) -> bool {
        self.with(id, |connection| connection.requester().read(from, into, token)).is_some()
    }

    /// So many more messages may come.
    pub fn post(&mut self, id: ConnectionId, count: usize) {
        self.with(id, |connection| connection.post(count));
    }

    /// How many more connections of the peer may be accepted.
    #[must_use]
    pub fn left(&self, id: ConnectionId) -> usize {
        self.entries.get(&id).map_or(0, |entry| self.admission.left(entry.peer))
    }

    /// RDMA READs of a connection that are outstanding at most. Without any, its peer can send no data to a target.
    #[must_use]
    pub fn reads(&self, id: ConnectionId) -> u8 {
        self.entries.get(&id).map_or(0, Entry::reads)
    }

    /// Has no more READs outstanding than so many from now on.
    pub fn limit_reads(&mut self, id: ConnectionId, most: u8) {
        self.with(id, |connection| connection.requester().limit_reads(most));
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.entries.get(&id)?.connection.as_ref()
    }

    /// Bytes that are queued and not acknowledged, as [`requester::Requester::queued`] counts them.
    #[must_use]
    pub fn queued(&self, id: ConnectionId) -> usize {
        self.connection(id).map_or(0, Connection::queued)
    }

    /// As [`requester::Requester::counts`]; `None`: the connection has ended.
    #[must_use]
    pub fn counts(&self, id: ConnectionId) -> Option<(u64, u64)> {
        self.connection(id).map(Connection::counts)
    }

    /// Whether connections were established or have ended since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Whether [`Engine::take_changed`] would return true.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// The connections that are established.
    #[must_use]
    pub fn live(&self) -> Vec<Live> {
        let is_live = |(_, entry): &(&ConnectionId, &Entry)| matches!(entry.state, State::Established);
        let live = |(id, entry): (&ConnectionId, &Entry)| {
            let mad::Request { id: remote, qpn, .. } = entry.request;
            Live { peer: entry.peer, local: id.0, remote, qpn }
        };
        self.entries.iter().filter(is_live).map(live).collect()
    }

    /// Disconnects connections of an engine that was at this address before.
    pub fn end_stale(&mut self, stale: &[Live], now: Instant) {
        for live in stale {
            let id = ConnectionId(live.local);
            if self.entries.contains_key(&id) || self.by_peer.contains_key(&(live.peer, live.remote)) {
                continue;
            }
            let request = mad::Request {
                id: live.remote,
                port: None,
                qpn: live.qpn,
                reads: 0,
                psn: 0,
                is_reliable: true,
                mtu: 0,
                private: [0; REQUEST_PRIVATE],
            };
            let entry = Entry {
                peer: live.peer,
                state: State::Disconnecting(1),
                arrival: self.admission.arrive(),
                place: None,
                request,
                transaction: 0,
                reply: None,
                connection: None,
                deadline: now + REPLY_INTERVAL,
                scheduled: None,
                heard: now,
                is_ready: false,
            };
            self.entries.insert(id, entry);
            self.by_peer.insert((live.peer, live.remote), id);
            self.schedule(id);
            self.say(live.peer, u64::from(id.0), Body::Disconnect(id.0, live.remote, live.qpn));
        }
    }

    /// Ends a connection. Its end is not reported.
    pub fn disconnect(&mut self, id: ConnectionId, now: Instant) {
        self.end_quietly(id, now);
    }

    /// Ends a connection, and reports its end as any other.
    pub fn fail(&mut self, id: ConnectionId, now: Instant) {
        self.end(id, Ended::Here, now);
    }

    /// Ends a connection and reports it.
    fn end(&mut self, id: ConnectionId, why: Ended, now: Instant) {
        if self.end_quietly(id, now) {
            self.tell(self.service(id), Event::Closed(id, why));
        }
    }

    /// Returns whether there was one.
    fn end_quietly(&mut self, id: ConnectionId, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        if entry.has_ended() {
            return false;
        }
        let (peer, body) = (entry.peer, Body::Disconnect(id.0, entry.request.id, entry.request.qpn));
        // An answer that says why is sent before.
        let last = entry.connection.take().and_then(|mut connection| connection.last_answer());
        entry.end(State::Disconnecting(1), now + REPLY_INTERVAL);
        let head = last.map(|(psn, extension)| Head {
            opcode: Opcode::ACKNOWLEDGE,
            qpn: entry.request.qpn,
            psn,
            wants_acknowledge: false,
            extension,
        });
        self.has_changed = true;
        if self.farewells.len() < FAREWELLS_MAX {
            self.farewells.extend(head.map(|head| (peer, head)));
        }
        self.schedule(id);
        self.say(peer, u64::from(id.0), body);
        true
    }

    /// When [`Engine::expire`] is to be called: something may be due then.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Instant) {
        // Each connection is looked at once.
        for _ in 0..self.deadlines.len() {
            let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) else { return };
            self.deadlines.remove(&(at, id));
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.scheduled = None;
            if entry.deadline().is_some_and(|deadline| deadline <= now) {
                self.expire_one(id, now);
            }
            self.schedule(id);
        }
    }

    fn expire_one(&mut self, id: ConnectionId, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let (peer, transaction) = (entry.peer, entry.transaction);
        match &mut entry.state {
            State::Requested => {
                let service = entry.request.port;
                self.reject(id, &[]);
                self.tell(service, Event::Closed(id, Ended::Late));
            }
            State::Replied(REPLIES..) => self.end(id, Ended::Late, now),
            State::Replied(count) => {
                *count += 1;
                entry.deadline = now + REPLY_INTERVAL;
                if let Some(reply) = entry.reply.clone() {
                    self.say(peer, transaction, Body::Reply(*reply));
                }
            }
            State::Disconnecting(REPLIES..) => entry.end(State::Over, now + TIME_WAIT),
            State::Disconnecting(count) => {
                *count += 1;
                entry.deadline = now + REPLY_INTERVAL;
                let body = Body::Disconnect(id.0, entry.request.id, entry.request.qpn);
                self.say(peer, u64::from(id.0), body);
            }
            State::Over => drop(self.remove(id)),
            State::Established => {
                let Some(connection) = &mut entry.connection else { return };
                if entry.heard + IDLE <= now && connection.is_idle() {
                    // The peer acknowledges a write of nothing, whatever its key is.
                    entry.heard = now;
                    connection.requester().write(Remote::default(), Sg::default());
                }
                let failed = connection.expire(now);
                if !std::mem::replace(&mut entry.is_ready, true) {
                    self.ready.push_back(id);
                }
                if let Some(why) = failed {
                    self.end(id, Ended::Failed(why), now);
                }
            }
        }
    }

    /// Whether messages of the connection manager wait to be sent.
    #[must_use]
    pub fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// The next packet to send.
    pub fn poll_send(&mut self, now: Instant) -> Option<Outgoing> {
        let mut next = None;
        self.poll_burst(now, 1, |outgoing| next = Some(outgoing));
        next
    }

    /// Passes packets of one connection to `each`, and no more than so many; returns how many. Connections take turns.
    pub fn poll_burst(&mut self, now: Instant, most: usize, mut each: impl FnMut(Outgoing)) -> usize {
        if most == 0 {
            return 0;
        }
        if let Some(outgoing) = self.poll_single() {
            each(outgoing);
            return 1;
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.is_ready = false;
            let (peer, qpn, mut count) = (entry.peer, entry.request.qpn, 0);
            let Some(connection) = &mut entry.connection else { continue };
            while count < most
                && let Some(packet) = connection.poll(now)
            {
                let requester::Outgoing { opcode, psn, wants_acknowledge, extension, payload, attempt } = packet;
                let head = Head { opcode, qpn, psn, wants_acknowledge, extension };
                each(Outgoing { peer, head, payload: Payload::Memory(payload), attempt });
                count += 1;
            }
            if count == most && connection.is_ready() {
                entry.is_ready = true;
                self.ready.push_back(id);
            }
            if count > 0 {
                self.schedule(id);
                return count;
            }
        }
        0
    }

    /// The next packet that is of no connection any more, or of the connection manager.
    fn poll_single(&mut self) -> Option<Outgoing> {
        if let Some((peer, head)) = self.farewells.pop_front() {
            return Some(Outgoing { peer, head, payload: Payload::Memory(Sg::default()), attempt: Attempt::Only });
        }
        let (peer, message) = self.messages.pop_front()?;
        let psn = self.manager_psn;
        self.manager_psn = psn.plus(1);
        let extension = Extension::Datagram(MANAGER_Q_KEY, MANAGER_QPN);
        let head = Head { opcode: Opcode::DATAGRAM, qpn: MANAGER_QPN, psn, wants_acknowledge: false, extension };
        Some(Outgoing { peer, head, payload: Payload::Message(message), attempt: Attempt::Only })
    }
}

impl Entry {
    /// READs that may be outstanding.
    fn reads(&self) -> u8 {
        self.request.reads.min(READS_MAX)
    }

    /// Whether it has ended, and only its numbers are in use.
    fn has_ended(&self) -> bool {
        matches!(self.state, State::Disconnecting(_) | State::Over)
    }

    /// It ends, and leaves its place to others.
    fn end(&mut self, state: State, deadline: Instant) {
        (self.state, self.deadline) = (state, deadline);
        (self.connection, self.place) = (None, None);
    }

    /// When something is due.
    fn deadline(&self) -> Option<Instant> {
        match (&self.state, &self.connection) {
            (State::Established, Some(connection)) => {
                let idle = connection.is_idle().then(|| self.heard + IDLE);
                connection.deadline().into_iter().chain(idle).min()
            }
            (State::Established, None) => None,
            _ => Some(self.deadline),
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
