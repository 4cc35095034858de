//! The glue between front-ends, the command sets and the reactor: one [`Front`] per core.
//!
//! * `endpoint`: sockets and their permissions
//! * `client`: the connection of a front-end
//! * `device`: a device; `rings`: its rings and notifications, for all kinds of devices
//! * `blk`, `scsi`: requests of the two kinds of devices; `job`: a request in a slot; `transfer`: the path of its data
//! * `core`: what all devices of a core share
//! * here: the sockets of a core, and the end of service
//!
//! All rings of a device are served by one core. While the core is awake it looks into guest memory itself; before it
//! sleeps it asks the guest to notify.

mod blk;
mod client;
mod core;
mod device;
mod endpoint;
mod job;
mod rings;
mod scsi;
mod transfer;

use self::core::Core;
use crate::sessions::Sessions;
use client::Client;
pub use endpoint::{DeviceView, Disk, Endpoint, ScsiPort, Tenant};
use lunar_blk::BlockSet;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::log;
pub use lunar_reactor::unix::Permission;
use lunar_reactor::unix::{Listener, are_files, make_folder};
use lunar_scsi::Target;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Pauses between two looks whether commands have ended, while the core stops.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// Pause after a client could not be accepted, for want of file descriptors, or was refused: it may connect again at
/// once.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Pause after a client has disconnected. A front-end that connects in a loop gets a small part of the core, and the
/// connections that it has ended already, some thousand in the queue of the socket, are gone after two seconds.
const NEXT_REST: Duration = Duration::from_micros(500);

/// Time between two lines of the log about refusals for the same reason, and the period in which connections are
/// counted.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Connections of a socket in [`REPORT_INTERVAL`] of which the log tells: more than an operator causes by hand.
const CONNECTIONS_LOGGED: u32 = 16;

/// A socket.
struct Socket {
    listener: Listener,
    /// `None` until [`Front::serve`]: no client is accepted.
    endpoint: RefCell<Option<Endpoint>>,
    client: RefCell<Option<Rc<Client>>>,
    is_closed: Cell<bool>,
}

impl Socket {
    fn end_client(&self) -> bool {
        let client = self.client.borrow().clone();
        client.iter().for_each(|client| client.end());
        client.is_some()
    }

    fn close(&self) {
        self.is_closed.set(true);
        self.listener.retire();
        self.end_client();
    }
}

