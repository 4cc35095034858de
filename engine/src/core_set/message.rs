//! The messages between cores, and from outside to a core.

use super::front_on_core::{FrontOnCore, PortalRef};
use lunar_core::range::Span;
use lunar_core::unit::UnitId;
use lunar_reactor::channel::Sender;
use lunar_reactor::op::Incoming;
use lunar_unit::UnitMessage;
use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A message to a core.
#[derive(Debug)]
pub enum CoreMessage {
    /// A request of another core.
    Ask {
        /// The core that asks.
        from: usize,
        /// The request.
        request: Request,
        /// Answers it.
        guard: AckGuard,
    },
    /// The request of this number is done.
    Answer(u64),
    /// A connection that a portal has accepted, for the front of this index.
    Connection(usize, PortalRef, Incoming),
    /// Work from outside the cores.
    Job(Job),
    /// The same, for a front.
    Front(FrontJob),
    /// Finish the commands in progress, and end.
    Drain,
}

/// A task of a core.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Work for one core, which is given to it.
pub struct Job(pub Box<dyn FnOnce(Rc<dyn Any>) -> Task + Send>);

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

/// Work for one front of one core.
pub struct FrontJob {
    /// The index of the front in the registry.
    pub front: usize,
    /// The work.
    pub work: FrontWork,
}

/// Work that is given a front; `None`: the core has no such front, or is about to end.
pub type FrontWork = Box<dyn FnOnce(Option<Rc<dyn FrontOnCore>>) -> Task + Send>;

impl fmt::Debug for FrontJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrontJob({})", self.front)
    }
}

impl FrontJob {
    /// Work for the front of this index, which is an `F`.
    pub fn new<F, W>(front: usize, work: impl FnOnce(Option<Rc<F>>) -> W + Send + 'static) -> Self
    where
        F: FrontOnCore,
        W: Future<Output = ()> + 'static,
    {
        let typed = |found: Rc<dyn FrontOnCore>| (found as Rc<dyn Any>).downcast::<F>().ok();
        Self { front, work: Box::new(move |found| Box::pin(work(found.and_then(typed)))) }
    }
}

/// Answers a request when it drops: a core that ends with the message unread has nothing left to do, and the asking
/// core must not wait for it.
#[derive(Debug)]
pub struct AckGuard {
    /// The number of the request among those of the core that asks.
    pub(super) id: u64,
    pub(super) asker: Sender<CoreMessage>,
}

impl Drop for AckGuard {
    fn drop(&mut self) {
        self.asker.send(CoreMessage::Answer(self.id));
    }
}

/// A request to another core.
#[derive(Debug)]
pub enum Request {
    /// A change of the state of a unit.
    Unit(UnitMessage),
    /// Lock a range of a unit until `ReleaseRange` with the same core and number.
    LockRange(UnitId, Span),
    /// Release the range that was locked under this number.
    ReleaseRange(u64),
    /// Abort the command of this number of this queue of this NVMe controller, and say whether there was one.
    AbortCommand([u16; 3], Arc<AtomicBool>),
    /// Work for a front, such as ending a session.
    Front(FrontJob),
}
