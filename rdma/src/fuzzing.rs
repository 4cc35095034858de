//! Entry points of the fuzz target: a peer that sends anything, and stations that do.

use crate::engine::{Accept, ConnectionId, Engine, Event, Payload};
use crate::ethernet::limits::{NEIGHBOURS_MAX, UNRESOLVED_MAX, WAITING_MAX, WAITING_TOTAL_MAX};
use crate::ethernet::network::Network;
use crate::ethernet::station::{FRAME_MIN, HEADERS_MAX, Station};
use crate::ethernet::{arp, icmp, ip, udp};
use crate::golden;
use crate::icrc::Checker;
use crate::limits::{CONNECTIONS_MAX, HALF_OPEN_MAX, MESSAGES_MAX};
use crate::mad::{Body, Message};
use crate::responder::Receives;
use crate::wire::{Head, PORT, Packet, Remote};
use lunar_core::mem::{Arena, Sg};
use lunar_core::time::Instant;
use lunar_link::{HEADER_LEN, Header, MacAddress, Wrapped};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 88, 2));
/// The time between two packets.
const STEP: Duration = Duration::from_millis(30);

/// Takes bytes apart as a packet and as a message of the connection manager, and builds them again.
///
/// # Panics
/// When the bytes that are built are taken apart as something else.
pub fn formats(bytes: &[u8]) {
    if let Some(packet) = Packet::parse(bytes) {
        let Packet { opcode, qpn, psn, wants_acknowledge, extension, payload, .. } = packet;
        let head = Head { opcode, qpn, psn, wants_acknowledge, extension }.bytes(payload.len());
        let built = [&head[..], payload, &[0; 3][..crate::wire::padding(payload.len())]].concat();
        assert_eq!(Packet::parse(&built), Some(packet));
    }
    if let Some(message) = Message::parse(bytes) {
        assert_eq!(Message::parse(&message.bytes()), Some(message));
    }
    let _ = Checker::default().check(([192, 168, 88, 2], 4791).into(), ([192, 168, 88, 1], 4791).into(), bytes);
}

/// An engine with the connection of a recorded request, which a peer attacks.
struct Victim {
    engine: Engine,
    arena: Arena,
    now: Instant,
    /// The connection, and the numbers of the next packets of the peer and of the first one here.
    id: ConnectionId,
    next: [u32; 2],
    started: u64,
}

impl Victim {
    fn new() -> Self {
        let mut engine = Engine::new(1472, 5);
        engine.serve(5555, [9; 8]);
        let (id, next) = (ConnectionId(0), [0; 2]);
        Self { engine, arena: Arena::new(8 << 20), now: Instant(1), id, next, started: 0 }
    }

    /// Follows events and sends packets.
    fn turn(&mut self, accepts: bool) {
        while let Some((_, event)) = self.engine.poll_event() {
            match event {
                Event::Request { id, .. } if accepts => {
                    let receives = Receives { bytes: 600, count: 4 };
                    match self.engine.accept(id, &Accept::new(&[], receives), self.now) {
                        Ok(()) => self.id = id,
                        Err(_) => self.engine.reject(id, &[]),
                    }
                }
                Event::Request { id, .. } => self.engine.reject(id, &[]),
                _ => {}
            }
        }
        for _ in 0..300 {
            let Some(outgoing) = self.engine.poll_send(self.now) else { break };
            if let Payload::Message(bytes) = &outgoing.payload
                && let Some(Message { body: Body::Reply(reply), .. }) = Message::parse(&bytes[..])
            {
                self.next[0] = reply.psn;
            }
        }
        self.now = self.now + STEP;
        self.engine.expire(self.now);
        assert!(self.engine.connections() <= CONNECTIONS_MAX + HALF_OPEN_MAX);
        assert!(self.engine.messages_queued() <= MESSAGES_MAX);
    }

    /// Starts something, so that answers have something to fit to.
    fn start(&mut self) {
        let (id, arena) = (self.id, &self.arena);
        self.started += 1;
        match self.started % 3 {
            0 => self.engine.read(id, Remote::default(), arena.take_sg(3000).unwrap_or_default(), self.started),
            1 => {
                let data = arena.zeroes().map(|zeroes| zeroes.part(0..3000).into());
                self.engine.write(id, Remote::default(), data.unwrap_or_default())
            }
            _ => self.engine.send(id, arena.copy(&[1; 50]).map(Sg::from).unwrap_or_default().into()),
        };
        self.engine.post(id, 1);
    }

    /// Takes a packet. Bits of `kind` replace its queue pair and its number by those that fit.
    fn take(&mut self, packet: &[u8], kind: u8) {
        let mut packet = packet.to_vec();
        if kind & 2 == 0
            && let Some(qpn) = packet.get_mut(5..8)
        {
            qpn.copy_from_slice(&self.id.0.to_be_bytes()[1..]);
        }
        if kind & 8 == 0
            && let Some(psn) = packet.get_mut(9..12)
        {
            let next = &mut self.next[usize::from(kind >> 2 & 1)];
            psn.copy_from_slice(&(*next + u32::from(kind >> 4)).to_be_bytes()[1..]);
            *next += 1;
        }
        if self.engine.receive(PEER, &packet, self.now).is_some() {
            self.start();
        }
    }
}

/// A peer that is connected sends packets: each begins with its length, and a byte that says what of it is replaced.
///
/// # Panics
/// When something grows beyond its limits.
pub fn peer(bytes: &[u8]) {
    let mut victim = Victim::new();
    let (from, to) = golden::REQUEST.addresses();
    let recorded = golden::REQUEST.bytes();
    let Some(request) = Checker::default().check(from, to, &recorded) else { return };
    if let Some(Body::Request(request)) =
        Packet::parse(request).and_then(|packet| Some(Message::parse(packet.payload)?.body))
    {
        victim.next[1] = request.psn;
    }
    victim.engine.receive(PEER, request, victim.now);
    let mut rest = bytes;
    while let Some(([len, kind], behind)) = rest.split_first_chunk::<2>() {
        victim.turn(kind & 1 == 0);
        let (packet, behind) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = behind;
        victim.take(packet, *kind);
    }
    victim.turn(true);
}

