//! A port on its link: follows the events of Scheduled Transfer.

use super::StPorts;
use super::connection::{Connection, Step, Use};
use super::core::Core;
use super::target::{SstTarget, address};
use crate::directory::PortView;
use crate::exchange::Broken;
use crate::limits::{DEPTH_MAX, LOGIN_TIMEOUT, PEER_CONNECTIONS_MAX, REFUSALS_MAX, SLOTS};
use crate::links::shown;
use crate::schema::WORD;
use crate::wire::{LOGIN_LEN, Login, LoginAnswer, LoginStatus, PORT};
use lunar_core::access::audit;
use lunar_core::access::refusal::RefusalCode;
use lunar_engine::link_ports::{Outcome, PortEndpoint};
use lunar_link::{MacAddress, Rate};
use lunar_reactor::end::End;
use lunar_reactor::log;
use lunar_st::port::{LinkSpec, OpenedPort, Port};
use lunar_st::{Event, Id, Peer, Reason, Refused, Settings, Ulp, VcId};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The period of the rate of reported refusals.
const MINUTE: Duration = Duration::from_secs(60);
/// The rate is that of all refusals, not of one station.
const ANYBODY: MacAddress = MacAddress([0; 6]);
/// The time for the last packets of a port that is closed.
const FAREWELL: Duration = Duration::from_millis(50);

/// A port on its link.
pub struct Endpoint {
    /// Itself, for its tasks.
    me: Weak<Self>,
    core: Rc<Core>,
    spec: LinkSpec,
    target: Rc<SstTarget>,
    port: RefCell<Option<Rc<Port>>>,
    /// `None` until a configuration is published: no initiator can connect.
    view: RefCell<Option<Rc<PortView>>>,
    refusals: RefCell<Rate>,
    closed: End,
}

/// A login that is being decided about.
struct Candidate {
    connection: Rc<Connection>,
    /// The name of the initiator, in lower case.
    name: Arc<str>,
    /// The name of the target that it asks for.
    target: Box<str>,
    depth: u16,
}

