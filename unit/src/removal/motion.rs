//! The motion of a medium: commands are no longer admitted, the commands in progress end, and the written data is
//! flushed.

use super::request::{Motion, Mover, RemovalChange};
use crate::change::{Denial, UnitChange};
use crate::core_units::CoreUnits;
use crate::ledger::Refused;
use crate::medium::TrayPosition;
use lunar_core::io::Fault;
use lunar_core::medium::MediumKind;
use lunar_core::port::NexusName;
use lunar_core::range::Span;
use lunar_core::step::flush_now;
use lunar_core::unit::{Unit, UnitId};
use std::rc::Rc;

/// Why a medium does not move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// There is no such unit.
    NoUnit,
    /// The medium cannot be removed.
    Fixed,
    /// A client prevents its removal.
    Prevented,
    /// It is formatted or sanitized.
    Busy,
    /// Written data could not be flushed to it.
    Store(Fault),
}

impl From<Refused> for Stuck {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Denied(Denial::RewriteInProgress | Denial::SanitizeRequired) => Self::Busy,
            Refused::Denied(Denial::RemovalPrevented | Denial::Reservation(_)) => Self::Prevented,
            Refused::Metadata(fault) => Self::Store(fault),
        }
    }
}

impl CoreUnits {
    /// The position of the medium of a unit, and whether a client prevents its removal; `None` if there is no such
    /// unit.
    #[must_use]
    pub fn tray(&self, unit: UnitId) -> Option<(TrayPosition, bool)> {
        let shared = self.shared().of(&*self.unit(unit)?);
        let state = shared.state();
        Some((state.tray(), state.is_removal_prevented()))
    }

    fn removable(&self, unit: UnitId) -> Result<Rc<Unit>, Stuck> {
        let unit = self.unit(unit).ok_or(Stuck::NoUnit)?;
        if unit.medium.kind() == MediumKind::Fixed { Err(Stuck::Fixed) } else { Ok(unit) }
    }

    /// Ejects the medium of a unit for the operator; with `forced`, although a client prevents it.
    ///
    /// # Errors
    /// [`Stuck`]: the medium is where it was.
    pub async fn eject(&self, unit: UnitId, forced: bool) -> Result<(), Stuck> {
        let unit = self.removable(unit)?;
        self.move_medium(&unit, None, Motion::Eject, Mover::Operator { forced }).await
    }

    /// Loads the medium of a unit for the operator. Clients are notified that it may be another medium.
    ///
    /// # Errors
    /// [`Stuck`]: the medium is where it was.
    pub async fn load(&self, unit: UnitId) -> Result<(), Stuck> {
        let unit = self.removable(unit)?;
        self.move_medium(&unit, None, Motion::Load, Mover::Operator { forced: true }).await
    }

    /// Moves the medium of a unit. After an eject, all written data is on the medium, and no command reaches it. If a
    /// client prevents the removal, all clients are notified of the operator's request.
    ///
    /// # Errors
    /// [`Stuck`]: the medium is where it was.
    pub async fn move_medium(
        &self,
        unit: &Unit,
        nexus: Option<&NexusName>,
        motion: Motion,
        mover: Mover,
    ) -> Result<(), Stuck> {
        let shared = self.shared().of(unit);
        let _turn = shared.motions.next().await;
        let moved = match motion {
            Motion::Eject if shared.state().tray().is_loaded() => self.move_out(unit, nexus, mover).await,
            Motion::Eject | Motion::Load => self.set_position(unit, nexus, motion, mover).await,
        };
        if moved == Err(Stuck::Prevented) && matches!(mover, Mover::Operator { .. }) {
            // It is never refused: it needs no metadata.
            let _ = self.propose(unit, None, UnitChange::Removal(RemovalChange::Requested)).await;
        }
        moved
    }

    async fn set_position(
        &self,
        unit: &Unit,
        nexus: Option<&NexusName>,
        motion: Motion,
        mover: Mover,
    ) -> Result<(), Stuck> {
        self.propose(unit, nexus, UnitChange::Removal(RemovalChange::Move(motion, mover))).await?;
        Ok(())
    }

