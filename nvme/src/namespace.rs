//! A namespace: a unit as NVMe sees it, and what a host has to do with it.

use crate::space::{Made, Mapping};
use lunar_core::codes;
use lunar_core::protection::Kind;
use lunar_core::reserve::{Held, Shared};
use lunar_core::unit::Unit;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Namespaces at most: one log page of asymmetric access tells of all of them within what a command may move.
pub const NAMESPACES_MAX: u32 = 1024;
/// The namespace identifier that means all of them.
pub const ALL: u32 = 0xffff_ffff;

codes! {
    /// States of asymmetric access (NVMe Base 2.0 8.1.1).
    pub struct Access(u8) {
        OPTIMIZED = 0x01, NON_OPTIMIZED = 0x02, INACCESSIBLE = 0x03, PERSISTENT_LOSS = 0x04, CHANGE = 0x0f,
    }
}

/// One core's view of a unit that hosts see as a namespace.
pub struct Namespace {
    /// Its blocks, identity and store.
    pub unit: Rc<Unit>,
    /// Its reservations, which it has in common with its views on other cores and of other command sets.
    pub shared: Arc<Shared>,
    /// How it is reached through each portal group where that is not as after power on, by its tag.
    access: RefCell<BTreeMap<u16, Access>>,
}

impl Namespace {
    pub(crate) fn new(unit: Rc<Unit>, shared: Arc<Shared>) -> Self {
        Self { unit, shared, access: RefCell::default() }
    }

    /// How it is reached through the portal group of this tag.
    #[must_use]
    pub fn access(&self, group: u16) -> Access {
        self.access.borrow().get(&group).copied().unwrap_or(Access::OPTIMIZED)
    }

    /// Tells whether it was another one.
    pub(crate) fn set_access(&self, group: u16, access: Access) -> bool {
        self.access.borrow_mut().insert(group, access).unwrap_or(Access::OPTIMIZED) != access
    }

    /// It is reached as the one is whose place it takes.
    pub(crate) fn take_access(&self, old: &Self) {
        self.access.replace(old.access.take());
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.unit.geometry.block_size
    }

    /// Whether blocks may be deallocated.
    #[must_use]
    pub fn deallocates(&self) -> bool {
        self.unit.traits().unmap_granularity > 0
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({:?})", self.unit)
    }
}

/// What one host has to do with one namespace, through one queue.
#[derive(Debug)]
pub struct Attached {
    /// The identifier that the host knows it by.
    pub id: u32,
    /// The namespace.
    pub namespace: Rc<Namespace>,
    /// Whether the host may only read.
    pub read_only: bool,
    /// Whether a host has made it.
    pub made: Option<Made>,
    /// Whether it is shown with what protects its blocks, if they are protected.
    metadata: bool,
    access: Cell<Access>,
    held: Cell<Held>,
}

impl Attached {
    pub(crate) fn new(id: u32, namespace: Rc<Namespace>, to: Mapping, access: Access, held: Held) -> Self {
        let read_only = to.read_only || namespace.unit.read_only;
        let (made, metadata) = (to.made, to.metadata);
        Self { id, namespace, read_only, made, metadata, access: Cell::new(access), held: Cell::new(held) }
    }

    /// How its blocks are protected, where the host sees that: each has eight bytes of metadata behind it then.
    #[must_use]
    pub fn shown(&self) -> Option<Kind> {
        if self.metadata { self.namespace.unit.protected().map(|protection| protection.kind()) } else { None }
    }

    /// How the host reaches it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access.get()
    }

    pub(crate) fn set_access(&self, access: Access) {
        self.access.set(access);
    }

    /// What a reservation means for the host.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.get()
    }

    pub(crate) fn set_held(&self, held: Held) {
        self.held.set(held);
    }
}
