//! One core's view of the NVM subsystems: their namespaces, and the queues that this core serves. A volume that is in
//! several of them is one unit, with one set of reservations.

use crate::auth::Outside;
use crate::auth::guard::Guard;
use crate::command::Status;
use crate::controller::{Controller, Controllers, Kind, property};
use crate::directory::Board;
use crate::event::Event;
use crate::history::Happened;
use crate::manage::Request;
use crate::namespace::{self, NAMESPACES_MAX, Namespace};
use crate::queue::Queue;
use crate::space::{Mapping, NamespaceMap, Space};
use lunar_core::io::Fault;
use lunar_core::mem::Arena;
use lunar_core::reserve::{News, SharedUnits};
use lunar_core::stats::Stats;
use lunar_core::unit::{Unit, UnitId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

/// A clock: milliseconds since the beginning of 1970, UTC.
pub type Clock = Rc<dyn Fn() -> u64>;

/// What a core's view of the subsystems is made from.
#[derive(Clone)]
pub struct SubsystemConfig {
    /// What time it is where it runs.
    pub clock: Clock,
    /// Where this core counts.
    pub stats: Arc<Stats>,
    /// What its namespaces have in common with their views on other cores and of other command sets.
    pub shared: Arc<SharedUnits>,
    /// The controllers of all subsystems: the same on all cores.
    pub controllers: Arc<Controllers>,
    /// What subsystems there are, and who may come in: the same on all cores.
    pub board: Arc<Board>,
    /// Who asks whether a host may come in: the same on all cores.
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

    /// Ends a command of a controller early: done when it has ended. Tells whether one of the other cores had it.
    fn abort(&self, controller: u16, queue: u16, command: u16) -> Pin<Box<dyn Future<Output = bool>>>;

    /// Keeps where work on a whole medium is, so that it outlives this process.
    fn keep(&self, unit: UnitId, state: Renewing) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

    /// Sanitizes a unit, for all command sets; done when it has begun. It goes on whatever becomes of who asked, and of
    /// this process.
    fn sanitize(&self, unit: UnitId, how: Sanitizing, arena: Arena)
    -> Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

    /// A unit is written anew: done when all command sets keep from it, or use it again.
    fn renewing(&self, unit: UnitId, state: Renewing) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Has namespaces come, go, or be had by others: done when it lasts and all cores go by it. Tells the identifier of
    /// one that is made, or zero. It goes on whatever becomes of who asked.
    fn manage(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<u32, Status>>>>;
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

    fn abort(&self, _controller: u16, _queue: u16, _command: u16) -> Pin<Box<dyn Future<Output = bool>>> {
        Box::pin(std::future::ready(false))
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

    fn manage(&self, _request: Request) -> Pin<Box<dyn Future<Output = Result<u32, Status>>>> {
        Box::pin(std::future::ready(Err(Status::OPERATION_DENIED)))
    }
}

/// One core's view of the NVM subsystems.
pub struct Subsystem {
    config: SubsystemConfig,
    pub(crate) everywhere: Rc<dyn Everywhere>,
    pub(crate) space: Rc<Space>,
    queues: RefCell<Vec<Weak<Queue>>>,
    access_changes: Cell<u64>,
    /// Where answers are written before they are copied to memory that can be sent.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Subsystem {
    /// Without namespaces.
    #[must_use]
    pub fn new(config: SubsystemConfig, everywhere: Rc<dyn Everywhere>) -> Rc<Self> {
        Rc::new(Self {
            config,
            everywhere,
            space: Rc::default(),
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

    /// Adds a unit, or puts another in its place; hosts see it by the maps that show it.
    pub fn add_unit(&self, unit: Rc<Unit>) {
        let (id, shared) = (unit.id, self.config.shared.of(&unit));
        self.space.add(Rc::new(Namespace::new(unit, shared)));
        self.queues().iter().for_each(|queue| queue.forget_unit(id));
    }

    /// Adds a unit, and shows it as a namespace to hosts that are not behind a map.
    ///
    /// # Panics
    /// When `id` is not 1 to [`NAMESPACES_MAX`].
    pub fn add_namespace(&self, id: u32, unit: Rc<Unit>) {
        self.show(id, Mapping::plain(unit.id));
        self.add_unit(unit);
    }

    /// Shows a unit as a namespace to hosts that are not behind a map.
    ///
    /// # Panics
    /// When `id` is not 1 to [`NAMESPACES_MAX`].
    pub fn show(&self, id: u32, to: Mapping) {
        assert!((1..=NAMESPACES_MAX).contains(&id), "there is no namespace {id}");
        self.space.show(id, to);
    }

    /// Removes a unit. Commands that run end as they would.
    pub fn remove_unit(&self, unit: UnitId) {
        self.space.remove(unit);
        self.queues().iter().for_each(|queue| queue.forget_unit(unit));
    }

    /// Puts a map in force under this name, on this core. What hosts behind it run at identifiers that mean something
    /// else now gets to finish until `patience` is over, is aborted then, and gone when this returns.
    pub async fn set_map(&self, name: &Arc<str>, map: NamespaceMap, patience: impl Future<Output = ()>) {
        let ids = self.space.set_map(name, map);
        let mut behind = self.queues();
        behind.retain(|queue| queue.map() == Some(name));
        self.leave(&behind, &ids, patience).await;
    }

    /// These controllers are not attached to these namespaces any more: what they run there on this core gets to finish
    /// until `patience` is over, is aborted then, and gone when this returns.
    pub async fn detach(&self, controllers: &[u16], ids: &[u32], patience: impl Future<Output = ()>) {
        let mut queues = self.queues();
        queues.retain(|queue| controllers.contains(&queue.controller.id));
        self.leave(&queues, ids, patience).await;
    }

    /// Has queues forget what these identifiers mean, and waits until nothing goes on there that began before.
    async fn leave(&self, queues: &[Rc<Queue>], ids: &[u32], patience: impl Future<Output = ()>) {
        for queue in queues {
            ids.iter().for_each(|id| queue.forget(*id));
        }
        let changed: Vec<_> = queues.iter().map(|queue| (queue, queue.tasks.moment())).collect();
        let finish = async {
            for (queue, moment) in &changed {
                queue.tasks.until_left(*moment, |task| queue.is_at(task, ids)).await;
            }
        };
        let (mut finish, mut patience) = (pin!(finish), pin!(patience));
        poll_fn(|cx| if finish.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { patience.as_mut().poll(cx) })
            .await;
        for (queue, moment) in &changed {
            self.config.stats.tasks_aborted.add(queue.tasks.abort_before(*moment, |task| queue.is_at(task, ids)));
        }
        for (queue, _) in &changed {
            queue.tasks.until_gone(|task| queue.is_at(task, ids)).await;
        }
    }

    /// Forgets the map of this name on this core; no host is behind it any more.
    pub fn forget_map(&self, name: &str) {
        self.space.forget_map(name);
    }

    /// The maps.
    #[must_use]
    pub fn maps(&self) -> Vec<(Arc<str>, Rc<NamespaceMap>)> {
        self.space.maps()
    }

    /// Tells the hosts of all cores that namespaces came, went, or are others: those of these identifiers to who is
    /// behind one of these maps, and these units to who sees them. Once, whatever the number of cores.
    pub fn tell_namespaces(&self, maps: &BTreeMap<Arc<str>, Vec<u32>>, units: &[UnitId]) {
        for controller in self.config.controllers.all() {
            let map = controller.standing.map.as_ref();
            let mut ids = map.and_then(|map| maps.get(map)).cloned().unwrap_or_default();
            ids.extend(units.iter().flat_map(|unit| self.space.ids_of(&controller, *unit)));
            if !ids.is_empty() {
                controller.change_namespaces(ids);
            }
        }
    }

    /// Puts something into the persistent event log of a controller's subsystem.
    pub fn note(&self, controller: &Controller, what: Happened) {
        controller.standing.subsystem.history.note(controller.id, (self.config.clock)(), what);
    }

    /// Sets a property of a controller, of four bytes or of eight; that its host has reset it is remembered.
    ///
    /// # Errors
    /// As [`Controller::set_property`].
    pub fn set_property(&self, controller: &Controller, offset: u32, eight: bool, value: u64) -> Result<(), Status> {
        let was_enabled = controller.is_enabled();
        controller.set_property(offset, eight, value)?;
        let enabled = controller.property(property::CC, false).is_some_and(|value| value & 1 > 0);
        if was_enabled && !enabled && controller.kind == Kind::Io {
            let firmware = controller.standing.subsystem.firmware.clone();
            self.note(controller, Happened::Reset { firmware });
        }
        Ok(())
    }

    /// This core's view of a unit.
    #[must_use]
    pub fn unit(&self, unit: UnitId) -> Option<Rc<Namespace>> {
        self.space.unit(unit)
    }

    pub(crate) fn enter_queue(
        &self,
        controller: Arc<Controller>,
        id: u16,
        entries: u16,
        flow_control: bool,
    ) -> Rc<Queue> {
        let controllers = self.config.controllers.clone();
        let queue = Queue::new(controller, id, entries, flow_control, self.space.clone(), controllers);
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

    /// Has the hosts that this core serves go by the reservations of a unit as they are now.
    pub fn see_reservations(&self, unit: UnitId) {
        self.queues().iter().for_each(|queue| queue.look_at_reservations(unit));
    }

    /// Tells the hosts of all cores of a change of reservations: once, whatever the number of cores.
    pub fn tell_reservations(&self, unit: UnitId, news: &News) {
        if news.told.is_empty() {
            return;
        }
        for controller in self.config.controllers.all() {
            let Some(told) = news.told.get(&controller.host.nexus()) else { continue };
            for id in self.space.ids_of(&controller, unit) {
                crate::reserve::notify(&controller, id, *told);
            }
        }
    }

    /// Aborts the commands of those of this core who were preempted, and waits for them.
    pub async fn end_preempted(&self, unit: UnitId, news: &News) {
        let mut ended = self.queues();
        ended.retain(|queue| news.ends(queue.name()));
        let ended: Vec<_> = ended.iter().map(|queue| (queue, queue.ids_of(unit))).collect();
        for (queue, ids) in &ended {
            self.config.stats.tasks_aborted.add(queue.tasks.abort(|(_, id)| ids.contains(&id)));
        }
        for (queue, ids) in &ended {
            queue.tasks.until_gone(|(_, id)| ids.contains(&id)).await;
        }
    }

    /// Changes of asymmetric access so far, and one more.
    pub(crate) fn access_changes(&self) -> u64 {
        self.access_changes.get()
    }

    /// Brings a portal group into a state of asymmetric access at a unit, on this core.
    pub fn set_access(&self, unit: UnitId, group: u16, access: namespace::Access) {
        let Some(found) = self.space.unit(unit) else { return };
        if !found.set_access(group, access) {
            return;
        }
        self.access_changes.set(self.access_changes.get() + 1);
        for queue in self.queues().iter().filter(|queue| queue.controller.path.way.group == group) {
            queue.set_access(unit, access);
            if queue.id == 0 && !queue.ids_of(unit).is_empty() {
                queue.controller.raise(Event::ACCESS);
            }
        }
    }
}

impl fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subsystem({} queues)", self.queues().len())
    }
}
