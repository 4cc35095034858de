//! Namespaces that hosts make (NVMe Base 2.0 8.11): what of, who may have them, and how somebody outside is asked for
//! them. What a host makes is a volume that outlives it; which hosts are attached to it does, too, and a controller
//! that is new begins with what its host was attached to last. All else is each controller's own.

use crate::command::{Refusal, Status};
use crate::controller::{Controller, Controllers, Kind};
use crate::directory::Directory;
use crate::queue::{Queue, Task};
use crate::subsystem::Subsystem;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The LBA formats of namespaces that hosts make, in the order in which they are told: bytes of a block.
pub const FORMATS: [u32; 2] = [512, 4096];

/// What hosts make namespaces of.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pool {
    /// What it is called: hosts of one pool make, attach and delete the same namespaces.
    pub name: Arc<str>,
    /// Bytes that all its namespaces may have together.
    pub capacity: u64,
    /// Bytes that are left.
    pub left: u64,
    /// The volumes of the namespaces that hosts are attached to when they come, by the hosts' names in lower case.
    pub attached: BTreeMap<Arc<str>, BTreeSet<[u8; 16]>>,
    /// The volumes of those that one controller may be attached to at a time.
    pub private: BTreeSet<[u8; 16]>,
}

impl Pool {
    /// The volumes that a controller of this host begins with.
    #[must_use]
    pub fn of_host(&self, host: &str) -> BTreeSet<[u8; 16]> {
        self.attached.get(&*host.to_ascii_lowercase()).cloned().unwrap_or_default()
    }
}

/// What the host of a controller may make namespaces of; `None`: it may not.
#[must_use]
pub fn pool_of<'a>(directory: &'a Directory, controller: &Controller) -> Option<&'a Arc<Pool>> {
    let entry = directory.subsystem(&controller.standing.subsystem.nqn)?;
    entry.pools.get(controller.standing.map.as_ref()?)
}

/// A namespace that a host has made: its identifier, and the UUID of its volume.
pub type Name = (u32, [u8; 16]);

/// What a host asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// A namespace that nobody is attached to.
    Create {
        /// Blocks.
        blocks: u64,
        /// Bytes of a block: one of [`FORMATS`].
        block_size: u32,
        /// Whether one controller may be attached to it at a time.
        private: bool,
    },
    /// These are detached from everybody, and gone with all that is on them.
    Delete(Vec<Name>),
    /// Controllers have it, or do not any more.
    Attach {
        /// Which.
        namespace: Name,
        /// Whose.
        controllers: Vec<u16>,
        /// Whether they shall have it.
        attach: bool,
    },
}

/// Who asks for what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// NQN of the subsystem.
    pub subsystem: Arc<str>,
    /// Name of the pool.
    pub pool: Arc<str>,
    /// NQN of the host.
    pub host: Arc<str>,
    /// What.
    pub wish: Wish,
}

/// The controllers that a list names, if hosts of this pool have all of them, and they may be attached to what is on
/// this volume, or detached from it.
///
/// # Errors
/// [`Status::CONTROLLER_LIST`], [`Status::ALREADY_ATTACHED`], [`Status::IS_PRIVATE`], [`Status::NOT_ATTACHED`].
pub fn listed(
    all: &Controllers,
    directory: &Directory,
    request: &Request,
    (list, attach): (&[u16], bool),
    volume: &[u8; 16],
) -> Result<Vec<Arc<Controller>>, Status> {
    let is_of_pool = |one: &Arc<Controller>| {
        let is_here = one.kind == Kind::Io && !one.is_over() && one.standing.subsystem.nqn == request.subsystem;
        is_here && pool_of(directory, one).is_some_and(|pool| pool.name == request.pool)
    };
    let find = |id: &u16| all.get(*id).filter(is_of_pool).ok_or(Status::CONTROLLER_LIST);
    let found = list.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    if found.iter().any(|one| one.is_attached(volume) == attach) {
        return Err(if attach { Status::ALREADY_ATTACHED } else { Status::NOT_ATTACHED });
    }
    let is_private = || {
        let pools = directory.subsystems().flat_map(|entry| entry.pools.values());
        pools.filter(|pool| pool.name == request.pool).any(|pool| pool.private.contains(volume))
    };
    let is_taken = || found.len() > 1 || all.all().iter().any(|one| one.is_attached(volume));
    if attach && is_private() && is_taken() {
        return Err(Status::IS_PRIVATE);
    }
    Ok(found)
}

impl Subsystem {
    /// Has somebody outside do what a host asks for.
    pub(crate) async fn manage(&self, queue: &Queue, task: &Task, command: u16, wish: Wish) -> Result<u32, Refusal> {
        let (controller, directory) = (&queue.controller, self.config().board.directory());
        let pool = pool_of(&directory, controller).ok_or(Status::INVALID_OPCODE)?;
        let request = Request {
            subsystem: controller.standing.subsystem.nqn.clone(),
            pool: pool.name.clone(),
            host: controller.host.nqn.clone(),
            wish,
        };
        // What is waited for waits until nothing is under way at the namespace that this names.
        let _aside = queue.stand_aside(command);
        let made = task.unless_aborted(self.everywhere.manage(request)).await;
        Ok(made.map_err(|_| Status::ABORTED)??)
    }
}
