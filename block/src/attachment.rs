//! A client of a unit: one virtio-blk device, one ublk device, one NBD session.

use crate::limits::Limits;
use crate::table::Context;
use crate::unit::BlockUnit;
use lunar_core::counters::Counters;
use lunar_core::hosts::HostSession;
use lunar_core::port::NexusName;
use lunar_core::task::TaskSet;
use lunar_core::unit::UnitId;
use lunar_unit::reserve::Held;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The client of an attachment, and its rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its name, for logs and the list of sessions.
    pub name: Arc<str>,
    /// Tag of the portal group that it comes through; zero: none, and its path is always active.
    pub group: u16,
    /// Whether it may only read.
    pub read_only: bool,
}

/// A client of a unit, on the core that serves it.
pub struct Attachment {
    /// The client.
    pub client: Client,
    /// The number of the unit.
    pub id: UnitId,
    /// The counters of its host; a transport that counts its hosts sets it.
    pub host: OnceCell<HostSession>,
    /// The requests in progress, by the identifiers of the transport.
    pub tasks: TaskSet<u64>,
    /// `None` when the unit is not served any more, or the client may not use it any more.
    unit: RefCell<Option<Rc<BlockUnit>>>,
    /// The name under which it may hold reservations; `None`: it holds none.
    nexus: Option<NexusName>,
    held: Cell<Held>,
    is_active: Cell<bool>,
    is_revoked: Cell<bool>,
    caches_writes: Cell<bool>,
    /// Changes of the limits so far.
    changes: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Attachment {
    pub(crate) fn new(client: Client, nexus: Option<NexusName>, unit: Rc<BlockUnit>) -> Self {
        let attachment = Self {
            client,
            id: unit.unit.id,
            host: OnceCell::new(),
            tasks: TaskSet::default(),
            unit: RefCell::new(Some(unit.clone())),
            nexus,
            held: Cell::default(),
            is_active: Cell::default(),
            is_revoked: Cell::default(),
            caches_writes: Cell::new(true),
            changes: Cell::default(),
            waiters: RefCell::default(),
        };
        attachment.update_access(&unit);
        attachment.update_held(&unit);
        attachment
    }

    /// The unit; `None` when it is not served any more.
    #[inline]
    #[must_use]
    pub fn unit(&self) -> Option<Rc<BlockUnit>> {
        self.unit.borrow().clone()
    }

    /// The client may not use the unit any more: requests that wait are refused when they are executed.
    pub fn revoke(&self) {
        self.is_revoked.set(true);
        self.set_unit(None);
    }

    /// Whether the client may not use the unit any more.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.get()
    }

    /// Replaces the unit by another view of it, which may have another size, or by none.
    pub(crate) fn set_unit(&self, unit: Option<Rc<BlockUnit>>) {
        let unit = unit.filter(|_| !self.is_revoked());
        if let Some(unit) = &unit {
            self.update_access(unit);
            self.update_held(unit);
        }
        self.unit.replace(unit);
        self.changes.set(self.changes.get() + 1);
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// Whether the path of the client is active.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active.get()
    }

    /// Updates its cell with the access states of the unit.
    pub(crate) fn update_access(&self, unit: &BlockUnit) {
        let group = self.client.group;
        self.is_active.set(group == 0 || unit.is_active(group));
    }

    /// How reservations restrict the client.
    #[inline]
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.get()
    }

    /// Updates its cell with the reservations of the unit.
    pub(crate) fn update_held(&self, unit: &BlockUnit) {
        self.held.set(unit.held_for(self.nexus.as_ref()));
    }

    /// Whether the client may only read.
    #[must_use]
    pub fn is_read_only(&self, unit: &BlockUnit) -> bool {
        self.client.read_only || unit.unit.read_only
    }

    /// Switches the write cache on or off at the request of the client: without it every write, discard and write of
    /// zeroes is on the medium when it ends.
    pub fn set_write_cache(&self, caches_writes: bool) {
        self.caches_writes.set(caches_writes);
    }

    /// Whether a write may end before its data is on the medium.
    #[inline]
    #[must_use]
    pub fn caches_writes(&self) -> bool {
        self.caches_writes.get()
    }

    /// The limits of requests; `None` when the unit is not served any more.
    #[must_use]
    pub fn limits(&self) -> Option<Limits> {
        let unit = self.unit()?;
        Some(Limits::of(&unit.unit, self.is_read_only(&unit)))
    }

    /// Changes of the limits so far: see [`Attachment::until_changed`].
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Waits until the limits have changed more often than this. The transport then notifies its client.
    pub async fn until_changed(&self, changes: u64) {
        poll_fn(|cx| {
            if self.changes.get() > changes {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// The counters of a request at a unit.
    #[inline]
    pub(crate) fn counters<'a>(&'a self, unit: Option<&'a BlockUnit>) -> Counters<'a> {
        Counters { unit: unit.map(|unit| &unit.unit.tally), host: self.host.get() }
    }

    /// Counts a request that got no slot.
    #[cold]
    pub fn task_set_full(&self) {
        self.counters(self.unit().as_deref()).task_set_full();
    }

    /// The context in which a command is planned.
    pub(crate) fn context<'a>(&self, unit: &'a BlockUnit) -> Context<'a> {
        Context { unit: &unit.unit, caches_writes: self.caches_writes() }
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attachment({} at unit {})", self.client.name, self.id.0)
    }
}
