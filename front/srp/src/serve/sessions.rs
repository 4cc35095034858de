//! The initiators of a port.

use crate::limits::SESSIONS_MAX;
use crate::names::PortId;
use lunar_core::mem::PeerMemory;
use lunar_core::shares::Member;
use lunar_core::turn::Turns;
use lunar_engine::link_ports::{NexusTurns, View};
use lunar_rdma::engine::ConnectionId;
use lunar_scsi::Nexus;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// An initiator that is logged in, over one channel or more.
pub(super) struct Session {
    pub(super) name: PortId,
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
    /// Its share of the descriptors.
    pub(super) descriptors: Member,
    /// Commands are started in the order of their arrival, also those whose descriptors have to be read first.
    pub(super) starts: Turns,
    pub(super) channels: RefCell<BTreeSet<ConnectionId>>,
}

/// The initiators.
#[derive(Default)]
pub(super) struct Sessions {
    all: RefCell<BTreeMap<PortId, Rc<Session>>>,
    /// Logins and logouts of one name take turns.
    pub(super) turns: Rc<NexusTurns<PortId, ConnectionId>>,
}

impl Sessions {
    pub(super) fn get(&self, name: PortId) -> Option<Rc<Session>> {
        self.all.borrow().get(&name).cloned()
    }

    pub(super) fn all(&self) -> Vec<Rc<Session>> {
        self.all.borrow().values().cloned().collect()
    }

    pub(super) fn count(&self) -> usize {
        self.all.borrow().len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.count() >= SESSIONS_MAX
    }

    pub(super) fn insert(&self, session: Rc<Session>) {
        self.all.borrow_mut().insert(session.name, session);
    }

    pub(super) fn remove(&self, name: PortId) -> Option<Rc<Session>> {
        self.all.borrow_mut().remove(&name)
    }
}
