//! The state of an emulated logical unit that depends on its device type.

use crate::sbc::state::DiskState;
use lunar_core::io::Space;

/// The state that only one device type has, as a value of that type. Device types without such state share `None`.
#[derive(Debug)]
pub(crate) enum DeviceState {
    /// No state: all state is the unit's or the nexus's.
    None,
    /// A disk.
    Disk(DiskState),
}

impl DeviceState {
    /// The state after this core got another view of the unit.
    pub(crate) fn of_new_view(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Disk(disk) => Self::Disk(disk.of_new_view()),
        }
    }

    /// The state of a disk.
    pub(crate) fn disk(&self) -> Option<&DiskState> {
        match self {
            Self::Disk(disk) => Some(disk),
            Self::None => None,
        }
    }

    /// Whether the state stops commands that access the medium.
    pub(crate) fn is_stopped(&self) -> bool {
        self.disk().is_some_and(|disk| disk.is_stopped.get())
    }

    /// Keeps the space at a measurement for LOG SENSE.
    pub(crate) fn set_space(&self, space: Option<Space>) {
        if let Some(disk) = self.disk() {
            disk.space.set(space);
        }
    }

    /// Sets the state that a reset sets.
    pub(crate) fn reset(&self) {
        if let Some(disk) = self.disk() {
            disk.is_stopped.set(false);
        }
    }
}
