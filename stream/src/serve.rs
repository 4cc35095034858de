//! The connections of one front on one core.
//!
//! * `carrier`: what moves the bytes of a connection if it is no socket
//! * `connection`: one connection: its session, a task that receives and a task that sends
//! * `data_path`: how the data of a command moves
//! * here: all connections: their number, which of them are half open, timeouts, draining

mod carrier;
mod connection;
mod data_path;

pub use carrier::{Carrier, Wire};
pub use connection::StreamConnection;
pub use data_path::DataPath;

use crate::protocol::{CommandData, ProtocolMachine};
use crate::record_layer::RecordLayer;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::{contain, contained};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Half-open connections per core: their login, or Connect, has not succeeded. One more ends the oldest of them, so a
/// flood of connections mostly ends its own.
pub const HALF_OPEN_MAX: usize = 1024;
/// How often connections that were active are checked: silent peers are asked whether they are alive, and idle memory
/// is returned.
const SWEEP: Duration = Duration::from_secs(1);
/// The longest time between two checks while no deadline is due: a connection that was idle may be busy now.
const SWEEP_LATEST: Duration = Duration::from_secs(10);
/// How often a draining core checks whether commands have ended.
const DRAIN_CHECK: Duration = Duration::from_millis(10);

/// A connection as its front sees it: a [`StreamConnection`], and the state of the protocol and of the peer.
pub trait FrontConnection: 'static {
    /// The protocol.
    type Session: CommandData;
    /// The record layer: TLS or none.
    type RecordLayer: RecordLayer;

    /// The session and its socket.
    fn stream(&self) -> &StreamConnection<Self::Session, Self::RecordLayer>;

    /// Performs what the session asks for: removes all of `actions`, in their order.
    fn perform(
        self: &Rc<Self>,
        actions: &mut Vec<<Self::Session as ProtocolMachine>::Action>,
    ) -> impl Future<Output = ()>;

    /// Ends the connection: aborts its commands, waits until they have ended, and then awaits
    /// [`StreamConnection::finish`].
    fn close(self: &Rc<Self>) -> impl Future<Output = ()>;

    /// Whether no command is in progress.
    fn is_idle(&self) -> bool;

    /// Whether a drain may end the connection when it is idle.
    fn may_close(&self) -> bool {
        true
    }

    /// When [`FrontConnection::tick`] has to be called at the latest.
    fn deadline(&self) -> Option<Instant>;

    /// Checks timeouts; `active`: bytes were received since the last call.
    fn tick(&self, now: Instant, active: bool);

    /// Writes a log line about the connection.
    fn log(&self, what: &str);
}

/// A socket or a carrier, its local address and the address of its peer.
pub type AcceptedWire = (Wire, SocketAddr, SocketAddr);

/// All connections of a front on a core.
pub struct Connections<C> {
    reactor: Reactor,
    connections_max: usize,
    all: RefCell<BTreeMap<u64, Rc<C>>>,
    /// Half-open connections; the oldest has the lowest number.
    half_open: RefCell<BTreeSet<u64>>,
    next: Cell<u64>,
    draining: Cell<bool>,
    /// Tasks that wait for a change: the sweeper, the drain, and those that end a connection.
    waiters: RefCell<Vec<Waker>>,
    /// Whether a connection was added or removed since the sweeper ran, and the waker of the sweeper.
    has_changed: Cell<bool>,
    sweeper: Cell<Option<Waker>>,
}

impl<C: FrontConnection> Connections<C> {
    /// An empty set of at most `connections_max` connections: one more is closed at once.
    #[must_use]
    pub fn new(reactor: &Reactor, connections_max: usize) -> Rc<Self> {
        let connections = Rc::new(Self {
            reactor: reactor.clone(),
            connections_max,
            all: RefCell::default(),
            half_open: RefCell::default(),
            next: Cell::new(0),
            draining: Cell::new(false),
            waiters: RefCell::default(),
            has_changed: Cell::new(false),
            sweeper: Cell::default(),
        });
        let sweeper = connections.clone();
        reactor.spawn(async move { sweeper.sweep().await });
        connections
    }

