//! One core, from its start to its end: its units and fronts, and the jobs of other threads.

use super::context::CoreContext;
use super::front_on_core::FrontOnCore;
use super::listener::{Acceptor, Listener, PortalFront};
use super::mesh::{AllCores, CoreMesh, OtherCores};
use super::message::{CoreMessage, FrontJob, Job, Request};
use super::nvme_services::NvmeServices;
use super::shared::Shared;
use crate::authentication::CoreAuthentication;
use crate::backend::{Opened, OpenedDevice, OpenedStore};
use crate::error::EngineError;
use crate::local_nexus::LocalNexus;
use crate::volume::{Volume, VolumeError};
use lunar_blk::BlockSet;
use lunar_core::io::Fault;
use lunar_core::medium::{Medium, MediumKind};
use lunar_core::range::Ranges;
use lunar_core::step::{SlotContext, flush_now};
use lunar_core::tally::SharedTally;
use lunar_core::unit::{Exclusive, Geometry, Unit, UnitId};
use lunar_nvme::{Subsystem, SubsystemConfig};
use lunar_reactor::channel::{Receiver, Sender};
use lunar_reactor::end::End;
use lunar_reactor::{Reactor, log};
use lunar_scsi::device_server::DeviceServer;
use lunar_scsi::lu::ForwardedUnit;
use lunar_scsi::{Clock, Target, TargetConfig};
use lunar_unit::CoreUnits;
use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{pending, ready};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between two checks of the free space of volumes with armed thresholds: often enough for an operator, and cheap.
const SPACE_INTERVAL: Duration = Duration::from_secs(2);

/// Time between two checks whether the commands at a changed unit have ended, and the limit of that wait: the command
/// timeout of hosts.
const LEFT_INTERVAL: Duration = Duration::from_millis(100);
const LEFT_MAX: Duration = Duration::from_secs(60);

/// A unit to be opened.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Its number until it is placed.
    pub ticket: u64,
    /// The number of the unit: that of the unit that it replaces, if it is the same one in another shape.
    pub unit: UnitId,
    /// Its volume.
    pub volume: Volume,
    /// The state of its medium.
    pub medium: Medium,
    /// The counters of its commands.
    pub tally: SharedTally,
}

/// A unit that is open and not placed yet.
enum ReadyUnit {
    /// On a store: for all command sets; and a process with SCSI commands that Lunar does not have.
    Store(Rc<Unit>, Option<Rc<dyn DeviceServer>>),
    /// On a device, to which SCSI commands are forwarded.
    Device(ForwardedUnit),
}

/// The refusal of a volume that a core cannot open.
fn refused(why: std::io::Error) -> EngineError {
    EngineError::Volume(VolumeError::Core(why))
}

/// One core while it runs.
pub struct Core {
    context: CoreContext,
    shared: Arc<Shared>,
    /// The fronts, in the order of the registry, once they are used.
    fronts: Vec<OnceCell<Rc<dyn FrontOnCore>>>,
    /// Units that are open, and not placed yet.
    opened: RefCell<BTreeMap<u64, ReadyUnit>>,
    listeners: RefCell<BTreeMap<u32, Rc<Listener>>>,
    /// The nexus of the operator, once it is used.
    local_nexus: OnceCell<Rc<LocalNexus>>,
    /// Signals that the core is asked to drain.
    draining: End,
    /// Units that were served with a write cache and are flushed: each comes when that has ended.
    left: RefCell<Vec<Rc<End>>>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.context.index)
    }
}

impl std::ops::Deref for Core {
    type Target = CoreContext;

    fn deref(&self) -> &CoreContext {
        &self.context
    }
}

impl Core {
    /// A core without units, on a reactor of this thread. `mailboxes` are those of all cores.
    pub(super) fn new(
        index: usize,
        shared: &Arc<Shared>,
        reactor: &Reactor,
        mailboxes: Vec<Sender<CoreMessage>>,
    ) -> Rc<Self> {
        let mesh = CoreMesh::new(index, mailboxes);
        Rc::new(Self {
            context: context(index, shared, reactor, mesh),
            shared: shared.clone(),
            fronts: shared.fronts().iter().map(|_| OnceCell::new()).collect(),
            opened: RefCell::default(),
            listeners: RefCell::default(),
            local_nexus: OnceCell::new(),
            draining: End::default(),
            left: RefCell::default(),
        })
    }

