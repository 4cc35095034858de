//! The state that all users of a unit share: reservations, asymmetric access, the state and position of the medium,
//! the protection type and the epoch. Command sets are equal users: each proposes changes, and all are notified of
//! them. Pure: no socket, no file, no thread.
//!
//! * [`state`]: the state as a value; [`change`]: changes and their effects
//! * [`reserve`], [`access`], [`medium`], [`protection`]: its parts
//! * [`ledger`]: puts changes in order; [`publish`]: puts them in force on all cores
//! * [`shared`]: the units of a process; [`core_units`]: the access of one core to them
//! * [`capacity`]: initiator ports that have not read a new capacity
//! * [`rewrite`]: format and sanitize; [`removal`]: removable media

pub mod access;
pub mod capacity;
pub mod change;
pub mod core_units;
pub mod ledger;
pub mod medium;
pub mod protection;
pub mod publish;
pub mod removal;
pub mod reserve;
pub mod rewrite;
pub mod shared;
pub mod state;
#[cfg(test)]
mod testing;

pub use access::{AccessChange, AccessState};
pub use change::{Aborts, CommandSetChange, Denial, Effects, Event, Opaque, Ordered, Record, UnitChange};
pub use core_units::CoreUnits;
pub use ledger::{LocalFuture, Refused};
pub use medium::{MediumState, TrayPosition};
pub use publish::{CommandSet, NoOtherCores, OtherCores, UnitMessage};
pub use shared::{SharedUnit, SharedUnits, UnitRef};
