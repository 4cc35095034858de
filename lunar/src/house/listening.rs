//! Where connections come in. One core accepts and hands out: the kernel would spread by hash, and two connections may
//! well share one.

use super::Core;
use crate::cores::{Face, Letter};
use lunar_reactor::Reactor;
use lunar_reactor::log;
use lunar_reactor::op::Handle;
use std::cell::Cell;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// How long the core that accepts rests when it has no file descriptor left for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// An address that is listened at.
pub struct Listening {
    handle: Handle,
    /// By which way those who come now come in; `None`: nobody is accepted yet.
    face: Cell<Option<Face>>,
    closed: Cell<bool>,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listening({:?})", self.face.get())
    }
}

impl Listening {
    /// Listens at an address; nobody is accepted yet. Returns the address with its port.
    pub(super) fn at(reactor: &Reactor, address: SocketAddr) -> io::Result<(Rc<Self>, SocketAddr)> {
        let (handle, address) = reactor.driver().listen(address)?;
        Ok((Rc::new(Self { handle, face: Cell::default(), closed: Cell::default() }), address))
    }

    /// Accepts from now on, by this way.
    pub(super) fn accept(self: &Rc<Self>, core: &Rc<Core>, face: Face) {
        if self.face.replace(Some(face)).is_none() {
            let (listening, core) = (self.clone(), Rc::downgrade(core));
            let Some(strong) = core.upgrade() else { return };
            strong.reactor.spawn(async move {
                let mut given = Vec::new();
                while let Some(core) = core.upgrade()
                    && !listening.closed.get()
                {
                    listening.next(&core, &mut given).await;
                }
            });
        }
    }

    /// Accepts nobody any more; the address is free when the task that accepts has noticed.
    pub(super) fn close(&self, reactor: &Reactor) {
        self.closed.set(true);
        reactor.driver().cancel(&self.handle);
    }

    /// Hands the next connection to the core that has the fewest.
    async fn next(&self, core: &Core, given: &mut Vec<u64>) {
        let (accepted, stats) = (core.reactor.accept(&self.handle).await, &core.common.stats);
        given.resize(core.mailboxes.len(), 0);
        match accepted {
            _ if self.closed.get() => {}
            Ok(incoming) => {
                // The gauge lags behind the mailbox; what was given in between settles a tie.
                let least = (0..given.len()).min_by_key(|&core| (stats[core].connections.get(), given[core]));
                let least = least.unwrap_or(0);
                given[least] += 1;
                if let Some(face) = self.face.get() {
                    core.mailboxes[least].send(Letter::Connection(face, incoming));
                }
            }
            Err(why) => {
                log!("accepting a connection failed: {why}");
                core.reactor.sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Why an address cannot be listened at, in words that say what to do; `choose` says how another one is chosen.
#[must_use]
pub fn why_not(address: SocketAddr, why: &io::Error, choose: &str) -> String {
    match why.kind() {
        ErrorKind::AddrInUse => {
            let next = SocketAddr::new(address.ip(), address.port().saturating_add(1));
            format!(
                "{address} is in use by another program (another target?): choose another port with {choose} {next}"
            )
        }
        ErrorKind::AddrNotAvailable => format!("{address} is not an address of this machine: see `ip address`"),
        ErrorKind::PermissionDenied => {
            format!("port {} is for root only: choose one above 1023 with {choose}", address.port())
        }
        _ => format!("listening on {address}: {why}"),
    }
}
