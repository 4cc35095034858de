//! The carrier of the datagrams of an engine: a UDP socket, or frames of a link.

use crate::ethernet::network::Network;
use crate::ethernet::station::{self as ethernet, FRAME_MIN, Payload, Station};
use crate::icrc::{self, Checker};
use crate::limits::BURST;
use crate::runs::{Planned, Runs};
use crate::socket::OpenedCarrier;
use crate::wire::{DATAGRAM_MAX, PORT};
use lunar_core::io::Completion;
use lunar_core::mem::Chunks;
use lunar_core::time::Instant;
use lunar_link::{Frame, Link, MacAddress, OpenedLink, Wrapped};
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::{Address, Datagram, Endpoint, ReceiveBatch, SendBatch};
use lunar_reactor::op::Handle;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Datagrams that wait to be sent: the engine keeps the others until there is room again.
const QUEUE_MAX: usize = 64;
/// Bytes of frames that wait to be sent: as many as those datagrams.
const QUEUE_BYTES: usize = QUEUE_MAX * DATAGRAM_MAX;
/// Datagrams that one receive takes.
const DATAGRAMS: usize = 64;

/// The carrier of the datagrams of an address.
pub(crate) struct Carrier {
    reactor: Reactor,
    local: SocketAddr,
    /// The largest datagram.
    mtu: usize,
    kind: Kind,
    /// The task that sends, or that waits for room.
    sender: Cell<Option<Waker>>,
    /// It was closed: nothing arrives and leaves any more.
    pub(crate) closed: End,
}

enum Kind {
    Socket(Socket),
    Frames(Box<Frames>),
}

struct Socket {
    handle: Handle,
    checker: RefCell<Checker>,
    /// Datagrams that wait to be sent. The task that sends swaps it with an empty one.
    queue: RefCell<Box<SendBatch>>,
    runs: RefCell<Runs>,
}

struct Frames {
    link: Rc<Link>,
    station: RefCell<Station>,
    /// Memory for messages to neighbours.
    chunks: Chunks,
    /// There was no room in the queue of the link.
    is_full: Cell<bool>,
}

