//! The connections of a port on a device.

use super::queue::{Depth, Queue};
use crate::admission::{Admission, Arrival, forgotten, gives_way};
use crate::connection::Why;
use crate::events::{Accept, ConnectionId, Ended, Event, NotAccepted};
use crate::limits::{
    ACCEPT_TIME, DEVICE_END, DEVICE_INBOX_BYTES, DEVICE_PIECES_MAX, DEVICE_READS_MAX, DEVICE_REQUESTS, DEVICE_STALL,
    IDLE,
};
use crate::mad::REQUEST_PRIVATE;
use crate::provider::Provider;
use crate::requester::Message;
use crate::responder::Receives;
use crate::wire::Remote;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::shares::{PeerShares, Share};
use lunar_core::time::Instant;
use lunar_reactor::log;
use lunar_verbs::library::device::{CompletionChannel, Device};
use lunar_verbs::library::manager::{Event as ManagerEvent, Identifier, Key, Request};
use lunar_verbs::library::pair::{Completed, Pair, Received, Sizes, Work};
use lunar_verbs::library::status::Status;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The protocol above has not answered.
    Requested,
    /// It was accepted.
    Accepted,
    /// The peer is ready.
    Established,
    /// It was disconnected here, and the peer has not confirmed that.
    Over,
}

struct Entry {
    peer: IpAddr,
    state: State,
    arrival: Arrival,
    id: Rc<Identifier>,
    /// RDMA READs at the same time.
    reads: u8,
    pair: Option<Pair>,
    queue: Queue,
    /// Its place among the connections that were accepted, and its memory for messages.
    shares: Option<[Share; 2]>,
    /// When it got its state.
    since: Instant,
    /// When work was completed last, or when there was none.
    progress: Instant,
    is_armed: bool,
    /// There may be work to post.
    is_ready: bool,
    /// A message could not be queued: it ends.
    has_failed: bool,
}

/// A message or an event for the protocol above: their order is kept.
#[derive(Debug)]
pub enum Item {
    /// A message, whose memory goes back with [`Connections::recycle`].
    Message(ConnectionId, Received),
    /// An event.
    Event(Event),
}

/// Messages and data since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Messages that have arrived, and READs.
    pub receives: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Messages and writes.
    pub sends: u64,
    /// Their bytes.
    pub sent_bytes: u64,
}

/// The connections of a port.
pub struct Connections {
    device: Rc<Device>,
    channel: Rc<CompletionChannel>,
    entries: BTreeMap<ConnectionId, Entry>,
    by_key: HashMap<Key, ConnectionId>,
    /// Connections that have a pair, and some that have none any more, if pairs have ended.
    live: Vec<ConnectionId>,
    have_ended: bool,
    next: u32,
    items: VecDeque<Item>,
    admission: Admission,
    /// The memory for messages.
    inboxes: PeerShares,
    /// A connection was not accepted, and operators were told so since the last tick.
    has_reported: bool,
    traffic: Traffic,
    /// Lists that are used again.
    completed: Vec<Completed>,
    work: Vec<Work>,
}

impl Connections {
    /// None yet. `seed` are random bits.
    #[must_use]
    pub fn new(device: &Rc<Device>, channel: &Rc<CompletionChannel>, seed: u64) -> Self {
        Self {
            device: device.clone(),
            channel: channel.clone(),
            entries: BTreeMap::new(),
            by_key: HashMap::new(),
            live: Vec::new(),
            have_ended: false,
            // The protocols above may still know connections of a port that has failed.
            next: seed as u32,
            items: VecDeque::new(),
            admission: Admission::default(),
            inboxes: PeerShares::new(DEVICE_INBOX_BYTES),
            has_reported: false,
            traffic: Traffic::default(),
            completed: Vec::new(),
            work: Vec::new(),
        }
    }

