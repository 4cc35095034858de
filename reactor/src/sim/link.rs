//! Connections of the simulated network: their two sides, and the operations of each side.

use super::chance::Chance;
use super::faults::Faults;
use super::pipe::Pipe;
use crate::op::Handle;
use lunar_core::io::Done;
use lunar_core::mem::{Sg, SgMut};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::task::Waker;

/// One side of a connection, and the pipe that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The one that connected.
    Client,
    /// The one that accepted.
    Server,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A connection.
pub(super) struct Link {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    pub(super) to_client: Pipe,
    pub(super) to_server: Pipe,
    pub(super) client_end: End,
    pub(super) server_end: End,
    /// Whether it is a connection of a Unix socket: only its ends break it.
    pub(super) is_local: bool,
}

/// The operations of one side.
pub(super) struct End {
    /// The core of this side; a side of test code has none.
    pub(super) core: Option<usize>,
    pub(super) open: bool,
    pub(super) receives: VecDeque<Receive>,
    pub(super) sends: VecDeque<Send>,
    /// Waits until there is something to receive, or room to send.
    pub(super) readies: Vec<Ready>,
    pub(super) wakers: Vec<Waker>,
}

pub(super) struct Receive {
    pub(super) into: SgMut,
    pub(super) done: Done,
    pub(super) handle: Handle,
}

pub(super) struct Send {
    pub(super) data: Sg,
    pub(super) at: usize,
    pub(super) done: Done,
    pub(super) handle: Handle,
}

/// An [`crate::op::Op::Ready`].
pub(super) struct Ready {
    pub(super) to_write: bool,
    pub(super) done: Done,
    pub(super) handle: Handle,
}

/// A listener.
pub(super) struct Listener {
    pub(super) core: usize,
    pub(super) backlog: VecDeque<u32>,
    pub(super) accepts: VecDeque<(Done, Handle)>,
    pub(super) accepted: VecDeque<u32>,
    /// Waits of a Unix socket until there is a connection.
    pub(super) readies: Vec<(Done, Handle)>,
}

impl Listener {
    pub(super) fn new(core: usize) -> Self {
        Self {
            core,
            backlog: VecDeque::new(),
            accepts: VecDeque::new(),
            accepted: VecDeque::new(),
            readies: Vec::new(),
        }
    }
}

impl End {
    pub(super) fn new() -> Self {
        Self {
            core: None,
            open: true,
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            readies: Vec::new(),
            wakers: Vec::new(),
        }
    }
}

impl Link {
    pub(super) fn new(client: SocketAddr, server: SocketAddr, chance: &mut Chance, faults: &Faults) -> Self {
        let mut pipe = || Pipe::new(usize::try_from(chance.within(faults.buffer.0..=faults.buffer.1)).unwrap_or(1));
        let (to_client, to_server) = (pipe(), pipe());
        Self { client, server, to_client, to_server, client_end: End::new(), server_end: End::new(), is_local: false }
    }

    pub(super) fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client_end,
            Side::Server => &mut self.server_end,
        }
    }

    /// The pipe that leads to a side.
    pub(super) fn to(&mut self, side: Side) -> &mut Pipe {
        match side {
            Side::Client => &mut self.to_client,
            Side::Server => &mut self.to_server,
        }
    }
}
