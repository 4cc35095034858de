//! A logical unit as all nexuses of this core see it.
//!
//! * [`emulated`]: Lunar executes its commands on a store; [`state`]: the state of its device type;
//!   `other_commands`: the commands that a handler has and Lunar does not
//! * [`forwarded`]: a device or a handler executes its commands

pub mod emulated;
pub mod forwarded;
mod other_commands;
mod state;

pub use emulated::{Emulated, Stored};
pub use forwarded::{Forwarded, ForwardedUnit};
pub(crate) use other_commands::OtherCommands;
pub(crate) use state::DeviceState;

use crate::device_server::DeviceServer;
use crate::peripheral::PeripheralType;
use lunar_core::tally::Tally;
use lunar_core::unit::{Identity, UnitId};
use lunar_unit::access::GroupAccess;
use lunar_unit::{SharedUnit, UnitRef};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// The common part of all logical units.
#[derive(Debug)]
pub struct Common {
    /// Number of the logical unit in the device server.
    pub lun: u16,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: PeripheralType,
    /// The state that all cores and command sets share.
    pub(crate) shared: Arc<SharedUnit>,
}

impl Common {
    /// The asymmetric access of a target port group.
    #[must_use]
    pub fn access(&self, group: u16) -> GroupAccess {
        self.shared.state().access().of(group)
    }
}

/// A logical unit.
#[derive(Debug)]
pub enum LogicalUnit {
    /// Lunar executes its commands on a store.
    Emulated(Emulated),
    /// A device or a handler executes its commands.
    Forwarded(Forwarded),
}

impl Deref for LogicalUnit {
    type Target = Common;

    #[inline]
    fn deref(&self) -> &Common {
        match self {
            Self::Emulated(lu) => &lu.common,
            Self::Forwarded(lu) => &lu.common,
        }
    }
}

impl<'a> From<&'a LogicalUnit> for UnitRef<'a> {
    fn from(lu: &'a LogicalUnit) -> Self {
        match lu {
            LogicalUnit::Emulated(lu) => Self::from(&*lu.unit),
            LogicalUnit::Forwarded(lu) => Self { id: lu.unit.id, metadata: &*lu.unit.metadata },
        }
    }
}

impl LogicalUnit {
    /// The emulated logical unit; `None` if it is forwarded.
    #[inline]
    #[must_use]
    pub fn emulated(&self) -> Option<&Emulated> {
        match self {
            Self::Emulated(lu) => Some(lu),
            Self::Forwarded(_) => None,
        }
    }

    /// The forwarded logical unit; `None` if it is emulated.
    #[inline]
    #[must_use]
    pub fn forwarded(&self) -> Option<&Forwarded> {
        match self {
            Self::Emulated(_) => None,
            Self::Forwarded(lu) => Some(lu),
        }
    }

    /// The device or the process that executes commands of it, if there is one.
    #[must_use]
    pub(crate) fn device_server(&self) -> Option<&Rc<dyn DeviceServer>> {
        match self {
            Self::Emulated(lu) => lu.others.as_ref().map(|others| &others.device),
            Self::Forwarded(lu) => Some(&lu.unit.device),
        }
    }

    /// Number of the unit in this process.
    #[must_use]
    pub fn id(&self) -> UnitId {
        match self {
            Self::Emulated(lu) => lu.unit.id,
            Self::Forwarded(lu) => lu.unit.id,
        }
    }

    /// The names of the unit.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        match self {
            Self::Emulated(lu) => &lu.unit.identity,
            Self::Forwarded(lu) => &lu.unit.identity,
        }
    }

    /// The counters of the unit.
    #[inline]
    pub(crate) fn tally(&self) -> &Tally {
        match self {
            Self::Emulated(lu) => &lu.unit.tally,
            Self::Forwarded(lu) => &lu.unit.tally,
        }
    }

    /// Whether its metadata outlives the process: persistent reservations may persist through power loss.
    pub(crate) fn has_durable_metadata(&self) -> bool {
        match self {
            Self::Emulated(lu) => lu.unit.metadata.is_durable(),
            Self::Forwarded(lu) => lu.unit.metadata.is_durable(),
        }
    }

    /// D_SENSE: whether sense data has descriptor format.
    pub(crate) fn has_descriptor_sense(&self) -> bool {
        match self {
            Self::Emulated(lu) => lu.mode().descriptor_sense,
            Self::Forwarded(lu) => lu.unit.device.facts().is_descriptor_sense(),
        }
    }

    /// Whether commands that write are refused.
    #[must_use]
    pub fn write_protected(&self) -> bool {
        match self {
            Self::Emulated(lu) => lu.write_protected(),
            Self::Forwarded(lu) => lu.unit.read_only,
        }
    }

    /// Whether no state of the logical unit can stop a command.
    #[inline]
    #[must_use]
    pub(crate) fn is_clear(&self) -> bool {
        match self {
            Self::Emulated(lu) => lu.is_clear(),
            Self::Forwarded(lu) => !lu.unit.read_only,
        }
    }
}