    /// The state that all cores share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The front of this index, which is made if it is not there yet. A draining core makes none.
    #[must_use]
    pub fn front(&self, index: usize) -> Option<Rc<dyn FrontOnCore>> {
        let place = self.fronts.get(index)?;
        if place.get().is_none() && self.draining.has_come() {
            return None;
        }
        let make = || self.shared.fronts()[index].on_core(&self.context);
        Some(place.get_or_init(make).clone())
    }

    /// The nexus of the operator, which is made if it is not there yet. A draining core has none.
    #[must_use]
    pub fn local_nexus(&self) -> Option<Rc<LocalNexus>> {
        let make = || LocalNexus::new(&self.reactor, &self.target);
        (!self.draining.has_come()).then(|| self.local_nexus.get_or_init(make).clone())
    }

    /// Locks ranges on all cores: for units that are made outside of the core.
    #[must_use]
    pub fn exclusive(&self) -> Rc<dyn Exclusive> {
        Rc::new(AllCores(Rc::downgrade(&self.mesh)))
    }

    /// The front of this type, if it is there.
    #[must_use]
    pub fn front_of<F: FrontOnCore>(&self) -> Option<Rc<F>> {
        self.used_fronts().find_map(|front| (front as Rc<dyn Any>).downcast::<F>().ok())
    }

    /// The fronts that are used on this core.
    pub fn used_fronts(&self) -> impl Iterator<Item = Rc<dyn FrontOnCore>> {
        self.fronts.iter().filter_map(|front| front.get().cloned())
    }

    /// Asks the sessions of all fronts that the configuration no longer allows to end; done when they have ended.
    pub async fn review(&self, ended: &Arc<BTreeSet<Arc<str>>>) {
        for front in self.used_fronts() {
            front.review(ended.clone()).await;
        }
    }

    /// Opens a unit, and keeps it until it is placed.
    ///
    /// # Errors
    /// When there is no room for open files or memory.
    pub(super) fn open(&self, opening: &Opening) -> Result<(), EngineError> {
        let ready = match opening.volume.opened() {
            Opened::Store(store) => {
                let unit = Rc::new(self.open_store(opening, &**store)?);
                ReadyUnit::Store(unit, store.open_commands(&self.reactor))
            }
            Opened::Device(device) => ReadyUnit::Device(self.open_device(opening, &**device)?),
        };
        self.opened.borrow_mut().insert(opening.ticket, ready);
        Ok(())
    }

    fn open_device(&self, opening: &Opening, device: &dyn OpenedDevice) -> Result<ForwardedUnit, EngineError> {
        Ok(ForwardedUnit {
            id: opening.unit,
            identity: opening.volume.identity().clone(),
            read_only: opening.volume.is_read_only(),
            metadata: opening.volume.metadata().clone(),
            tally: opening.tally.of_core(self.index),
            device: device.open(&self.reactor).map_err(refused)?,
        })
    }

    fn open_store(&self, opening: &Opening, store: &dyn OpenedStore) -> Result<Unit, EngineError> {
        let Opening { unit, volume, medium, tally, .. } = opening;
        let store = store.open(&self.reactor).map_err(refused)?;
        let block_size = volume.block_size();
        let geometry = Geometry::of(store.traits(), block_size).ok_or(EngineError::PartialBlock(block_size))?;
        let protection = volume.protection().map(|protection| protection.open(&self.reactor)).transpose();
        let protection = protection.map_err(refused)?;
        let before = self.mesh.unit(*unit);
        Ok(Unit {
            id: *unit,
            identity: volume.identity().clone(),
            geometry,
            read_only: store.traits().read_only,
            store: medium.guard(store),
            protection,
            // Commands in progress at the same unit in its shape before exclude new ones from their ranges.
            ranges: before.map_or_else(|| Rc::new(Ranges::default()), |before| before.ranges.clone()),
            medium: medium.clone(),
            tally: tally.of_core(self.index),
            exclusive: self.exclusive(),
            metadata: volume.metadata().clone(),
        })
    }

    pub(super) fn withdraw(&self, ticket: u64) {
        self.opened.borrow_mut().remove(&ticket);
    }

