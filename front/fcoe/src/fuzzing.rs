//! Entry points of the fuzz targets.

use crate::port::discovery::Identity;
use crate::port::login::{LoginEvent, Logins, Output};
use crate::port::{PortEvent, VnPort};
use crate::wire::els::{Bare, Els, INITIATOR, LoginParameters, Prli, READ_WITHOUT_READY};
use crate::wire::fcp::{self, Response};
use crate::wire::fip::fabric::{self, ALL_SWITCHES, Advertisement, DEFAULT_MAP};
use crate::wire::fip::{ALL_VN2VN, Functions, Kind, Message, Neighbour, Operation, announcement, link_service};
use crate::wire::frame::{Address, Control, Header, Protocol, Received, Routing, UNASSIGNED, encapsulated, payload_of};
use crate::wire::names::{PortId, Wwn};
use crate::wire::{fip, services};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use lunar_link::MacAddress;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The payload of an Ethernet frame.
const MTU: usize = 1500;
/// The time between two frames.
const STEP: Duration = Duration::from_millis(20);

/// The MAC address of the switch.
const SWITCH: MacAddress = MacAddress([2, 0xfc, 0, 0, 0, 1]);

/// Takes bytes apart with each format.
pub fn formats(bytes: &[u8]) {
    if let Some(Message::Clear(clear)) = Message::parse(bytes) {
        let _ = clear.is_for(PortId::NONE, Wwn(1), SWITCH);
    }
    if let Some((_, entries)) = services::parse(bytes) {
        assert!(services::ports(entries).count() <= bytes.len() / 16, "entries are in the bytes");
    }
    let _ = services::changes(bytes).map(Iterator::count);
    let _ = Received::parse(bytes);
    let _ = Prli::parse(bytes);
    if let Ok(command) = fcp::Command::parse(bytes) {
        assert!(command.data_in == 0 || command.data_out == 0, "one direction");
    }
    if let Some(response) = Response::parse(bytes) {
        assert!(response.bytes().len() <= fcp::RESPONSE_MAX, "a response is bounded");
    }
}

/// A target port, and an initiator whose frames are those of an input.
struct Rig {
    port: VnPort,
    arena: Arena,
    now: Instant,
    out: Output,
    initiator: Neighbour,
    /// The sources of messages of FIP, and of other frames.
    sources: (MacAddress, MacAddress),
    running: Vec<crate::port::exchange::ExchangeKey>,
}

impl Rig {
    fn begin(id: PortId, sources: (MacAddress, MacAddress), logins: fn(Identity, Instant) -> Logins) -> Self {
        let mac = |number| MacAddress([2, 0, 0, 0, 0, number]);
        let initiator =
            Neighbour { station: mac(2), node: Wwn(0x1000_0200_0000_0002), name: Wwn(0x2000_0200_0000_0002), id };
        let own = Identity {
            station: mac(1),
            node: Wwn(0x1000_0200_0000_0001),
            name: Wwn(0x2000_0200_0000_0001),
            functions: Functions { target: true, initiator: false },
            payload: payload_of(MTU),
        };
        let now = Instant(1);
        let port = VnPort::new(logins(own, now));
        let (arena, out, running) = (Arena::new(1 << 20), Output::default(), Vec::new());
        Self { port, arena, now, out, initiator, sources, running }
    }

    /// With an initiator that is logged in, without a switch.
    fn new() -> Self {
        let id = PortId::of_neighbour(2).expect("valid");
        let station = MacAddress([2, 0, 0, 0, 0, 2]);
        let mut rig = Self::begin(id, (station, id.mac()), |own, now| Logins::new(own, 7, now));
        let initiator = rig.initiator;
        (0..100).for_each(|_| rig.step());
        let claim = announcement(
            Operation::CLAIM_NOTIFICATION,
            &initiator,
            (Functions { target: false, initiator: true }, 1498),
        );
        rig.fip(&claim);
        let flogi = LoginParameters::flogi(Els::FLOGI, (initiator.name, initiator.node), 1452);
        let frame = [rig.request(1).as_bytes(), flogi.as_bytes()].concat();
        rig.fip(&link_service(Operation::LINK_SERVICE_REQUEST, Kind::FLOGI, &frame, Some(initiator.id.mac())));
        rig.log_in();
        rig
    }

