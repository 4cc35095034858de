//! The sockets of one core: one client at a time for each.

use super::log::{Connections, Logging, Refusals};
use super::{Place, Role};
use crate::core_set::front_on_core::{FrontOnCore, PortalRef};
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::contained;
use lunar_reactor::unix::{Closing, Listener, Permission, Stream, are_files, make_folder};
use lunar_reactor::{Reactor, log};
use lunar_unit::LocalFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Pauses between two looks whether commands have ended, while the core stops.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// Pause after a client could not be accepted, for want of file descriptors, or was refused: it may connect again at
/// once.
pub const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Pause after a client has disconnected. A client that connects in a loop gets a small part of the core, and the
/// connections that it has ended already, some thousand in the queue of the socket, are gone after two seconds.
pub const NEXT_REST: Duration = Duration::from_micros(500);
/// Time after which the log tells that descriptors of a client are not closed yet: it takes a moment.
const CLOSE_TIME: Duration = Duration::from_secs(2);
/// Pauses between two attempts to connect to a client: short after it was there, so that a virtual machine that starts
/// again waits for little, and then long, so that clients that are not there cost next to nothing.
const CONNECT_SOONEST: Duration = Duration::from_millis(100);
const CONNECT_LATEST: Duration = Duration::from_secs(1);

/// A socket at which a virtual machine finds its device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint<T> {
    /// Name of the virtual machine, for logs.
    pub name: String,
    /// The socket.
    pub place: Place,
    /// The host that the virtual machine is, and what it sees.
    pub tenant: T,
}

/// Tells the other cores that a socket is in use: its task accepts, or the requests of its client are in progress.
#[derive(Clone, Debug, Default)]
pub struct InUse(Arc<()>);

impl InUse {
    /// The same, for the sockets of the same path that come later.
    #[must_use]
    pub fn watch(&self) -> Leaving {
        Leaving(Arc::downgrade(&self.0))
    }
}

/// A socket that was closed: the requests of its client may be in progress still.
#[derive(Clone, Debug)]
pub struct Leaving(std::sync::Weak<()>);

impl Leaving {
    /// Whether nothing of it is in progress any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let is_gone = self.0.strong_count() == 0;
        // The work of the other core on the socket comes before that of this one.
        fence(Ordering::Acquire);
        is_gone
    }
}

/// The connection of a client.
pub trait SocketClient: 'static {
    /// Serves the client until it disconnects. Returns `false` if its device has failed by a panic before.
    fn serve(&self) -> impl Future<Output = bool>;

    /// Ends the device of a client that is served no longer, also after a panic: nothing of it is in progress
    /// afterwards.
    fn finish(&self) -> impl Future<Output = ()>;

    /// Whether all its memory is unmapped, after [`SocketClient::finish`].
    fn has_unmapped(&self) -> bool;

    /// Ends the connection: no further message is answered.
    fn end(&self);

    /// Whether no command of it is in progress.
    fn is_quiet(&self) -> bool;

    /// The log tells nothing of this connection.
    fn silence(&self);
}

/// The service behind the sockets of a front on one core.
pub trait SocketService: 'static {
    /// A virtual machine as a host, and what it sees.
    type Tenant: Clone + PartialEq + fmt::Debug + Send + 'static;
    /// The connection of a client.
    type Client: SocketClient;

    /// The section of the configuration that has the sockets, for logs.
    const SECTION: &'static str;

    /// A connection that was accepted.
    ///
    /// # Errors
    /// Why the client is refused, and what to do. The end of the connection is the only refusal in the protocols.
    fn connect(&self, stream: Stream, endpoint: &Endpoint<Self::Tenant>) -> Result<Rc<Self::Client>, &'static str>;

    /// The core stops: commands in progress finish, and no client is accepted any more.
    fn drain(&self);

    /// Whether the core stops.
    fn is_draining(&self) -> bool;

    /// Whether one of the host's volumes was replaced, as for all members of these host groups.
    fn is_ended(tenant: &Self::Tenant, groups: &BTreeSet<Arc<str>>) -> bool;
}

