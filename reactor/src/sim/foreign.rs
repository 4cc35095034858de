//! A thread of a simulated machine that is none of its cores: it answers requests that a core has handed to it.

use super::World;
use super::driver::Core;
use super::job::HeldRequest;
use super::state::{Event, State};
use crate::remote::RemoteDone;
use std::fmt;

/// Answers requests of one core, each at a time that the seed determines, and so in any order.
#[derive(Clone)]
pub struct ForeignThread {
    world: World,
    core: usize,
}

impl Core {
    /// A thread that may answer requests of this core ([`crate::Reactor::remote`]).
    #[must_use]
    pub fn foreign_thread(&self) -> ForeignThread {
        ForeignThread { world: self.world().clone(), core: self.index() }
    }
}

impl ForeignThread {
    /// Calls `answer` with the token after a time between the bounds of [`super::Faults::file_time`], or of
    /// [`super::Faults::slow_time`] at the odds of [`super::Faults::slow`]. If the core ends before, the token is
    /// dropped.
    pub fn answer_later(&self, token: RemoteDone, answer: impl FnOnce(RemoteDone) + 'static) {
        let held = HeldRequest { core: self.core, token, answer: Box::new(answer) };
        let refused = self.world.enter(|state| state.hold(held));
        drop(refused);
    }
}

impl fmt::Debug for ForeignThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignThread of core {}", self.core)
    }
}

impl State {
    /// Holds a request until it is due; returns it if its core has ended.
    fn hold(&mut self, held: HeldRequest) -> Option<HeldRequest> {
        if !self.cores[held.core].alive {
            return Some(held);
        }
        let time = self.operation_time();
        let key = self.serial();
        self.note(format_args!("core {}: request {key} goes to a foreign thread", held.core));
        self.foreign.insert(key, held);
        self.schedule(self.now + time, Event::Foreign(key));
        None
    }
}
