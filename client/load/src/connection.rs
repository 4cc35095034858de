//! A session over a TCP connection.

use crate::session::{Request, Session, SessionEvent, StreamSession};
use crate::url::Url;
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// I/O vectors per send: enough for a hundred long writes.
const SLICES: usize = 256;
/// Logins in progress at the same time: fewer than the listen backlog of known targets.
const LOGINS_AT_ONCE: usize = 64;
/// The length of the receive buffer before the measurement, in bytes.
const RECEIVE: usize = 64 << 10;

/// The connection was lost.
#[derive(Debug)]
pub(crate) struct ConnectionLost(pub(crate) io::Error);

impl fmt::Display for ConnectionLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection was lost: {}", self.0)
    }
}

impl std::error::Error for ConnectionLost {}

/// A session and its socket.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) socket: TcpStream,
    pub(crate) session: S,
}

impl<S: StreamSession> Connection<S> {
    /// Connects to the portal of `url`.
    pub(crate) fn connect(url: &Url, session: S, timeout: Duration) -> Result<Self> {
        let mut last = anyhow!("no address found for {}", url.host);
        for address in url.portal().to_socket_addrs().with_context(|| format!("cannot look up {}", url.host))? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    socket.set_nonblocking(true)?;
                    return Ok(Self { socket, session });
                }
                Err(error) => last = anyhow!("connecting to {address} failed: {error}"),
            }
        }
        Err(last)
    }

    /// Receives once. Returns the number of bytes; 0 if nothing has arrived.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ConnectionLost> {
        match self.socket.read(buffer) {
            Ok(0) => Err(ConnectionLost(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the target"))),
            Ok(count) => Ok(count),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(ConnectionLost(error)),
        }
    }

    /// Sends until the output is empty or the socket is full. Returns whether the output is empty.
    pub(crate) fn send(&mut self) -> Result<bool, ConnectionLost> {
        while !self.session.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.session.output().slices(&mut slices);
            match self.socket.write_vectored(&slices[..count]) {
                Ok(sent) => self.session.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ConnectionLost(error)),
            }
        }
        Ok(true)
    }

    /// Sends and receives until `take`, which gets the received bytes, returns `true`.
    pub(crate) fn exchange(
        &mut self,
        timeout: Duration,
        mut take: impl FnMut(&mut S, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let (deadline, mut buffer) = (Instant::now() + timeout, vec![0; RECEIVE]);
        loop {
            let idle = self.send()?;
            wait(&[(&self.socket, !idle)], deadline)?;
            let count = self.read(&mut buffer)?;
            if take(&mut self.session, &buffer[..count])? {
                return Ok(());
            }
        }
    }
}

impl<S: StreamSession> Session for Connection<S> {
    const POLLED_MAX: usize = 8;

    fn room(&self) -> u32 {
        self.session.room()
    }

    #[inline]
    fn start(&mut self, request: Request) {
        self.session.start(request);
    }

    fn send(&mut self) -> Result<bool> {
        Ok(Self::send(self)?)
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<bool> {
        let count = self.read(buffer)?;
        if count > 0 {
            self.session.receive(&buffer[..count], on)?;
        }
        Ok(count > 0)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Checks that a connection is open whose peer sends nothing but replies: anything to read is its end.
pub(crate) fn check_open(socket: &impl AsFd) -> Result<(), ConnectionLost> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(1..) => Err(ConnectionLost(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the target"))),
        _ => Ok(()),
    }
}

/// Waits until one of the sockets is readable, or writable where that is requested.
fn wait(sockets: &[(&TcpStream, bool)], deadline: Instant) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = (sockets.iter())
        .map(|(socket, send)| PollFd::new(*socket, if *send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }))
        .collect();
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        bail!("the target does not answer");
    }
    match poll(&mut fds, Some(&Timespec::try_from(left)?)) {
        Err(error) if error != rustix::io::Errno::INTR => Err(error.into()),
        _ => Ok(()),
    }
}

/// Connects many sessions, a limited number at a time. `take` gets the received bytes of a session, and returns `true`
/// when the session is ready.
pub(crate) fn open_many<S: StreamSession>(
    url: &Url,
    sessions: impl Iterator<Item = S>,
    timeout: Duration,
    mut take: impl FnMut(&mut S, &[u8]) -> Result<bool>,
) -> Result<Vec<Connection<S>>> {
    let (mut open, mut sessions, mut buffer) = (Vec::new(), sessions.fuse(), vec![0; RECEIVE]);
    let mut pending: Vec<Connection<S>> = Vec::new();
    let mut deadline = Instant::now() + timeout;
    loop {
        for session in sessions.by_ref().take(LOGINS_AT_ONCE - pending.len()) {
            let mut connection = Connection::connect(url, session, timeout)?;
            connection.send()?;
            pending.push(connection);
        }
        if pending.is_empty() {
            return Ok(open);
        }
        wait(&pending.iter().map(|connection| (&connection.socket, false)).collect::<Vec<_>>(), deadline)?;
        let mut at = 0;
        while at < pending.len() {
            let connection = &mut pending[at];
            let count = connection.read(&mut buffer)?;
            let ready =
                take(&mut connection.session, &buffer[..count]).with_context(|| format!("logging in at {url}"))?;
            connection.send()?;
            match ready {
                true => {
                    open.push(pending.remove(at));
                    deadline = Instant::now() + timeout;
                }
                false => at += 1,
            }
        }
    }
}