/// A socket.
struct Socket<S: SocketService> {
    /// `None`: the client listens.
    listener: Option<Listener>,
    /// `None` until [`CoreSockets::serve`]: no client is accepted.
    endpoint: RefCell<Option<Endpoint<S::Tenant>>>,
    client: RefCell<Option<Rc<S::Client>>>,
    is_closed: Cell<bool>,
    in_use: InUse,
}

impl<S: SocketService> Socket<S> {
    fn end_client(&self) -> bool {
        let client = self.client.borrow().clone();
        client.iter().for_each(|client| client.end());
        client.is_some()
    }

    fn close(&self) {
        self.is_closed.set(true);
        self.retire();
        self.end_client();
    }

    fn retire(&self) {
        self.listener.iter().for_each(Listener::retire);
    }
}

/// The sockets of a core, and their clients.
pub struct CoreSockets<S: SocketService> {
    service: S,
    reactor: Reactor,
    drain_time: Duration,
    sockets: RefCell<BTreeMap<Place, Rc<Socket<S>>>>,
    /// Sockets that were closed, while their tasks go on.
    closed: RefCell<Vec<Weak<Socket<S>>>>,
    clients: RefCell<Vec<Rc<S::Client>>>,
    waiters: RefCell<Vec<Waker>>,
}

impl<S: SocketService> CoreSockets<S> {
    /// No sockets. When the core stops, commands have `drain` to finish.
    #[must_use]
    pub fn new(reactor: &Reactor, service: S, drain: Duration) -> Rc<Self> {
        Rc::new(Self {
            service,
            reactor: reactor.clone(),
            drain_time: drain,
            sockets: RefCell::default(),
            closed: RefCell::default(),
            clients: RefCell::default(),
            waiters: RefCell::default(),
        })
    }

    /// Creates the folder of a socket, and the socket, unless the client does. No client is served before
    /// [`CoreSockets::serve`].
    ///
    /// # Errors
    /// `AddrInUse` when another process serves the socket; otherwise those of the operating system.
    pub fn open(&self, place: Place, permission: Permission) -> io::Result<()> {
        if let Some(folder) = place.path.parent().filter(|_| are_files(&self.reactor)) {
            make_folder(folder)?;
        }
        let listener = match place.role {
            Role::Server => Some(self.listen(&place.path, permission)?),
            Role::Client => None,
        };
        let (endpoint, client, in_use) = (RefCell::default(), RefCell::default(), InUse::default());
        let socket = Socket { listener, endpoint, client, is_closed: Cell::new(false), in_use };
        self.sockets.borrow_mut().insert(place, Rc::new(socket));
        Ok(())
    }

    fn listen(&self, path: &Path, permission: Permission) -> io::Result<Listener> {
        // Only the owner may open the socket until its permissions are set.
        let listener = Listener::bind(&self.reactor, path, 0o600)?;
        if are_files(&self.reactor) {
            permission.grant(path)?;
        }
        Ok(listener)
    }

    /// Closes a socket and disconnects its client, whose requests have as long as they need.
    pub fn close(&self, place: &Place) -> Option<Leaving> {
        let socket = self.sockets.borrow_mut().remove(place)?;
        socket.close();
        let mut closed = self.closed.borrow_mut();
        closed.retain(|socket| socket.strong_count() > 0);
        closed.push(Rc::downgrade(&socket));
        Some(socket.in_use.watch())
    }

    /// Serves the socket of this endpoint, which was opened, one client at a time. A client that is connected as
    /// another tenant is disconnected. The first client is accepted when all sockets before this one of the same path,
    /// `before`, are gone: it may be the client of one of them, and repeat what is in progress there.
    pub fn serve(self: &Rc<Self>, endpoint: Endpoint<S::Tenant>, before: Vec<Leaving>) {
        let Some(socket) = self.sockets.borrow().get(&endpoint.place).cloned() else { return };
        let tenant = endpoint.tenant.clone();
        match socket.endpoint.replace(Some(endpoint)) {
            Some(old) if old.tenant == tenant => {}
            Some(_) => drop(socket.end_client()),
            None => {
                let sockets = self.clone();
                self.reactor.spawn(async move {
                    let is_over = || sockets.service.is_draining() || socket.is_closed.get();
                    while !is_over() && !before.iter().all(Leaving::is_gone) {
                        sockets.reactor.sleep(DRAIN_LOOK).await;
                    }
                    sockets.accept(&socket).await;
                });
            }
        }
    }