impl Endpoint {
    fn attach(&self, opened: OpenedPort) -> io::Result<()> {
        let mut seed = [0; 16];
        if !self.core.common.shared.host.random(&mut seed) {
            // Keys that can be guessed protect nothing.
            return Err(io::Error::other("the system has no random numbers for the Keys of connections"));
        }
        let secret = [0, 8].map(|at| seed[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte)));
        let me = self.me.clone();
        let follow = move |port: &Rc<Port>, event| {
            me.upgrade().into_iter().for_each(|endpoint| endpoint.follow(port, event));
        };
        let port = Port::attach(self.core.reactor(), vec![opened], secret, Box::new(follow))?;
        self.port.replace(Some(port));
        Ok(())
    }

    /// Opens a link that has failed again, for instance because its interface was removed.
    async fn keep_open(self: Rc<Self>) {
        let name = shown(&self.spec);
        while let Some(port) = self.current() {
            if self.closed.unless(port.failure()).await.is_none() {
                return;
            }
            self.end_all(Reason::ABORTED);
            port.close();
            let trouble = format!("link {name} of an ST port has failed, and is opened again");
            log!(error, "{trouble}");
            self.report(Some(trouble));
            let (reactor, closed) = (self.core.reactor(), &self.closed);
            let attach = |opened| self.attach(opened);
            if self.core.common.open_again(&self.spec, (reactor, closed), attach).await.is_none() {
                return;
            }
            self.report(None);
            log!("link {name} of an ST port is open again");
            self.listen();
        }
    }

    fn current(&self) -> Option<Rc<Port>> {
        self.port.borrow().clone()
    }

    fn report(&self, trouble: Option<String>) {
        if let Some(view) = &*self.view.borrow() {
            self.core.common.set_trouble(&view.name, trouble);
        }
    }

    /// Accepts connections.
    fn listen(&self) {
        let Some(port) = self.current().filter(|_| self.view.borrow().is_some()) else { return };
        let settings = Settings { slots: SLOTS, ..Settings::default() }.for_mtu(port.mtu(0));
        if port.with(|engine, _| engine.listen(PORT, Ulp::SCSI, settings)).is_err() {
            log!(error, "st: the settings of {} are out of range", shown(&self.spec));
        }
    }

    fn follow(&self, port: &Rc<Port>, event: Event) {
        let vc = match event {
            Event::Accepted { vc, peer, .. } => return self.accept(port, vc, peer),
            Event::Closed { vc, .. } => return self.target.ended(vc),
            Event::Connected { vc }
            | Event::SendAsked { vc, .. }
            | Event::ReceiveAsked { vc, .. }
            | Event::Received { vc, .. }
            | Event::Done { vc, .. }
            | Event::Failed { vc, .. }
            | Event::RegionAsked { vc, .. }
            | Event::RegionGranted { vc, .. }
            | Event::RegionEnded { vc, .. }
            | Event::PutArrived { vc, .. }
            | Event::Fetched { vc, .. } => vc,
        };
        let Some(connection) = self.target.connection(vc) else { return };
        if self.take(&connection, event).is_err() {
            self.target.end(&connection, Reason::BAD_PARAMETER);
        }
    }

    fn accept(&self, port: &Rc<Port>, vc: VcId, peer: Peer) {
        let is_near = |other: &Peer| match (address(*other), address(peer)) {
            (None, None) => *other == peer,
            (one, other) => one == other,
        };
        let near = self.target.connections().iter().filter(|other| is_near(&other.peer)).count();
        if near >= PEER_CONNECTIONS_MAX || self.core.draining.has_come() {
            return port.with(|engine, now| engine.close(vc, Reason::NO_RESOURCES, now));
        }
        self.target.limit_logins();
        let connection = Connection::new(self.core.reactor(), port, vc, peer);
        self.target.insert(connection.clone());
        let target = self.target.clone();
        self.core.reactor().spawn(async move {
            if connection.is_open_after(LOGIN_TIMEOUT).await && connection.step.get() != Step::Up {
                target.end(&connection, Reason::TIME_OUT);
            }
        });
    }

    /// Follows an event of a connection.
    ///
    /// # Errors
    /// When the initiator breaks the rules.
    fn take(&self, connection: &Rc<Connection>, event: Event) -> Result<(), Broken> {
        let refused = |_: Refused| Broken::Transfer;
        match event {
            Event::SendAsked { id, len, .. } if connection.step.get() == Step::Login => {
                let len = usize::try_from(len).ok().filter(|len| (LOGIN_LEN.0..=LOGIN_LEN.1).contains(len));
                connection.take_login(id, len.ok_or(Broken::Length)?).map_err(refused)
            }
            Event::SendAsked { id, peer_id, len, .. } => connection.send_asked(peer_id, id, len),
            Event::ReceiveAsked { id, peer_id, len, .. } => connection.receive_asked(peer_id, id, len),
            Event::Received { id, .. } => {
                match connection.end_use(id) {
                    Some(Use::Login) => self.login(connection, &connection.login_bytes(id)),
                    _ => connection.received(id),
                }
                Ok(())
            }
            Event::Done { id, .. } => {
                if let Some(Use::Answer(true)) = connection.done(id) {
                    self.target.end(connection, Reason::ACCESS);
                }
                Ok(())
            }
            Event::Failed { id, .. } => self.failed(connection, id),
            Event::RegionAsked { id, access, len, .. } => connection.grant_region(id, access, len).map_err(refused),
            Event::RegionGranted { id, access, len, .. } => {
                let early = connection.region_granted(id, access, len).ok_or(Broken::Slot)?;
                early.into_iter().try_for_each(|slot| self.target.command(connection, slot))
            }
            Event::PutArrived { region, offset, len, .. } => match connection.arrived(region, offset, len)? {
                Some(slot) => self.target.command(connection, slot),
                None => Ok(()),
            },
            Event::RegionEnded { .. } => Err(Broken::Slot),
            Event::Connected { .. } | Event::Accepted { .. } | Event::Closed { .. } | Event::Fetched { .. } => Ok(()),
        }
    }

    fn failed(&self, connection: &Rc<Connection>, id: Id) -> Result<(), Broken> {
        let usage = connection.end_use(id);
        let place = connection.failed(id);
        match usage {
            None => {
                place.into_iter().for_each(|place| self.target.abort(connection, place));
                // Its response may have waited for the Transfer.
                connection.flush();
                Ok(())
            }
            // The initiator has ended a read of which it has the response.
            Some(Use::Sending(..)) => Ok(()),
            Some(Use::Login | Use::Answer(_) | Use::Response | Use::Commands | Use::Responses) => Err(Broken::Transfer),
        }
    }

    /// A login has arrived.
    fn login(&self, connection: &Rc<Connection>, bytes: &[u8]) {
        let Some(view) = self.view.borrow().clone() else { return };
        match Login::parse(bytes) {
            Ok(login) => {
                let (name, target) = (login.initiator.to_ascii_lowercase().into(), login.target.into());
                let depth = login.depth.clamp(1, DEPTH_MAX);
                self.decide(Candidate { connection: connection.clone(), name, target, depth });
            }
            Err(status) => self.refuse(connection, "", status, &view),
        }
    }

    /// Decides about a login; again, if it has waited for its turn.
    fn decide(&self, candidate: Candidate) {
        let Candidate { connection, name, target, depth } = &candidate;
        let Some(view) = self.view.borrow().clone().filter(|_| !connection.is_closed()) else { return };
        let group = match self.target.decide(connection, (name, target), &view) {
            Ok(group) => group,
            Err(status) => return self.refuse(connection, name, status, &view),
        };
        if self.target.turns.is_free(name) {
            self.target.admit(connection, (name.clone(), *depth), (&view, group), &shown(&self.spec));
            return connection.answer(LoginAnswer::new(LoginStatus::GOOD, *depth).as_bytes(), false);
        }
        let turn = self.target.turns.wait(name.clone(), connection.vc);
        let me = self.me.clone();
        self.core.reactor().spawn(async move {
            let outcome = turn.await;
            let Some(endpoint) = me.upgrade() else { return };
            match outcome {
                Outcome::Turn => endpoint.decide(candidate),
                Outcome::Replaced => endpoint.target.end(&candidate.connection, Reason::ABORTED),
                Outcome::Cancelled => {}
            }
        });
    }

    /// An initiator was refused.
    fn refuse(&self, connection: &Connection, name: &str, status: LoginStatus, view: &PortView) {
        connection.answer(LoginAnswer::new(status, 0).as_bytes(), true);
        let peer = connection.peer;
        let (code, why) = match status {
            LoginStatus::NOT_SHOWN => (RefusalCode::NotShown, "it belongs to no group"),
            LoginStatus::NO_TARGET => (RefusalCode::NoTarget, "it asks for another target"),
            LoginStatus::FULL => (RefusalCode::Full, "as many initiators as possible are logged in"),
            LoginStatus::STOPPING => (RefusalCode::Stopping, "Lunar is stopping"),
            LoginStatus::VERSION => (RefusalCode::Version, "it uses another version of the layout"),
            _ => (RefusalCode::Protocol, "its login is malformed"),
        };
        let stats = self.core.reactor().stats();
        stats.logins_refused.add(1);
        let name = if name.is_empty() { peer.to_string() } else { audit::shown(name) };
        stats.hosts.refused(WORD, code.word(), &view.target, &name);
        if self.refusals.borrow_mut().admit(ANYBODY, self.core.reactor().now()) {
            let words = format!("initiator {name} at {peer} cannot log in to target {}: {why}", view.target);
            self.core.common.notify(&name.into(), Some((code, &view.target)), &words);
        }
    }

    /// Ends all connections.
    pub(super) fn end_all(&self, reason: Reason) {
        self.target.connections().iter().for_each(|connection| self.target.end(connection, reason));
    }
}

