//! Changes of the state of a unit, and their effects.

use crate::access::{AccessChange, GroupAccess};
use crate::removal::request::RemovalChange;
use crate::reserve::{self, Notice, Request};
use crate::rewrite::request::RewriteChange;
use lunar_core::port::NexusName;
use lunar_core::protection;
use lunar_core::range::Epoch;
use lunar_core::unit::UnitId;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A change of the state of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnitChange {
    /// A reservation request.
    Reservations {
        /// The nexus that makes it.
        nexus: NexusName,
        /// The request.
        request: Request,
    },
    /// Target port groups change their asymmetric access states.
    Access(Vec<AccessChange>),
    /// The store becomes unavailable or available.
    Store {
        /// Whether it is available now.
        is_available: bool,
        /// The target port groups through which clients reach the unit.
        groups: Vec<u16>,
    },
    /// A format or a sanitize begins, advances or ends.
    Rewrite(RewriteChange),
    /// The protection type changes. All protection information is blank by then.
    Protection(protection::Kind),
    /// The medium moves, or its removal is prevented or allowed.
    Removal(RemovalChange),
    /// The nexus of this name was lost or reset: its SPC-2 reservation ends, and it prevents no removal any more.
    NexusLost(NexusName),
    /// The logical unit was reset (SAM-5 6.3.3): the SPC-2 reservation ends, removal is no longer prevented, and all
    /// SCSI tasks of the unit are aborted. NVMe has no such reset.
    LogicalUnitReset,
    /// A change of state that only one command set has.
    CommandSet(Opaque),
}

/// A change of state that only one command set has: its own views of the unit hold that state, and other command sets
/// ignore the change.
pub trait CommandSetChange: Any + Send + Sync + fmt::Debug {
    /// The metadata record that must be durable before the change takes effect.
    fn record(&self) -> Option<Record>;
}

/// A [`CommandSetChange`]. It equals itself and its clones only.
#[derive(Clone, Debug)]
pub struct Opaque(Arc<dyn CommandSetChange>);

impl Opaque {
    /// Wraps a change.
    #[must_use]
    pub fn new(change: impl CommandSetChange) -> Self {
        Self(Arc::new(change))
    }

    /// The change, if it is one of this command set.
    #[must_use]
    pub fn get<T: CommandSetChange>(&self) -> Option<&T> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    /// See [`CommandSetChange::record`].
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        self.0.record()
    }
}

impl PartialEq for Opaque {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Opaque {}

/// A metadata record and its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The name.
    pub name: &'static str,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether the change is refused if the record cannot be saved. The end of a rewrite that failed takes effect
    /// nevertheless: the record of its begin then says that it was interrupted.
    pub is_required: bool,
}

impl Record {
    /// A record without which the change is refused.
    #[must_use]
    pub fn required(name: &'static str, bytes: Vec<u8>) -> Self {
        Self { name, bytes, is_required: true }
    }
}

/// The notification of a change, which all clients of a unit except the proposer receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Asymmetric access states have changed.
    AccessChanged,
    /// The protection type has changed, and with it the format of blocks.
    ProtectionChanged,
    /// A medium was loaded, which may be another one than before.
    MediumLoaded,
    /// The logical unit was reset.
    Reset,
}

/// The tasks that a change aborts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Aborts {
    /// None.
    #[default]
    None,
    /// The tasks of these registrants at the unit, of all command sets.
    Registrants(BTreeSet<NexusName>),
    /// All SCSI tasks at the unit (SAM-5 6.3.3).
    TaskSet,
}

/// The effects of a change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Whether the change has to be published. If not, the state does not change, and the only effect may be a record.
    pub is_published: bool,
    /// The metadata record that must be durable before the change takes effect.
    pub record: Option<Record>,
    /// The registrants that are notified, each with its notice.
    pub notices: BTreeMap<NexusName, Notice>,
    /// The notification of all clients except the proposer.
    pub event: Option<Event>,
    /// The target port groups whose state or PREF bit differs, and their access before the change.
    pub access: BTreeMap<u16, GroupAccess>,
    /// The tasks that are aborted.
    pub aborts: Aborts,
    /// The epoch that begins.
    pub epoch: Option<Epoch>,
}

impl Effects {
    /// Nothing.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// The change is published, and nothing else.
    pub(crate) fn published() -> Self {
        Self { is_published: true, ..Self::default() }
    }

    /// The change is published if the state differs.
    pub(crate) fn published_if(differs: bool) -> Self {
        if differs { Self::published() } else { Self::none() }
    }
}

/// Why a change is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denial {
    /// By the rules of reservations.
    Reservation(reserve::Denial),
    /// A client prevents the removal of the medium.
    RemovalPrevented,
    /// A format or a sanitize is in progress.
    RewriteInProgress,
    /// A sanitize failed, and the medium needs another one.
    SanitizeRequired,
}

/// A proposed change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The nexus that caused the change and therefore is not notified; `None`: all nexuses are notified.
    pub proposer: Option<NexusName>,
    /// The change.
    pub change: UnitChange,
}

/// A change in its place in the order of changes of a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ordered {
    /// The unit.
    pub unit: UnitId,
    /// The change, and its proposer.
    pub proposal: Proposal,
    /// The effects of the change.
    pub effects: Effects,
}
