//! The way of an initiator to its target: Ethernet frames, UDP datagrams, or such datagrams in frames.

use lunar_core::io::Completion;
use lunar_link::{Frame, Header, Link};
use lunar_rdma::ethernet::network::Network;
use lunar_rdma::ethernet::station::Station;
use lunar_reactor::Reactor;
use lunar_reactor::endpoint::{Address, Datagram, Endpoint, ReceiveBatch, SendBatch};
use lunar_reactor::op::Handle;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// The largest datagram, and datagrams that one receive takes.
const DATAGRAM_MAX: usize = 2000;
const DATAGRAMS: usize = 16;

/// The way of an initiator to its target.
pub enum Carrier {
    /// Frames.
    Frames(Rc<Link>),
    /// Datagrams.
    Datagrams(Rc<Socket>),
    /// Datagrams in frames.
    Framed(Rc<FramedSocket>),
}

/// The datagrams of an address on a link, and the address of the target.
pub struct FramedSocket {
    core: Reactor,
    link: Rc<Link>,
    station: RefCell<Station>,
    target: IpAddr,
}

impl FramedSocket {
    /// An address on a link.
    #[must_use]
    pub fn attach(core: &Reactor, link: Rc<Link>, network: Network, target: IpAddr) -> Rc<Self> {
        let station = RefCell::new(Station::new(link.mac(), network, core.now()));
        let socket = Rc::new(Self { core: core.clone(), link, station, target });
        let timer = socket.clone();
        core.spawn(async move {
            loop {
                timer.station.borrow_mut().expire(timer.core.now());
                timer.flush();
                timer.core.sleep(Duration::from_millis(50)).await;
            }
        });
        socket
    }

    fn flush(&self) {
        loop {
            let next = self.station.borrow_mut().poll();
            let Some(frame) = next else { return };
            let data = self.core.arena().copy(&frame.to_vec()).expect("the arena is large");
            self.link.send(data.into());
        }
    }

    fn send(&self, bytes: &[u8]) {
        let data = self.core.arena().copy(bytes).expect("the arena is large");
        self.station.borrow_mut().send(self.target, data.into(), self.core.now());
        self.flush();
    }

    fn take(&self, frame: &Frame, each: &mut impl FnMut(&[u8])) {
        let received = self.station.borrow_mut().receive(&frame.header, &frame.payload, self.core.now());
        received.into_iter().for_each(|datagram| each(datagram.payload));
        self.flush();
    }
}

/// A UDP socket, and the address of the target.
pub struct Socket {
    core: Reactor,
    handle: Handle,
    target: SocketAddr,
    queue: RefCell<VecDeque<Vec<u8>>>,
    sender: Cell<Option<Waker>>,
}

impl Socket {
    /// Attaches a socket.
    ///
    /// # Panics
    /// When the core does not take it.
    #[must_use]
    pub fn attach(core: &Reactor, endpoint: Endpoint, target: SocketAddr) -> Rc<Self> {
        let handle = core.attach(endpoint).expect("the core runs");
        let socket = Self { core: core.clone(), handle, target, queue: RefCell::default(), sender: Cell::default() };
        let socket = Rc::new(socket);
        let sender = socket.clone();
        core.spawn(async move { sender.send_queued().await });
        socket
    }

    async fn send_queued(&self) {
        let mut completion = Completion::new();
        loop {
            let next = poll_fn(|cx| {
                self.sender.set(Some(cx.waker().clone()));
                self.queue.borrow_mut().pop_front().map_or(Poll::Pending, Poll::Ready)
            });
            let bytes = next.await;
            let data = self.core.arena().copy(&bytes).expect("the arena is large");
            let mut batch = SendBatch::new();
            batch.push(Datagram { data: data.into(), peer: Address::Ip(self.target), ..Datagram::default() });
            // Without a receiver it is lost.
            let _ = self.core.send_batch(&self.handle, batch, &mut completion).await;
        }
    }

    async fn receive(&self, mut each: impl FnMut(&[u8])) {
        let (mut batch, mut completion) = (ReceiveBatch::new(DATAGRAM_MAX, DATAGRAMS), Completion::new());
        loop {
            let (result, back) = self.core.receive_batch(&self.handle, batch, &mut completion).await;
            if result.is_err() {
                return;
            }
            batch = back;
            batch.drain().for_each(|datagram| each(&datagram.data.to_vec()));
        }
    }
}

impl Carrier {
    /// Sends a frame or a datagram.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn send(&self, core: &Reactor, bytes: Vec<u8>) {
        match self {
            Self::Frames(link) => {
                link.send(core.arena().copy(&bytes).expect("the arena is large").into());
            }
            Self::Datagrams(socket) => {
                socket.queue.borrow_mut().push_back(bytes);
                socket.sender.take().into_iter().for_each(Waker::wake);
            }
            Self::Framed(socket) => socket.send(&bytes),
        }
    }

    /// Takes frames or datagrams until the end of the simulation; calls `then` after each turn.
    pub async fn receive(&self, mut each: impl FnMut(Option<&Header>, &[u8]), mut then: impl FnMut()) {
        match self {
            Self::Frames(link) => {
                // The end of the link is the end of the simulation.
                let _ = link.receive(|frame: Frame| each(Some(&frame.header), &frame.payload), then).await;
            }
            Self::Framed(socket) => {
                // As above.
                let taken = |frame: Frame| socket.take(&frame, &mut |bytes| each(None, bytes));
                let _ = socket.link.receive(taken, then).await;
            }
            Self::Datagrams(socket) => {
                socket
                    .receive(|bytes| {
                        each(None, bytes);
                        then();
                    })
                    .await;
            }
        }
    }
}
