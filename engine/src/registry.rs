//! The registry: the fronts and back ends of a program. Each is one line in it.

use crate::backend::Backend;
use crate::command_line::FrontOptions;
use crate::front::Front;
use lunar_control::Schema;
use lunar_control::schema::{FrontSchema, StoreSchema};

/// A front, with the declarations that its folder makes.
#[derive(Clone, Copy)]
pub struct FrontEntry {
    /// Its implementation.
    pub front: &'static dyn Front,
    /// Its declarations for the configuration.
    pub schema: &'static FrontSchema,
    /// Its options of `lunar serve`, if it can be served without a configuration file.
    pub options: Option<&'static dyn FrontOptions>,
}

/// The fronts and back ends of a program.
#[derive(Clone, Copy)]
pub struct Registry {
    /// The fronts, in the order in which they are shown.
    pub fronts: &'static [FrontEntry],
    /// The back ends, in the order in which they are shown.
    pub backends: &'static [&'static dyn Backend],
}

impl Registry {
    /// The schema of the configuration: the declarations of the fronts and back ends. It is made once in a process and
    /// lives as long as the process.
    #[must_use]
    pub fn schema(&self) -> Schema {
        let fronts: Vec<&'static FrontSchema> = self.fronts.iter().map(|entry| entry.schema).collect();
        let stores: Vec<&'static StoreSchema> = self.backends.iter().map(|backend| backend.schema()).collect();
        Schema { fronts: Vec::leak(fronts), stores: Vec::leak(stores) }
    }

    /// The index of the front of this name.
    #[must_use]
    pub fn front_index(&self, name: &str) -> Option<usize> {
        self.fronts.iter().position(|entry| entry.front.name() == name)
    }
}
