//! What the views of a unit have in common, on all cores and of all command sets. Only reservation commands, those that
//! prevent or do the removal of a medium, new nexuses and resets take the locks here, never the data path: each core's
//! nexuses know what they may do.

use super::Reservations;
use crate::keep::Keep;
use crate::port::NexusName;
use crate::unit::{Unit, UnitId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The name under which a unit keeps its reservations.
pub const RESERVATIONS: &str = "reservations";

/// What is kept are no reservations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reservations that were kept are damaged, or of a later version")
    }
}

impl std::error::Error for Malformed {}

/// What the views of one logical unit have in common.
#[derive(Debug, Default)]
pub struct Shared {
    reservations: Mutex<Reservations>,
    turns: Mutex<Turns>,
    /// Who prevents the removal of the medium.
    preventing: Mutex<BTreeSet<NexusName>>,
}

/// Whose turn it is to change what is shared.
#[derive(Debug, Default)]
struct Turns {
    taken: bool,
    waiting: Vec<Waker>,
}

/// The right to change what is shared, until it is dropped. Others may look meanwhile.
#[derive(Debug)]
pub struct Turn<'a>(&'a Shared);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn load(keep: &dyn Keep) -> Result<Self, Malformed> {
        let kept = keep.load(RESERVATIONS).unwrap_or_default();
        let reservations = Reservations::from_kept(&kept).ok_or(Malformed)?;
        Ok(Self { reservations: Mutex::new(reservations), ..Self::default() })
    }

    /// The reservations as they are now.
    pub fn reservations(&self) -> MutexGuard<'_, Reservations> {
        lock(&self.reservations)
    }

    /// Has a nexus prevent the removal of the medium.
    pub fn prevent(&self, name: &NexusName) {
        lock(&self.preventing).insert(name.clone());
    }

    /// A nexus no longer prevents it; if `None`, none does.
    pub fn allow(&self, name: Option<&NexusName>) {
        let mut preventing = lock(&self.preventing);
        match name {
            Some(name) => drop(preventing.remove(name)),
            None => preventing.clear(),
        }
    }

    /// Whether anybody prevents the removal of the medium.
    #[must_use]
    pub fn is_prevented(&self) -> bool {
        !lock(&self.preventing).is_empty()
    }

    /// Waits for the turn to change what is shared. Whoever has it waits for the medium and for the other cores to take
    /// notice, and never for tasks to end: those may wait for their turn.
    pub async fn turn(&self) -> Turn<'_> {
        poll_fn(|cx| {
            let mut turns = lock(&self.turns);
            if !turns.taken {
                turns.taken = true;
                return Poll::Ready(());
            }
            if !turns.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                turns.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = lock(&self.0.turns);
        turns.taken = false;
        // All of them: the first may have been given up meanwhile.
        let waiting = std::mem::take(&mut turns.waiting);
        drop(turns);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// What the logical units of a process share between its cores: made before the cores start.
#[derive(Debug, Default)]
pub struct SharedUnits(Mutex<BTreeMap<UnitId, Arc<Shared>>>);

impl SharedUnits {
    /// Restores a unit, before the first core serves it.
    ///
    /// # Errors
    /// [`Malformed`]: whoever holds a reservation cannot be known, so the unit must not be served.
    pub fn restore(&self, unit: UnitId, keep: &dyn Keep) -> Result<(), Malformed> {
        let shared = Arc::new(Shared::load(keep)?);
        lock(&self.0).insert(unit, shared);
        Ok(())
    }

    /// Forgets a unit that is not served any more; who still has to do with it keeps what it has.
    pub fn forget(&self, unit: UnitId) {
        lock(&self.0).remove(&unit);
    }

    /// What a unit's views share.
    pub fn of(&self, unit: &Unit) -> Arc<Shared> {
        lock(&self.0).entry(unit.id).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep::Forgetful;
    use std::pin::pin;
    use std::task::Context;

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("nobody has the turn"),
        }
    }

    #[test]
    fn turns_come_one_after_another() {
        let shared = Shared::default();
        let mut cx = Context::from_waker(Waker::noop());
        let first = at_once(shared.turn());
        let mut second = pin!(shared.turn());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(first);
        let Poll::Ready(second) = second.as_mut().poll(&mut cx) else { panic!("it is its turn") };
        assert!(pin!(shared.turn()).poll(&mut cx).is_pending());
        drop(second);
        at_once(shared.turn());
    }

    #[test]
    fn what_cannot_be_read_is_not_served() {
        let (units, keep) = (SharedUnits::default(), Forgetful::default());
        assert_eq!(units.restore(UnitId(0), &keep), Ok(()));
        at_once(keep.keep(RESERVATIONS, vec![1])).expect("memory keeps");
        assert_eq!(units.restore(UnitId(0), &keep), Err(Malformed));
    }
}
