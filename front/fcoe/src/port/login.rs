//! Logins between ports: without a fabric, FLOGI in FIP, then PLOGI by the port with the larger name; in a fabric,
//! PLOGI by the initiator, which has found the target with the name server; then PRLI by the initiator. A target and an
//! initiator use the same state machine, which follows that of Linux.

pub use super::discovery::Admits;
use super::discovery::{Discovery, Found, Identity};
use super::fabric::{Fabric, FabricNews};
use super::network::Network;
use super::{Outgoing, Route};
use crate::limits::{NEIGHBOURS_MAX, SERVICES_MAX, STRANGER_MAX, STRANGERS_MAX};
use crate::wire::els::{
    Adisc, Bare, E_D_TOV, ESTABLISH, Els, Explanation, INITIATOR, LoginParameters, Logo, Prli, PrliResponse,
    READ_WITHOUT_READY, RETRY, Reason, Reject, RtvAccept, TARGET,
};
use crate::wire::fip::{Functions, Kind, LinkService, Message, Neighbour, Operation, link_service};
use crate::wire::frame::{
    Address, Control, HEADER_LEN, Header, PAYLOAD_MAX, PAYLOAD_MIN, Protocol, Received, Routing, UNASSIGNED,
};
use crate::wire::names::{PortId, Wwn};
use crate::wire::services::{Changed, changes};
use lunar_core::time::Instant;
use lunar_link::{MacAddress, Rate};
use std::collections::BTreeMap;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The time in which a link service is answered.
const ANSWER_TIME: Duration = Duration::from_millis(E_D_TOV as u64);
/// How often a request is sent before the login waits for the next beacon of its port.
const TRIES: u32 = 3;
/// The time between two requests to a port to log out that has not logged in.
const LOGOUT_INTERVAL: Duration = Duration::from_secs(1);

/// The steps of a login.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// Nothing was sent, or the last try has failed: the login waits for a beacon.
    Idle,
    /// FLOGI was sent.
    Flogi,
    /// The other port, whose name is larger, sends PLOGI.
    AwaitsPlogi,
    /// PLOGI was sent.
    Plogi,
    /// The ports are logged in; the initiator sends PRLI, or has sent it.
    LoggedIn,
    /// The processes are logged in: commands may be sent.
    Ready,
}

/// A request that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    service: Els,
    ox_id: u16,
    tries: u32,
    deadline: Instant,
}

/// Another port.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The port.
    pub port: Neighbour,
    /// The step of its login.
    pub step: Step,
    /// The most bytes of a payload that it receives.
    pub payload: usize,
    pending: Option<Pending>,
    /// When it was asked to log out.
    asked: Option<Instant>,
}

/// The end or the beginning of a login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoginEvent {
    /// The port has this identifier.
    Up(PortId),
    /// The port may log in at processes: commands may be exchanged. A login that there was before is void.
    Ready(PortId),
    /// The login is void: all its commands end.
    Ended(PortId),
    /// A port of this name may not log in.
    Refused(Wwn),
    /// The login at the fabric has changed.
    Fabric(FabricNews),
}

/// Results of a call: frames to send, and what has happened.
#[derive(Debug, Default)]
pub struct Output {
    /// Frames.
    pub frames: Vec<Outgoing>,
    /// Events.
    pub events: Vec<LoginEvent>,
}

/// The logins of a port.
#[derive(Debug)]
pub struct Logins {
    network: Network,
    remotes: BTreeMap<PortId, Remote>,
    /// No request is due before this time. It is asked for with each frame, and computed with each tick.
    due: Option<Instant>,
    found: Vec<Found>,
    ox_id: u16,
    strangers: Rate,
    services: Rate,
}

/// The answer to a link service.
enum Answer {
    /// This payload.
    Accept(Vec<u8>),
    /// LS_RJT.
    Reject(Reason, Explanation),
    /// None.
    Silence,
}

impl Answer {
    fn accept(payload: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        Self::Accept(payload.as_bytes().to_vec())
    }

