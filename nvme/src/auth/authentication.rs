//! The authentication of the host of one queue, and what it needs from the program around it.

use super::exchange::{Computed, Exchange, Work};
use super::guard::Visitor;
use lunar_core::time::Instant;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::pin::Pin;

/// What proofs need from where the subsystem runs.
pub trait Outside {
    /// What time it is.
    fn now(&self) -> Instant;

    /// Waits until then.
    fn until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Computes what takes long, where no command waits for it. `None` if too much is to be computed already: for who
    /// comes from there, or for all.
    fn compute(&self, source: IpAddr, work: Work) -> Pin<Box<dyn Future<Output = Option<Computed>>>>;
}

/// Who is at the other end of a queue, and what it has proved.
#[derive(Debug)]
pub struct Proof {
    pub(super) visitor: Visitor,
    pub(super) exchange: RefCell<Exchange>,
    /// Whether it may do more than prove its name.
    pub(super) passes: Cell<bool>,
    /// Whether its proof failed: the queue ends.
    pub(super) failed: Cell<bool>,
}

impl Proof {
    /// Of a visitor that may do more than prove its name at once if it `passes`.
    #[must_use]
    pub(crate) fn new(visitor: Visitor, passes: bool) -> Self {
        Self { visitor, exchange: RefCell::default(), passes: Cell::new(passes), failed: Cell::new(false) }
    }

    /// Who it is.
    #[must_use]
    pub fn visitor(&self) -> &Visitor {
        &self.visitor
    }

    /// Whether the host may do more than prove its name.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.passes.get()
    }

    /// Whether the queue ends, for its host has proved nothing.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }
}
