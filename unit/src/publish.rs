//! How a change reaches every view of a unit: the command sets of this core, and the other cores.

use crate::change::{Ordered, UnitChange};
use crate::ledger::LocalFuture;
use crate::shared::SharedUnits;
use lunar_core::metadata::MetadataStore;
use lunar_core::unit::{Unit, UnitId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// The views of units that one command set has on one core.
pub trait CommandSet {
    /// A change has taken effect. Updates the cells of this core, notifies the clients of this core, and marks the
    /// tasks that are to be aborted ([`Effects::aborts`](crate::change::Effects::aborts)), without waiting for them.
    /// It is called on every core, before the proposer is answered.
    fn changed(&self, change: &Ordered);

    /// The change is in force on all cores. It is called on the proposer's core only, for actions that are taken once
    /// for all cores.
    fn published(&self, change: &Ordered);

    /// Waits until the tasks of this core that the change has aborted have ended.
    fn aborted<'a>(&'a self, change: &'a Ordered) -> LocalFuture<'a, ()>;
}

/// A message about a change, from the core of the proposer to another core.
#[derive(Clone, Debug)]
pub enum UnitMessage {
    /// The change takes effect.
    Changed(Arc<Ordered>),
    /// Waits until the tasks that it aborts have ended.
    Aborted(Arc<Ordered>),
}

/// The other cores of the process.
pub trait OtherCores {
    /// Runs [`Publisher::deliver`] on every other core. The future is ready when it has run on all of them; a core
    /// that has ended is not waited for.
    fn broadcast(&self, message: UnitMessage) -> LocalFuture<'static, ()>;
}

/// [`OtherCores`] of a program with one core.
#[derive(Clone, Copy, Debug)]
pub struct NoOtherCores;

impl OtherCores for NoOtherCores {
    fn broadcast(&self, _message: UnitMessage) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Publishes changes to the views of one core, and to the other cores.
pub struct Publisher {
    shared: Arc<SharedUnits>,
    others: Rc<dyn OtherCores>,
    command_sets: RefCell<Vec<Weak<dyn CommandSet>>>,
    units: RefCell<BTreeMap<UnitId, View>>,
}

/// This core's view of a unit.
enum View {
    /// A unit with a store.
    Unit(Weak<Unit>),
    /// A unit without a store: its metadata.
    WithoutStore(std::sync::Weak<dyn MetadataStore>),
}

impl View {
    fn is_alive(&self) -> bool {
        match self {
            Self::Unit(unit) => unit.strong_count() > 0,
            Self::WithoutStore(metadata) => metadata.strong_count() > 0,
        }
    }

    fn unit(&self) -> Option<Rc<Unit>> {
        match self {
            Self::Unit(unit) => unit.upgrade(),
            Self::WithoutStore(_) => None,
        }
    }

    fn metadata(&self) -> Option<Arc<dyn MetadataStore>> {
        match self {
            Self::Unit(unit) => Some(unit.upgrade()?.metadata.clone()),
            Self::WithoutStore(metadata) => metadata.upgrade(),
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publisher({} units)", self.units.borrow().len())
    }
}

impl Publisher {
    /// A publisher without command sets and units.
    #[must_use]
    pub fn new(shared: Arc<SharedUnits>, others: Rc<dyn OtherCores>) -> Self {
        Self { shared, others, command_sets: RefCell::default(), units: RefCell::default() }
    }

    /// Adds a command set of this core.
    pub(crate) fn add_command_set(&self, command_set: Weak<dyn CommandSet>) {
        self.command_sets.borrow_mut().push(command_set);
    }

    /// Adds this core's view of a unit, or replaces it by another one, and brings its cells up to date.
    pub(crate) fn add(&self, unit: &Rc<Unit>) {
        let shared = self.shared.of(unit);
        let state = shared.state();
        unit.ranges.set_epoch(state.epoch());
        unit.medium.set_removed(!state.tray().is_loaded());
        if let (Some(protection), Some(kind)) = (&unit.protection, state.protection()) {
            protection.set_kind(kind);
        }
        self.insert(unit.id, View::Unit(Rc::downgrade(unit)));
    }

    /// Adds a unit without a store.
    pub(crate) fn add_without_store(&self, unit: UnitId, metadata: &Arc<dyn MetadataStore>) {
        self.insert(unit, View::WithoutStore(Arc::downgrade(metadata)));
    }

    fn insert(&self, unit: UnitId, view: View) {
        let mut units = self.units.borrow_mut();
        units.retain(|_, view| view.is_alive());
        units.insert(unit, view);
    }

    /// This core's views of all units.
    pub(crate) fn units(&self) -> Vec<Rc<Unit>> {
        self.units.borrow().values().filter_map(View::unit).collect()
    }

    /// This core's view of a unit.
    pub(crate) fn unit(&self, unit: UnitId) -> Option<Rc<Unit>> {
        self.units.borrow().get(&unit).and_then(View::unit)
    }

    /// The metadata of a unit.
    pub(crate) fn metadata(&self, unit: UnitId) -> Option<Arc<dyn MetadataStore>> {
        self.units.borrow().get(&unit).and_then(View::metadata)
    }

    /// The metadata of all units.
    pub(crate) fn unit_metadata(&self) -> Vec<(UnitId, Arc<dyn MetadataStore>)> {
        self.units.borrow().iter().filter_map(|(unit, view)| Some((*unit, view.metadata()?))).collect()
    }

    fn command_sets(&self) -> Vec<Rc<dyn CommandSet>> {
        self.command_sets.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Puts a change in force on all cores. The state has changed by then.
    pub(crate) async fn publish(&self, change: &Arc<Ordered>) {
        self.take_effect(change);
        self.others.broadcast(UnitMessage::Changed(change.clone())).await;
        self.command_sets().iter().for_each(|command_set| command_set.published(change));
    }

    /// Waits until the tasks that a change has aborted have ended, on all cores.
    pub(crate) async fn until_aborted(&self, change: &Arc<Ordered>) {
        self.until_aborted_here(change).await;
        self.others.broadcast(UnitMessage::Aborted(change.clone())).await;
    }

    async fn until_aborted_here(&self, change: &Ordered) {
        for command_set in self.command_sets() {
            command_set.aborted(change).await;
        }
    }

    /// Executes the message of another core on this core.
    pub(crate) async fn deliver(&self, message: UnitMessage) {
        match message {
            UnitMessage::Changed(change) => self.take_effect(&change),
            UnitMessage::Aborted(change) => self.until_aborted_here(&change).await,
        }
    }

    /// Updates the cells of this core: those of the unit first, then those of the command sets.
    fn take_effect(&self, change: &Ordered) {
        if let Some(unit) = self.unit(change.unit) {
            if let Some(epoch) = change.effects.epoch {
                unit.ranges.set_epoch(epoch);
            }
            match (&change.proposal.change, &unit.protection, self.shared.get(unit.id)) {
                (UnitChange::Protection(kind), Some(protection), _) => protection.set_kind(*kind),
                (UnitChange::Removal(_), _, Some(shared)) => {
                    // The store refuses requests before commands are refused.
                    unit.medium.set_removed(!shared.state().tray().is_loaded());
                }
                _ => {}
            }
        }
        self.command_sets().iter().for_each(|command_set| command_set.changed(change));
    }
}
