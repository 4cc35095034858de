//! The glue between front-ends, the command sets and the reactor: one [`Devices`] per core.
//!
//! * `client`: the connection of a front-end
//! * `device`: a device; `rings`: its rings and notifications, for all kinds of devices
//! * `blk`, `scsi`: requests of the two kinds of devices; `job`: a request in a slot; `transfer`: the path of its data
//! * `core`: what all devices of a core share; `tenant`: virtual machines as hosts
//! * here: the service behind the sockets of a core
//!
//! All rings of a device are served by one core. While the core is awake it looks into guest memory itself; before it
//! sleeps it asks the guest to notify.

mod blk;
mod client;
mod core;
mod device;
mod job;
mod rings;
mod scsi;
mod tenant;
mod transfer;

use self::core::Core;
use crate::sessions::Sessions;
use client::Client;
use lunar_blk::BlockSet;
use lunar_engine::vm_sockets::{CoreSockets, Endpoint, SocketService};
use lunar_reactor::Reactor;
use lunar_reactor::unix::Stream;
use lunar_scsi::Target;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
pub use tenant::{DeviceView, Disk, ScsiPort, Tenant};

/// The devices of virtual machines that one core serves.
pub struct Devices(Rc<Core>);

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Devices")
    }
}

/// The sockets of a core. When it stops, requests have `drain` to finish.
#[must_use]
pub fn sockets(
    reactor: &Reactor,
    sets: (&Rc<BlockSet>, &Rc<Target>),
    sessions: &Arc<Sessions>,
    drain: Duration,
) -> Rc<CoreSockets<Devices>> {
    CoreSockets::new(reactor, Devices(Core::new(reactor, sets, sessions)), drain)
}

impl SocketService for Devices {
    type Tenant = Tenant;
    type Client = Client;

    const SECTION: &'static str = "vhost";

    fn connect(&self, stream: Stream, endpoint: &Endpoint<Tenant>) -> Result<Rc<Client>, &'static str> {
        Client::new(&self.0, stream, endpoint)
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn is_draining(&self) -> bool {
        self.0.is_draining()
    }

    /// A disk that is another one now has another tenant already.
    fn is_ended(tenant: &Tenant, groups: &BTreeSet<Arc<str>>) -> bool {
        let is_adapter = matches!(tenant.device, DeviceView::Scsi(_));
        is_adapter && tenant.group.as_ref().is_some_and(|group| groups.contains(group))
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
