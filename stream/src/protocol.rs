//! The interface of a session: a protocol machine without I/O that takes bytes and time, and gives bytes and actions.

use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut, Slice};
use lunar_core::time::Instant;
use std::hash::Hash;

/// How a connection receives next.
#[derive(Debug)]
pub enum ReceiveMode {
    /// Into a buffer of the connection, which goes to [`ProtocolMachine::receive`].
    Chunk,
    /// Payload, directly into this memory, and no more than it holds; it goes to [`ProtocolMachine::placed`].
    Into(SgMut),
    /// Not at all: the session waits for an answer to an action, or for queued bytes to be taken. Then the connection
    /// calls [`ProtocolMachine::resume`].
    Paused,
}

/// The result of [`CommandData::pull`].
#[derive(Debug)]
pub enum PullResult {
    /// The bytes.
    Ready(Sg),
    /// The bytes have been requested, or arrive unsolicited: an action says when to pull again.
    Pending,
    /// The bytes have to be requested: hand in memory for this many with [`CommandData::supply`], and wait for the same
    /// action.
    NeedsMemory(usize),
    /// The bytes will not arrive: [`Fault::Protocol`] if the peer sent other or damaged data, [`Fault::Aborted`] if the
    /// command has ended.
    Failed(Fault),
}

/// An iSCSI session or an NVMe/TCP queue, and the bytes of its connection.
pub trait ProtocolMachine: 'static {
    /// A request to the front.
    type Action;

    /// How to receive next. Memory of [`ReceiveMode::Into`] is always given back with [`ProtocolMachine::placed`].
    fn receive_mode(&mut self) -> ReceiveMode;

    /// Takes bytes that were received with [`ReceiveMode::Chunk`].
    fn receive(&mut self, bytes: Slice, now: Instant, actions: &mut Vec<Self::Action>);

    /// Takes back the memory of [`ReceiveMode::Into`], of which the first `count` bytes have been received.
    ///
    /// # Panics
    /// When `count` is larger than the memory.
    fn placed(&mut self, memory: SgMut, count: usize, now: Instant, actions: &mut Vec<Self::Action>);

    /// Continues with bytes that were received before the mode became [`ReceiveMode::Paused`].
    fn resume(&mut self, actions: &mut Vec<Self::Action>);

    /// Takes all queued bytes, for one send.
    fn take_out(&mut self) -> Sg;

    /// The number of queued bytes.
    fn queued_bytes(&self) -> usize;

    /// Whether there was no memory for a reply: the connection has to end.
    fn is_out_of_memory(&self) -> bool;
}

/// The data of a protocol's commands.
pub trait CommandData: ProtocolMachine {
    /// Identifies a command until its reply.
    type Key: Copy + Eq + Hash + 'static;

    /// Bytes `offset..offset + len` of the data that the peer sends for a command. Pulls go in ascending order without
    /// gaps, and end at the length that the peer has announced.
    fn pull(&mut self, key: Self::Key, offset: usize, len: usize) -> PullResult;

    /// Takes the memory that [`PullResult::NeedsMemory`] asked for. It may be larger, up to the length that the peer
    /// has announced: the rest is requested ahead of its pull.
    fn supply(&mut self, key: Self::Key, memory: SgMut);

    /// Sends data of a command to the peer, from `offset` on. More data or the reply of the command follows.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command has ended, [`Fault::Protocol`] when the data exceeds what its peer has room
    /// for.
    fn push(&mut self, key: Self::Key, offset: usize, data: Sg) -> Result<(), Fault>;
}
