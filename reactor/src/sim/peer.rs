//! The client end of a connection, in the hands of test code.

use super::World;
use super::link::Side;
use lunar_core::io::Fault;
use lunar_core::time::Instant;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::task::{Context, Poll};

impl World {
    /// Connects to a listener. If there is none, receives report it.
    #[must_use]
    pub fn connect(&self, to: SocketAddr) -> Peer {
        let link = self.enter(|state| state.connect(to));
        Peer::new(self.clone(), link)
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// `ConnectionRefused` when no core listens at this path.
    pub fn connect_local(&self, path: &Path) -> io::Result<Peer> {
        let link = self.enter(|state| {
            let address = state.socket_paths.get(path).copied()?;
            Some(state.connect_as(address, true))
        });
        link.map(|link| Peer::new(self.clone(), link)).ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }

    /// Takes the signals of an eventfd that was given to a core; pending until there is one.
    pub fn poll_signal(&self, cx: &mut Context<'_>, eventfd: &OwnedFd) -> Poll<()> {
        // An eventfd without a signal cannot be read.
        if rustix::io::read(eventfd, &mut [0; 8]).is_ok() {
            return Poll::Ready(());
        }
        self.enter(|state| state.keep_signal_waker(cx.waker()));
        Poll::Pending
    }
}

/// An eventfd for a client of the simulation, which [`World::poll_signal`] waits for.
///
/// # Errors
/// Errors of the operating system.
pub fn eventfd() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A connection's client end. Its futures run on any core of the world; dropping it closes it.
pub struct Peer {
    world: World,
    link: u32,
}

impl Peer {
    pub(super) fn new(world: World, link: u32) -> Self {
        Self { world, link }
    }

    /// Its number in the trace.
    #[must_use]
    pub fn link(&self) -> u32 {
        self.link
    }

    /// Sends what there is room for: how much that was.
    ///
    /// # Errors
    /// When the connection is reset, or [`Peer::shutdown`] was called.
    pub fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Fault>> {
        match self.world.enter(|state| state.poll_put(self.link, bytes, cx.waker())) {
            Ok(0) if !bytes.is_empty() => Poll::Pending,
            other => Poll::Ready(other),
        }
    }

    /// Sends all of it, however long that takes.
    ///
    /// # Errors
    /// When the connection is reset, or [`Peer::shutdown`] was called.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        while at < bytes.len() {
            at += poll_fn(|cx| self.poll_send(cx, &bytes[at..])).await?;
        }
        Ok(())
    }

    /// The same, with copies of descriptors, which come with the first of the bytes.
    ///
    /// # Errors
    /// When the other side has closed, or a descriptor cannot be copied.
    pub fn poll_send_with(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Poll<Result<usize, Fault>> {
        match self.world.enter(|state| state.put_local(self.link, Side::Client, bytes, descriptors)) {
            Ok(0) if !bytes.is_empty() => {
                self.world.enter(|state| state.keep_waker(self.link, cx.waker()));
                Poll::Pending
            }
            other => Poll::Ready(other),
        }
    }

    /// The descriptors that have come with the bytes that were received.
    #[must_use]
    pub fn take_descriptors(&self) -> Vec<OwnedFd> {
        self.world.enter(|state| state.take_descriptors(self.link, Side::Client))
    }

    /// The next bytes, at most `max`; none at all when the other side has closed.
    ///
    /// # Errors
    /// When the connection is reset.
    pub fn poll_receive(&self, cx: &mut Context<'_>, max: usize) -> Poll<Result<Vec<u8>, Fault>> {
        match self.world.enter(|state| state.poll_take(self.link, max, cx.waker())) {
            Ok(None) => Poll::Pending,
            Ok(Some(bytes)) => Poll::Ready(Ok(bytes)),
            Err(fault) => Poll::Ready(Err(fault)),
        }
    }

    /// The next bytes, at most `max`; none at all when the other side has closed.
    ///
    /// # Errors
    /// When the connection is reset.
    pub async fn receive(&self, max: usize) -> Result<Vec<u8>, Fault> {
        poll_fn(|cx| self.poll_receive(cx, max)).await
    }

    /// Sends nothing more; what was sent arrives.
    pub fn shutdown(&self) {
        self.world.enter(|state| state.shut(self.link, Side::Client));
    }

    /// Resets the connection.
    pub fn reset(&self) {
        self.world.enter(|state| {
            state.note(format_args!("link {}: reset by its client", self.link));
            state.reset(self.link);
        });
    }

    /// Stops both directions until then.
    pub fn stall(&self, until: Instant) {
        self.world.enter(|state| state.stall(self.link, until));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.world.enter(|state| state.close_end(self.link, Side::Client));
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.link)
    }
}
