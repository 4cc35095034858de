//! The block command set of one core: its units and its clients.

use crate::attachment::{Attachment, Client};
use crate::reserve;
use crate::unit::BlockUnit;
use lunar_core::port::NexusName;
use lunar_core::stats::Stats;
use lunar_core::task::Moment;
use lunar_core::unit::{Unit, UnitId};
use lunar_unit::{CommandSet, CoreUnits, LocalFuture, Ordered, UnitChange};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

/// The units and clients of one core.
pub struct BlockSet {
    /// The statistics of this core.
    pub(crate) stats: Arc<Stats>,
    pub(crate) core_units: Rc<CoreUnits>,
    units: RefCell<BTreeMap<UnitId, Rc<BlockUnit>>>,
    attachments: RefCell<Vec<Weak<Attachment>>>,
}

impl BlockSet {
    /// A set without units. `core_units` is the access of this core to the state of units.
    #[must_use]
    pub fn new(stats: Arc<Stats>, core_units: Rc<CoreUnits>) -> Rc<Self> {
        let (units, attachments) = (RefCell::default(), RefCell::default());
        let set = Rc::new(Self { stats, core_units, units, attachments });
        set.core_units.add_command_set(&set);
        set
    }

    /// Adds a unit, or replaces it by another view of it, for example because its size has changed. Requests in
    /// progress continue with the old one.
    pub fn add_unit(&self, unit: Rc<Unit>) {
        let (id, shared) = (unit.id, self.core_units.add(&unit));
        let unit = Rc::new(BlockUnit::new(unit, shared));
        self.units.borrow_mut().insert(id, unit.clone());
        self.attachments_of(id).iter().for_each(|attachment| attachment.set_unit(Some(unit.clone())));
    }

    /// Removes a unit: its clients are refused from now on. Requests in progress end within `patience`, and are aborted
    /// then; none is left when this returns.
    pub async fn remove_unit(&self, id: UnitId, patience: impl Future<Output = ()>) {
        self.units.borrow_mut().remove(&id);
        let attachments = self.attachments_of(id);
        attachments.iter().for_each(|attachment| attachment.set_unit(None));
        let left: Vec<(&Rc<Attachment>, Moment)> =
            attachments.iter().map(|attachment| (attachment, attachment.tasks.moment())).collect();
        let finish = async {
            for (attachment, moment) in &left {
                attachment.tasks.until_left(*moment, |_| true).await;
            }
        };
        let (mut finish, mut patience) = (pin!(finish), pin!(patience));
        poll_fn(|cx| if finish.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { patience.as_mut().poll(cx) })
            .await;
        for (attachment, moment) in &left {
            self.stats.tasks_aborted.add(attachment.tasks.abort_before(*moment, |_| true));
        }
        for (attachment, _) in &left {
            attachment.tasks.until_gone(|_| true).await;
        }
    }

    /// This core's view of a unit.
    #[must_use]
    pub fn unit(&self, id: UnitId) -> Option<Rc<BlockUnit>> {
        self.units.borrow().get(&id).cloned()
    }

    /// Attaches a client to a unit, until the attachment is dropped. `None` when there is no such unit.
    #[must_use]
    pub fn attach(&self, id: UnitId, client: Client) -> Option<Rc<Attachment>> {
        self.attach_as(id, client, None)
    }

    /// The same for a client that may be in a list of [`crate::reserve`] under this name.
    #[must_use]
    pub fn attach_named(&self, id: UnitId, client: Client, name: &str) -> Option<Rc<Attachment>> {
        self.attach_as(id, client, Some(reserve::nexus(name)))
    }

    fn attach_as(&self, id: UnitId, client: Client, nexus: Option<NexusName>) -> Option<Rc<Attachment>> {
        let attachment = Rc::new(Attachment::new(client, nexus, self.unit(id)?));
        let mut attachments = self.attachments.borrow_mut();
        attachments.retain(|old| old.strong_count() > 0);
        attachments.push(Rc::downgrade(&attachment));
        Some(attachment)
    }

    /// The clients of this core.
    #[must_use]
    pub fn attachments(&self) -> Vec<Rc<Attachment>> {
        self.attachments.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    fn attachments_of(&self, id: UnitId) -> Vec<Rc<Attachment>> {
        let mut attachments = self.attachments();
        attachments.retain(|attachment| attachment.id == id);
        attachments
    }
}

impl CommandSet for BlockSet {
    fn changed(&self, change: &Ordered) {
        let Some(unit) = self.unit(change.unit) else { return };
        match &change.proposal.change {
            UnitChange::Reservations { .. } | UnitChange::NexusLost(_) | UnitChange::LogicalUnitReset => {
                self.attachments_of(change.unit).iter().for_each(|attachment| attachment.update_held(&unit));
            }
            UnitChange::Rewrite(_) => unit.refresh(),
            UnitChange::Access(_) | UnitChange::Store { .. } => {
                self.attachments_of(change.unit).iter().for_each(|attachment| attachment.update_access(&unit));
            }
            // Each request reads the protection type and whether the medium was removed. This command set has no state
            // of its own.
            UnitChange::Protection(_) | UnitChange::Removal(_) | UnitChange::CommandSet(_) => {}
        }
        // No change aborts requests of this command set: its clients are no registrants, and a task set is SCSI's.
    }

    fn published(&self, _change: &Ordered) {}

    fn aborted<'a>(&'a self, _change: &'a Ordered) -> LocalFuture<'a, ()> {
        Box::pin(ready(()))
    }
}

impl fmt::Debug for BlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSet({} units)", self.units.borrow().len())
    }
}
