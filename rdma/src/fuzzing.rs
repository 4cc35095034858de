//! Entry points of the fuzz target: a peer that sends anything.

use crate::engine::{Accept, ConnectionId, Engine, Event, Payload};
use crate::golden;
use crate::icrc::Checker;
use crate::limits::{CONNECTIONS_MAX, MESSAGES_MAX};
use crate::mad::{Body, Message};
use crate::responder::Receives;
use crate::wire::{Head, Packet, Remote};
use lunar_core::mem::{Arena, Sg};
use lunar_core::time::Instant;
use std::net::{IpAddr, Ipv4Addr};
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
                    self.engine.accept(id, &Accept { private: &[], receives }, self.now);
                    self.id = id;
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
        assert!(self.engine.connections() <= CONNECTIONS_MAX && self.engine.messages_queued() <= MESSAGES_MAX);
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
        self.engine.post(id);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            formats(&bytes);
            peer(&bytes);
        }
    }

    #[test]
    fn recorded_packets_are_built_again() {
        for golden in golden::ALL {
            let bytes = golden.bytes();
            formats(&bytes[..bytes.len() - 4]);
        }
    }
}
