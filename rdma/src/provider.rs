//! The operations of the protocols above on the connections of a port, whatever provides them: the engine in user
//! space, or an RDMA device. And what a port tells these protocols.

use crate::engine::Engine;
use crate::events::{Accept, ConnectionId, Event, NotAccepted};
use crate::requester::Message;
use crate::responder::Receives;
use crate::wire::Remote;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::time::Instant;

/// The connections of a port. Operations of a connection take effect in the order in which they were queued; only a
/// READ may complete after what was queued behind it.
pub trait Provider {
    /// Accepts a request.
    ///
    /// # Errors
    /// [`NotAccepted`].
    fn accept(&mut self, id: ConnectionId, accept: &Accept<'_>, now: Instant) -> Result<(), NotAccepted>;

    /// Rejects a request.
    fn reject(&mut self, id: ConnectionId, private: &[u8]);

    /// Sends a message; returns whether the connection is established.
    fn send(&mut self, id: ConnectionId, message: Message) -> bool;

    /// Writes into memory of the peer; returns whether the connection is established.
    fn write(&mut self, id: ConnectionId, to: Remote, data: Sg) -> bool;

    /// Reads memory of the peer, as much as there is room for; returns whether the connection is established.
    fn read(&mut self, id: ConnectionId, from: Remote, into: SgMut, token: u64) -> bool;

    /// So many more messages may come.
    fn post(&mut self, id: ConnectionId, count: usize);

    /// RDMA READs of a connection that are outstanding at most. Without any, its peer can send no data to a target.
    fn reads(&self, id: ConnectionId) -> u8;

    /// Has no more READs outstanding than so many from now on.
    fn limit_reads(&mut self, id: ConnectionId, most: u8);

    /// How many more connections of the peer, each with so many messages, may be accepted now.
    fn left(&self, id: ConnectionId, receives: Receives) -> usize;

    /// Bytes of messages and writes that are not acknowledged, and [`crate::limits::ENTRY_BYTES`] for each of them and
    /// for each READ.
    fn queued(&self, id: ConnectionId) -> usize;

    /// Operations that were queued so far, and those of them that are acknowledged or complete; `None`: the connection
    /// has ended.
    fn counts(&self, id: ConnectionId) -> Option<(u64, u64)>;

    /// Ends a connection. Its end is not reported.
    fn disconnect(&mut self, id: ConnectionId, now: Instant);

    /// Ends a connection, and reports its end as any other.
    fn fail(&mut self, id: ConnectionId, now: Instant);
}

/// The protocol above a port.
pub trait Upper {
    /// A message of a connection has arrived.
    fn message(&self, id: ConnectionId, bytes: &[u8]);

    /// Something has happened.
    fn event(&self, event: Event);

    /// The socket or link has failed: nothing arrives any more.
    fn failed(&self);

    /// The address has trouble, which operators have to know; `None`: it has none any more.
    fn trouble(&self, trouble: Option<String>);
}

impl Provider for Engine {
    fn accept(&mut self, id: ConnectionId, accept: &Accept<'_>, now: Instant) -> Result<(), NotAccepted> {
        Self::accept(self, id, accept, now)
    }

    fn reject(&mut self, id: ConnectionId, private: &[u8]) {
        Self::reject(self, id, private);
    }

    fn send(&mut self, id: ConnectionId, message: Message) -> bool {
        Self::send(self, id, message)
    }

    fn write(&mut self, id: ConnectionId, to: Remote, data: Sg) -> bool {
        Self::write(self, id, to, data)
    }

    fn read(&mut self, id: ConnectionId, from: Remote, into: SgMut, token: u64) -> bool {
        Self::read(self, id, from, into, token)
    }

    fn post(&mut self, id: ConnectionId, count: usize) {
        Self::post(self, id, count);
    }

    fn reads(&self, id: ConnectionId) -> u8 {
        Self::reads(self, id)
    }

    fn limit_reads(&mut self, id: ConnectionId, most: u8) {
        Self::limit_reads(self, id, most);
    }

    /// Messages of a peer take memory of their own only while their packets arrive.
    fn left(&self, id: ConnectionId, _receives: Receives) -> usize {
        Self::left(self, id)
    }

    fn queued(&self, id: ConnectionId) -> usize {
        Self::queued(self, id)
    }

    fn counts(&self, id: ConnectionId) -> Option<(u64, u64)> {
        Self::counts(self, id)
    }

    fn disconnect(&mut self, id: ConnectionId, now: Instant) {
        Self::disconnect(self, id, now);
    }

    fn fail(&mut self, id: ConnectionId, now: Instant) {
        Self::fail(self, id, now);
    }
}
