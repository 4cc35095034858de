//! The commands of an emulated logical unit that Lunar does not have, and that another process executes.

use crate::device_server::DeviceServer;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// This core's connection to the process.
pub(crate) struct OtherCommands {
    /// The process, which gets commands only.
    pub(crate) device: Rc<dyn DeviceServer>,
    /// Number of the next command.
    next: Cell<u64>,
}

impl OtherCommands {
    pub(crate) fn new(device: Rc<dyn DeviceServer>) -> Self {
        Self { device, next: Cell::new(0) }
    }

    /// A number for a command, which no other command in progress has.
    pub(crate) fn next_command(&self) -> u64 {
        let id = self.next.get();
        self.next.set(id.wrapping_add(1));
        id
    }
}

impl fmt::Debug for OtherCommands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtherCommands")
    }
}
