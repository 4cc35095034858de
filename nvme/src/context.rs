//! The context of a command while it is planned.

use crate::command::Status;
use crate::controller::Controller;
use crate::history::Happened;
use crate::namespace::{Attached, Namespace};
use crate::namespace_management::pool_of;
use crate::pool::Pool;
use crate::queue::Queue;
use crate::subsystem::Subsystem;
use std::rc::Rc;
use std::sync::Arc;

/// The context of a command while it is planned.
#[derive(Debug)]
pub struct Context<'a> {
    /// This core's view of the subsystem.
    pub subsystem: &'a Subsystem,
    /// The queue of the command.
    pub queue: &'a Queue,
    /// The namespace that the command names, as its host sees it.
    pub namespace: Option<&'a Rc<Attached>>,
    /// Where the command writes its data for the host. It is cut, or filled with zeroes, to the length of the command.
    pub out: &'a mut Vec<u8>,
}

impl<'a> Context<'a> {
    /// The controller of the command.
    #[must_use]
    pub fn controller(&self) -> &'a Controller {
        &self.queue.controller
    }

    /// Adds an event to the persistent event log of the subsystem.
    pub(crate) fn note(&self, what: Happened) {
        self.subsystem.note(self.controller(), what);
    }

    /// All controllers of the subsystem.
    #[must_use]
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        let own = &self.controller().access_grant.subsystem.nqn;
        let mut all = self.subsystem.config().controllers.all();
        all.retain(|controller| controller.access_grant.subsystem.nqn == *own);
        all
    }

    /// The pool that the host may create namespaces from; `None`: it may create none.
    #[must_use]
    pub fn pool(&self) -> Option<Arc<Pool>> {
        let directory = self.subsystem.config().subsystems.directory();
        pool_of(&directory, self.controller()).cloned()
    }

    /// The namespace of the command, as its host sees it.
    ///
    /// # Errors
    /// [`Status::INVALID_NAMESPACE`] if the command names none.
    pub fn attached(&self) -> Result<&'a Attached, Status> {
        self.namespace.map(|attached| &**attached).ok_or(Status::INVALID_NAMESPACE)
    }

    /// The namespace of the command.
    ///
    /// # Errors
    /// [`Status::INVALID_NAMESPACE`] if the command names none.
    pub fn namespace(&self) -> Result<&'a Namespace, Status> {
        self.attached().map(|attached| &*attached.namespace)
    }
}
