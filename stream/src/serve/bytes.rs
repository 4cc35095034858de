//! The bytes between a connection and its peer.

use lunar_core::io::{Completion, Fault, Outcome};
use lunar_core::mem::{Sg, SgMut};
use lunar_reactor::Reactor;
use lunar_reactor::op::Handle;

/// Where a connection's bytes come from and go to. All that it does with its socket goes through here, so what may lie
/// between the two, such as encryption, has its place here and nowhere else.
pub(super) struct Bytes {
    reactor: Reactor,
    socket: Handle,
}

impl Bytes {
    pub(super) fn new(reactor: &Reactor, socket: Handle) -> Self {
        Self { reactor: reactor.clone(), socket }
    }

    /// Bytes from the peer: how many (0: it has closed its side), and the memory, filled from its start.
    /// [`Fault::Aborted`] after [`Bytes::cancel`].
    pub(super) fn receive(
        &self,
        into: SgMut,
        completion: &mut Completion,
    ) -> impl Future<Output = (Result<usize, Fault>, SgMut)> {
        self.reactor.receive(&self.socket, into, completion)
    }

    /// Starts to send all of `data`; the answer, which may be there at once, is `completion`'s, and
    /// [`Bytes::end_send`] says what it means.
    pub(super) fn begin_send(&self, data: Sg, completion: &mut Completion) {
        self.reactor.begin_send(&self.socket, data, completion);
    }

    /// What the answer of a send says: an error if the connection broke.
    pub(super) fn end_send(&self, outcome: &Outcome) -> Result<usize, Fault> {
        self.reactor.end_send(outcome)
    }

    /// What is under way comes back, received or sent or not.
    pub(super) fn cancel(&self) {
        self.reactor.driver().cancel(&self.socket);
    }

    /// Nothing more is sent, and the peer is told so.
    pub(super) fn shutdown(&self) {
        self.reactor.driver().shutdown(&self.socket);
    }
}
