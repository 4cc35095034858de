//! The glue between the session machine, the controller and the reactor: one [`Front`] per core.
//!
//! * [`connection`]: one connection: what its session asks for, and its end
//! * [`secure`]: a connection that is a secure channel, or not
//! * [`job`]: one command in a slot
//! * here: slots, draining
//!
//! A command runs in a slot (a long-lived task); its reply is queued in the session, and at the end of the turn
//! everything that is queued for a peer leaves in one send ([`lunar_stream::serve`]). A controller's queues may be
//! served by several cores: each of them waits for the controller's end by itself.

mod connection;
mod job;
mod secure;

use crate::tls::TlsContext;
use connection::Connection;
use job::Job;
use lunar_core::step::Tools;
use lunar_nvme::Subsystem;
use lunar_nvme::directory::Way;
use lunar_reactor::Reactor;
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::Slots;
use lunar_stream::serve::{Connections, HALF_OPEN_MAX};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

/// Commands that one core carries out at once: two full queues of the largest size. Each takes some 3 KiB for its task.
const SLOTS: usize = 2048;
/// Connections per core: four queues for each controller that there may be, and the half-open ones.
const CONNECTIONS_MAX: usize = 4 * lunar_nvme::controller::CONTROLLERS_MAX + HALF_OPEN_MAX;

/// How it is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address that the discovery service tells; `None`: the one that the host came in by.
    pub advertise: Option<IpAddr>,
    /// Secure channels, if any host may have one.
    pub channels: Option<TlsContext>,
    /// How long commands get to finish when the target stops.
    pub drain: Duration,
}

/// One core's NVMe/TCP.
pub struct Front {
    reactor: Reactor,
    subsystem: Rc<Subsystem>,
    settings: Settings,
    slots: Slots<Job>,
    connections: Rc<Connections<Connection>>,
}

impl Front {
    /// The front of a core.
    #[must_use]
    pub fn new(reactor: &Reactor, subsystem: &Rc<Subsystem>, settings: Settings) -> Rc<Self> {
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, tools: &mut Tools| job.run(tools).await);
        Rc::new(Self {
            reactor: reactor.clone(),
            subsystem: subsystem.clone(),
            settings,
            slots,
            connections: Connections::new(reactor, CONNECTIONS_MAX),
        })
    }

    /// Serves a connection that came by this way.
    pub fn serve(self: &Rc<Self>, incoming: Incoming, way: Way) {
        self.connections.serve(incoming, |id, joined| Connection::new(self.clone(), id, joined, way));
    }

    /// Connections that are served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Takes no more connections, lets commands finish, and ends: see [`Front::drained`].
    pub fn drain(&self) {
        self.connections.drain();
    }

    /// Waits for [`Front::drain`], and then until all connections have ended.
    pub async fn drained(&self) {
        self.connections.until_draining().await;
        let now = self.reactor.now();
        self.connections.end_all(now, now + self.settings.drain).await;
    }

    /// Forgets all connections at once: [`Connections::abandon`].
    pub fn abandon(&self) {
        self.connections.abandon();
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} connections)", self.connections.len())
    }
}
