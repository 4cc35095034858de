//! Other configured parts of the program.

use lunar_control::Checked;
use lunar_control::api::IsnsView;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// An error of a part, which only the part knows.
pub type PartError = Box<dyn std::error::Error + Send + Sync>;

/// A part of the program that is configured, such as the API and the log. It is asked whenever something of these
/// sections changes: `api`, `api-listener`, `api-token`, `logging`, `server`.
pub trait Part: Send {
    /// Does everything that can fail, without any client noticing.
    ///
    /// # Errors
    /// An error of the part, with a message that says what to do.
    fn prepare(&mut self, wanted: &Checked) -> Result<(), PartError>;

    /// Applies the prepared change. Cannot fail.
    fn commit(&mut self, wanted: &Checked);

    /// Undoes what was prepared.
    fn roll_back(&mut self);
}

/// Registers targets with a name server (iSNS).
pub trait NameService: Send {
    /// Registers the targets of a configuration; `portals` has the addresses where portals listen, by their names.
    fn register(&mut self, wanted: &Checked, portals: &BTreeMap<String, SocketAddr>);

    /// The state of the registration; `None` if no server is configured.
    fn view(&self) -> Option<IsnsView>;

    /// The present trouble, in words that say what to do.
    fn trouble(&self) -> Option<String>;
}
