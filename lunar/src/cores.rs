//! What the cores say to each other. Each core owns its state; what must happen on all of them is asked for
//! by letter and is done when all have answered.

use crate::house::Core;
use crate::steward::Errands;
use lunar_core::io::Fault;
use lunar_core::mem::Arena;
use lunar_core::range::{Guard, Span};
use lunar_core::reserve::News;
use lunar_core::unit::{Exclusive, Unit, UnitId};
use lunar_iscsi::directory::PortalRef;
use lunar_iscsi::registry::SessionLocation;
use lunar_iscsi::serve::{Front, Peers};
use lunar_nvme::manage::Request;
use lunar_nvme::namespace::Access;
use lunar_nvme::{Everywhere as NvmeEverywhere, Renewing, Sanitizing, Status, Subsystem, directory};
use lunar_nvme_tcp::serve::Front as NvmeFront;
use lunar_reactor::Reactor;
use lunar_reactor::channel::{Receiver, Sender};
use lunar_reactor::op::Incoming;
use lunar_scsi::access::AluaState;
use lunar_scsi::lu::{Change, MediumState, Stamp};
use lunar_scsi::renew::Pass;
use lunar_scsi::{Everywhere, Mail, Target};
use lunar_vfio_user::serve::Front as MachineFront;
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
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
    /// A message between the views of one SCSI target.
    Scsi(Mail),
    /// The reservations of a unit have changed, for all command sets.
    Reservations(UnitId, Arc<News>),
    /// Those of all command sets who were preempted end.
    Preempted(UnitId, Arc<News>),
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
    held: RefCell<HashMap<(usize, u64), Option<Guard>>>,
    units: RefCell<HashMap<UnitId, Rc<Unit>>>,
    /// This core's views of the units, by command set.
    views: RefCell<(Weak<Target>, Weak<Subsystem>)>,
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
            views: RefCell::default(),
        })
    }

    /// Makes this core's views of the units known to each other.
    pub fn add_views(&self, target: &Rc<Target>, subsystem: &Rc<Subsystem>) {
        *self.views.borrow_mut() = (Rc::downgrade(target), Rc::downgrade(subsystem));
    }

    fn target(&self) -> Option<Rc<Target>> {
        self.views.borrow().0.upgrade()
    }

    fn subsystem(&self) -> Option<Rc<Subsystem>> {
        self.views.borrow().1.upgrade()
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
            let guard = ranges.hold(span).await;
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
        let Served { target, subsystem, iscsi: front, .. } = served;
        match what {
            What::Scsi(mail) => {
                mirror(&mail, subsystem);
                target.deliver(mail).await;
            }
            What::Reservations(unit, news) => {
                subsystem.see_reservations(unit);
                target.deliver(Mail::Reservations { lun: lun_of(unit), news }).await;
            }
            What::Preempted(unit, news) => {
                subsystem.end_preempted(unit, &news).await;
                target.deliver(Mail::Preempted { lun: lun_of(unit), news }).await;
            }
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
    fn hold(&self, unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>> {
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

/// Reaches the views of a SCSI target on all other cores.
pub struct OtherCores(pub Rc<Links>);

impl Everywhere for OtherCores {
    fn broadcast(&self, mail: Mail) -> Pin<Box<dyn Future<Output = ()>>> {
        let links = self.0.clone();
        Box::pin(async move {
            let others: Vec<usize> = links.others().collect();
            let Some(subsystem) = links.subsystem() else { return };
            match mail {
                Mail::Reservations { lun, news } => {
                    let unit = UnitId(lun.into());
                    subsystem.see_reservations(unit);
                    links.ask(others.into_iter(), || What::Reservations(unit, news.clone())).await;
                    subsystem.tell_reservations(unit, &news);
                }
                Mail::Preempted { lun, news } => {
                    let unit = UnitId(lun.into());
                    subsystem.end_preempted(unit, &news).await;
                    links.ask(others.into_iter(), || What::Preempted(unit, news.clone())).await;
                }
                mail => {
                    mirror(&mail, &subsystem);
                    links.ask(others.into_iter(), || What::Scsi(mail.clone())).await;
                    // Hosts that see what protects blocks have to look at the format anew.
                    if let Mail::Change { lun, change: Change::Protection(_), .. } = mail {
                        subsystem.tell_namespaces(&BTreeMap::new(), &[UnitId(lun.into())]);
                    }
                }
            }
        })
    }
}

/// The logical unit of a unit: both are numbered alike.
fn lun_of(unit: UnitId) -> u16 {
    // Logical units are numbered with 14 bits.
    unit.0 as u16
}

/// Has NVMe go by what SCSI alone decides: the states of asymmetric access of the portal groups.
fn mirror(mail: &Mail, subsystem: &Subsystem) {
    let Mail::Change { lun, change: Change::Access(accesses), .. } = mail else { return };
    for access in accesses.iter() {
        subsystem.set_access(UnitId((*lun).into()), access.group, access_of(access.state));
    }
}

/// What a state of asymmetric access is to NVMe hosts.
#[must_use]
pub fn access_of(state: AluaState) -> Access {
    match state {
        AluaState::ACTIVE_OPTIMIZED => Access::OPTIMIZED,
        AluaState::ACTIVE_NON_OPTIMIZED => Access::NON_OPTIMIZED,
        AluaState::TRANSITIONING => Access::CHANGE,
        _ => Access::INACCESSIBLE,
    }
}

/// Reaches the views of all command sets on all cores, but NVMe's on this one.
pub struct OtherViews(pub Rc<Links>, pub Errands);

/// What SCSI is told of a medium that NVMe writes anew. One works on a medium at a time, and states of media are not
/// numbered.
fn medium_mail(unit: UnitId, state: Renewing) -> Mail {
    Mail::Change { lun: lun_of(unit), change: Change::Medium(medium_state(state)), stamp: Stamp::default() }
}

fn medium_state(state: Renewing) -> MediumState {
    match state {
        Renewing::Begun => MediumState::Formatting,
        Renewing::Done => MediumState::Ready,
        Renewing::Failed => MediumState::FormatFailed,
    }
}

impl NvmeEverywhere for OtherViews {
    fn manage(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<u32, Status>>>> {
        self.1.ask(request)
    }

    fn reservations(&self, unit: UnitId, news: Arc<News>) -> Pin<Box<dyn Future<Output = ()>>> {
        let links = self.0.clone();
        Box::pin(async move {
            if let Some(target) = links.target() {
                target.deliver(Mail::Reservations { lun: lun_of(unit), news: news.clone() }).await;
            }
            let others: Vec<usize> = links.others().collect();
            links.ask(others.into_iter(), || What::Reservations(unit, news.clone())).await;
        })
    }

    fn abort(&self, controller: u16, queue: u16, command: u16) -> Pin<Box<dyn Future<Output = bool>>> {
        let links = self.0.clone();
        Box::pin(async move {
            let found = Arc::new(AtomicBool::new(false));
            links.ask(links.others(), || What::Abort([controller, queue, command], found.clone())).await;
            // Letters carry what happened before them.
            found.load(Ordering::Relaxed)
        })
    }

    fn keep(&self, unit: UnitId, state: Renewing) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        let target = self.0.target();
        Box::pin(async move {
            match target {
                Some(target) => target.keep_format(lun_of(unit), medium_state(state)).await,
                None => Err(Fault::Gone),
            }
        })
    }

    fn sanitize(
        &self,
        unit: UnitId,
        how: Sanitizing,
        arena: Arena,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        let target = self.0.target();
        Box::pin(async move {
            let target = target.ok_or(Fault::Gone)?;
            match how {
                Sanitizing::Exit => target.exit_failure_mode(lun_of(unit)).await,
                Sanitizing::Begin { passes, exits } => {
                    let passes = passes.into_iter().map(|pass| Pass { pattern: pass.pattern, unmap: pass.unmap });
                    target.sanitize(lun_of(unit), passes.collect(), exits, arena).await
                }
            }
        })
    }

    fn renewing(&self, unit: UnitId, state: Renewing) -> Pin<Box<dyn Future<Output = ()>>> {
        let links = self.0.clone();
        Box::pin(async move {
            if let Some(target) = links.target() {
                target.deliver(medium_mail(unit, state)).await;
            }
            let others: Vec<usize> = links.others().collect();
            links.ask(others.into_iter(), || What::Scsi(medium_mail(unit, state))).await;
        })
    }

    fn preempted(&self, unit: UnitId, news: Arc<News>) -> Pin<Box<dyn Future<Output = ()>>> {
        let links = self.0.clone();
        Box::pin(async move {
            if let Some(target) = links.target() {
                target.deliver(Mail::Preempted { lun: lun_of(unit), news: news.clone() }).await;
            }
            let others: Vec<usize> = links.others().collect();
            links.ask(others.into_iter(), || What::Preempted(unit, news.clone())).await;
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
