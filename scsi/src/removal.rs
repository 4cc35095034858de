//! START STOP UNIT that loads or ejects. The motion itself is the unit's: [`lunar_unit::removal`].

use crate::admit::Refusal;
use crate::fault;
use crate::lu::Emulated;
use crate::nexus::Nexus;
use crate::sense::{Asc, Sense};
use crate::target::Target;
use lunar_unit::MediumState;
use lunar_unit::removal::motion::Stuck;
use lunar_unit::removal::request::{Motion, Mover};

impl Target {
    /// Moves the medium of a logical unit for a nexus.
    ///
    /// # Errors
    /// MEDIUM REMOVAL PREVENTED while any nexus prevents removal, including the requester; NOT READY while the medium
    /// is rewritten, or if the tray is empty after it was closed.
    pub(crate) async fn move_medium(&self, nexus: &Nexus, lu: &Emulated, motion: Motion) -> Result<(), Refusal> {
        let moved = self.config.units.move_medium(&lu.unit, Some(&nexus.name), motion, Mover::Client).await;
        moved.map_err(|stuck| refusal(lu, stuck))?;
        match (motion, lu.tray_sense()) {
            (Motion::Load, Some(sense)) => Err(sense.into()),
            _ => Ok(()),
        }
    }
}

fn refusal(lu: &Emulated, stuck: Stuck) -> Refusal {
    match stuck {
        Stuck::Prevented => Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED).into(),
        Stuck::Busy => lu.rewrite_in_progress(MediumState::Formatting).into(),
        Stuck::Store(fault) => fault::transfer(fault),
        Stuck::NoUnit | Stuck::Fixed => Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED).into(),
    }
}

#[cfg(test)]
#[path = "removal_tests.rs"]
mod tests;
