//! A channel of an initiator: its credit, and what is read and written over it.

use super::sessions::Session;
use crate::limits::{DESCRIPTORS_MAX, REQUEST_LIMIT, SEND_QUEUE_MAX};
use crate::wire::{Response, credit_request};
use lunar_core::io::Fault;
use lunar_core::mem::{Chunks, Sg, SgMut};
use lunar_core::shares::Share;
use lunar_rdma::engine::ConnectionId;
use lunar_rdma::port::Port;
use lunar_rdma::requester::{Completed, Message};
use lunar_rdma::wire::Remote;
use lunar_reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The bits of a token that number the parts of a request for data: there are fewer parts than descriptors and READs.
const PART_BITS: u32 = 16;

/// Data that was requested.
struct Pull {
    parts: Vec<Option<Sg>>,
    missing: usize,
    /// Counts its memory until all of it has arrived.
    share: Option<Share>,
    waker: Option<Waker>,
    /// Its command waits for it no longer.
    is_abandoned: bool,
}

/// A channel.
pub(super) struct Channel {
    pub(super) id: ConnectionId,
    pub(super) session: Rc<Session>,
    /// Where the data in commands begins, if the initiator may send some.
    pub(super) immediate_offset: Option<u16>,
    reactor: Reactor,
    port: Rc<Port>,
    /// Requests that were not answered.
    outstanding: Cell<u32>,
    /// Requests that have ended without a response: the next response gives their credit back.
    owed: Cell<u32>,
    /// The descriptors of their commands.
    owed_descriptors: RefCell<Option<Share>>,
    /// An SRP_CRED_REQ was sent and not answered.
    is_crediting: Cell<bool>,
    /// Memory for responses.
    chunks: Chunks,
    /// Counts what waits to be sent as memory of the initiator.
    share: RefCell<Share>,
    /// Reads that wait for room.
    waiting: RefCell<Vec<Waker>>,
    /// Tasks that wait until something is acknowledged.
    settling: RefCell<Vec<Waker>>,
    last_pull: Cell<u64>,
    pulls: RefCell<HashMap<u64, Pull>>,
    is_closed: Cell<bool>,
}

/// A request for data; dropping it abandons the data.
pub(super) struct Request<'a> {
    channel: &'a Channel,
    number: u64,
}

impl Channel {
    pub(super) fn new(
        (id, immediate_offset): (ConnectionId, Option<u16>),
        session: &Rc<Session>,
        reactor: &Reactor,
        port: &Rc<Port>,
    ) -> Rc<Self> {
        Rc::new(Self {
            id,
            session: session.clone(),
            immediate_offset,
            reactor: reactor.clone(),
            port: port.clone(),
            outstanding: Cell::default(),
            owed: Cell::default(),
            owed_descriptors: RefCell::default(),
            is_crediting: Cell::default(),
            chunks: Chunks::default(),
            share: RefCell::new(session.memory.outgoing.empty_share()),
            waiting: RefCell::default(),
            settling: RefCell::default(),
            last_pull: Cell::default(),
            pulls: RefCell::default(),
            is_closed: Cell::default(),
        })
    }

