//! The state of a volume that its thread and all cores see.

use crate::address::RemoteAddress;
use crate::disk::View;
use crate::error::Why;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The volume, as the configuration has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unit {
    /// The operator's name for it.
    pub(crate) name: String,
    /// Its address as text, in the place of a path.
    pub(crate) place: PathBuf,
    pub(crate) address: RemoteAddress,
    /// The name of the initiator.
    pub(crate) initiator: String,
    /// How long a command waits for the target.
    pub(crate) timeout: Duration,
}

impl Unit {
    /// Whether one connection serves both.
    pub(crate) fn is_same_connection(&self, other: &Self) -> bool {
        (&self.place, &self.initiator) == (&other.place, &other.initiator)
    }
}

/// The state.
#[derive(Debug)]
pub(crate) struct Shared {
    unit: Mutex<Unit>,
    view: Mutex<View>,
}

impl Shared {
    pub(crate) fn new(unit: Unit) -> Self {
        Self { unit: Mutex::new(unit), view: Mutex::new(View { facts: None, why: Some(Why::Silent) }) }
    }

    pub(crate) fn unit(&self) -> MutexGuard<'_, Unit> {
        self.unit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