    fn payload(self) -> Option<Vec<u8>> {
        match self {
            Self::Accept(payload) => Some(payload),
            Self::Reject(reason, explanation) => Some(Reject::new(reason, explanation).as_bytes().to_vec()),
            Self::Silence => None,
        }
    }
}

impl Logins {
    /// The logins of a port without a fabric that begins now.
    #[must_use]
    pub fn new(own: Identity, seed: u64, now: Instant) -> Self {
        Self::of(Network::Neighbours(Discovery::new(own, seed, now)))
    }

    /// The logins of a port of a fabric that begins now. `has_vlan`: the VLAN is configured.
    #[must_use]
    pub fn in_fabric(own: Identity, has_vlan: bool, seed: u64, now: Instant) -> Self {
        Self::of(Network::Fabric(Fabric::new(own, has_vlan, seed, now)))
    }

    fn of(network: Network) -> Self {
        let second = Duration::from_secs(1);
        Self {
            network,
            remotes: BTreeMap::new(),
            due: None,
            found: Vec::new(),
            ox_id: 0,
            strangers: Rate::new(second, STRANGERS_MAX, STRANGER_MAX),
            services: Rate::new(second, SERVICES_MAX, SERVICES_MAX),
        }
    }

    /// The network of this port.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// This port.
    #[must_use]
    pub fn own(&self) -> &Identity {
        self.network.own()
    }

    /// The identifier of this port.
    #[must_use]
    pub fn id(&self) -> Option<PortId> {
        self.network.id()
    }

    /// Another port.
    #[must_use]
    pub fn remote(&self, id: PortId) -> Option<&Remote> {
        self.remotes.get(&id)
    }

    /// All other ports.
    pub fn remotes(&self) -> impl Iterator<Item = &Remote> {
        self.remotes.values()
    }

