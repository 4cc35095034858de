//! A logical unit whose commands a device or a handler executes.

use super::Common;
use crate::device_server::DeviceServer;
use lunar_core::metadata::MetadataStore;
use lunar_core::tally::Tally;
use lunar_core::unit::{Identity, UnitId};
use lunar_unit::SharedUnit;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// One core's view of a unit whose commands are forwarded.
#[derive(Clone)]
pub struct ForwardedUnit {
    /// Number of the unit in this process; the same on every core.
    pub id: UnitId,
    /// Names of the unit, which the Device Identification VPD page reports.
    pub identity: Arc<Identity>,
    /// Whether all commands that may write are refused.
    pub read_only: bool,
    /// The metadata of the unit: persistent reservations.
    pub metadata: Arc<dyn MetadataStore>,
    /// The counters of the unit, of all cores.
    pub tally: Tally,
    /// This core's connection to the device server.
    pub device: Rc<dyn DeviceServer>,
}

impl fmt::Debug for ForwardedUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForwardedUnit({} {:?})", self.id.0, self.device.device_type())
    }
}

/// A forwarded logical unit.
#[derive(Debug)]
pub struct Forwarded {
    pub(super) common: Common,
    /// The unit.
    pub unit: ForwardedUnit,
    /// Number of the next command.
    next: Cell<u64>,
}

impl Forwarded {
    /// A logical unit of this number.
    #[must_use]
    pub(crate) fn new(lun: u16, unit: ForwardedUnit, shared: Arc<SharedUnit>) -> Self {
        let common = Common { lun, device_type: unit.device.device_type(), shared };
        Self { common, unit, next: Cell::new(0) }
    }

    /// A number for a command, which no other command in progress has.
    pub(crate) fn next_command(&self) -> u64 {
        let id = self.next.get();
        self.next.set(id.wrapping_add(1));
        id
    }
}
