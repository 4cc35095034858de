//! The state that all users of a unit share, as a value, and the function that applies a change to it.

use crate::access::{AccessStates, GroupAccess};
use crate::change::{Aborts, Denial, Effects, Event, Proposal, Record, UnitChange};
use crate::medium::{MediumState, TrayPosition};
use crate::reserve::{MalformedReservations, RESERVATIONS, Request, Reservations};
use crate::{protection, removal, reserve, rewrite};
use lunar_core::metadata::MetadataStore;
use lunar_core::port::NexusName;
use lunar_core::protection::Kind;
use lunar_core::range::Epoch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The state of a unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnitState {
    // Behind a pointer: most changes do not affect it, and each change begins with a copy of the state.
    reservations: Arc<Reservations>,
    access: AccessStates,
    medium: MediumState,
    tray: TrayPosition,
    /// The nexuses that prevent the removal of the medium.
    preventing: BTreeSet<NexusName>,
    /// `None`: the unit has no protection information.
    protection: Option<Kind>,
    epoch: Epoch,
}

impl UnitState {
    /// The state of a unit after the start of the process.
    ///
    /// # Errors
    /// [`MalformedReservations`]: it is unknown which clients are excluded, so the unit must not be served.
    pub fn restored(metadata: &dyn MetadataStore) -> Result<Self, MalformedReservations> {
        let reservations = Reservations::from_record(&metadata.load(RESERVATIONS).unwrap_or_default())?;
        Ok(Self {
            reservations: reservations.shared(),
            medium: rewrite::stored(metadata).medium,
            // An unknown type was refused when the volume was opened.
            protection: protection::stored(metadata).unwrap_or_default(),
            ..Self::default()
        })
    }

    /// The reservations.
    #[must_use]
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// The asymmetric access states.
    #[must_use]
    pub fn access(&self) -> &AccessStates {
        &self.access
    }

    /// The state of the medium.
    #[must_use]
    pub fn medium(&self) -> MediumState {
        self.medium
    }

    /// The position of the medium.
    #[must_use]
    pub fn tray(&self) -> TrayPosition {
        self.tray
    }

    /// Whether a client prevents the removal of the medium.
    #[must_use]
    pub fn is_removal_prevented(&self) -> bool {
        !self.preventing.is_empty()
    }

    /// The protection type; `None` if the unit has no protection information.
    #[must_use]
    pub fn protection(&self) -> Option<Kind> {
        self.protection
    }

    /// The epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether a nexus has state here that ends with it: see [`UnitChange::NexusLost`].
    #[must_use]
    pub fn depends_on(&self, nexus: &NexusName) -> bool {
        self.reservations.spc2() == Some(nexus) || self.preventing.contains(nexus)
    }

    /// Takes over the protection type of a view of the unit, if the unit had no protection information so far.
    pub(crate) fn adopt_protection(&mut self, kind: Kind) {
        self.protection.get_or_insert(kind);
    }

    /// A medium that may not be written cannot be sanitized to the end: the sanitize that was interrupted counts as
    /// failed, until the medium may be written again.
    pub(crate) fn suspend_sanitize(&mut self) {
        if let MediumState::Sanitizing { can_exit } = self.medium {
            self.medium = MediumState::SanitizeFailed { can_exit };
        }
    }

    /// Makes a change, and returns its effects.
    ///
    /// # Errors
    /// Why the change is refused: nothing has changed then.
    pub fn apply(&mut self, proposal: &Proposal) -> Result<Effects, Denial> {
        match &proposal.change {
            UnitChange::Reservations { nexus, request } => self.request_reservation(nexus, request),
            UnitChange::Access(changes) => {
                let before = self.access.clone();
                changes.iter().for_each(|change| self.access.set(change));
                Ok(self.access_effects(&before, changes.iter().map(|change| change.group)))
            }
            UnitChange::Store { is_available, groups } => {
                let before = self.access.clone();
                self.access.set_store_available(*is_available);
                Ok(self.access_effects(&before, groups.iter().copied()))
            }
            UnitChange::Rewrite(change) => rewrite::apply(&mut self.medium, &mut self.epoch, change),
            UnitChange::Protection(kind) => Ok(self.set_protection(*kind)),
            UnitChange::Removal(change) => removal::apply(&mut self.tray, &mut self.preventing, change),
            UnitChange::NexusLost(nexus) => {
                let prevented = self.preventing.remove(nexus);
                Ok(Effects::published_if(self.end_spc2(Some(nexus)) || prevented))
            }
            UnitChange::LogicalUnitReset => {
                self.preventing.clear();
                self.end_spc2(None);
                Ok(Effects { event: Some(Event::Reset), aborts: Aborts::TaskSet, ..Effects::published() })
            }
            UnitChange::CommandSet(change) => Ok(Effects { record: change.record(), ..Effects::published() }),
        }
    }

    /// The effects of a change of the access of these target port groups.
    fn access_effects(&self, before: &AccessStates, groups: impl Iterator<Item = u16>) -> Effects {
        let differing = groups.filter(|group| self.access.differs(before, *group));
        let access: BTreeMap<u16, GroupAccess> = differing.map(|group| (group, before.of(group))).collect();
        let event = (!access.is_empty()).then_some(Event::AccessChanged);
        Effects { event, access, ..Effects::published_if(*before != self.access) }
    }

    /// Sets whether the store is available, before a core serves the unit.
    pub(crate) fn set_store_available(&mut self, is_available: bool) {
        self.access.set_store_available(is_available);
    }

    fn request_reservation(&mut self, nexus: &NexusName, request: &Request) -> Result<Effects, Denial> {
        let (after, notices) = self.reservations.after(nexus, request).map_err(Denial::Reservation)?;
        if after == *self.reservations {
            return Ok(Effects::none());
        }
        let record = after.to_record().ok_or(Denial::Reservation(reserve::Denial::NoRoom))?;
        let is_saved = self.reservations.to_record().as_ref() == Some(&record);
        self.reservations = after.shared();
        Ok(Effects {
            record: (!is_saved).then(|| Record::required(RESERVATIONS, record)),
            notices: notices.told,
            aborts: if notices.aborted.is_empty() { Aborts::None } else { Aborts::Registrants(notices.aborted) },
            ..Effects::published()
        })
    }

    fn end_spc2(&mut self, holder: Option<&NexusName>) -> bool {
        self.reservations.spc2().is_some() && Arc::make_mut(&mut self.reservations).end_spc2(holder)
    }

    fn set_protection(&mut self, kind: Kind) -> Effects {
        let differs = self.protection.replace(kind) != Some(kind);
        Effects {
            record: Some(protection::record(kind)),
            event: differs.then_some(Event::ProtectionChanged),
            ..Effects::published()
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
