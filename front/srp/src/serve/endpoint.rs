//! A port on its socket or link: logins, and the information units of its channels.

use super::SrpPorts;
use super::channel::Channel;
use super::core::Core;
use super::sessions::{Session, Sessions};
use crate::directory::PortView;
use crate::limits::{CHANNELS_MAX, REFUSALS_MAX, REQUEST_LIMIT, UNACKNOWLEDGED, UNCREDITED, UNIT_MAX, UNIT_MIN};
use crate::names::PortId;
use crate::schema::WORD;
use crate::wire::{FORMATS, Login, LoginReject, LoginResponse, Multichannel, RejectReason, Unit};
use lunar_core::access::refusal::RefusalCode;
use lunar_core::port::NexusName;
use lunar_core::turn::Turns;
use lunar_engine::link_ports::{Outcome, PortEndpoint, PortSession, View};
use lunar_link::{MacAddress, Rate};
use lunar_rdma::address::PortAddress;
use lunar_rdma::engine::{Accept, ConnectionId, Ended, Event, NotAccepted};
use lunar_rdma::live;
use lunar_rdma::port::{Port, Upper};
use lunar_rdma::responder::Receives;
use lunar_rdma::socket::Opened;
use lunar_reactor::end::End;
use lunar_reactor::log;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The period of the rate of reported refusals.
const MINUTE: Duration = Duration::from_secs(60);

/// The rate is that of all refusals, not of one host.
const ANYBODY: MacAddress = MacAddress([0; 6]);

/// A port on its socket or link.
pub struct Endpoint {
    /// Itself, for its channels and tasks.
    me: Weak<Self>,
    pub(super) core: Rc<Core>,
    /// Where it is.
    address: PortAddress,
    port: RefCell<Option<Rc<Port>>>,
    /// `None` until a configuration is published: logins are rejected.
    view: RefCell<Option<Rc<PortView>>>,
    sessions: Sessions,
    channels: RefCell<HashMap<ConnectionId, Rc<Channel>>>,
    /// Task management functions in progress, and nexuses that end.
    pub(super) functions: Cell<usize>,
    refusals: RefCell<Rate>,
    closed: End,
}

/// Counts a function until this is dropped.
pub(super) struct Counted(Rc<Endpoint>);

impl Counted {
    pub(super) fn new(endpoint: &Rc<Endpoint>) -> Self {
        endpoint.functions.set(endpoint.functions.get() + 1);
        Self(endpoint.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.functions.set(self.0.functions.get() - 1);
    }
}

/// A login that is being decided about.
#[derive(Clone, Copy)]
struct Candidate {
    id: ConnectionId,
    peer: IpAddr,
    login: Login,
    /// A session of the initiator was ended for it.
    has_ended_another: bool,
}

impl Endpoint {
    fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("an endpoint is used through an Rc only")
    }

    fn attach(&self, opened: Opened) -> io::Result<()> {
        let (host, upper): (_, Weak<dyn Upper>) = (&self.core.common.shared.host, self.me.clone());
        // All ports of an address share its record.
        let record = host.state().port(&live::owner(&self.address));
        let port = Port::attach(self.core.reactor(), opened, host.seed(), record, upper)?;
        if let Some(view) = &*self.view.borrow() {
            serve(&port, view);
        }
        self.port.replace(Some(port));
        Ok(())
    }

    /// Its engine; `None`: the socket or link has failed.
    fn port(&self) -> Option<Rc<Port>> {
        self.port.borrow().clone()
    }

    /// An initiator requests a channel.
    fn request(&self, id: ConnectionId, peer: IpAddr, private: &[u8]) {
        match Login::parse(private) {
            Some(login) => self.login(Candidate { id, peer, login, has_ended_another: false }),
            None => self.port().into_iter().for_each(|port| port.with(|engine, _| engine.reject(id, &[]))),
        }
    }

    fn reject(&self, candidate: &Candidate, reason: RejectReason) {
        let reject = LoginReject::new(candidate.login.tag, reason);
        let port = self.port();
        port.into_iter().for_each(|port| port.with(|engine, _| engine.reject(candidate.id, reject.as_bytes())));
    }

