//! What the load generator asks of a session, whatever its protocol.

use anyhow::Result;
use lunar_core::outgoing::{Data, Outgoing};
use rustix::fd::BorrowedFd;

/// What a command does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Read,
    Write(Data),
    Flush,
}

/// A command to start.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Comes back with what becomes of it.
    pub(crate) cookie: u32,
    pub(crate) work: Work,
    /// First logical block, and how many.
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    /// The same in bytes.
    pub(crate) bytes: u32,
    /// A write is on the medium when it is answered.
    pub(crate) fua: bool,
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Well.
    Good,
    /// The target could not take it, or had something else to say first: it is to be sent again.
    Again,
    /// Not well.
    Failed(String),
}

/// What a target said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told<'a> {
    /// The next data of a read.
    Data(u32, &'a [u8]),
    /// A command is over.
    Done(u32, Ending),
}

/// A session under load, and what carries it.
pub(crate) trait Session {
    /// Polling asks session by session up to so many; beyond, epoll is cheaper.
    const POLLED_MAX: usize;
    /// Commands that may start now.
    fn room(&self) -> u32;
    /// Starts a command; there is room.
    fn start(&mut self, request: Request);
    /// Sends what waits; `false`: not all of it goes now.
    ///
    /// # Errors
    /// When nobody is there any more.
    fn send(&mut self) -> Result<bool>;
    /// Takes what has arrived, by way of `buffer` where it needs one, and tells `on` what it means. Tells whether there
    /// was anything.
    ///
    /// # Errors
    /// Why the session is over.
    fn take(&mut self, buffer: &mut [u8], on: &mut impl FnMut(Told<'_>)) -> Result<bool>;
    /// Readable when something has arrived.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Messages that did nothing but wake the other side.
    fn rings(&self) -> u64 {
        0
    }
}

/// A session over a stream of bytes: bytes in, what they mean and bytes out.
pub(crate) trait Driven {
    /// What waits to be sent.
    fn output(&self) -> &Outgoing;
    /// The first `count` bytes of the output were sent.
    fn sent(&mut self, count: usize);
    /// Commands that may start now.
    fn room(&self) -> u32;
    /// Starts a command; there is room.
    fn start(&mut self, request: Request);
    /// Takes what arrived, all of it, and tells `on` what it means.
    ///
    /// # Errors
    /// Why the session is over.
    fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(Told<'_>)) -> Result<()>;
}
