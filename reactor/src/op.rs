//! The operations of the reactor, and the trait that its three drivers implement: io_uring, epoll with a few
//! helper threads, and the simulator.
//!
//! A driver owns everything an operation touches until it answers: handles, memory, the [`Done`]. So a future
//! that awaits an answer may be dropped at any time. Operations are started by [`Driver::submit`], carried out
//! and answered in [`Driver::turn`] or, where they need not wait, within `submit` itself.

use crate::endpoint::command::Command;
use crate::endpoint::packet::Filter;
use crate::endpoint::{Endpoint, ReceiveBatch, SendBatch, Status};
use lunar_core::io::{Data, Done};
use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_core::time::Instant;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Something open in a driver: a file, a socket, a listener. Closed when the last clone drops; an operation
/// that runs holds one.
#[derive(Clone)]
pub struct Handle(Rc<Open>);

struct Open {
    driver: Weak<dyn Driver>,
    id: u32,
}

impl Handle {
    /// For drivers: the handle of what they keep under `id`.
    #[must_use]
    pub fn new(driver: Weak<dyn Driver>, id: u32) -> Self {
        Self(Rc::new(Open { driver, id }))
    }

    /// The driver's number for it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.close(self.id);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.0.id)
    }
}

/// One operation. Its answer is an [`lunar_core::io::Outcome`] that brings the memory back.
#[derive(Debug)]
pub enum Op {
    /// The next connection; take it with [`Driver::accepted`] when the answer is there.
    Accept {
        /// Where it arrives.
        listener: Handle,
    },
    /// At least one byte, at most what fits; 0 when the peer has closed its side.
    Receive {
        /// From where.
        socket: Handle,
        /// Memory; comes back as [`Data::In`], filled from its start.
        into: SgMut,
        /// Whether to try before the next turn, if the last one was filled: what comes in a row is answered together.
        at_once: bool,
    },
    /// All of it, however many calls that takes.
    Send {
        /// To where.
        socket: Handle,
        /// Memory; comes back as [`Data::Out`].
        data: Sg,
    },
    /// Datagrams or frames: waits for the first, then takes those that are there as well. Answers how many.
    ReceiveBatch {
        /// From where.
        endpoint: Handle,
        /// Room for them; comes back as [`Data::Carried`].
        into: Box<ReceiveBatch>,
    },
    /// Datagrams or frames, all of them, in order; waits while the endpoint has no room. Those that cannot be sent (no
    /// receiver, too long) are dropped and counted, as a network would drop them. Answers how many were sent.
    SendBatch {
        /// To where.
        endpoint: Handle,
        /// They; comes back as [`Data::Carried`], without those that were sent or dropped.
        batch: Box<SendBatch>,
    },
    /// A command to a device. Answers what the device answers, see [`Command`]; [`lunar_core::io::Fault::Unsupported`]
    /// when the device does not take such a command with such memory. A device that has a command answers it: it cannot
    /// be cancelled.
    Command {
        /// To which device.
        device: Handle,
        /// The command; comes back as [`Data::Carried`].
        command: Box<Command>,
    },
    /// Bytes of a file or device, all of them. [`lunar_core::io::Fault::Medium`] when it ends before: it was cut
    /// off under us, and zeroes would be a lie (the simulator, whose files grow, gives zeroes).
    Read {
        /// Of what.
        file: Handle,
        /// Where.
        offset: u64,
        /// Memory; comes back as [`Data::In`].
        into: SgMut,
    },
    /// Bytes to a file or device, all of them.
    Write {
        /// To what.
        file: Handle,
        /// Where.
        offset: u64,
        /// Memory; comes back as [`Data::Out`].
        data: Sg,
        /// On the medium before it is answered (RWF_DSYNC).
        durable: bool,
    },
    /// What was written is on the medium (fdatasync).
    Sync {
        /// Of what.
        file: Handle,
    },
    /// A change of the space behind a range that moves no data.
    Allocate {
        /// Of what.
        file: Handle,
        /// Which.
        how: Allocate,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// How far from `offset` on, at most `len`, a file has data or a hole: the answer's `extent`.
    Extent {
        /// Of what.
        file: Handle,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// How much space a file takes and its file system has: comes back as [`Data::Space`].
    Space {
        /// Of what.
        file: Handle,
    },
    /// Bytes of another file, or of this one elsewhere, without moving them through memory of ours: shared by both
    /// where the file system can (FICLONERANGE), else copied by the kernel (copy_file_range).
    /// [`lunar_core::io::Fault::Unsupported`] when it does neither.
    Copy {
        /// Of what.
        from: Handle,
        /// Where.
        at: u64,
        /// To what.
        file: Handle,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Waits until something open can be read from, or written to, without waiting; also once its other side is gone.
    /// It may be told too often.
    Ready {
        /// What.
        file: Handle,
        /// Whether it shall be written to.
        to_write: bool,
    },
    /// Adds one to an eventfd that a peer has given. It may be anything: nothing is told, and nobody waits for it.
    Signal {
        /// Which.
        file: Handle,
    },
    /// The other cores have left something in the mailbox: answered when the bell rings.
    Bell,
}

/// How the space behind a range changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// A file's space is given back and reads as zeroes (FALLOC_FL_PUNCH_HOLE).
    Punch,
    /// A file reads as zeroes and keeps its space (FALLOC_FL_ZERO_RANGE).
    Zero,
    /// A device's blocks are given back (BLKDISCARD).
    Discard,
    /// A device's blocks read as zeroes (BLKZEROOUT).
    ZeroOut,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Without writing.
    pub read_only: bool,
    /// Past the page cache (O_DIRECT): memory and offsets must be aligned.
    pub direct: bool,
    /// Every write on the medium before it is answered (O_DSYNC).
    pub durable: bool,
}

/// A connection on its way from the core that accepted it to the core that serves it.
#[derive(Debug)]
pub enum Incoming {
    /// A socket of the operating system.
    Socket(OwnedFd),
    /// A connection of the simulator, by its number.
    Simulated(u32),
}

/// How long a turn may wait for the first answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    Poll,
    /// Until then at the latest; `None` for as long as it takes.
    Until(Option<Instant>),
}

/// Wakes a core that sleeps in [`Driver::turn`], from any thread.
pub trait Bell: Send + Sync {
    /// Rings: the core's [`Op::Bell`] is answered.
    fn ring(&self);
}

/// Carries operations out. One per core; stays on its thread.
pub trait Driver {
    /// Its name in logs and `--driver`.
    fn name(&self) -> &'static str;