impl PortEndpoint<StPorts> for Endpoint {
    fn start(core: &Rc<Core>, spec: LinkSpec, opened: OpenedPort) -> io::Result<Rc<Self>> {
        let endpoint = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            core: core.clone(),
            spec,
            target: SstTarget::new(core),
            port: RefCell::default(),
            view: RefCell::default(),
            refusals: RefCell::new(Rate::new(MINUTE, REFUSALS_MAX, REFUSALS_MAX)),
            closed: End::default(),
        });
        endpoint.attach(opened)?;
        let watched = endpoint.clone();
        core.reactor().spawn(async move { watched.keep_open().await });
        Ok(endpoint)
    }

    fn publish(&self, view: PortView) {
        let view = Rc::new(view);
        let before = self.view.replace(Some(view.clone()));
        match before {
            None => self.listen(),
            Some(before) if before.device != view.device => self.end_all(Reason::NONE),
            Some(_) => {}
        }
        // Logins of initiators that are in another group, or whose port has another number, begin again.
        for connection in self.target.sessions() {
            let is_same = connection.session().is_some_and(|session| {
                view.view_of(&session.name, address(connection.peer)).as_ref() == Some(&session.view)
                    && session.nexus.name.target_port == view.relative
            });
            if !is_same {
                self.target.end(&connection, Reason::NONE);
            }
        }
    }

    fn initiators(&self) -> usize {
        self.target.sessions().len()
    }

    fn in_progress(&self) -> usize {
        self.target.in_progress()
    }

    async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        for connection in self.target.sessions() {
            if connection.session().is_some_and(|session| ended.contains(&session.view.group)) {
                self.target.end(&connection, Reason::NONE);
            }
        }
        self.target.turns.until_all_ended().await;
    }

    async fn log_out(&self, name: &Arc<str>) -> bool {
        let is_it = |connection: &Rc<Connection>| connection.session().is_some_and(|session| session.name == *name);
        let Some(connection) = self.target.sessions().into_iter().find(is_it) else { return false };
        self.target.end(&connection, Reason::NONE);
        self.target.turns.until_ended(name).await;
        true
    }

    fn log_all_out(&self) {
        self.end_all(Reason::NONE);
    }

    async fn close(&self) {
        self.target.turns.close();
        self.end_all(Reason::NONE);
        self.target.turns.until_all_ended().await;
        if let Some(port) = self.current() {
            port.flushed(FAREWELL).await;
        }
        self.abandon();
    }

    fn abandon(&self) {
        self.closed.come();
        self.target.turns.close();
        self.end_all(Reason::NONE);
        self.report(None);
        if let Some(port) = self.port.take() {
            port.close();
        }
    }
}