    /// Serves a connection. `make` creates it from its number and its socket.
    pub fn serve(self: &Rc<Self>, incoming: Incoming, make: impl FnOnce(u64, AcceptedWire) -> C) {
        if !self.has_room() {
            return drop(incoming);
        }
        self.end_oldest_half_open();
        // The peer has closed it already.
        let Ok((socket, local, peer)) = self.reactor.driver().join(incoming) else { return };
        self.begin((Wire::Socket(socket), local, peer), make);
    }

    /// Serves a connection over a carrier, if there is room for one. `make` creates it from its number and its carrier.
    pub fn serve_carried(
        self: &Rc<Self>,
        wire: AcceptedWire,
        make: impl FnOnce(u64, AcceptedWire) -> C,
    ) -> Option<Rc<C>> {
        if !self.has_room() {
            return None;
        }
        self.end_oldest_half_open();
        Some(self.begin(wire, make))
    }

    fn has_room(&self) -> bool {
        !self.draining.get() && self.len() < self.connections_max
    }

    fn begin(self: &Rc<Self>, joined: AcceptedWire, make: impl FnOnce(u64, AcceptedWire) -> C) -> Rc<C> {
        let id = self.next.get();
        self.next.set(id + 1);
        let connection = Rc::new(make(id, joined));
        self.all.borrow_mut().insert(id, connection.clone());
        self.half_open.borrow_mut().insert(id);
        let stats = self.reactor.stats();
        stats.connections.add(1);
        stats.connections_accepted.add(1);
        let sender = connection.clone();
        self.reactor.spawn(async move {
            if contained(sender.stream().send()).await.is_none() {
                abort(&sender);
            }
        });
        let (connections, served) = (self.clone(), connection.clone());
        self.reactor.spawn(async move {
            if contained(connection::receive(&served)).await.is_none() {
                abort(&served);
            }
            // A connection that has ended must not stay in the list: a drain waits for all that are there.
            let _ = contained(served.close()).await;
            connections.remove(id);
        });
        self.notify();
        connection
    }

    fn end_oldest_half_open(&self) {
        if self.half_open.borrow().len() < HALF_OPEN_MAX {
            return;
        }
        let oldest = self.half_open.borrow_mut().pop_first();
        if let Some(connection) = oldest.and_then(|id| self.all.borrow().get(&id).cloned()) {
            connection.stream().end();
        }
    }

    /// The login, or Connect, has succeeded: the connection is no longer half open.
    pub fn mark_identified(&self, id: u64) {
        self.half_open.borrow_mut().remove(&id);
    }

