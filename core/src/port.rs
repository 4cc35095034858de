//! The front-end contract: how a transport moves a command's data, and the names of ports and nexuses.
//!
//! A front end hands a command to its command set together with a [`Transfer`], which the command's steps pull
//! Data-Out from and push Data-In to. The status travels separately, with the last of the data.

use crate::io::Fault;
use crate::mem::{Sg, SgMut};
use std::fmt;
use std::future::ready;
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
    /// Waits until the connection to the peer can take more data. Called before memory is taken for Data-In, so that a
    /// peer that does not read delays only its own commands.
    fn room(&self) -> impl Future<Output = Result<(), Fault>>;

    /// Reserves a part of the peer's share of memory for `len` bytes of Data-In, which stay counted until the peer has
    /// received them; waits until there is room for them. Of a peer that has none, perhaps only for `least` bytes.
    /// Returns for how many.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command was aborted meanwhile.
    fn reserve(&self, len: usize, least: usize) -> impl Future<Output = Result<usize, Fault>> {
        let _ = least;
        ready(Ok(len))
    }

    /// Whether [`Transfer::room`] would not wait.
    fn has_room(&self) -> bool {
        false
    }

    /// Data-Out `offset..offset + len`: the data that came with the command, or that is requested now.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command was aborted meanwhile; [`Fault::Timeout`], [`Fault::NoMemory`],
    /// [`Fault::Protocol`].
    fn pull(&self, offset: usize, len: usize) -> impl Future<Output = Result<Sg, Fault>>;

    /// The same data, if it has already arrived.
    fn arrived(&self, offset: usize, len: usize) -> Option<Sg> {
        let _ = (offset, len);
        None
    }

    /// As [`Transfer::pull`], for a command that holds memory already. It must not wait for more memory: commands that
    /// did would hold all memory and wait for each other forever. By default only data that has arrived is returned.
    ///
    /// # Errors
    /// [`Fault::NoMemory`] when there is none at this moment, and those of [`Transfer::pull`].
    fn pull_more(&self, offset: usize, len: usize) -> impl Future<Output = Result<Sg, Fault>> {
        async move { self.arrived(offset, len).ok_or(Fault::NoMemory) }
    }

    /// Sends Data-In from `offset` on; more will follow.
    ///
    /// # Errors
    /// [`Fault::Aborted`] when the command was aborted meanwhile.
    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault>;

    /// Memory of the peer for Data-In `offset..offset + len`, which a store may fill: then no data is pushed. The peer
    /// may change it at any time, so only a store may use it. `None`: there is none for all of the range.
    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        let _ = (offset, len);
        None
    }

    /// Data-Out `offset..offset + len` in the memory of the peer, which the peer may change at any time: for a store,
    /// which only moves it. `None`: the data must be pulled.
    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        let _ = (offset, len);
        None
    }

    /// Whether the command was aborted: its steps stop at the next opportunity, and no answer is sent.
    fn aborted(&self) -> bool;
}
