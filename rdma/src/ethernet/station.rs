//! A station of an Ethernet with one IP address, which carries the datagrams of an engine: frames and time go in,
//! datagrams and frames come out.
//!
//! A question is answered with one frame, which has at most one option more than the question. Nothing is remembered of
//! stations that only ask: their answer goes to where the question came from.

use super::arp::{self, Operation};
use super::claim::{Claim, Step};
use super::icmp;
use super::ip::{self, Malformed, Packet};
use super::limits::{ANSWERS_MAX, ECHOES_MAX, PERIOD, QUESTIONS_MAX};
use super::ndp::{self, ALL_NODES, group_mac, solicited_node};
use super::neighbours::{Binding, Neighbours, Question};
use super::network::Network;
use super::udp;
use crate::wire::PORT;
use lunar_core::time::Instant;
use lunar_link::{Filter, HEADER_LEN, Header, MacAddress, Rate, Wrapped};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The shortest frame, without its check sequence (IEEE 802.3-2022 3.2.7).
pub const FRAME_MIN: usize = 60;
/// Bytes of all headers before the payload of a datagram, at most.
pub const HEADERS_MAX: usize = HEADER_LEN + ip::HEADER_MAX + udp::HEADER_LEN;
/// The rate is that of this station.
const THIS_STATION: MacAddress = MacAddress([0; 6]);
/// A MAC address that is not known, in a request.
const UNKNOWN: MacAddress = MacAddress([0; 6]);

/// The EtherTypes that a station with this address receives.
#[must_use]
pub fn ether_types(address: IpAddr) -> Vec<u16> {
    if address.is_ipv4() { vec![ip::IPV4, arp::ETHER_TYPE] } else { vec![ip::IPV6] }
}

/// The groups that a station with this address receives.
#[must_use]
pub fn groups(address: IpAddr) -> Vec<Filter> {
    match address {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(address) => [ALL_NODES, solicited_node(address)].map(|group| Filter::Group(group_mac(group))).into(),
    }
}

/// Bytes of the headers between the header of a frame and the payload of a datagram.
#[must_use]
pub fn overhead(address: IpAddr) -> usize {
    udp::overhead(address)
}

/// A datagram that has arrived for the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received<'a> {
    /// Its sender.
    pub peer: SocketAddr,
    /// Identification, flags and fragment offset of its packet, which its check covers.
    pub fragmentation: [u8; 4],
    /// Its payload.
    pub payload: &'a [u8],
}

/// A frame to send.
#[derive(Debug)]
pub struct Frame {
    /// The headers.
    pub head: Head,
    /// The payload of a datagram, or the rest of a message.
    pub payload: Payload,
}

/// The headers of a frame.
#[derive(Debug)]
pub struct Head {
    bytes: [u8; HEADERS_MAX],
    len: usize,
}

impl std::ops::Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The bytes behind the headers of a frame.
#[derive(Debug)]
pub enum Payload {
    /// The payload of a datagram.
    Datagram(Wrapped),
    /// A message to neighbours.
    Message(Vec<u8>),
}

impl Frame {
    /// The bytes of the frame.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.head.to_vec();
        match &self.payload {
            Payload::Datagram(data) => bytes.extend(data.to_vec()),
            Payload::Message(message) => bytes.extend(message),
        }
        bytes
    }

    fn new(header: &Header, parts: &[&[u8]], payload: Payload) -> Self {
        let mut head = Head { bytes: [0; HEADERS_MAX], len: 0 };
        for part in [&header.bytes()[..]].iter().chain(parts) {
            head.bytes[head.len..head.len + part.len()].copy_from_slice(part);
            head.len += part.len();
        }
        Self { head, payload }
    }
}

/// Packets and datagrams that were dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Malformed packets, and those of no use for this station.
    pub strange: u64,
    /// Packets whose checksum is wrong.
    pub damaged: u64,
    /// Fragments.
    pub fragments: u64,
    /// Datagrams whose peer cannot be reached: it is outside of the network, or does not answer for its address.
    pub unreachable: u64,
    /// Requests that were not answered, because there were too many.
    pub unanswered: u64,
}

/// A station.
#[derive(Debug)]
pub struct Station {
    mac: MacAddress,
    network: Network,
    claim: Claim,
    neighbours: Neighbours,
    out: VecDeque<Frame>,
    answers: Rate,
    echoes: Rate,
    questions: Rate,
    counters: Counters,
}

