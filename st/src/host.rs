//! The library: Scheduled Transfer for programs. A [`Host`] is a thread with its links; the calls of [`Connection`] and
//! [`Region`] wait until they are done, on any thread.
//!
//! One [`Connection::write`] is one Transfer, and one [`Connection::read`] takes a whole one, as with SOCK_SEQPACKET. A
//! reader gives its memory before the data moves, and a Transfer that is longer than that is refused to both. A
//! [`Region`] of the peer is read and written without its program: Put, Get and FetchOp.

mod service;

use crate::engine::{FetchRequest, Settings, Ulp};
use crate::event::{Access, Id, Refused, VcId, Wake};
use crate::path::{Path, Peer};
use crate::port::{LinkSpec, OpenedPort};
use crate::wire::Reason;
use lunar_reactor::channel::Sender;
use lunar_reactor::{Config, Reactor};
use service::{Command, Room, Service};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Memory of a host for packets.
const ARENA_BYTES: usize = 32 << 20;
/// Events of regions of a connection that wait to be polled: further Puts are in memory, and are not reported.
pub const PUTS_MAX: usize = 4096;

/// Why a call has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StError {
    /// The engine refuses the call.
    Refused(Refused),
    /// The sequence or the connection has ended with this reason.
    Ended(Reason),
    /// The Transfer has so many bytes, more than the memory of the reader (EMSGSIZE).
    TooLong(u64),
    /// The host has ended.
    Closed,
    /// Nothing came in time.
    Timeout,
}

impl fmt::Display for StError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => why.fmt(f),
            Self::Ended(Reason::TOO_LONG) => {
                f.write_str("the peer has less memory for the Transfer: write less at once")
            }
            Self::Ended(Reason::NO_PORT) => f.write_str("the peer does not listen at this port"),
            Self::Ended(Reason::TIME_OUT) => f.write_str("the peer does not answer: check its address and the network"),
            Self::Ended(reason) => write!(f, "the peer or the connection has ended it: {reason:?}"),
            Self::TooLong(len) => write!(f, "the Transfer has {len} bytes: read with more memory"),
            Self::Closed => f.write_str("the host has ended"),
            Self::Timeout => f.write_str("nothing came in time"),
        }
    }
}

impl std::error::Error for StError {}

/// The answer to a call.
type Reply<T> = mpsc::Sender<Result<T, StError>>;

/// A thread with links.
#[derive(Debug)]
pub struct Host {
    shared: Arc<Shared>,
    locals: Vec<Option<SocketAddr>>,
}

/// The mailbox of the thread.
struct Shared {
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StError> {
        let (reply, answer) = mpsc::channel();
        self.commands.send(command(reply));
        answer.recv().map_err(|_| StError::Closed)?
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.commands.send(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has been printed there.
            let _ = thread.join();
        }
    }
}

impl Host {
    /// Opens links, and starts a thread for them. A link of a path is named by its place in the list.
    ///
    /// # Errors
    /// Why a link cannot be opened.
    pub fn start(links: &[LinkSpec]) -> io::Result<Self> {
        let opened: Vec<OpenedPort> = links.iter().map(LinkSpec::open).collect::<io::Result<_>>()?;
        let secret = random()?;
        let (started, answer) = mpsc::channel();
        let thread = std::thread::Builder::new().name("st-host".into()).spawn(move || {
            let run = || -> io::Result<()> {
                let reactor = Reactor::new(Config { arena_bytes: ARENA_BYTES, register: false, ..Config::default() })?;
                let (service, commands, locals) = Service::attach(&reactor, opened, secret)?;
                // The caller waits for it.
                let _ = started.send(Ok((commands, locals)));
                reactor.run(service.serve());
                Ok(())
            };
            if let Err(why) = run() {
                let _ = started.send(Err(why));
            }
        })?;
        let (commands, locals) = answer.recv().map_err(|_| io::Error::other("the thread has ended"))??;
        Ok(Self { shared: Arc::new(Shared { commands, thread: Mutex::new(Some(thread)) }), locals })
    }

    /// The local address of a UDP link.
    #[must_use]
    pub fn local(&self, link: usize) -> Option<SocketAddr> {
        self.locals.get(link).copied().flatten()
    }

