//! The state that all clients of one simulation share.

use crate::block_port::Port;
use crate::job::Lun;
use crate::watch::Watch;
use lunar_core::time::Instant;
use lunar_iscsi::wire::Function;
use lunar_reactor::Reactor;
use lunar_reactor::sim::Faults;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

/// The state that all clients of a simulation share.
pub struct Shared {
    /// Collects violations.
    pub watch: Watch,
    /// The core that the clients run on.
    pub core: Reactor,
    /// The units.
    pub luns: Vec<Lun>,
    /// The faults that occur while the clients work.
    pub faults: RefCell<Faults>,
    /// The number of clients that have not finished.
    pub busy: Cell<usize>,
    /// The beginnings and ends of the target's crashes and stops so far.
    pub deaths: Cell<u64>,
    /// Until then, sessions may end because an initiator has requested a cold reset of the target.
    pub cold_until: Cell<Instant>,
    /// The ports of block clients while the target runs: one for each of its cores.
    pub ports: RefCell<Vec<Rc<Port>>>,
    /// The sockets of virtual machines, also while no target listens there.
    pub vm_sockets: Vec<PathBuf>,
}

impl Shared {
    /// The units whose commands a task management function may end, whichever initiator sent them.
    pub(crate) fn reset_luns(&self, function: Function, lun: usize) -> impl Iterator<Item = &Lun> {
        let range = match function {
            Function::TARGET_WARM_RESET | Function::TARGET_COLD_RESET => 0..self.luns.len(),
            Function::LOGICAL_UNIT_RESET | Function::CLEAR_TASK_SET => lun..lun + 1,
            _ => 0..0,
        };
        self.luns[range].iter()
    }

    /// Whether the network may reset a connection.
    #[must_use]
    pub fn breaks(&self) -> bool {
        self.faults.borrow().reset > 0
    }

    /// Whether the target has crashed or stopped since `deaths` was read, or was stopping at that time.
    #[must_use]
    pub fn has_died_since(&self, deaths: u64) -> bool {
        self.deaths.get() != deaths || !deaths.is_multiple_of(2)
    }
}
