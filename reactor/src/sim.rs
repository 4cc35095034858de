//! The simulator: a driver whose time is virtual, whose network and files live in memory, and whose faults and
//! delays all come from one seed, so that a seed replays exactly.
//!
//! A [`World`] holds the time, the network and the files. Each virtual core is a [`Core`]: give it to
//! [`crate::Reactor::with_driver`]. Test code holds the client ends of connections as [`Peer`]s, whose futures may
//! run on any core of the world. One core alone may use [`crate::Reactor::run`]: its loop moves the time on.
//! Several are run together by [`World::run`].
//!
//! What may happen: bytes are cut anywhere and late, directions stall, connections are reset; answers come in any
//! order; reads, writes and syncs fail, space runs out; a machine crashes and its files keep what was synced and
//! any part of what was not. See [`Faults`].

mod chance;
mod disk;
mod faults;
mod files;
mod peer;
mod pipe;
mod sockets;
mod state;
mod trace;

pub use chance::{Chance, MILLION};
pub use disk::{SECTOR, SPACE_BLOCK};
pub use faults::Faults;
pub use peer::Peer;

use crate::Reactor;
use crate::op::{Bell, Driver, Handle, How, Incoming, Op, Wait};
use lunar_core::io::Done;
use lunar_core::mem::Arena;
use lunar_core::time::Instant;
use sockets::{Listener, Side};
use state::{CoreState, Kind, Leftovers, State};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ports of listeners that did not ask for one.
const FIRST_PORT: u16 = 40_000;

/// Number of a machine: what crashes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host(pub u32);

/// One simulation. Clones are the same one; it stays on its thread.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

impl World {
    /// A world without faults whose every draw comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(State::new(seed))))
    }

    /// A core of a machine, for [`Reactor::with_driver`].
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

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.enter(|state| state.now)
    }

    /// The simulation panics when its time goes beyond this: something hangs.
    pub fn set_deadline(&self, deadline: Instant) {
        self.enter(|state| state.deadline = deadline);
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.enter(|state| state.faults = faults);
    }

    /// What goes wrong now.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.enter(|state| state.faults.clone())
    }

    /// A stream of numbers of its own for test code.
    #[must_use]
    pub fn chance(&self) -> Chance {
        self.enter(|state| state.chance.fork())
    }

    /// Makes a file of `size` bytes of zeroes.
    pub fn create(&self, path: impl AsRef<Path>, size: usize) {
        self.enter(|state| {
            let disk = state.disks.len();
            state.disks.push(disk::Disk::new(size));
            state.paths.insert(path.as_ref().to_owned(), disk);
        });
    }

    /// What a read of a file sees now; nothing when there is no such file.
    #[must_use]
    pub fn contents(&self, path: impl AsRef<Path>) -> Vec<u8> {
        self.enter(|state| {
            state.paths.get(path.as_ref()).map_or_else(Vec::new, |&disk| state.disks[disk].seen().to_vec())
        })
    }

    /// Connects to a listener. Whether somebody listens shows in what is received.
    #[must_use]
    pub fn connect(&self, to: SocketAddr) -> Peer {
        let link = self.enter(|state| state.connect(to));
        Peer::new(self.clone(), link)
    }

    /// A machine stops. Its cores answer nothing any more: drop their reactors. Connections are reset; with
    /// `power` gone, files keep what was synced and any part of what was not, else all.
    pub fn crash(&self, host: Host, power: bool) {
        self.enter(|state| state.crash(host, power));
    }

    /// Keeps the lines of the trace from now on.
    pub fn keep_trace(&self) {
        self.enter(|state| state.trace.keep());
    }

    /// Adds a line of the test's own to the trace.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        self.enter(|state| state.note(what));
    }

    /// The number of all that happened so far: the same for the same seed.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.enter(|state| state.trace.hash())
    }

    /// The lines kept.
    #[must_use]
    pub fn trace_lines(&self) -> Vec<String> {
        self.enter(|state| state.trace.lines().to_vec())
    }

    /// Runs several cores until `done`, which is asked after every round. The order of a round is drawn.
    ///
    /// # Panics
    /// When nothing will ever happen again and it is not done, or the time is up.
    pub fn run(&self, cores: &[&Reactor], mut done: impl FnMut() -> bool) {
        let mut order: Vec<&Reactor> = cores.to_vec();
        while !done() {
            self.enter(|state| state.chance.shuffle(&mut order));
            let mut busy = false;
            for core in &order {
                busy |= core.turn();
            }
            if !busy {
                let timer = cores.iter().filter_map(|core| core.next_timer()).min();
                assert!(self.enter(|state| state.advance(timer)), "{STANDSTILL}");
            }
        }
    }

    /// Borrows the state, and afterwards does what may come back into the world.
    fn enter<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (value, left) = {
            let mut state = self.0.borrow_mut();
            let value = act(&mut state);
            (value, std::mem::take(&mut state.left))
        };
        let Leftovers { answers, wakers, jobs, links, listeners } = left;
        answers.into_iter().for_each(state::Answer::give);
        wakers.into_iter().for_each(std::task::Waker::wake);
        drop((jobs, links, listeners));
        value
    }
}