    pub(super) fn place(&self, ticket: u64) {
        let Some(ready) = self.opened.borrow_mut().remove(&ticket) else { return };
        let (unit, commands) = match ready {
            ReadyUnit::Store(unit, commands) => (unit, commands),
            // Units are numbered below the last LUN. NVMe does not see devices.
            ReadyUnit::Device(unit) => return self.target.add_forwarded(unit.id.0 as u16, unit),
        };
        if let Some(before) = self.mesh.unit(unit.id)
            && before.traits().write_cache
            && !unit.traits().write_cache
        {
            let (reactor, end) = (self.reactor.clone(), Rc::<End>::default());
            self.left.borrow_mut().push(end.clone());
            self.reactor.spawn(async move {
                flush_left(&reactor, before).await;
                end.come();
            });
        }
        self.mesh.add_unit(&unit);
        self.block.add_unit(unit.clone());
        // NVMe has no removable media.
        if unit.medium.kind() == MediumKind::Fixed {
            self.subsystem.add_unit(unit.clone());
        }
        // Units are numbered below the last LUN.
        self.target.add_unit_with(unit.id.0 as u16, unit, commands);
    }

    /// Flushes a unit.
    ///
    /// # Errors
    /// The fault of its store.
    pub async fn flush(&self, unit: UnitId) -> Result<(), Fault> {
        match self.mesh.unit(unit) {
            Some(unit) => flush_now(&unit).await,
            None => Ok(()),
        }
    }

    /// Waits until the units that lost their write cache are flushed, with what commands in progress wrote.
    pub async fn flushed(&self) {
        for end in self.left.take() {
            end.unless(pending::<()>()).await;
        }
    }

    /// Stops serving a unit that no map shows any more, and flushes it.
    pub async fn remove(&self, unit: UnitId) {
        self.target.remove_unit(unit.0 as u16);
        if let Some(local) = self.local_nexus.get() {
            local.leave(unit).await;
        }
        self.subsystem.remove_unit(unit);
        self.block.remove_unit(unit, ready(())).await;
        // The unit stays known until it is flushed: a core that stops meanwhile flushes it, too.
        if let Some(known) = self.mesh.unit(unit)
            && let Err(why) = flush_now(&known).await
        {
            log!(error, "a volume that is no longer served could not be flushed: {why:?}");
        }
        self.mesh.forget_unit(unit);
        // The next unit of this number is another one, so its ROD tokens are dropped. Each core does so, so none are
        // left after the last one.
        self.shared.tokens.forget(unit);
        self.shared.units.forget(unit);
    }

    /// Listens at an address for the portal of this number; no connection is accepted before [`Core::accept`]. Returns
    /// the address with its port.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn listen(&self, portal: u32, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let (listener, address) = Listener::bind(&self.reactor, address)?;
        self.listeners.borrow_mut().insert(portal, listener);
        Ok(address)
    }

    /// Accepts the connections of a portal from now on, for this front.
    pub fn accept(&self, portal: u32, front: PortalFront) {
        let found = self.listeners.borrow().get(&portal).cloned();
        let (reactor, mesh) = (self.reactor.clone(), Rc::downgrade(&self.mesh));
        let acceptor = Acceptor { reactor, mesh, stats: self.shared.stats.clone() };
        found.iter().for_each(|listener| listener.accept(acceptor.clone(), front));
    }

    pub(super) fn close(&self, portal: u32) {
        let found = self.listeners.borrow_mut().remove(&portal);
        found.iter().for_each(|listener| listener.close(&self.reactor));
    }

    /// Serves until the core is told to drain, and drains.
    pub(super) async fn serve(self: Rc<Self>, messages: Receiver<CoreMessage>) -> Result<(), EngineError> {
        {
            let (core, reactor) = (self.clone(), self.reactor.clone());
            reactor.spawn(async move { core.receive(messages).await });
        }
        if self.index == 0 {
            let (reactor, target) = (self.reactor.clone(), self.target.clone());
            self.reactor.spawn(async move { watch_space(&reactor, &target).await });
        }
        self.draining.unless(pending::<()>()).await;
        for front in self.used_fronts() {
            front.drained().await;
        }
        if let Some(local) = self.local_nexus.get() {
            local.close().await;
        }
        // If one unit cannot be flushed, the others still are.
        let mut failed = Vec::new();
        for unit in self.mesh.units() {
            if let Err(why) = flush_now(&unit).await {
                failed.push(format!("unit {} could not be flushed: {why:?}", unit.id.0));
            }
        }
        self.listeners.take().values().for_each(|listener| listener.close(&self.reactor));
        if failed.is_empty() { Ok(()) } else { Err(EngineError::NotFlushed(failed)) }
    }

    /// Takes the messages that reach this core.
    async fn receive(self: Rc<Self>, mut messages: Receiver<CoreMessage>) {
        while let Some(message) = messages.recv().await {
            match message {
                CoreMessage::Answer(id) => self.mesh.answered(id),
                CoreMessage::Connection(front, portal, incoming) => {
                    if let Some(front) = self.front(front) {
                        front.serve(incoming, portal);
                    }
                }
                CoreMessage::Job(Job(work)) => self.reactor.spawn(work(self.clone())),
                CoreMessage::Front(FrontJob { front, work }) => self.reactor.spawn(work(self.front(front))),
                CoreMessage::Drain => {
                    self.used_fronts().for_each(|front| front.drain());
                    self.draining.come();
                }
                CoreMessage::Ask { from, request, guard } => {
                    // A task of its own: a range may take long to become free, and messages must not wait for it.
                    let core = self.clone();
                    self.reactor.spawn(async move {
                        core.carry_out(from, guard.id, request).await;
                        drop(guard);
                    });
                }
            }
        }
    }

    async fn carry_out(&self, from: usize, id: u64, request: Request) {
        match request {
            Request::Unit(message) => self.units.deliver(message).await,
            Request::LockRange(unit, span) => self.mesh.lock_here(from, id, unit, span).await,
            Request::ReleaseRange(locked) => self.mesh.release_here(from, locked),
            Request::AbortCommand([controller, queue, command], found) => {
                let aborted = self.subsystem.abort_here(controller, queue, command).await;
                found.fetch_or(aborted, Ordering::Relaxed);
            }
            Request::Front(FrontJob { front, work }) => work(self.front(front)).await,
        }
    }
}

