//! The connections of one core, whatever they speak.
//!
//! * `stream`: one connection's session and bytes: a task that receives, a task that sends
//! * `data_path`: how a command's data moves
//! * here: all connections of a front on a core: how many, which are half open, time, draining

mod connection;
mod data_path;

pub use connection::StreamConnection;
pub use data_path::DataPath;

use crate::protocol::{CommandData, ProtocolMachine};
use crate::record_layer::RecordLayer;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::op::{Handle, Incoming};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Connections that have not said yet whose they are, per core. One more pushes the oldest out: whoever floods the port
/// pushes out its own.
pub const HALF_OPEN_MAX: usize = 1024;
/// How often connections that were active are looked at: to ask silent peers, and to take back their memory.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a core with connections looks at none of them: a silent one may have become busy meanwhile.
const SWEEP_LATEST: Duration = Duration::from_secs(10);
/// How often a core that stops looks whether commands are done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// What a front makes of a connection: a [`StreamConnection`], and all that its protocol knows of who is at its other end.
pub trait FrontConnection: 'static {
    /// What it speaks.
    type Session: CommandData;
    /// What lies between that and the wire.
    type RecordLayer: RecordLayer;

    /// Its session and its bytes.
    fn stream(&self) -> &StreamConnection<Self::Session, Self::RecordLayer>;

    /// Does what the session asks for. Takes all of `actions`, in their order.
    fn perform(
        self: &Rc<Self>,
        actions: &mut Vec<<Self::Session as ProtocolMachine>::Action>,
    ) -> impl Future<Output = ()>;

    /// The end: commands are aborted, and when they are gone, [`StreamConnection::finish`] is waited for.
    fn close(self: &Rc<Self>) -> impl Future<Output = ()>;

    /// Whether no command is under data_path.
    fn is_idle(&self) -> bool;

    /// Whether a target that stops may end it once nothing is under data_path.
    fn may_close(&self) -> bool {
        true
    }

    /// When [`FrontConnection::tick`] has to be called at the latest.
    fn deadline(&self) -> Option<Instant>;

    /// Looks at the time; `active`: something came since the last look.
    fn tick(&self, now: Instant, active: bool);

    /// Tells what happened to it.
    fn log(&self, what: &str);
}

/// A socket, and the addresses at its two ends: the own one, the peer's.
pub type AcceptedSocket = (Handle, SocketAddr, SocketAddr);

/// The connections of a front on a core.
pub struct Connections<C> {
    reactor: Reactor,
    connections_max: usize,
    all: RefCell<BTreeMap<u64, Rc<C>>>,
    /// Those of whom nobody knows whose they are, oldest first.
    half_open: RefCell<BTreeSet<u64>>,
    next: Cell<u64>,
    draining: Cell<bool>,
    /// Who waits for a change of these: the sweeper, the drain, those who end sessions.
    waiters: RefCell<Vec<Waker>>,
    /// Whether somebody came or went since the sweeper looked, and the sweeper.
    news: Cell<bool>,
    sweeper: Cell<Option<Waker>>,
}

