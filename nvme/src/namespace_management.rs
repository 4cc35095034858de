//! Namespace Management and Namespace Attachment (NVMe Base 2.0 8.11). The program around the subsystem creates the
//! volumes of the namespaces. Volumes and the attachments of hosts are durable: a new controller is attached to the
//! namespaces that its host was attached to last.

use crate::command::{Refusal, Status};
use crate::controller::{Controller, Controllers};
use crate::directory::Directory;
use crate::path::Kind;
use crate::queue::{Queue, Task};
use crate::subsystem::Subsystem;
use std::sync::Arc;

pub use crate::pool::{Name, NamespaceOperation, Pool, Request};

/// The pool that the host of a controller may create namespaces from; `None`: it may create none.
#[must_use]
pub fn pool_of<'a>(directory: &'a Directory, controller: &Controller) -> Option<&'a Arc<Pool>> {
    let entry = directory.subsystem(&controller.access_grant.subsystem.nqn)?;
    entry.pools.get(controller.access_grant.map.as_ref()?)
}

/// The controllers of a list, if all of them belong to hosts of the pool and may be attached to the namespace on this
/// volume, or detached from it.
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
        let is_here = one.kind == Kind::Io && !one.is_over() && one.access_grant.subsystem.nqn == request.subsystem;
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
    /// Has the program around the subsystem do what a host asks for. Returns the identifier of a namespace that was
    /// created, or zero.
    ///
    /// # Errors
    /// The status of the command.
    pub(crate) async fn manage(
        &self,
        queue: &Queue,
        task: &Task,
        command: u16,
        operation: NamespaceOperation,
    ) -> Result<u32, Refusal> {
        let (controller, directory) = (&queue.controller, self.config().subsystems.directory());
        let pool = pool_of(&directory, controller).ok_or(Status::INVALID_OPCODE)?;
        let request = Request {
            subsystem: controller.access_grant.subsystem.nqn.clone(),
            pool: pool.name.clone(),
            host: controller.host.nqn.clone(),
            operation,
        };
        // The program waits until no command uses the namespace. It must not wait for this command.
        let _aside = queue.stand_aside(command);
        let made = task.unless_aborted(self.services.manage(request)).await;
        Ok(made.map_err(|_| Status::ABORTED)??)
    }
}