    fn depth(&self) -> Depth {
        let limits = self.device.limits();
        Depth {
            requests: DEVICE_REQUESTS.min(limits.requests).max(1),
            pieces: DEVICE_PIECES_MAX.min(limits.pieces).max(1),
            read_pieces: DEVICE_PIECES_MAX.min(limits.pieces).min(limits.read_pieces).max(1),
        }
    }

    /// The next message or event.
    pub fn poll_item(&mut self) -> Option<Item> {
        self.items.pop_front()
    }

    /// Whether there is a message or an event.
    #[must_use]
    pub fn has_items(&self) -> bool {
        !self.items.is_empty()
    }

    /// Gives the memory of a message back.
    pub fn recycle(&mut self, id: ConnectionId, received: Received) {
        if let Some(pair) = self.entries.get_mut(&id).and_then(|entry| entry.pair.as_mut()) {
            // If that fails, so does everything else of the connection.
            let _ = pair.recycle(received);
        }
    }

    fn tell(&mut self, event: Event) {
        self.items.push_back(Item::Event(event));
    }

    /// Takes an event of the connection manager; returns whether the device is still there.
    pub fn manage(&mut self, event: ManagerEvent, now: Instant) -> bool {
        match event {
            ManagerEvent::Request(request) => self.request(request, now),
            ManagerEvent::Established(key) => {
                if let Some(id) = self.by_key.get(&key).copied() {
                    self.established(id, now);
                }
            }
            ManagerEvent::Disconnected(key) | ManagerEvent::AddressChanged(key) => self.ended(key, Ended::Peer, now),
            ManagerEvent::Failed(key, _) => self.ended(key, Ended::Late, now),
            ManagerEvent::Removed => return false,
            ManagerEvent::Other(_) => {}
        }
        true
    }

    fn request(&mut self, request: Request, now: Instant) {
        let Request { id: identifier, peer, private: data, reads } = request;
        self.make_room(peer, now);
        let mut private = [0; REQUEST_PRIVATE];
        let len = data.len().min(REQUEST_PRIVATE);
        private[..len].copy_from_slice(&data[..len]);
        let id = self.number();
        self.by_key.insert(identifier.key(), id);
        let entry = Entry {
            peer,
            state: State::Requested,
            arrival: self.admission.arrive(),
            id: Rc::new(identifier),
            reads: reads.min(self.device.limits().reads).min(DEVICE_READS_MAX),
            pair: None,
            queue: Queue::new(self.depth()),
            shares: None,
            since: now,
            progress: now,
            is_armed: false,
            is_ready: false,
            has_failed: false,
        };
        self.entries.insert(id, entry);
        self.tell(Event::Request { id, peer, private });
    }

    /// Makes room for another request of a peer.
    fn make_room(&mut self, peer: IpAddr, now: Instant) {
        let ended = self.entries.iter().filter(|(_, entry)| entry.state == State::Over);
        let forgotten = forgotten(ended.map(|(id, entry)| (entry.since, *id)));
        forgotten.into_iter().for_each(|(_, id)| self.remove(id));
        let is_half_open =
            |(_, entry): &(&ConnectionId, &Entry)| matches!(entry.state, State::Requested | State::Accepted);
        let half_open = self.entries.iter().filter(is_half_open).map(|(id, entry)| ((entry.arrival, *id), entry.peer));
        if let Some((_, id)) = gives_way(peer, half_open) {
            self.end(id, Ended::Late, now);
        }
    }

    fn number(&mut self) -> ConnectionId {
        loop {
            self.next = self.next.wrapping_add(1);
            let id = ConnectionId(self.next);
            if !self.entries.contains_key(&id) {
                return id;
            }
        }
    }

    fn established(&mut self, id: ConnectionId, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.state == State::Accepted
        {
            (entry.state, entry.since, entry.progress) = (State::Established, now, now);
        }
    }

