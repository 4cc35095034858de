//! When a core polls rings in guest memory, and when it asks the guest to notify it.
//!
//! A notification costs the guest an exit and the core a wake-up, so a core that is awake polls the rings itself and
//! suppresses notifications. A core that is about to sleep, or that has polled without result for a while, asks the
//! guest to notify it, and polls once more: so an idle guest costs nothing, and no request of the guest is missed. The
//! transport decides how the guest is asked (shadow doorbells, event indices, flags) and how it notifies (a message,
//! an eventfd).

use std::cell::Cell;
use std::time::Duration;

/// The rings of a device, as a [`PollSchedule`] needs them.
pub trait Rings {
    /// Whether there is work: a cheap check, which changes nothing.
    fn has_work(&self) -> bool;

    /// Asks the guest to notify from now on, then checks again.
    fn arm(&self) -> Arming;
}

/// The result of a request to notify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arming {
    /// The guest will notify.
    Armed,
    /// There is work already.
    Work,
    /// The guest cannot notify, or the rings are not needed now. Polling continues while the core is awake.
    Unnotified,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The next turn does the work.
    Due,
    /// Every turn polls. The number counts the polls without result since the last work.
    Watching { misses: u32 },
    /// The guest notifies.
    Armed,
    /// There may be work, and no slot is free. The next free slot wakes the schedule.
    AwaitingSlot,
}

/// When a core polls the rings of one device.
#[derive(Debug)]
pub struct PollSchedule {
    state: Cell<State>,
    misses_max: u32,
}

impl PollSchedule {
    /// A schedule that asks the guest to notify after `misses_max` polls without result, if the core stays awake for
    /// other reasons.
    #[must_use]
    pub fn new(misses_max: u32) -> Self {
        Self { state: Cell::new(State::Watching { misses: 0 }), misses_max }
    }

    /// The guest has notified, or another event has occurred: the next turn checks for work.
    pub fn wake(&self) {
        self.state.set(State::Due);
    }

    /// The work has to wait for a slot.
    pub fn wait_for_slot(&self) {
        self.state.set(State::AwaitingSlot);
    }

    /// Whether the next turn does the work.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.state.get() == State::Due
    }

    /// Whether [`PollSchedule::look`] would find work.
    #[inline]
    #[must_use]
    pub fn has_work(&self, rings: &impl Rings) -> bool {
        match self.state.get() {
            State::Due => true,
            State::Watching { .. } => rings.has_work(),
            State::Armed | State::AwaitingSlot => false,
        }
    }

    /// Polls; called once in every turn of the core.
    #[inline]
    pub fn look(&self, rings: &impl Rings) -> Look {
        let misses = match self.state.get() {
            State::Due => 0,
            State::Watching { misses } if !rings.has_work() => misses + 1,
            State::Watching { .. } => 0,
            State::Armed | State::AwaitingSlot => return Look::Nothing,
        };
        if misses == 0 {
            self.state.set(State::Watching { misses });
            return Look::Work;
        }
        if misses <= self.misses_max {
            self.state.set(State::Watching { misses });
            return Look::Nothing;
        }
        match self.arm(rings) {
            // The next turn does it.
            Arming::Work => Look::Again,
            Arming::Armed | Arming::Unnotified => Look::Nothing,
        }
    }

    /// The core is about to sleep. Returns whether it may: then the guest will notify, if it can.
    #[must_use]
    pub fn prepare_sleep(&self, rings: &impl Rings) -> bool {
        match self.state.get() {
            State::Due => false,
            State::Watching { .. } => self.arm(rings) != Arming::Work,
            State::Armed | State::AwaitingSlot => true,
        }
    }

    fn arm(&self, rings: &impl Rings) -> Arming {
        let arming = rings.arm();
        if arming == Arming::Armed {
            self.state.set(State::Armed);
        }
        arming
    }
}

/// The result of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// No work: the core may sleep.
    Nothing,
    /// Work arrived while the guest was asked to notify: another turn is needed.
    Again,
    /// There may be work: the transport does it now.
    Work,
}

/// The first pause of [`Backoff::for_stores`].
const STORE_SOONEST: Duration = Duration::from_micros(100);
/// The longest pause of [`Backoff::for_stores`].
const STORE_LATEST: Duration = Duration::from_millis(5);

/// Pauses between looks while the core sleeps, for instance at rings whose guest cannot notify: short while there is
/// work, and longer and longer without work.
#[derive(Debug)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    pause: Duration,
}

impl Backoff {
    /// Pauses between looks whether stores have let go of memory of the guest. A store mostly takes less than the first
    /// pause, and may take minutes: then a few hundred looks a second take next to nothing.
    #[must_use]
    pub fn for_stores() -> Self {
        Self::new(STORE_SOONEST, STORE_LATEST)
    }