impl Station {
    /// A station that begins to claim its address.
    #[must_use]
    pub fn new(mac: MacAddress, network: Network, now: Instant) -> Self {
        let rate = |(all, each)| Rate::new(PERIOD, all, each);
        Self {
            mac,
            network,
            claim: Claim::new(now),
            neighbours: Neighbours::default(),
            out: VecDeque::new(),
            answers: rate(ANSWERS_MAX),
            echoes: rate(ECHOES_MAX),
            questions: rate((QUESTIONS_MAX, QUESTIONS_MAX)),
            counters: Counters::default(),
        }
    }

    fn address(&self) -> IpAddr {
        self.network.address()
    }

    /// The station that has the address as well.
    #[must_use]
    pub fn conflict(&self) -> Option<MacAddress> {
        self.claim.conflict()
    }

    /// Packets and datagrams that were dropped since the last call.
    pub fn take_counters(&mut self) -> Counters {
        let mut counters = std::mem::take(&mut self.counters);
        counters.unreachable += self.neighbours.take_dropped();
        counters
    }

    /// As [`Neighbours::counts`].
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        self.neighbours.counts()
    }

    /// The next frame to send.
    pub fn poll(&mut self) -> Option<Frame> {
        self.out.pop_front()
    }

    /// When [`Station::expire`] is to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.claim.deadline().into_iter().chain(self.neighbours.deadline()).min()
    }

    /// Does what is due.
    pub fn expire(&mut self, now: Instant) {
        if let Some(step) = self.claim.expire(now) {
            self.tell(step);
        }
        let (questions, mut asked) = (&mut self.questions, Vec::new());
        self.neighbours.expire(now, |question| {
            let is_admitted = questions.admit(THIS_STATION, now);
            asked.extend(is_admitted.then_some(question));
            is_admitted
        });
        asked.into_iter().for_each(|question| self.ask(question));
    }

    /// Sends a datagram to the port of RoCEv2 of a peer.
    pub fn send(&mut self, peer: IpAddr, datagram: Wrapped, now: Instant) {
        let Some(hop) = self.network.next_hop(peer).filter(|_| self.claim.is_usable()) else {
            self.counters.unreachable += 1;
            return;
        };
        match self.neighbours.find(hop, now) {
            Some(mac) => self.send_to(mac, peer, datagram),
            None => {
                self.neighbours.wait(hop, (peer, datagram));
                self.expire(now);
            }
        }
    }

    fn send_to(&mut self, destination: MacAddress, peer: IpAddr, datagram: Wrapped) {
        let header = ip::Header { from: self.address(), to: peer, protocol: ip::UDP, hop_limit: ip::HOP_LIMIT };
        let ethernet = Header { destination, source: self.mac, ether_type: header.ether_type() };
        let udp = udp::header(PORT, PORT, datagram.len());
        let ip = header.bytes(udp.len() + datagram.len());
        self.out.push_back(Frame::new(&ethernet, &[&ip[..], &udp[..]], Payload::Datagram(datagram)));
    }

    /// Sends a message of ARP, or a packet to neighbours.
    fn say(&mut self, destination: MacAddress, ether_type: u16, mut message: Vec<u8>) {
        let header = Header { destination, source: self.mac, ether_type };
        message.resize(message.len().max(FRAME_MIN - HEADER_LEN), 0);
        self.out.push_back(Frame::new(&header, &[], Payload::Message(message)));
    }

    fn say_arp(&mut self, destination: MacAddress, operation: Operation, ends: [(MacAddress, Ipv4Addr); 2]) {
        let [sender, target] = ends;
        let message = arp::Message { operation, sender, target };
        self.say(destination, arp::ETHER_TYPE, message.bytes().to_vec());
    }

    fn say_ndp(&mut self, destination: MacAddress, ends: [Ipv6Addr; 2], message: &ndp::Message) {
        let [from, to] = ends;
        self.say(destination, ip::IPV6, message.packet(from, to));
    }

    /// Claims the address (RFC 5227 sections 2.1.1 and 2.3; RFC 4862 section 5.4.2, RFC 4861 section 7.2.6).
    fn tell(&mut self, step: Step) {
        match self.address() {
            IpAddr::V4(own) => {
                let sender = if step == Step::Probe { Ipv4Addr::UNSPECIFIED } else { own };
                let ends = [(self.mac, sender), (UNKNOWN, own)];
                self.say_arp(MacAddress::BROADCAST, Operation::REQUEST, ends);
            }
            IpAddr::V6(own) if step == Step::Probe => {
                let group = solicited_node(own);
                let message = ndp::Message::Solicitation { target: own, sender: None };
                self.say_ndp(group_mac(group), [Ipv6Addr::UNSPECIFIED, group], &message);
            }
            IpAddr::V6(own) => self.advertise(own, group_mac(ALL_NODES), None),
        }
    }

    /// Tells the MAC address of this station: the answer to a question of this address, or `None`: to all.
    fn advertise(&mut self, own: Ipv6Addr, destination: MacAddress, to: Option<Ipv6Addr>) {
        let (mac, is_solicited) = (Some(self.mac), to.is_some());
        let message = ndp::Message::Advertisement { target: own, mac, is_solicited, overrides: true };
        self.say_ndp(destination, [own, to.unwrap_or(ALL_NODES)], &message);
    }

    /// Asks for the MAC address of a neighbour: all stations, or the one that it was.
    fn ask(&mut self, question: Question) {
        match (self.address(), question.address) {
            (IpAddr::V4(own), IpAddr::V4(target)) => {
                let destination = question.mac.unwrap_or(MacAddress::BROADCAST);
                self.say_arp(destination, Operation::REQUEST, [(self.mac, own), (UNKNOWN, target)]);
            }
            (IpAddr::V6(own), IpAddr::V6(target)) => {
                let group = solicited_node(target);
                let (destination, to) = question.mac.map_or_else(|| (group_mac(group), group), |mac| (mac, target));
                let message = ndp::Message::Solicitation { target, sender: Some(self.mac) };
                self.say_ndp(destination, [own, to], &message);
            }
            // A neighbour is of the network of this station.
            _ => {}
        }
    }

    /// Takes a frame. Returns a datagram for the engine.
    pub fn receive<'a>(&mut self, header: &Header, bytes: &'a [u8], now: Instant) -> Option<Received<'a>> {
        if header.source == self.mac || header.source.is_group() {
            return None;
        }
        if header.ether_type == arp::ETHER_TYPE {
            match (arp::Message::parse(bytes), self.address()) {
                (Some(message), IpAddr::V4(own)) => self.receive_arp(header, &message, own, now),
                _ => self.counters.strange += 1,
            }
            return None;
        }
        let packet = match Packet::parse(header.ether_type, bytes) {
            Ok(packet) => packet,
            Err(why) => {
                self.count(why);
                return None;
            }
        };
        let (is_ipv4, is_own) = (packet.from.is_ipv4(), packet.to == self.address());
        match packet.protocol {
            // A packet in a frame to a group is not answered (RFC 1122 3.3.6).
            ip::UDP if is_own && header.destination == self.mac => self.receive_datagram(&packet),
            ip::ICMP if is_ipv4 && is_own => {
                self.receive_icmp(header, &packet, now);
                None
            }
            ip::ICMPV6 if !is_ipv4 && (is_own || packet.to.is_multicast()) => {
                self.receive_icmp(header, &packet, now);
                None
            }
            _ => {
                // Groups have other traffic as well.
                self.counters.strange += u64::from(is_own);
                None
            }
        }
    }

    fn count(&mut self, why: Malformed) {
        let counter = match why {
            Malformed::Format => &mut self.counters.strange,
            Malformed::Checksum => &mut self.counters.damaged,
            Malformed::Fragment => &mut self.counters.fragments,
        };
        *counter += 1;
    }

    fn receive_datagram<'a>(&mut self, packet: &Packet<'a>) -> Option<Received<'a>> {
        match udp::Datagram::parse(packet) {
            Ok(datagram) if datagram.to != PORT || !self.claim.is_usable() => self.counters.strange += 1,
            Ok(_) if self.network.next_hop(packet.from).is_none() => self.counters.unreachable += 1,
            Ok(datagram) => {
                let peer = SocketAddr::new(packet.from, datagram.from);
                return Some(Received { peer, fragmentation: packet.fragmentation, payload: datagram.payload });
            }
            Err(why) => self.count(why),
        }
        None
    }

    /// Takes what a neighbour has told, and sends what has waited for it.
    fn learn(&mut self, binding: Binding, now: Instant) {
        let Some((mac, waiting)) = self.neighbours.learn(binding, now) else { return };
        waiting.into_iter().for_each(|(peer, datagram)| self.send_to(mac, peer, datagram));
    }

    /// Whether a station is answered now.
    fn admits(&mut self, station: MacAddress, now: Instant) -> bool {
        let is_admitted = self.claim.is_usable() && self.answers.admit(station, now);
        self.counters.unanswered += u64::from(!is_admitted);
        is_admitted
    }

    fn contest(&mut self, station: MacAddress, now: Instant) {
        if let Some(step) = self.claim.contested(station, now) {
            self.tell(step);
        }
    }

    fn receive_arp(&mut self, header: &Header, message: &arp::Message, own: Ipv4Addr, now: Instant) {
        let (station, sender) = message.sender;
        if station == self.mac {
            return;
        }
        if sender == own {
            return self.contest(station, now);
        }
        if message.operation == Operation::REQUEST && message.target.1 == own {
            if sender.is_unspecified() {
                self.claim.probed(station, now);
            }
            if self.admits(header.source, now) {
                self.say_arp(station, Operation::REPLY, [(self.mac, own), message.sender]);
            }
        }
        let is_solicited = message.operation == Operation::REPLY && header.destination == self.mac;
        self.learn(Binding { address: sender.into(), mac: Some(station), is_solicited, overrides: true }, now);
    }

    fn receive_icmp(&mut self, header: &Header, packet: &Packet<'_>, now: Instant) {
        let message = match icmp::Message::parse(packet) {
            Ok(message) => message,
            Err(why) => return self.count(why),
        };
        let is_echo = message.is_echo_request(packet.from.is_ipv4());
        if is_echo && packet.to == self.address() && header.destination == self.mac {
            return self.receive_echo(header, packet, &message, now);
        }
        let (IpAddr::V6(own), Some(message)) = (self.address(), ndp::Message::parse(packet, &message)) else { return };
        match message {
            ndp::Message::Solicitation { target, sender } if target == own => {
                self.receive_solicitation(header, packet.from, sender, now);
            }
            ndp::Message::Advertisement { target, mac, .. } if target == own => {
                // It can be the echo of an own one, which a switch has sent back.
                if mac != Some(self.mac) {
                    self.contest(mac.unwrap_or(header.source), now);
                }
            }
            ndp::Message::Advertisement { target, mac, is_solicited, overrides } => {
                self.learn(Binding { address: target.into(), mac, is_solicited, overrides }, now);
            }
            ndp::Message::Solicitation { .. } => {}
        }
    }

    /// RFC 4861 section 7.2.4; a probe is answered to all (RFC 4862 section 5.4.3).
    fn receive_solicitation(&mut self, header: &Header, from: IpAddr, sender: Option<MacAddress>, now: Instant) {
        let (IpAddr::V6(own), IpAddr::V6(from)) = (self.address(), from) else { return };
        if from == own {
            return self.contest(header.source, now);
        }
        if from.is_multicast() {
            self.counters.strange += 1;
            return;
        }
        if from.is_unspecified() {
            self.claim.probed(header.source, now);
            if self.admits(header.source, now) {
                self.advertise(own, group_mac(ALL_NODES), None);
            }
            return;
        }
        if self.admits(header.source, now) {
            self.advertise(own, sender.unwrap_or(header.source), Some(from));
        }
        if sender.is_some() {
            // RFC 4861 section 7.2.3: it replaces what is known.
            self.learn(Binding { address: from.into(), mac: sender, is_solicited: false, overrides: true }, now);
        }
    }

    /// Answers to where the request came from, so that nothing has to be remembered.
    fn receive_echo(&mut self, header: &Header, packet: &Packet<'_>, message: &icmp::Message<'_>, now: Instant) {
        let is_peer = self.network.next_hop(packet.from).is_some() || is_link_local(packet.from);
        if !is_peer || !self.claim.is_usable() || !self.echoes.admit(header.source, now) {
            self.counters.unanswered += 1;
            return;
        }
        let reply = icmp::echo_reply(self.address(), packet.from, message);
        self.say(header.source, header.ether_type, reply);
    }
}

/// Whether an address is a unicast one of this link only (RFC 4291 section 2.5.6).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
#[path = "station_tests.rs"]
mod tests;
