//! The registration of a port with the services of its fabric: one request at a time. The name server learns what the
//! port is, and the fabric controller that it wants to know of changes. An initiator then asks for other ports.

use crate::port::discovery::{Found, Identity};
use crate::port::{Outgoing, Route};
use crate::wire::els::{E_D_TOV, Els, LoginParameters};
use crate::wire::frame::{Address, Control, Header, Protocol, Routing, UNASSIGNED};
use crate::wire::names::PortId;
use crate::wire::services::{self, Directory, FEATURE_INITIATOR, FEATURE_TARGET};
use lunar_core::time::Instant;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The time in which a service answers, and the tries.
const ANSWER_TIME: Duration = Duration::from_millis(E_D_TOV as u64);
const TRIES: u32 = 5;
/// The time between two questions of an initiator for other ports.
const QUESTION_INTERVAL: Duration = Duration::from_secs(8);
/// The time for which a target that is registered has nothing to do.
const IDLE_TIME: Duration = Duration::from_secs(3600);
/// Identifiers of exchanges with services: others than those of commands of an initiator and of its queries.
const EXCHANGES: (u16, u16) = (0x4000, 0x7fff);
/// The symbolic name of ports and nodes, which the tools of switches show.
const SYMBOL: &str = concat!("Lunar ", env!("CARGO_PKG_VERSION"));

/// The requests, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Login,
    Types,
    Features,
    Node,
    PortSymbol,
    NodeSymbol,
    Changes,
    Ports,
}

const ORDER: [Request; 7] = [
    Request::Login,
    Request::Types,
    Request::Features,
    Request::Node,
    Request::PortSymbol,
    Request::NodeSymbol,
    Request::Changes,
];

impl Request {
    /// Whether the port is no use when it is refused. Without the others, operators see less.
    fn is_necessary(self) -> bool {
        matches!(self, Self::Login | Self::Types | Self::Changes)
    }

    fn service(self) -> PortId {
        match self {
            Self::Changes => PortId::FABRIC_CONTROLLER,
            _ => PortId::NAME_SERVER,
        }
    }
}

/// The state of the registration.
#[derive(Debug)]
pub struct Registration {
    /// The number of requests that were answered.
    answered: usize,
    /// The exchange of the request that is not answered; its tries.
    pending: Option<(u16, u32)>,
    /// When the request is sent, or sent again.
    deadline: Instant,
    ox_id: u16,
}

impl Registration {
    /// One that begins now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { answered: 0, pending: None, deadline: now, ox_id: EXCHANGES.0 }
    }

    /// Whether initiators can find the port.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.answered >= ORDER.len()
    }

    /// The time of the next tick.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    fn request(&self) -> Request {
        ORDER.get(self.answered).copied().unwrap_or(Request::Ports)
    }

    /// The fabric has changed: an initiator asks for ports.
    pub fn ask_again(&mut self, now: Instant) {
        if self.is_complete() && self.pending.is_none() {
            self.deadline = now;
        }
    }

    /// Sends what is due. Returns false when a service does not answer.
    pub fn tick(
        &mut self,
        now: Instant,
        own: &Identity,
        (id, route): (PortId, Route),
        out: &mut Vec<Outgoing>,
    ) -> bool {
        if now < self.deadline {
            return true;
        }
        let tries = self.pending.map_or(0, |(_, tries)| tries);
        if tries >= TRIES {
            return false;
        }
        if self.is_complete() && !own.functions.initiator {
            self.deadline = now + IDLE_TIME;
            return true;
        }
        let request = self.request();
        self.ox_id = if self.ox_id < EXCHANGES.1 { self.ox_id + 1 } else { EXCHANGES.0 };
        self.pending = Some((self.ox_id, tries + 1));
        self.deadline = now + ANSWER_TIME;
        let (features, names) = (own.functions, (own.name, own.node));
        let features =
            if features.target { FEATURE_TARGET } else { 0 } | if features.initiator { FEATURE_INITIATOR } else { 0 };
        let body = match request {
            Request::Login => LoginParameters::plogi(Els::PLOGI, names, own.payload).as_bytes().to_vec(),
            Request::Types => services::register_types(id),
            Request::Features => services::register_features(id, features),
            Request::Node => services::register_node(id, own.node),
            Request::PortSymbol => services::register_port_symbol(id, SYMBOL),
            Request::NodeSymbol => services::register_node_symbol(own.node, SYMBOL),
            Request::Changes => services::register_changes().to_vec(),
            Request::Ports => services::get_ports(own.payload),
        };
        let (routing, protocol) = match request {
            Request::Login | Request::Changes => (Routing::ELS_REQUEST, Protocol::ELS),
            _ => (Routing::CT_REQUEST, Protocol::CT),
        };
        let address = Address { source: id, destination: request.service(), ox_id: self.ox_id, rx_id: UNASSIGNED };
        let header = Header::new(routing, protocol, Control::REQUEST, address);
        out.push(Outgoing::fc(route, header, &body));
        true
    }

    /// Takes the answer of a service.
    pub fn answered(
        &mut self,
        header: &Header,
        payload: &[u8],
        (own, id): (&Identity, PortId),
        now: Instant,
        found: &mut Vec<Found>,
    ) {
        let request = self.request();
        let Some((_, tries)) = self.pending.filter(|(ox_id, _)| *ox_id == header.ox_id.get()) else { return };
        if header.source() != request.service() {
            return;
        }
        let answer = services::parse(payload).filter(|_| header.protocol == Protocol::CT.0);
        let is_accepted = match answer {
            Some((command, _)) => command == Directory::ACCEPT,
            None => header.protocol == Protocol::ELS.0 && payload.first() == Some(&Els::LS_ACC.0),
        };
        if !is_accepted && request.is_necessary() {
            // The service may be busy: the request is sent again later.
            self.pending = Some((UNASSIGNED, tries));
            return;
        }
        self.pending = None;
        if request == Request::Ports {
            self.deadline = now + QUESTION_INTERVAL;
            let others = answer.filter(|_| is_accepted).map(|(_, entries)| services::ports(entries));
            let others = others.into_iter().flatten().filter(|(other, name)| *other != id && *name != own.name);
            found.extend(others.map(|(other, name)| Found::Port(other, name)));
        } else {
            self.answered += 1;
            self.deadline = now;
        }
    }
}
