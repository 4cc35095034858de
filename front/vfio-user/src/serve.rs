//! The glue between clients, the NVMe controllers and the reactor: one [`Controllers`] per core.
//!
//! * `client`: the connection of a client
//! * `device`: registers, commands and interrupts of a device; `control`: enable, reset and shutdown of its controller;
//!   `migrate`: its way to another process; `state`, `interrupts`: its states
//! * `job`: a command in a slot
//! * `core`: what all devices of a core share
//! * here: the service behind the sockets of a core
//!
//! All queues of a device are served by one core. While the core is awake it looks into guest memory itself; before it
//! sleeps it asks the guest to notify.

mod client;
mod control;
mod core;
mod device;
mod interrupts;
mod job;
mod migrate;
mod state;

use self::core::Core;
use client::Client;
use lunar_engine::vm_sockets::{CoreSockets, Endpoint, SocketService};
use lunar_nvme::{Subsystem, Tenant};
use lunar_reactor::Reactor;
use lunar_reactor::unix::Stream;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The controllers of virtual machines that one core serves.
pub struct Controllers(Rc<Core>);

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Controllers")
    }
}

/// The sockets of a core. When it stops, commands have `drain` to finish.
#[must_use]
pub fn sockets(reactor: &Reactor, subsystem: &Rc<Subsystem>, drain: Duration) -> Rc<CoreSockets<Controllers>> {
    CoreSockets::new(reactor, Controllers(Core::new(reactor, subsystem)), drain)
}

impl SocketService for Controllers {
    type Tenant = Tenant;
    type Client = Client;

    const SECTION: &'static str = "vm";

    fn connect(&self, stream: Stream, endpoint: &Endpoint<Tenant>) -> Result<Rc<Client>, &'static str> {
        Client::new(&self.0, stream, endpoint).ok_or("there are too many controllers")
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn is_draining(&self) -> bool {
        self.0.is_draining()
    }

    /// The engine ends controllers that may no longer be there, and with them their connections.
    fn is_ended(_tenant: &Tenant, _groups: &BTreeSet<Arc<str>>) -> bool {
        false
    }
}