    /// Decides about a login.
    fn login(&self, candidate: Candidate) {
        let view = self.view.borrow().clone().filter(|_| !self.core.draining.has_come() && !self.closed.has_come());
        let (Some(view), Some(port)) = (view, self.port()) else {
            return self.reject(&candidate, RejectReason::UNABLE);
        };
        let Candidate { id, login, .. } = candidate;
        if login.target != view.id {
            return self.refuse(&candidate, &view, RejectReason::UNKNOWN_PORT);
        }
        if login.unit_max < UNIT_MIN || login.unit_max as usize > UNIT_MAX {
            return self.reject(&candidate, RejectReason::UNIT_TOO_LARGE);
        }
        if login.formats & FORMATS == 0 {
            return self.reject(&candidate, RejectReason::UNSUPPORTED_FORMAT);
        }
        // Data is read from the memory of the initiator.
        if port.look(|engine| engine.reads(id)) == 0 {
            return self.reject(&candidate, RejectReason::UNABLE);
        }
        let Some(group) = view.view_of(login.initiator) else {
            return self.refuse(&candidate, &view, RejectReason::UNABLE);
        };
        let session = self.sessions.get(login.initiator);
        if let Some(session) = session.as_ref().filter(|_| login.is_another_channel) {
            if session.channels.borrow().len() >= CHANNELS_MAX {
                return self.reject(&candidate, RejectReason::CHANNEL_LIMIT);
            }
            if self.accept(&port, &candidate, Multichannel::MAINTAINED) {
                self.open(&port, &candidate, session);
            }
            return;
        }
        let has_ended_another = candidate.has_ended_another || session.is_some();
        session.iter().for_each(|session| self.end_session(session));
        if self.sessions.is_full() {
            return self.reject(&candidate, RejectReason::INSUFFICIENT_RESOURCES);
        }
        let candidate = Candidate { has_ended_another, ..candidate };
        if self.sessions.turns.is_free(&login.initiator) {
            return self.admit(&port, &candidate, (&view, group));
        }
        let turn = self.sessions.turns.wait(login.initiator, id);
        let endpoint = self.me();
        self.core.reactor().spawn(async move {
            match turn.await {
                Outcome::Turn => endpoint.login(candidate),
                // Of a connection that has ended, nothing is rejected.
                Outcome::Replaced | Outcome::Cancelled => endpoint.reject(&candidate, RejectReason::UNABLE),
            }
        });
    }

    /// An initiator is not admitted, and operators are told so.
    fn refuse(&self, candidate: &Candidate, view: &PortView, reason: RejectReason) {
        self.reject(candidate, reason);
        let (stats, name) = (self.core.reactor().stats(), candidate.login.initiator);
        stats.logins_refused.add(1);
        let (code, words) = match reason {
            RejectReason::UNKNOWN_PORT => (
                RefusalCode::NoTarget,
                format!(
                    "initiator {name} at {} asks for port {}, which is not that of SRP port {}: it has id_ext and \
                     ioc_guid {:016x}",
                    candidate.peer, candidate.login.target, view.name, view.guid
                ),
            ),
            _ => (
                RefusalCode::NotShown,
                format!(
                    "initiator {name} at {} belongs to no group of target {}: it cannot log in",
                    candidate.peer, view.target
                ),
            ),
        };
        stats.hosts.refused(WORD, code.word(), &view.target, &name.to_string());
        if self.refusals.borrow_mut().admit(ANYBODY, self.core.reactor().now()) {
            self.core.common.notify(&name, Some((code, &view.target)), &words);
        }
    }

    /// Begins a session.
    fn admit(&self, port: &Rc<Port>, candidate: &Candidate, (view, group): (&PortView, View)) {
        let before = if candidate.has_ended_another { Multichannel::TERMINATED } else { Multichannel::NEW };
        if !self.accept(port, candidate, before) {
            return;
        }
        let (reactor, target, name) = (self.core.reactor(), self.core.target(), candidate.login.initiator);
        let nexus_name = NexusName { initiator: name.to_string().into(), target_port: view.relative };
        let nexus = match &group.map {
            Some(map) => target.nexus_behind(nexus_name, map),
            None => target.nexus(nexus_name),
        };
        let stats = reactor.stats();
        // It is new, and has no counters.
        let _ = nexus.host.set(stats.hosts.session(WORD, &view.target, &name.to_string()));
        stats.sessions.add(1);
        stats.logins.add(1);
        let session = Rc::new(Session {
            name,
            view: group,
            section: view.name.clone(),
            nexus,
            memory: reactor.arena().join(candidate.peer),
            slots: self.core.slot_shares.join(candidate.peer),
            waiting: Cell::default(),
            descriptors: self.core.descriptor_shares.join(candidate.peer),
            starts: Turns::default(),
            channels: RefCell::default(),
        });
        self.open(port, candidate, &session);
        let listed = PortSession {
            since: reactor.now(),
            source: candidate.peer.to_string(),
            group: session.view.group.clone(),
            target: view.target.clone(),
        };
        self.sessions.insert(session.clone());
        self.core.common.sessions().insert((view.name.clone(), name), listed);
        let words = format!(
            "initiator {name} has logged in from {} at SRP port {} of target {}, group {}",
            candidate.peer, view.name, view.target, session.view.group
        );
        self.core.common.notify(&name, None, &words);
    }

