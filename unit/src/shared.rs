//! The units of a process, and the state of each of them, which all cores share. The locks here are taken by changes,
//! by new nexuses and by commands that report state, never by the data path: each core has cells of its own with the
//! part that the data path needs.

use crate::capacity::Notices;
use crate::reserve::{MalformedReservations, Reservations};
use crate::state::UnitState;
use lunar_core::metadata::MetadataStore;
use lunar_core::unit::{Unit, UnitId};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A unit whose state the ledger changes: one with a store, or one whose commands are executed elsewhere.
#[derive(Clone, Copy)]
pub struct UnitRef<'a> {
    /// Number of the unit.
    pub id: UnitId,
    /// Destination of its metadata records.
    pub metadata: &'a dyn MetadataStore,
}

impl fmt::Debug for UnitRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitRef({})", self.id.0)
    }
}

impl<'a> From<&'a Unit> for UnitRef<'a> {
    fn from(unit: &'a Unit) -> Self {
        Self { id: unit.id, metadata: &*unit.metadata }
    }
}

impl<'a> From<&'a Rc<Unit>> for UnitRef<'a> {
    fn from(unit: &'a Rc<Unit>) -> Self {
        Self::from(&**unit)
    }
}

/// A unit, as all cores and command sets share it.
#[derive(Debug, Default)]
pub struct SharedUnit {
    state: Mutex<UnitState>,
    /// The initiator ports that have not read a new capacity.
    pub(crate) capacity: Notices,
    /// Orders its changes.
    pub(crate) changes: Turns,
    /// Orders the motions of the medium: a motion may wait for the store, and changes continue meanwhile.
    pub(crate) motions: Turns,
    is_busy: AtomicBool,
    progress: AtomicU16,
}

/// The state of a unit, which cannot change until this is dropped. It is never held over an `await`.
#[derive(Debug)]
pub struct StateGuard<'a>(MutexGuard<'a, UnitState>);

impl Deref for StateGuard<'_> {
    type Target = UnitState;

    fn deref(&self) -> &UnitState {
        &self.0
    }
}

/// The reservations of a unit, which cannot change until this is dropped.
#[derive(Debug)]
pub struct ReservationsGuard<'a>(StateGuard<'a>);

impl Deref for ReservationsGuard<'_> {
    type Target = Reservations;

    fn deref(&self) -> &Reservations {
        self.0.reservations()
    }
}

impl SharedUnit {
    fn with(state: UnitState) -> Self {
        Self { state: Mutex::new(state), ..Self::default() }
    }

    /// The state as it is now.
    #[must_use]
    pub fn state(&self) -> StateGuard<'_> {
        StateGuard(lock(&self.state))
    }

    /// The reservations as they are now.
    #[must_use]
    pub fn reservations(&self) -> ReservationsGuard<'_> {
        ReservationsGuard(self.state())
    }

    /// Replaces the state: for the ledger alone.
    pub(crate) fn set(&self, state: UnitState) {
        *lock(&self.state) = state;
    }

    /// Begins an activity that occupies the whole medium, unless one is in progress: a rewrite, or an eject.
    #[must_use]
    pub fn begin_activity(self: &Arc<Self>) -> Option<Activity> {
        let begun = self.is_busy.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok().then(|| {
            self.progress.store(0, Ordering::Relaxed);
            Activity(self.clone())
        })
    }

    /// The progress of the rewrite, in parts of 65,536.
    #[must_use]
    pub fn progress(&self) -> u16 {
        self.progress.load(Ordering::Relaxed)
    }
}

/// An activity that occupies the whole medium, until it is dropped.
#[derive(Debug)]
pub struct Activity(Arc<SharedUnit>);

