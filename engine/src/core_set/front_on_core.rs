//! The contract of a front on one core.

use lunar_reactor::op::Incoming;
use lunar_reactor::tcp::TcpState;
use lunar_unit::LocalFuture;
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The portal of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortalRef {
    /// The number of the portal in this process.
    pub portal: u32,
    /// The tag of its portal group.
    pub group: u16,
}

/// A front on one core: its connections, and the slots of their commands. It is made when it is used for the first
/// time, because slots take memory.
pub trait FrontOnCore: Any + fmt::Debug {
    /// Serves a connection that a portal has accepted.
    fn serve(&self, incoming: Incoming, portal: PortalRef);

    /// The connections that are served.
    fn connections(&self) -> usize;

    /// The state of its TCP connections, each with the ID of its session; `only`: those of the session with this ID.
    fn tcp_states(&self, only: Option<&str>) -> Vec<(String, TcpState)> {
        let _ = only;
        Vec::new()
    }

    /// Adds the TCP segments that were sent again since the last call to the counters of their hosts.
    fn count_retransmits(&self) {}

    /// Asks the sessions to end that the published configuration no longer allows, and those of the host groups
    /// `ended`; done when they have ended.
    fn review(&self, ended: Arc<BTreeSet<Arc<str>>>) -> LocalFuture<'_, ()>;

    /// Accepts no more connections, and lets the commands in progress finish.
    fn drain(&self);

    /// Waits until all connections have ended, once [`FrontOnCore::drain`] was called.
    fn drained(&self) -> LocalFuture<'_, ()>;

    /// Drops all connections at once, like a killed process.
    fn abandon(&self);
}
