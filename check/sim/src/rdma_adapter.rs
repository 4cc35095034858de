//! An RDMA adapter of a host, without I/O: what all initiators over RDMA in the simulation share.

use lunar_core::time::Instant;
use lunar_rdma::icrc::{self, Checker};
use lunar_rdma::mad::{Body, Message, Reply, Request};
use lunar_rdma::requester::Requester;
use lunar_rdma::testing::{self, Peer, Random};
use lunar_rdma::wire::{Extension, Kind, MANAGER_Q_KEY, MANAGER_QPN, NUMBER_BITS, Opcode, PORT, Packet, Psn};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The address of the target.
pub const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 1));
/// The time between two requests for a connection.
pub const INTERVAL: Duration = Duration::from_millis(700);
/// The time without any packet after which commands are given up, and begin again over another connection.
pub const SILENCE: Duration = Duration::from_secs(40);

/// The address of the initiator of this number.
#[must_use]
pub fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 168, 1, 1 + number).into()
}

fn target() -> SocketAddr {
    SocketAddr::new(TARGET, PORT)
}

/// An adapter.
pub struct Adapter {
    local: SocketAddr,
    checker: Checker,
    out: VecDeque<Vec<u8>>,
    manager_psn: Psn,
}

/// A connection.
pub struct Pair {
    /// Its numbers here and at the target.
    pub ids: (u32, u32),
    /// The number of the own queue pair.
    pub own_qpn: u32,
    /// The number of the queue pair of the target.
    pub qpn: u32,
    /// The half that sends.
    pub requester: Requester,
    /// The memory of this end, and the half that receives.
    pub peer: Peer,
    /// When a packet has arrived last.
    pub heard: Instant,
}

/// A request for a connection to this service.
pub fn request(service: u16, private: [u8; 56], random: &mut Random) -> Request {
    let mut below = |end: u64| random.below(end) as u32;
    Request {
        id: below(1 << 32),
        port: Some(service),
        qpn: 2 + below(u64::from(NUMBER_BITS) - 2),
        reads: 1 + below(4) as u8,
        psn: below(u64::from(NUMBER_BITS)),
        is_reliable: true,
        mtu: 1 + below(3) as u8,
        private,
    }
}

impl Pair {
    /// The connection of a request that was accepted, with so much memory.
    #[must_use]
    pub fn new(request: &Request, reply: &Reply, memory: usize, now: Instant) -> Self {
        let mtu = 128 << request.mtu;
        Self {
            ids: (request.id, reply.ids.0),
            own_qpn: request.qpn,
            qpn: reply.qpn,
            requester: Requester::new(mtu, Psn::new(reply.psn), 0),
            peer: Peer::new(mtu, Psn::new(request.psn), vec![0; memory]),
            heard: now,
        }
    }
}

impl Adapter {
    /// The adapter of the initiator of this number.
    #[must_use]
    pub fn new(number: u8) -> Self {
        let local = SocketAddr::new(address(number), PORT);
        Self { local, checker: Checker::default(), out: VecDeque::new(), manager_psn: Psn::default() }
    }

    /// The next datagram to send.
    pub fn next_datagram(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// A packet whose check is right, without its check.
    pub fn check(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.checker.check(target(), self.local, bytes).map(<[u8]>::to_vec)
    }

    /// Queues a packet with its check.
    fn put(&mut self, packet: &[u8]) {
        let (head, rest) = packet.split_at(12);
        let check = icrc::of_parts(self.local, target(), 0, head, std::iter::once(rest));
        self.out.push_back([packet, &check.to_le_bytes()].concat());
    }

    fn put_to(&mut self, qpn: u32, mut packet: Vec<u8>) {
        packet[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        self.put(&packet);
    }

    /// Sends a message of the connection manager.
    pub fn say(&mut self, body: Body) {
        let message = Message { transaction: 9, body }.bytes();
        let extension = Extension::Datagram(MANAGER_Q_KEY, MANAGER_QPN);
        let packet = testing::packet(Opcode::DATAGRAM, self.manager_psn, false, extension, &message);
        self.manager_psn = self.manager_psn.plus(1);
        self.put_to(MANAGER_QPN, packet);
    }

    /// Says that a connection has ended.
    pub fn disconnect(&mut self, pair: &Pair) {
        self.say(Body::Disconnect(pair.ids.0, pair.ids.1, pair.qpn));
    }

    /// Takes a packet of a connection, and answers it. `None`: the connection has failed.
    pub fn take(&mut self, pair: &mut Pair, packet: &Packet<'_>, bytes: &[u8], now: Instant) -> Option<Vec<Vec<u8>>> {
        pair.heard = now;
        if let (Kind::Acknowledge, Extension::Acknowledge(syndrome, _)) = (packet.layout.kind, packet.extension) {
            pair.requester.acknowledged(packet.psn, syndrome, now).ok()?;
            return Some(Vec::new());
        }
        let answers = pair.peer.receive(bytes);
        answers.into_iter().for_each(|answer| self.put_to(pair.qpn, answer));
        Some(std::mem::take(&mut pair.peer.messages))
    }

    /// Sends what a connection has to send.
    pub fn send(&mut self, pair: &mut Pair, now: Instant) {
        while let Some(packet) = pair.requester.poll(now) {
            self.put_to(pair.qpn, testing::sent(&packet));
        }
    }
}
