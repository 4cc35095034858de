//! The messages between cores, as one core sees them. Each core owns its state; a change on all cores is requested by
//! messages, and is done when all cores have answered.

use super::message::{AckGuard, CoreMessage, FrontJob, Request};
use lunar_core::range::{RangeGuard, Span};
use lunar_core::unit::{Exclusive, Unit, UnitId};
use lunar_reactor::channel::Sender;
use lunar_unit::{LocalFuture, OtherCores as OtherUnitCores, UnitMessage};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// One core's side of the messages, and its units.
pub struct CoreMesh {
    own: usize,
    cores: Vec<Sender<CoreMessage>>,
    next: Cell<u64>,
    /// Requests that have not been answered by all cores: how many answers are missing, and the task that waits.
    open: RefCell<HashMap<u64, (usize, Option<Waker>)>>,
    /// Ranges locked here for other cores, by core and number; `None` while one is still waited for.
    locked: RefCell<HashMap<(usize, u64), Option<RangeGuard>>>,
    /// In the order of their numbers, so that a simulation does the same in every run.
    units: RefCell<BTreeMap<UnitId, Rc<Unit>>>,
}

impl fmt::Debug for CoreMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoreMesh({} of {})", self.own, self.cores.len())
    }
}

impl CoreMesh {
    /// The side of core `own`, with the mailboxes of all cores in their order.
    #[must_use]
    pub fn new(own: usize, cores: Vec<Sender<CoreMessage>>) -> Rc<Self> {
        Rc::new(Self {
            own,
            cores,
            next: Cell::new(0),
            open: RefCell::default(),
            locked: RefCell::default(),
            units: RefCell::default(),
        })
    }

    /// Makes a unit known, so that other cores can lock its ranges here.
    pub fn add_unit(&self, unit: &Rc<Unit>) {
        self.units.borrow_mut().insert(unit.id, unit.clone());
    }

    /// Forgets a unit; ranges of it that are locked stay so.
    pub fn forget_unit(&self, unit: UnitId) {
        self.units.borrow_mut().remove(&unit);
    }

    /// This core's view of a unit.
    #[must_use]
    pub fn unit(&self, unit: UnitId) -> Option<Rc<Unit>> {
        self.units.borrow().get(&unit).cloned()
    }

    /// This core's views of all units.
    #[must_use]
    pub fn units(&self) -> Vec<Rc<Unit>> {
        self.units.borrow().values().cloned().collect()
    }

    /// Aborts the command of this number of a queue of an NVMe controller on the other cores; whether there was one.
    pub(super) async fn abort_command(&self, command: [u16; 3]) -> bool {
        let found = Arc::new(AtomicBool::new(false));
        self.ask(self.others(), || Request::AbortCommand(command, found.clone())).await;
        // Messages are ordered: the effects of earlier events are visible.
        found.load(Ordering::Relaxed)
    }

    /// Runs a job on a front of another core, and waits until it is done.
    pub async fn run_on_front(&self, core: usize, job: FrontJob) {
        if core < self.cores.len() {
            let request = Cell::new(Some(Request::Front(job)));
            self.wait_for(self.number(), std::iter::once(core), || request.take()).await;
        }
    }

    /// Gives a connection to the core of this index.
    pub(super) fn give(&self, core: usize, message: CoreMessage) {
        self.cores[core].send(message);
    }

    /// How many cores there are.
    pub(super) fn count(&self) -> usize {
        self.cores.len()
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.own;
        (0..self.cores.len()).filter(move |core| *core != own)
    }

    fn number(&self) -> u64 {
        let id = self.next.get();
        self.next.set(id + 1);
        id
    }

    /// Sends requests and waits for all answers.
    async fn ask(&self, cores: impl Iterator<Item = usize>, request: impl Fn() -> Request) {
        self.wait_for(self.number(), cores, || Some(request())).await;
    }