const STANDSTILL: &str = "the simulation stands still: everybody waits, and nothing is under way";

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World at {:?}", self.now())
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
    fn open_kind(&self, kind: Kind) -> Handle {
        let id = self.world.enter(|state| {
            let id = u32::try_from(state.serial()).unwrap_or(u32::MAX);
            state.cores[self.index].handles.insert(id, kind);
            id
        });
        let me: Weak<dyn Driver> = self.me.clone();
        Handle::new(me, id)
    }

    fn kind(&self, state: &State, id: u32) -> Option<Kind> {
        state.cores[self.index].handles.get(&id).copied()
    }

    /// Gives the core what is due.
    fn give_due(&self) -> usize {
        let due = self.world.enter(|state| {
            state.settle();
            let mut due = std::mem::take(&mut state.cores[self.index].due);
            state.chance.shuffle(&mut due);
            due
        });
        let count = due.len();
        due.into_iter().for_each(state::Answer::give);
        count
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
                Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. } => state.start_socket(self.index, op, done),
                _ => state.start_job(self.index, op, done),
            }
            state.eager = false;
            None
        });
        drop(refused);
    }

    fn turn(&self, wait: Wait) -> usize {
        self.world.enter(State::tick);
        let given = self.give_due();
        let Wait::Until(until) = wait else { return given };
        if given > 0 || until.is_some_and(|until| until <= self.now()) {
            return given;
        }
        assert!(self.world.enter(|state| state.advance(until)), "{STANDSTILL}");
        self.give_due()
    }

    fn ripe(&self) -> bool {
        self.world.enter(|state| !state.cores[self.index].due.is_empty())
    }

    fn cancel(&self, handle: &Handle) {
        self.world.enter(|state| {
            if let Some(kind) = self.kind(state, handle.id()) {
                state.cancel_jobs(self.index, handle.id());
                state.cancel_socket(self.index, kind);
            }
        });
    }

    fn close(&self, id: u32) {
        self.world.enter(|state| match state.cores[self.index].handles.remove(&id) {
            Some(Kind::Socket { link, side }) => state.close_end(link, side),
            Some(Kind::Listener(address)) => state.close_listener(address),
            Some(Kind::File { .. }) | None => {}
        });
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Handle> {
        let kind = self.world.enter(|state| {
            let disk = state.paths.get(path).copied()?;
            Some(Kind::File { disk, how, told: state.disks[disk].failures })
        });
        kind.map(|kind| self.open_kind(kind)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn adopt(&self, _file: OwnedFd) -> io::Result<Handle> {
        Err(io::ErrorKind::Unsupported.into())
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
}

/// The bell of a virtual core: heard in the core's next turn.
#[derive(Default)]
struct SimBell(AtomicBool);

impl SimBell {
    fn heard(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Bell for SimBell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "sim_tests.rs"]
mod tests;
