//! The block command set of one core: its units and its clients.

use crate::attachment::{Attachment, Client};
use crate::unit::BlockUnit;
use lunar_core::port::NexusName;
use lunar_core::reserve::{Held, Reservations, SharedUnits};
use lunar_core::stats::Stats;
use lunar_core::task::Moment;
use lunar_core::unit::{Unit, UnitId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

/// A change of the state that all users of a unit share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The reservations have changed.
    Reservations,
    /// The unit can, or cannot, be used through a portal group.
    Access {
        /// The tag of the portal group.
        group: u16,
        /// Whether its asymmetric access state is active.
        is_active: bool,
    },
}

/// The units and clients of one core.
pub struct BlockSet {
    /// Where this core counts.
    pub(crate) stats: Arc<Stats>,
    shared: Arc<SharedUnits>,
    units: RefCell<BTreeMap<UnitId, Rc<BlockUnit>>>,
    attachments: RefCell<Vec<Weak<Attachment>>>,
}

impl BlockSet {
    /// Without units. `shared` is the state that units share with other cores and command sets.
    #[must_use]
    pub fn new(stats: Arc<Stats>, shared: Arc<SharedUnits>) -> Rc<Self> {
        Rc::new(Self { stats, shared, units: RefCell::default(), attachments: RefCell::default() })
    }

    /// Adds a unit, or replaces it by another view of it, for example because its size has changed. Requests in
    /// progress go on with the old one.
    pub fn add_unit(&self, unit: Rc<Unit>) {
        let (id, held) = (unit.id, restriction(&self.shared.of(&unit).reservations()));
        let unit = Rc::new(BlockUnit::new(unit));
        if let Some(old) = self.units.borrow_mut().insert(id, unit.clone()) {
            unit.replace(&old);
        }
        unit.set_held(held);
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
        let attachment = Rc::new(Attachment::new(client, self.unit(id)?));
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

    /// A change of the shared state of a unit has taken effect: brings the cells of this core up to date. Called on
    /// every core.
    pub fn changed(&self, id: UnitId, change: Change) {
        let Some(unit) = self.unit(id) else { return };
        match change {
            Change::Reservations => unit.set_held(restriction(&self.shared.of(&unit.unit).reservations())),
            Change::Access { group, is_active } => {
                unit.set_active(group, is_active);
                let through = |attachment: &&Rc<Attachment>| attachment.client.group == group && group != 0;
                let attachments = self.attachments_of(id);
                attachments.iter().filter(through).for_each(|attachment| attachment.set_active(is_active));
            }
        }
    }
}

/// How reservations restrict a client that is no registrant.
fn restriction(reservations: &Reservations) -> Held {
    // No nexus has this name.
    reservations.held(&NexusName { initiator: "".into(), target_port: 0 })
}

impl fmt::Debug for BlockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSet({} units)", self.units.borrow().len())
    }
}
