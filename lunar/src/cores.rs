//! What the cores say to each other. Each core owns its state; what must happen on all of them is asked for
//! by letter and is done when all have answered.

use crate::house::Core;
use crate::steward::Errands;
use lunar_core::range::{RangeGuard, Span};
use lunar_core::unit::{Exclusive, Unit, UnitId};
use lunar_iscsi::directory::PortalRef;
use lunar_iscsi::registry::SessionLocation;
use lunar_iscsi::serve::{Front, Peers};
use lunar_nvme::manage::Request;
use lunar_nvme::{Environment, Status, Subsystem, directory};
use lunar_nvme_tcp::serve::Front as NvmeFront;
use lunar_reactor::Reactor;
use lunar_reactor::channel::{Receiver, Sender};
use lunar_reactor::op::Incoming;
use lunar_scsi::Target;
use lunar_unit::{CoreUnits, LocalFuture, OtherCores as OtherUnitCores, UnitMessage};
use lunar_vfio_user::serve::Front as MachineFront;
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

/// A letter from one core to another.
#[derive(Debug)]
pub enum Letter {
    /// Do this and answer.
    Ask {
        /// Who asks.
        from: usize,
        /// What.
        what: What,
        /// The duty to answer.
        duty: Duty,
    },
    /// Done: the answer to the request of this number.
    Answer(u64),
    /// A connection to serve, and over what.
    Connection(Face, Incoming),
    /// Work from outside the cores.
    Order(Order),
    /// End what is under way, and then stop.
    Drain,
}

/// What a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Face {
    /// iSCSI, by this way.
    Iscsi(PortalRef),
    /// NVMe/TCP, by this way.
    Nvme(directory::Way),
}

/// A task of a core.
pub type Chore = Pin<Box<dyn Future<Output = ()>>>;

/// Work from outside the cores, for one of them.
pub struct Order(pub Box<dyn FnOnce(Rc<Core>) -> Chore + Send>);

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Order")
    }
}

/// What a core serves.
pub struct Served {
    /// The state of its units.
    pub units: Rc<CoreUnits>,
    /// Its view of the SCSI target.
    pub target: Rc<Target>,
    /// Its view of the NVM subsystems.
    pub subsystem: Rc<Subsystem>,
    /// Its iSCSI.
    pub iscsi: Rc<Front>,
    /// Its NVMe/TCP, once a host has come.
    pub nvme: OnceCell<Rc<NvmeFront>>,
    /// The core that carries orders out, if there is somebody to give some.
    pub core: OnceCell<Weak<Core>>,
    /// Its controllers of virtual machines, if it has any.
    pub machines: OnceCell<Rc<MachineFront>>,
}

/// The duty to answer a request. Dropping it is the answer: a core that has ended, or ends with the letter unread, has
/// nothing left to do, and nobody waits for it in vain.
#[derive(Debug)]
pub struct Duty {
    /// Names the request among those of the asker.
    id: u64,
    asker: Sender<Letter>,
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.asker.send(Letter::Answer(self.id));
    }
}

/// What a core can be asked.
#[derive(Debug)]
pub enum What {
    /// A change of the state of a unit.
    Unit(UnitMessage),
    /// Hold a range of a unit until `LetGo` of the same asker and number.
    Hold(UnitId, Span),
    /// Let the range go that was held under this number.
    LetGo(u64),
    /// End the session of this connection.
    EndSession(u64),
    /// End this command of this queue of this controller early, and say whether there was one.
    Abort([u16; 3], Arc<AtomicBool>),
}

/// One core's side of the correspondence.
pub struct Links {
    me: usize,
    cores: Vec<Sender<Letter>>,
    next: Cell<u64>,
    /// Requests that have not been answered by all: how many are missing, and who waits.
    open: RefCell<HashMap<u64, (usize, Option<Waker>)>>,
    /// Ranges held here, by asker and number; `None` while one is still waited for.
    held: RefCell<HashMap<(usize, u64), Option<RangeGuard>>>,
    units: RefCell<HashMap<UnitId, Rc<Unit>>>,
}

impl Links {
    /// The links of core `me`, with the way to every core in their order.
    #[must_use]
    pub fn new(me: usize, cores: Vec<Sender<Letter>>) -> Rc<Self> {
        Rc::new(Self {
            me,
            cores,
            next: Cell::new(0),
            open: RefCell::default(),
            held: RefCell::default(),
            units: RefCell::default(),
        })
    }

    /// Makes a unit known, so that others can hold its ranges here.
    pub fn add_unit(&self, unit: &Rc<Unit>) {
        self.units.borrow_mut().insert(unit.id, unit.clone());
    }

    /// Forgets a unit; ranges of it that are held stay so.
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

    fn others(&self) -> impl Iterator<Item = usize> {
        let me = self.me;
        (0..self.cores.len()).filter(move |core| *core != me)
    }

    /// Sends requests and waits for all answers. Returns the number under which they were asked.
    async fn ask(&self, cores: impl Iterator<Item = usize>, what: impl Fn() -> What) -> u64 {
        let id = self.next.get();
        self.next.set(id + 1);
        self.ask_as(id, cores, what).await;
        id
    }

