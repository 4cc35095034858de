//! One core's view of the NVM subsystems: their namespaces, and the queues that this core serves. A volume that several
//! of them show is one unit, with one state.

use crate::auth::authentication::AuthServices;
use crate::auth::authenticator::Authenticator;
use crate::command::Status;
use crate::controller::{Controller, Controllers, property};
use crate::directory::SubsystemRegistry;
use crate::history::Happened;
use crate::namespace::{NAMESPACES_MAX, Namespace};
use crate::namespace_map::{Mapping, NamespaceMap};
use crate::namespace_table::NamespaceTable;
use crate::path::Kind;
use crate::pool::Request;
use crate::queue::Queue;
use lunar_core::stats::Stats;
use lunar_core::unit::{Unit, UnitId};
use lunar_unit::{CoreUnits, LocalFuture};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

/// A clock: milliseconds since the beginning of 1970, UTC.
pub type Clock = Rc<dyn Fn() -> u64>;

/// The configuration of one core's view of the subsystems.
#[derive(Clone)]
pub struct SubsystemConfig {
    /// The clock of the target.
    pub clock: Clock,
    /// The statistics of this core.
    pub stats: Arc<Stats>,
    /// The state of the units.
    pub units: Rc<CoreUnits>,
    /// The controllers of all subsystems: the same on all cores.
    pub controllers: Arc<Controllers>,
    /// The subsystems, and which hosts may connect: the same on all cores.
    pub subsystems: Arc<SubsystemRegistry>,
    /// Admits and refuses hosts: the same on all cores.
    pub authenticator: Arc<Authenticator>,
    /// The services that authentication needs.
    pub services: Rc<dyn AuthServices>,
}

/// The services that the program provides to subsystems.
pub trait SubsystemServices {
    /// Aborts a command of a controller on another core. Done when the command has ended; returns whether there was
    /// one.
    fn abort(&self, controller: u16, queue: u16, command: u16) -> LocalFuture<'static, bool>;

    /// Creates, deletes, attaches or detaches namespaces for a host. Done when that is durable and all cores go by it;
    /// returns the identifier of a namespace that was created, or zero. It goes on when the command is aborted.
    fn manage(&self, request: Request) -> LocalFuture<'static, Result<u32, Status>>;
}

/// [`SubsystemServices`] of a program with one core, whose hosts create no namespaces.
#[derive(Clone, Copy, Debug)]
pub struct SingleCoreServices;

impl SubsystemServices for SingleCoreServices {
    fn abort(&self, _controller: u16, _queue: u16, _command: u16) -> LocalFuture<'static, bool> {
        Box::pin(std::future::ready(false))
    }

    fn manage(&self, _request: Request) -> LocalFuture<'static, Result<u32, Status>> {
        Box::pin(std::future::ready(Err(Status::OPERATION_DENIED)))
    }
}

/// One core's view of the NVM subsystems.
pub struct Subsystem {
    config: SubsystemConfig,
    pub(crate) services: Rc<dyn SubsystemServices>,
    pub(crate) space: Rc<NamespaceTable>,
    queues: RefCell<Vec<Weak<Queue>>>,
    access_changes: Cell<u64>,
    /// Where answers are written before they are copied to memory that can be sent.
    pub(crate) scratch: RefCell<Vec<u8>>,
}

