//! The driver of one core of a simulation.

use super::core_state::{Answer, CoreState, Host, Kind, SimBell};
use super::link::{Listener, Side};
use super::state::State;
use super::{STANDSTILL, World};
use crate::endpoint::packet::Filter;
use crate::endpoint::{Endpoint, Status};
use crate::eventfd::is_eventfd;
use crate::op::{Bell, Driver, Handle, How, Incoming, LocalSockets, Op, Wait};
use lunar_core::io::Done;
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Ports of listeners that did not ask for one.
const FIRST_PORT: u16 = 40_000;

impl World {
    /// A core of a machine, for [`crate::Reactor::with_driver`].
    #[must_use]
    pub fn core(&self, host: Host) -> Rc<Core> {
        self.enter(|state| {
            let index = state.cores.len();
            let bell = Arc::new(SimBell::default());
            state.cores.push(CoreState {
                host,
                alive: true,
                handles: BTreeMap::new(),
                due: Vec::new(),
                bell: bell.clone(),
                bell_done: None,
            });
            Rc::new_cyclic(|me| Core { world: self.clone(), index, bell, me: me.clone() })
        })
    }
}

/// One virtual core: the driver of one reactor.
pub struct Core {
    world: World,
    index: usize,
    bell: Arc<SimBell>,
    me: Weak<Self>,
}

impl Core {
    pub(super) fn open_kind(&self, kind: Kind) -> Handle {
        let id = self.world.enter(|state| {
            let id = u32::try_from(state.serial()).unwrap_or(u32::MAX);
            state.cores[self.index].handles.insert(id, kind);
            id
        });
        let me: Weak<dyn Driver> = self.me.clone();
        Handle::new(me, id)
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn kind(&self, state: &State, id: u32) -> Option<Kind> {
        state.cores[self.index].handles.get(&id).copied()
    }

    /// Processes the events that are due, and gives the core its answers. Returns the number of answers, and whether
    /// there were events: they may have woken tasks, which need no answer.
    fn give_due(&self) -> (usize, bool) {
        let (due, has_settled) = self.world.enter(|state| {
            let has_settled = state.settle();
            let mut due = std::mem::take(&mut state.cores[self.index].due);
            state.chance.shuffle(&mut due);
            (due, has_settled)
        });
        let count = due.len();
        due.into_iter().for_each(Answer::give);
        (count, has_settled)
    }

    fn alive(&self, state: &State) -> bool {
        state.cores[self.index].alive
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.world.enter(|state| state.end_core(self.index));
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.index)
    }
}

