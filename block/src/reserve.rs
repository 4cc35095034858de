//! Lists of clients that reserve a unit for themselves (ATA over Ethernet: reserve/release).
//!
//! The clients of a list are registrants of the unit, and hold a persistent reservation of the type Exclusive Access -
//! All Registrants together: clients of all other transports have a reservation conflict.

use crate::set::BlockSet;
use lunar_core::port::NexusName;
use lunar_core::unit::UnitId;
use lunar_unit::UnitChange;
use lunar_unit::reserve::{BLOCK_PREFIX, Request};

/// Why a list cannot be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Another client has reserved the unit.
    Reserved,
    /// The unit is not served, or the list cannot be saved.
    Unavailable,
}

/// The nexus of the client of this name. Clients of this command set have no target ports.
pub(crate) fn nexus(name: &str) -> NexusName {
    NexusName { initiator: format!("{BLOCK_PREFIX}{name}").into(), target_port: 0 }
}

impl BlockSet {
    /// The names of the clients that have reserved a unit for themselves; empty if none have.
    #[must_use]
    pub fn reserving_clients(&self, unit: UnitId) -> Vec<String> {
        let Some(unit) = self.unit(unit) else { return Vec::new() };
        let reservations = unit.shared.reservations();
        let names = reservations.list().into_iter();
        names.filter_map(|name| name.initiator.strip_prefix(BLOCK_PREFIX).map(str::to_owned)).collect()
    }

    /// Whether a reservation excludes other clients than those of a list: one of another transport.
    #[must_use]
    pub fn is_reserved_by_others(&self, unit: UnitId) -> bool {
        self.unit(unit).is_some_and(|unit| unit.shared.reservations().excludes_lists())
    }

    /// Reserves a unit for the clients of these names, at the request of the client `by`; an empty list ends the
    /// reservation. The list survives a restart if the unit has durable metadata.
    ///
    /// # Errors
    /// [`Refusal::Reserved`] if a list without `by` is in force and the request is not forced, and, in any case, if
    /// clients of other transports are registered or have reserved the unit.
    pub async fn reserve_for(&self, unit: UnitId, by: &str, names: &[String], force: bool) -> Result<(), Refusal> {
        let unit = self.unit(unit).ok_or(Refusal::Unavailable)?;
        let (by, ptpl) = (nexus(by), unit.unit.metadata.is_durable());
        // One change, which is judged in its place in the order: of two clients that ask at once, one is refused.
        let request = Request::SetList { names: names.iter().map(|name| nexus(name)).collect(), force, ptpl };
        let change = UnitChange::Reservations { nexus: by.clone(), request };
        let changed = self.core_units.propose(&unit.unit, Some(&by), change).await;
        changed.map(drop).map_err(|refused| match refused {
            lunar_unit::Refused::Denied(_) => Refusal::Reserved,
            lunar_unit::Refused::Metadata(_) => Refusal::Unavailable,
        })
    }
}

#[cfg(test)]
#[path = "reserve_tests.rs"]
mod tests;