    /// The time now.
    fn now(&self) -> Instant;

    /// Starts an operation. May answer at once.
    fn submit(&self, op: Op, done: Done);

    /// Hands over to the kernel what was started, waits as long as `wait` says for the first answer, and answers
    /// all that is done. Returns how many it answered.
    fn turn(&self, wait: Wait) -> usize;

    /// A cheap look, without a system call where possible, whether a `turn(Wait::Poll)` would find something.
    fn ripe(&self) -> bool;

    /// Ends the operations that run on a handle, with [`lunar_core::io::Fault::Aborted`].
    fn cancel(&self, handle: &Handle);

    /// The last clone of a handle is gone.
    fn close(&self, id: u32);

    /// The core's tasks are gone: lets go of all files now, even if somebody still holds the driver.
    fn end(&self) {}

    /// Opens a file or block device.
    ///
    /// # Errors
    /// The operating system's.
    fn open(&self, path: &Path, how: How) -> io::Result<Handle>;

    /// Takes over an open file: what was opened, locked and checked before the cores began.
    ///
    /// # Errors
    /// When the driver has no room for it.
    fn adopt(&self, file: OwnedFd) -> io::Result<Handle>;

    /// Listens for TCP connections; tells the address (the port, when 0 was asked).
    ///
    /// # Errors
    /// The operating system's.
    fn listen(&self, address: SocketAddr) -> io::Result<(Handle, SocketAddr)>;

    /// The connection that an answered [`Op::Accept`] brought.
    fn accepted(&self, listener: &Handle) -> Option<Incoming>;

    /// Takes over a connection from the core that accepted it; tells (local, peer).
    ///
    /// # Errors
    /// When the peer is gone already.
    fn join(&self, incoming: Incoming) -> io::Result<(Handle, SocketAddr, SocketAddr)>;

    /// Takes over an endpoint of datagrams, frames or commands.
    ///
    /// # Errors
    /// `Unsupported` where the driver has no such endpoints, in words for an operator; those of the operating system.
    fn attach(&self, endpoint: Endpoint) -> io::Result<Handle>;

    /// What an endpoint of datagrams or frames knows of itself now.
    ///
    /// # Errors
    /// `InvalidInput` for other endpoints; those of the operating system, for instance when an interface was removed.
    fn status(&self, endpoint: &Handle) -> io::Result<Status>;

    /// Adds a filter to those of a link, or removes it: the frames that it receives.
    ///
    /// # Errors
    /// `InvalidInput` for other endpoints; those of the operating system.
    fn set_filter(&self, link: &Handle, filter: Filter, is_wanted: bool) -> io::Result<()>;

    /// Closes the sending side after what is under way.
    fn shutdown(&self, socket: &Handle);

    /// Registers the core's memory where the kernel can make use of that and allows it.
    fn register(&self, arena: &Arena);

    /// The bell of this core.
    fn bell(&self) -> Arc<dyn Bell>;
}

/// For drivers.
impl Op {
    /// The handle that an operation holds besides the one of its file. A driver drops it when nothing of its own is
    /// borrowed, because it may be the last one.
    #[must_use]
    pub fn source(&self) -> Option<Handle> {
        match self {
            Self::Copy { from, .. } => Some(from.clone()),
            _ => None,
        }
    }

    /// The memory that goes back with the answer.
    #[must_use]
    pub fn into_data(self) -> Data {
        match self {
            Self::Receive { into, .. } | Self::Read { into, .. } => Data::In(into),
            Self::Send { data, .. } | Self::Write { data, .. } => Data::Out(data),
            Self::ReceiveBatch { into, .. } => Data::Carried(into),
            Self::SendBatch { batch, .. } => Data::Carried(batch),
            Self::Command { command, .. } => Data::Carried(command),
            _ => Data::None,
        }
    }
}
