//! A reliable connection.

use crate::requester::{Completed, Failed, Outgoing, Requester};
use crate::responder::{Receives, Responder};
use crate::wire::{Extension, Kind, Packet, Psn};
use lunar_core::time::Instant;
use lunar_verbs::library::status::Status;
use std::borrow::Cow;

/// The settings of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The path MTU: bytes of a payload.
    pub mtu: usize,
    /// The number of the first packet that is sent.
    pub first: Psn,
    /// The number of the first packet that is expected.
    pub expected: Psn,
    /// RDMA READs that may be outstanding.
    pub reads: u8,
    /// The messages that the peer may send.
    pub receives: Receives,
}

/// A reliable connection.
#[derive(Debug)]
pub struct Connection {
    requester: Requester,
    responder: Responder,
    /// It has failed: what is queued is not sent.
    has_failed: bool,
}

/// The effect of a packet.
#[derive(Debug)]
pub enum Effect<'a> {
    /// Nothing that the upper layer has to know.
    None,
    /// A message.
    Message(Cow<'a, [u8]>),
    /// An RDMA READ is complete.
    Read(Completed),
    /// The connection has ended.
    Failed(Why),
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The peer has not answered, or has refused something.
    Peer(Failed),
    /// The peer has broken the rules of the protocol.
    Broken,
    /// A device reports this.
    Device(Status),
}

impl Connection {
    /// A connection.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let requester = Requester::new(settings.mtu, settings.first, settings.reads);
        let responder = Responder::new(settings.mtu, settings.expected, settings.receives);
        Self { requester, responder, has_failed: false }
    }

    /// The sending half.
    pub fn requester(&mut self) -> &mut Requester {
        &mut self.requester
    }

    /// So many more messages may come.
    pub fn post(&mut self, count: usize) {
        self.responder.post(count);
    }

    /// Bytes that are not acknowledged, as [`Requester::queued`] counts them.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.requester.queued()
    }

    /// As [`Requester::counts`].
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.requester.counts()
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requester.is_idle()
    }

    /// Takes a packet.
    pub fn receive<'a>(&mut self, packet: &Packet<'a>, now: Instant) -> Effect<'a> {
        if self.has_failed {
            return Effect::None;
        }
        let effect = self.take(packet, now);
        self.responder.post(self.requester.take_posts());
        effect
    }

    fn take<'a>(&mut self, packet: &Packet<'a>, now: Instant) -> Effect<'a> {
        match (packet.layout.kind, packet.extension) {
            (Kind::Acknowledge, Extension::Acknowledge(syndrome, _)) => {
                match self.requester.acknowledged(packet.psn, syndrome, now) {
                    Ok(()) => Effect::None,
                    Err(why) => self.fail(Why::Peer(why)),
                }
            }
            (Kind::ReadResponse, _) => self.requester.response(packet, now).map_or(Effect::None, Effect::Read),
            (Kind::Acknowledge | Kind::Datagram, _) => Effect::None,
            _ => match self.responder.receive(packet) {
                Ok(message) => message.map_or(Effect::None, Effect::Message),
                Err(_) => self.fail(Why::Broken),
            },
        }
    }

    fn fail(&mut self, why: Why) -> Effect<'static> {
        self.has_failed = true;
        Effect::Failed(why)
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.responder.has_answer() || (!self.has_failed && self.requester.is_ready())
    }

    /// The answer that waits to be sent.
    pub fn last_answer(&mut self) -> Option<(Psn, Extension)> {
        let (psn, syndrome, sequence) = self.responder.poll()?;
        Some((psn, Extension::Acknowledge(syndrome, sequence)))
    }

    /// The next packet to send.
    pub fn poll(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some((psn, extension)) = self.last_answer() {
            return Some(Outgoing::acknowledgement(psn, extension));
        }
        if self.has_failed { None } else { self.requester.poll(now) }
    }

    /// When [`Connection::expire`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.requester.deadline().filter(|_| !self.has_failed)
    }

    /// Does what is due; `Some`: the connection has ended.
    pub fn expire(&mut self, now: Instant) -> Option<Why> {
        let why = self.requester.expire(now).err().filter(|_| !self.has_failed)?;
        self.has_failed = true;
        Some(Why::Peer(why))
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
