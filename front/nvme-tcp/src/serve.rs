//! The glue between the session machine, the controller and the reactor: one [`Front`] per core.
//!
//! * [`connection`]: one connection: a task that receives, a task that sends
//! * [`secure`]: a connection that is a secure channel
//! * [`job`]: one command in a slot, and the ways that its data takes
//! * here: the connections of a core, slots, time, draining
//!
//! A command runs in a slot (a long-lived task); its reply is queued in the session, and at the end of the turn
//! everything that is queued for a peer leaves in one send. A controller's queues may be served by several cores: each
//! of them waits for the controller's end by itself.

mod connection;
mod job;
mod secure;

use crate::tls::Channels;
use connection::Connection;
use job::Job;
use lunar_core::step::Tools;
use lunar_core::time::Instant;
use lunar_nvme::Subsystem;
use lunar_reactor::Reactor;
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::Slots;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Commands that one core carries out at once: two full queues of the largest size. Each takes some 3 KiB for its task.
const SLOTS: usize = 2048;
/// Connections that have no queue, or whose host has still to prove its name, per core. One more pushes the oldest out: whoever floods the port
/// pushes out its own.
const HALF_OPEN_MAX: usize = 1024;
/// Connections per core: four queues for each controller that there may be, and the half-open ones.
const CONNECTIONS_MAX: usize = 4 * lunar_nvme::controller::CONTROLLERS_MAX + HALF_OPEN_MAX;
/// How often connections that were active are looked at: to ask silent peers, and to take back their memory.
const SWEEP: Duration = Duration::from_secs(1);
/// How often a core that stops looks whether commands are done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// How it is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address that the discovery service tells; `None`: the one that the host came in by.
    pub advertise: Option<IpAddr>,
    /// Secure channels, if any host may have one.
    pub channels: Option<Channels>,
    /// How long commands get to finish when the target stops.
    pub drain: Duration,
}

/// One core's NVMe/TCP.
pub struct Front {
    reactor: Reactor,
    subsystem: Rc<Subsystem>,
    settings: Settings,
    slots: Slots<Job>,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    /// Those that have no queue, or whose host has still to prove its name, oldest first.
    half_open: RefCell<BTreeSet<u64>>,
    next: Cell<u64>,
    draining: Cell<bool>,
    /// Who waits for a change of the two above: the sweeper, the drain.
    waiters: RefCell<Vec<Waker>>,
}

impl Front {
    /// The front of a core.
    #[must_use]
    pub fn new(reactor: &Reactor, subsystem: &Rc<Subsystem>, settings: Settings) -> Rc<Self> {
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, tools: &mut Tools| job.run(tools).await);
        let front = Rc::new(Self {
            reactor: reactor.clone(),
            subsystem: subsystem.clone(),
            settings,
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

    /// Serves a connection.
    pub fn serve(self: &Rc<Self>, incoming: Incoming) {
        if self.draining.get() || self.connections.borrow().len() >= CONNECTIONS_MAX {
            return drop(incoming);
        }
        self.push_out_oldest();
        // Gone before it was served: nobody is there to be told.
        let Ok((socket, local, peer)) = self.reactor.driver().join(incoming) else { return };
        let id = self.next.get();
        self.next.set(id + 1);
        let connection = Connection::new(self.clone(), id, socket, local, peer);
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

    /// Connections that are served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// A connection has its queue, whose host has proved its name if it has to.
    fn is_connected(&self, id: u64) {
        self.half_open.borrow_mut().remove(&id);
    }

    /// Takes no more connections, lets commands finish, and ends: see [`Front::drained`].
    pub fn drain(&self) {
        self.draining.set(true);
        self.changed();
    }

    /// Waits for [`Front::drain`], and then until all connections have ended.
    pub async fn drained(&self) {
        self.until(|| self.draining.get()).await;
        let end = self.reactor.now() + self.settings.drain;
        loop {
            let now = self.reactor.now();
            let all = self.all();
            if all.is_empty() {
                return;
            }
            all.iter().filter(|c| now >= end || c.is_quiet()).for_each(|c| c.end());
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

    /// Looks after time: connections without a queue, hosts that are silent, memory that lies idle. Sleeps while there
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
            // A connection that comes meanwhile has its whole time before it.
            let at = next.unwrap_or(now + SWEEP).max(now + SWEEP);
            self.reactor.sleep_until(at).await;
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} connections)", self.connections.borrow().len())
    }
}