impl Activity {
    /// Reports the progress: `done` of `all` parts.
    pub fn set_progress(&self, done: u64, all: u64) {
        let parts = u128::from(done) * 0x1_0000 / u128::from(all.max(1));
        self.0.progress.store(u16::try_from(parts).unwrap_or(u16::MAX), Ordering::Relaxed);
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

/// A queue of tasks that take turns.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    is_taken: bool,
    waiting: Vec<Waker>,
}

/// The turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for the turn.
    pub(crate) async fn next(&self) -> Turn<'_> {
        poll_fn(|cx| {
            let mut queue = lock(&self.0);
            if !queue.is_taken {
                queue.is_taken = true;
                return Poll::Ready(());
            }
            if !queue.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                queue.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.0);
        queue.is_taken = false;
        // All waiters are woken: the future of the first may have been dropped meanwhile.
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The units of a process, by number.
#[derive(Debug, Default)]
pub struct SharedUnits(Mutex<BTreeMap<UnitId, Arc<SharedUnit>>>);

impl SharedUnits {
    /// Restores the state of a unit from its metadata, before a core serves the unit.
    ///
    /// # Errors
    /// [`MalformedReservations`]: the unit must not be served.
    pub fn restore(&self, unit: UnitId, metadata: &dyn MetadataStore) -> Result<(), MalformedReservations> {
        let shared = Arc::new(SharedUnit::with(UnitState::restored(metadata)?));
        lock(&self.0).insert(unit, shared);
        Ok(())
    }

    /// The store of a unit that no core serves yet is unavailable.
    pub fn begin_without_store(&self, unit: UnitId) {
        if let Some(shared) = self.get(unit) {
            lock(&shared.state).set_store_available(false);
        }
    }

    /// Removes a unit that is no longer served. Other owners of it keep it.
    pub fn forget(&self, unit: UnitId) {
        lock(&self.0).remove(&unit);
    }

    /// The unit of this number, if a core serves it.
    #[must_use]
    pub fn get(&self, unit: UnitId) -> Option<Arc<SharedUnit>> {
        lock(&self.0).get(&unit).cloned()
    }

    /// The shared unit of a unit. A unit that was not restored is restored now.
    ///
    /// # Panics
    /// If its reservations are malformed: [`SharedUnits::restore`] has refused such a unit.
    pub(crate) fn of_ref(&self, unit: UnitRef<'_>) -> Arc<SharedUnit> {
        let restored = || {
            let state = UnitState::restored(unit.metadata);
            Arc::new(SharedUnit::with(state.expect("a unit with malformed reservations is not served")))
        };
        lock(&self.0).entry(unit.id).or_insert_with(restored).clone()
    }

    /// The unit behind this view. A unit that was not restored is restored now.
    ///
    /// # Panics
    /// If its reservations are malformed: [`SharedUnits::restore`] has refused such a unit.
    pub fn of(&self, view: &Unit) -> Arc<SharedUnit> {
        let shared = self.of_ref(view.into());
        let mut state = lock(&shared.state);
        if let Some(protection) = &view.protection {
            state.adopt_protection(protection.kind());
        }
        if view.read_only && !shared.is_busy.load(Ordering::Acquire) {
            state.suspend_sanitize();
        }
        drop(state);
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::RESERVATIONS;
    use lunar_core::metadata::VolatileMemory;
    use std::pin::pin;
    use std::task::Context;

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the turn is free"),
        }
    }

    #[test]
    fn turns_come_one_after_another() {
        let turns = Turns::default();
        let mut cx = Context::from_waker(Waker::noop());
        let first = at_once(turns.next());
        let mut second = pin!(turns.next());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(first);
        let Poll::Ready(second) = second.as_mut().poll(&mut cx) else { panic!("the turn is free") };
        assert!(pin!(turns.next()).poll(&mut cx).is_pending());
        drop(second);
        at_once(turns.next());
    }

    #[test]
    fn a_unit_with_malformed_reservations_is_refused() {
        let (units, metadata) = (SharedUnits::default(), VolatileMemory::default());
        assert_eq!(units.restore(UnitId(0), &metadata), Ok(()));
        at_once(metadata.save(RESERVATIONS, vec![1])).expect("memory saves");
        assert_eq!(units.restore(UnitId(0), &metadata), Err(MalformedReservations));
    }

    #[test]
    fn one_activity_occupies_a_medium_at_a_time_and_reports_its_progress() {
        let shared = Arc::new(SharedUnit::default());
        let activity = shared.begin_activity().expect("free");
        assert!(shared.begin_activity().is_none());
        for (done, all, progress) in
            [(1, 4, 0x4000), (u64::MAX / 2, u64::MAX, 0x7fff), (9, 9, u16::MAX), (1, 0, u16::MAX)]
        {
            activity.set_progress(done, all);
            assert_eq!(shared.progress(), progress);
        }
        drop(activity);
        let _next = shared.begin_activity().expect("the first one has ended");
        assert_eq!(shared.progress(), 0);
    }
}
