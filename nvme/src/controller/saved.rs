//! A controller that moves to another process: the settings of its host, and its pending events.

use super::{Controller, FATAL, Granted, NOTICES_MAX, Notice, property};
use crate::command::Status;
use crate::errors::ErrorEntry;
use crate::event::SavedEvents;
use crate::features::{self, FEATURES, find};
use crate::namespace::NAMESPACES_MAX;
use std::time::Duration;

/// Values of features at most: every feature of the controller, and those of each namespace.
pub const VALUES_MAX: usize = FEATURES.len() * (NAMESPACES_MAX as usize + 1);

/// The state of a controller without its queues.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// CC.
    pub configuration: u32,
    /// CSTS.CFS.
    pub is_fatal: bool,
    /// Feature 0Fh, in milliseconds.
    pub keep_alive: u32,
    /// Writes complete when they are on the medium.
    pub writes_through: bool,
    /// I/O queues that are granted.
    pub granted: Granted,
    /// Feature values that were set: identifier, namespace, value.
    pub values: Vec<(u8, u32, u32)>,
    /// The offset of the host's clock in milliseconds.
    pub clock: Option<i64>,
    /// The Host Behavior Support of the host.
    pub behavior: Option<Box<[u8; 512]>>,
    /// Asynchronous events.
    pub events: SavedEvents,
    /// Unread reservation notifications.
    pub notices: Vec<Notice>,
    /// The number of all notifications so far.
    pub noticed: u64,
    /// Namespaces that were added, removed or changed since the log page was read.
    pub changed: Vec<u32>,
    /// The last commands that failed, the newest first.
    pub errors: Vec<ErrorEntry>,
    /// The number of failed commands.
    pub failed: u64,
}

impl Controller {
    /// Suspends or resumes asynchronous events.
    pub fn hold_events(&self, is_held: bool) {
        self.lock().events.hold(is_held);
    }

    /// The state of the controller.
    #[must_use]
    pub fn save(&self) -> Saved {
        let writes_through = !self.caches_writes();
        let (failed, errors) = self.errors();
        let state = self.lock();
        Saved {
            configuration: state.configuration,
            is_fatal: state.status & FATAL != 0,
            // The value was set with as many bits.
            keep_alive: u32::try_from(state.keep_alive.as_millis()).unwrap_or(u32::MAX),
            writes_through,
            granted: state.granted,
            values: state.values.all(),
            clock: state.values.clock,
            behavior: state.values.behavior.clone(),
            events: state.events.save(),
            notices: state.notices.iter().copied().collect(),
            noticed: state.noticed,
            changed: state.changed.iter().copied().collect(),
            errors,
            failed,
        }
    }

    /// Restores the saved state of a controller that was not enabled yet.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] if the state is impossible; then the controller must be reset.
    pub fn restore(&self, saved: &Saved) -> Result<(), Status> {
        let is_value = |(id, namespace, _): &(u8, u32, u32)| {
            let is_each = |row: &features::Row| row.per_namespace || *id == features::VECTOR;
            find(*id).is_some_and(|row| row.changes && (*namespace == 0 || is_each(row)))
        };
        let is_namespace = |id: &u32| (1..=NAMESPACES_MAX).contains(id);
        let fits = saved.values.len() <= VALUES_MAX && saved.notices.len() <= NOTICES_MAX;
        let fits = fits && saved.changed.iter().all(is_namespace);
        if !fits || !saved.granted.is_possible() || !saved.values.iter().all(is_value) {
            return Err(Status::INVALID_FIELD);
        }
        self.set_property(property::CC, false, saved.configuration.into())?;
        self.set_write_cache(!saved.writes_through);
        self.set_behavior(saved.behavior.clone());
        let mut state = self.lock();
        if !state.events.restore(&saved.events) {
            return Err(Status::INVALID_FIELD);
        }
        if saved.is_fatal {
            state.status |= FATAL;
        }
        state.keep_alive = Duration::from_millis(saved.keep_alive.into());
        state.granted = saved.granted;
        saved.values.iter().for_each(|(id, namespace, value)| state.values.set(*id, *namespace, *value));
        state.values.clock = saved.clock;
        (state.notices, state.noticed) = (saved.notices.iter().copied().collect(), saved.noticed);
        // Namespaces may have changed during the move.
        state.changed = saved.changed.iter().copied().collect();
        let fits = self.lock_errors().restore(saved.failed, &saved.errors);
        if fits { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::{EVENTS, RESERVATION_MASK};
    use crate::fuzzing::{Rig, entry, tenant};
    use lunar_core::time::Instant;

    #[test]
    fn a_restored_controller_has_the_saved_state() {
        let rig = Rig::default();
        let [one, other] = [0, 1].map(|_| rig.subsystem.open_controller(&tenant(), Instant(0)).expect("room"));
        let (one, other) = (&one.controller, &other.controller);
        one.set_property(property::CC, false, 0x46_0001).expect("it can be");
        one.grant(Granted { submission: 7, completion: 5 }).expect("no queues yet");
        one.set_write_cache(false);
        one.values(|values| {
            values.set(EVENTS, 0, 0x900);
            values.set(RESERVATION_MASK, 1, 2);
            values.set(features::VECTOR, 3, 0x1_0003);
            values.clock = Some(-5);
        });
        one.set_behavior(Some(Box::new([4; 512])));
        one.set_keep_alive(5000);
        assert_eq!(one.park(4), Ok(()));
        one.hold_events(true);
        one.change_namespaces([3, 9]);
        assert_eq!(one.note_error(1, &entry(0x7e, 1, &[]), &Status::ABORTED.into()), Status::ABORTED);
        one.notice(1, 1);
        let saved = one.save();
        assert_eq!(saved.granted, Granted { submission: 7, completion: 5 });
        assert_eq!((saved.events.waiting.clone(), saved.changed.clone()), (vec![4], vec![3, 9]));
        other.restore(&saved).expect("it was so");
        assert_eq!(other.save(), saved);
        assert!(other.is_enabled() && !other.caches_writes());
        assert!(other.takes_copies_of(2) && !other.takes_copies_of(3));
        for bad in [
            Saved { granted: Granted { submission: 1, completion: 0 }, ..saved.clone() },
            Saved { values: vec![(0x77, 0, 0)], ..saved.clone() },
            Saved { values: vec![(EVENTS, 1, 0)], ..saved.clone() },
            Saved { configuration: 0x71, ..saved.clone() },
            Saved { changed: vec![0], ..saved.clone() },
            Saved { failed: 0, ..saved.clone() },
            Saved { notices: vec![Notice { count: 0, kind: 0, namespace: 0 }; 65], ..saved.clone() },
        ] {
            assert_eq!(other.restore(&bad), Err(Status::INVALID_FIELD), "{bad:?}");
        }
        let third = &rig.subsystem.open_controller(&tenant(), Instant(0)).expect("room").controller;
        third.restore(&Saved { noticed: u64::MAX, failed: u64::MAX, ..saved }).expect("any count can be");
        third.notice(1, 1);
        third.note_error(1, &entry(0x7e, 1, &[]), &Status::ABORTED.into());
        let saved = third.save();
        assert_eq!((saved.noticed, saved.failed), (1, 1), "they begin again");
    }
}
