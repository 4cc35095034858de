//! An engine on its links: frames of an Ethernet, and UDP. The only module with I/O.

use crate::engine::Engine;
use crate::event::{Event, Id, Outgoing, Payload, Refused, VcId};
use crate::memory::{Chunk, Chunks};
use crate::path::{Path, Peer};
use crate::wire::{ETHER_TYPE, HEADER_LEN};
use lunar_core::io::Completion;
use lunar_core::mem::{Arena, Buf};
use lunar_core::time::Instant;
use lunar_link::{Frame, HEADER_LEN as FRAME_HEADER, Header, Link, LinkConfig, OpenedLink};
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::datagram::{DatagramSocket, UdpConfig};
use lunar_reactor::endpoint::{Address, Datagram, Endpoint, ReceiveBatch, SendBatch};
use lunar_reactor::op::Handle;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The most bytes of a run of datagrams that one system call sends (UDP over IPv4).
const RUN_MAX: usize = 65_507;
/// The most datagrams of a run: the limit of the kernel (UDP_MAX_SEGMENTS) before Linux 6.
const RUN_PACKETS_MAX: usize = 61;
/// Packets or runs of a link that wait to be sent: the engine keeps the others until there is room again.
const QUEUE_MAX: usize = 128;
/// The pause before it is tried again.
const CONGESTION: Duration = Duration::from_micros(100);
/// A link that had no room for this time is stalled: no frame of 9 KiB takes as long at 10 Mbit/s. Packets for it are
/// lost until it has room again, so that the other links go on and the engine takes the path down.
const STALL: Duration = Duration::from_millis(20);
/// Runs of datagrams that one receive takes, each with room for 64 KiB.
const RUNS: usize = 16;
/// The shortest frame, without its check sequence.
const FRAME_MIN: usize = 60;
/// The largest packet on a network of unknown MTU: an Ethernet, with the headers of IPv6 and UDP.
const UNKNOWN_MTU: usize = 1500 - 48;
/// A block of memory that packets share: a run, or frames.
const BLOCK: usize = 64 << 10;

/// A link of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkSpec {
    /// UDP at this local address.
    Udp(SocketAddr),
    /// Frames.
    Frames(Box<LinkConfig>),
}

/// Why a text names no link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpecError {
    /// Behind `udp:` there is no address with a port.
    Udp(String),
    /// The name of a link of frames is wrong.
    Link(lunar_link::address::AddressError),
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(text) => write!(f, "'{text}' is not an address with a port, as in udp:192.0.2.1:18181"),
            Self::Link(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for SpecError {}

impl std::str::FromStr for LinkSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if let Some(address) = text.strip_prefix("udp:") {
            return address.parse().map(Self::Udp).map_err(|_| SpecError::Udp(address.to_owned()));
        }
        let address = text.parse().map_err(SpecError::Link)?;
        let (types, filters) = (vec![ETHER_TYPE], Vec::new());
        Ok(Self::Frames(Box::new(LinkConfig { address, types, filters, vlan: None, mac: None, mtu: None })))
    }
}

/// A link that is open, on its way to its core.
#[derive(Debug)]
pub enum OpenedPort {
    /// Datagrams.
    Datagrams(Endpoint),
    /// Frames.
    Frames(OpenedLink),
}

impl LinkSpec {
    /// Opens the link, on any thread.
    ///
    /// # Errors
    /// Errors of [`OpenedLink::open`] and [`DatagramSocket::udp`].
    pub fn open(&self) -> io::Result<OpenedPort> {
        match self {
            Self::Udp(address) => {
                let config = UdpConfig { coalesces: true, ..UdpConfig::new(*address) };
                DatagramSocket::udp(&config).map(|socket| OpenedPort::Datagrams(Endpoint::Datagram(socket)))
            }
            Self::Frames(config) => OpenedLink::open(config).map(OpenedPort::Frames),
        }
    }
}

/// A UDP socket on a core.
struct Socket {
    handle: Handle,
    local: Address,
    mtu: usize,
    queue: RefCell<VecDeque<Datagram>>,
    sender: Cell<Option<Waker>>,
}