    /// The time of the next tick.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let network = self.network.deadline();
        self.due.map_or(network, |due| due.min(network))
    }

    fn names(&self) -> (Wwn, Wwn) {
        (self.own().name, self.own().node)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, admits: Admits<'_>, out: &mut Output) {
        let mut found = std::mem::take(&mut self.found);
        self.network.tick(now, &mut out.frames, &mut found);
        self.follow(&mut found, now, admits, out);
        self.found = found;
        let late = |remote: &&Remote| remote.pending.is_some_and(|pending| pending.deadline <= now);
        let late: Vec<PortId> = self.remotes.values().filter(late).map(|remote| remote.port.id).collect();
        for id in late {
            self.repeat(id, now, out);
        }
        self.due = self.remotes.values().filter_map(|remote| Some(remote.pending?.deadline)).min();
    }

    /// Sends a request again that was not answered, or gives the login up.
    fn repeat(&mut self, id: PortId, now: Instant, out: &mut Output) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let Some(pending) = remote.pending.take() else { return };
        if pending.tries >= TRIES && pending.service == Els::ADISC {
            return self.forget(id, out);
        }
        if pending.tries >= TRIES || pending.service == Els::LOGO {
            // A PRLI of ours that fails leaves the ports logged in.
            if remote.step != Step::Ready {
                remote.step = Step::Idle;
            }
            return;
        }
        self.request(id, pending.service, pending.tries + 1, now, out);
    }

    /// Takes what discovery has found.
    fn follow(&mut self, found: &mut Vec<Found>, now: Instant, admits: Admits<'_>, out: &mut Output) {
        for found in found.drain(..) {
            match found {
                Found::Up(id) => out.events.push(LoginEvent::Up(id)),
                Found::Down => {
                    let ids: Vec<PortId> = self.remotes.keys().copied().collect();
                    ids.into_iter().for_each(|id| self.forget(id, out));
                }
                Found::Gone(id) => self.forget(id, out),
                Found::Beacon(id) => self.meet(id, now, admits, out),
                Found::Port(id, name) => self.visit(id, name, now, admits, out),
                Found::Fabric(news) => out.events.push(LoginEvent::Fabric(news)),
            }
        }
    }

    /// Ends a login, and forgets the port.
    fn forget(&mut self, id: PortId, out: &mut Output) {
        self.end(id, Step::Idle, out);
        self.remotes.remove(&id);
    }

    /// Ends the login of the process, if there is one, and goes to this step.
    fn end(&mut self, id: PortId, step: Step, out: &mut Output) {
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        if remote.step == Step::Ready {
            out.events.push(LoginEvent::Ended(id));
        }
        remote.step = step;
        remote.pending = None;
        self.network.keep(id, step == Step::Ready);
    }

    /// The remote port of this identifier, if discovery knows it, or a login in a fabric.
    fn known(&mut self, id: PortId) -> Option<&mut Remote> {
        let Network::Neighbours(discovery) = &self.network else { return self.remotes.get_mut(&id) };
        let port = discovery.neighbour(id)?.port;
        let remote = self.remotes.entry(id).or_insert_with(|| Remote {
            port,
            step: Step::Idle,
            payload: PAYLOAD_MIN,
            pending: None,
            asked: None,
        });
        Some(remote)
    }

    /// A port of the fabric has this identifier and these names from now on.
    fn settle(&mut self, id: PortId, (name, node): (Wwn, Wwn), out: &mut Output) {
        let Some(route) = self.network.route(id) else { return };
        let is_other = |remote: &&Remote| (remote.port.id == id) != (remote.port.name == name);
        let others: Vec<PortId> = self.remotes.values().filter(is_other).map(|remote| remote.port.id).collect();
        // The identifier belonged to another port, or the port had another identifier.
        others.into_iter().for_each(|other| self.forget(other, out));
        if !self.remotes.contains_key(&id) && self.remotes.len() >= NEIGHBOURS_MAX {
            let idle = self.remotes.values().find(|remote| remote.step < Step::LoggedIn).map(|remote| remote.port.id);
            match idle {
                Some(idle) => self.forget(idle, out),
                None => return,
            }
        }
        let port = Neighbour { station: route.to, node, name, id };
        let new = Remote { port, step: Step::Idle, payload: PAYLOAD_MIN, pending: None, asked: None };
        self.remotes.entry(id).or_insert(new);
    }

    /// The fabric has a target of this name, maybe: an initiator logs in, unless it has.
    fn visit(&mut self, id: PortId, name: Wwn, now: Instant, admits: Admits<'_>, out: &mut Output) {
        if !self.own().functions.initiator || !admits(name) || !id.is_fabric_port() {
            return;
        }
        self.settle(id, (name, Wwn(0)), out);
        let idle = self.remotes.get(&id).filter(|remote| remote.pending.is_none()).map(|remote| remote.step);
        match idle {
            Some(Step::Idle) => self.request(id, Els::PLOGI, 1, now, out),
            // PRLI was not answered.
            Some(Step::LoggedIn) => self.request(id, Els::PRLI, 1, now, out),
            _ => {}
        }
    }

    /// A neighbour has sent a beacon: the login begins, unless it has begun.
    fn meet(&mut self, id: PortId, now: Instant, admits: Admits<'_>, out: &mut Output) {
        let Network::Neighbours(discovery) = &self.network else { return };
        let Some(known) = discovery.neighbour(id) else { return };
        let (own, name) = (self.own().functions, known.port.name);
        // Targets do not log in to each other, and neither do initiators.
        let fits = known
            .functions
            .is_none_or(|other: Functions| own.target && other.initiator || own.initiator && other.target);
        if !fits {
            return;
        }
        if !admits(name) {
            return out.events.push(LoginEvent::Refused(name));
        }
        let Some(remote) = self.known(id) else { return };
        if remote.step == Step::Idle && remote.pending.is_none() {
            self.request(id, Els::FLOGI, 1, now, out);
        }
    }

    /// Sends a request, and goes to its step.
    fn request(&mut self, id: PortId, service: Els, tries: u32, now: Instant, out: &mut Output) {
        let names = self.names();
        let payload = self.own().payload;
        let (Some(source), Some(route)) = (self.id(), self.network.route(id)) else { return };
        self.ox_id = self.ox_id.wrapping_add(1) % UNASSIGNED;
        let ox_id = self.ox_id;
        let functions = self.own().functions;
        let body = match service {
            Els::FLOGI => LoginParameters::flogi(Els::FLOGI, names, payload).as_bytes().to_vec(),
            Els::PLOGI => LoginParameters::plogi(Els::PLOGI, names, payload).as_bytes().to_vec(),
            Els::LOGO => Logo::new(source, names.0).as_bytes().to_vec(),
            Els::ADISC => Adisc::new(Els::ADISC, names, source).as_bytes().to_vec(),
            _ => Prli::new(Els::PRLI, ESTABLISH, parameters(functions)).as_bytes().to_vec(),
        };
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let deadline = now + ANSWER_TIME;
        remote.pending = Some(Pending { service, ox_id, tries, deadline });
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
        remote.step = match service {
            Els::FLOGI => Step::Flogi,
            Els::PLOGI => Step::Plogi,
            _ => remote.step,
        };
        let station = remote.port.station;
        let address = Address { source, destination: id, ox_id, rx_id: UNASSIGNED };
        let header = Header::new(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, address);
        let kind = match service {
            Els::FLOGI => Some(Kind::FLOGI),
            // In a fabric, only the login at the fabric is in FIP.
            Els::LOGO if matches!(self.network, Network::Neighbours(_)) => Some(Kind::LOGO),
            _ => None,
        };
        out.frames.push(match kind {
            Some(kind) => self.in_fip(Operation::LINK_SERVICE_REQUEST, kind, (header, &body), station),
            None => Outgoing::fc(route, header, &body),
        });
    }

    /// A link service in FIP.
    fn in_fip(&self, operation: Operation, kind: Kind, (header, body): (Header, &[u8]), to: MacAddress) -> Outgoing {
        let frame = [header.as_bytes(), body].concat();
        let is_rejection = body.first() == Some(&Els::LS_RJT.0);
        let mac = (!is_rejection).then(|| header.source().mac());
        let route = Route { to, from: self.own().station };
        Outgoing::fip(route, link_service(operation, kind, &frame, mac))
    }

    /// Goes on after FLOGI: the port with the larger name sends PLOGI.
    fn after_flogi(&mut self, id: PortId, now: Instant, out: &mut Output) {
        let own = self.own().name;
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        remote.pending = None;
        if own > remote.port.name {
            self.request(id, Els::PLOGI, 1, now, out);
        } else {
            remote.step = Step::AwaitsPlogi;
        }
    }

    /// The ports are logged in.
    fn after_plogi(&mut self, id: PortId, payload: usize, now: Instant, out: &mut Output) {
        self.end(id, Step::LoggedIn, out);
        let is_initiator = self.own().functions.initiator;
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        remote.payload = payload;
        if is_initiator {
            self.request(id, Els::PRLI, 1, now, out);
        }
    }

    /// Takes a message of FIP from a station.
    pub fn receive_fip(
        &mut self,
        (source, bytes): (MacAddress, &[u8]),
        now: Instant,
        admits: Admits<'_>,
        out: &mut Output,
    ) {
        let Some(message) = Message::parse(bytes) else { return };
        let mut found = std::mem::take(&mut self.found);
        match (&mut self.network, message) {
            (Network::Fabric(fabric), message) => {
                fabric.receive_fip((source, &message), now, &mut out.frames, &mut found);
            }
            (Network::Neighbours(discovery), Message::Announcement(operation, announced)) => {
                // Answers go to the station: it must be the sender.
                let port = &announced.port;
                if source == port.station || operation == Operation::BEACON && source == port.id.mac() {
                    discovery.receive((operation, &announced), (now, admits), &mut out.frames, &mut found);
                }
            }
            (Network::Neighbours(_), Message::LinkService(operation, service)) => {
                self.receive_service(source, (operation, &service), now, admits, out);
            }
            // Messages of switches and to them.
            _ => {}
        }
        self.follow(&mut found, now, admits, out);
        self.found = found;
    }

    fn receive_service(
        &mut self,
        source: MacAddress,
        (operation, service): (Operation, &LinkService<'_>),
        now: Instant,
        admits: Admits<'_>,
        out: &mut Output,
    ) {
        let Ok((header, payload)) = Header::ref_from_prefix(service.frame) else { return };
        let (Some(own), Some(command)) = (self.id(), payload.first()) else { return };
        let from = header.source();
        let Network::Neighbours(discovery) = &self.network else { return };
        let is_theirs = discovery.neighbour(from).is_none_or(|known| known.port.station == source);
        if header.destination() != own || header.protocol != Protocol::ELS.0 || !is_theirs {
            return;
        }
        if operation == Operation::LINK_SERVICE_REPLY {
            return self.answered(header, payload, now, out);
        }
        if !self.strangers.admit(source, now) {
            return;
        }
        let answer = match (service.kind, Els(*command)) {
            (Kind::FLOGI, Els::FLOGI) => self.flogi(from, payload, admits, out),
            (Kind::LOGO, Els::LOGO) => {
                self.end(from, Step::Idle, out);
                (Answer::accept(&Bare::new(Els::LS_ACC)), false)
            }
            _ => (Answer::Reject(Reason::UNSUPPORTED, Explanation::UNSUPPORTED), false),
        };
        let (answer, goes_on) = answer;
        if let Some(body) = answer.payload() {
            let header = reply(header, own);
            let frame = self.in_fip(Operation::LINK_SERVICE_REPLY, service.kind, (header, &body), source);
            out.frames.push(frame);
        }
        if goes_on {
            self.after_flogi(from, now, out);
        }
    }

    /// FLOGI of another port: the answer, and whether the login goes on.
    fn flogi(&mut self, id: PortId, payload: &[u8], admits: Admits<'_>, out: &mut Output) -> (Answer, bool) {
        let Ok((login, _)) = LoginParameters::ref_from_prefix(payload) else {
            return (Answer::Reject(Reason::LOGICAL_ERROR, Explanation::NONE), false);
        };
        let Network::Neighbours(discovery) = &self.network else { return (Answer::Silence, false) };
        let Some(known) = discovery.neighbour(id).filter(|known| known.port.name == login.names().0) else {
            // It will know this port after a claim.
            return (Answer::Reject(Reason::FIP, Explanation::NOT_NEIGHBOUR), false);
        };
        let name = known.port.name;
        if login.is_fabric() {
            return (Answer::Reject(Reason::LOGICAL_ERROR, Explanation::NONE), false);
        }
        if !admits(name) {
            out.events.push(LoginEvent::Refused(name));
            return (Answer::Reject(Reason::UNABLE, Explanation::NONE), false);
        }
        let accept = LoginParameters::flogi(Els::LS_ACC, self.names(), self.own().payload);
        let Some(remote) = self.known(id) else { return (Answer::Silence, false) };
        let goes_on = match remote.step {
            // The answer to the FLOGI of this port is on its way.
            Step::Flogi => false,
            Step::Idle | Step::AwaitsPlogi | Step::Plogi => true,
            // The port has started again.
            Step::LoggedIn | Step::Ready => {
                self.end(id, Step::Idle, out);
                true
            }
        };
        (Answer::accept(&accept), goes_on)
    }

    /// Takes a frame with an extended link service. Returns false when it is about an exchange: then nothing was done.
    pub fn receive_els(&mut self, frame: &Received<'_>, now: Instant, admits: Admits<'_>, out: &mut Output) -> bool {
        let (header, payload) = (frame.header, frame.payload);
        let (Some(own), Some(command)) = (self.id(), payload.first()) else { return true };
        if !frame.is_first || !frame.is_last {
            return true;
        }
        if matches!(self.network, Network::Fabric(_)) && !header.source().is_fabric_port() {
            self.receive_of_fabric(frame, now, admits, out);
            return true;
        }
        if header.routing() == Routing::ELS_REPLY {
            self.answered(header, payload, now, out);
            return true;
        }
        if header.routing() != Routing::ELS_REQUEST {
            return true;
        }
        let (from, command) = (header.source(), Els(*command));
        let step = self.remotes.get(&from).map(|remote| remote.step);
        let is_logged_in = step.is_some_and(|step| step >= Step::LoggedIn);
        if is_logged_in && matches!(command, Els::REC | Els::RRQ) {
            return false;
        }
        let rate = if is_logged_in { &mut self.services } else { &mut self.strangers };
        if !rate.admit(from.mac(), now) {
            return true;
        }
        let mut goes_on = None;
        let answer = match command {
            Els::PLOGI => self.plogi(from, payload, &mut goes_on, admits, out),
            Els::LOGO => {
                self.end(from, Step::Idle, out);
                Answer::accept(&Bare::new(Els::LS_ACC))
            }
            _ if !is_logged_in => Answer::Reject(Reason::UNABLE, Explanation::PLOGI_REQUIRED),
            Els::PRLI => self.prli(from, payload, out),
            Els::PRLO => {
                self.end(from, Step::LoggedIn, out);
                let accept = Prli::parse(payload).map(|prli| Prli::new(Els::LS_ACC, 1, prli.page.parameters.get()));
                accept.map_or(INVALID_LENGTH, |accept| Answer::accept(&accept))
            }
            Els::ADISC => Answer::accept(&Adisc::new(Els::LS_ACC, self.names(), own)),
            Els::RTV => Answer::accept(&RtvAccept::new()),
            _ => Answer::Reject(Reason::UNSUPPORTED, Explanation::UNSUPPORTED),
        };
        if let (Some(body), Some(route)) = (answer.payload(), self.network.route(from)) {
            out.frames.push(Outgoing::fc(route, reply(header, own), &body));
        }
        if let Some(payload) = goes_on {
            self.after_plogi(from, payload, now, out);
        }
        true
    }

    /// Takes a frame of a service of the fabric: an answer to the registration, or a change of the fabric.
    pub fn receive_of_fabric(&mut self, frame: &Received<'_>, now: Instant, admits: Admits<'_>, out: &mut Output) {
        let (header, payload) = (frame.header, frame.payload);
        let (Some(own), Network::Fabric(fabric)) = (self.network.id(), &mut self.network) else { return };
        // Lists with more entries than a frame has room for are not asked for.
        if !frame.is_first || !frame.is_last {
            return;
        }
        let mut found = std::mem::take(&mut self.found);
        if matches!(header.routing(), Routing::ELS_REPLY | Routing::CT_REPLY) {
            fabric.service_answered((header, payload), now, &mut out.frames, &mut found);
            self.follow(&mut found, now, admits, out);
        } else if header.routing() == Routing::ELS_REQUEST && self.services.admit(header.source().mac(), now) {
            let from = header.source();
            let is_accepted = match payload.first().map(|command| Els(*command)) {
                Some(Els::LOGO) => true,
                Some(Els::RSCN) if from == PortId::FABRIC_CONTROLLER => changes(payload).is_some(),
                _ => false,
            };
            let answer = match is_accepted {
                true => Answer::accept(&Bare::new(Els::LS_ACC)),
                false => Answer::Reject(Reason::UNSUPPORTED, Explanation::UNSUPPORTED),
            };
            if let (Some(body), Some(route)) = (answer.payload(), fabric.route()) {
                out.frames.push(Outgoing::fc(route, reply(header, own), &body));
            }
            match payload.first().map(|command| Els(*command)) {
                Some(Els::LOGO) if from == PortId::FABRIC_PORT => fabric.logged_out(now, &mut found),
                Some(Els::LOGO) if from == PortId::NAME_SERVER => fabric.register_again(true, now),
                Some(Els::RSCN) if is_accepted => {
                    fabric.register_again(false, now);
                    let changed: Vec<Changed> = changes(payload).into_iter().flatten().collect();
                    self.verify(&changed, now, out);
                }
                _ => {}
            }
            self.follow(&mut found, now, admits, out);
        }
        self.found = found;
    }

    /// These ports have changed: those that are logged in are asked whether they still are.
    fn verify(&mut self, changed: &[Changed], now: Instant, out: &mut Output) {
        let is_unsure = |remote: &&Remote| {
            let is_changed = changed.iter().any(|changed| changed.has(remote.port.id));
            is_changed && remote.step >= Step::LoggedIn && remote.pending.is_none()
        };
        let unsure: Vec<PortId> = self.remotes.values().filter(is_unsure).map(|remote| remote.port.id).collect();
        unsure.into_iter().for_each(|id| self.request(id, Els::ADISC, 1, now, out));
    }

    /// PLOGI of another port: the answer, and the size of payloads with which the login goes on.
    fn plogi(
        &mut self,
        id: PortId,
        payload: &[u8],
        goes_on: &mut Option<usize>,
        admits: Admits<'_>,
        out: &mut Output,
    ) -> Answer {
        let (own, names, size) = (self.own().name, self.names(), self.own().payload);
        let Ok((login, _)) = LoginParameters::ref_from_prefix(payload) else {
            return Answer::Reject(Reason::LOGICAL_ERROR, Explanation::NONE);
        };
        let theirs = login.payload();
        if matches!(self.network, Network::Fabric(_)) {
            let names = login.names();
            if !admits(names.0) {
                out.events.push(LoginEvent::Refused(names.0));
                return Answer::Reject(Reason::UNABLE, Explanation::NONE);
            }
            self.settle(id, names, out);
        }
        let Some(remote) = self.known(id).filter(|remote| remote.port.name == login.names().0) else {
            return Answer::Reject(Reason::UNABLE, Explanation::NOT_NEIGHBOUR);
        };
        let (name, step) = (remote.port.name, remote.step);
        if !admits(name) {
            out.events.push(LoginEvent::Refused(name));
            return Answer::Reject(Reason::UNABLE, Explanation::NONE);
        }
        match step {
            Step::Flogi => return Answer::Reject(Reason::BUSY, Explanation::NONE),
            Step::Plogi if own > name => return Answer::Reject(Reason::IN_PROGRESS, Explanation::NONE),
            _ => {}
        }
        if theirs < PAYLOAD_MIN {
            return Answer::Reject(Reason::LOGICAL_ERROR, Explanation::NONE);
        }
        *goes_on = Some(theirs.min(PAYLOAD_MAX));
        Answer::accept(&LoginParameters::plogi(Els::LS_ACC, names, size))
    }

    /// PRLI of another port.
    fn prli(&mut self, id: PortId, payload: &[u8], out: &mut Output) -> Answer {
        let functions = self.own().functions;
        let Some(prli) = Prli::parse(payload) else { return INVALID_LENGTH };
        // An initiator tells other ports what it is, and takes no commands.
        let (code, is_paired) = if functions.target { prli.answer() } else { (PrliResponse::EXECUTED, false) };
        let established = if is_paired || !functions.target { prli.page.flags & ESTABLISH } else { 0 };
        if is_paired {
            // Tasks of an earlier login end.
            self.end(id, Step::Ready, out);
            out.events.push(LoginEvent::Ready(id));
        }
        Answer::accept(&Prli::new(Els::LS_ACC, established | code.0, parameters(functions)))
    }

    /// Takes the answer to a request of this port.
    fn answered(&mut self, header: &Header, payload: &[u8], now: Instant, out: &mut Output) {
        let id = header.source();
        let Some(remote) = self.remotes.get_mut(&id) else { return };
        let Some(pending) = remote.pending.filter(|pending| pending.ox_id == header.ox_id.get()) else { return };
        let is_accepted = payload.first() == Some(&Els::LS_ACC.0);
        remote.pending = None;
        if pending.service == Els::LOGO {
            return;
        }
        if pending.service == Els::ADISC {
            let accept = Adisc::ref_from_prefix(payload).ok().filter(|_| is_accepted);
            let is_same = accept.is_some_and(|(accept, _)| accept.names().0 == remote.port.name);
            if !is_same {
                self.forget(id, out);
            }
            return;
        }
        if !is_accepted {
            let reason = Reject::ref_from_prefix(payload).map(|(reject, _)| Reason(reject.reason));
            // The other port has sent one itself; its beacon begins the login again otherwise.
            let is_crossing = pending.service == Els::PLOGI && reason == Ok(Reason::IN_PROGRESS);
            remote.step = if is_crossing { Step::AwaitsPlogi } else { Step::Idle };
            return;
        }
        match pending.service {
            Els::FLOGI => self.after_flogi(id, now, out),
            Els::PLOGI => match LoginParameters::ref_from_prefix(payload) {
                Ok((login, _)) if login.payload() >= PAYLOAD_MIN && login.names().0 == remote.port.name => {
                    self.after_plogi(id, login.payload().min(PAYLOAD_MAX), now, out);
                }
                _ => remote.step = Step::Idle,
            },
            Els::PRLI => {
                let is_paired = Prli::parse(payload).is_some_and(|prli| {
                    prli.page.flags == ESTABLISH | PrliResponse::EXECUTED.0 && prli.page.parameters.get() & TARGET != 0
                });
                if is_paired {
                    remote.step = Step::Ready;
                    self.network.keep(id, true);
                    out.events.push(LoginEvent::Ready(id));
                }
            }
            _ => {}
        }
    }

    /// Logs a port out: it may log in again, with its next beacon.
    pub fn log_out(&mut self, id: PortId, now: Instant, out: &mut Output) {
        self.end(id, Step::Idle, out);
        self.request(id, Els::LOGO, 1, now, out);
    }

    /// A port that is not logged in has sent a command: it is asked to log out, so that it logs in again.
    pub fn ask_to_log_out(&mut self, id: PortId, now: Instant, out: &mut Output) {
        if let (Network::Fabric(fabric), None) = (&self.network, self.remotes.get(&id)) {
            // It has logged in before this port started.
            let (Some(source), Some(route)) = (fabric.id(), fabric.route()) else { return };
            if self.strangers.admit(id.mac(), now) {
                self.ox_id = self.ox_id.wrapping_add(1) % UNASSIGNED;
                let address = Address { source, destination: id, ox_id: self.ox_id, rx_id: UNASSIGNED };
                let header = Header::new(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, address);
                out.frames.push(Outgoing::fc(route, header, Logo::new(source, self.own().name).as_bytes()));
            }
            return;
        }
        let Some(remote) = self.known(id) else { return };
        let is_due = remote.asked.is_none_or(|before| now.since(before) >= LOGOUT_INTERVAL);
        if is_due && remote.pending.is_none() {
            remote.asked = Some(now);
            self.request(id, Els::LOGO, 1, now, out);
        }
    }

    /// Leaves the fabric. Ports without one have logged out.
    pub fn leave(&mut self, now: Instant, admits: Admits<'_>, out: &mut Output) {
        if let Network::Fabric(fabric) = &mut self.network {
            let mut found = std::mem::take(&mut self.found);
            fabric.leave(now, &mut out.frames, &mut found);
            self.follow(&mut found, now, admits, out);
            self.found = found;
        }
    }

    /// Ends the logins of ports that may not log in any more, and begins those of others that may now.
    pub fn review(&mut self, now: Instant, admits: Admits<'_>, out: &mut Output) {
        let left: Vec<PortId> =
            self.remotes.values().filter(|remote| !admits(remote.port.name)).map(|remote| remote.port.id).collect();
        for id in left {
            if self.remotes.get(&id).is_some_and(|remote| remote.step >= Step::LoggedIn) {
                self.log_out(id, now, out);
            }
            self.end(id, Step::Idle, out);
        }
    }
}

const INVALID_LENGTH: Answer = Answer::Reject(Reason::PROTOCOL_ERROR, Explanation::INVALID_LENGTH);

/// The service parameters of PRLI.
fn parameters(functions: Functions) -> u32 {
    let target = if functions.target { TARGET } else { 0 };
    target | if functions.initiator { INITIATOR } else { 0 } | READ_WITHOUT_READY | RETRY
}

/// The header of the answer to a request.
fn reply(request: &Header, own: PortId) -> Header {
    let address = Address {
        source: own,
        destination: request.source(),
        ox_id: request.ox_id.get(),
        // An answer ends its exchange: no identifier is needed.
        rx_id: UNASSIGNED,
    };
    Header::new(Routing::ELS_REPLY, Protocol::ELS, Control::REPLY, address)
}

/// The most bytes of a link service in FIP are those of a login.
const _: () = assert!(HEADER_LEN + size_of::<LoginParameters>() < 255 * 4);
