//! The connections to one peer, and the active side of the connection manager: packets and time go in, packets and
//! events come out.
//!
//! A connection is requested (REQ). The peer accepts (REP) or rejects it (REJ), and is told that this end is ready
//! (RTU). Either end disconnects (DREQ, DREP). A path MTU that is too large for the peer is replaced by the one that it
//! names.

use crate::connection::{Connection, Effect, Settings};
use crate::keys::Keys;
use crate::limits::{
    CONNECTIONS_MAX, DISCONNECT_INTERVAL, DISCONNECTS, MESSAGES_MAX, READS_MAX, RECEIPT_INTERVAL, REQUEST_INTERVAL,
};
use lunar_core::mem::Sg;
use lunar_core::time::Instant;
use lunar_rdma::events::{ConnectionId, Counters, Ended, Outgoing, Payload};
use lunar_rdma::mad::{
    self, Body, Message, REJECT_PRIVATE, REPLY_PRIVATE, REQUEST_PRIVATE, Reason, Reject, Rejected, Reply, Request,
};
use lunar_rdma::requester::{self, Attempt};
use lunar_rdma::wire::{
    Extension, Head, Kind, MANAGER_Q_KEY, MANAGER_QPN, NUMBER_BITS, Opcode, Packet, Psn, mtu_bytes, mtu_code,
};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// A connection to request.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// The TCP port of the service.
    pub service: u16,
    /// The data of the protocol above: [`REQUEST_PRIVATE`] bytes at most.
    pub private: &'a [u8],
    /// The most bytes of a message of the peer.
    pub message_max: usize,
    /// The time for an answer.
    pub timeout: Duration,
}

/// An event of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It is established. The data of the protocol above.
    Connected(ConnectionId, Box<[u8; REPLY_PRIVATE]>),
    /// The peer has rejected it.
    Rejected(ConnectionId, Reason, Box<[u8; REJECT_PRIVATE]>),
    /// The peer has not answered the request.
    Unanswered(ConnectionId),
    /// It has ended.
    Closed(ConnectionId, Ended),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The request was sent.
    Requested,
    Established,
    /// A disconnect request was sent so often.
    Disconnecting(u32),
    Over,
}

#[derive(Debug)]
struct Entry {
    state: State,
    request: Request,
    message_max: usize,
    transaction: u64,
    /// The number of the connection at the peer, and the queue pair there.
    remote: (u32, u32),
    connection: Option<Connection>,
    /// When something is sent again, and when the request is given up.
    deadline: Instant,
    end: Instant,
    /// When the peer was heard last.
    heard: Instant,
    is_ready: bool,
}

/// The connections to a peer.
#[derive(Debug)]
pub struct Client {
    peer: IpAddr,
    /// The code of the largest path MTU.
    mtu: u8,
    random: u64,
    /// The queue pair of the first connection. The others follow.
    first_qpn: u32,
    entries: Vec<Entry>,
    messages: VecDeque<Box<[u8; mad::LEN]>>,
    manager_psn: Psn,
    events: VecDeque<Event>,
    /// Connections that may have something to send, in turn.
    ready: VecDeque<usize>,
    /// The last answers of connections that have failed.
    last_answers: VecDeque<Head>,
    counters: Counters,
}

impl Client {
    /// No connection. Datagrams have this many bytes at most. `seed` are random bits.
    #[must_use]
    pub fn new(peer: IpAddr, datagram: usize, seed: u64) -> Self {
        let mut client = Self {
            peer,
            mtu: mtu_code(datagram),
            random: seed,
            first_qpn: 0,
            entries: Vec::new(),
            messages: VecDeque::new(),
            manager_psn: Psn::default(),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            last_answers: VecDeque::new(),
            counters: Counters::default(),
        };
        // 0 and 1 are those of management. A process that begins again does not use the numbers of the one before.
        client.first_qpn = 2 + client.random() % (NUMBER_BITS - 2 - CONNECTIONS_MAX as u32);
        client
    }

