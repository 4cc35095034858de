//! An initiator that is logged in.

use crate::port::exchange::ExchangeKey;
use crate::wire::names::{PortId, Wwn};
use lunar_core::mem::PeerMemory;
use lunar_core::shares::Member;
use lunar_engine::link_ports::View;
use lunar_scsi::Nexus;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

/// An initiator.
pub(super) struct Initiator {
    pub(super) name: Wwn,
    pub(super) peer: PortId,
    /// Its group, and its LUN map.
    pub(super) view: View,
    /// The name of the section of its port.
    pub(super) section: Arc<str>,
    pub(super) nexus: Rc<Nexus>,
    /// Its shares of the memory of the core.
    pub(super) memory: PeerMemory,
    /// Its share of the slots, and the number of commands that wait for one.
    pub(super) slots: Member,
    pub(super) waiting: Cell<usize>,
    /// Commands that wait for data.
    waiters: RefCell<HashMap<ExchangeKey, Waker>>,
}

impl Initiator {
    pub(super) fn new(
        (name, peer): (Wwn, PortId),
        (view, section): (View, Arc<str>),
        nexus: Rc<Nexus>,
        (memory, slots): (PeerMemory, Member),
    ) -> Rc<Self> {
        let (waiting, waiters) = (Cell::new(0), RefCell::default());
        Rc::new(Self { name, peer, view, section, nexus, memory, slots, waiting, waiters })
    }

    /// A command waits for data.
    pub(super) fn wait(&self, key: ExchangeKey, waker: &Waker) {
        self.waiters.borrow_mut().insert(key, waker.clone());
    }

    /// A command waits no longer.
    pub(super) fn end_wait(&self, key: ExchangeKey) {
        self.waiters.borrow_mut().remove(&key);
    }

    /// The data of a command has arrived.
    pub(super) fn arrived(&self, key: ExchangeKey) {
        let waker = self.waiters.borrow_mut().remove(&key);
        waker.into_iter().for_each(Waker::wake);
    }
}