    /// A connection has ended by itself, or its end is confirmed.
    fn ended(&mut self, key: Key, why: Ended, now: Instant) {
        let Some(id) = self.by_key.get(&key).copied() else { return };
        let is_over = self.entries.get(&id).is_some_and(|entry| entry.state == State::Over);
        if !is_over {
            self.end(id, why, now);
        }
        self.remove(id);
    }

    fn remove(&mut self, id: ConnectionId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.by_key.remove(&entry.id.key());
            self.have_ended |= entry.pair.is_some();
        }
    }

    /// Ends a connection and reports it.
    fn end(&mut self, id: ConnectionId, why: Ended, now: Instant) {
        if self.end_quietly(id, now) {
            self.tell(Event::Closed(id, why));
        }
    }

    /// Returns whether there was one.
    fn end_quietly(&mut self, id: ConnectionId, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        match entry.state {
            State::Over => return false,
            // The kernel rejects a request that is dropped.
            State::Requested => {
                self.remove(id);
                return true;
            }
            State::Accepted | State::Established => {}
        }
        entry.id.disconnect();
        // The device does not use memory of the connection any more then.
        entry.pair = None;
        self.have_ended = true;
        entry.queue = Queue::new(Depth { requests: 0, pieces: 0, read_pieces: 0 });
        (entry.state, entry.since, entry.shares) = (State::Over, now, None);
        true
    }

    /// Ends all connections, without a report.
    pub fn end_all(&mut self, now: Instant) {
        let all: Vec<ConnectionId> = self.entries.keys().copied().collect();
        all.into_iter().for_each(|id| _ = self.end_quietly(id, now));
        (self.entries, self.by_key) = (BTreeMap::new(), HashMap::new());
        (self.live, self.have_ended) = (Vec::new(), false);
        self.items.clear();
    }

    fn sizes(&self, receives: Receives) -> Sizes {
        let depth = self.depth();
        Sizes { receives: receives.count, bytes: receives.bytes, sends: depth.requests, pieces: depth.pieces }
    }

    /// Makes the pair of a request, and accepts it.
    fn establish(&mut self, id: ConnectionId, accept: &Accept<'_>, now: Instant) -> io::Result<()> {
        let sizes = self.sizes(accept.receives);
        let Some(entry) = self.entries.get_mut(&id) else { return Err(io::ErrorKind::NotConnected.into()) };
        let none = |what: &str| io::Error::other(format!("its host has as many {what} as it leaves for other hosts"));
        let place = self.admission.take(entry.peer).ok_or_else(|| none("connections"))?;
        let inbox = self.inboxes.join(entry.peer).take(sizes.memory()).ok_or_else(|| none("bytes for messages"))?;
        let mut pair = Pair::new(&entry.id, &self.device, &self.channel, id.0, sizes)?;
        pair.accept(accept.private, accept.first().count, entry.reads)?;
        (entry.pair, entry.state, entry.since) = (Some(pair), State::Accepted, now);
        entry.shares = Some([place, inbox]);
        self.live.push(id);
        Ok(())
    }

    /// Uses a connection that is established; `None`: it has ended.
    fn with<T>(&mut self, id: ConnectionId, act: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        let entry = self.entries.get_mut(&id)?;
        // The device sends to a peer that is ready earlier than its message that says so.
        if entry.state != State::Established {
            return None;
        }
        entry.is_ready = true;
        Some(act(&mut entry.queue))
    }

    /// Posts what there is room for.
    pub fn pump(&mut self, now: Instant) {
        let mut failed = Vec::new();
        for (id, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.is_ready) {
            entry.is_ready = false;
            let Some(pair) = &mut entry.pair else { continue };
            if pair.posted() == 0 {
                entry.progress = now;
            }
            entry.queue.take(&mut self.work);
            let no_memory = || Err(io::ErrorKind::OutOfMemory.into());
            let posted = if entry.has_failed { no_memory() } else { pair.post(&mut self.work) };
            if let Err(why) = posted {
                self.work.clear();
                failed.push((*id, why));
            }
        }
        for (id, why) in failed {
            log!(warning, "a connection over an RDMA device has failed: {why}");
            self.end(id, Ended::Here, now);
        }
    }

    /// A completion queue has reported: it is armed no longer.
    pub fn disarm(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(&ConnectionId(number)) {
            entry.is_armed = false;
        }
    }

    /// Takes completions; returns whether there were any.
    pub fn poll(&mut self, now: Instant) -> bool {
        if std::mem::take(&mut self.have_ended) {
            let entries = &self.entries;
            self.live.retain(|id| entries.get(id).is_some_and(|entry| entry.pair.is_some()));
        }
        let mut completed = std::mem::take(&mut self.completed);
        let mut has_some = false;
        for at in 0..self.live.len() {
            let id = self.live[at];
            while let Some(pair) = self.entries.get_mut(&id).and_then(|entry| entry.pair.as_mut())
                && pair.poll(&mut completed)
            {
                has_some = true;
                completed.drain(..).for_each(|completed| self.completed_one(id, completed, now));
            }
        }
        self.completed = completed;
        has_some
    }

    fn completed_one(&mut self, id: ConnectionId, completed: Completed, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.pair.is_some()) else { return };
        entry.progress = now;
        match completed {
            Completed::Received(received) => {
                // The first message is as good as the event, which may come later.
                if entry.state == State::Accepted {
                    (entry.state, entry.since) = (State::Established, now);
                }
                self.traffic.receives += 1;
                self.traffic.received_bytes += received.len() as u64;
                self.items.push_back(Item::Message(id, received));
            }
            Completed::Done(work) => {
                let (sent, read) = work.bytes();
                self.traffic.receives += u64::from(read > 0);
                self.traffic.received_bytes += read as u64;
                self.traffic.sends += u64::from(sent > 0);
                self.traffic.sent_bytes += sent as u64;
                let effect = entry.queue.done(work);
                entry.is_ready |= !entry.queue.is_idle();
                let has_posted = match &mut entry.pair {
                    Some(pair) => pair.post_receives(effect.posts),
                    None => Ok(()),
                };
                self.items.extend(effect.read.map(|read| Item::Event(Event::Read(id, read))));
                let is_told = matches!(self.items.back(), Some(Item::Event(Event::Progress(last))) if *last == id);
                if !is_told {
                    self.tell(Event::Progress(id));
                }
                if has_posted.is_err() {
                    self.end(id, Ended::Here, now);
                }
            }
            Completed::Failed(Status::LENGTH) => self.end(id, Ended::Failed(Why::Broken), now),
            Completed::Failed(Status::FLUSHED) => self.end(id, Ended::Peer, now),
            Completed::Failed(status) => self.end(id, Ended::Failed(Why::Device(status)), now),
        }
    }

    /// The traffic since the last call.
    pub fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }

    /// Lets the device report the next completion of each connection.
    pub fn arm(&mut self, now: Instant) {
        let mut failed = Vec::new();
        for (id, entry) in self.entries.iter_mut().filter(|(_, entry)| !entry.is_armed) {
            let Some(pair) = &entry.pair else { continue };
            entry.is_armed = true;
            if pair.arm().is_err() {
                failed.push(*id);
            }
        }
        failed.into_iter().for_each(|id| self.end(id, Ended::Here, now));
    }

    /// Whether there are connections, which [`Connections::tick`] looks at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Ends connections that make no progress, and asks silent peers whether they are there.
    pub fn tick(&mut self, now: Instant) {
        self.has_reported = false;
        let ids: Vec<ConnectionId> = self.entries.keys().copied().collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let has_lasted = |time| entry.since + time <= now;
            match entry.state {
                State::Requested if has_lasted(ACCEPT_TIME) => self.end(id, Ended::Late, now),
                State::Accepted if has_lasted(ACCEPT_TIME) => self.end(id, Ended::Late, now),
                State::Over if has_lasted(DEVICE_END) => self.remove(id),
                State::Established if !entry.queue.is_idle() && entry.progress + DEVICE_STALL <= now => {
                    self.end(id, Ended::Failed(Why::Device(Status::NOT_READY)), now);
                }
                State::Established if entry.queue.is_idle() && entry.progress + IDLE <= now => {
                    // The peer acknowledges a write of nothing, whatever its key is.
                    entry.progress = now;
                    entry.is_ready = true;
                    entry.queue.write(Remote::default(), Sg::default());
                }
                _ => {}
            }
        }
    }
}

