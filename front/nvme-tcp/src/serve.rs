//! The glue between the session machine, the controller and the reactor: one [`Front`] per core.
//!
//! * [`connection`]: one connection: the actions of its session, and its end
//! * [`secure`]: a connection with or without TLS
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
use lunar_core::shares::PeerShares;
use lunar_core::step::SlotContext;
use lunar_nvme::directory::PortalRef;
use lunar_nvme::{Controller, Subsystem};
use lunar_reactor::Reactor;
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::Slots;
use lunar_reactor::tcp::TcpState;
use lunar_stream::serve::{Connections, HALF_OPEN_MAX};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Commands of I/O queues that one core executes at once: two full queues of the largest size. Each takes some 3 KiB
/// for its task.
const SLOTS: usize = 2048;
/// Commands of admin queues that one core executes at once, apart from the others: hosts keep their controllers while
/// I/O waits. A host sends few of them at a time.
const ADMIN_SLOTS: usize = 256;
/// Commands of one core that wait for a slot, shared by hosts and queues: the full queues of a large host. Each takes
/// some 500 bytes. One more is refused with a status that its host tries again after.
const WAITING_MAX: usize = 16 << 10;
/// Connections per core: four queues for each controller that there may be, and the half-open ones.
const CONNECTIONS_MAX: usize = 4 * lunar_nvme::controller::CONTROLLERS_MAX + HALF_OPEN_MAX;

/// The settings of the front.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address in the discovery log page; `None`: the one that the host connected to.
    pub advertise: Option<IpAddr>,
    /// The TLS context, if hosts may use TLS.
    pub tls: Option<TlsContext>,
    /// How long commands get to finish when the target stops.
    pub drain: Duration,
}

/// The resources of a core that hosts and queues share.
struct Shares {
    /// Slots of I/O queues.
    io: PeerShares,
    /// Slots of admin queues.
    admin: PeerShares,
    /// Commands that wait for a slot.
    waiting: PeerShares,
}

/// One core's NVMe/TCP.
pub struct Front {
    reactor: Reactor,
    subsystem: Rc<Subsystem>,
    settings: Settings,
    slots: Slots<Job>,
    shares: Shares,
    connections: Rc<Connections<Connection>>,
}

impl Front {
    /// The front of a core.
    #[must_use]
    pub fn new(reactor: &Reactor, subsystem: &Rc<Subsystem>, settings: Settings) -> Rc<Self> {
        let slots =
            Slots::new(reactor, SLOTS + ADMIN_SLOTS, async |job: &Job, slot: &mut SlotContext| job.run(slot).await);
        Rc::new(Self {
            reactor: reactor.clone(),
            subsystem: subsystem.clone(),
            settings,
            slots,
            shares: Shares {
                io: PeerShares::new(SLOTS),
                admin: PeerShares::new(ADMIN_SLOTS),
                waiting: PeerShares::new(WAITING_MAX),
            },
            connections: Connections::new(reactor, CONNECTIONS_MAX),
        })
    }

    /// Serves a connection that was accepted at this portal.
    pub fn serve(self: &Rc<Self>, incoming: Incoming, portal_ref: PortalRef) {
        self.connections.serve(incoming, |id, joined| Connection::new(self.clone(), id, joined, portal_ref));
    }

    /// Connections that are served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The state of the TCP connections of queues of the wanted controllers, each with its controller.
    #[must_use]
    pub fn tcp_states(&self, is_wanted: impl Fn(&Controller) -> bool) -> Vec<(Arc<Controller>, TcpState)> {
        self.connections.all().iter().filter_map(|connection| connection.tcp_state(&is_wanted)).collect()
    }

    /// Adds the TCP segments that were sent again to the counters of the hosts.
    pub fn count_retransmits(&self) {
        self.connections.all().iter().for_each(|connection| connection.count_retransmits());
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

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
