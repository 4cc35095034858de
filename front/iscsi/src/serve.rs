//! The glue between the session machine, the device server and the reactor: one [`Front`] per core.
//!
//! * [`connection`]: one connection: what its session asks for, and its end
//! * [`iser`]: RDMA connections as carriers of sessions
//! * [`job`]: one command in a slot
//! * here: logins across cores, slots, draining
//!
//! A command runs in a slot (a long-lived task); its reply is queued in the session, and at the end of the turn
//! everything that is queued for a peer leaves in one send ([`lunar_stream::serve`]).

mod connection;
pub(crate) mod iser;
mod job;

use crate::authenticator::audit::LoginDetails;
use crate::authenticator::{Authenticator, LoginAttempt};
use crate::config::Transport;
use crate::directory::{LoginRoute, Moved, Portal, PortalRef, TargetEntry};
use crate::login::{Candidate, LoginDecision};
use crate::registry::{DISCOVERY_MAX, Registry, SESSIONS_MAX, SessionLocation, SessionRecord};
use crate::session::{SendTargetsQuery, TargetAddresses};
use crate::wire::LoginStatus;
use connection::Connection;
use job::Job;
use lunar_core::shares::PeerShares;
use lunar_core::step::SlotContext;
use lunar_reactor::Reactor;
use lunar_reactor::op::Incoming;
use lunar_reactor::slots::Slots;
use lunar_reactor::tcp::TcpState;
use lunar_scsi::Target;
use lunar_stream::serve::{Carrier, Connections, HALF_OPEN_MAX, Wire};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Commands that one core carries out at once. Each takes some 3 KiB for its task, once it was needed. One host alone
/// has half of them, and one session alone a tenth: three windows of the usual size.
const SLOTS: usize = 4096;
/// Connections per core: as many as the sessions there may be, and the half-open ones, and as many of those that are
/// ending.
const CONNECTIONS_MAX: usize = SESSIONS_MAX + DISCOVERY_MAX + 2 * HALF_OPEN_MAX;
/// How long initiators get to log out when the target stops, once their commands are done.
const FAREWELL: Duration = Duration::from_millis(500);

/// The other cores, as far as sessions need them.
pub trait Peers {
    /// Ends the session that is served there, by another core or over another transport, and waits until it has ended.
    fn end_session(&self, location: SessionLocation) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// [`Peers`] of a program with one core.
#[derive(Clone, Copy, Debug)]
pub struct NoPeers;

impl Peers for NoPeers {
    fn end_session(&self, _place: SessionLocation) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

/// One core's iSCSI.
pub struct Front {
    reactor: Reactor,
    target: Rc<Target>,
    /// The directory of targets and the access control; one for all cores.
    authenticator: Arc<Authenticator>,
    registry: Arc<Registry>,
    me: usize,
    transport: Transport,
    peers: Rc<dyn Peers>,
    slots: Slots<Job>,
    /// The slots, shared by hosts and sessions: a session beyond its share waits.
    slot_shares: PeerShares,
    connections: Rc<Connections<Connection>>,
}

impl Front {
    /// The front of core `me`, for sessions over this transport.
    #[must_use]
    pub fn new(
        reactor: &Reactor,
        target: &Rc<Target>,
        authenticator: Arc<Authenticator>,
        registry: Arc<Registry>,
        (me, transport): (usize, Transport),
        peers: Rc<dyn Peers>,
    ) -> Rc<Self> {
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, slot: &mut SlotContext| job.run(slot).await);
        Rc::new(Self {
            reactor: reactor.clone(),
            target: target.clone(),
            authenticator,
            registry,
            me,
            transport,
            peers,
            slots,
            slot_shares: PeerShares::new(SLOTS),
            connections: Connections::new(reactor, CONNECTIONS_MAX),
        })
    }

    /// Serves a connection that came in through this portal.
    pub fn serve(self: &Rc<Self>, incoming: Incoming, portal_ref: PortalRef) {
        let make = |id, joined| Connection::new(self.clone(), id, portal_ref, joined);
        self.connections.serve(incoming, make);
    }

    /// The largest command window of a session.
    fn window_max(&self) -> usize {
        self.authenticator.directory().window_max()
    }

