//! The contract of a name service (iSNS) at which targets are registered.

use lunar_control::Checked;
use lunar_control::api::IsnsView;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Registers targets with an iSNS server.
pub trait NameService: Send {
    /// Registers the targets of a configuration; `portals` has the addresses where portals listen, by their names.
    fn register(&mut self, wanted: &Checked, portals: &BTreeMap<String, SocketAddr>);

    /// The state of the registration; `None` if no server is configured.
    fn view(&self) -> Option<IsnsView>;

    /// The present trouble, in words that say what to do.
    fn trouble(&self) -> Option<String>;
}