    /// Requests that were not answered.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.get() as usize
    }

    /// A request has arrived. It ends with [`Channel::answer`] or [`Channel::release`].
    pub(super) fn arrived(&self) {
        self.outstanding.set(self.outstanding.get() + 1);
    }

    /// The initiator has answered the target: another information unit that needs no credit may come.
    pub(super) fn answered(&self) {
        self.port.with(|engine, _| engine.post(self.id));
        self.is_crediting.set(false);
        self.give_back();
    }

    fn ended(&self, descriptors: Option<Share>) {
        self.outstanding.set(self.outstanding.get() - 1);
        let Some(descriptors) = descriptors else { return };
        match &mut *self.owed_descriptors.borrow_mut() {
            Some(owed) => owed.absorb(descriptors),
            none => *none = Some(descriptors),
        }
    }

    /// Answers a request, and gives its descriptors back.
    pub(super) fn answer(&self, response: Response<'_>, descriptors: Option<Share>) {
        self.ended(descriptors);
        let credit = self.owed.take() + 1;
        self.send(&Response { credit, ..response }.bytes(), credit);
    }

    /// A request ends without a response: it was aborted.
    pub(super) fn release(&self, descriptors: Option<Share>) {
        self.ended(descriptors);
        self.owed.set(self.owed.get() + 1);
        let descriptors = self.owed_descriptors.borrow().as_ref().map_or(0, Share::amount);
        // Without any response the initiator would have no credit in the end, and others would miss the descriptors.
        if self.owed.get() >= REQUEST_LIMIT / 2 || descriptors >= DESCRIPTORS_MAX {
            self.give_back();
        }
    }

    /// Gives the credit and the descriptors of aborted commands back, without waiting for the next response. There is
    /// one SRP_CRED_REQ at a time, as there is memory for few answers: see [`crate::limits::UNCREDITED`].
    pub(super) fn give_back(&self) {
        if self.owed.get() > 0 && !self.is_crediting.replace(true) {
            let credit = self.owed.take();
            self.send(&credit_request(credit), credit);
        }
    }

    /// Sends an information unit that gives credit. The receives of its requests are posted, and their descriptors are
    /// given back, when the initiator has acknowledged it: the units that wait to be sent are bounded in any case.
    fn send(&self, bytes: &[u8], credit: u32) {
        let share = self.owed_descriptors.take();
        match self.chunks.copy(self.reactor.arena(), &[bytes]) {
            Some(data) => {
                let message = Message { data: data.into(), posts: credit as usize, share };
                self.port.with(|engine, _| engine.send(self.id, message));
                self.count();
            }
            // A response must not be lost: the initiator connects again, and repeats what was not answered.
            None => self.port.with(|engine, now| engine.fail(self.id, now)),
        }
    }

    /// Writes into memory of the initiator; returns whether there is a connection.
    pub(super) fn write(&self, to: Remote, data: Sg) -> bool {
        let is_queued = self.port.with(|engine, _| engine.write(self.id, to, data));
        self.count();
        is_queued
    }

    /// Requests data from these parts of the memory of the initiator; `None`: there is no connection, or the parts have
    /// less than there is memory for.
    pub(super) fn request(
        &self,
        parts: impl Iterator<Item = (Remote, usize)>,
        mut memory: SgMut,
        share: Share,
    ) -> Option<Request<'_>> {
        let number = self.last_pull.get() + 1;
        self.last_pull.set(number);
        let pull = Pull { parts: Vec::new(), missing: 0, share: Some(share), waker: None, is_abandoned: false };
        self.pulls.borrow_mut().insert(number, pull);
        let request = Request { channel: self, number };
        for (at, (from, len)) in parts.enumerate() {
            let part = memory.split_to(len.min(memory.len()));
            if let Some(pull) = self.pulls.borrow_mut().get_mut(&number) {
                pull.parts.push(None);
                pull.missing += 1;
            }
            let token = number << PART_BITS | at as u64;
            if !self.port.with(|engine, _| engine.read(self.id, from, part, token)) {
                return None;
            }
        }
        memory.is_empty().then_some(request)
    }

    /// A READ is complete.
    pub(super) fn read(&self, completed: Completed) {
        let (number, part) = (completed.token >> PART_BITS, completed.token & ((1 << PART_BITS) - 1));
        let mut pulls = self.pulls.borrow_mut();
        let Some(pull) = pulls.get_mut(&number) else { return };
        let Some(place) = pull.parts.get_mut(part as usize) else { return };
        *place = Some(completed.data);
        pull.missing -= 1;
        if pull.missing == 0 {
            match pull.is_abandoned {
                true => drop(pulls.remove(&number)),
                false => pull.waker.take().into_iter().for_each(Waker::wake),
            }
        }
    }

    /// Counts what waits to be sent.
    fn count(&self) {
        self.share.borrow_mut().follow(self.queued());
    }

    fn queued(&self) -> usize {
        self.port.look(|engine| engine.queued(self.id))
    }

    /// Whether reads have to wait for room.
    pub(super) fn is_full(&self) -> bool {
        !self.is_closed.get() && self.queued() >= SEND_QUEUE_MAX
    }

    /// Waits for room.
    pub(super) async fn room(&self) {
        poll_fn(|cx| match self.is_full() {
            true => {
                self.waiting.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            false => Poll::Ready(()),
        })
        .await;
    }

    /// Waits until the initiator has acknowledged what is queued now.
    pub(super) async fn settled(&self) {
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
    pub(super) fn progress(&self) {
        self.count();
        self.settling.borrow_mut().drain(..).for_each(Waker::wake);
        if !self.is_full() {
            self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }

    /// The connection has ended.
    pub(super) fn close(&self) {
        self.is_closed.set(true);
        self.share.borrow_mut().follow(0);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        self.settling.borrow_mut().drain(..).for_each(Waker::wake);
        let mut pulls = self.pulls.borrow_mut();
        pulls.retain(|_, pull| !pull.is_abandoned);
        pulls.values_mut().for_each(|pull| pull.waker.take().into_iter().for_each(Waker::wake));
    }
}

impl Request<'_> {
    /// Waits for the data; returns it with the share that counts its memory.
    pub(super) async fn data(self) -> Result<(Sg, Option<Share>), Fault> {
        poll_fn(|cx| {
            let mut pulls = self.channel.pulls.borrow_mut();
            let Some(pull) = pulls.get_mut(&self.number) else { return Poll::Ready(Err(Fault::Aborted)) };
            if pull.missing > 0 {
                if self.channel.is_closed.get() {
                    return Poll::Ready(Err(Fault::Aborted));
                }
                pull.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let mut data = Sg::default();
            data.reserve(pull.parts.len());
            pull.parts.drain(..).flatten().for_each(|part| data.append(part));
            Poll::Ready(Ok((data, pull.share.take())))
        })
        .await
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut pulls = self.channel.pulls.borrow_mut();
        let Some(pull) = pulls.get_mut(&self.number) else { return };
        // The memory is in use until all of it has arrived.
        pull.is_abandoned = true;
        if pull.missing == 0 || self.channel.is_closed.get() {
            pulls.remove(&self.number);
        }
    }
}
