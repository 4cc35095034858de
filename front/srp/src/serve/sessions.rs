//! The initiators of a port.

use crate::directory::View;
use crate::limits::SESSIONS_MAX;
use crate::names::PortId;
use lunar_core::mem::PeerMemory;
use lunar_core::shares::Member;
use lunar_core::turn::Turns;
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
    pub(super) channels: RefCell<BTreeSet<ConnectionId>>,
}

/// The initiators.
#[derive(Default)]
pub(super) struct Sessions {
    all: RefCell<BTreeMap<PortId, Rc<Session>>>,
    /// Logins and logouts of one name take turns: the nexus of a login begins when that of the login before has ended.
    turns: RefCell<BTreeMap<PortId, Rc<Turns>>>,
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

    /// The turns of a nexus that is about to end.
    pub(super) fn turns_of(&self, name: PortId) -> Rc<Turns> {
        self.turns.borrow_mut().entry(name).or_default().clone()
    }

    /// The turns, if a nexus of this name has not ended.
    pub(super) fn pending(&self, name: PortId) -> Option<Rc<Turns>> {
        self.turns.borrow().get(&name).cloned()
    }

    pub(super) fn forget_turns(&self, name: PortId, turns: &Rc<Turns>) {
        // This and the map.
        if Rc::strong_count(turns) <= 2 {
            self.turns.borrow_mut().remove(&name);
        }
    }

    /// Waits until the nexus of this name, which has logged out, has ended.
    pub(super) async fn until_closed(&self, name: PortId) {
        if let Some(turns) = self.pending(name) {
            drop(turns.take().await);
            self.forget_turns(name, &turns);
        }
    }

    /// Waits until all nexuses that have logged out have ended.
    pub(super) async fn until_all_closed(&self) {
        let names: Vec<PortId> = self.turns.borrow().keys().copied().collect();
        for name in names {
            self.until_closed(name).await;
        }
    }
}
