//! A session and its socket.

use crate::Error;
use crate::config::Offer;
use crate::session::{Command, Event, Moves, Session};
use crate::url::Url;
use anyhow::{Context, Result, anyhow, bail};
use lunar_iscsi::text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// I/O vectors of one send: those of a hundred long writes.
const SLICES: usize = 256;
/// Logins under way at once: less than the backlog of any target's listener.
const LOGINS_AT_ONCE: usize = 64;
/// Portals that a login may be sent on to.
const MOVES_MAX: u32 = 4;
/// The class of login status that says: elsewhere.
const CLASS_REDIRECTION: u16 = 1;

/// Why a link is of no use any more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection was lost.
    Lost(io::Error),
    /// The session cannot go on.
    Session(Error),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(error) => write!(f, "the connection was lost: {error}"),
            Self::Session(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Broken {}

/// A session and its socket.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: TcpStream,
    pub(crate) session: Session,
}

/// A command's end, for those that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Link {
    fn connect(url: &Url, offer: Offer, patience: Duration) -> Result<Self> {
        let mut last = anyhow!("{} has no address", url.host);
        for address in url.portal().to_socket_addrs().with_context(|| format!("looking up {}", url.host))? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    socket.set_nonblocking(true)?;
                    return Ok(Self { socket, session: Session::new(offer) });
                }
                Err(error) => last = anyhow!("connecting to {address}: {error}"),
            }
        }
        Err(last)
    }

    /// One receive: how many bytes came, 0 if none is there now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Broken> {
        match self.socket.read(buffer) {
            Ok(0) => Err(Broken::Lost(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the target"))),
            Ok(count) => Ok(count),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(Broken::Lost(error)),
        }
    }

    /// One receive, and what it means.
    fn receive(&mut self, buffer: &mut [u8], on: &mut impl FnMut(Event<'_>)) -> Result<(), Broken> {
        let count = self.read(buffer)?;
        self.session.receive(&buffer[..count], on).map_err(Broken::Session)
    }

    /// Sends until nothing waits or the socket is full. Says whether nothing waits.
    pub(crate) fn send(&mut self) -> Result<bool, Broken> {
        while !self.session.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.session.output().slices(&mut slices);
            match self.socket.write_vectored(&slices[..count]) {
                Ok(sent) => self.session.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Lost(error)),
            }
        }
        Ok(true)
    }

    /// Sends and receives until `done` has seen enough.
    fn talk(&mut self, patience: Duration, mut done: impl FnMut(Event<'_>) -> bool) -> Result<()> {
        let (deadline, mut buffer, mut over) = (Instant::now() + patience, vec![0; 64 << 10], false);
        while !over {
            let idle = self.send()?;
            wait(&[(&self.socket, !idle)], deadline)?;
            self.receive(&mut buffer, &mut |event| over |= done(event))?;
        }
        Ok(())
    }

    /// Carries out one command and waits for its end.
    pub(crate) fn call(&mut self, lun: [u8; 8], cdb: &[u8], data_in: u32, patience: Duration) -> Result<Answer> {
        let moves = if data_in == 0 { Moves::Nothing } else { Moves::In(data_in) };
        (self.session.submit(Command { cookie: 0, lun, cdb, moves }))
            .map_err(|_| anyhow!("the target's command window is shut after the login"))?;
        let mut answer = Answer::default();
        self.talk(patience, |event| match event {
            Event::Data { bytes, .. } => {
                answer.data.extend_from_slice(bytes);
                false
            }
            Event::Done { status, sense, .. } => {
                answer.status = status;
                answer.sense = sense.to_vec();
                true
            }
            _ => false,
        })?;
        Ok(answer)
    }

    /// Logs out as far as that is possible; the socket closes with the link.
    pub(crate) fn close(mut self, patience: Duration) {
        if self.session.log_out().is_ok() {
            // A target that does not answer a logout loses nothing by it.
            let _ = self.talk(patience, |event| event == Event::LoggedOut);
        }
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

/// Connects and logs in. A target that moved is followed; `url` then names the new portal.
pub(crate) fn open(url: &mut Url, offer: &Offer, patience: Duration) -> Result<Link> {
    for _ in 0..MOVES_MAX {
        let mut link = Link::connect(url, offer.clone(), patience)?;
        let error = match link.talk(patience, |event| event == Event::LoggedIn) {
            Ok(()) => return Ok(link),
            Err(error) => error,
        };
        match error.downcast_ref() {
            Some(Broken::Session(Error::Login(status, Some(address)))) if status.0 >> 8 == CLASS_REDIRECTION => {
                *url = url.at_portal(address).map_err(anyhow::Error::msg)?;
            }
            _ => return Err(error.context(format!("logging in at {url}"))),
        }
    }
    bail!("{url}: the target moved too often")
}

/// Connects and logs in many sessions, some at a time.
pub(crate) fn open_many(url: &Url, offers: impl Iterator<Item = Offer>, patience: Duration) -> Result<Vec<Link>> {
    let (mut open, mut offers, mut buffer) = (Vec::new(), offers.fuse(), vec![0; 64 << 10]);
    let mut pending: Vec<Link> = Vec::new();
    let deadline = Instant::now() + patience;
    loop {
        for offer in offers.by_ref().take(LOGINS_AT_ONCE - pending.len()) {
            let mut link = Link::connect(url, offer, patience)?;
            link.send()?;
            pending.push(link);
        }
        if pending.is_empty() {
            return Ok(open);
        }
        wait(&pending.iter().map(|link| (&link.socket, false)).collect::<Vec<_>>(), deadline)?;
        let mut at = 0;
        while at < pending.len() {
            let mut over = false;
            let link = &mut pending[at];
            link.receive(&mut buffer, &mut |event| over |= event == Event::LoggedIn)
                .with_context(|| format!("logging in at {url}"))?;
            link.send()?;
            match over {
                true => open.push(pending.swap_remove(at)),
                false => at += 1,
            }
        }
    }
}

/// A target, as discovery shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its iSCSI name.
    pub name: String,
    /// Its portals, `host:port,group`.
    pub addresses: Vec<String>,
}

/// The targets that the portal of `url` shows.
///
/// # Errors
/// When the portal is not there, or refuses discovery.
pub fn discover(url: &Url, offer: Offer, patience: Duration) -> Result<Vec<Found>> {
    let mut url = url.clone();
    let mut link = open(&mut url, &Offer { target: None, ..offer }, patience)?;
    link.session.discover().map_err(|_| anyhow!("the target's command window is shut after the login"))?;
    let mut text = Vec::new();
    link.talk(patience, |event| match event {
        Event::Targets(targets) => {
            text = targets.to_vec();
            true
        }
        _ => false,
    })?;
    link.close(patience);
    parse_targets(&text)
}

fn parse_targets(text: &[u8]) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    for pair in text::pairs(text) {
        match pair.map_err(|error| anyhow!("the answer to SendTargets cannot be read: {error}"))? {
            ("TargetName", name) => found.push(Found { name: name.to_owned(), addresses: Vec::new() }),
            ("TargetAddress", address) => {
                let last = found.last_mut().context("the answer to SendTargets begins with an address")?;
                last.addresses.push(address.to_owned());
            }
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_with_their_portals() {
        let text = b"TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0TargetAddress=[::1]:3260,2\0TargetName=iqn.b\0";
        let found = parse_targets(text).expect("good");
        assert_eq!((found.len(), &*found[0].name, found[0].addresses.len(), &*found[1].name), (2, "iqn.a", 2, "iqn.b"));
        assert!(parse_targets(b"TargetAddress=x\0").is_err());
    }
}
