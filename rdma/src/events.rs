//! The requests to an engine, and its events and packets.

use crate::connection::Why;
use crate::mad::{self, REQUEST_PRIVATE};
use crate::requester::{Attempt, Completed};
use crate::responder::Receives;
use crate::wire::Head;
use lunar_core::mem::Sg;
use std::net::IpAddr;

/// The number of a connection: that of its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// An event.
#[derive(Debug)]
pub enum Event {
    /// A peer requests a connection: it is accepted or rejected, now or later.
    Request {
        /// The connection.
        id: ConnectionId,
        /// The peer.
        peer: IpAddr,
        /// The data of the protocol above.
        private: [u8; REQUEST_PRIVATE],
    },
    /// A READ is complete.
    Read(ConnectionId, Completed),
    /// Some of what was queued is acknowledged.
    Progress(ConnectionId),
    /// The connection has ended.
    Closed(ConnectionId, Ended),
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// This end has disconnected.
    Here,
    /// The peer has disconnected, or has requested another connection in its place.
    Peer,
    /// The peer was never ready, or the request was not answered here in time, or others needed its place before.
    Late,
    /// It has failed.
    Failed(Why),
}

/// How a request is accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accept<'a> {
    /// The data of the protocol above.
    pub private: &'a [u8],
    /// The messages that the peer may send.
    pub receives: Receives,
    /// Of these, so many may not come before they are posted.
    pub held_back: usize,
}

impl<'a> Accept<'a> {
    /// Accepts with this data of the protocol above, and lets the peer send all of these messages.
    #[must_use]
    pub fn new(private: &'a [u8], receives: Receives) -> Self {
        Self { private, receives, held_back: 0 }
    }

    /// The messages that the peer may send at first.
    pub(crate) fn first(&self) -> Receives {
        Receives { count: self.receives.count.saturating_sub(self.held_back), ..self.receives }
    }
}

/// Why a request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotAccepted {
    /// The peer has given up meanwhile: nobody waits for an answer.
    Gone,
    /// There is no room for another connection of the peer. The request still waits for its answer, a rejection.
    NoRoom,
}

/// A packet to send.
#[derive(Debug)]
pub struct Outgoing {
    /// The receiver, at [`crate::wire::PORT`].
    pub peer: IpAddr,
    /// Its headers.
    pub head: Head,
    /// Its payload.
    pub payload: Payload,
    /// Whether it is sent for the first time.
    pub attempt: Attempt,
}

/// A payload.
#[derive(Debug)]
pub enum Payload {
    /// Memory.
    Memory(Sg),
    /// A message of the connection manager.
    Message(Box<[u8; mad::LEN]>),
}

/// Packets that were dropped or sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets of no connection, and malformed ones.
    pub strange: u64,
    /// Packets that were sent more than once.
    pub repeated: u64,
}