/// The refusals of connections to one socket. A front-end tries again and again: the log shows each reason once in
/// [`REPORT_INTERVAL`].
#[derive(Default)]
struct Refusals(Option<(&'static str, Instant)>);

impl Refusals {
    fn report(&mut self, name: &str, why: &'static str, reactor: &Reactor) {
        reactor.stats().logins_refused.add(1);
        if self.is_news(why, reactor.now()) {
            log!("vhost {name}: connection refused: {why}");
        }
    }

    fn is_news(&mut self, why: &'static str, now: Instant) -> bool {
        let is_known = self.0.is_some_and(|(known, at)| known == why && now.since(at) < REPORT_INTERVAL);
        if !is_known {
            self.0 = Some((why, now));
        }
        !is_known
    }
}

/// Whether the log tells of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Logging {
    Full,
    /// The log says that it tells of no further ones.
    Last,
    None,
}

/// The connections to one socket: a front-end that connects in a loop does not fill the log.
#[derive(Default)]
struct Connections {
    since: Instant,
    count: u32,
}

impl Connections {
    /// Counts one more connection.
    fn count(&mut self, now: Instant) -> Logging {
        if self.count == 0 || now.since(self.since) >= REPORT_INTERVAL {
            (self.since, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        match self.count {
            0..CONNECTIONS_LOGGED => Logging::Full,
            CONNECTIONS_LOGGED => Logging::Last,
            _ => Logging::None,
        }
    }
}

/// The devices of virtual machines that one core serves.
pub struct Front {
    core: Rc<Core>,
    sessions: Arc<Sessions>,
    drain_time: Duration,
    sockets: RefCell<BTreeMap<PathBuf, Rc<Socket>>>,
    clients: RefCell<Vec<Rc<Client>>>,
    waiters: RefCell<Vec<Waker>>,
}

impl Front {
    /// The front of a core. When it stops, commands have `drain` to finish.
    #[must_use]
    pub fn new(
        reactor: &Reactor,
        (block, target): (&Rc<BlockSet>, &Rc<Target>),
        sessions: &Arc<Sessions>,
        drain: Duration,
    ) -> Rc<Self> {
        Rc::new(Self {
            core: Core::new(reactor, block, target),
            sessions: sessions.clone(),
            drain_time: drain,
            sockets: RefCell::default(),
            clients: RefCell::default(),
            waiters: RefCell::default(),
        })
    }

    /// Creates a socket and its folder. No client is accepted before [`Front::serve`].
    ///
    /// # Errors
    /// `AddrInUse` when another process serves the socket; otherwise those of the operating system.
    pub fn bind(&self, path: &Path, permission: Permission) -> io::Result<()> {
        let is_file = are_files(&self.core.reactor);
        if let Some(folder) = path.parent().filter(|_| is_file) {
            make_folder(folder)?;
        }
        // Only the owner may open the socket until its permissions are set.
        let listener = Listener::bind(&self.core.reactor, path, 0o600)?;
        if is_file {
            permission.grant(path)?;
        }
        let (endpoint, client) = (RefCell::default(), RefCell::default());
        let socket = Rc::new(Socket { listener, endpoint, client, is_closed: Cell::new(false) });
        self.sockets.borrow_mut().insert(path.to_owned(), socket);
        Ok(())
    }

    /// Closes a socket and disconnects its client.
    pub fn close(&self, path: &Path) {
        let socket = self.sockets.borrow_mut().remove(path);
        socket.iter().for_each(|socket| socket.close());
    }

    /// Serves the socket of this endpoint, which was bound, one client at a time. A client that is connected as another
    /// tenant is disconnected.
    pub fn serve(self: &Rc<Self>, endpoint: Endpoint) {
        let Some(socket) = self.sockets.borrow().get(&endpoint.path).cloned() else { return };
        let tenant = endpoint.tenant.clone();
        match socket.endpoint.replace(Some(endpoint)) {
            Some(old) if old.tenant == tenant => {}
            Some(_) => drop(socket.end_client()),
            None => {
                let front = self.clone();
                self.core.reactor.spawn(async move { front.accept(&socket).await });
            }
        }
    }

    /// Disconnects the client of this socket, which may connect again. Returns whether there was one.
    pub fn end_client(&self, path: &Path) -> bool {
        self.sockets.borrow().get(path).is_some_and(|socket| socket.end_client())
    }

    /// Disconnects the clients of host adapters that belong to these host groups: a volume that they see is another one
    /// now. Done when they are disconnected. They may connect again.
    pub async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        let is_ended = |socket: &Rc<Socket>| {
            let endpoint = socket.endpoint.borrow();
            let tenant = endpoint.as_ref().map(|endpoint| &endpoint.tenant);
            // A disk that is another one now has another tenant: see `serve`.
            let adapter = tenant.filter(|tenant| matches!(tenant.device, DeviceView::Scsi(_)));
            adapter.and_then(|tenant| tenant.group.as_ref()).is_some_and(|group| ended.contains(group))
        };
        let sockets: Vec<Rc<Socket>> =
            self.sockets.borrow().values().filter(|socket| is_ended(socket)).cloned().collect();
        let clients: Vec<Rc<Client>> = sockets.iter().filter_map(|socket| socket.client.borrow().clone()).collect();
        sockets.iter().for_each(|socket| _ = socket.end_client());
        let is_connected = |client: &Rc<Client>| self.clients.borrow().iter().any(|other| Rc::ptr_eq(other, client));
        while clients.iter().any(is_connected) {
            self.core.reactor.sleep(DRAIN_LOOK).await;
        }
    }

    /// The endpoints that are served, sorted by path.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.sockets.borrow().values().filter_map(|socket| socket.endpoint.borrow().clone()).collect()
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.borrow().len()
    }

    /// Forgets all sockets and clients at once, as a process that is killed does.
    pub fn abandon(&self) {
        self.sockets.take();
        self.clients.take();
    }

    async fn accept(self: &Rc<Self>, socket: &Socket) {
        let reactor = &self.core.reactor;
        let is_over = || self.core.is_draining() || socket.is_closed.get();
        let (mut refusals, mut connections) = (Refusals::default(), Connections::default());
        while !is_over() {
            let accepted = socket.listener.accept().await;
            let Some(endpoint) = socket.endpoint.borrow().clone() else { return };
            match accepted {
                _ if is_over() => {}
                Ok(stream) => {
                    let client = match Client::new(&self.core, stream, &endpoint) {
                        Ok(client) => client,
                        Err(why) => {
                            // The end of the connection before any reply is the only refusal that the protocol has.
                            refusals.report(&endpoint.name, why, reactor);
                            reactor.sleep(ACCEPT_REST).await;
                            continue;
                        }
                    };
                    match connections.count(reactor.now()) {
                        Logging::Full => {}
                        Logging::Last => {
                            log!(
                                "vhost {}: its front-end connects in a loop, which is not logged further",
                                endpoint.name
                            );
                        }
                        Logging::None => client.silence(),
                    }
                    self.clients.borrow_mut().push(client.clone());
                    *socket.client.borrow_mut() = Some(client.clone());
                    let session = self.sessions.begin(&endpoint.path, reactor.now());
                    client.serve().await;
                    self.sessions.end(session);
                    socket.client.take();
                    self.clients.borrow_mut().retain(|other| !Rc::ptr_eq(other, &client));
                    reactor.sleep(NEXT_REST).await;
                }
                Err(why) => {
                    log!("vhost {}: its front-end could not be accepted: {why}", endpoint.name);
                    reactor.sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Accepts no more clients, lets commands finish, and disconnects the clients: see [`Front::drained`].
    pub fn drain(&self) {
        self.core.drain();
        self.sockets.borrow().values().for_each(|socket| socket.listener.cancel());
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for [`Front::drain`], and then until all clients are disconnected.
    pub async fn drained(&self) {
        poll_fn(|cx| {
            if self.core.is_draining() {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        let reactor = &self.core.reactor;
        let end = reactor.now() + self.drain_time;
        loop {
            let clients = self.clients.borrow().clone();
            if clients.is_empty() {
                // A task that rests after a refused client still has its socket.
                return self.sockets.take().values().for_each(|socket| socket.listener.retire());
            }
            let is_late = reactor.now() >= end;
            clients.iter().filter(|client| is_late || client.is_quiet()).for_each(|client| client.end());
            reactor.sleep(DRAIN_LOOK).await;
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} clients)", self.clients.borrow().len())
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
