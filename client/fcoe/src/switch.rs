//! A small Fibre Channel switch (FCF) for tests, without I/O: frames of its links and the time in, frames out. It
//! advertises itself, grants addresses, supervises keep-alives, has a name server, reports changes, and forwards
//! frames.

use lunar_core::time::Instant;
use lunar_fcoe::port::{Outgoing, Route};
use lunar_fcoe::wire::els::{Bare, Els, Explanation, LoginParameters, Reason, Reject};
use lunar_fcoe::wire::fip::fabric::{self, ALL_STATIONS, ALL_SWITCHES, Advertisement, DEFAULT_MAP};
use lunar_fcoe::wire::fip::{self, Kind, LinkService, Message, Neighbour, Operation};
use lunar_fcoe::wire::frame::{self, Address, Control, Header, Protocol, Received, Routing, UNASSIGNED};
use lunar_fcoe::wire::names::{PortId, Wwn};
use lunar_fcoe::wire::services::{self, Directory, FCP, FCP_TYPE_AT};
use lunar_link::{HEADER_LEN, Header as EthernetHeader, MacAddress};
use std::collections::VecDeque;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Ports that may log in: the list of all fits into one frame.
const PORTS_MAX: usize = 64;
/// The domain of the switch, and its area.
const DOMAIN: [u8; 2] = [0x0a, 0x01];
/// The payload of its frames.
const PAYLOAD: usize = 2112;

/// The settings of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchConfig {
    /// Its MAC address.
    pub mac: MacAddress,
    /// Its priority: the lowest one is best.
    pub priority: u8,
    /// The time between advertisements, and between keep-alives.
    pub period: Duration,
    /// The VLAN that it answers requests with; `None`: it answers none.
    pub vlan: Option<u16>,
    /// The number of its links.
    pub links: usize,
}

/// A port that has logged in.
#[derive(Clone, Debug)]
struct Port {
    link: usize,
    port: Neighbour,
    address: MacAddress,
    /// Whether it has registered the Fibre Channel Protocol.
    has_fcp: bool,
    features: u8,
    wants_changes: bool,
    /// Its last keep-alive.
    seen: Instant,
}

/// Things that happened, for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchCounts {
    /// Logins.
    pub logins: u64,
    /// Keep-alives of stations, and of ports.
    pub keep_alives: (u64, u64),
    /// Ports that have sent no keep-alives.
    pub silent: u64,
    /// Frames that were forwarded.
    pub forwarded: u64,
    /// Frames of ports whose source or destination was wrong.
    pub strange: u64,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    config: SwitchConfig,
    /// The address of a port is that of its place.
    ports: Vec<Option<Port>>,
    /// The names that had these places before.
    names: Vec<Wwn>,
    advertised: Option<Instant>,
    frames: VecDeque<(usize, Vec<u8>)>,
    ox_id: u16,
    /// Things that happened.
    pub counts: SwitchCounts,
}

impl Switch {
    /// A switch that begins now.
    #[must_use]
    pub fn new(config: SwitchConfig) -> Self {
        let (ports, names, frames) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { config, ports, names, advertised: None, frames, ox_id: 0, counts: SwitchCounts::default() }
    }

    /// Starts again: it has forgotten all logins.
    pub fn restart(&mut self) {
        *self = Self { counts: self.counts, ..Self::new(self.config) };
    }

    /// Ports that are registered with these features for the Fibre Channel Protocol.
    #[must_use]
    pub fn registered(&self, features: u8) -> usize {
        self.all().filter(|port| port.has_fcp && port.features == features).count()
    }

    fn all(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().flatten()
    }

    fn name(&self) -> Wwn {
        let number = self.config.mac.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Wwn(0x1000 << 48 | number)
    }

    fn advertisement(&self, is_solicited: bool) -> Vec<u8> {
        fabric::advertisement(&Advertisement {
            mac: self.config.mac,
            switch: self.name(),
            fabric: self.name(),
            map: DEFAULT_MAP,
            priority: self.config.priority,
            period: self.config.period,
            wants_keep_alives: true,
            is_available: true,
            is_solicited,
            grants: true,
        })
    }