    async fn ask_as(&self, id: u64, cores: impl Iterator<Item = usize>, what: impl Fn() -> What) {
        let mut missing = 0;
        for core in cores {
            missing += 1;
            self.post(core, id, what());
        }
        let _open = Open { links: self, id };
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

    fn post(&self, core: usize, id: u64, what: What) {
        let duty = Duty { id, asker: self.cores[self.me].clone() };
        self.cores[core].send(Letter::Ask { from: self.me, what, duty });
    }

    fn answered(&self, id: u64) {
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

    async fn hold_here(&self, from: usize, id: u64, unit: UnitId, span: Span) {
        let ranges = self.units.borrow().get(&unit).map(|unit| unit.ranges.clone());
        if let Some(ranges) = ranges {
            self.held.borrow_mut().insert((from, id), None);
            let guard = ranges.lock_exclusive(span).await;
            // No entry any more: let go before it was held.
            if let Some(entry) = self.held.borrow_mut().get_mut(&(from, id)) {
                *entry = Some(guard);
            }
        }
    }

    /// Serves the letters that reach this core, until it is told to drain.
    pub async fn serve(self: &Rc<Self>, reactor: &Reactor, mut letters: Receiver<Letter>, served: &Rc<Served>) {
        let mut is_draining = false;
        while let Some(letter) = letters.recv().await {
            match letter {
                Letter::Answer(id) => self.answered(id),
                Letter::Connection(Face::Iscsi(way), incoming) => served.iscsi.serve(incoming, way),
                Letter::Connection(Face::Nvme(way), incoming) => {
                    let core = || served.core.get().and_then(Weak::upgrade).filter(|_| !is_draining);
                    let front = served.nvme.get().cloned().or_else(|| Some(core()?.nvme()));
                    if let Some(front) = front {
                        front.serve(incoming, way);
                    }
                }
                Letter::Order(Order(work)) => {
                    if let Some(core) = served.core.get().and_then(Weak::upgrade) {
                        reactor.spawn(work(core));
                    }
                }
                Letter::Drain => {
                    is_draining = true;
                    served.iscsi.drain();
                    served.nvme.get().iter().for_each(|front| front.drain());
                    served.machines.get().iter().for_each(|front| front.drain());
                }
                Letter::Ask { from, what, duty } => {
                    // A task of its own: a range may take long to come free, and letters must not wait for it.
                    let (links, served) = (self.clone(), served.clone());
                    reactor.spawn(async move {
                        links.carry_out(from, duty.id, what, &served).await;
                        drop(duty);
                    });
                }
            }
        }
    }

    async fn carry_out(&self, from: usize, id: u64, what: What, served: &Served) {
        let Served { units, subsystem, iscsi: front, .. } = served;
        match what {
            What::Unit(message) => units.deliver(message).await,
            What::Hold(unit, span) => self.hold_here(from, id, unit, span).await,
            What::LetGo(held) => {
                self.held.borrow_mut().remove(&(from, held));
            }
            What::EndSession(connection) => front.end_session(connection).await,
            What::Abort([controller, queue, command], found) => {
                found.fetch_or(subsystem.abort_here(controller, queue, command).await, Ordering::Relaxed);
            }
        }
    }
}

/// A request that waits for answers, until it is dropped: those that come later are for nobody.
struct Open<'a> {
    links: &'a Links,
    id: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.links.open.borrow_mut().remove(&self.id);
    }
}

/// The range holder for all cores.
///
/// Ranges are taken core by core in ascending order: two atomic commands that want the same range then meet on
/// the first core, and never wait for each other in a circle.
pub struct AllCores(pub Rc<Links>);

impl Exclusive for AllCores {
    fn lock_exclusive(&self, unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>> {
        let links = self.0.clone();
        Box::pin(async move {
            let id = links.next.get();
            links.next.set(id + 1);
            // Made first, so that a command that is given up half-way lets go of what it has.
            let held = Held { links: Rc::downgrade(&links), id };
            for core in 0..links.cores.len() {
                if core == links.me {
                    links.hold_here(core, id, unit, span).await;
                } else {
                    links.ask_as(id, std::iter::once(core), || What::Hold(unit, span)).await;
                }
            }
            Box::new(held) as Box<dyn Any>
        })
    }
}

/// A range held on all cores; lets go when it drops.
struct Held {
    links: Weak<Links>,
    id: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(links) = self.links.upgrade() {
            links.held.borrow_mut().remove(&(links.me, self.id));
            for core in links.others() {
                let id = links.next.get();
                links.next.set(id + 1);
                links.post(core, id, What::LetGo(self.id));
            }
        }
    }
}

/// Brings changes of the unit state to all other cores.
pub struct OtherCores(pub Rc<Links>);

impl OtherUnitCores for OtherCores {
    fn broadcast(&self, message: UnitMessage) -> LocalFuture<'static, ()> {
        let links = self.0.clone();
        Box::pin(async move {
            links.ask(links.others(), || What::Unit(message.clone())).await;
        })
    }
}

/// What the NVM subsystems of a core ask of the other cores and of the daemon.
pub struct OtherViews(pub Rc<Links>, pub Errands);

impl Environment for OtherViews {
    fn manage(&self, request: Request) -> LocalFuture<'static, Result<u32, Status>> {
        self.1.ask(request)
    }

    fn abort(&self, controller: u16, queue: u16, command: u16) -> LocalFuture<'static, bool> {
        let links = self.0.clone();
        Box::pin(async move {
            let found = Arc::new(AtomicBool::new(false));
            links.ask(links.others(), || What::Abort([controller, queue, command], found.clone())).await;
            // Letters carry what happened before them.
            found.load(Ordering::Relaxed)
        })
    }
}

/// Reaches the sessions on all other cores.
pub struct OtherSessions(pub Rc<Links>);

impl Peers for OtherSessions {
    fn end_session(&self, location: SessionLocation) -> Pin<Box<dyn Future<Output = ()>>> {
        let links = self.0.clone();
        Box::pin(async move {
            links.ask(std::iter::once(location.core), || What::EndSession(location.connection)).await;
        })
    }
}