    /// Accepts connections at a port.
    ///
    /// # Errors
    /// [`Refused::Settings`].
    pub fn listen(&self, port: u16, ulp: Ulp, options: Options) -> Result<Listener, StError> {
        self.shared.call(|reply| Command::Listen { port, ulp, options, reply })?;
        Ok(Listener { shared: self.shared.clone(), port })
    }

    /// Connects to a port of a peer. Each link carries data to the address of the peer beside it: several of them are
    /// used together (striping), and one that fails is left out.
    ///
    /// # Errors
    /// [`StError::Ended`] with the reason.
    pub fn connect(
        &self,
        paths: &[(u8, Peer)],
        (port, ulp): (u16, Ulp),
        options: Options,
    ) -> Result<Connection, StError> {
        let paths = paths.iter().map(|(link, peer)| Path { link: *link, peer: *peer }).collect();
        let vc = self.shared.call(|reply| Command::Connect { paths, port, ulp, options, reply })?;
        Ok(Connection { shared: self.shared.clone(), vc })
    }
}

/// Random bits from the system.
fn random() -> io::Result<[u64; 2]> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok([0, 8].map(|at| bytes[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))))
}

/// The options of connections; the names are those of the manual page stp(7P).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// ST_STU: the longest STU, as a power of two; otherwise the longest that fits into packets of the first link.
    pub stu: Option<u8>,
    /// ST_BUFSZ: the length of a buffer, as a power of two.
    pub buffer: Option<u8>,
    /// ST_BLOCK: the longest Block, as a power of two.
    pub block: Option<u8>,
    /// ST_SLOTS: control operations that the peer may have unanswered here.
    pub slots: Option<u16>,
    /// Whether packets have checksums, if the peer agrees: where the network has none.
    pub checksums: bool,
}

impl Options {
    fn settings(self, mtu: usize) -> Settings {
        let mut settings = Settings::default().for_mtu(mtu);
        settings.stu = self.stu.unwrap_or(settings.stu);
        settings.buffer = self.buffer.unwrap_or(settings.buffer).max(settings.stu);
        // 64 STUs, as in the paper.
        settings.block = self.block.unwrap_or(settings.stu + crate::limits::BLOCK_STUS_LOG);
        settings.slots = self.slots.unwrap_or(settings.slots);
        if self.checksums {
            settings.options |= crate::wire::options::CHECKSUM;
        }
        settings
    }
}

/// A port at which a host accepts connections.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    port: u16,
}

impl Listener {
    /// The next connection.
    ///
    /// # Errors
    /// [`StError::Closed`].
    pub fn accept(&self) -> Result<Connection, StError> {
        let vc = self.shared.call(|reply| Command::Accept { port: self.port, reply })?;
        Ok(Connection { shared: self.shared.clone(), vc })
    }
}

/// A Virtual Connection. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    vc: VcId,
}

impl Connection {
    /// Sends one Transfer; returns its memory when the peer has all of its bytes.
    ///
    /// # Errors
    /// [`StError::Ended`] with [`Reason::TOO_LONG`] when the reader has less memory (EMSGSIZE).
    pub fn write(&self, bytes: Vec<u8>) -> Result<Vec<u8>, StError> {
        self.shared.call(|reply| Command::Write { vc: self.vc, bytes, reply })
    }

    /// Receives one whole Transfer of at most so many bytes.
    ///
    /// # Errors
    /// [`StError::TooLong`] with the length when it has more; it is lost then.
    pub fn read(&self, most: usize) -> Result<Vec<u8>, StError> {
        self.shared.call(|reply| Command::Read { vc: self.vc, room: Room::Most(most), reply })
    }

    /// Receives one whole Transfer into this memory, which is returned with the length of the Transfer: no memory is
    /// allocated.
    ///
    /// # Errors
    /// Errors of [`Connection::read`].
    pub fn read_into(&self, memory: Vec<u8>) -> Result<Vec<u8>, StError> {
        self.shared.call(|reply| Command::Read { vc: self.vc, room: Room::Memory(memory), reply })
    }

