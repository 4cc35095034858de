//! An engine on its UDP socket: the only module with I/O.
//!
//! The check of a packet covers the header of IPv4, too. A socket that is not connected and does not fragment sends the
//! identification 0, so the check can be computed here. One address is enough for peers whose RDMA device is software
//! or an adapter: both send to the port 4791 of the address.

use crate::engine::{ConnectionId, Engine, Event, Outgoing, Payload};
use crate::icrc::{self, Checker};
use crate::live;
use crate::wire::{HEADERS_MAX, PORT, TRAILER_MAX, padding};
use lunar_core::io::Completion;
use lunar_core::mem::{Chunks, Sg, Slice};
use lunar_core::metadata::MetadataStore;
use lunar_core::time::Instant;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::datagram::{DatagramSocket, UdpConfig};
use lunar_reactor::endpoint::{Address, Datagram, Endpoint, ReceiveBatch, SendBatch};
use lunar_reactor::op::Handle;
use lunar_reactor::{Reactor, log};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Datagrams that wait to be sent: the engine keeps the others until there is room again.
const QUEUE_MAX: usize = 64;
/// Datagrams that one receive takes.
const DATAGRAMS: usize = 64;
/// The largest datagram: a path MTU of 4096 bytes, with its headers.
const DATAGRAM_MAX: usize = 4096 + HEADERS_MAX + TRAILER_MAX;
/// The pause before memory for headers is asked for again.
const SHORTAGE: Duration = Duration::from_millis(1);

/// Opens the socket of an address, on any thread.
///
/// # Errors
/// Those of [`DatagramSocket::udp`].
pub fn open(address: IpAddr) -> io::Result<Endpoint> {
    let config = UdpConfig { without_checksum: true, ..UdpConfig::new(SocketAddr::new(address, PORT)) };
    DatagramSocket::udp(&config).map(Endpoint::Datagram)
}

/// Why there is no socket for an address.
#[derive(Debug)]
pub struct NoSocket {
    /// The address.
    pub address: IpAddr,
    /// The error of the operating system.
    pub why: io::Error,
}

