//! One core's view of an NVM subsystem: its namespaces, and the queues that this core serves.

use crate::auth::Outside;
use crate::auth::guard::Guard;
use crate::connect::Path;
use crate::controller::{Controller, Controllers, Kind};
use crate::event::Event;
use crate::namespace::{self, NAMESPACES_MAX, Namespace};
use crate::queue::Queue;
use lunar_core::io::Fault;
use lunar_core::mem::Arena;
use lunar_core::reserve::{News, SharedUnits};
use lunar_core::stats::Stats;
use lunar_core::unit::{Unit, UnitId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// The namespaces of a subsystem, by identifier.
pub(crate) type Namespaces = RefCell<BTreeMap<u32, Rc<Namespace>>>;

/// A clock: milliseconds since the beginning of 1970, UTC.
pub type Clock = Rc<dyn Fn() -> u64>;

/// What a subsystem is made from.
#[derive(Clone)]
pub struct SubsystemConfig {
    /// Its NQN.
    pub nqn: String,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
    /// What time it is where it runs.
    pub clock: Clock,
    /// Where this core counts.
    pub stats: Arc<Stats>,
    /// What its namespaces have in common with their views on other cores and of other command sets.
    pub shared: Arc<SharedUnits>,
    /// Its controllers: the same on all cores.
    pub controllers: Arc<Controllers>,
    /// Other discovery services that hosts are told of.
    pub referrals: Vec<Path>,
    /// Who may come in: the same on all cores.
    pub guard: Arc<Guard>,
    /// What proofs of names need.
    pub outside: Rc<dyn Outside>,
}

/// Where work on a whole medium is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewing {
    /// It has begun.
    Begun,
    /// It is over, and the medium can be used.
    Done,
    /// It is over, and the medium has to be written anew once more.
    Failed,
}

/// The whole medium once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pass {
    /// One block; empty for zeroes that need not be moved.
    pub pattern: Vec<u8>,
    /// Whether the space may be given back.
    pub unmap: bool,
}

/// What Sanitize does to a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sanitizing {
    /// These passes, one after the other.
    Begin {
        /// The passes.
        passes: Vec<Pass>,
        /// Whether a failure can be left without another one.
        exits: bool,
    },
    /// Leaves the state after a failure.
    Exit,
}

/// The views of the same units on all other cores, and those of other command sets on all cores.
pub trait Everywhere {
    /// The reservations of a unit have changed: done when all go by it.
    fn reservations(&self, unit: UnitId, news: Arc<News>) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Ends the commands of those who were preempted: done when they have ended.
    fn preempted(&self, unit: UnitId, news: Arc<News>) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Keeps where work on a whole medium is, so that it outlives this process.
    fn keep(&self, unit: UnitId, state: Renewing) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

    /// Sanitizes a unit, for all command sets; done when it has begun. It goes on whatever becomes of who asked, and of
    /// this process.
    fn sanitize(&self, unit: UnitId, how: Sanitizing, arena: Arena)
    -> Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

    /// A unit is written anew: done when all command sets keep from it, or use it again.
    fn renewing(&self, unit: UnitId, state: Renewing) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// [`Everywhere`] of a program with one core and one command set.
#[derive(Clone, Copy, Debug)]
pub struct Nowhere;

impl Everywhere for Nowhere {
    fn reservations(&self, _unit: UnitId, _news: Arc<News>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }

    fn preempted(&self, _unit: UnitId, _news: Arc<News>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }

    fn keep(&self, _unit: UnitId, _state: Renewing) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn sanitize(
        &self,
        _unit: UnitId,
        _how: Sanitizing,
        _arena: Arena,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        Box::pin(std::future::ready(Err(Fault::Unsupported)))
    }

