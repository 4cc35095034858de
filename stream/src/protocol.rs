//! What a session is to its connection: a machine that takes bytes and time, and gives bytes and actions.

use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut, Slice};
use lunar_core::time::Instant;
use std::hash::Hash;

/// How a connection shall receive next.
#[derive(Debug)]
pub enum ReceiveMode {
    /// Anything, into memory of the connection's own: [`ProtocolMachine::receive`].
    Chunk,
    /// Payload, straight into this memory, and not more than fits: [`ProtocolMachine::placed`].
    Into(SgMut),
    /// Nothing: the session waits for an answer from outside, or for what is queued to be taken; after that,
    /// [`ProtocolMachine::resume`].
    Paused,
}

/// What a pull finds.
#[derive(Debug)]
pub enum PullResult {
    /// The bytes.
    Ready(Sg),
    /// They will come: an action says when to pull again.
    Pending,
    /// They have to be asked for: get memory for this many bytes, hand it in with [`CommandData::supply`], and wait for
    /// that action.
    NeedsMemory(usize),
    /// They will not come: [`Fault::Protocol`] if the peer sent something else, or damaged, [`Fault::Aborted`] if the
    /// command is gone.
    Failed(Fault),
}

/// One session, or one queue: the bytes of its connection.
pub trait ProtocolMachine: 'static {
    /// What the outside has to do.
    type Action;

    /// How to receive next. Memory that is handed out with [`ReceiveMode::Into`] comes back with [`ProtocolMachine::placed`],
    /// whatever came of it.
    fn receive_mode(&mut self) -> ReceiveMode;

    /// Takes what was received, after [`ReceiveMode::Chunk`].
    fn receive(&mut self, bytes: Slice, now: Instant, actions: &mut Vec<Self::Action>);

    /// Takes back the memory of [`ReceiveMode::Into`]; its first `count` bytes have been filled.
    ///
    /// # Panics
    /// When `count` is more than the memory's length.
    fn placed(&mut self, memory: SgMut, count: usize, now: Instant, actions: &mut Vec<Self::Action>);

    /// Goes on with what was received while the machine wanted nothing.
    fn resume(&mut self, actions: &mut Vec<Self::Action>);

    /// Everything that is queued, for one send; empty if nothing is.
    fn take_out(&mut self) -> Sg;

    /// Bytes that wait to be sent.
    fn queued_bytes(&self) -> usize;

    /// Whether there was no memory for an answer: the connection has to end.
    fn is_out_of_memory(&self) -> bool;
}

/// The data of its commands.
pub trait CommandData: ProtocolMachine {
    /// What a command is known by until it is answered.
    type Key: Copy + Eq + Hash + 'static;

    /// Data-Out `offset..offset + len` of a command; in ascending order, without gaps, and at most what the peer
    /// says that it sends.
    fn pull(&mut self, key: Self::Key, offset: usize, len: usize) -> PullResult;

    /// Memory for what [`PullResult::NeedsMemory`] wanted, or for more than that, up to what the peer says that it sends: it is
    /// asked for ahead of its pull.
    fn supply(&mut self, key: Self::Key, memory: SgMut);

    /// Sends Data-In from `offset` on; more, or the end of the command, will follow.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command is gone, [`Fault::Protocol`] when its peer has no room for so much.
    fn push(&mut self, key: Self::Key, offset: usize, data: Sg) -> Result<(), Fault>;
}
