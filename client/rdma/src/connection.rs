//! A reliable connection: the half that sends messages, and the half that answers the peer.

use crate::keys::Keys;
use crate::responder::Responder;
use lunar_core::time::Instant;
use lunar_rdma::connection::Why;
use lunar_rdma::requester::{Message, Outgoing, Requester};
use lunar_rdma::wire::{Extension, Kind, Packet, Psn};
use std::borrow::Cow;

/// The settings of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// The path MTU: bytes of a payload.
    pub(crate) mtu: usize,
    /// The number of the first packet that is sent.
    pub(crate) first: Psn,
    /// The number of the first packet that is expected.
    pub(crate) expected: Psn,
    /// RDMA READs of the peer.
    pub(crate) reads: u8,
    /// The most bytes of a message of the peer.
    pub(crate) message_max: usize,
}

/// A reliable connection.
#[derive(Debug)]
pub(crate) struct Connection {
    requester: Requester,
    responder: Responder,
}

/// The effect of a packet.
#[derive(Debug)]
pub(crate) enum Effect<'a> {
    /// Nothing that the user has to know.
    None,
    /// A message.
    Message(Cow<'a, [u8]>),
    /// The connection has failed.
    Failed(Why),
}

impl Connection {
    pub(crate) fn new(settings: &Settings) -> Self {
        let Settings { mtu, first, expected, reads, message_max } = *settings;
        Self {
            // This end reads no memory of the peer.
            requester: Requester::new(mtu, first, 0),
            responder: Responder::new(mtu, expected, message_max, reads),
        }
    }

    pub(crate) fn keys(&mut self) -> &mut Keys {
        &mut self.responder.keys
    }

    pub(crate) fn send(&mut self, message: Message) {
        self.requester.send(message);
    }

    /// Messages that are not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        let (queued, acknowledged) = self.requester.counts();
        queued - acknowledged
    }

    /// Takes a packet.
    pub(crate) fn receive<'a>(&mut self, packet: &Packet<'a>, now: Instant) -> Effect<'a> {
        match (packet.layout.kind, packet.extension) {
            (Kind::Acknowledge, Extension::Acknowledge(syndrome, _)) => {
                match self.requester.acknowledged(packet.psn, syndrome, now) {
                    Ok(()) => Effect::None,
                    Err(why) => Effect::Failed(Why::Peer(why)),
                }
            }
            (Kind::Acknowledge | Kind::ReadResponse | Kind::Datagram, _) => Effect::None,
            _ => match self.responder.receive(packet) {
                Ok(message) => message.map_or(Effect::None, Effect::Message),
                Err(_) => Effect::Failed(Why::Broken),
            },
        }
    }

    /// Whether there is something to send.
    pub(crate) fn is_ready(&self) -> bool {
        self.requester.is_ready() || self.responder.has_answer()
    }

    /// The next packet to send. Messages are short, and do not wait for long answers.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Outgoing> {
        self.requester.poll(now).or_else(|| self.responder.poll())
    }

    /// The answer to the packet after which the connection has failed.
    pub(crate) fn last_answer(&mut self) -> Option<Outgoing> {
        self.responder.poll()
    }

    /// Packets that were sent more than once, since the last call.
    pub(crate) fn take_repeated(&mut self) -> u64 {
        self.requester.take_repeated()
    }

    /// When [`Connection::expire`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.requester.deadline()
    }

    /// Does what is due; `Some`: the connection has failed.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Why> {
        self.requester.expire(now).err().map(Why::Peer)
    }
}