impl Provider for Connections {
    fn accept(&mut self, id: ConnectionId, accept: &Accept<'_>, now: Instant) -> Result<(), NotAccepted> {
        let requested = self.entries.get(&id).filter(|entry| entry.state == State::Requested);
        let peer = requested.ok_or(NotAccepted::Gone)?.peer;
        self.establish(id, accept, now).map_err(|why| {
            if !std::mem::replace(&mut self.has_reported, true) {
                log!(warning, "a connection of {peer} over an RDMA device cannot be accepted: {why}");
            }
            NotAccepted::NoRoom
        })
    }

    fn reject(&mut self, id: ConnectionId, private: &[u8]) {
        let Some(entry) = self.entries.get(&id).filter(|entry| entry.state == State::Requested) else { return };
        entry.id.reject(private);
        self.remove(id);
    }

    fn send(&mut self, id: ConnectionId, mut message: Message) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        if entry.queue.has_too_many_pieces(&message.data) {
            // Messages are short: the data of commands is written and read.
            let Some(mut copy) = self.device.arena().take_reserved(message.data.len()) else {
                // A message must not be lost: the peer connects again.
                (entry.is_ready, entry.has_failed) = (true, true);
                return false;
            };
            message.data.copy_to(0, &mut copy);
            message.data = copy.share().into();
        }
        self.with(id, |queue| queue.send(message)).is_some()
    }

    fn write(&mut self, id: ConnectionId, to: Remote, data: Sg) -> bool {
        self.with(id, |queue| queue.write(to, data)).is_some()
    }

    fn read(&mut self, id: ConnectionId, from: Remote, into: SgMut, token: u64) -> bool {
        self.with(id, |queue| queue.read(from, into, token)).is_some()
    }

    fn post(&mut self, id: ConnectionId, count: usize) {
        if let Some(pair) = self.entries.get_mut(&id).and_then(|entry| entry.pair.as_mut()) {
            // If that fails, so does everything else of the connection.
            let _ = pair.post_receives(count);
        }
    }

    fn reads(&self, id: ConnectionId) -> u8 {
        self.entries.get(&id).map_or(0, |entry| entry.reads)
    }

    /// The device has its own limit, which is that of the request.
    fn limit_reads(&mut self, id: ConnectionId, most: u8) {
        self.with(id, |queue| queue.limit_reads(most.into()));
    }

    fn left(&self, id: ConnectionId, receives: Receives) -> usize {
        let Some(peer) = self.entries.get(&id).map(|entry| entry.peer) else { return 0 };
        let memory = self.sizes(receives).memory();
        self.admission.left(peer).min(self.inboxes.newcomers(peer, memory))
    }

    fn queued(&self, id: ConnectionId) -> usize {
        self.entries.get(&id).map_or(0, |entry| entry.queue.queued())
    }

    fn counts(&self, id: ConnectionId) -> Option<(u64, u64)> {
        self.entries.get(&id).filter(|entry| entry.pair.is_some()).map(|entry| entry.queue.counts())
    }

    fn disconnect(&mut self, id: ConnectionId, now: Instant) {
        self.end_quietly(id, now);
    }

    fn fail(&mut self, id: ConnectionId, now: Instant) {
        self.end(id, Ended::Here, now);
    }
}