    /// The next frame to send, and its link.
    pub fn next_frame(&mut self) -> Option<(usize, Vec<u8>)> {
        self.frames.pop_front()
    }

    fn fip(&mut self, link: usize, to: MacAddress, body: Vec<u8>) {
        let route = Route { to, from: self.config.mac };
        self.frames.push_back((link, Outgoing::fip(route, body).bytes()));
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        if self.advertised.is_none_or(|before| now.since(before) >= self.config.period) {
            self.advertised = Some(now);
            (0..self.config.links).for_each(|link| self.fip(link, ALL_STATIONS, self.advertisement(false)));
        }
        let most = self.config.period * 5 / 2;
        let silent: Vec<PortId> =
            self.all().filter(|port| now.since(port.seen) >= most).map(|port| port.port.id).collect();
        for id in silent {
            self.counts.silent += 1;
            self.clear(id);
        }
    }

    /// Ends the login of a port by Clear Virtual Links.
    pub fn clear(&mut self, id: PortId) {
        let Some(port) = self.detach(id) else { return };
        let body = fabric::clear((self.config.mac, self.name()), &[(port.port, port.address)]);
        self.fip(port.link, port.port.station, body);
    }

    /// Ends all logins by Clear Virtual Links.
    pub fn clear_all(&mut self) {
        let ports: Vec<Port> = self.ports.iter_mut().filter_map(Option::take).collect();
        for port in ports {
            self.fip(port.link, port.port.station, fabric::clear((self.config.mac, self.name()), &[]));
        }
    }

    /// The identifier of the port of this name.
    #[must_use]
    pub fn id_of(&self, name: Wwn) -> Option<PortId> {
        self.all().find(|port| port.port.name == name).map(|port| port.port.id)
    }

    fn detach(&mut self, id: PortId) -> Option<Port> {
        let port = self.place(id)?.take()?;
        self.report(id);
        Some(port)
    }

    fn place(&mut self, id: PortId) -> Option<&mut Option<Port>> {
        let [domain, area, number] = id.bytes();
        let is_here = [domain, area] == DOMAIN;
        self.ports.get_mut(usize::from(number)).filter(|_| is_here)
    }

    fn port(&mut self, id: PortId) -> Option<&mut Port> {
        self.place(id)?.as_mut()
    }

    /// Tells the other ports that one has changed.
    fn report(&mut self, id: PortId) {
        let others: Vec<(usize, MacAddress, PortId)> = self
            .all()
            .filter(|port| port.wants_changes && port.port.id != id)
            .map(|port| (port.link, port.address, port.port.id))
            .collect();
        for (link, to, destination) in others {
            self.ox_id = (self.ox_id + 1) % UNASSIGNED;
            let source = PortId::FABRIC_CONTROLLER;
            let address = Address { source, destination, ox_id: self.ox_id, rx_id: UNASSIGNED };
            let header = Header::new(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, address);
            let route = Route { to, from: self.config.mac };
            let frame = Outgoing::fc(route, header, &services::state_change(&[id]));
            self.frames.push_back((link, frame.bytes()));
        }
    }

    /// Takes a frame of a link.
    pub fn receive(&mut self, link: usize, frame: &[u8], now: Instant) {
        let Some(header) = EthernetHeader::parse(frame) else { return };
        let (to, body) = (header.destination, &frame[HEADER_LEN..]);
        if header.ether_type == fip::ETHER_TYPE && (to == self.config.mac || to == ALL_SWITCHES) {
            if let Some(message) = Message::parse(body) {
                self.receive_fip((link, header.source), &message, now);
            }
        } else if header.ether_type == frame::ETHER_TYPE && to == self.config.mac {
            self.receive_frame((link, header.source), body);
        }
    }