impl Carrier {
    /// Attaches the carrier of an address to a core.
    pub(crate) fn attach(reactor: &Reactor, address: IpAddr, opened: OpenedCarrier) -> io::Result<Self> {
        let (local, mtu, kind) = match opened {
            OpenedCarrier::Socket(endpoint) => Self::attach_socket(reactor, endpoint)?,
            OpenedCarrier::Link(link, network, mac) => Self::attach_link(reactor, address, (link, network, mac))?,
            // A device needs no carrier.
            OpenedCarrier::Device(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let (sender, closed) = (Cell::default(), End::default());
        Ok(Self { reactor: reactor.clone(), local, mtu, kind, sender, closed })
    }

    fn attach_socket(reactor: &Reactor, endpoint: Endpoint) -> io::Result<(SocketAddr, usize, Kind)> {
        let handle = reactor.attach(endpoint)?;
        let status = reactor.driver().status(&handle)?;
        let Address::Ip(local) = status.local else { return Err(io::ErrorKind::Unsupported.into()) };
        let (checker, queue, runs) = (RefCell::default(), RefCell::new(SendBatch::new()), RefCell::default());
        Ok((local, status.mtu, Kind::Socket(Socket { handle, checker, queue, runs })))
    }

    fn attach_link(
        reactor: &Reactor,
        address: IpAddr,
        (opened, network, mac): (OpenedLink, Network, Option<MacAddress>),
    ) -> io::Result<(SocketAddr, usize, Kind)> {
        let link = Link::attach(reactor, opened)?;
        let station = Station::new(mac.unwrap_or_else(|| link.mac()), network, reactor.now());
        let mtu = link.mtu().saturating_sub(ethernet::overhead(address));
        let (station, chunks, is_full) = (RefCell::new(station), Chunks::default(), Cell::default());
        let frames = Frames { link, station, chunks, is_full };
        Ok((SocketAddr::new(address, PORT), mtu, Kind::Frames(Box::new(frames))))
    }

    /// The address at which it receives.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// The largest datagram.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// How many datagrams may be sent now: few wait.
    pub(crate) fn room(&self) -> usize {
        match &self.kind {
            Kind::Socket(socket) => QUEUE_MAX.saturating_sub(socket.queue.borrow().len()),
            Kind::Frames(frames) if frames.link.is_below(QUEUE_BYTES) => BURST,
            Kind::Frames(frames) => {
                frames.is_full.set(true);
                self.sender.take().into_iter().for_each(Waker::wake);
                0
            }
        }
    }

    /// The place of the next packet in its run.
    pub(crate) fn place(&self, next: &Planned) -> u16 {
        match &self.kind {
            Kind::Socket(socket) => socket.runs.borrow_mut().place(next),
            // A frame has one packet.
            Kind::Frames(_) => 0,
        }
    }

    /// Sends a datagram, at this place of its run, to a peer.
    pub(crate) fn send(&self, peer: IpAddr, (data, place): (Wrapped, u16)) {
        match &self.kind {
            Kind::Socket(socket) => {
                let peer = Address::Ip(SocketAddr::new(peer, PORT));
                socket.queue.borrow_mut().push(Datagram { peer, joins: place > 0, ..data.into() });
                self.sender.take().into_iter().for_each(Waker::wake);
            }
            Kind::Frames(frames) => {
                frames.station.borrow_mut().send(peer, data, self.reactor.now());
                self.flush(frames);
            }
        }
    }

    /// Sends the frames of the station.
    fn flush(&self, frames: &Frames) {
        loop {
            let next = frames.station.borrow_mut().poll();
            let Some(ethernet::Frame { head, payload }) = next else { return };
            let copy = |parts: &[&[u8]]| frames.chunks.copy(self.reactor.arena(), parts);
            let frame = match payload {
                Payload::Message(message) => copy(&[&head, &message]).map(Wrapped::from),
                Payload::Datagram(mut datagram) => {
                    datagram.edges.prepend(&head);
                    // The headers of a packet without payload are two bytes too short for a frame.
                    let padding = FRAME_MIN.saturating_sub(datagram.len());
                    datagram.edges.append(&[0; FRAME_MIN][..padding]);
                    Some(datagram)
                }
            };
            // Without memory, or without room in the queue, it is lost, as on the network.
            frame.into_iter().for_each(|frame| _ = frames.link.send_wrapped(frame));
        }
    }

    /// Bytes behind the header of the largest frame, with a tag that is not taken off.
    fn frame_max(&self) -> usize {
        const TAG: usize = 4;
        TAG + ethernet::overhead(self.local.ip()) + DATAGRAM_MAX
    }

    /// Passes the packets of datagrams whose check is right to `each`, with their senders, until the carrier is closed;
    /// `after` is called after each batch.
    ///
    /// # Errors
    /// Nothing can be received any more.
    pub(crate) async fn receive(&self, mut each: impl FnMut(IpAddr, &[u8]), after: impl Fn()) -> Result<(), Failed> {
        match &self.kind {
            Kind::Socket(socket) => self.receive_datagrams(socket, each, after).await,
            Kind::Frames(frames) => {
                let taken = |frame: Frame| {
                    let now = self.reactor.now();
                    let received = frames.station.borrow_mut().receive(&frame.header, &frame.payload, now);
                    if let Some(datagram) = received {
                        let ends = (datagram.peer, self.local);
                        match icrc::check_whole(ends, datagram.fragmentation, datagram.payload) {
                            Some(packet) => each(datagram.peer.ip(), packet),
                            None => self.reactor.stats().rdma_damaged.add(1),
                        }
                    }
                    self.flush(frames);
                };
                frames.link.receive_transient(self.frame_max(), taken, after).await.map_err(|_| Failed)
            }
        }
    }

    async fn receive_datagrams(
        &self,
        socket: &Socket,
        mut each: impl FnMut(IpAddr, &[u8]),
        after: impl Fn(),
    ) -> Result<(), Failed> {
        let most = self.mtu.clamp(1, DATAGRAM_MAX);
        let (mut batch, mut completion) = (ReceiveBatch::transient(most, DATAGRAMS), Completion::new());
        while !self.closed.has_come() {
            let receiving = self.reactor.receive_batch(&socket.handle, batch, &mut completion);
            let Some((result, back)) = self.closed.unless(receiving).await else { break };
            batch = back;
            if result.is_err() {
                return Err(Failed);
            }
            for datagram in batch.drain() {
                let (Address::Ip(peer), Some(bytes)) = (&datagram.peer, datagram.data.pieces().first()) else {
                    continue;
                };
                match socket.checker.borrow_mut().check(*peer, self.local, bytes) {
                    Some(packet) => each(peer.ip(), packet),
                    None => self.reactor.stats().rdma_damaged.add(1),
                }
            }
            after();
        }
        Ok(())
    }

    /// Sends datagrams as the kernel takes them, until the carrier is closed; `wake` is called when there is room.
    pub(crate) async fn send_queued(&self, wake: impl Fn()) {
        match &self.kind {
            Kind::Socket(socket) => self.send_datagrams(socket, wake).await,
            Kind::Frames(frames) => {
                let is_full = || self.until(|| frames.is_full.take());
                while self.closed.unless(is_full()).await.is_some() {
                    frames.link.until_below(QUEUE_BYTES).await;
                    wake();
                }
            }
        }
    }

    async fn send_datagrams(&self, socket: &Socket, wake: impl Fn()) {
        let (mut batch, mut completion) = (SendBatch::new(), Completion::new());
        let is_queued = || self.until(|| !socket.queue.borrow().is_empty());
        while self.closed.unless(is_queued()).await.is_some() {
            std::mem::swap(&mut *socket.queue.borrow_mut(), &mut batch);
            socket.runs.borrow_mut().end();
            // There is room for others while these are being sent.
            wake();
            let (result, back) = self.reactor.send_batch(&socket.handle, batch, &mut completion).await;
            // Datagrams that could not be sent are lost, as on the network.
            batch = if result.is_ok() { back } else { SendBatch::new() };
            if batch.take_refusal() {
                socket.runs.borrow_mut().turn_off();
            }
        }
    }

    /// Waits until the task that sends has been woken and has work.
    async fn until(&self, has_work: impl Fn() -> bool) {
        poll_fn(|cx| {
            if has_work() {
                return Poll::Ready(());
            }
            self.sender.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// When [`Carrier::expire`] is to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.kind {
            Kind::Socket(_) => None,
            Kind::Frames(frames) => frames.station.borrow().deadline(),
        }
    }

    /// Does what is due.
    pub(crate) fn expire(&self, now: Instant) {
        if let Kind::Frames(frames) = &self.kind {
            frames.station.borrow_mut().expire(now);
            self.flush(frames);
        }
    }

    /// The station that has the address as well.
    pub(crate) fn conflict(&self) -> Option<MacAddress> {
        match &self.kind {
            Kind::Socket(_) => None,
            Kind::Frames(frames) => frames.station.borrow().conflict(),
        }
    }

    /// Counts what was dropped since the last call.
    pub(crate) fn count(&self) {
        let Kind::Frames(frames) = &self.kind else { return };
        let (counters, stats) = (frames.station.borrow_mut().take_counters(), self.reactor.stats());
        stats.rdma_strange.add(counters.strange);
        stats.rdma_damaged.add(counters.damaged);
        stats.rdma_fragments.add(counters.fragments);
        stats.rdma_unreachable.add(counters.unreachable);
        stats.rdma_unanswered.add(counters.unanswered);
    }

    /// Closes it.
    pub(crate) fn close(&self) {
        self.closed.come();
        match &self.kind {
            Kind::Socket(socket) => self.reactor.driver().cancel(&socket.handle),
            Kind::Frames(frames) => frames.link.close(),
        }
    }
}

/// Nothing can be received any more, for instance because an interface was removed.
pub(crate) struct Failed;