    /// With an initiator that is logged in, at a switch.
    fn in_fabric() -> Self {
        let id = PortId::from_bytes([1, 2, 3]);
        let mut rig = Self::begin(id, (SWITCH, SWITCH), |own, now| Logins::in_fabric(own, false, 7, now));
        for _ in 0..100 {
            rig.step();
            rig.answer_as_switch();
        }
        rig.log_in();
        rig
    }

    /// The header of a request of the initiator, in this exchange.
    fn request(&self, ox_id: u16) -> Header {
        let destination = self.port.logins().id().expect("it is up");
        let address = Address { source: self.initiator.id, destination, ox_id, rx_id: UNASSIGNED };
        Header::new(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, address)
    }

    /// The initiator logs in.
    fn log_in(&mut self) {
        let plogi = LoginParameters::plogi(Els::PLOGI, (self.initiator.name, self.initiator.node), 1452);
        self.fc(&encapsulated(self.request(2), plogi.as_bytes()));
        let prli = Prli::new(Els::PRLI, 0x20, INITIATOR | READ_WITHOUT_READY);
        self.fc(&encapsulated(self.request(3), prli.as_bytes()));
        assert!(self.out.events.contains(&LoginEvent::Ready(self.initiator.id)), "{:?}", self.out.events);
    }

    /// Answers what the port has sent to the switch and to its services.
    fn answer_as_switch(&mut self) {
        let names = (Wwn(0x1000_02fc_0000_0001), Wwn(0x1000_02fc_0000_0001));
        for frame in std::mem::take(&mut self.out.frames) {
            if frame.ether_type != fip::ETHER_TYPE {
                let Ok(received) = Received::parse(&frame.body) else { continue };
                let (source, destination) = (received.header.destination(), received.header.source());
                let address = Address { source, destination, ox_id: received.header.ox_id.get(), rx_id: UNASSIGNED };
                let (routing, protocol, body) = match received.header.routing() {
                    Routing::CT_REQUEST => (Routing::CT_REPLY, Protocol::CT, services::accept(&[])),
                    _ => (Routing::ELS_REPLY, Protocol::ELS, Bare::new(Els::LS_ACC).as_bytes().to_vec()),
                };
                self.fc(&encapsulated(Header::new(routing, protocol, Control::REPLY, address), &body));
                continue;
            }
            match Message::parse(&frame.body) {
                Some(Message::Solicitation(..)) => self.fip(&fabric::advertisement(&Advertisement {
                    mac: SWITCH,
                    switch: names.0,
                    fabric: names.1,
                    map: DEFAULT_MAP,
                    priority: 1,
                    period: Duration::from_secs(8),
                    wants_keep_alives: true,
                    is_available: true,
                    is_solicited: true,
                    grants: true,
                })),
                Some(Message::LinkService(Operation::LINK_SERVICE_REQUEST, service)) => {
                    let Ok((header, _)) = Header::ref_from_prefix(service.frame) else { continue };
                    let (source, id) = (PortId::FABRIC_PORT, PortId::from_bytes([1, 2, 4]));
                    let address = Address { source, destination: id, ox_id: header.ox_id.get(), rx_id: UNASSIGNED };
                    let header = Header::new(Routing::ELS_REPLY, Protocol::ELS, Control::REPLY, address);
                    let accept = LoginParameters::fabric(names, 2112);
                    let frame = [header.as_bytes(), accept.as_bytes()].concat();
                    let (operation, mac) = (Operation::LINK_SERVICE_REPLY, id.mac_in(DEFAULT_MAP));
                    self.fip(&fabric::link_service(operation, Kind::FLOGI, &frame, Some(mac)));
                }
                _ => {}
            }
        }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        self.port.tick(self.now, &|_| true, &mut self.out);
    }

    fn fip(&mut self, bytes: &[u8]) {
        self.port.receive_fip((self.sources.0, bytes), self.now, &|_| true, &mut self.out);
    }