    /// Pauses from `shortest` to `longest`.
    #[must_use]
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, pause: shortest }
    }

    /// The pause after a poll, which found work or not.
    pub fn next(&mut self, has_work: bool) -> Duration {
        self.pause = if has_work { self.shortest } else { (self.pause * 2).min(self.longest) };
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings of a guest, which the test controls.
    struct Played {
        has_work: Cell<bool>,
        arming: Cell<Arming>,
        armed: Cell<u32>,
    }

    impl Rings for Played {
        fn has_work(&self) -> bool {
            self.has_work.get()
        }

        fn arm(&self) -> Arming {
            self.armed.set(self.armed.get() + 1);
            if self.has_work.get() { Arming::Work } else { self.arming.get() }
        }
    }

    fn played(arming: Arming) -> (PollSchedule, Played) {
        let rings = Played { has_work: Cell::new(false), arming: Cell::new(arming), armed: Cell::new(0) };
        (PollSchedule::new(3), rings)
    }

    #[test]
    fn a_busy_guest_is_polled_and_never_asked_to_notify() {
        let (schedule, rings) = played(Arming::Armed);
        rings.has_work.set(true);
        for _ in 0..100 {
            assert_eq!(schedule.look(&rings), Look::Work);
            assert!(!schedule.prepare_sleep(&rings), "there is more work");
            rings.armed.set(0);
        }
        assert!(schedule.has_work(&rings));
        // A few polls without result do not end it.
        for _ in 0..10 {
            rings.has_work.set(false);
            assert_eq!([0; 3].map(|_| schedule.look(&rings)), [Look::Nothing; 3]);
            rings.has_work.set(true);
            assert_eq!((schedule.look(&rings), rings.armed.get()), (Look::Work, 0));
        }
    }

    #[test]
    fn an_idle_guest_notifies_and_is_not_looked_at() {
        let (schedule, rings) = played(Arming::Armed);
        assert_eq!([0; 4].map(|_| schedule.look(&rings)), [Look::Nothing; 4]);
        assert_eq!(rings.armed.get(), 1, "other tasks kept the core awake");
        rings.has_work.set(true);
        assert!(schedule.look(&rings) == Look::Nothing && !schedule.has_work(&rings) && schedule.prepare_sleep(&rings));
        schedule.wake();
        assert!(schedule.is_due() && schedule.has_work(&rings) && !schedule.prepare_sleep(&rings));
        assert_eq!((schedule.look(&rings), schedule.is_due()), (Look::Work, false));
        rings.has_work.set(false);
        assert!(schedule.prepare_sleep(&rings) && rings.armed.get() == 2);
        assert!(schedule.prepare_sleep(&rings) && rings.armed.get() == 2, "it is asked once");
    }

    #[test]
    fn work_that_arrives_during_the_request_to_notify_is_seen() {
        let (schedule, rings) = played(Arming::Armed);
        rings.has_work.set(true);
        assert!(!schedule.prepare_sleep(&rings), "it would sleep forever");
        assert_eq!(schedule.look(&rings), Look::Work);
        // The same between a look and the request to notify.
        let (schedule, rings) = played(Arming::Work);
        assert_eq!([0; 4].map(|_| schedule.look(&rings)), [Look::Nothing, Look::Nothing, Look::Nothing, Look::Again]);
    }

    #[test]
    fn a_guest_that_cannot_notify_is_looked_at_for_ever() {
        let (schedule, rings) = played(Arming::Unnotified);
        assert!((0..100).all(|_| schedule.look(&rings) == Look::Nothing && schedule.prepare_sleep(&rings)));
        rings.has_work.set(true);
        assert!(schedule.has_work(&rings) && schedule.look(&rings) == Look::Work);
    }

    #[test]
    fn a_device_without_a_slot_waits_until_it_is_woken() {
        let (schedule, rings) = played(Arming::Armed);
        rings.has_work.set(true);
        schedule.wake();
        schedule.wait_for_slot();
        assert!(schedule.look(&rings) == Look::Nothing && !schedule.has_work(&rings) && schedule.prepare_sleep(&rings));
        assert_eq!(rings.armed.get(), 0, "the notification would be superfluous");
        schedule.wake();
        assert_eq!(schedule.look(&rings), Look::Work);
    }

    #[test]
    fn pauses_grow_while_nothing_is_found() {
        let (shortest, longest) = (Duration::from_micros(50), Duration::from_micros(300));
        let mut backoff = Backoff::new(shortest, longest);
        let micros = [false, false, false, false, true, false].map(|found| backoff.next(found).as_micros());
        assert_eq!(micros, [100, 200, 300, 300, 50, 100]);
    }
}
