//! The state of the cores of a simulation.

use super::link::Side;
use crate::op::{Bell, Handle, How};
use lunar_core::io::{Done, Outcome};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of a machine, whose cores crash together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host(pub u32);

/// The bell of a virtual core, which takes effect in the core's next turn.
#[derive(Default)]
pub(super) struct SimBell(AtomicBool);

impl SimBell {
    pub(super) fn heard(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Bell for SimBell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The state of one core.
pub(super) struct CoreState {
    pub(super) host: Host,
    pub(super) alive: bool,
    pub(super) handles: BTreeMap<u32, Kind>,
    pub(super) due: Vec<Answer>,
    pub(super) bell: Arc<SimBell>,
    pub(super) bell_done: Option<Done>,
}

/// The object of a handle.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `told`: the number of writeback failures reported to it.
    File {
        disk: usize,
        how: How,
        told: u64,
    },
    Socket {
        link: u32,
        side: Side,
    },
    Listener(SocketAddr),
    /// An endpoint of datagrams or frames.
    Carrier(u32),
    /// A device that takes commands.
    Device(u32),
    /// An eventfd that a peer has given.
    Eventfd,
}

/// An answer on its way to its core.
pub(super) struct Answer {
    pub(super) done: Done,
    pub(super) outcome: Outcome,
    /// The operation's handle: dropped last, and outside of the world.
    pub(super) handle: Option<Handle>,
}

impl Answer {
    pub(super) fn give(self) {
        self.done.complete(self.outcome);
        drop(self.handle);
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({:?})", self.outcome.result)
    }
}
