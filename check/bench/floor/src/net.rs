//! The event loop of the servers: one thread, with epoll or polling.

use crate::options::Server;
use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};

/// The length of the receive buffer, in bytes.
const RECEIVE: usize = 512 << 10;
/// The most connections that are served per wake-up.
const EVENTS: usize = 64;
/// Rounds of polling between two checks for new connections.
const ACCEPT_INTERVAL: u32 = 4096;
const LISTENER: u64 = u64::MAX;

/// The protocol of a connection.
pub(crate) trait Peer {
    /// Takes received bytes and sends the output. `bytes` is empty if the socket has become writable again. Returns
    /// whether everything was sent.
    fn serve(&mut self, socket: &TcpStream, bytes: &[u8]) -> Result<bool>;
}

struct Connection<P> {
    socket: TcpStream,
    peer: P,
    full: bool,
}

struct Loop<'s, P, F> {
    server: &'s Server,
    listener: TcpListener,
    epoll: rustix::fd::OwnedFd,
    connections: BTreeMap<u64, Connection<P>>,
    next: u64,
    new_peer: F,
    buffer: Vec<u8>,
}

/// Serves until the process ends.
pub(crate) fn run<P: Peer>(server: &Server, new_peer: impl Fn() -> P) -> Result<()> {
    let listener = TcpListener::bind(server.listen).with_context(|| format!("listening on {}", server.listen))?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    println!("listening on {}", listener.local_addr()?);
    let buffer = vec![0; RECEIVE];
    let mut all = Loop { server, listener, epoll, connections: BTreeMap::new(), next: 0, new_peer, buffer };
    loop {
        all.poll_once()?;
    }
}

impl<P: Peer, F: Fn() -> P> Loop<'_, P, F> {
    fn poll_once(&mut self) -> Result<()> {
        if self.server.spin {
            let numbers: Vec<u64> = self.connections.keys().copied().collect();
            for _ in 0..ACCEPT_INTERVAL {
                numbers.iter().try_for_each(|number| self.serve(*number))?;
            }
            return self.accept();
        }
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let count = match epoll::wait(&self.epoll, &mut events, None) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..count] {
            match event.data.u64() {
                LISTENER => self.accept()?,
                number => self.serve(number)?,
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nodelay(true)?;
                    socket.set_nonblocking(true)?;
                    epoll::add(&self.epoll, &socket, EventData::new_u64(self.next), EventFlags::IN)?;
                    self.connections.insert(self.next, Connection { socket, peer: (self.new_peer)(), full: false });
                    self.next += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn serve(&mut self, number: u64) -> Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        // Read no requests while replies wait, so that a peer that does not read occupies no memory.
        let count = match connection.full {
            true => Ok(0),
            false => match (&connection.socket).read(&mut self.buffer) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                other => other,
            },
        };
        let outcome = count
            .map_err(anyhow::Error::from)
            .and_then(|count| connection.peer.serve(&connection.socket, &self.buffer[..count]));
        match outcome {
            Ok(sent) => {
                if connection.full == sent {
                    connection.full = !sent;
                    let interest = if sent { EventFlags::IN } else { EventFlags::OUT };
                    epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(number), interest)?;
                }
            }
            // A peer that disconnects or violates the protocol loses its connection only.
            Err(_) => {
                self.connections.remove(&number);
            }
        }
        Ok(())
    }
}