    async fn wait_for(&self, id: u64, cores: impl Iterator<Item = usize>, request: impl Fn() -> Option<Request>) {
        let mut missing = 0;
        for (core, request) in cores.filter_map(|core| Some((core, request()?))) {
            missing += 1;
            self.post(core, id, request);
        }
        let _open = OpenRequest { mesh: self, id };
        self.open.borrow_mut().insert(id, (missing, None));
        poll_fn(|cx| {
            let mut open = self.open.borrow_mut();
            match open.get_mut(&id) {
                Some((missing, waker)) if *missing > 0 => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    fn post(&self, core: usize, id: u64, request: Request) {
        let guard = AckGuard { id, asker: self.cores[self.own].clone() };
        self.cores[core].send(CoreMessage::Ask { from: self.own, request, guard });
    }

    /// Another core has answered the request of this number.
    pub(super) fn answered(&self, id: u64) {
        let mut open = self.open.borrow_mut();
        if let Some((missing, waker)) = open.get_mut(&id) {
            *missing -= 1;
            if *missing == 0
                && let Some(waker) = waker.take()
            {
                waker.wake();
            }
        }
    }

    /// Locks a range here for a core.
    pub(super) async fn lock_here(&self, from: usize, id: u64, unit: UnitId, span: Span) {
        let ranges = self.units.borrow().get(&unit).map(|unit| unit.ranges.clone());
        if let Some(ranges) = ranges {
            self.locked.borrow_mut().insert((from, id), None);
            let guard = ranges.lock_exclusive(span).await;
            // Without an entry it was released before it was locked.
            if let Some(entry) = self.locked.borrow_mut().get_mut(&(from, id)) {
                *entry = Some(guard);
            }
        }
    }

    /// Releases a range that was locked here for a core.
    pub(super) fn release_here(&self, from: usize, id: u64) {
        self.locked.borrow_mut().remove(&(from, id));
    }
}

/// A request that waits for answers, until it is dropped: answers that come later are ignored.
struct OpenRequest<'a> {
    mesh: &'a CoreMesh,
    id: u64,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.mesh.open.borrow_mut().remove(&self.id);
    }
}

/// Locks ranges on all cores.
///
/// Ranges are locked core by core in ascending order: two atomic commands that want the same range then meet on
/// the first core, and never wait for each other in a circle.
///
/// The units, which hold this, are held by the mesh: so this does not hold the mesh.
pub(super) struct AllCores(pub(super) Weak<CoreMesh>);

impl Exclusive for AllCores {
    fn lock_exclusive(&self, unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>> {
        let mesh = self.0.upgrade();
        Box::pin(async move {
            // A core that has ended runs no command.
            let Some(mesh) = mesh else { return pending().await };
            let id = mesh.number();
            // Made first, so that a command that is given up half-way releases what it has locked.
            let lock = GlobalLock { mesh: Rc::downgrade(&mesh), id };
            for core in 0..mesh.cores.len() {
                if core == mesh.own {
                    mesh.lock_here(core, id, unit, span).await;
                } else {
                    mesh.wait_for(id, std::iter::once(core), || Some(Request::LockRange(unit, span))).await;
                }
            }
            Box::new(lock) as Box<dyn Any>
        })
    }
}

/// A range that is locked on all cores; releases it when it drops.
struct GlobalLock {
    mesh: Weak<CoreMesh>,
    id: u64,
}

impl Drop for GlobalLock {
    fn drop(&mut self) {
        if let Some(mesh) = self.mesh.upgrade() {
            mesh.release_here(mesh.own, self.id);
            for core in mesh.others() {
                mesh.post(core, mesh.number(), Request::ReleaseRange(self.id));
            }
        }
    }
}

/// Brings changes of the unit state to all other cores.
pub(super) struct OtherCores(pub(super) Rc<CoreMesh>);

impl OtherUnitCores for OtherCores {
    fn broadcast(&self, message: UnitMessage) -> LocalFuture<'static, ()> {
        let mesh = self.0.clone();
        Box::pin(async move {
            mesh.ask(mesh.others(), || Request::Unit(message.clone())).await;
        })
    }
}