    fn receive_fip(&mut self, (link, source): (usize, MacAddress), message: &Message<'_>, now: Instant) {
        match message {
            Message::VlanRequest(station) => {
                if let Some(vlan) = self.config.vlan {
                    self.fip(link, *station, fabric::vlan_notification(self.config.mac, vlan));
                }
            }
            Message::Solicitation(station, _, size) => {
                let mut body = self.advertisement(true);
                body.resize(body.len().max(usize::from(*size)), 0);
                self.fip(link, *station, body);
            }
            Message::KeepAlive(station, port) => {
                let known = self.ports.iter_mut().flatten().find(|known| known.port.station == *station);
                let is_known = known.is_some();
                known.into_iter().for_each(|known| known.seen = now);
                match port {
                    Some(_) => self.counts.keep_alives.1 += 1,
                    None => self.counts.keep_alives.0 += 1,
                }
                if !is_known {
                    // The switch has started again.
                    self.fip(link, *station, fabric::clear((self.config.mac, self.name()), &[]));
                }
            }
            Message::LinkService(Operation::LINK_SERVICE_REQUEST, service) => {
                self.receive_service((link, source), service, now);
            }
            _ => {}
        }
    }

    fn receive_service(&mut self, (link, station): (usize, MacAddress), service: &LinkService<'_>, now: Instant) {
        let Ok((header, payload)) = Header::ref_from_prefix(service.frame) else { return };
        let ox_id = header.ox_id.get();
        let (destination, body, mac) = match service.kind {
            Kind::FLOGI => match self.log_in((link, station), payload, now) {
                Some((id, address)) => {
                    let login = LoginParameters::fabric((self.name(), self.name()), PAYLOAD);
                    (id, login.as_bytes().to_vec(), Some(address))
                }
                None => {
                    let reject = Reject::new(Reason::UNABLE, Explanation::NO_RESOURCES);
                    (PortId::NONE, reject.as_bytes().to_vec(), None)
                }
            },
            Kind::LOGO => {
                let id = header.source();
                let address = self.detach(id).map(|port| port.address);
                (id, Bare::new(Els::LS_ACC).as_bytes().to_vec(), address)
            }
            _ => return,
        };
        let address = Address { source: PortId::FABRIC_PORT, destination, ox_id, rx_id: UNASSIGNED };
        let header = Header::new(Routing::ELS_REPLY, Protocol::ELS, Control::REPLY, address);
        let frame = [header.as_bytes(), &body].concat();
        self.fip(link, station, fabric::link_service(Operation::LINK_SERVICE_REPLY, service.kind, &frame, mac));
    }

    /// A port logs in: it has the same identifier as before.
    fn log_in(
        &mut self,
        (link, station): (usize, MacAddress),
        payload: &[u8],
        now: Instant,
    ) -> Option<(PortId, MacAddress)> {
        let (login, _) = LoginParameters::ref_from_prefix(payload).ok().filter(|(login, _)| !login.is_fabric())?;
        let (name, node) = login.names();
        let place = self.names.iter().position(|known| *known == name).unwrap_or(self.names.len());
        if place >= PORTS_MAX {
            return None;
        }
        if place == self.names.len() {
            self.names.push(name);
            self.ports.push(None);
        }
        // Below 64.
        let id = PortId::from_bytes([DOMAIN[0], DOMAIN[1], place as u8]);
        self.detach(id);
        let (port, address) = (Neighbour { station, node, name, id }, id.mac_in(DEFAULT_MAP));
        let features = 0;
        self.ports[place] =
            Some(Port { link, port, address, has_fcp: false, features, wants_changes: false, seen: now });
        self.counts.logins += 1;
        Some((id, address))
    }