enum Carrier {
    Frames(Rc<Link>),
    Datagrams(Rc<Socket>),
}

impl Carrier {
    /// Packets or runs that wait to be sent.
    fn queued(&self) -> usize {
        match self {
            Self::Frames(link) => link.queued(),
            Self::Datagrams(socket) => socket.queue.borrow().len(),
        }
    }
}

/// Whether a link has been full for too long.
fn is_stalled(full: &Cell<Option<Instant>>, now: Instant) -> bool {
    full.get().is_some_and(|since| now.since(since) >= STALL)
}

/// Takes the events of a port.
pub type OnEvent = Box<dyn Fn(&Rc<Port>, Event)>;

/// An engine on its links.
pub struct Port {
    reactor: Reactor,
    engine: RefCell<Engine>,
    bytes: RefCell<Chunks>,
    carriers: Vec<Carrier>,
    /// When the links that have no room were seen without room for the first time.
    full: Vec<Cell<Option<Instant>>>,
    block: RefCell<Option<Buf>>,
    has_work: Cell<bool>,
    driver: Cell<Option<Waker>>,
    closed: End,
    /// A link has failed.
    failed: End,
    on_event: OnEvent,
}

impl Port {
    /// Attaches links to a core; their numbers are their places in the list. `secret` are random bits.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn attach(
        reactor: &Reactor,
        links: Vec<OpenedPort>,
        secret: [u64; 2],
        on_event: OnEvent,
    ) -> io::Result<Rc<Self>> {
        let attach = |opened: OpenedPort| match opened {
            OpenedPort::Frames(opened) => Link::attach(reactor, opened).map(Carrier::Frames),
            OpenedPort::Datagrams(endpoint) => {
                let handle = reactor.attach(endpoint)?;
                let status = reactor.driver().status(&handle)?;
                let is_anywhere = matches!(&status.local, Address::Ip(address) if address.ip().is_unspecified());
                let mtu = if is_anywhere { UNKNOWN_MTU } else { status.mtu };
                let (queue, sender) = (RefCell::default(), Cell::default());
                Ok(Carrier::Datagrams(Rc::new(Socket { handle, local: status.local, mtu, queue, sender })))
            }
        };
        let port = Rc::new(Self {
            reactor: reactor.clone(),
            engine: RefCell::new(Engine::new(secret)),
            bytes: RefCell::default(),
            full: links.iter().map(|_| Cell::default()).collect(),
            carriers: links.into_iter().map(attach).collect::<io::Result<_>>()?,
            block: RefCell::default(),
            has_work: Cell::new(false),
            driver: Cell::default(),
            closed: End::default(),
            failed: End::default(),
            on_event,
        });
        (0..port.carriers.len()).for_each(|number| port.start(number));
        let driven = port.clone();
        reactor.spawn(async move { driven.drive().await });
        Ok(port)
    }

    fn start(self: &Rc<Self>, number: usize) {
        // There are at most 256 links: one for each path of a connection is enough.
        let (port, link) = (self.clone(), number as u8);
        match &self.carriers[number] {
            Carrier::Frames(frames) => {
                let frames = frames.clone();
                self.reactor.spawn(async move {
                    let each = |frame: Frame| {
                        let peer = Peer::Station(frame.header.source);
                        port.arrived(Path { link, peer }, &frame.payload);
                    };
                    // The peers notice that nothing comes any more; the program asks whether a link has failed.
                    if frames.receive(each, || port.report()).await.is_err() {
                        port.failed.come();
                    }
                });
            }
            Carrier::Datagrams(socket) => {
                let (receiver, sender, sending) = (socket.clone(), socket.clone(), self.clone());
                self.reactor.spawn(async move { port.receive(link, &receiver).await });
                self.reactor.spawn(async move { sending.send_queued(&sender).await });
            }
        }
    }

    async fn receive(self: Rc<Self>, link: u8, socket: &Socket) {
        let (mut batch, mut completion) = (ReceiveBatch::new(BLOCK, RUNS), Completion::new());
        while !self.closed.has_come() {
            let receiving = self.reactor.receive_batch(&socket.handle, batch, &mut completion);
            let Some((result, back)) = self.closed.unless(receiving).await else { return };
            batch = back;
            if result.is_err() {
                return self.failed.come();
            }
            for datagram in batch.drain() {
                let (Address::Ip(peer), Some(bytes)) = (datagram.peer, datagram.data.pieces().first()) else {
                    continue;
                };
                let segment = match datagram.segment {
                    0 => bytes.len().max(1),
                    segment => segment.into(),
                };
                let path = Path { link, peer: Peer::Ip(peer) };
                bytes.chunks(segment).for_each(|packet| self.arrived(path, packet));
            }
            self.report();
        }
    }

    async fn send_queued(&self, socket: &Socket) {
        let (mut batch, mut completion) = (SendBatch::new(), Completion::new());
        let is_queued = || {
            poll_fn(|cx| {
                if !socket.queue.borrow().is_empty() {
                    return Poll::Ready(());
                }
                socket.sender.set(Some(cx.waker().clone()));
                Poll::Pending
            })
        };
        while self.closed.unless(is_queued()).await.is_some() {
            socket.queue.borrow_mut().drain(..).for_each(|datagram| batch.push(datagram));
            let (result, back) = self.reactor.send_batch(&socket.handle, batch, &mut completion).await;
            // Datagrams that could not be sent are lost, as on the network.
            batch = if result.is_ok() { back } else { SendBatch::new() };
        }
    }

    fn arrived(&self, path: Path, bytes: &[u8]) {
        let now = self.reactor.now();
        self.engine.borrow_mut().handle(path, bytes, &mut *self.bytes.borrow_mut(), now);
    }

    /// Reports what has happened, and sends what there is to send.
    fn report(self: &Rc<Self>) {
        loop {
            let event = self.engine.borrow_mut().poll_event();
            let Some(event) = event else { break };
            (self.on_event)(self, event);
        }
        self.wake();
    }

    /// There may be something to send, or a timer may be earlier.
    fn wake(&self) {
        self.has_work.set(true);
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Sends packets and looks at timers, until the port is closed.
    async fn drive(self: Rc<Self>) {
        let arena = self.reactor.arena().clone();
        while !self.closed.has_come() {
            self.has_work.set(false);
            let is_congested = !self.send(&arena);
            let deadline = self.engine.borrow().deadline();
            let now = self.reactor.now();
            let at = if is_congested { Some(now + CONGESTION) } else { deadline };
            self.until_work(at, is_congested).await;
            let now = self.reactor.now();
            if self.engine.borrow().deadline().is_some_and(|deadline| deadline <= now) {
                self.engine.borrow_mut().expire(now);
                self.report();
            }
        }
    }

    /// Waits for work, but not longer than until this time.
    async fn until_work(&self, at: Option<Instant>, is_congested: bool) {
        let mut sleep = pin!(async {
            match at {
                Some(at) => self.reactor.sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        let wait = poll_fn(|cx| {
            // Packets that come while a link is congested do not make room on it.
            if self.has_work.get() && !is_congested {
                return Poll::Ready(());
            }
            self.driver.set(Some(cx.waker().clone()));
            sleep.as_mut().poll(cx)
        });
        self.closed.unless(wait).await;
    }

    /// Whether all links have room or are stalled.
    fn has_room(&self, now: Instant) -> bool {
        let mut all = self.carriers.iter().zip(&self.full);
        all.all(|(carrier, full)| {
            let is_full = carrier.queued() >= QUEUE_MAX;
            full.set(is_full.then(|| full.get().unwrap_or(now)));
            !is_full || is_stalled(full, now)
        })
    }

    /// Sends packets, as long as there is room; returns whether all were sent.
    fn send(&self, arena: &Arena) -> bool {
        let mut run = Run::default();
        let now = self.reactor.now();
        let is_all = loop {
            if !self.has_room(now) || !self.has_block(arena) {
                break false;
            }
            let next = self.engine.borrow_mut().poll_send(now);
            let Some(outgoing) = next else { break true };
            let link = usize::from(outgoing.path.link);
            match self.carriers.get(link) {
                Some(_) if is_stalled(&self.full[link], now) => {}
                Some(Carrier::Frames(link)) => {
                    // A run and a frame begin at the same place of the block.
                    self.flush(&mut run);
                    self.send_frame(link, &outgoing);
                }
                Some(Carrier::Datagrams(_)) => self.add(&mut run, &outgoing),
                None => {}
            }
        };
        self.flush(&mut run);
        is_all
    }

    /// Takes memory for the end of a run and for another one, if less is left.
    fn has_block(&self, arena: &Arena) -> bool {
        let mut block = self.block.borrow_mut();
        if block.as_ref().is_none_or(|block| block.len() < 2 * RUN_MAX) {
            *block = arena.take(8 * BLOCK);
        }
        block.is_some()
    }

    /// Writes a packet, and returns its length.
    fn write(&self, outgoing: &Outgoing, at: usize) -> usize {
        let (mut bytes, mut block) = (self.bytes.borrow_mut(), self.block.borrow_mut());
        let Some(block) = &mut *block else { return 0 };
        let behind = at + HEADER_LEN;
        let len = match &outgoing.payload {
            Payload::None => 0,
            Payload::Word(word) => {
                block.write(behind, word);
                word.len()
            }
            // The engine sends only bytes of sequences that have not ended, whatever a peer asks for again. A program
            // takes their memory after their end: see `take_bytes`.
            Payload::Memory(place, len) => {
                let to = &mut block[behind..behind + len];
                let is_whole = bytes.at(*place).is_some_and(|(chunk, at)| chunk.copy_to(at, to));
                assert!(is_whole, "memory of a live sequence");
                *len
            }
        };
        let header = match outgoing.is_checked {
            true => outgoing.packet.checked([&block[behind..behind + len]]),
            false => outgoing.packet.bytes(),
        };
        block.write(at, &header);
        HEADER_LEN + len
    }

    /// The first bytes of the block, which were written.
    fn cut(&self, len: usize) -> Option<Buf> {
        let mut block = self.block.borrow_mut();
        let room = block.as_ref()?.len();
        // Each begins on a cache line.
        let mut front = block.as_mut()?.split_to(len.next_multiple_of(64).min(room));
        front.truncate(len);
        Some(front)
    }

    fn send_frame(&self, link: &Link, outgoing: &Outgoing) {
        let Peer::Station(destination) = outgoing.path.peer else { return };
        let header = Header { destination, source: link.mac(), ether_type: ETHER_TYPE };
        let len = FRAME_HEADER + self.write(outgoing, FRAME_HEADER);
        if let Some(block) = &mut *self.block.borrow_mut() {
            block.write(0, &header.bytes());
            block.fill_part(len, FRAME_MIN.saturating_sub(len), 0);
        }
        if let Some(frame) = self.cut(len.max(FRAME_MIN)) {
            link.send(frame.share().into());
        }
    }

    /// Adds a packet to a run, or begins another one.
    fn add(&self, run: &mut Run, outgoing: &Outgoing) {
        let len = HEADER_LEN + usize::from(outgoing.packet.len);
        if run.path != Some(outgoing.path) || !run.takes(len) {
            self.flush(run);
            *run = Run { path: Some(outgoing.path), segment: len, ..Run::default() };
        }
        self.write(outgoing, run.len);
        run.len += len;
        run.packets += 1;
        run.last = len;
    }

    fn flush(&self, run: &mut Run) {
        let Run { path: Some(path), len, segment, packets, .. } = std::mem::take(run) else { return };
        let Some(Carrier::Datagrams(socket)) = self.carriers.get(usize::from(path.link)) else { return };
        let (Peer::Ip(peer), Some(data)) = (path.peer, self.cut(len)) else { return };
        // A packet has at most 2^15 bytes and a header.
        let segment = if packets > 1 { segment as u16 } else { 0 };
        let datagram = Datagram { data: data.share().into(), peer: Address::Ip(peer), segment, ..Datagram::default() };
        socket.queue.borrow_mut().push_back(datagram);
        if let Some(sender) = socket.sender.take() {
            sender.wake();
        }
    }

    /// The largest packet of a link.
    #[must_use]
    pub fn mtu(&self, link: usize) -> usize {
        match self.carriers.get(link) {
            Some(Carrier::Frames(link)) => link.mtu(),
            Some(Carrier::Datagrams(socket)) => socket.mtu,
            None => 0,
        }
    }

    /// The address at which a link receives datagrams.
    #[must_use]
    pub fn local(&self, link: usize) -> Option<SocketAddr> {
        match self.carriers.get(link)? {
            Carrier::Datagrams(socket) => match socket.local {
                Address::Ip(address) => Some(address),
                _ => None,
            },
            Carrier::Frames(_) => None,
        }
    }

    /// Uses the engine, and sends what there is to send then.
    pub fn with<T>(&self, act: impl FnOnce(&mut Engine, Instant) -> T) -> T {
        let result = act(&mut self.engine.borrow_mut(), self.reactor.now());
        self.wake();
        result
    }

    /// Starts a sequence with its memory.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn start_with(
        &self,
        vc: VcId,
        memory: impl Into<Chunk>,
        act: impl FnOnce(&mut Engine, Instant) -> Result<Id, Refused>,
    ) -> Result<Id, Refused> {
        let id = self.with(act)?;
        self.give(vc, id, memory);
        Ok(id)
    }

    /// Gives memory to a sequence, before the engine uses it.
    pub fn give(&self, vc: VcId, id: Id, memory: impl Into<Chunk>) {
        self.bytes.borrow_mut().0.insert((vc, id), memory.into());
    }

    /// Takes the memory of a sequence that has ended: an event has said so, or the program has ended it. Packets of a
    /// sequence that has not ended need its memory, and the process ends with a panic if a program has taken it.
    pub fn take(&self, vc: VcId, id: Id) -> Option<Chunk> {
        self.bytes.borrow_mut().0.remove(&(vc, id))
    }

    /// Takes the bytes of a sequence that has ended, as [`Port::take`] does.
    pub fn take_bytes(&self, vc: VcId, id: Id) -> Vec<u8> {
        match self.take(vc, id) {
            Some(Chunk::Bytes(bytes)) => bytes,
            _ => Vec::new(),
        }
    }

    /// Uses the bytes of a region.
    pub fn with_bytes<T>(&self, vc: VcId, id: Id, act: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        match self.bytes.borrow_mut().0.get_mut(&(vc, id)) {
            Some(Chunk::Bytes(bytes)) => Some(act(bytes)),
            _ => None,
        }
    }

    /// Frees the memory of a connection that has ended.
    pub fn forget(&self, vc: VcId) {
        self.bytes.borrow_mut().0.retain(|(of, _), _| *of != vc);
    }

    /// Waits until a link has failed: nothing comes from it any more.
    pub async fn failure(&self) {
        self.failed.unless(std::future::pending::<()>()).await;
    }

    /// Waits until all packets that there are now have been handed to the links, or for this time.
    pub async fn flushed(&self, patience: Duration) {
        let end = self.reactor.now() + patience;
        let is_queued = || {
            self.carriers.iter().any(|carrier| match carrier {
                Carrier::Frames(link) => link.queued() > 0,
                Carrier::Datagrams(socket) => !socket.queue.borrow().is_empty(),
            })
        };
        loop {
            self.reactor.sleep(CONGESTION * 10).await;
            if !(is_queued() || self.engine.borrow().connections() > 0) || self.reactor.now() >= end {
                return;
            }
        }
    }

    /// Closes all links.
    pub fn close(&self) {
        self.engine.borrow_mut().abandon();
        self.closed.come();
        self.wake();
        for carrier in &self.carriers {
            match carrier {
                Carrier::Frames(link) => link.close(),
                Carrier::Datagrams(socket) => self.reactor.driver().cancel(&socket.handle),
            }
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} links)", self.carriers.len())
    }
}

/// Packets of one path and length, of which the last one may be shorter.
#[derive(Clone, Copy, Default)]
struct Run {
    path: Option<Path>,
    segment: usize,
    len: usize,
    packets: usize,
    last: usize,
}

impl Run {
    fn takes(&self, len: usize) -> bool {
        self.packets < RUN_PACKETS_MAX && self.last == self.segment && len <= self.segment && self.len + len <= RUN_MAX
    }
}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