    fn renewing(&self, _unit: UnitId, _state: Renewing) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

/// One core's view of an NVM subsystem.
pub struct Subsystem {
    config: SubsystemConfig,
    pub(crate) everywhere: Rc<dyn Everywhere>,
    namespaces: Rc<Namespaces>,
    queues: RefCell<Vec<Weak<Queue>>>,
    access_changes: Cell<u64>,
    /// Where answers are written before they are copied to memory that can be sent.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Subsystem {
    /// A subsystem without namespaces.
    #[must_use]
    pub fn new(config: SubsystemConfig, everywhere: Rc<dyn Everywhere>) -> Rc<Self> {
        Rc::new(Self {
            config,
            everywhere,
            namespaces: Rc::default(),
            queues: RefCell::default(),
            access_changes: Cell::new(1),
            scratch: RefCell::default(),
        })
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &SubsystemConfig {
        &self.config
    }

    /// Adds a namespace, or puts another in its place.
    ///
    /// # Panics
    /// When `id` is not 1 to [`NAMESPACES_MAX`].
    pub fn add_namespace(&self, id: u32, unit: Rc<Unit>) {
        assert!((1..=NAMESPACES_MAX).contains(&id), "there is no namespace {id}");
        let shared = self.config.shared.of(&unit);
        self.namespaces.borrow_mut().insert(id, Rc::new(Namespace::new(id, unit, shared)));
        self.queues().iter().for_each(|queue| queue.forget(id));
    }

    /// Removes a namespace. Commands that run end as they would.
    pub fn remove_namespace(&self, id: u32) {
        if self.namespaces.borrow_mut().remove(&id).is_some() {
            self.queues().iter().for_each(|queue| queue.forget(id));
        }
    }

    /// Tells the hosts of all cores that namespaces came or went: once, whatever the number of cores.
    pub fn tell_namespaces(&self) {
        self.config.controllers.all().iter().for_each(|controller| controller.raise(Event::NAMESPACES));
    }

    /// Tells the hosts that ask the discovery service that it has something else to tell: once, whatever the number of
    /// cores.
    pub fn tell_discovery(&self) {
        self.config.controllers.discovery_has_changed();
        let all = self.config.controllers.all();
        let asks = |controller: &&Arc<Controller>| controller.kind == Kind::Discovery;
        all.iter().filter(asks).for_each(|controller| controller.raise(Event::DISCOVERY));
    }

    /// The namespace of this identifier.
    #[must_use]
    pub fn namespace(&self, id: u32) -> Option<Rc<Namespace>> {
        self.namespaces.borrow().get(&id).cloned()
    }

    /// All namespaces, in the order of their identifiers.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Rc<Namespace>> {
        self.namespaces.borrow().values().cloned().collect()
    }

    /// The largest identifier that a namespace may have (NN).
    #[must_use]
    pub fn last_namespace(&self) -> u32 {
        /// So that a few more may come without a word about it.
        const ROOM: u32 = 32;
        let last = self.namespaces.borrow().keys().next_back().copied().unwrap_or(0);
        last.next_multiple_of(ROOM).clamp(ROOM, NAMESPACES_MAX)
    }

    pub(crate) fn enter_queue(
        &self,
        controller: Arc<Controller>,
        id: u16,
        entries: u16,
        flow_control: bool,
    ) -> Rc<Queue> {
        let controllers = self.config.controllers.clone();
        let queue = Queue::new(controller, id, entries, flow_control, self.namespaces.clone(), controllers);
        let queue = Rc::new(queue);
        let mut queues = self.queues.borrow_mut();
        queues.retain(|old| old.strong_count() > 0);
        queues.push(Rc::downgrade(&queue));
        queue
    }

    /// The queues of this core.
    #[must_use]
    pub fn queues(&self) -> Vec<Rc<Queue>> {
        self.queues.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// The namespaces of a unit.
    fn of_unit(&self, unit: UnitId) -> Vec<Rc<Namespace>> {
        self.namespaces.borrow().values().filter(|namespace| namespace.unit.id == unit).cloned().collect()
    }

    /// Has the hosts that this core serves go by the reservations of a unit as they are now.
    pub fn see_reservations(&self, unit: UnitId) {
        for namespace in self.of_unit(unit) {
            self.queues().iter().for_each(|queue| queue.look_at_reservations(namespace.id));
        }
    }

    /// Tells the hosts of all cores of a change of reservations: once, whatever the number of cores.
    pub fn tell_reservations(&self, unit: UnitId, news: &News) {
        if news.told.is_empty() {
            return;
        }
        for controller in self.config.controllers.all() {
            let Some(told) = news.told.get(&controller.host.nexus()) else { continue };
            for namespace in self.of_unit(unit) {
                crate::reserve::notify(&controller, namespace.id, *told);
            }
        }
    }

    /// Aborts the commands of those of this core who were preempted, and waits for them.
    pub async fn end_preempted(&self, unit: UnitId, news: &News) {
        let mut ended = self.queues();
        ended.retain(|queue| news.ends(queue.name()));
        for namespace in self.of_unit(unit) {
            for queue in &ended {
                self.config.stats.tasks_aborted.add(queue.tasks.abort(|(_, id)| id == namespace.id));
            }
            for queue in &ended {
                queue.tasks.until_gone(|(_, id)| id == namespace.id).await;
            }
        }
    }

    /// Changes of asymmetric access so far, and one more.
    pub(crate) fn access_changes(&self) -> u64 {
        self.access_changes.get()
    }

    /// Brings a unit into a state of asymmetric access on this core.
    pub fn set_access(&self, unit: UnitId, access: namespace::Access) {
        for namespace in self.of_unit(unit) {
            if namespace.set_access(access) {
                self.access_changes.set(self.access_changes.get() + 1);
                self.queues().iter().filter(|q| q.id == 0).for_each(|queue| queue.controller.raise(Event::ACCESS));
            }
        }
    }
}

impl fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subsystem({})", self.config.nqn)
    }
}