impl Driver for Core {
    fn name(&self) -> &'static str {
        "simulator"
    }

    fn now(&self) -> Instant {
        self.world.now()
    }

    fn submit(&self, op: Op, done: Done) {
        let refused = self.world.enter(|state| {
            if !self.alive(state) {
                return Some((op, done));
            }
            state.eager = !matches!(op, Op::Bell) && state.chance.odds(state.faults.eager);
            match op {
                Op::Bell => {
                    state.cores[self.index].bell_done = Some(done);
                    state.hear_bell(self.index);
                }
                Op::Ready { .. } | Op::Signal { .. } => state.start_local(self.index, op, done),
                Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } => state.start_socket(self.index, op, done),
                Op::ReceiveBatch { .. } | Op::SendBatch { .. } => state.start_batch(self.index, op, done),
                Op::Command { .. } => state.start_command(self.index, op, done),
                _ => state.start_job(self.index, op, done),
            }
            state.eager = false;
            None
        });
        drop(refused);
    }

    fn turn(&self, wait: Wait) -> usize {
        self.world.enter(State::tick);
        let (given, has_settled) = self.give_due();
        let Wait::Until(until) = wait else { return given };
        if given > 0 || has_settled || until.is_some_and(|until| until <= self.now()) {
            return given;
        }
        assert!(self.world.enter(|state| state.advance(until)), "{STANDSTILL}");
        self.give_due().0
    }

    fn has_completions(&self) -> bool {
        self.world.enter(|state| !state.cores[self.index].due.is_empty())
    }

    fn cancel(&self, handle: &Handle) {
        self.world.enter(|state| {
            if let Some(kind) = self.kind(state, handle.id()) {
                state.cancel_jobs(self.index, handle.id());
                state.cancel_signals(self.index, handle.id());
                state.cancel_socket(self.index, kind);
            }
        });
    }

    fn close(&self, id: u32) {
        self.world.enter(|state| match state.cores[self.index].handles.remove(&id) {
            Some(Kind::Socket { link, side }) => state.close_end(link, side),
            Some(Kind::Listener(address)) => state.close_listener(address),
            Some(Kind::Carrier(id)) => state.close_carrier(id),
            Some(Kind::Eventfd) => drop(state.eventfds.remove(&(self.index, id))),
            Some(Kind::File { .. } | Kind::Device(_)) | None => {}
        });
    }

    fn end(&self) {
        self.world.enter(|state| state.end_core(self.index));
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Handle> {
        let kind = self.world.enter(|state| {
            let disk = state.paths.get(path).copied()?;
            Some(Kind::File { disk, how, told: state.disks[disk].failures })
        });
        kind.map(|kind| self.open_kind(kind)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Eventfds only: files and sockets are those of the world.
    fn adopt(&self, file: OwnedFd) -> io::Result<Handle> {
        if !is_eventfd(&file)? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let handle = self.open_kind(Kind::Eventfd);
        self.world.enter(|state| state.eventfds.insert((self.index, handle.id()), Rc::new(file)));
        Ok(handle)
    }

    fn listen(&self, mut address: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
        self.world.enter(|state| {
            if address.port() == 0 {
                let taken = |port| state.listeners.keys().any(|known| known.port() == port);
                let free = (FIRST_PORT..u16::MAX).find(|port| !taken(*port)).ok_or(io::ErrorKind::AddrInUse)?;
                address.set_port(free);
            }
            if state.listeners.contains_key(&address) {
                return Err(io::Error::from(io::ErrorKind::AddrInUse));
            }
            state.listeners.insert(address, Listener::new(self.index));
            Ok(())
        })?;
        Ok((self.open_kind(Kind::Listener(address)), address))
    }

    fn accepted(&self, listener: &Handle) -> Option<Incoming> {
        self.world.enter(|state| match self.kind(state, listener.id()) {
            Some(Kind::Listener(address)) => state.accepted(address).map(Incoming::Simulated),
            _ => None,
        })
    }

    fn join(&self, incoming: Incoming) -> io::Result<(Handle, SocketAddr, SocketAddr)> {
        let Incoming::Simulated(link) = incoming else { return Err(io::ErrorKind::Unsupported.into()) };
        let joined = self.world.enter(|state| state.join(self.index, link));
        let (local, peer) = joined.ok_or(io::ErrorKind::NotConnected)?;
        Ok((self.open_kind(Kind::Socket { link, side: Side::Server }), local, peer))
    }

    fn attach(&self, endpoint: Endpoint) -> io::Result<Handle> {
        let Endpoint::Simulated(id) = endpoint else { return Err(io::ErrorKind::Unsupported.into()) };
        let kind = self.world.enter(|state| {
            let device = state.devices.contains_key(&id).then_some(Kind::Device(id));
            device.or_else(|| state.attach_carrier(self.index, id))
        });
        kind.map(|kind| self.open_kind(kind)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn status(&self, endpoint: &Handle) -> io::Result<Status> {
        let status = self.world.enter(|state| match self.kind(state, endpoint.id()) {
            Some(Kind::Carrier(id)) => state.status_of(id),
            _ => None,
        });
        status.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    fn set_filter(&self, link: &Handle, filter: Filter, is_wanted: bool) -> io::Result<()> {
        let is_link = self.world.enter(|state| match self.kind(state, link.id()) {
            Some(Kind::Carrier(id)) => state.set_filter(id, filter, is_wanted),
            _ => false,
        });
        if is_link { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn shutdown(&self, socket: &Handle) {
        self.world.enter(|state| {
            if let Some(Kind::Socket { link, side }) = self.kind(state, socket.id()) {
                state.shut(link, side);
            }
        });
    }

    fn register(&self, _arena: &Arena) {}

    fn bell(&self) -> Arc<dyn Bell> {
        self.bell.clone()
    }

    fn local_sockets(&self) -> Option<&dyn LocalSockets> {
        Some(self)
    }
}
