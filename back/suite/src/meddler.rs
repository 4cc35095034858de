//! A driver that fails on demand.

use lunar_core::io::{Done, Fault, Outcome};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use lunar_reactor::endpoint::packet::Filter;
use lunar_reactor::endpoint::{Endpoint, Status};
use lunar_reactor::op::{Bell, Driver, Handle, How, Incoming, Op, Wait};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// The kind of an operation, for a test that delays or fails it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A write that need not be durable.
    Write,
    /// A durable write.
    Durable,
    /// A sync.
    Sync,
}

/// Passes all operations on to a driver, except those that a test fails or holds.
pub struct Meddler {
    driver: Rc<dyn Driver>,
    fault: Cell<Option<(Kind, Fault)>>,
    holds: Cell<Option<Kind>>,
    held: RefCell<Vec<(Op, Done)>>,
    seen: RefCell<Vec<Kind>>,
}

impl Meddler {
    /// Wraps `driver`.
    #[must_use]
    pub fn new(driver: Rc<dyn Driver>) -> Rc<Self> {
        let (fault, holds) = (Cell::new(None), Cell::new(None));
        Rc::new(Self { driver, fault, holds, held: RefCell::default(), seen: RefCell::default() })
    }

    /// Makes the next operation of this kind fail; no part of it reaches the file.
    pub fn fail_next(&self, kind: Kind, fault: Fault) {
        self.fault.set(Some((kind, fault)));
    }

    /// Makes operations of this kind wait until they are released.
    pub fn hold(&self, kind: Kind) {
        self.holds.set(Some(kind));
    }

    /// Operations that wait.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Releases all waiting operations, oldest first; later ones do not wait.
    pub fn let_go(&self) {
        self.holds.set(None);
        for (op, done) in self.held.take() {
            self.pass(op, done);
        }
    }

    /// The number of operations of this kind so far.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.seen.borrow().iter().filter(|seen| **seen == kind).count()
    }

    fn pass(&self, op: Op, done: Done) {
        match (self.fault.get(), kind(&op)) {
            (Some((failing, fault)), Some(kind)) if failing == kind => {
                self.fault.set(None);
                done.complete(Outcome::with(Err(fault), op.into_data()));
            }
            _ => self.driver.submit(op, done),
        }
    }
}

fn kind(op: &Op) -> Option<Kind> {
    match op {
        Op::Write { durable: false, .. } => Some(Kind::Write),
        Op::Write { durable: true, .. } => Some(Kind::Durable),
        Op::Sync { .. } => Some(Kind::Sync),
        _ => None,
    }
}

impl Driver for Meddler {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn now(&self) -> Instant {
        self.driver.now()
    }

    fn submit(&self, op: Op, done: Done) {
        let kind = kind(&op);
        self.seen.borrow_mut().extend(kind);
        if kind.is_some() && kind == self.holds.get() {
            self.held.borrow_mut().push((op, done));
        } else {
            self.pass(op, done);
        }
    }

    fn turn(&self, wait: Wait) -> usize {
        self.driver.turn(wait)
    }

    fn has_completions(&self) -> bool {
        self.driver.has_completions()
    }

    fn cancel(&self, handle: &Handle) {
        self.driver.cancel(handle);
    }

    fn close(&self, id: u32) {
        self.driver.close(id);
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Handle> {
        self.driver.open(path, how)
    }

    fn adopt(&self, file: OwnedFd) -> io::Result<Handle> {
        self.driver.adopt(file)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
        self.driver.listen(address)
    }

    fn accepted(&self, listener: &Handle) -> Option<Incoming> {
        self.driver.accepted(listener)
    }

    fn join(&self, incoming: Incoming) -> io::Result<(Handle, SocketAddr, SocketAddr)> {
        self.driver.join(incoming)
    }

    fn attach(&self, endpoint: Endpoint) -> io::Result<Handle> {
        self.driver.attach(endpoint)
    }

    fn status(&self, endpoint: &Handle) -> io::Result<Status> {
        self.driver.status(endpoint)
    }

    fn set_filter(&self, link: &Handle, filter: Filter, is_wanted: bool) -> io::Result<()> {
        self.driver.set_filter(link, filter, is_wanted)
    }

    fn shutdown(&self, socket: &Handle) {
        self.driver.shutdown(socket);
    }

    fn register(&self, arena: &Arena) {
        self.driver.register(arena);
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.driver.bell()
    }
}