    /// Random bits (SplitMix64).
    fn random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as u32
    }

    /// Requests a connection; `None`: there are too many, or no packet fits into a datagram.
    pub fn connect(&mut self, connect: &Connect<'_>, now: Instant) -> Option<ConnectionId> {
        if self.entries.len() >= CONNECTIONS_MAX || self.mtu == 0 {
            return None;
        }
        let mut private = [0; REQUEST_PRIVATE];
        let len = connect.private.len().min(REQUEST_PRIVATE);
        private[..len].copy_from_slice(&connect.private[..len]);
        let qpn = self.first_qpn + self.entries.len() as u32;
        let request = Request {
            id: self.random(),
            port: Some(connect.service),
            qpn,
            reads: READS_MAX,
            psn: self.random() & NUMBER_BITS,
            is_reliable: true,
            mtu: self.mtu,
            private,
        };
        self.entries.push(Entry {
            state: State::Requested,
            request,
            message_max: connect.message_max,
            transaction: u64::from(request.id),
            remote: (0, 0),
            connection: None,
            deadline: now + REQUEST_INTERVAL,
            end: now + connect.timeout,
            heard: now,
            is_ready: false,
        });
        self.say(u64::from(request.id), Body::Request(request));
        Some(ConnectionId(qpn))
    }

    fn index(&self, id: ConnectionId) -> usize {
        id.0.wrapping_sub(self.first_qpn) as usize
    }

    fn entry(&self, id: ConnectionId) -> Option<&Entry> {
        self.entries.get(self.index(id))
    }

    /// A connection that is established.
    fn established(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let at = self.index(id);
        self.entries.get_mut(at).filter(|entry| entry.state == State::Established)?.connection.as_mut()
    }

    /// The path MTU of a connection.
    #[must_use]
    pub fn mtu(&self, id: ConnectionId) -> usize {
        self.entry(id).map_or(0, |entry| mtu_bytes(entry.request.mtu))
    }

    /// When the peer was heard last over a connection.
    #[must_use]
    pub fn heard(&self, id: ConnectionId) -> Option<Instant> {
        self.entry(id).map(|entry| entry.heard)
    }

    /// Whether the peer has not confirmed the ends of all connections that this end has ended.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.state, State::Disconnecting(_)))
    }

    /// The memory that the peer reads and writes; `None`: the connection is not established.
    pub fn keys(&mut self, id: ConnectionId) -> Option<&mut Keys> {
        self.established(id).map(Connection::keys)
    }

    /// Sends a message; returns whether the connection is established.
    pub fn send(&mut self, id: ConnectionId, message: requester::Message) -> bool {
        let is_sent = self.established(id).map(|connection| connection.send(message)).is_some();
        if is_sent {
            self.set_ready(self.index(id));
        }
        is_sent
    }

    /// Messages that the peer has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, id: ConnectionId) -> u64 {
        self.entry(id).and_then(|entry| entry.connection.as_ref()).map_or(0, Connection::unacknowledged)
    }

    fn set_ready(&mut self, at: usize) {
        if let Some(entry) = self.entries.get_mut(at)
            && !std::mem::replace(&mut entry.is_ready, true)
        {
            self.ready.push_back(at);
        }
    }

    /// Dropped and repeated packets since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes a packet of the peer whose check is right. Returns a message of a connection.
    pub fn receive<'a>(&mut self, bytes: &'a [u8], now: Instant) -> Option<(ConnectionId, Cow<'a, [u8]>)> {
        let Some(packet) = Packet::parse(bytes) else {
            self.counters.strange += 1;
            return None;
        };
        if packet.qpn == MANAGER_QPN {
            match (packet.layout.kind, packet.extension, Message::parse(packet.payload)) {
                (Kind::Datagram, Extension::Datagram(MANAGER_Q_KEY, _), Some(message)) => self.manage(&message, now),
                _ => self.counters.strange += 1,
            }
            return None;
        }
        let id = ConnectionId(packet.qpn);
        let at = self.index(id);
        let entry = self.entries.get_mut(at).filter(|entry| entry.state == State::Established);
        let Some(Entry { connection: Some(connection), heard, .. }) = entry else {
            self.counters.strange += 1;
            return None;
        };
        *heard = now;
        let effect = connection.receive(&packet, now);
        self.counters.repeated += connection.take_repeated();
        if connection.is_ready() {
            self.set_ready(at);
        }
        match effect {
            Effect::None => None,
            Effect::Message(message) => Some((id, message)),
            Effect::Failed(why) => {
                self.end(at, Ended::Failed(why), now);
                None
            }
        }
    }

    /// The connection that has this number here, and that one at the peer.
    fn named(&self, local: u32, remote: u32) -> Option<usize> {
        let is_it = |entry: &Entry| entry.request.id == local && entry.remote.0 == remote;
        self.entries.iter().position(|entry| entry.state != State::Requested && is_it(entry))
    }

    /// The connection that has this number here and whose request is not answered.
    fn requested(&self, local: u32) -> Option<usize> {
        self.entries.iter().position(|entry| entry.state == State::Requested && entry.request.id == local)
    }

    /// Takes a message of the connection manager.
    fn manage(&mut self, message: &Message, now: Instant) {
        let transaction = message.transaction;
        match message.body {
            Body::Reply(reply) => self.reply(transaction, &reply, now),
            Body::Reject(reject) => self.reject(&reject, now),
            Body::Receipt(_, local) => {
                if let Some(at) = self.requested(local) {
                    self.entries[at].deadline = now + RECEIPT_INTERVAL;
                }
            }
            Body::Disconnect(remote, local, _) => {
                // Also for a connection that is not known: it has ended then.
                self.say(transaction, Body::Disconnected(local, remote));
                self.named(local, remote).into_iter().for_each(|at| self.ended_by_peer(at));
            }
            Body::Disconnected(remote, local) => {
                let at = self.named(local, remote);
                if let Some(entry) = at.and_then(|at| self.entries.get_mut(at))
                    && matches!(entry.state, State::Disconnecting(_))
                {
                    entry.state = State::Over;
                }
            }
            // This end serves nothing.
            Body::Request(_) | Body::Ready(..) => {}
        }
    }

    fn ended_by_peer(&mut self, at: usize) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        let was_established = entry.state == State::Established;
        (entry.state, entry.connection) = (State::Over, None);
        if was_established {
            let id = ConnectionId(entry.request.qpn);
            self.events.push_back(Event::Closed(id, Ended::Peer));
        }
    }

    fn reply(&mut self, transaction: u64, reply: &Reply, now: Instant) {
        let (remote, local) = reply.ids;
        if let Some(at) = self.requested(local) {
            let entry = &mut self.entries[at];
            let settings = Settings {
                mtu: mtu_bytes(entry.request.mtu),
                // Each end says where the other one begins.
                first: Psn::new(reply.psn),
                expected: Psn::new(entry.request.psn),
                reads: READS_MAX,
                message_max: entry.message_max,
            };
            (entry.state, entry.remote, entry.heard) = (State::Established, (remote, reply.qpn), now);
            entry.connection = Some(Connection::new(&settings));
            let id = ConnectionId(entry.request.qpn);
            self.events.push_back(Event::Connected(id, Box::new(reply.private)));
        }
        match self.named(local, remote) {
            // The last message was lost, if this is a second reply.
            Some(at) if self.entries[at].state == State::Established => {
                self.say(transaction, Body::Ready(local, remote));
            }
            Some(_) => {}
            // It was given up before the reply came.
            None => {
                let (rejected, reason) = (Rejected::REPLY, Reason::TIMEOUT);
                let private = [0; REJECT_PRIVATE];
                self.say(
                    transaction,
                    Body::Reject(Reject { ids: (local, remote), rejected, reason, mtu: None, private }),
                );
            }
        }
    }

    fn reject(&mut self, reject: &Reject, now: Instant) {
        let (remote, local) = reject.ids;
        let Some(at) = self.requested(local) else {
            self.named(local, remote).into_iter().for_each(|at| self.ended_by_peer(at));
            return;
        };
        let id = self.random();
        let entry = &mut self.entries[at];
        let smaller = reject.mtu.filter(|mtu| (1..entry.request.mtu).contains(mtu));
        if let (Reason::INVALID_MTU, Some(mtu)) = (reject.reason, smaller) {
            // Another request, with another number.
            (entry.request.id, entry.request.mtu, entry.transaction) = (id, mtu, u64::from(id));
            entry.deadline = now + REQUEST_INTERVAL;
            let request = entry.request;
            return self.say(u64::from(id), Body::Request(request));
        }
        entry.state = State::Over;
        let id = ConnectionId(entry.request.qpn);
        self.events.push_back(Event::Rejected(id, reject.reason, Box::new(reject.private)));
    }

    /// Queues a message of the connection manager.
    fn say(&mut self, transaction: u64, body: Body) {
        if self.messages.len() < MESSAGES_MAX {
            self.messages.push_back(Box::new(Message { transaction, body }.bytes()));
        }
    }

    /// Ends a connection. Its end is not reported.
    pub fn disconnect(&mut self, id: ConnectionId, now: Instant) {
        self.end_quietly(self.index(id), now);
    }

    /// Ends all connections. Their ends are not reported.
    pub fn disconnect_all(&mut self, now: Instant) {
        (0..self.entries.len()).for_each(|at| _ = self.end_quietly(at, now));
    }

    fn end(&mut self, at: usize, why: Ended, now: Instant) {
        if self.end_quietly(at, now) {
            let id = ConnectionId(self.entries[at].request.qpn);
            self.events.push_back(Event::Closed(id, why));
        }
    }

    /// Returns whether it was established.
    fn end_quietly(&mut self, at: usize, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(at) else { return false };
        let (local, (remote, qpn)) = (entry.request.id, entry.remote);
        match entry.state {
            State::Established => {}
            State::Requested => {
                // A reply that comes now is rejected.
                entry.state = State::Over;
                return false;
            }
            State::Disconnecting(_) | State::Over => return false,
        }
        (entry.state, entry.deadline) = (State::Disconnecting(1), now + DISCONNECT_INTERVAL);
        // An answer that says why is sent before.
        let last = entry.connection.take().and_then(|mut connection| connection.last_answer());
        let head = last.map(|answer| Head {
            opcode: answer.opcode,
            qpn,
            psn: answer.psn,
            wants_acknowledge: false,
            extension: answer.extension,
        });
        self.last_answers.extend(head.filter(|head| head.opcode == Opcode::ACKNOWLEDGE));
        self.say(u64::from(local), Body::Disconnect(local, remote, qpn));
        true
    }

    /// When [`Client::expire`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let of = |entry: &Entry| match (entry.state, &entry.connection) {
            (State::Established, Some(connection)) => connection.deadline(),
            (State::Requested, _) => Some(entry.deadline.min(entry.end)),
            (State::Disconnecting(_), _) => Some(entry.deadline),
            _ => None,
        };
        self.entries.iter().filter_map(of).min()
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Instant) {
        (0..self.entries.len()).for_each(|at| self.expire_one(at, now));
    }

    fn expire_one(&mut self, at: usize, now: Instant) {
        let entry = &mut self.entries[at];
        let (id, (remote, qpn)) = (entry.request.id, entry.remote);
        match (entry.state, &mut entry.connection) {
            (State::Requested, _) if entry.end <= now => {
                entry.state = State::Over;
                let id = ConnectionId(entry.request.qpn);
                self.events.push_back(Event::Unanswered(id));
            }
            (State::Requested, _) if entry.deadline <= now => {
                entry.deadline = now + REQUEST_INTERVAL;
                let (transaction, request) = (entry.transaction, entry.request);
                self.say(transaction, Body::Request(request));
            }
            (State::Disconnecting(DISCONNECTS..), _) if entry.deadline <= now => entry.state = State::Over,
            (State::Disconnecting(count), _) if entry.deadline <= now => {
                (entry.state, entry.deadline) = (State::Disconnecting(count + 1), now + DISCONNECT_INTERVAL);
                self.say(u64::from(id), Body::Disconnect(id, remote, qpn));
            }
            (State::Established, Some(connection)) if connection.deadline().is_some_and(|at| at <= now) => {
                let failed = connection.expire(now);
                self.set_ready(at);
                if let Some(why) = failed {
                    self.end(at, Ended::Failed(why), now);
                }
            }
            _ => {}
        }
    }

    /// The next packet to send. Connections take turns.
    pub fn poll_send(&mut self, now: Instant) -> Option<Outgoing> {
        let peer = self.peer;
        if let Some(head) = self.last_answers.pop_front() {
            return Some(Outgoing { peer, head, payload: Payload::Memory(Sg::default()), attempt: Attempt::Only });
        }
        if let Some(message) = self.messages.pop_front() {
            let psn = self.manager_psn;
            self.manager_psn = psn.plus(1);
            let extension = Extension::Datagram(MANAGER_Q_KEY, MANAGER_QPN);
            let head = Head { opcode: Opcode::DATAGRAM, qpn: MANAGER_QPN, psn, wants_acknowledge: false, extension };
            return Some(Outgoing { peer, head, payload: Payload::Message(message), attempt: Attempt::Only });
        }
        while let Some(at) = self.ready.pop_front() {
            let Some(entry) = self.entries.get_mut(at) else { continue };
            entry.is_ready = false;
            let Some(connection) = &mut entry.connection else { continue };
            let Some(packet) = connection.poll(now) else { continue };
            if connection.is_ready() {
                entry.is_ready = true;
                self.ready.push_back(at);
            }
            let requester::Outgoing { opcode, psn, wants_acknowledge, extension, payload, attempt } = packet;
            let head = Head { opcode, qpn: entry.remote.1, psn, wants_acknowledge, extension };
            return Some(Outgoing { peer, head, payload: Payload::Memory(payload), attempt });
        }
        None
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