    /// Serves a connection over a carrier that came in through this portal, if there is room for one.
    fn serve_carried(
        self: &Rc<Self>,
        carrier: Rc<dyn Carrier>,
        (local, peer): (SocketAddr, SocketAddr),
        portal_ref: PortalRef,
    ) -> Option<Rc<Connection>> {
        let make = |id, joined| Connection::new(self.clone(), id, portal_ref, joined);
        self.connections.serve_carried((Wire::Carrier(carrier), local, peer), make)
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

    /// Ends all sessions of a target, on all cores.
    async fn end_sessions_of(&self, target: &str) {
        for location in self.registry.locations(target) {
            self.end_session_at(location).await;
        }
    }

    async fn end_session_at(&self, location: SessionLocation) {
        if (location.core, location.transport) == (self.me, self.transport) {
            self.end_session(location.connection).await;
        } else {
            self.peers.end_session(location).await;
        }
    }

    /// The state of the TCP connections of the wanted sessions, each with the TSIH of its session.
    #[must_use]
    pub fn tcp_states(&self, is_wanted: impl Fn(u16) -> bool) -> Vec<(u16, TcpState)> {
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
        let (now, drain) = (self.reactor.now(), self.authenticator.directory().drain);
        for connection in self.connections.all() {
            connection.ask_to_log_out(drain, now);
        }
        self.connections.end_all(now + FAREWELL.min(drain), now + drain).await;
    }

    /// Looks after those who are there, once there is another directory: sessions that may no longer be, and those of
    /// the groups `ended`, are asked to log out, get to finish their commands, and have ended when this returns.
    pub async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        let (directory, now) = (self.authenticator.directory(), self.reactor.now());
        let drain = directory.drain;
        let leaves = |connection: &Connection| connection.is_in(ended) || !connection.may_stay(&directory);
        let ask = |connection: &Connection| connection.ask_to_log_out(drain, now);
        self.connections.end_matching(leaves, ask, now + FAREWELL.min(drain), now + drain).await;
    }

    /// Forgets all connections at once: [`Connections::abandon`].
    pub fn abandon(&self) {
        self.connections.abandon();
    }

    /// Whether an initiator from `source` may log in through this portal, and its login attempt.
    fn judge(
        &self,
        candidate: &Candidate,
        portal_ref: PortalRef,
        source: SocketAddr,
    ) -> (LoginDecision, Option<LoginAttempt>) {
        let attempt = match self.authenticator.begin_login(candidate, source, self.reactor.now()) {
            Ok(attempt) => attempt,
            Err(status) => return (LoginDecision::Refused(status), None),
        };
        let (entry, portal_group) = (attempt.entry(), portal_ref.group);
        if self.connections.is_draining() {
            return (LoginDecision::Refused(LoginStatus::SERVICE_UNAVAILABLE), Some(attempt));
        }
        let port = match entry.map(|entry| entry.route(portal_group)).transpose() {
            // Discovery has no port.
            Ok(None) => 0,
            Ok(Some(LoginRoute::Port(port))) => port,
            Ok(Some(LoginRoute::Moved(Moved { address, permanently }))) => {
                return (LoginDecision::Moved { permanently, address: address.to_string() }, Some(attempt));
            }
            Err(code) => {
                let login = LoginDetails { portal_group: Some(portal_group), ..attempt.login().clone() };
                self.authenticator.log_refused_as(login, code, self.reactor.now());
                return (LoginDecision::Refused(LoginStatus::NOT_FOUND), None);
            }
        };
        let alias = entry.map(|entry| entry.alias.clone()).filter(|alias| !alias.is_empty());
        let offer = entry.map(|entry| Rc::new(entry.session.over(self.transport)));
        let verdict = match self.registry.check_tsih(candidate, port) {
            Ok(resumed) => {
                LoginDecision::Accepted { portal_group, alias, challenge: attempt.challenge(), offer, resumed }
            }
            Err(status) => LoginDecision::Refused(status),
        };
        (verdict, Some(attempt))
    }

    /// Gives a session its number, after the one that it replaces has ended.
    async fn enter(
        self: &Rc<Self>,
        id: u64,
        record: SessionRecord,
        attempt: &LoginAttempt,
    ) -> Result<u16, LoginStatus> {
        let is_discovery = record.candidate.discovery;
        let most = attempt.entry().map_or(0, |entry| entry.sessions_max);
        let registered = self.registry.register(record, most, self.authenticator.directory().sessions_max)?;
        if let Some(location) = registered.replaced {
            let front = self.clone();
            let end = async move { front.end_session_at(location).await };
            // A discovery session has no commands that must end first.
            if is_discovery { self.reactor.spawn(end) } else { end.await }
        }
        self.connections.mark_identified(id);
        Ok(registered.tsih)
    }

    /// The answer to SendTargets for an initiator at `source` that connected to `local`, through a portal of this
    /// group.
    fn targets(
        &self,
        query: &SendTargetsQuery,
        host: &str,
        (source, local): (SocketAddr, SocketAddr),
        group: u16,
    ) -> Vec<TargetAddresses> {
        let directory = self.authenticator.directory();
        let address = |portal: &Portal| portal.address.or_else(|| (portal.group == group).then_some(local));
        let told = |entry: &Arc<TargetEntry>| {
            let portals = directory.portals.iter().filter(|portal| {
                portal.is_advertised && portal.transport == self.transport && entry.ports.contains_key(&portal.group)
            });
            let mut portals: Vec<_> = portals.filter_map(|portal| Some((address(portal)?, portal.group))).collect();
            portals.dedup();
            TargetAddresses { name: entry.name.clone(), portals }
        };
        let shown = |entry: &&Arc<TargetEntry>| entry.access.group(host, source.ip()).is_some();
        match query {
            SendTargetsQuery::All => directory.targets().filter(shown).map(told).collect(),
            SendTargetsQuery::One(name) => directory.target(name).into_iter().filter(shown).map(told).collect(),
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} connections)", self.connections.len())
    }
}
