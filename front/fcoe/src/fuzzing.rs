//! Entry points of the fuzz targets.

use crate::port::discovery::Identity;
use crate::port::login::{LoginEvent, Logins, Output};
use crate::port::{PortEvent, VnPort};
use crate::wire::els::{Els, INITIATOR, LoginParameters, Prli, READ_WITHOUT_READY};
use crate::wire::fcp::{self, Response};
use crate::wire::fip::{ALL_VN2VN, Functions, Kind, Message, Neighbour, Operation, announcement, link_service};
use crate::wire::frame::{Address, Control, Header, Protocol, Received, Routing, UNASSIGNED, encapsulated, payload_of};
use crate::wire::names::{PortId, Wwn};
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use lunar_link::MacAddress;
use std::time::Duration;
use zerocopy::IntoBytes;

/// The payload of an Ethernet frame.
const MTU: usize = 1500;
/// The time between two frames.
const STEP: Duration = Duration::from_millis(20);

/// Takes bytes apart with each format.
pub fn formats(bytes: &[u8]) {
    let _ = Message::parse(bytes);
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
    running: Vec<crate::port::exchange::ExchangeKey>,
}

impl Rig {
    /// With an initiator that is logged in.
    fn new() -> Self {
        let mac = |number| MacAddress([2, 0, 0, 0, 0, number]);
        let initiator = Neighbour {
            station: mac(2),
            node: Wwn(0x1000_0200_0000_0002),
            name: Wwn(0x2000_0200_0000_0002),
            id: PortId::of_neighbour(2).expect("valid"),
        };
        let own = Identity {
            station: mac(1),
            node: Wwn(0x1000_0200_0000_0001),
            name: Wwn(0x2000_0200_0000_0001),
            functions: Functions { target: true, initiator: false },
            payload: payload_of(MTU),
        };
        let now = Instant(1);
        let port = VnPort::new(Logins::new(own, 7, now));
        let (arena, out, running) = (Arena::new(1 << 20), Output::default(), Vec::new());
        let mut rig = Self { port, arena, now, out, initiator, running };
        (0..100).for_each(|_| rig.step());
        let claim = announcement(
            Operation::CLAIM_NOTIFICATION,
            &initiator,
            (Functions { target: false, initiator: true }, 1498),
        );
        rig.fip(&claim);
        let own = rig.port.logins().id().expect("it is up");
        let names = (initiator.name, initiator.node);
        let header = |service| {
            let address = Address { source: initiator.id, destination: own, ox_id: service, rx_id: UNASSIGNED };
            Header::new(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, address)
        };
        let flogi = LoginParameters::flogi(Els::FLOGI, names, 1452);
        let frame = [header(1).as_bytes(), flogi.as_bytes()].concat();
        rig.fip(&link_service(Operation::LINK_SERVICE_REQUEST, Kind::FLOGI, &frame, Some(initiator.id.mac())));
        let plogi = LoginParameters::plogi(Els::PLOGI, names, 1452);
        rig.fc(&encapsulated(header(2), plogi.as_bytes()));
        let prli = Prli::new(Els::PRLI, 0x20, INITIATOR | READ_WITHOUT_READY);
        rig.fc(&encapsulated(header(3), prli.as_bytes()));
        assert!(rig.out.events.contains(&LoginEvent::Ready(initiator.id)), "{:?}", rig.out.events);
        rig
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        self.port.tick(self.now, &|_| true, &mut self.out);
    }

    fn fip(&mut self, bytes: &[u8]) {
        self.port.receive_fip((self.initiator.station, bytes), self.now, &|_| true, &mut self.out);
    }

    fn fc(&mut self, bytes: &[u8]) {
        let source = self.initiator.id.mac();
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
            assert!(frame.route.to == ALL_VN2VN || !frame.route.to.is_group(), "{:?}", frame.route);
        }
        for event in self.out.events.drain(..) {
            if let LoginEvent::Ended(id) | LoginEvent::Ready(id) = event {
                self.running.retain(|key| key.peer != id);
            }
        }
        assert_eq!(self.port.running(), self.running.len(), "exchanges in progress");
    }
}

/// Gives a port the frames of an input, with the addresses and the CRC that they need to be looked at.
///
/// # Panics
/// When a frame is too long, or exchanges are lost.
pub fn frames(bytes: &[u8]) {
    let mut rig = Rig::new();
    rig.check();
    let mut rest = bytes;
    while let Some((first, more)) = rest.split_first() {
        let (piece, more) = more.split_at(more.len().min(usize::from(first >> 1) * 2 + 4));
        rest = more;
        rig.step();
        if first & 1 == 0 {
            rig.fip(piece);
        } else if let Some((head, payload)) = piece.split_first_chunk::<16>() {
            let own = rig.port.logins().id().unwrap_or(rig.initiator.id);
            let [routing, protocol, a, b, c, sequence, ox, rx_high, rx_low, d, e, f, g, ..] = *head;
            let ids = (u16::from(ox), u16::from_be_bytes([rx_high, rx_low]));
            let address = Address { source: rig.initiator.id, destination: own, ox_id: ids.0, rx_id: ids.1 };
            let control = Control(u32::from_be_bytes([0, a, b, c]));
            let mut header = Header::new(Routing(routing), Protocol(protocol), control, address);
            header.sequence = sequence;
            header.parameter = u32::from_be_bytes([d, e, f, g]).into();
            rig.fc(&encapsulated(header, payload));
        }
        rig.check();
    }
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
        }
    }

    #[test]
    fn an_initiator_is_logged_in() {
        let mut rig = Rig::new();
        rig.check();
    }
}
