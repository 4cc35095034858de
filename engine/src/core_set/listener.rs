//! Listeners. One core accepts connections and distributes them to all cores: the kernel would distribute them by hash,
//! and might give two connections to the same core.

use super::front_on_core::PortalRef;
use super::mesh::CoreMesh;
use super::message::CoreMessage;
use lunar_core::stats::Stats;
use lunar_reactor::op::Handle;
use lunar_reactor::{Reactor, log};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// The pause of the accepting core when no file descriptor is left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The front of a portal: its index in the registry, and the portal.
pub type PortalFront = (usize, PortalRef);

/// An address with a listening socket.
pub(super) struct Listener {
    handle: Handle,
    /// The front of the next connections; `None`: no connection is accepted yet.
    front: Cell<Option<PortalFront>>,
    closed: Cell<bool>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({:?})", self.front.get())
    }
}

/// The state with which a listener distributes connections to the cores.
#[derive(Clone)]
pub(super) struct Acceptor {
    pub(super) reactor: Reactor,
    pub(super) mesh: Weak<CoreMesh>,
    pub(super) stats: Vec<Arc<Stats>>,
}

impl Listener {
    /// Listens at an address; no connection is accepted yet. Returns the address with its port.
    pub(super) fn bind(reactor: &Reactor, address: SocketAddr) -> io::Result<(Rc<Self>, SocketAddr)> {
        let (handle, address) = reactor.driver().listen(address)?;
        Ok((Rc::new(Self { handle, front: Cell::default(), closed: Cell::default() }), address))
    }

    /// Accepts from now on, for this front.
    pub(super) fn accept(self: &Rc<Self>, acceptor: Acceptor, front: PortalFront) {
        if self.front.replace(Some(front)).is_none() {
            let listener = self.clone();
            let reactor = acceptor.reactor.clone();
            reactor.spawn(async move {
                let mut given = Vec::new();
                while !listener.closed.get() && acceptor.mesh.strong_count() > 0 {
                    listener.next(&acceptor, &mut given).await;
                    // Otherwise the tasks of new connections would queue up before those of sessions in a storm.
                    acceptor.reactor.end_of_turn().await;
                }
            });
        }
    }

    /// Accepts no more connections; the address is free when the task that accepts has noticed.
    pub(super) fn close(&self, reactor: &Reactor) {
        self.closed.set(true);
        reactor.driver().cancel(&self.handle);
    }

    /// Gives the next connection to the core that has the fewest.
    async fn next(&self, acceptor: &Acceptor, given: &mut Vec<u64>) {
        let (accepted, stats) = (acceptor.reactor.accept(&self.handle).await, &acceptor.stats);
        let Some(mesh) = acceptor.mesh.upgrade() else { return };
        given.resize(mesh.count(), 0);
        match accepted {
            _ if self.closed.get() => {}
            Ok(incoming) => {
                // The gauge lags behind the mailbox; the connections that were given in between settle a tie.
                let least = (0..given.len()).min_by_key(|&core| (stats[core].connections.get(), given[core]));
                let least = least.unwrap_or(0);
                given[least] += 1;
                if let Some((front, portal)) = self.front.get() {
                    mesh.give(least, CoreMessage::Connection(front, portal, incoming));
                }
            }
            Err(why) => {
                log!(warning, "accepting a connection failed: {why}");
                acceptor.reactor.sleep(ACCEPT_REST).await;
            }
        }
    }
}
