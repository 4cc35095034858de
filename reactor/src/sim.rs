//! The simulator: a driver whose time is virtual, whose network and files live in memory, and whose faults and
//! delays all come from one seed, so that a seed replays exactly.
//!
//! A [`World`] holds the time, the network and the files. Each virtual core is a [`Core`]: give it to
//! [`crate::Reactor::with_driver`]. Test code holds the client ends of connections as [`Peer`]s, whose futures may
//! run on any core of the world. One core alone may use [`crate::Reactor::run`]: its loop moves the time on.
//! Several are run together by [`World::run`].
//!
//! The faults: bytes are cut anywhere and late, directions stall, connections are reset (those of Unix sockets
//! only by their ends); answers come in any order; reads, writes and syncs fail, space runs out; a machine crashes and
//! its files keep what was synced and any part of what was not. See [`Faults`].

mod carrier;
mod chance;
mod commands;
mod core_state;
mod device;
mod disk;
mod driver;
mod faults;
mod files;
mod foreign;
mod job;
mod link;
mod local;
mod network;
mod peer;
mod pipe;
mod sockets;
mod state;
mod trace;

pub use chance::{Chance, MILLION};
pub use core_state::Host;
pub use device::Device;
pub use disk::{SECTOR, SPACE_BLOCK};
pub use driver::Core;
pub use faults::Faults;
pub use foreign::ForeignThread;
pub use network::Segment;
pub use peer::{Peer, eventfd};

use crate::Reactor;
use lunar_core::time::Instant;
use state::{Leftovers, State};
use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::rc::Rc;

/// One simulation. Clones are the same one; it stays on its thread.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

impl World {
    /// A world without faults whose every draw comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(State::new(seed))))
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

    /// Changes the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.enter(|state| state.faults = faults);
    }

    /// The current faults.
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

    /// The current content of a file; empty when there is no such file.
    #[must_use]
    pub fn contents(&self, path: impl AsRef<Path>) -> Vec<u8> {
        self.enter(|state| {
            state.paths.get(path.as_ref()).map_or_else(Vec::new, |&disk| state.disks[disk].seen().to_vec())
        })
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
            // In the turn of one core, events may have come that wake another, whose turn is over.
            busy |= cores.iter().any(|core| core.is_woken());
            if !busy && !self.rest(cores) {
                let timer = cores.iter().filter_map(|core| core.next_timer()).min();
                assert!(self.enter(|state| state.advance(timer)), "{STANDSTILL}");
            }
        }
    }

    /// Puts some of the cores that look at memory of guests to sleep; the others go on looking, as cores do for a
    /// while. Returns whether one found something to do in place of sleeping.
    fn rest(&self, cores: &[&Reactor]) -> bool {
        let watching = cores.iter().filter(|core| core.has_watches());
        let mut busy = false;
        for core in watching {
            busy |= self.enter(|state| state.chance.coin()) && !core.prepare_sleep();
        }
        busy
    }

    /// Borrows the state, and afterwards does what may come back into the world.
    fn enter<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (value, left) = {
            let mut state = self.0.borrow_mut();
            let value = act(&mut state);
            (value, std::mem::take(&mut state.left))
        };
        self.follow_up(left);
        value
    }

    /// Does what may come back into the world.
    fn follow_up(&self, left: Leftovers) {
        let Leftovers {
            answers,
            wakers,
            commands,
            dropped_commands,
            carriers,
            foreign,
            orphans,
            jobs,
            links,
            listeners,
            signals,
        } = left;
        answers.into_iter().for_each(core_state::Answer::give);
        foreign.into_iter().for_each(job::HeldRequest::answer);
        for mut job in commands {
            let result = job.execute();
            self.enter(|state| state.finish_command(job, result));
        }
        wakers.into_iter().for_each(std::task::Waker::wake);
        drop((dropped_commands, carriers, orphans, jobs, links, listeners, signals));
    }
}

const STANDSTILL: &str = "the simulation stands still: all tasks wait, and nothing is in progress";

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World at {:?}", self.now())
    }
}

#[cfg(test)]
#[path = "sim_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "sim/network_tests.rs"]
mod network_tests;

#[cfg(test)]
#[path = "sim/local_tests.rs"]
mod local_tests;
