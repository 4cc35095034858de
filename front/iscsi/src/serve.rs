//! The glue between the session machine, the device server and the reactor: one [`Front`] per core.
//!
//! * [`connection`]: one connection: a task that receives, a task that sends
//! * [`job`]: one command in a slot, and the ways that its data takes
//! * here: the connections of a core, logins across cores, slots, time, draining
//!
//! A command runs in a slot (a long-lived task); its reply is queued in the session, and at the end of the turn
//! everything that is queued for a peer leaves in one send.

mod connection;
mod job;

use crate::config;
use crate::directory::{Entry, Moved, Portal, Way};
use crate::guard::{Guard, Knock};
use crate::login::{Candidate, Verdict};
use crate::registry::{Guest, Place, Registry};
use crate::session::{Query, TargetAddresses};
use crate::wire::LoginStatus;
use connection::Connection;
use job::Job;
use lunar_core::step::Tools;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::Slots;
use lunar_scsi::Target;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Commands that one core carries out at once: sixteen full windows. Each takes some 3 KiB for its task.
const SLOTS: usize = 2048;
/// Connections that have not logged in, per core. One more pushes the oldest out: whoever floods the port
/// pushes out its own.
const HALF_OPEN_MAX: usize = 1024;
/// Connections per core: as many as the sessions there may be, and the half-open ones.
const CONNECTIONS_MAX: usize = crate::registry::SESSIONS_MAX + HALF_OPEN_MAX;
/// How often connections that were active are looked at: to ask silent peers, and to take back their memory.
const SWEEP: Duration = Duration::from_secs(1);
/// How long initiators get to log out when the target stops, once their commands are done.
const FAREWELL: Duration = Duration::from_millis(500);
/// How often a core that stops looks whether commands are done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// The other cores, as far as sessions need them.
pub trait Peers {
    /// Ends the session that is served there, and waits until it has ended.
    fn end_session(&self, place: Place) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// [`Peers`] of a program with one core.
#[derive(Clone, Copy, Debug)]
pub struct NoPeers;

impl Peers for NoPeers {
    fn end_session(&self, _place: Place) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

/// One core's iSCSI.
pub struct Front {
    reactor: Reactor,
    target: Rc<Target>,
    /// What there is to log in to, and who may; one for all cores.
    guard: Arc<Guard>,
    registry: Arc<Registry>,
    me: usize,
    peers: Rc<dyn Peers>,
    slots: Slots<Job>,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    /// Those that have not logged in, oldest first.
    half_open: RefCell<BTreeSet<u64>>,
    next: Cell<u64>,
    draining: Cell<bool>,
    /// Who waits for a change of the two above: the sweeper, the drain, those who end sessions.
    waiters: RefCell<Vec<Waker>>,
}

impl Front {
    /// The front of core `me`.
    #[must_use]
    pub fn new(
        reactor: &Reactor,
        target: &Rc<Target>,
        guard: Arc<Guard>,
        registry: Arc<Registry>,
        me: usize,
        peers: Rc<dyn Peers>,
    ) -> Rc<Self> {
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, tools: &mut Tools| job.run(tools).await);
        let front = Rc::new(Self {
            reactor: reactor.clone(),
            target: target.clone(),
            guard,
            registry,
            me,
            peers,
            slots,
            connections: RefCell::default(),
            half_open: RefCell::default(),
            next: Cell::new(0),
            draining: Cell::new(false),
            waiters: RefCell::default(),
        });
        let sweeper = front.clone();
        reactor.spawn(async move { sweeper.sweep().await });
        front
    }

    /// Serves a connection that came in by this way.
    pub fn serve(self: &Rc<Self>, incoming: Incoming, way: Way) {
        if self.draining.get() || self.connections.borrow().len() >= CONNECTIONS_MAX {
            return drop(incoming);
        }
        self.push_out_oldest();
        // Gone before it was served: nobody is there to be told.
        let Ok((socket, local, peer)) = self.reactor.driver().join(incoming) else { return };
        let id = self.next.get();
        self.next.set(id + 1);
        let connection = Connection::new(self.clone(), id, way, socket, (local, peer));
        self.connections.borrow_mut().insert(id, connection.clone());
        self.half_open.borrow_mut().insert(id);
        let stats = self.reactor.stats();
        stats.connections.add(1);
        stats.connections_accepted.add(1);
        connection.start();
        self.changed();
    }

    fn push_out_oldest(&self) {
        if self.half_open.borrow().len() < HALF_OPEN_MAX {
            return;
        }
        let oldest = self.half_open.borrow_mut().pop_first();
        if let Some(connection) = oldest.and_then(|id| self.connections.borrow().get(&id).cloned()) {
            connection.end();
        }
    }

    /// Sessions and half-open connections that are served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Ends a session that this core serves, and waits until it has ended.
    pub async fn end_session(&self, connection: u64) {
        let found = self.connections.borrow().get(&connection).cloned();
        if let Some(found) = found {
            found.end();
            self.until(|| !self.connections.borrow().contains_key(&connection)).await;
        }
    }

    /// Ends all sessions of a target, on all cores.
    async fn end_sessions_of(&self, target: &str) {
        for place in self.registry.places(target) {
            self.end_place(place).await;
        }
    }

    async fn end_place(&self, place: Place) {
        if place.core == self.me {
            self.end_session(place.connection).await;
        } else {
            self.peers.end_session(place).await;
        }
    }

    /// Takes no more connections, lets commands finish, and ends: see [`Front::drained`].
    pub fn drain(&self) {
        self.draining.set(true);
        self.changed();
    }