/// The MAC address of the station that is attacked.
const STATION: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// Its addresses.
const ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(192, 168, 88, 1);
const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// A frame of these bytes, with right headers and checksums as far as `kind` says.
fn made_frame(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut padded = [0; 40];
    let len = bytes.len().min(padded.len());
    padded[..len].copy_from_slice(&bytes[..len]);
    let [last, message, station, ..] = padded;
    let peer_v4 = IpAddr::V4(Ipv4Addr::new(192, 168, 88, last));
    let peer_v6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()));
    let (ether_type, packet) = match kind & 7 {
        0 => return bytes.to_vec(),
        1 => (ip::IPV4, bytes.to_vec()),
        2 => {
            let (operation, sender) = (arp::Operation(u16::from(message % 4)), Ipv4Addr::new(192, 168, 88, last));
            let target = Ipv4Addr::new(192, 168, 88, padded[3] % 3);
            let macs = (MacAddress([2, 0, 0, 0, 0, station]), MacAddress([0; 6]));
            let message = arp::Message { operation, sender: (macs.0, sender), target: (macs.1, target) };
            (arp::ETHER_TYPE, message.bytes().to_vec())
        }
        3 => (ip::IPV4, icmp::packet(peer_v4, ADDRESS_V4.into(), ip::HOP_LIMIT, message, bytes)),
        4 | 5 => {
            let (from, to) = if kind & 1 == 0 { (peer_v4, ADDRESS_V4.into()) } else { (peer_v6, ADDRESS_V6.into()) };
            let header = ip::Header { from, to, protocol: ip::UDP, hop_limit: ip::HOP_LIMIT };
            let udp = udp::header(message.into(), PORT, bytes.len());
            (header.ether_type(), [&header.bytes(udp.len() + bytes.len())[..], &udp, bytes].concat())
        }
        _ => {
            let body = [&bytes[..4.min(len)], &ADDRESS_V6.octets(), &bytes[4.min(len)..]].concat();
            let message = if kind & 1 == 0 { 135 } else { 136 };
            (ip::IPV6, icmp::packet(peer_v6, ADDRESS_V6.into(), ip::NEIGHBOUR_HOP_LIMIT, message, &body))
        }
    };
    let source = MacAddress([2, 0, 0, 0, 0, station]);
    let destination = if kind & 0x40 == 0 { STATION } else { MacAddress::BROADCAST };
    [&Header { destination, source, ether_type }.bytes()[..], &packet].concat()
}

/// Stations of an Ethernet send frames: each begins with its length, and a byte that says how it is made.
///
/// # Panics
/// When something grows beyond its limits, or a frame is answered with more than one.
pub fn frames(bytes: &[u8]) {
    let mut now = Instant(1);
    let network = |address: IpAddr, prefix| Network::new(address, prefix, None).expect("right");
    let networks = [network(ADDRESS_V4.into(), 24), network(ADDRESS_V6.into(), 64)];
    let mut stations = networks.map(|network| Station::new(STATION, network, now));
    let mut rest = bytes;
    while let Some(([len, kind], behind)) = rest.split_first_chunk::<2>() {
        let (bytes, behind) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = behind;
        let frame = made_frame(*kind, bytes);
        let Some(header) = Header::parse(&frame) else { continue };
        for station in &mut stations {
            let (_, _, waiting) = station.counts();
            let received = station.receive(&header, &frame[HEADER_LEN..], now).map(|datagram| datagram.peer.ip());
            let sent = std::iter::from_fn(|| station.poll()).count();
            assert!(sent <= 1 + waiting.min(WAITING_MAX), "{sent} frames");
            if let Some(peer) = received {
                station.send(peer, Wrapped::default(), now);
            }
            if kind & 0x80 != 0 {
                now = now + STEP * 40;
                station.expire(now);
            }
            while let Some(frame) = station.poll() {
                let frame = frame.to_vec();
                assert!(frame.len() >= FRAME_MIN.min(HEADERS_MAX - 20), "{}", frame.len());
            }
            let (known, unresolved, waiting) = station.counts();
            assert!(known <= NEIGHBOURS_MAX && unresolved <= UNRESOLVED_MAX && waiting <= WAITING_TOTAL_MAX);
            assert!(station.deadline().is_none_or(|deadline| deadline <= now + Duration::from_secs(3600)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            formats(&bytes);
            peer(&bytes);
            frames(&bytes);
        }
    }

    #[test]
    fn made_frames_reach_the_code_behind_the_checks() {
        let network = Network::new(ADDRESS_V4.into(), 24, None).expect("right");
        let mut station = Station::new(STATION, network, Instant(1));
        let mut answered = 0;
        for (kind, bytes) in [(2, &[7, 1, 9, 1][..]), (3, &[7, 8, 9]), (4, &[7, 200, 9])] {
            let frame = made_frame(kind, bytes);
            let header = Header::parse(&frame).expect("it is whole");
            let received = station.receive(&header, &frame[HEADER_LEN..], Instant(1)).is_some();
            answered += usize::from(received) + std::iter::from_fn(|| station.poll()).count();
        }
        assert_eq!(answered, 3);
    }

    #[test]
    fn recorded_packets_are_built_again() {
        for golden in golden::ALL {
            let bytes = golden.bytes();
            formats(&bytes[..bytes.len() - 4]);
        }
    }
}