    /// Accepts a login; returns whether it is accepted. An initiator that has given up meanwhile gets no answer.
    fn accept(&self, port: &Port, candidate: &Candidate, multichannel: Multichannel) -> bool {
        let response = LoginResponse::new(&candidate.login, REQUEST_LIMIT, UNIT_MAX, multichannel);
        let count = REQUEST_LIMIT as usize + UNCREDITED + UNACKNOWLEDGED;
        let receives = Receives { bytes: UNIT_MAX, count };
        let accept = Accept::new(response.as_bytes(), receives);
        let accepted = port.with(|engine, now| engine.accept(candidate.id, &accept, now));
        if accepted == Err(NotAccepted::NoRoom) {
            self.core.reactor().stats().logins_refused.add(1);
            self.reject(candidate, RejectReason::INSUFFICIENT_RESOURCES);
        }
        accepted.is_ok()
    }

    /// Begins a channel of a session.
    fn open(&self, port: &Rc<Port>, candidate: &Candidate, session: &Rc<Session>) {
        let id = candidate.id;
        session.channels.borrow_mut().insert(id);
        let channel = Channel::new((id, candidate.login.immediate_offset), session, self.core.reactor(), port);
        self.channels.borrow_mut().insert(id, channel);
    }

    /// Ends a session: its channels, and its nexus, whose commands are aborted.
    fn end_session(&self, session: &Rc<Session>) {
        for id in session.channels.take() {
            if let Some(channel) = self.channels.borrow_mut().remove(&id) {
                channel.transfers.close();
            }
            self.port().into_iter().for_each(|port| port.with(|engine, now| engine.disconnect(id, now)));
        }
        let is_same = |known: &Rc<Session>| Rc::ptr_eq(known, session);
        if self.sessions.get(session.name).as_ref().is_none_or(|known| !is_same(known)) {
            return;
        }
        self.sessions.remove(session.name);
        self.core.reactor().stats().sessions.sub(1);
        self.core.common.sessions().remove(&(session.section.clone(), session.name));
        let (endpoint, session, counted) = (self.me(), session.clone(), Counted::new(&self.me()));
        self.sessions.turns.end(self.core.reactor(), session.name, async move {
            let _counted = counted;
            endpoint.core.target().close(&session.nexus).await;
        });
    }

    /// The connection of a channel has ended.
    fn lost(&self, id: ConnectionId) {
        self.sessions.turns.cancel(&id);
        let removed = self.channels.borrow_mut().remove(&id);
        let Some(channel) = removed else { return };
        channel.transfers.close();
        let session = &channel.session;
        let is_last = {
            let mut channels = session.channels.borrow_mut();
            channels.remove(&id);
            channels.is_empty()
        };
        if is_last {
            self.end_session(session);
        }
    }

    /// Ends a channel.
    fn disconnect(&self, id: ConnectionId) {
        self.port().into_iter().for_each(|port| port.with(|engine, now| engine.disconnect(id, now)));
        self.lost(id);
    }

    pub(super) fn channel(&self, id: ConnectionId) -> Option<Rc<Channel>> {
        self.channels.borrow().get(&id).cloned()
    }

    fn report(&self, trouble: Option<String>) {
        if let Some(view) = &*self.view.borrow() {
            self.core.common.set_trouble(&view.name, trouble);
        }
    }

    /// Opens the socket or link again until that succeeds.
    async fn reopen(self: Rc<Self>) {
        let (address, reactor) = (&self.address, self.core.reactor());
        let attach = |opened| self.attach(opened);
        if self.core.common.open_again(address, (reactor, &self.closed), attach).await.is_some() {
            self.report(None);
            log!("the SRP port at {address} is open again");
        }
    }
}