    fn receive_frame(&mut self, (link, source): (usize, MacAddress), body: &[u8]) {
        let Ok(frame) = Received::parse(body) else { return };
        let (from, to) = (frame.header.source(), frame.header.destination());
        let is_theirs = self.port(from).is_some_and(|port| port.link == link && port.address == source);
        if !is_theirs {
            self.counts.strange += 1;
            return;
        }
        if to.is_fabric_port() {
            // Frames to a port that is gone are lost, as in class 3.
            let Some((link, address)) = self.port(to).map(|port| (port.link, port.address)) else { return };
            let header =
                EthernetHeader { destination: address, source: self.config.mac, ether_type: frame::ETHER_TYPE };
            self.frames.push_back((link, [&header.bytes()[..], body].concat()));
            self.counts.forwarded += 1;
            return;
        }
        let answer = match (frame.header.routing(), Els(*frame.payload.first().unwrap_or(&0))) {
            (Routing::CT_REQUEST, _) if to == PortId::NAME_SERVER => self.ask(from, frame.payload),
            (Routing::ELS_REQUEST, Els::PLOGI) if to == PortId::NAME_SERVER => {
                let login = LoginParameters::plogi(Els::LS_ACC, (self.name(), self.name()), PAYLOAD);
                login.as_bytes().to_vec()
            }
            (Routing::ELS_REQUEST, Els::SCR) if to == PortId::FABRIC_CONTROLLER => {
                self.port(from).into_iter().for_each(|port| port.wants_changes = true);
                Bare::new(Els::LS_ACC).as_bytes().to_vec()
            }
            (Routing::ELS_REQUEST, Els::LOGO) => Bare::new(Els::LS_ACC).as_bytes().to_vec(),
            (Routing::ELS_REQUEST, _) => Reject::new(Reason::UNSUPPORTED, Explanation::UNSUPPORTED).as_bytes().to_vec(),
            _ => return,
        };
        let (routing, protocol) = match frame.header.routing() {
            Routing::CT_REQUEST => (Routing::CT_REPLY, Protocol::CT),
            _ => (Routing::ELS_REPLY, Protocol::ELS),
        };
        let address = Address { source: to, destination: from, ox_id: frame.header.ox_id.get(), rx_id: UNASSIGNED };
        let header = Header::new(routing, protocol, Control::REPLY, address);
        let route = Route { to: source, from: self.config.mac };
        self.frames.push_back((link, Outgoing::fc(route, header, &answer).bytes()));
    }

    /// The answer of the name server.
    fn ask(&mut self, from: PortId, payload: &[u8]) -> Vec<u8> {
        let Some((command, rest)) = services::parse(payload) else { return services::reject() };
        let asked = services::id_of(rest);
        let list = |named: fn(&Port) -> Option<Wwn>| {
            let ports: Vec<(PortId, Option<Wwn>)> =
                self.all().filter(|port| port.has_fcp).map(|port| (port.port.id, named(port))).collect();
            match rest.get(3) == Some(&FCP) && !ports.is_empty() {
                true => services::accept_ports(&ports),
                false => services::reject(),
            }
        };
        let of = |named: fn(&Port) -> Wwn| {
            let port = self.all().find(|port| Some(port.port.id) == asked);
            port.map_or_else(services::reject, |port| services::accept(&[&named(port).bytes()]))
        };
        match command {
            Directory::GID_FT => list(|_| None),
            Directory::GPN_FT => list(|port| Some(port.port.name)),
            Directory::GNN_FT => list(|port| Some(port.port.node)),
            Directory::GPN_ID => of(|port| port.port.name),
            Directory::GNN_ID => of(|port| port.port.node),
            Directory::RFT_ID | Directory::RFF_ID if asked == Some(from) => {
                let types = rest.get(4 + FCP_TYPE_AT).is_some_and(|byte| byte & 1 << (FCP % 8) != 0);
                let features = rest.get(6).copied().unwrap_or_default();
                if let Some(port) = self.port(from) {
                    match command {
                        Directory::RFT_ID => port.has_fcp = types,
                        _ => port.features = features,
                    }
                }
                self.report(from);
                services::accept(&[])
            }
            Directory::RNN_ID | Directory::RSPN_ID if asked == Some(from) => services::accept(&[]),
            Directory::RSNN_NN => services::accept(&[]),
            _ => services::reject(),
        }
    }
}

#[cfg(test)]
#[path = "switch_tests.rs"]
mod tests;