impl Subsystem {
    /// Without namespaces.
    #[must_use]
    pub fn new(config: SubsystemConfig, services: Rc<dyn SubsystemServices>) -> Rc<Self> {
        let units = config.units.clone();
        let subsystem = Rc::new(Self {
            config,
            services,
            space: Rc::default(),
            queues: RefCell::default(),
            access_changes: Cell::new(1),
            scratch: RefCell::default(),
        });
        units.add_command_set(&subsystem);
        subsystem
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &SubsystemConfig {
        &self.config
    }

    /// Adds a unit, or replaces the one of this number. Hosts see it by the maps that show it.
    pub fn add_unit(&self, unit: Rc<Unit>) {
        let (id, shared) = (unit.id, self.config.units.add(&unit));
        self.space.add(Rc::new(Namespace::new(unit, shared)));
        self.queues().iter().for_each(|queue| queue.forget_unit(id));
    }

    /// Adds a unit, and shows it as a namespace to hosts without a map.
    ///
    /// # Panics
    /// If `id` is not 1 to [`NAMESPACES_MAX`].
    pub fn add_namespace(&self, id: u32, unit: Rc<Unit>) {
        self.show(id, Mapping::plain(unit.id));
        self.add_unit(unit);
    }

    /// Shows a unit as a namespace to hosts without a map.
    ///
    /// # Panics
    /// If `id` is not 1 to [`NAMESPACES_MAX`].
    pub fn show(&self, id: u32, to: Mapping) {
        assert!((1..=NAMESPACES_MAX).contains(&id), "there is no namespace {id}");
        self.space.show(id, to);
    }

    /// Removes a unit. Commands in progress end as usual.
    pub fn remove_unit(&self, unit: UnitId) {
        self.space.remove(unit);
        self.queues().iter().for_each(|queue| queue.forget_unit(unit));
    }

    /// Publishes a map under this name, on this core. Commands at identifiers that name another unit now may end until
    /// `patience` is over; then they are aborted. None of them is left when this returns.
    pub async fn set_map(&self, name: &Arc<str>, map: NamespaceMap, patience: impl Future<Output = ()>) {
        let ids = self.space.set_map(name, map);
        let mut behind = self.queues();
        behind.retain(|queue| queue.map() == Some(name));
        self.leave(&behind, &ids, patience).await;
    }

    /// Detaches controllers from namespaces. Their commands there, on this core, may end until `patience` is over; then
    /// they are aborted. None of them is left when this returns.
    pub async fn detach(&self, controllers: &[u16], ids: &[u32], patience: impl Future<Output = ()>) {
        let mut queues = self.queues();
        queues.retain(|queue| controllers.contains(&queue.controller.id));
        self.leave(&queues, ids, patience).await;
    }

    /// Drops the views that queues have of these identifiers, and waits until the commands of before have ended.
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

    /// Forgets the map of this name on this core. No host has it any more.
    pub fn forget_map(&self, name: &str) {
        self.space.forget_map(name);
    }

    /// The maps.
    #[must_use]
    pub fn maps(&self) -> Vec<(Arc<str>, Rc<NamespaceMap>)> {
        self.space.maps()
    }

    /// Records the hosts of all cores that see these units, whose sizes have changed, until they identify the
    /// namespaces. Before [`Subsystem::tell_namespaces`], so that a fast host is not recorded after its answer.
    pub fn resized(&self, units: &[UnitId]) {
        for unit in units {
            let Some(namespace) = self.space.unit(*unit) else { continue };
            for controller in self.config.controllers.all() {
                let ids = self.space.ids_of(&controller, *unit);
                ids.iter().for_each(|id| controller.resize_namespace(*id, &namespace.shared));
            }
        }
    }

    /// Tells the hosts of all cores of changed namespaces, once, whatever the number of cores: the hosts of these maps
    /// of these identifiers, and the hosts that see one of these units.
    pub fn tell_namespaces(&self, maps: &BTreeMap<Arc<str>, Vec<u32>>, units: &[UnitId]) {
        for controller in self.config.controllers.all() {
            let map = controller.access_grant.map.as_ref();
            let mut ids = map.and_then(|map| maps.get(map)).cloned().unwrap_or_default();
            // These identifiers mean other namespaces, or none.
            ids.iter().for_each(|id| controller.size_read(*id));
            ids.extend(units.iter().flat_map(|unit| self.space.ids_of(&controller, *unit)));
            if !ids.is_empty() {
                controller.change_namespaces(ids);
            }
        }
    }

    /// Adds an event to the persistent event log of a controller's subsystem.
    pub fn note(&self, controller: &Controller, what: Happened) {
        controller.access_grant.subsystem.history.note(controller.id, (self.config.clock)(), what);
    }

    /// Sets a property of a controller, of four bytes or of eight. A reset by its host is logged.
    ///
    /// # Errors
    /// As [`Controller::set_property`].
    pub fn set_property(&self, controller: &Controller, offset: u32, eight: bool, value: u64) -> Result<(), Status> {
        let was_enabled = controller.is_enabled();
        controller.set_property(offset, eight, value)?;
        let enabled = controller.property(property::CC, false).is_some_and(|value| value & 1 > 0);
        if was_enabled && !enabled && controller.kind == Kind::Io {
            let firmware = controller.access_grant.subsystem.firmware.clone();
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

    /// Counts the session of a queue, or a connection of it, for its host from now on: the host is admitted.
    pub(crate) fn count_host(&self, queue: &Queue) {
        let controller = &queue.controller;
        let (hosts, transport) = (&self.config.stats.hosts, controller.path.word());
        let (target, host) = (&controller.access_grant.subsystem.nqn, &controller.host.nqn);
        let counted = match queue.id {
            0 => hosts.session(transport, target, host),
            _ => hosts.connection(transport, target, host),
        };
        // A host is admitted once for a queue.
        let _ = queue.host.set(counted);
    }

    /// The queues of this core.
    #[must_use]
    pub fn queues(&self) -> Vec<Rc<Queue>> {
        self.queues.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// The number of changes of asymmetric access so far, and one more.
    pub(crate) fn access_changes(&self) -> u64 {
        self.access_changes.get()
    }

    pub(crate) fn count_access_change(&self) {
        self.access_changes.set(self.access_changes.get() + 1);
    }
}

impl fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subsystem({} queues)", self.queues().len())
    }
}