impl fmt::Display for NoSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, why } = self;
        write!(f, "UDP port {PORT} of {address} cannot be used for RDMA: {why}")?;
        match why.kind() {
            io::ErrorKind::AddrInUse => f.write_str(
                " (another port of this program has the address, or an RDMA device of the kernel, as of rdma_rxe, uses \
                 it on all addresses: give each port an address of its own, and remove the device)",
            ),
            io::ErrorKind::AddrNotAvailable => f.write_str(" (give this machine the address first)"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for NoSocket {}

/// The protocol above a port.
pub trait Upper {
    /// A message of a connection has arrived.
    fn message(&self, id: ConnectionId, bytes: &[u8]);

    /// Something has happened.
    fn event(&self, event: Event);

    /// The socket has failed: nothing arrives any more.
    fn failed(&self);
}

/// An engine on its socket.
pub struct Port {
    reactor: Reactor,
    handle: Handle,
    local: SocketAddr,
    engine: RefCell<Engine>,
    checker: RefCell<Checker>,
    queue: RefCell<VecDeque<Datagram>>,
    sender: Cell<Option<Waker>>,
    /// Memory for the headers of packets, and for messages of the connection manager.
    chunks: Chunks,
    has_work: Cell<bool>,
    driver: Cell<Option<Waker>>,
    /// The task that keeps the record of live connections.
    recorder: Cell<Option<Waker>>,
    closed: End,
    upper: Weak<dyn Upper>,
}

impl Port {
    /// Attaches a socket to a core. `seed` are random bits. `record` keeps the live connections of the address: those
    /// that a process before has left are disconnected.
    ///
    /// # Errors
    /// Those of the driver; the address is no address of this machine.
    pub fn attach(
        reactor: &Reactor,
        opened: Endpoint,
        seed: u64,
        record: Arc<dyn MetadataStore>,
        upper: Weak<dyn Upper>,
    ) -> io::Result<Rc<Self>> {
        let handle = reactor.attach(opened)?;
        let status = reactor.driver().status(&handle)?;
        let Address::Ip(local) = status.local else { return Err(io::ErrorKind::Unsupported.into()) };
        let port = Rc::new(Self {
            reactor: reactor.clone(),
            handle,
            local,
            engine: RefCell::new(Engine::new(status.mtu, seed)),
            checker: RefCell::default(),
            queue: RefCell::default(),
            sender: Cell::default(),
            chunks: Chunks::default(),
            has_work: Cell::new(false),
            driver: Cell::default(),
            recorder: Cell::default(),
            closed: End::default(),
            upper,
        });
        let stale = record.load(live::NAME).map(|bytes| live::parse(&bytes)).unwrap_or_default();
        port.engine.borrow_mut().end_stale(&stale, reactor.now());
        let (receiver, sender, driven, recorder) = (port.clone(), port.clone(), port.clone(), port.clone());
        reactor.spawn(async move { receiver.receive().await });
        reactor.spawn(async move { sender.send_queued().await });
        reactor.spawn(async move { driven.drive().await });
        reactor.spawn(async move { recorder.keep_record(&*record).await });
        Ok(port)
    }

    async fn receive(self: Rc<Self>) {
        let (mut batch, mut completion) = (ReceiveBatch::new(DATAGRAM_MAX, DATAGRAMS), Completion::new());
        while !self.closed.has_come() {
            let receiving = self.reactor.receive_batch(&self.handle, batch, &mut completion);
            let Some((result, back)) = self.closed.unless(receiving).await else { return };
            batch = back;
            if result.is_err() {
                if let Some(upper) = self.upper.upgrade().filter(|_| !self.closed.has_come()) {
                    upper.failed();
                }
                return;
            }
            for datagram in batch.drain() {
                if let (Address::Ip(peer), Some(bytes)) = (&datagram.peer, datagram.data.pieces().first()) {
                    self.take(*peer, bytes);
                }
            }
            self.wake();
        }
    }

    fn take(&self, peer: SocketAddr, bytes: &[u8]) {
        let Some(upper) = self.upper.upgrade() else { return };
        let mut checker = self.checker.borrow_mut();
        let Some(packet) = checker.check(peer, self.local, bytes) else {
            self.reactor.stats().rdma_damaged.add(1);
            return;
        };
        let message = self.engine.borrow_mut().receive(peer.ip(), packet, self.reactor.now());
        // A message and an event never come with the same packet, so their order is kept.
        if let Some((id, message)) = message {
            upper.message(id, &message);
        }
        self.report(&*upper);
    }

    fn report(&self, upper: &dyn Upper) {
        loop {
            let event = self.engine.borrow_mut().poll_event();
            let Some(event) = event else { return };
            upper.event(event);
        }
    }

    /// Sends datagrams as the kernel takes them.
    async fn send_queued(&self) {
        let (mut batch, mut completion) = (SendBatch::new(), Completion::new());
        let is_queued = || {
            poll_fn(|cx| {
                if !self.queue.borrow().is_empty() {
                    return Poll::Ready(());
                }
                self.sender.set(Some(cx.waker().clone()));
                Poll::Pending
            })
        };
        while self.closed.unless(is_queued()).await.is_some() {
            self.queue.borrow_mut().drain(..).for_each(|datagram| batch.push(datagram));
            // There is room for others while these are being sent.
            self.wake();
            let (result, back) = self.reactor.send_batch(&self.handle, batch, &mut completion).await;
            // Datagrams that could not be sent are lost, as on the network.
            batch = if result.is_ok() { back } else { SendBatch::new() };
        }
    }

    /// There may be something to send, or a timer may be earlier.
    fn wake(&self) {
        self.has_work.set(true);
        self.driver.take().into_iter().for_each(Waker::wake);
    }

    /// Sends packets and looks at timers, until the port is closed.
    async fn drive(self: Rc<Self>) {
        while !self.closed.has_come() {
            self.has_work.set(false);
            let is_short = !self.send();
            let now = self.reactor.now();
            let at = if is_short { Some(now + SHORTAGE) } else { self.engine.borrow().deadline() };
            self.until_work(at).await;
            let now = self.reactor.now();
            let is_due = self.engine.borrow().deadline().is_some_and(|deadline| deadline <= now);
            if is_due {
                self.engine.borrow_mut().expire(now);
            }
            if let Some(upper) = self.upper.upgrade() {
                self.report(&*upper);
            }
            if self.engine.borrow().has_changed() {
                self.recorder.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Writes the live connections down whenever they have changed.
    async fn keep_record(&self, record: &dyn MetadataStore) {
        let changed = || {
            poll_fn(|cx| {
                if self.engine.borrow_mut().take_changed() {
                    return Poll::Ready(());
                }
                self.recorder.set(Some(cx.waker().clone()));
                Poll::Pending
            })
        };
        let (mut has_failed, mut last) = (false, None);
        while self.closed.unless(changed()).await.is_some() {
            let bytes = live::bytes(&self.engine.borrow().live());
            // Connections that were never established come and go without a login.
            if last.as_ref() == Some(&bytes) {
                continue;
            }
            last = Some(bytes.clone());
            let result = record.save(live::NAME, bytes).await;
            if let Err(why) = result
                && !std::mem::replace(&mut has_failed, true)
            {
                log!(
                    warning,
                    "the live connections of {} cannot be written to the state folder: if Lunar is killed, initiators \
                     notice its end by time-outs ({why:?})",
                    self.local
                );
            }
        }
    }

    /// Waits for work, but not longer than until this time.
    async fn until_work(&self, at: Option<Instant>) {
        let mut sleep = pin!(async {
            match at {
                Some(at) => self.reactor.sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        let wait = poll_fn(|cx| {
            if self.has_work.get() {
                return Poll::Ready(());
            }
            self.driver.set(Some(cx.waker().clone()));
            sleep.as_mut().poll(cx)
        });
        self.closed.unless(wait).await;
    }

    /// Sends packets, as long as there is room; returns whether there was memory for them.
    fn send(&self) -> bool {
        let now = self.reactor.now();
        while self.queue.borrow().len() < QUEUE_MAX {
            if !self.chunks.has_room(self.reactor.arena(), HEADERS_MAX + TRAILER_MAX + crate::mad::LEN) {
                return false;
            }
            let next = self.engine.borrow_mut().poll_send(now);
            let Some(outgoing) = next else { break };
            self.queue_packet(outgoing);
        }
        let counters = self.engine.borrow_mut().take_counters();
        self.reactor.stats().rdma_repeated.add(counters.repeated);
        self.reactor.stats().rdma_strange.add(counters.strange);
        true
    }

    fn chunk(&self, parts: &[&[u8]]) -> Option<Slice> {
        self.chunks.copy(self.reactor.arena(), parts)
    }

    fn queue_packet(&self, outgoing: Outgoing) {
        let Outgoing { peer, head, payload } = outgoing;
        let to = SocketAddr::new(peer, PORT);
        let pad = [0; 3];
        let data = match payload {
            Payload::Message(message) => {
                let head = head.bytes(message.len());
                let check = icrc::of_parts(self.local, to, &head, std::iter::once(&message[..])).to_le_bytes();
                self.chunk(&[&head, &message[..], &check]).map(Sg::from)
            }
            Payload::Memory(payload) => {
                let (head, pad) = (head.bytes(payload.len()), &pad[..padding(payload.len())]);
                let parts = payload.pieces().iter().map(|piece| &piece[..]).chain(std::iter::once(pad));
                let check = icrc::of_parts(self.local, to, &head, parts).to_le_bytes();
                self.chunk(&[&head, pad, &check]).map(|mut chunk| {
                    let mut data: Sg = chunk.split_to(head.len()).into();
                    data.append(payload);
                    data.push(chunk);
                    data
                })
            }
        };
        let Some(data) = data else { return };
        let datagram = Datagram { data, peer: Address::Ip(to), ..Datagram::default() };
        self.queue.borrow_mut().push_back(datagram);
        self.sender.take().into_iter().for_each(Waker::wake);
    }

    /// Uses the engine, and sends what there is to send then.
    pub fn with<T>(&self, act: impl FnOnce(&mut Engine, Instant) -> T) -> T {
        let result = act(&mut self.engine.borrow_mut(), self.reactor.now());
        self.wake();
        result
    }

    /// Looks at the engine.
    pub fn look<T>(&self, look: impl FnOnce(&Engine) -> T) -> T {
        look(&self.engine.borrow())
    }

    /// Closes the socket. Queued packets are not sent.
    pub fn close(&self) {
        self.closed.come();
        self.wake();
        self.reactor.driver().cancel(&self.handle);
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_cannot_be_opened_is_explained() {
        let address = [192, 0, 2, 1].into();
        let words = |kind: io::ErrorKind| NoSocket { address, why: kind.into() }.to_string();
        assert!(words(io::ErrorKind::AddrInUse).contains("remove the device"));
        assert!(words(io::ErrorKind::AddrNotAvailable).starts_with("UDP port 4791 of 192.0.2.1"));
    }
}
