//! A session and its socket.

use crate::driven::{Driven, Request, Session, Told};
use crate::url::Url;
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// I/O vectors of one send: those of a hundred long writes.
const SLICES: usize = 256;
/// Logins under way at once: less than the backlog of any target's listener.
const LOGINS_AT_ONCE: usize = 64;
/// Bytes of a receive while nothing is measured.
const RECEIVE: usize = 64 << 10;

/// The connection was lost.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) io::Error);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection was lost: {}", self.0)
    }
}

impl std::error::Error for Lost {}

/// A session and its socket.
#[derive(Debug)]
pub(crate) struct Link<S> {
    pub(crate) socket: TcpStream,
    pub(crate) session: S,
}

impl<S: Driven> Link<S> {
    /// Connects a session that was not.
    pub(crate) fn connect(url: &Url, session: S, patience: Duration) -> Result<Self> {
        let mut last = anyhow!("{} has no address", url.host);
        for address in url.portal().to_socket_addrs().with_context(|| format!("looking up {}", url.host))? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    socket.set_nonblocking(true)?;
                    return Ok(Self { socket, session });
                }
                Err(error) => last = anyhow!("connecting to {address}: {error}"),
            }
        }
        Err(last)
    }

    /// One receive: how many bytes came, 0 if none is there now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Lost> {
        match self.socket.read(buffer) {
            Ok(0) => Err(Lost(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the target"))),
            Ok(count) => Ok(count),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(Lost(error)),
        }
    }

    /// Sends until nothing waits or the socket is full. Says whether nothing waits.
    pub(crate) fn send(&mut self) -> Result<bool, Lost> {
        while !self.session.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.session.output().slices(&mut slices);
            match self.socket.write_vectored(&slices[..count]) {
                Ok(sent) => self.session.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Lost(error)),
            }
        }
        Ok(true)
    }

    /// Sends and receives until `take`, which gets what arrives, says that it is enough.
    pub(crate) fn talk(
        &mut self,
        patience: Duration,
        mut take: impl FnMut(&mut S, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let (deadline, mut buffer) = (Instant::now() + patience, vec![0; RECEIVE]);
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

impl<S: Driven> Session for Link<S> {
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
    fn take(&mut self, buffer: &mut [u8], on: &mut impl FnMut(Told<'_>)) -> Result<bool> {
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

/// Waits until one of the sockets has something, or room if asked for.
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

/// Connects many sessions, some at a time, until `take`, which gets what arrives, says of each that it is ready.
pub(crate) fn open_many<S: Driven>(
    url: &Url,
    sessions: impl Iterator<Item = S>,
    patience: Duration,
    mut take: impl FnMut(&mut S, &[u8]) -> Result<bool>,
) -> Result<Vec<Link<S>>> {
    let (mut open, mut sessions, mut buffer) = (Vec::new(), sessions.fuse(), vec![0; RECEIVE]);
    let mut pending: Vec<Link<S>> = Vec::new();
    let mut deadline = Instant::now() + patience;
    loop {
        for session in sessions.by_ref().take(LOGINS_AT_ONCE - pending.len()) {
            let mut link = Link::connect(url, session, patience)?;
            link.send()?;
            pending.push(link);
        }
        if pending.is_empty() {
            return Ok(open);
        }
        wait(&pending.iter().map(|link| (&link.socket, false)).collect::<Vec<_>>(), deadline)?;
        let mut at = 0;
        while at < pending.len() {
            let link = &mut pending[at];
            let count = link.read(&mut buffer)?;
            let over = take(&mut link.session, &buffer[..count]).with_context(|| format!("logging in at {url}"))?;
            link.send()?;
            match over {
                true => {
                    open.push(pending.remove(at));
                    deadline = Instant::now() + patience;
                }
                false => at += 1,
            }
        }
    }
}