    /// Waits for [`Front::drain`], and then until all connections have ended.
    pub async fn drained(&self) {
        self.until(|| self.draining.get()).await;
        self.see_off(|_| true).await;
    }

    /// Looks after those who are there, once there is another directory: sessions that may no longer be, and those of the
    /// groups `ended`, are asked to log out, get to finish their commands, and have ended when this returns.
    pub async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        let directory = self.guard.directory();
        self.see_off(|connection| connection.is_in(ended) || !connection.may_stay(&directory)).await;
    }

    /// Ends connections that have to leave, among those that are there now: sessions are asked to log out, and get to
    /// finish their commands.
    async fn see_off(&self, leaves: impl Fn(&Connection) -> bool) {
        let (now, drain) = (self.reactor.now(), self.guard.directory().drain);
        let mut leaving = self.all();
        leaving.retain(|connection| leaves(connection));
        leaving.iter().for_each(|connection| connection.ask_to_log_out(drain, now));
        let (farewell, end) = (now + FAREWELL.min(drain), now + drain);
        loop {
            leaving.retain(|connection| self.connections.borrow().contains_key(&connection.id));
            if leaving.is_empty() {
                return;
            }
            let now = self.reactor.now();
            leaving.iter().filter(|c| now >= end || (now >= farewell && c.is_quiet())).for_each(|c| c.end());
            self.reactor.sleep(DRAIN_LOOK).await;
        }
    }

    /// Forgets all connections at once, without a word to anybody: the core's tasks are gone. Connections hold the
    /// front and it holds them, so a simulated crash leaves memory behind without it.
    pub fn abandon(&self) {
        drop(self.connections.take());
    }

    fn all(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().cloned().collect()
    }

    /// A connection has ended.
    fn forget(&self, connection: &Connection) {
        self.half_open.borrow_mut().remove(&connection.id);
        self.connections.borrow_mut().remove(&connection.id);
        self.reactor.stats().connections.sub(1);
        self.changed();
    }

    fn changed(&self) {
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
            self.until(|| !self.connections.borrow().is_empty()).await;
            let now = self.reactor.now();
            let mut next: Option<Instant> = None;
            for connection in self.all() {
                let active = connection.look(now);
                let due = if active { Some(now + SWEEP) } else { connection.deadline() };
                next = [next, due].into_iter().flatten().min();
            }
            // A connection that comes meanwhile has its whole login time before it.
            let at = next.unwrap_or(now + SWEEP).max(now + SWEEP);
            self.reactor.sleep_until(at).await;
        }
    }

    /// Whether an initiator from `source` may log in by this way; and what is known of it then.
    fn judge(&self, candidate: &Candidate, way: Way, source: SocketAddr) -> (Verdict, Option<Knock>) {
        let knock = match self.guard.knock(candidate, source, self.reactor.now()) {
            Ok(knock) => knock,
            Err(status) => return (Verdict::Refused(status), None),
        };
        let (entry, portal_group) = (knock.entry(), way.group);
        let verdict = if self.draining.get() {
            Verdict::Refused(LoginStatus::SERVICE_UNAVAILABLE)
        } else if let Some(Moved { address, permanently }) = entry.and_then(|entry| entry.moved) {
            Verdict::Moved { permanently, address: address.to_string() }
        } else if entry.is_some_and(|entry| !entry.ports.contains_key(&portal_group)) {
            Verdict::Refused(LoginStatus::NOT_FOUND)
        } else if let Err(status) = self.registry.admit(candidate) {
            Verdict::Refused(status)
        } else {
            let alias = entry.map(|entry| entry.alias.clone()).filter(|alias| !alias.is_empty());
            let offer = entry.map(|entry| Rc::new(config::Config::clone(&entry.session)));
            Verdict::Accepted { portal_group, alias, challenge: knock.challenge(), offer }
        };
        (verdict, Some(knock))
    }

    /// Gives a session its number, after the one that it replaces has ended.
    async fn enter(&self, id: u64, guest: Guest, knock: &Knock) -> Result<u16, LoginStatus> {
        let most = knock.entry().map_or(0, |entry| entry.sessions_max);
        let entered = self.registry.enter(guest, most, self.guard.directory().sessions_max)?;
        if let Some(place) = entered.replaced {
            self.end_place(place).await;
        }
        self.half_open.borrow_mut().remove(&id);
        Ok(entered.tsih)
    }

    /// What SendTargets tells an initiator that came from `source` to `local`, by a portal of this group.
    fn targets(
        &self,
        query: &Query,
        host: &str,
        (source, local): (SocketAddr, SocketAddr),
        group: u16,
    ) -> Vec<TargetAddresses> {
        let directory = self.guard.directory();
        let address = |portal: &Portal| portal.address.or_else(|| (portal.group == group).then_some(local));
        let told = |entry: &Arc<Entry>| {
            let portals = directory.portals.iter().filter(|p| p.is_told && entry.ports.contains_key(&p.group));
            let mut portals: Vec<_> = portals.filter_map(|portal| Some((address(portal)?, portal.group))).collect();
            portals.dedup();
            TargetAddresses { name: entry.name.clone(), portals }
        };
        let shown = |entry: &&Arc<Entry>| entry.access.group(host, source.ip()).is_some();
        match query {
            Query::All => directory.targets().filter(shown).map(told).collect(),
            Query::One(name) => directory.target(name).into_iter().filter(shown).map(told).collect(),
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} connections)", self.connections.borrow().len())
    }
}
