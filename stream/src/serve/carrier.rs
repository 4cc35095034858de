//! Carriers: connections over something other than a socket that receives and sends bytes in order, such as RDMA.

use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_reactor::op::Handle;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Moves the bytes of one connection.
pub trait Carrier {
    /// Takes bytes to send: all that a session has queued, so whole PDUs. They are taken even without room.
    fn send(&self, data: Sg);

    /// Whether there is room for more; wakes the task when there is.
    ///
    /// # Errors
    /// The connection has ended.
    fn poll_room(&self, cx: &Context<'_>) -> Poll<Result<(), Fault>>;

    /// Receives into memory; returns how many bytes. None: the peer has ended the connection.
    ///
    /// # Errors
    /// [`Fault::Aborted`]: see [`Carrier::cancel`].
    fn poll_receive(&self, cx: &Context<'_>, memory: &mut SgMut) -> Poll<Result<usize, Fault>>;

    /// Waits until all data that it reads now from memory of the peer has arrived, or the connection has ended.
    fn until_read(&self) -> Pin<Box<dyn Future<Output = ()>>>;

    /// Ends the receive in progress.
    fn cancel(&self);

    /// Ends the connection when everything that was sent has arrived.
    fn shut_down(&self);
}

/// The mover of the bytes of a connection.
pub enum Wire {
    /// A socket.
    Socket(Handle),
    /// A carrier.
    Carrier(Rc<dyn Carrier>),
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket(_) => "Socket",
            Self::Carrier(_) => "Carrier",
        })
    }
}
