//! Devices that answer commands in a simulation.

use crate::endpoint::command::Command;
use lunar_core::io::Fault;
use std::cell::RefCell;
use std::rc::Rc;

/// A device: a value that answers commands.
pub trait Device {
    /// Executes a command: fills its memory or reads it, sets its [`Command::result`], and returns the result of the
    /// operation.
    ///
    /// # Errors
    /// The fault that the operation answers.
    fn execute(&mut self, command: &mut Command) -> Result<u32, Fault>;
}

impl<F: FnMut(&mut Command) -> Result<u32, Fault>> Device for F {
    fn execute(&mut self, command: &mut Command) -> Result<u32, Fault> {
        self(command)
    }
}

/// A device that several commands share.
pub(super) type Shared = Rc<RefCell<dyn Device>>;