    /// Asks the peer for a region of its memory.
    ///
    /// # Errors
    /// [`StError::Ended`] when it refuses.
    pub fn request_region(&self, access: Access, len: u64) -> Result<Region, StError> {
        let id = self.shared.call(|reply| Command::RequestRegion { vc: self.vc, access, len, reply })?;
        Ok(Region { shared: self.shared.clone(), vc: self.vc, id })
    }

    /// Waits until the peer asks for a region of at most so many bytes, and grants it with these rights.
    ///
    /// # Errors
    /// [`StError::Ended`].
    pub fn grant_region(&self, access: Access, most: u64) -> Result<LocalRegion, StError> {
        let (id, len) = self.shared.call(|reply| Command::GrantRegion { vc: self.vc, access, most, reply })?;
        Ok(LocalRegion { shared: self.shared.clone(), vc: self.vc, id, len })
    }

    /// The paths to the peer, and whether each works.
    ///
    /// # Errors
    /// [`StError::Closed`].
    pub fn paths(&self) -> Result<Vec<(Path, bool)>, StError> {
        self.shared.call(|reply| Command::Paths { vc: self.vc, reply })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.commands.send(Command::Close { vc: self.vc });
    }
}

/// A region of the memory of the peer.
#[derive(Debug)]
pub struct Region {
    shared: Arc<Shared>,
    vc: VcId,
    id: Id,
}

impl Region {
    /// Writes at a place; returns when the peer has the bytes. `opaque` is for its program, which is told.
    ///
    /// # Errors
    /// [`Refused::Range`] and the like.
    pub fn put(&self, offset: u64, bytes: Vec<u8>, opaque: u32) -> Result<(), StError> {
        let (vc, region) = (self.vc, self.id);
        self.shared.call(|reply| Command::Put { vc, region, offset, bytes, opaque, reply })
    }

    /// Reads so many bytes.
    ///
    /// # Errors
    /// Errors of [`Region::put`].
    pub fn get(&self, offset: u64, len: u32) -> Result<Vec<u8>, StError> {
        let (vc, region) = (self.vc, self.id);
        self.shared.call(|reply| Command::Get { vc, region, offset, len, reply })
    }

    /// Executes an operation on a word, once; returns its value before. The region of the request is this one.
    ///
    /// # Errors
    /// Errors of [`Region::put`].
    pub fn fetch(&self, request: FetchRequest) -> Result<u64, StError> {
        let (vc, request) = (self.vc, FetchRequest { region: self.id, ..request });
        self.shared.call(|reply| Command::Fetch { vc, request, reply })
    }
}

/// A Put that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrivedPut {
    /// The place in the region.
    pub offset: u64,
    /// The number of bytes.
    pub len: u32,
    /// The word of the sender.
    pub opaque: u32,
}

/// A region of this host that a peer uses.
#[derive(Debug)]
pub struct LocalRegion {
    shared: Arc<Shared>,
    vc: VcId,
    id: Id,
    len: u64,
}

impl LocalRegion {
    /// Its length.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads bytes that are there now.
    ///
    /// # Errors
    /// [`Refused::Range`].
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, StError> {
        let (vc, region) = (self.vc, self.id);
        self.shared.call(|reply| Command::ReadRegion { vc, region, offset, len, reply })
    }

    /// Changes bytes.
    ///
    /// # Errors
    /// [`Refused::Range`].
    pub fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), StError> {
        let (vc, region) = (self.vc, self.id);
        self.shared.call(|reply| Command::WriteRegion { vc, region, offset, bytes, reply })
    }

    /// The next Put that is reported, if one comes in time.
    ///
    /// # Errors
    /// [`StError::Timeout`], [`StError::Ended`].
    pub fn poll(&self, patience: Duration) -> Result<ArrivedPut, StError> {
        let (vc, region) = (self.vc, self.id);
        self.shared.call(|reply| Command::Poll { vc, region, patience, reply })
    }

    /// Says which Puts are reported.
    ///
    /// # Errors
    /// [`StError::Ended`].
    pub fn arm(&self, wake: Wake) -> Result<(), StError> {
        let (vc, region) = (self.vc, self.id);
        self.shared.call(|reply| Command::Arm { vc, region, wake, reply })
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