impl PortEndpoint<SrpPorts> for Endpoint {
    fn start(core: &Rc<Core>, address: PortAddress, opened: Opened) -> io::Result<Rc<Self>> {
        let endpoint = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            core: core.clone(),
            address,
            port: RefCell::default(),
            view: RefCell::default(),
            sessions: Sessions::default(),
            channels: RefCell::default(),
            functions: Cell::default(),
            refusals: RefCell::new(Rate::new(MINUTE, REFUSALS_MAX, REFUSALS_MAX)),
            closed: End::default(),
        });
        endpoint.attach(opened)?;
        Ok(endpoint)
    }

    fn publish(&self, view: PortView) {
        let before = self.view.replace(Some(Rc::new(view.clone())));
        let is_same_port = before.is_some_and(|before| (before.id, &before.target) == (view.id, &view.target));
        if !is_same_port {
            self.log_all_out();
            self.port().iter().for_each(|port| serve(port, &view));
            return;
        }
        // Logins of initiators that are in another group, or whose port has another number, begin again.
        for session in self.sessions.all() {
            let is_same = view.view_of(session.name).as_ref() == Some(&session.view)
                && session.nexus.name.target_port == view.relative;
            if !is_same {
                self.end_session(&session);
            }
        }
    }

    fn initiators(&self) -> usize {
        self.sessions.count()
    }

    fn in_progress(&self) -> usize {
        let outstanding: usize = self.channels.borrow().values().map(|channel| channel.outstanding()).sum();
        outstanding + self.functions.get()
    }

    async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        for session in self.sessions.all() {
            if ended.contains(&session.view.group) {
                self.end_session(&session);
            }
        }
        self.sessions.turns.until_all_ended().await;
    }

    async fn log_out(&self, name: &PortId) -> bool {
        let Some(session) = self.sessions.get(*name) else { return false };
        self.end_session(&session);
        self.sessions.turns.until_ended(name).await;
        true
    }

    fn log_all_out(&self) {
        self.sessions.all().iter().for_each(|session| self.end_session(session));
    }

    async fn close(&self) {
        self.sessions.turns.close();
        self.log_all_out();
        self.sessions.turns.until_all_ended().await;
        // The last packets leave with the end of this turn.
        self.core.reactor().sleep(Duration::from_millis(1)).await;
        self.abandon();
    }

    fn abandon(&self) {
        self.closed.come();
        self.sessions.turns.close();
        self.log_all_out();
        self.report(None);
        self.port().into_iter().for_each(|port| port.close());
    }
}

/// Takes requests for the service of a port.
fn serve(port: &Port, view: &PortView) {
    port.serve(view.guid.to_be_bytes());
}

impl Upper for Endpoint {
    fn message(&self, id: ConnectionId, bytes: &[u8]) {
        let Some(channel) = self.channel(id) else { return };
        match Unit::parse(bytes, channel.immediate_offset) {
            Some(Unit::Command(command)) => self.me().command(&channel, &command),
            Some(Unit::TaskManagement(tag, lun, function, task)) => {
                self.me().task_management(&channel, (tag, lun), function, task);
            }
            Some(Unit::Answer) => channel.answered(),
            Some(Unit::Logout) => self.disconnect(id),
            None => {
                let name = channel.session.name;
                log!(error, "srp: initiator {name} has sent something that is no information unit: it is disconnected");
                self.disconnect(id);
            }
        }
    }

    fn event(&self, event: Event) {
        match event {
            Event::Request { id, peer, private } => self.request(id, peer, &private),
            Event::Read(id, completed) => {
                if let Some(channel) = self.channel(id) {
                    channel.transfers.read(completed);
                }
            }
            Event::Progress(id) => self.channel(id).into_iter().for_each(|channel| channel.transfers.progress()),
            Event::Closed(id, why) => {
                if let (Ended::Failed(why), Some(channel)) = (why, self.channel(id)) {
                    log!("srp: a channel of initiator {} has failed: {why:?}", channel.session.name);
                }
                self.lost(id);
            }
        }
    }

    fn trouble(&self, trouble: Option<String>) {
        self.report(trouble);
    }

    fn failed(&self) {
        let trouble = format!("the SRP port at {} has failed, and is opened again", self.address);
        log!(error, "{trouble}");
        self.report(Some(trouble));
        // Their connections are gone, and the numbers of these may be used again.
        self.sessions.turns.cancel_all();
        self.log_all_out();
        // It is free again when the last command that uses it has ended.
        self.port.take().into_iter().for_each(|port| port.close());
        self.core.reactor().spawn(self.me().reopen());
    }
}