/// The views of a core, without any unit.
fn context(index: usize, shared: &Shared, reactor: &Reactor, mesh: Rc<CoreMesh>) -> CoreContext {
    let stats = shared.stats[index].clone();
    let units = CoreUnits::new(shared.units.clone(), Rc::new(OtherCores(mesh.clone())));
    let spawner = reactor.clone();
    units.run_in_background(Rc::new(move |work| spawner.spawn(work)));
    let host = shared.host.clone();
    let clock: Rc<dyn Fn() -> u64> = Rc::new(move || host.wall_clock());
    let target = Target::new(TargetConfig {
        ports: Vec::new(),
        clock: Clock(clock.clone()),
        stats: stats.clone(),
        units: units.clone(),
        tokens: shared.tokens.clone(),
    });
    let subsystem = Subsystem::new(
        SubsystemConfig {
            clock,
            stats,
            units: units.clone(),
            controllers: shared.controllers.clone(),
            subsystems: shared.subsystems.clone(),
            authenticator: shared.authenticator.clone(),
            services: Rc::new(CoreAuthentication::new(reactor, &shared.authentication)),
        },
        Rc::new(NvmeServices {
            reactor: reactor.clone(),
            mesh: mesh.clone(),
            requests: shared.namespace_requests.clone(),
        }),
    );
    let block = BlockSet::new(shared.stats[index].clone(), units.clone());
    CoreContext { index, reactor: reactor.clone(), mesh, units, target, subsystem, block }
}

/// Flushes a unit whose write cache was switched off, because its clients no longer flush: once immediately, and once
/// when the commands in progress have ended.
async fn flush_left(reactor: &Reactor, before: Rc<Unit>) {
    for patience in [Duration::ZERO, LEFT_MAX] {
        let begun = reactor.now();
        while Rc::strong_count(&before) > 1 && reactor.now().since(begun) < patience {
            reactor.sleep(LEFT_INTERVAL).await;
        }
        if let Err(why) = flush_now(&before).await {
            let serial = &before.identity.serial;
            log!(error, "volume {serial}: could not be flushed after its write cache was switched off: {why:?}");
        }
    }
}

/// Checks thresholds while there are any.
async fn watch_space(reactor: &Reactor, target: &Target) {
    let mut slot = SlotContext::new(reactor.arena().clone());
    loop {
        target.until_watched().await;
        target.watch_space(&mut slot).await;
        reactor.sleep(SPACE_INTERVAL).await;
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
