//! The data that a target reads and writes over a connection, for commands that run at the same time.

use crate::engine::ConnectionId;
use crate::limits::BURST_MAX;
use crate::port::Port;
use crate::pulls::Pulls;
use crate::requester::{Completed, Message};
use crate::wire::Remote;
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::shares::{Member, Share};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The transfers of a connection.
pub struct Transfers {
    id: ConnectionId,
    port: Rc<Port>,
    /// Bytes that are queued before reads of the peer wait for room.
    room: usize,
    /// Counts what waits to be sent as memory of the peer.
    share: RefCell<Share>,
    /// Reads of the peer that wait for room.
    waiting: RefCell<Vec<Waker>>,
    /// Tasks that wait until something is acknowledged.
    settling: RefCell<Vec<Waker>>,
    pulls: RefCell<Pulls>,
    is_closed: Cell<bool>,
}

/// A request for data; dropping it abandons the data.
pub struct Request<'a> {
    transfers: &'a Transfers,
    number: u64,
}

impl Transfers {
    /// The transfers of a connection. `outgoing` is the share of the peer of the memory that waits to be sent, and
    /// `room` are the bytes of it before its reads wait.
    #[must_use]
    pub fn new(id: ConnectionId, port: &Rc<Port>, outgoing: &Member, room: usize) -> Self {
        Self {
            id,
            port: port.clone(),
            room,
            share: RefCell::new(outgoing.empty_share()),
            waiting: RefCell::default(),
            settling: RefCell::default(),
            pulls: RefCell::default(),
            is_closed: Cell::default(),
        }
    }

    /// Sends a message.
    pub fn send(&self, message: Message) {
        self.port.with(|engine, _| engine.send(self.id, message));
        self.count();
    }

    /// So many more messages may come.
    pub fn post(&self, count: usize) {
        self.port.with(|engine, _| engine.post(self.id, count));
    }

    /// Writes into memory of the peer; returns whether there is a connection.
    pub fn write(&self, to: Remote, data: Sg) -> bool {
        let is_queued = self.port.with(|engine, _| engine.write(self.id, to, data));
        self.count();
        is_queued
    }

    /// Ends the connection, and reports its end as any other.
    pub fn fail(&self) {
        self.port.with(|engine, now| engine.fail(self.id, now));
    }

    /// Requests data from these parts of the memory of the peer; `None`: there is no connection, or the parts have less
    /// than there is memory for.
    pub fn request(
        &self,
        parts: impl Iterator<Item = (Remote, usize)>,
        mut memory: SgMut,
        share: Share,
    ) -> Option<Request<'_>> {
        let number = self.pulls.borrow_mut().begin(share);
        let request = Request { transfers: self, number };
        for (from, len) in parts {
            let part = memory.split_to(len.min(memory.len()));
            let token = self.pulls.borrow_mut().add(number);
            if !self.port.with(|engine, _| engine.read(self.id, from, part, token)) {
                return None;
            }
        }
        memory.is_empty().then_some(request)
    }

    /// Requests the data of a command in bursts, and waits for it. `owed` gets the share of memory of the last burst:
    /// the command has the memory until its store has taken the data. `memory` returns memory for so many bytes at
    /// most, and `parts` the parts of the memory of the peer, by place and length.
    ///
    /// # Errors
    /// [`Fault::Aborted`]: the command was aborted, or the connection has ended; those of `memory`.
    pub async fn pull<P: Iterator<Item = (Remote, usize)>>(
        &self,
        len: usize,
        owed: &RefCell<Option<Share>>,
        memory: impl AsyncFn(usize) -> Result<(SgMut, Share), Fault>,
        parts: impl Fn(usize, usize) -> P,
        is_aborted: impl Fn() -> bool,
    ) -> Result<Sg, Fault> {
        let mut data = Sg::default();
        while data.len() < len {
            if is_aborted() {
                return Err(Fault::Aborted);
            }
            // A command that waits for memory gives its share back first: two such commands would otherwise wait for
            // each other for ever.
            owed.take();
            let (into, share) = memory((len - data.len()).min(BURST_MAX)).await?;
            let parts = parts(data.len(), into.len());
            let requested = self.request(parts, into, share).ok_or(Fault::Aborted)?;
            // Not even an abort ends this: when it is answered, the peer uses its memory for something else, and its
            // key becomes invalid.
            let (burst, share) = requested.data().await?;
            if is_aborted() {
                return Err(Fault::Aborted);
            }
            owed.replace(share);
            burst.into_pieces().for_each(|piece| data.push(piece));
        }
        Ok(data)
    }

    /// A READ is complete.
    pub fn read(&self, completed: Completed) {
        self.pulls.borrow_mut().arrived(completed);
    }

    /// Waits until all data that was requested so far has arrived, also that of commands that have ended meanwhile, or
    /// the connection has ended.
    pub async fn until_read(&self) {
        let last = self.pulls.borrow().last();
        poll_fn(|cx| self.pulls.borrow_mut().poll_arrived(last, cx)).await;
    }

    /// Counts what waits to be sent.
    fn count(&self) {
        self.share.borrow_mut().follow(self.queued());
    }

    fn queued(&self) -> usize {
        self.port.look(|engine| engine.queued(self.id))
    }

    /// Whether reads of the peer have to wait for room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.is_closed.get() && self.queued() >= self.room
    }

    /// Waits for room.
    pub async fn room(&self) {
        poll_fn(|cx| match self.is_full() {
            true => {
                self.waiting.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            false => Poll::Ready(()),
        })
        .await;
    }

    /// Waits until the peer has acknowledged what is queued now.
    pub async fn settled(&self) {
        let counts = || self.port.look(|engine| engine.counts(self.id));
        let Some((queued, _)) = counts() else { return };
        poll_fn(|cx| {
            if self.is_closed.get() || counts().is_none_or(|(_, acknowledged)| acknowledged >= queued) {
                return Poll::Ready(());
            }
            self.settling.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Some of what was queued has arrived.
    pub fn progress(&self) {
        self.count();
        self.settling.borrow_mut().drain(..).for_each(Waker::wake);
        if !self.is_full() {
            self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }

    /// The connection has ended.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.share.borrow_mut().follow(0);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        self.settling.borrow_mut().drain(..).for_each(Waker::wake);
        self.pulls.borrow_mut().close();
    }
}

impl fmt::Debug for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfers({}, {} requests)", self.id.0, self.pulls.borrow().len())
    }
}

impl Request<'_> {
    /// Waits for the data; returns it with the share that counts its memory.
    ///
    /// # Errors
    /// [`Fault::Aborted`]: the connection has ended.
    pub async fn data(self) -> Result<(Sg, Option<Share>), Fault> {
        poll_fn(|cx| self.transfers.pulls.borrow_mut().poll(self.number, cx)).await
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({})", self.number)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.transfers.pulls.borrow_mut().abandon(self.number);
    }
}
