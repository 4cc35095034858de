//! The glue between the session machine, the device server and the reactor: one [`Front`] per core.
//!
//! * [`connection`]: one connection: what its session asks for, and its end
//! * [`job`]: one command in a slot
//! * here: logins across cores, slots, draining
//!
//! A command runs in a slot (a long-lived task); its reply is queued in the session, and at the end of the turn
//! everything that is queued for a peer leaves in one send ([`lunar_stream::serve`]).

mod connection;
mod job;

use crate::config;
use crate::guard::{Guard, Knock};
use crate::login::{Candidate, Established, Verdict};
use crate::registry::{Place, Registry};
use crate::session::{Query, TargetAddresses};
use crate::wire::LoginStatus;
use connection::Connection;
use job::Job;
use lunar_core::step::Tools;
use lunar_reactor::Reactor;
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::Slots;
use lunar_scsi::Target;
use lunar_stream::serve::{Connections, HALF_OPEN_MAX};
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Commands that one core carries out at once: sixteen full windows. Each takes some 3 KiB for its task.
const SLOTS: usize = 2048;
/// Connections per core: as many as the sessions there may be, and the half-open ones.
const CONNECTIONS_MAX: usize = crate::registry::SESSIONS_MAX + HALF_OPEN_MAX;
/// How long initiators get to log out when the target stops, once their commands are done.
const FAREWELL: Duration = Duration::from_millis(500);

/// What is shared, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the target.
    pub target: Arc<str>,
    /// What it is called for people.
    pub alias: Arc<str>,
    /// What SendTargets tells.
    pub portals: Vec<Portal>,
    /// How long commands get to finish when the target stops.
    pub drain: Duration,
    /// What sessions are offered.
    pub session: config::Config,
    /// Who may log in; one for all cores.
    pub guard: Arc<Guard>,
}

/// A portal as SendTargets tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Tag of its portal group. A portal group is the target port of the same relative identifier.
    pub group: u16,
    /// Where it is; `None`: where the initiator came in, and only for those who came in by this group.
    pub address: Option<SocketAddr>,
}

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
    settings: Settings,
    session_config: Rc<config::Config>,
    registry: Arc<Registry>,
    me: usize,
    peers: Rc<dyn Peers>,
    slots: Slots<Job>,
    connections: Rc<Connections<Connection>>,
}

impl Front {
    /// The front of core `me`.
    ///
    /// # Panics
    /// When the settings of sessions cannot be offered: [`config::Config::check`].
    #[must_use]
    pub fn new(
        reactor: &Reactor,
        target: &Rc<Target>,
        settings: Settings,
        registry: Arc<Registry>,
        me: usize,
        peers: Rc<dyn Peers>,
    ) -> Rc<Self> {
        settings.session.check().expect("settings are checked where they are made");
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, tools: &mut Tools| job.run(tools).await);
        Rc::new(Self {
            reactor: reactor.clone(),
            target: target.clone(),
            session_config: Rc::new(settings.session.clone()),
            settings,
            registry,
            me,
            peers,
            slots,
            connections: Connections::new(reactor, CONNECTIONS_MAX),
        })
    }

    /// Serves a connection that came in by a portal of this group.
    pub fn serve(self: &Rc<Self>, incoming: Incoming, group: u16) {
        let make = |id, joined| Connection::new(self.clone(), id, group, joined);
        self.connections.serve(incoming, make);
    }

    /// Sessions and half-open connections that are served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Ends a session that this core serves, and waits until it has ended.
    pub async fn end_session(&self, connection: u64) {
        self.connections.end(connection).await;
    }

    /// Ends all sessions, of all cores.
    async fn end_all_sessions(&self) {
        for place in self.registry.places() {
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
        self.connections.drain();
    }

    /// Waits for [`Front::drain`], and then until all connections have ended.
    pub async fn drained(&self) {
        self.connections.until_draining().await;
        let (now, drain) = (self.reactor.now(), self.settings.drain);
        for connection in self.connections.all() {
            connection.ask_to_log_out(drain, now);
        }
        self.connections.end_all(now + FAREWELL.min(drain), now + drain).await;
    }

    /// Forgets all connections at once: [`Connections::abandon`].
    pub fn abandon(&self) {
        self.connections.abandon();
    }

    /// Whether an initiator from `source` may log in at this portal group; and what is known of it then.
    fn judge(&self, candidate: &Candidate, portal_group: u16, source: SocketAddr) -> (Verdict, Option<Knock>) {
        let knock = match self.settings.guard.knock(candidate, source, self.reactor.now()) {
            Ok(knock) => knock,
            Err(status) => return (Verdict::Refused(status), None),
        };
        let known = candidate.discovery || candidate.target.as_deref() == Some(&*self.settings.target);
        let verdict = if self.connections.is_draining() {
            Verdict::Refused(LoginStatus::SERVICE_UNAVAILABLE)
        } else if !known {
            Verdict::Refused(LoginStatus::NOT_FOUND)
        } else if let Err(status) = self.registry.admit(candidate) {
            Verdict::Refused(status)
        } else {
            let alias = (!candidate.discovery).then(|| self.settings.alias.clone());
            Verdict::Accepted { portal_group, alias, challenge: knock.challenge() }
        };
        (verdict, Some(knock))
    }

    /// Gives a session its number, after the one that it replaces has ended.
    async fn enter(&self, id: u64, group: u16, established: &Established) -> Result<u16, LoginStatus> {
        let entered = self.registry.enter(&established.candidate, group, Place { core: self.me, connection: id })?;
        if let Some(place) = entered.replaced {
            self.end_place(place).await;
        }
        self.connections.is_known(id);
        Ok(entered.tsih)
    }

    /// What SendTargets tells an initiator that came from `source` to `local`, of this portal group.
    fn targets(
        &self,
        query: &Query,
        host: &str,
        (source, local): (SocketAddr, SocketAddr),
        group: u16,
    ) -> Vec<TargetAddresses> {
        let asked = self.settings.guard.shows(host, source.ip())
            && match query {
                Query::All => true,
                Query::One(name) => **name == *self.settings.target,
            };
        let address = |portal: &Portal| portal.address.or_else(|| (portal.group == group).then_some(local));
        let told = self.settings.portals.iter();
        let portals = told.filter_map(|portal| Some((address(portal)?, portal.group))).collect();
        if asked { vec![TargetAddresses { name: self.settings.target.clone(), portals }] } else { Vec::new() }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({}, {} connections)", self.settings.target, self.connections.len())
    }
}
