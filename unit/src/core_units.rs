//! The access of one core to the state of its units, for command sets and for the rest of the program.

use crate::access::{AccessChange, AccessState};
use crate::change::{Aborts, Ordered, Proposal, UnitChange};
use crate::ledger::{Ledger, LocalFuture, LocalLedger, Refused};
use crate::publish::{CommandSet, OtherCores, Publisher, UnitMessage};
use crate::reserve::{Action, PersistentRequest, Request};
use crate::shared::{SharedUnit, SharedUnits, UnitRef};
use lunar_core::metadata::MetadataStore;
use lunar_core::port::NexusName;
use lunar_core::unit::{Unit, UnitId};
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

/// Runs a task that continues after the command that began it.
pub type Spawn = Rc<dyn Fn(LocalFuture<'static, ()>)>;

/// One core's access to the state of its units.
pub struct CoreUnits {
    shared: Arc<SharedUnits>,
    publisher: Rc<Publisher>,
    ledger: Rc<dyn Ledger>,
    spawn: RefCell<Option<Spawn>>,
}

impl fmt::Debug for CoreUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoreUnits({:?})", self.publisher)
    }
}

impl CoreUnits {
    /// Access to these units, whose changes the ledger of this process puts in order.
    #[must_use]
    pub fn new(shared: Arc<SharedUnits>, others: Rc<dyn OtherCores>) -> Rc<Self> {
        let publisher = Rc::new(Publisher::new(shared.clone(), others));
        let ledger = Rc::new(LocalLedger::new(shared.clone(), publisher.clone()));
        Rc::new(Self { shared, publisher, ledger, spawn: RefCell::default() })
    }

    /// Runs rewrites with `spawn`. Without it a rewrite runs in its command, and ends when the command is dropped.
    pub fn run_in_background(&self, spawn: Spawn) {
        *self.spawn.borrow_mut() = Some(spawn);
    }

    pub(crate) fn spawner(&self) -> Option<Spawn> {
        self.spawn.borrow().clone()
    }