    /// Ejects a medium that is loaded.
    async fn move_out(&self, unit: &Unit, nexus: Option<&NexusName>, mover: Mover) -> Result<(), Stuck> {
        let shared = self.shared().of(unit);
        let is_heeded = !matches!(mover, Mover::Operator { forced: true });
        if is_heeded && shared.state().is_removal_prevented() {
            return Err(Stuck::Prevented);
        }
        let _activity = shared.begin_activity().ok_or(Stuck::Busy)?;
        self.set_position(unit, nexus, Motion::Eject, mover).await?;
        // Commands are no longer admitted; the commands in progress are waited for.
        let whole = Span { start: 0, end: unit.geometry.bytes() };
        drop(unit.exclusive.lock_exclusive(unit.id, whole).await);
        if unit.read_only {
            return Ok(());
        }
        if let Err(fault) = flush_now(unit).await {
            self.propose(unit, nexus, UnitChange::Removal(RemovalChange::EjectFailed)).await?;
            return Err(Stuck::Store(fault));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Core, ID, Metadata, Options, at_once, name, poll};
    use lunar_core::io::Op;
    use std::sync::Arc;

    const OPERATOR: Mover = Mover::Operator { forced: false };

    fn removable() -> Core {
        Core::new(&Arc::<Metadata>::default(), Options { kind: MediumKind::Removable, ..Options::default() })
    }

    fn tray(core: &Core) -> TrayPosition {
        core.units.shared().of(&core.unit).state().tray()
    }

    fn moves(core: &Core, motion: Motion, mover: Mover) -> Result<(), Stuck> {
        at_once(core.units.move_medium(&core.unit, None, motion, mover))
    }

    #[test]
    fn an_eject_waits_for_commands_in_progress_and_flushes() {
        let core = removable();
        let whole = Span { start: 0, end: 512 };
        let in_progress = at_once(core.unit.ranges.lock_shared(whole));
        let mut eject = Box::pin(core.units.move_medium(&core.unit, None, Motion::Eject, Mover::Client));
        assert!(poll(&mut eject).is_pending());
        assert_eq!((tray(&core), core.unit.medium.is_removed()), (TrayPosition::Ejected, true));
        assert!(core.memory.asked.borrow().is_empty(), "not flushed while a command may write");
        drop(in_progress);
        assert!(poll(&mut eject).is_ready());
        assert_eq!(*core.memory.asked.borrow(), [Op::Flush]);
    }

    #[test]
    fn a_change_does_not_wait_for_an_eject() {
        let core = removable();
        let _in_progress = at_once(core.unit.ranges.lock_shared(Span { start: 0, end: 512 }));
        let mut eject = Box::pin(core.units.move_medium(&core.unit, None, Motion::Eject, Mover::Client));
        let mut load = Box::pin(core.units.move_medium(&core.unit, None, Motion::Load, Mover::Client));
        assert!(poll(&mut eject).is_pending() && poll(&mut load).is_pending());
        let prevent = UnitChange::Removal(RemovalChange::Prevent(name("a")));
        assert!(at_once(core.units.propose(&core.unit, None, prevent)).is_ok());
        assert!(poll(&mut load).is_pending(), "the next motion waits");
    }

    #[test]
    fn a_medium_that_cannot_be_flushed_stays_in_the_drive() {
        let core = removable();
        core.memory.fault.set(Some(Fault::Medium));
        assert_eq!(moves(&core, Motion::Eject, OPERATOR), Err(Stuck::Store(Fault::Medium)));
        assert_eq!((tray(&core), core.unit.medium.is_removed()), (TrayPosition::Loaded, false));
        assert_eq!(moves(&core, Motion::Eject, OPERATOR), Ok(()));
        assert_eq!(moves(&core, Motion::Load, OPERATOR), Ok(()));
        assert_eq!((tray(&core), core.unit.medium.is_removed()), (TrayPosition::Loaded, false));
    }

    #[test]
    fn clients_are_notified_that_the_operator_requests_a_medium_that_they_hold() {
        let core = removable();
        let prevent = UnitChange::Removal(RemovalChange::Prevent(name("a")));
        at_once(core.units.propose(&core.unit, None, prevent.clone())).expect("it always may");
        for mover in [Mover::Client, OPERATOR] {
            assert_eq!(moves(&core, Motion::Eject, mover), Err(Stuck::Prevented));
        }
        let told = core.command_sets[0].changed.borrow().clone();
        assert_eq!(told, [prevent, UnitChange::Removal(RemovalChange::Requested)]);
        assert_eq!(moves(&core, Motion::Eject, Mover::Operator { forced: true }), Ok(()));
    }

    #[test]
    fn the_operator_moves_removable_media_only() {
        let fixed = Core::new(&Arc::<Metadata>::default(), Options::default());
        assert_eq!(at_once(fixed.units.eject(ID, true)), Err(Stuck::Fixed));
        assert_eq!(at_once(fixed.units.load(ID)), Err(Stuck::Fixed));
        assert_eq!(at_once(fixed.units.eject(UnitId(9), true)), Err(Stuck::NoUnit));
        let core = removable();
        assert_eq!(at_once(core.units.eject(ID, false)), Ok(()));
        assert_eq!(core.units.tray(ID), Some((TrayPosition::RemovedOpen, false)));
        assert_eq!(at_once(core.units.load(ID)), Ok(()));
        assert_eq!(core.units.tray(ID), Some((TrayPosition::Loaded, false)));
    }

    #[test]
    fn a_medium_that_is_rewritten_stays_in_the_drive() {
        let core = removable();
        let activity = core.units.shared().of(&core.unit).begin_activity();
        assert_eq!(moves(&core, Motion::Eject, Mover::Operator { forced: true }), Err(Stuck::Busy));
        drop(activity);
        assert_eq!(moves(&core, Motion::Eject, Mover::Operator { forced: true }), Ok(()));
    }
}
