//! The operations of the reactor, and the trait that its three drivers implement: io_uring, epoll with a few
//! helper threads, and the simulator.
//!
//! A driver owns all resources of an operation until it answers: handles, memory, the [`Done`]. So a future that
//! awaits an answer may be dropped at any time. [`Driver::submit`] starts operations; [`Driver::turn`] executes and
//! answers them, or `submit` itself if they need not wait.

use crate::endpoint::command::Command;
use crate::endpoint::packet::Filter;
use crate::endpoint::{Endpoint, ReceiveBatch, SendBatch, Status};
use crate::tcp::TcpState;
use lunar_core::io::{Data, Done};
use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_core::time::Instant;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// An open object of a driver: a file, a socket, a listener. It is closed when the last clone drops; an operation in
/// progress holds one.
#[derive(Clone)]
pub struct Handle(Rc<Open>);

struct Open {
    driver: Weak<dyn Driver>,
    id: u32,
}

impl Handle {
    /// For drivers: the handle of the object with this `id`.
    #[must_use]
    pub fn new(driver: Weak<dyn Driver>, id: u32) -> Self {
        Self(Rc::new(Open { driver, id }))
    }

    /// The number of the object in the driver.
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
    /// Accepts the next connection; take it with [`Driver::accepted`] when the answer arrives.
    Accept {
        /// The listener.
        listener: Handle,
    },
    /// Receives at least one byte, and at most as many as fit; 0 when the peer has closed its side.
    Receive {
        /// The socket.
        socket: Handle,
        /// Memory; comes back as [`Data::In`], filled from its start.
        into: SgMut,
        /// Whether to try before the next turn, if the last receive was filled: data that arrived together is answered
        /// together.
        at_once: bool,
    },
    /// Sends all bytes, with as many calls as that takes.
    Send {
        /// The socket.
        socket: Handle,
        /// Memory; comes back as [`Data::Out`].
        data: Sg,
    },
    /// Receives datagrams or frames: waits for the first, then takes all that have arrived. Answers how many.
    ReceiveBatch {
        /// The endpoint.
        endpoint: Handle,
        /// Room for them; comes back as [`Data::Carried`].
        into: Box<ReceiveBatch>,
    },
    /// Sends datagrams or frames, all of them, in order; waits while the endpoint has no room. Datagrams that cannot
    /// be sent (no receiver, too long) are dropped and counted, as a network would drop them. Answers how many were
    /// sent.
    SendBatch {
        /// The endpoint.
        endpoint: Handle,
        /// The datagrams; the batch comes back as [`Data::Carried`], without those that were sent or dropped.
        batch: Box<SendBatch>,
    },
    /// A command to a device. Answers with the result of the device, see [`Command`];
    /// [`lunar_core::io::Fault::Unsupported`] when the device does not support such a command with such memory. A
    /// command that a device has accepted cannot be cancelled.
    Command {
        /// The device.
        device: Handle,
        /// The command; comes back as [`Data::Carried`].
        command: Box<Command>,
    },
    /// Reads bytes of a file or device, all of them. [`lunar_core::io::Fault::Medium`] when the file ends before:
    /// another process has truncated it, and zeroes would be wrong data (files of the simulator grow, and return
    /// zeroes).
    Read {
        /// The file.
        file: Handle,
        /// Offset.
        offset: u64,
        /// Memory; comes back as [`Data::In`].
        into: SgMut,
    },
    /// Writes bytes to a file or device, all of them.
    Write {
        /// The file.
        file: Handle,
        /// Offset.
        offset: u64,
        /// Memory; comes back as [`Data::Out`].
        data: Sg,
        /// Whether the data is on the medium before the answer (RWF_DSYNC).
        durable: bool,
    },
    /// Brings all written data to the medium (fdatasync).
    Sync {
        /// The file.
        file: Handle,
    },
    /// Changes the space behind a range, without data.
    Allocate {
        /// The file.
        file: Handle,
        /// The change.
        how: Allocate,
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Finds how far the bytes from `offset` on, at most `len`, are data or a hole: the answer's `extent`.
    Extent {
        /// The file.
        file: Handle,
        /// Offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Reports the space of a file and of its file system: comes back as [`Data::Space`].
    Space {
        /// The file.
        file: Handle,
    },
    /// Copies bytes of another file, or of another part of this one, without memory of Lunar: the file system shares
    /// them if it can (FICLONERANGE), else the kernel copies them (copy_file_range).
    /// [`lunar_core::io::Fault::Unsupported`] when neither is possible.
    Copy {
        /// The source file.
        from: Handle,
        /// Offset in the source.
        at: u64,
        /// The destination file.
        file: Handle,
        /// Offset in the destination.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Waits until an object is readable or writable; also once its other side is closed. The answer may come although
    /// it is not.
    Ready {
        /// The object.
        file: Handle,
        /// Whether to wait until it is writable.
        to_write: bool,
    },
    /// Adds one to an eventfd of a peer. The descriptor may be of another kind: errors are ignored, and the operation
    /// does not wait.
    Signal {
        /// The eventfd.
        file: Handle,
    },
    /// Waits for the bell: answered when another core has put a message into the mailbox.
    Bell,
}

/// A change of the space behind a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Releases the space of a file, which then reads as zeroes (FALLOC_FL_PUNCH_HOLE).
    Punch,
    /// Zeroes a range of a file, which keeps its space (FALLOC_FL_ZERO_RANGE).
    Zero,
    /// Discards blocks of a device (BLKDISCARD).
    Discard,
    /// Zeroes blocks of a device (BLKZEROOUT).
    ZeroOut,
}

/// The mode in which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Read-only.
    pub read_only: bool,
    /// Bypasses the page cache (O_DIRECT): memory and offsets must be aligned.
    pub direct: bool,
    /// Every write is on the medium before it is answered (O_DSYNC).
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
    /// No wait.
    Poll,
    /// Until this time at the latest; `None`: without limit.
    Until(Option<Instant>),
}

/// Wakes a core that sleeps in [`Driver::turn`], from any thread.
pub trait Bell: Send + Sync {
    /// Rings: the core's [`Op::Bell`] is answered.
    fn ring(&self);
}

/// Executes operations. One driver per core; it stays on its thread.
pub trait Driver {
    /// Its name in logs and `--driver`.
    fn name(&self) -> &'static str;