    /// Adds a command set of this core.
    pub fn add_command_set<T: CommandSet + 'static>(&self, command_set: &Rc<T>) {
        let command_set: Weak<T> = Rc::downgrade(command_set);
        self.publisher.add_command_set(command_set);
    }

    /// Adds this core's view of a unit, or replaces it by another one. Returns the part of the unit that all cores
    /// share.
    pub fn add(&self, unit: &Rc<Unit>) -> Arc<SharedUnit> {
        self.publisher.add(unit);
        self.shared.of(unit)
    }

    /// Adds a unit without a store, whose commands are executed elsewhere. Returns the part of the unit that all cores
    /// share. The unit is known for as long as `metadata` has another owner.
    pub fn add_without_store(&self, unit: UnitId, metadata: &Arc<dyn MetadataStore>) -> Arc<SharedUnit> {
        self.publisher.add_without_store(unit, metadata);
        self.shared.of_ref(UnitRef { id: unit, metadata: &**metadata })
    }

    /// This core's views of all units.
    pub(crate) fn units(&self) -> Vec<Rc<Unit>> {
        self.publisher.units()
    }

    /// This core's view of a unit.
    #[must_use]
    pub fn unit(&self, unit: UnitId) -> Option<Rc<Unit>> {
        self.publisher.unit(unit)
    }

    /// The units as all cores share them.
    #[must_use]
    pub fn shared(&self) -> &Arc<SharedUnits> {
        &self.shared
    }

    /// Proposes a change: see [`Ledger::propose`]. The tasks that it aborts may continue for a while: see
    /// [`CoreUnits::until_aborted`].
    ///
    /// # Errors
    /// [`Refused`]: nothing has changed.
    pub async fn propose(
        &self,
        unit: impl Into<UnitRef<'_>>,
        proposer: Option<&NexusName>,
        change: UnitChange,
    ) -> Result<Arc<Ordered>, Refused> {
        self.ledger.propose(unit.into(), Proposal { proposer: proposer.cloned(), change }).await
    }

    /// Proposes a change, and waits until the tasks that it aborts have ended. The wait ends when `is_aborted` is
    /// ready: the proposer's own task was aborted. Otherwise two clients that preempt each other would wait forever.
    ///
    /// # Errors
    /// [`Refused`]: nothing has changed.
    pub async fn change(
        &self,
        unit: impl Into<UnitRef<'_>>,
        proposer: Option<&NexusName>,
        change: UnitChange,
        is_aborted: impl Future<Output = ()>,
    ) -> Result<Arc<Ordered>, Refused> {
        let ordered = self.propose(unit, proposer, change).await?;
        {
            let (mut is_aborted, mut ended) = (pin!(is_aborted), pin!(self.until_aborted(&ordered)));
            poll_fn(|cx| match ended.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => is_aborted.as_mut().poll(cx),
            })
            .await;
        }
        Ok(ordered)
    }

    /// Waits until the tasks that a change has aborted have ended, on all cores.
    pub async fn until_aborted(&self, change: &Arc<Ordered>) {
        if change.effects.aborts != Aborts::None {
            self.publisher.until_aborted(change).await;
        }
    }

    /// Executes the message of another core on this core.
    pub async fn deliver(&self, message: UnitMessage) {
        self.publisher.deliver(message).await;
    }

    /// Ends the state that depends on a nexus, which is lost or was reset, at all units of this core.
    pub async fn lose_nexus(&self, nexus: &NexusName) {
        for (id, metadata) in self.publisher.unit_metadata() {
            if self.shared.get(id).is_some_and(|shared| shared.state().depends_on(nexus)) {
                let unit = UnitRef { id, metadata: &*metadata };
                // It is never refused: it needs no metadata.
                let _ = self.propose(unit, Some(nexus), UnitChange::NexusLost(nexus.clone())).await;
            }
        }
    }

    /// Ends the registrations and the reservation of a unit, as an operator asks for when their client is gone. The
    /// clients that are there are told as they are of CLEAR.
    ///
    /// # Errors
    /// [`Refused`]: nothing has changed.
    pub async fn clear_reservations(&self, unit: UnitId) -> Result<(), Refused> {
        let (Some(metadata), Some(shared)) = (self.publisher.metadata(unit), self.shared.get(unit)) else {
            return Ok(());
        };
        let unit = UnitRef { id: unit, metadata: &*metadata };
        let (registrant, spc2) = {
            let reservations = shared.reservations();
            let first = reservations.registrants().next().map(|(name, key)| (name.clone(), key));
            (first, reservations.spc2().cloned())
        };
        if let Some((nexus, key)) = registrant {
            let clear = PersistentRequest { action: Action::Clear, scope_and_type: 0, key, action_key: 0 };
            let change = UnitChange::Reservations { nexus, request: Request::Persistent(clear) };
            self.propose(unit, None, change).await?;
        }
        if let Some(nexus) = spc2 {
            self.propose(unit, None, UnitChange::NexusLost(nexus)).await?;
        }
        Ok(())
    }

    /// The store of a unit has become unavailable, or is available again. Clients reach the unit through `groups`.
    pub async fn set_store_available(&self, unit: UnitId, is_available: bool, groups: Vec<u16>) {
        let Some(metadata) = self.publisher.metadata(unit) else { return };
        let unit = UnitRef { id: unit, metadata: &*metadata };
        // It is never refused: it needs no metadata.
        let _ = self.propose(unit, None, UnitChange::Store { is_available, groups }).await;
    }

    /// Changes the access of a target port group to a unit, by configuration or because a path got better or worse.
    pub async fn set_access(&self, unit: UnitId, group: u16, state: AccessState, preferred: bool) {
        let Some(metadata) = self.publisher.metadata(unit) else { return };
        let unit = UnitRef { id: unit, metadata: &*metadata };
        let change = UnitChange::Access(vec![AccessChange::implicit(group, state, preferred)]);
        // It is never refused: it needs no metadata.
        let _ = self.propose(unit, None, change).await;
    }
}
