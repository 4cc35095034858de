//! The front-end contract: how a transport moves a command's data, and the names of ports and nexuses.
//!
//! A front end hands a command to its command set together with a [`Transfer`], which the command's steps
//! pull Data-Out from and push Data-In to. Status travels apart, with the last of the data.

use crate::io::Fault;
use crate::mem::{Arena, Sg, SgMut};
use std::fmt;
use std::sync::Arc;

/// Number of an I_T nexus in this process: one initiator port joined to one target port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NexusId(pub u64);

/// An I_T nexus by its names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NexusName {
    /// The initiator port in its transport's spelling: for iSCSI `name,i,0x<ISID>`.
    pub initiator: Arc<str>,
    /// Relative target port identifier (SPC-6 7.7.6.5); starts with 1.
    pub target_port: u16,
}

impl fmt::Display for NexusName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at port {}", self.initiator, self.target_port)
    }
}

/// Moves one command's data. Offsets and lengths are bytes of the command's data, in ascending order, without gaps.
pub trait Transfer {
    /// Waits until the way to the peer has room: asked before memory is taken for Data-In, so that a peer that
    /// does not read ties up nothing but its own commands.
    fn room(&self) -> impl Future<Output = Result<(), Fault>>;

    /// Memory for Data-In; waits until there is enough.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command was aborted meanwhile.
    fn fresh(&self, arena: &Arena, len: usize) -> impl Future<Output = Result<SgMut, Fault>> {
        async move { Ok(arena.wait_sg(len).await) }
    }

    /// Whether [`Transfer::room`] would not wait.
    fn has_room(&self) -> bool {
        false
    }

    /// Data-Out `offset..offset + len`: what came with the command, or asked for now.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command was aborted meanwhile; [`Fault::Timeout`], [`Fault::NoMemory`],
    /// [`Fault::Protocol`].
    fn pull(&self, offset: usize, len: usize) -> impl Future<Output = Result<Sg, Fault>>;

    /// The same, if it is there already.
    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let _ = (offset, len);
        None
    }

    /// The same for one who has memory already, and so does not wait for more: enough of those who did would have all
    /// of it, and wait for each other for ever. Unless a transport does more: what has arrived.
    ///
    /// # Errors
    /// [`Fault::NoMemory`] when there is none at this moment, and those of [`Transfer::pull`].
    fn pull_beside(&self, offset: usize, len: usize) -> impl Future<Output = Result<Sg, Fault>> {
        async move { self.arrived(offset, len).ok_or(Fault::NoMemory) }
    }

    /// Sends Data-In from `offset` on; more will follow.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command was aborted meanwhile.
    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault>;

    /// Memory of the peer's own for Data-In `offset..offset + len`, which a store may fill: then nothing is pushed.
    /// The peer may change it at any time, so nobody but a store gets it. `None`: there is none, or not all of it.
    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let _ = (offset, len);
        None
    }

    /// Data-Out `offset..offset + len` where it lies with the peer, who may change it at any time: for a store, which
    /// only moves it. `None`: it is pulled.
    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        let _ = (offset, len);
        None
    }

    /// Whether the command was aborted: its steps stop at the next chance and nothing is answered.
    fn aborted(&self) -> bool;
}