    /// Disconnects the client of this socket, which may connect again. Returns whether there was one.
    pub fn end_client(&self, place: &Place) -> bool {
        self.sockets.borrow().get(place).is_some_and(|socket| socket.end_client())
    }

    /// Disconnects the clients that see a volume that is another one now. Done when they are disconnected. They may
    /// connect again.
    pub async fn review(&self, groups: &BTreeSet<Arc<str>>) {
        let is_ended = |socket: &Rc<Socket<S>>| {
            let endpoint = socket.endpoint.borrow();
            endpoint.as_ref().is_some_and(|endpoint| S::is_ended(&endpoint.tenant, groups))
        };
        let closed: Vec<_> = self.closed.borrow().iter().filter_map(Weak::upgrade).collect();
        let sockets: Vec<_> =
            self.sockets.borrow().values().chain(&closed).filter(|socket| is_ended(socket)).cloned().collect();
        drop(closed);
        let clients: Vec<_> = sockets.iter().filter_map(|socket| socket.client.borrow().clone()).collect();
        sockets.iter().for_each(|socket| _ = socket.end_client());
        let is_connected = |client: &Rc<S::Client>| self.clients.borrow().iter().any(|other| Rc::ptr_eq(other, client));
        while clients.iter().any(is_connected) {
            self.reactor.sleep(DRAIN_LOOK).await;
        }
    }

    /// The endpoints that are served, sorted by path.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint<S::Tenant>> {
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