impl<C: FrontConnection> Connections<C> {
    /// None yet, and so many at most: whoever comes then is turned away.
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
            news: Cell::new(false),
            sweeper: Cell::default(),
        });
        let sweeper = connections.clone();
        reactor.spawn(async move { sweeper.sweep().await });
        connections
    }

    /// Serves a connection, of which `make` makes what it is, by its number here.
    pub fn serve(self: &Rc<Self>, incoming: Incoming, make: impl FnOnce(u64, AcceptedSocket) -> C) {
        if self.draining.get() || self.len() >= self.connections_max {
            return drop(incoming);
        }
        self.push_out_oldest();
        // Gone before it was served: nobody is there to be told.
        let Ok(joined) = self.reactor.driver().join(incoming) else { return };
        let id = self.next.get();
        self.next.set(id + 1);
        let connection = Rc::new(make(id, joined));
        self.all.borrow_mut().insert(id, connection.clone());
        self.half_open.borrow_mut().insert(id);
        let stats = self.reactor.stats();
        stats.connections.add(1);
        stats.connections_accepted.add(1);
        let sender = connection.clone();
        self.reactor.spawn(async move { sender.stream().send().await });
        let connections = self.clone();
        self.reactor.spawn(async move {
            connection::receive(&connection).await;
            connection.close().await;
            connections.forget(id);
        });
        self.changed();
    }

    fn push_out_oldest(&self) {
        if self.half_open.borrow().len() < HALF_OPEN_MAX {
            return;
        }
        let oldest = self.half_open.borrow_mut().pop_first();
        if let Some(connection) = oldest.and_then(|id| self.all.borrow().get(&id).cloned()) {
            connection.stream().end();
        }
    }

    /// It is known whose connection this is.
    pub fn mark_identified(&self, id: u64) {
        self.half_open.borrow_mut().remove(&id);
    }

    /// Connections, half-open ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.borrow().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends a connection, and waits until it has ended.
    pub async fn end(&self, id: u64) {
        let found = self.all.borrow().get(&id).cloned();
        if let Some(found) = found {
            found.stream().end();
            self.until(|| !self.all.borrow().contains_key(&id)).await;
        }
    }

    /// Takes no more connections from now on.
    pub fn drain(&self) {
        self.draining.set(true);
        self.changed();
    }

    /// Whether no more connections are taken.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits for [`Connections::drain`].
    pub async fn until_draining(&self) {
        self.until(|| self.draining.get()).await;
    }

    /// Ends those that are quiet from `quiet` on, and all at `end`; waits until there is none.
    pub async fn end_all(&self, quiet: Instant, end: Instant) {
        loop {
            let now = self.reactor.now();
            let all = self.all();
            if all.is_empty() {
                return;
            }
            let goes = |c: &&Rc<C>| now >= end || now >= quiet && is_quiet(c) && c.may_close();
            all.iter().filter(goes).for_each(|c| c.stream().end());
            self.reactor.sleep(DRAIN_LOOK).await;
        }
    }

    /// Ends those among them, as they are now, that have to leave: `ask` asks each of them to; those that are quiet end
    /// from `quiet` on, and all at `end`. Waits until they have ended.
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
            let due = leaving.iter().filter(|(_, c)| now >= end || now >= quiet && is_quiet(c));
            due.for_each(|(_, connection)| connection.stream().end());
            self.reactor.sleep(DRAIN_LOOK).await;
        }
    }

    /// Forgets all connections at once, without a word to anybody: the core's tasks are gone. Connections hold their
    /// front and it holds them, so a simulated crash leaves memory behind without it.
    pub fn abandon(&self) {
        drop(self.all.take());
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<C>> {
        self.all.borrow().values().cloned().collect()
    }

    /// A connection has ended.
    fn forget(&self, id: u64) {
        self.half_open.borrow_mut().remove(&id);
        self.all.borrow_mut().remove(&id);
        self.reactor.stats().connections.sub(1);
        self.changed();
    }

    fn changed(&self) {
        self.news.set(true);
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

    /// Looks after time: logins that take too long, peers that are silent, memory that lies idle. Sleeps while there
    /// is nothing to look after.
    async fn sweep(&self) {
        loop {
            self.until(|| !self.is_empty()).await;
            self.news.set(false);
            let now = self.reactor.now();
            let mut next: Option<Instant> = None;
            for connection in self.all() {
                let active = self.look(&connection, now);
                let due = if active { Some(now + SWEEP) } else { connection.deadline() };
                next = [next, due].into_iter().flatten().min();
            }
            self.reactor.sleep_until(now + SWEEP).await;
            self.rest(next.unwrap_or(now).min(now + SWEEP_LATEST)).await;
        }
    }

    /// Waits until then, or until somebody comes or goes.
    async fn rest(&self, until: Instant) {
        let mut due = pin!(self.reactor.sleep_until(until));
        poll_fn(|cx| {
            if self.news.get() {
                return Poll::Ready(());
            }
            self.sweeper.set(Some(cx.waker().clone()));
            due.as_mut().poll(cx)
        })
        .await;
    }

    /// Looks after the time of one; tells whether it was active since the last look.
    fn look(&self, connection: &Rc<C>, now: Instant) -> bool {
        let stream = connection.stream();
        let active = stream.was_active();
        connection.tick(now, active);
        stream.schedule_send();
        if stream.is_stuck(now) {
            self.reactor.stats().keepalive_timeouts.add(1);
            connection.log("takes nothing of what is sent to it");
            stream.abort();
        }
        if !active && is_quiet(connection) {
            stream.shrink();
        }
        active || stream.is_sending()
    }
}

/// Whether nothing is under data_path.
fn is_quiet<C: FrontConnection>(connection: &Rc<C>) -> bool {
    connection.is_idle() && connection.stream().is_idle()
}

impl<C: FrontConnection> fmt::Debug for Connections<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connections({} of {})", self.len(), self.connections_max)
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
