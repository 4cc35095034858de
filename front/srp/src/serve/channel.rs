//! A channel of an initiator: its credit, and what is read and written over it.

use super::sessions::Session;
use crate::limits::{DESCRIPTORS_MAX, REQUEST_LIMIT, SEND_QUEUE_MAX};
use crate::wire::{Response, credit_request};
use lunar_core::mem::Chunks;
use lunar_core::shares::Share;
use lunar_rdma::engine::ConnectionId;
use lunar_rdma::port::Port;
use lunar_rdma::requester::Message;
use lunar_rdma::transfers::Transfers;
use lunar_reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

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
    /// Data that is read and written.
    pub(super) transfers: Transfers,
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
            transfers: Transfers::new(id, port, &session.memory.outgoing, SEND_QUEUE_MAX),
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
        self.port.with(|engine, _| engine.post(self.id, 1));
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
                let message = Message { data: data.into(), posts: credit as usize, share, invalidates: None };
                self.transfers.send(message);
            }
            // A response must not be lost: the initiator connects again, and repeats what was not answered.
            None => self.transfers.fail(),
        }
    }
}