    /// The time now.
    fn now(&self) -> Instant;

    /// Starts an operation. May answer at once.
    fn submit(&self, op: Op, done: Done);

    /// Submits the new operations to the kernel, waits for the first answer as long as `wait` says, and answers all
    /// completed ones. Returns how many it answered.
    fn turn(&self, wait: Wait) -> usize;

    /// A cheap check, without a system call where possible, whether a `turn(Wait::Poll)` would find work.
    fn has_completions(&self) -> bool;

    /// Ends the operations in progress on a handle, with [`lunar_core::io::Fault::Aborted`].
    fn cancel(&self, handle: &Handle);

    /// Called when the last clone of a handle is gone.
    fn close(&self, id: u32);

    /// Called when the core's tasks are gone: closes all files now, even if the driver still has owners.
    fn end(&self) {}

    /// Opens a file or block device.
    ///
    /// # Errors
    /// The error of the operating system.
    fn open(&self, path: &Path, how: How) -> io::Result<Handle>;

    /// Takes over an open file, which was opened, locked and checked before the cores began.
    ///
    /// # Errors
    /// When the driver has no room for it.
    fn adopt(&self, file: OwnedFd) -> io::Result<Handle>;

    /// Listens for TCP connections; returns the address (with the port, when 0 was requested).
    ///
    /// # Errors
    /// The error of the operating system.
    fn listen(&self, address: SocketAddr) -> io::Result<(Handle, SocketAddr)>;

    /// The connection that an answered [`Op::Accept`] brought.
    fn accepted(&self, listener: &Handle) -> Option<Incoming>;

    /// Takes over a connection from the core that accepted it; returns (local, peer).
    ///
    /// # Errors
    /// When the peer has already disconnected.
    fn join(&self, incoming: Incoming) -> io::Result<(Handle, SocketAddr, SocketAddr)>;

    /// Takes over an endpoint of datagrams, frames or commands.
    ///
    /// # Errors
    /// `Unsupported` where the driver has no such endpoints, with a message for the operator; those of the operating
    /// system.
    fn attach(&self, endpoint: Endpoint) -> io::Result<Handle>;

    /// The current properties of an endpoint of datagrams or frames.
    ///
    /// # Errors
    /// `InvalidInput` for other endpoints; those of the operating system, for instance when an interface was removed.
    fn status(&self, endpoint: &Handle) -> io::Result<Status>;

    /// Adds or removes a filter of received frames of a link.
    ///
    /// # Errors
    /// `InvalidInput` for other endpoints; those of the operating system.
    fn set_filter(&self, link: &Handle, filter: Filter, is_wanted: bool) -> io::Result<()>;

    /// The state of a TCP connection; `None` for other endpoints, and where there is no kernel that knows it.
    fn tcp_state(&self, socket: &Handle) -> Option<TcpState> {
        let _ = socket;
        None
    }

    /// Closes the sending side after the sends in progress.
    fn shutdown(&self, socket: &Handle);

    /// Registers the core's memory with the kernel, if it supports and allows that.
    fn register(&self, arena: &Arena);

    /// The bell of this core.
    fn bell(&self) -> Arc<dyn Bell>;

    /// The Unix sockets of the driver; `None` for those of the operating system.
    fn local_sockets(&self) -> Option<&dyn LocalSockets> {
        None
    }
}

/// Unix sockets that a driver has in place of those of the operating system: the simulator's. No call waits: it fails
/// with [`Errno::AGAIN`], and [`Op::Ready`] waits.
pub trait LocalSockets {
    /// Listens at a path.
    ///
    /// # Errors
    /// `AddrInUse` when another listener has the path.
    fn listen(&self, path: &Path) -> io::Result<Handle>;

    /// Frees the path of a listener for another one.
    fn unlink(&self, listener: &Handle);

    /// Takes the next connection of a listener.
    ///
    /// # Errors
    /// Errors of accept(2).
    fn accept(&self, listener: &Handle) -> Result<Handle, Errno>;

    /// Receives bytes, and appends the descriptors that come with them. Returns 0 when the peer has closed its side.
    ///
    /// # Errors
    /// Errors of recvmsg(2).
    fn receive(&self, socket: &Handle, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize, Errno>;

    /// Sends bytes, and copies of `descriptors` with the first of them. Returns how many bytes there was room for.
    ///
    /// # Errors
    /// Errors of sendmsg(2).
    fn send(&self, socket: &Handle, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno>;

    /// Ends both directions.
    fn shutdown(&self, socket: &Handle);
}

/// For drivers.
impl Op {
    /// The second handle that an operation holds, besides the one of its file. A driver drops it while nothing of its
    /// own is borrowed, because it may be the last one.
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
