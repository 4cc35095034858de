//! The position of a medium and the prevention of its removal after a change: a pure function.

use super::request::{Motion, Mover, RemovalChange};
use crate::change::{Denial, Effects, Event};
use crate::medium::TrayPosition;
use lunar_core::port::NexusName;
use std::collections::BTreeSet;

/// Makes a change.
///
/// # Errors
/// [`Denial::RemovalPrevented`]: nothing has changed then.
pub(crate) fn apply(
    tray: &mut TrayPosition,
    preventing: &mut BTreeSet<NexusName>,
    change: &RemovalChange,
) -> Result<Effects, Denial> {
    match change {
        RemovalChange::Prevent(name) => Ok(Effects::published_if(preventing.insert(name.clone()))),
        RemovalChange::Allow(name) => Ok(Effects::published_if(preventing.remove(name))),
        RemovalChange::Requested => Ok(Effects::published()),
        RemovalChange::EjectFailed => Ok(moved(tray, TrayPosition::Loaded)),
        RemovalChange::Move(motion, mover) => {
            let next = position(*tray, *motion, *mover);
            // While any client prevents removal, its own requests fail as well. Loading a loaded medium does nothing.
            let is_needed = *motion == Motion::Eject || !tray.is_loaded();
            let heeds = match mover {
                Mover::Client => is_needed,
                Mover::Operator { forced } => *motion == Motion::Eject && !forced,
            };
            if heeds && !preventing.is_empty() {
                return Err(Denial::RemovalPrevented);
            }
            Ok(moved(tray, next))
        }
    }
}

/// The position after a motion.
fn position(before: TrayPosition, motion: Motion, mover: Mover) -> TrayPosition {
    match (motion, mover, before) {
        (Motion::Eject, Mover::Operator { .. }, _) => TrayPosition::RemovedOpen,
        (Motion::Load, Mover::Operator { .. }, _) => TrayPosition::Loaded,
        (Motion::Eject, Mover::Client, TrayPosition::Loaded) => TrayPosition::Ejected,
        (Motion::Eject, Mover::Client, TrayPosition::RemovedClosed) => TrayPosition::RemovedOpen,
        (Motion::Eject, Mover::Client, TrayPosition::Ejected | TrayPosition::RemovedOpen) => before,
        (Motion::Load, Mover::Client, TrayPosition::Loaded | TrayPosition::Ejected) => TrayPosition::Loaded,
        // The tray closes without a medium.
        (Motion::Load, Mover::Client, TrayPosition::RemovedOpen | TrayPosition::RemovedClosed) => {
            TrayPosition::RemovedClosed
        }
    }
}

fn moved(tray: &mut TrayPosition, next: TrayPosition) -> Effects {
    let before = std::mem::replace(tray, next);
    let event = (next.is_loaded() && before != next).then_some(Event::MediumLoaded);
    Effects { event, ..Effects::published_if(before != next) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Mover = Mover::Client;
    const OPERATOR: Mover = Mover::Operator { forced: false };
    const FORCED: Mover = Mover::Operator { forced: true };

    fn name(initiator: &str) -> NexusName {
        NexusName { initiator: initiator.into(), target_port: 1 }
    }

    #[test]
    fn each_motion_leads_from_each_position_to_one_other() {
        use TrayPosition::{Ejected, Loaded, RemovedClosed, RemovedOpen};
        let all = [Loaded, Ejected, RemovedOpen, RemovedClosed];
        for (motion, mover, after) in [
            (Motion::Eject, CLIENT, [Ejected, Ejected, RemovedOpen, RemovedOpen]),
            (Motion::Load, CLIENT, [Loaded, Loaded, RemovedClosed, RemovedClosed]),
            (Motion::Eject, OPERATOR, [RemovedOpen; 4]),
            (Motion::Load, OPERATOR, [Loaded; 4]),
        ] {
            for (before, after) in all.into_iter().zip(after) {
                let mut tray = before;
                let effects = apply(&mut tray, &mut BTreeSet::new(), &RemovalChange::Move(motion, mover));
                let effects = effects.expect("no client prevents it");
                assert_eq!((tray, effects.is_published), (after, before != after), "{motion:?} {mover:?} {before:?}");
                let is_loaded = before != Loaded && after == Loaded;
                assert_eq!(effects.event, is_loaded.then_some(Event::MediumLoaded), "{motion:?} {mover:?} {before:?}");
            }
        }
    }

    #[test]
    fn removal_is_prevented_until_every_client_allows_it() {
        let (mut tray, mut preventing) = (TrayPosition::Loaded, BTreeSet::new());
        let mut change = |change: RemovalChange| apply(&mut tray, &mut preventing, &change).map(|e| e.is_published);
        let eject = |mover| RemovalChange::Move(Motion::Eject, mover);
        for (prevent, is_published) in [("a", true), ("b", true), ("a", false)] {
            assert_eq!(change(RemovalChange::Prevent(name(prevent))), Ok(is_published));
        }
        for (allow, is_published) in [("a", true), ("a", false)] {
            assert_eq!(change(RemovalChange::Allow(name(allow))), Ok(is_published));
            assert_eq!(change(eject(CLIENT)), Err(Denial::RemovalPrevented));
            assert_eq!(change(eject(OPERATOR)), Err(Denial::RemovalPrevented));
        }
        assert_eq!(change(RemovalChange::Move(Motion::Load, CLIENT)), Ok(false), "it is loaded");
        assert_eq!(change(eject(FORCED)), Ok(true));
        assert_eq!(change(RemovalChange::Move(Motion::Load, CLIENT)), Err(Denial::RemovalPrevented));
        assert_eq!(change(RemovalChange::Move(Motion::Load, OPERATOR)), Ok(true));
        assert_eq!(change(RemovalChange::Allow(name("b"))), Ok(true));
        assert_eq!(change(eject(CLIENT)), Ok(true));
    }

    #[test]
    fn a_medium_whose_eject_failed_is_loaded_again() {
        let (mut tray, mut preventing) = (TrayPosition::Ejected, BTreeSet::new());
        let effects = apply(&mut tray, &mut preventing, &RemovalChange::EjectFailed).expect("it always may");
        assert_eq!((tray, effects.event), (TrayPosition::Loaded, Some(Event::MediumLoaded)));
    }
}