    fn fc(&mut self, bytes: &[u8]) {
        let source = self.sources.1;
        match self.port.receive((source, bytes), self.now, &|_| true, &mut self.out) {
            Some(PortEvent::Command(command)) => match command.key {
                Some(key) => self.command(key, command.bytes),
                None => assert!(self.port.refuse(command.peer, command.ox_id).is_some(), "it is up"),
            },
            Some(PortEvent::Data(key)) => {
                assert!(matches!(self.port.take(key), crate::port::exchange::Requested::Arrived(_)), "{key:?}");
            }
            Some(PortEvent::Abort(key)) => {
                assert!(self.port.aborted(key).is_some(), "it is up");
                self.running.retain(|other| *other != key);
            }
            Some(PortEvent::Replaced(key)) => {
                self.port.remove(key);
                self.running.retain(|other| *other != key);
            }
            None => {}
        }
    }

    fn command(&mut self, key: crate::port::exchange::ExchangeKey, bytes: &[u8]) {
        let out = fcp::Command::parse(bytes).map_or(0, |command| command.data_out.min(64 << 10) as usize);
        if let Some(memory) = (out > 0).then(|| self.arena.take_sg(out)).flatten() {
            assert!(self.port.request(key, 0, memory).is_some(), "it has just begun");
        }
        self.running.push(key);
        if self.running.len() > 8 {
            let first = self.running.remove(0);
            let _ = self.port.respond(first, &Response::default().bytes(), self.now);
        }
    }

    fn check(&mut self) {
        for frame in self.out.frames.drain(..) {
            assert!(frame.body.len() <= MTU, "a frame of {} bytes", frame.body.len());
            assert!(
                [ALL_VN2VN, ALL_SWITCHES].contains(&frame.route.to) || !frame.route.to.is_group(),
                "{:?}",
                frame.route
            );
        }
        for event in self.out.events.drain(..) {
            if let LoginEvent::Ended(id) | LoginEvent::Ready(id) = event {
                self.running.retain(|key| key.peer != id);
            }
        }
        assert_eq!(self.port.running(), self.running.len(), "exchanges in progress");
    }

    /// Takes the frames of an input. The sequence of a frame decides which of these ports has sent it.
    fn take(&mut self, bytes: &[u8], senders: [PortId; 4]) {
        self.check();
        let mut rest = bytes;
        while let Some((first, more)) = rest.split_first() {
            let (piece, more) = more.split_at(more.len().min(usize::from(first >> 1) * 2 + 4));
            rest = more;
            self.step();
            if first & 1 == 0 {
                self.fip(piece);
            } else if let Some((head, payload)) = piece.split_first_chunk::<16>() {
                let own = self.port.logins().id().unwrap_or(self.initiator.id);
                let [routing, protocol, a, b, c, sequence, ox, rx_high, rx_low, d, e, f, g, ..] = *head;
                let ids = (u16::from(ox), u16::from_be_bytes([rx_high, rx_low]));
                let sender = senders[usize::from(sequence & 3)];
                let address = Address { source: sender, destination: own, ox_id: ids.0, rx_id: ids.1 };
                let control = Control(u32::from_be_bytes([0, a, b, c]));
                let mut header = Header::new(Routing(routing), Protocol(protocol), control, address);
                header.sequence = sequence;
                header.parameter = u32::from_be_bytes([d, e, f, g]).into();
                self.fc(&encapsulated(header, payload));
            }
            self.check();
        }
    }
}

/// Gives a port the frames of an input, with the addresses and the CRC that they need to be looked at.
///
/// # Panics
/// When a frame is too long, or exchanges are lost.
pub fn frames(bytes: &[u8]) {
    let mut rig = Rig::new();
    let sender = rig.initiator.id;
    rig.take(bytes, [sender; 4]);
}

/// Gives a port of a fabric the frames of an input: of its switch, of the services, and of an initiator.
///
/// # Panics
/// When a frame is too long, or exchanges are lost.
pub fn fabric_frames(bytes: &[u8]) {
    let mut rig = Rig::in_fabric();
    let sender = rig.initiator.id;
    rig.take(bytes, [sender, PortId::NAME_SERVER, PortId::FABRIC_CONTROLLER, PortId::FABRIC_PORT]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_input_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..800)) {
            formats(&bytes);
            frames(&bytes);
            fabric_frames(&bytes);
        }
    }

    #[test]
    fn an_initiator_is_logged_in() {
        for mut rig in [Rig::new(), Rig::in_fabric()] {
            rig.check();
        }
    }
}