    /// The number of connections, half-open ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.borrow().len()
    }

    /// Whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends a connection and waits until it has ended.
    pub async fn end(&self, id: u64) {
        let found = self.all.borrow().get(&id).cloned();
        if let Some(found) = found {
            found.stream().end();
            self.until(|| !self.all.borrow().contains_key(&id)).await;
        }
    }

    /// Accepts no more connections from now on.
    pub fn drain(&self) {
        self.draining.set(true);
        self.notify();
    }

    /// Whether [`Connections::drain`] was called.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits for [`Connections::drain`].
    pub async fn until_draining(&self) {
        self.until(|| self.draining.get()).await;
    }

    /// From `quiet` on ends connections that are idle, and at `end` all others; waits until there are none.
    pub async fn end_all(&self, quiet: Instant, end: Instant) {
        loop {
            let now = self.reactor.now();
            let all = self.all();
            if all.is_empty() {
                return;
            }
            let ends = |c: &&Rc<C>| now >= end || now >= quiet && is_idle(c) && c.may_close();
            all.iter().filter(ends).for_each(|c| c.stream().end());
            self.reactor.sleep(DRAIN_CHECK).await;
        }
    }

    /// Ends the present connections for which `leaves` holds: calls `ask` on each of them, from `quiet` on ends those
    /// that are idle, and at `end` the others. Waits until they have ended.
    pub async fn end_matching(&self, leaves: impl Fn(&C) -> bool, ask: impl Fn(&C), quiet: Instant, end: Instant) {
        let all = self.all.borrow().clone();
        let mut leaving: Vec<(u64, Rc<C>)> = all.into_iter().filter(|(_, connection)| leaves(connection)).collect();
        leaving.iter().for_each(|(_, connection)| ask(connection));
        loop {
            leaving.retain(|(id, _)| self.all.borrow().contains_key(id));
            if leaving.is_empty() {
                return;
            }
            let now = self.reactor.now();
            let due = leaving.iter().filter(|(_, c)| now >= end || now >= quiet && is_idle(c));
            due.for_each(|(_, connection)| connection.stream().end());
            self.reactor.sleep(DRAIN_CHECK).await;
        }
    }

    /// Drops all connections at once without closing them: the tasks of the core are gone. A connection and its front
    /// hold each other, so a simulated crash would leak memory otherwise.
    pub fn abandon(&self) {
        drop(self.all.take());
    }

    /// All connections.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<C>> {
        self.all.borrow().values().cloned().collect()
    }

    /// Removes a connection that has ended.
    fn remove(&self, id: u64) {
        self.half_open.borrow_mut().remove(&id);
        self.all.borrow_mut().remove(&id);
        self.reactor.stats().connections.sub(1);
        self.notify();
    }

    fn notify(&self) {
        self.has_changed.set(true);
        self.sweeper.take().into_iter().for_each(Waker::wake);
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        poll_fn(|cx| {
            if holds() {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The sweeper: checks logins that take too long, silent peers, and idle memory. Sleeps until the next deadline.
    async fn sweep(&self) {
        loop {
            self.until(|| !self.is_empty()).await;
            self.has_changed.set(false);
            let now = self.reactor.now();
            let mut next: Option<Instant> = None;
            for connection in self.all() {
                let active = contain(|| self.check(&connection, now)).unwrap_or_else(|| {
                    abort(&connection);
                    true
                });
                let due = if active { Some(now + SWEEP) } else { connection.deadline() };
                next = [next, due].into_iter().flatten().min();
            }
            self.reactor.sleep_until(now + SWEEP).await;
            self.sleep_until_change(next.unwrap_or(now).min(now + SWEEP_LATEST)).await;
        }
    }

    /// Waits until `until`, or until a connection is added or removed.
    async fn sleep_until_change(&self, until: Instant) {
        let mut due = pin!(self.reactor.sleep_until(until));
        poll_fn(|cx| {
            if self.has_changed.get() {
                return Poll::Ready(());
            }
            self.sweeper.set(Some(cx.waker().clone()));
            due.as_mut().poll(cx)
        })
        .await;
    }

    /// Checks one connection; returns whether it was active since the last check.
    fn check(&self, connection: &Rc<C>, now: Instant) -> bool {
        let stream = connection.stream();
        let active = stream.was_active();
        connection.tick(now, active);
        stream.schedule_send();
        if stream.is_stuck(now) {
            self.reactor.stats().keepalive_timeouts.add(1);
            connection.log("does not accept the data that is sent to it");
            stream.abort();
        }
        if !active && is_idle(connection) {
            stream.shrink();
        }
        active || stream.is_sending()
    }
}

/// Whether no command is in progress, nothing is queued and no send is in progress.
fn is_idle<C: FrontConnection>(connection: &Rc<C>) -> bool {
    connection.is_idle() && connection.stream().is_idle()
}

/// Ends a connection after a panic: nobody knows what its session would send.
#[cold]
fn abort<C: FrontConnection>(connection: &Rc<C>) {
    let _ = contain(|| connection.stream().abort());
}

impl<C: FrontConnection> fmt::Debug for Connections<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({} of {})", self.len(), self.connections_max)
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
