//! The interface of sessions to the load generator, for all protocols.

use anyhow::Result;
use lunar_core::mem::Region;
use lunar_core::outgoing::{Data, Outgoing};
use rustix::fd::BorrowedFd;

/// The operation of a command.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Read,
    Write(Data),
    Flush,
}

/// A command to start.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Identifies the command in its events.
    pub(crate) cookie: u32,
    pub(crate) work: Work,
    /// The LBA and the number of logical blocks.
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    /// The length in bytes.
    pub(crate) bytes: u32,
    /// Whether a write is durable when it is acknowledged.
    pub(crate) fua: bool,
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The command succeeded.
    Good,
    /// The target was busy or reported a unit attention: the command is to be sent again.
    Again,
    /// The command failed, with this error.
    Failed(String),
}

/// An event of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SessionEvent<'a> {
    /// Data of a read; pieces arrive in order.
    Data(u32, &'a [u8]),
    /// A command completed.
    Done(u32, Outcome),
}

/// A session under load with its transport.
pub(crate) trait Session {
    /// With `--spin`, up to so many sessions are polled one by one; for more sessions epoll is cheaper.
    const POLLED_MAX: usize;
    /// The number of commands that may start now.
    fn room(&self) -> u32;
    /// Starts a command. The caller has checked [`Session::room`].
    fn start(&mut self, request: Request);
    /// Sends queued bytes. Returns `false` if some remain because the socket is full.
    ///
    /// # Errors
    /// If the connection is lost.
    fn send(&mut self) -> Result<bool>;
    /// Receives, through `buffer` where the transport needs one, and calls `on` for each event. Returns whether
    /// anything was received.
    ///
    /// # Errors
    /// Why the session ended.
    fn take(&mut self, buffer: &mut [u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<bool>;
    /// A descriptor that is readable when something has arrived.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// The number of messages sent only to notify the target (doorbells).
    fn rings(&self) -> u64 {
        0
    }
}

/// Polls without an answer after which a connection is checked whose queues are in memory: some milliseconds.
const MISSES: u32 = 1 << 17;

/// The polls of a queue in memory that found nothing, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Misses(u32);

impl Misses {
    /// Counts a poll; returns whether the connection has to be checked. `sleeps`: the session sleeps until it is told,
    /// so it finds nothing only when something is wrong.
    #[inline]
    pub(crate) fn count(&mut self, has_found: bool, sleeps: bool) -> bool {
        self.0 = if has_found { 0 } else { self.0 + 1 };
        let is_due = self.0 > 0 && (sleeps || self.0 > MISSES);
        if is_due {
            self.0 = 0;
        }
        is_due
    }
}

/// Passes the data of a read on that is in memory: so many bytes at `at`, in pieces of at most `buffer.len()` bytes.
pub(crate) fn pass_on(
    (memory, at, bytes): (&Region, usize, usize),
    cookie: u32,
    buffer: &mut [u8],
    on: &mut impl FnMut(SessionEvent<'_>),
) {
    let mut done = 0;
    while done < bytes {
        let count = (bytes - done).min(buffer.len());
        if !memory.read(at + done, &mut buffer[..count]) {
            return;
        }
        on(SessionEvent::Data(cookie, &buffer[..count]));
        done += count;
    }
}

/// A session over a byte stream, without I/O.
pub(crate) trait StreamSession {
    /// The bytes to send.
    fn output(&self) -> &Outgoing;
    /// Removes the first `count` bytes of the output, which were sent.
    fn sent(&mut self, count: usize);
    /// The number of commands that may start now.
    fn room(&self) -> u32;
    /// Starts a command. The caller has checked [`StreamSession::room`].
    fn start(&mut self, request: Request);
    /// Takes all received `bytes` and calls `on` for each event.
    ///
    /// # Errors
    /// Why the session ended.
    fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<()>;
}