    async fn accept(&self, socket: &Socket<S>) {
        let reactor = &self.reactor;
        let is_over = || self.service.is_draining() || socket.is_closed.get();
        let (mut refusals, mut connections) = (Refusals::default(), Connections::default());
        let rest = if socket.listener.is_some() { NEXT_REST } else { CONNECT_SOONEST };
        while !is_over() {
            let accepted = match &socket.listener {
                Some(listener) => listener.accept().await,
                None => self.connect(socket, &mut refusals, &is_over).await,
            };
            let Some(endpoint) = socket.endpoint.borrow().clone() else { return };
            let (section, name) = (S::SECTION, &endpoint.name);
            match accepted {
                _ if is_over() => {}
                Ok(stream) => {
                    let closing = stream.closing();
                    match self.service.connect(stream, &endpoint) {
                        Ok(client) => {
                            match connections.count(reactor.now()) {
                                Logging::Full => {}
                                Logging::Last => {
                                    log!("{section} {name}: its client connects in a loop; no more is logged");
                                }
                                Logging::None => client.silence(),
                            }
                            let is_right = self.converse(socket, client).await;
                            if !is_right {
                                log!(error, "{section} {name}: its client is disconnected: report this panic");
                            }
                            reactor.sleep(if is_right { rest } else { ACCEPT_REST }).await;
                        }
                        Err(why) => {
                            reactor.stats().logins_refused.add(1);
                            if refusals.is_news(why, reactor.now()) {
                                log!("{section} {name}: connection refused: {why}");
                            }
                            reactor.sleep(ACCEPT_REST).await;
                        }
                    }
                    self.until_closed(&closing, &is_over, &format_args!("{section} {name}")).await;
                }
                Err(why) => {
                    log!("{section} {name}: its client could not be accepted: {why}");
                    reactor.sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Waits until all descriptors that a client has sent are closed: each connection may leave some that are not.
    async fn until_closed(&self, closing: &Closing, is_over: &impl Fn() -> bool, whose: &fmt::Arguments<'_>) {
        let told = self.reactor.now() + CLOSE_TIME;
        let mut is_told = false;
        while !is_over() && !closing.is_over() {
            self.reactor.sleep(DRAIN_LOOK).await;
            if !is_told && self.reactor.now() >= told {
                is_told = true;
                log!("{whose}: its client has sent a file whose close waits; the next one is accepted after it");
            }
        }
    }

    /// Connects to the client as soon as it listens.
    async fn connect(
        &self,
        socket: &Socket<S>,
        refusals: &mut Refusals,
        is_over: &impl Fn() -> bool,
    ) -> io::Result<Stream> {
        let mut pause = CONNECT_SOONEST;
        while !is_over() {
            let Some(endpoint) = socket.endpoint.borrow().clone() else { break };
            let why = match Stream::connect(&self.reactor, &endpoint.place.path) {
                Ok(stream) => return Ok(stream),
                Err(why) => why,
            };
            let reason = match why.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "nothing listens there yet",
                io::ErrorKind::PermissionDenied => "the user that runs Lunar must be able to write to this socket",
                _ => "connecting fails",
            };
            if refusals.is_news(reason, self.reactor.now()) {
                let (section, path) = (S::SECTION, endpoint.place.path.display());
                log!("{section} {}: waits for its client at {path}: {reason} ({why})", endpoint.name);
            }
            self.reactor.sleep(pause).await;
            pause = CONNECT_LATEST.min(pause * 2);
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    /// Serves a client. Returns `false` after a panic: it is not served any longer, and the socket goes on.
    async fn converse(&self, socket: &Socket<S>, client: Rc<S::Client>) -> bool {
        self.clients.borrow_mut().push(client.clone());
        *socket.client.borrow_mut() = Some(client.clone());
        let stats = self.reactor.stats();
        stats.connections.add(1);
        stats.connections_accepted.add(1);
        stats.sessions.add(1);
        let was_served = contained(client.serve()).await == Some(true);
        let has_finished = contained(client.finish()).await.is_some();
        // The next client may repeat what is in progress.
        while !has_finished && !client.is_quiet() {
            self.reactor.sleep(DRAIN_LOOK).await;
        }
        // The next client has a quota of mapped memory of its own.
        while !client.has_unmapped() && !self.service.is_draining() {
            self.reactor.sleep(DRAIN_LOOK).await;
        }
        stats.connections.sub(1);
        stats.sessions.sub(1);
        socket.client.take();
        self.clients.borrow_mut().retain(|other| !Rc::ptr_eq(other, &client));
        was_served && has_finished
    }

    /// Accepts no more clients, lets commands finish, and disconnects the clients: see [`CoreSockets::drained`].
    pub fn drain(&self) {
        self.service.drain();
        self.sockets.borrow().values().flat_map(|socket| &socket.listener).for_each(Listener::cancel);
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for [`CoreSockets::drain`], and then until all clients are disconnected.
    pub async fn drained(&self) {
        poll_fn(|cx| {
            if self.service.is_draining() {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        let end = self.reactor.now() + self.drain_time;
        loop {
            let clients = self.clients.borrow().clone();
            if clients.is_empty() {
                // Tasks that pause after refusing a client still hold their sockets: close these, too.
                return self.sockets.take().values().for_each(|socket| socket.retire());
            }
            let is_late = self.reactor.now() >= end;
            clients.iter().filter(|client| is_late || client.is_quiet()).for_each(|client| client.end());
            self.reactor.sleep(DRAIN_LOOK).await;
        }
    }
}

impl<S: SocketService> fmt::Debug for CoreSockets<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoreSockets({} clients)", self.clients.borrow().len())
    }
}

/// A front for virtual machines on a core.
pub struct SocketsOnCore<S: SocketService>(pub Rc<CoreSockets<S>>);

impl<S: SocketService> fmt::Debug for SocketsOnCore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<S: SocketService> FrontOnCore for SocketsOnCore<S> {
    /// Virtual machines have sockets of their own: no portal is for them.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    fn connections(&self) -> usize {
        self.0.clients()
    }

    fn review(&self, ended: Arc<BTreeSet<Arc<str>>>) -> LocalFuture<'_, ()> {
        Box::pin(async move { self.0.review(&ended).await })
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn drained(&self) -> LocalFuture<'_, ()> {
        Box::pin(self.0.drained())
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}

#[cfg(test)]
#[path = "on_core_tests.rs"]
mod tests;
