//! The loop of the servers: one thread, epoll or polling.

use crate::Server;
use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};

/// Bytes of one receive.
const RECEIVE: usize = 512 << 10;
/// Connections that are served in one wake-up.
const EVENTS: usize = 64;
/// Turns of a polling loop until it looks for new connections again.
const LOOK_AROUND: u32 = 4096;
const LISTENER: u64 = u64::MAX;

/// A connection's protocol.
pub(crate) trait Peer {
    /// Takes in what came, and sends what there is to send. `bytes` may be empty: there is room again.
    /// Says whether all was sent.
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
    make: F,
    buffer: Vec<u8>,
}

/// Serves until the process is ended.
pub(crate) fn run<P: Peer>(server: &Server, make: impl Fn() -> P) -> Result<()> {
    let listener = TcpListener::bind(server.listen).with_context(|| format!("listening on {}", server.listen))?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    println!("listening on {}", listener.local_addr()?);
    let buffer = vec![0; RECEIVE];
    let mut all = Loop { server, listener, epoll, connections: BTreeMap::new(), next: 0, make, buffer };
    loop {
        all.turn()?;
    }
}

impl<P: Peer, F: Fn() -> P> Loop<'_, P, F> {
    fn turn(&mut self) -> Result<()> {
        if self.server.spin {
            let numbers: Vec<u64> = self.connections.keys().copied().collect();
            for _ in 0..LOOK_AROUND {
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
                    self.connections.insert(self.next, Connection { socket, peer: (self.make)(), full: false });
                    self.next += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn serve(&mut self, number: u64) -> Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        // Requests that are not read while replies wait: a peer that does not read ties up nothing here.
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
            // A peer that went away, or does not make sense, ends its own connection.
            Err(_) => {
                self.connections.remove(&number);
            }
        }
        Ok(())
    }
}
