//! What a command sees while it plans.

use crate::command::Status;
use crate::controller::Controller;
use crate::history::Happened;
use crate::manage::{Pool, pool_of};
use crate::namespace::{Attached, Namespace};
use crate::queue::Queue;
use crate::subsystem::Subsystem;
use std::rc::Rc;
use std::sync::Arc;

/// What a command sees while it plans: who asks whom, and where the answer goes.
#[derive(Debug)]
pub struct Context<'a> {
    /// This core's view of the subsystem.
    pub subsystem: &'a Subsystem,
    /// Where the command came in.
    pub queue: &'a Queue,
    /// The namespace that it names, as its host sees it.
    pub namespace: Option<&'a Rc<Attached>>,
    /// Where the answer goes; cut, or filled with zeroes, to the length that was asked for.
    pub out: &'a mut Vec<u8>,
}

impl<'a> Context<'a> {
    /// The controller that is asked.
    #[must_use]
    pub fn controller(&self) -> &'a Controller {
        &self.queue.controller
    }

    /// Puts something into the persistent event log of the subsystem that is asked.
    pub(crate) fn note(&self, what: Happened) {
        self.subsystem.note(self.controller(), what);
    }

    /// All controllers of the subsystem that is asked.
    #[must_use]
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        let own = &self.controller().standing.subsystem.nqn;
        let mut all = self.subsystem.config().controllers.all();
        all.retain(|controller| controller.standing.subsystem.nqn == *own);
        all
    }

    /// What the host may make namespaces of now; `None`: it may not.
    #[must_use]
    pub fn pool(&self) -> Option<Arc<Pool>> {
        let directory = self.subsystem.config().board.directory();
        pool_of(&directory, self.controller()).cloned()
    }

    /// The namespace that is asked, as its host sees it.
    ///
    /// # Errors
    /// If there is none.
    pub fn attached(&self) -> Result<&'a Attached, Status> {
        self.namespace.map(|attached| &**attached).ok_or(Status::INVALID_NAMESPACE)
    }

    /// The namespace that is asked.
    ///
    /// # Errors
    /// If there is none.
    pub fn namespace(&self) -> Result<&'a Namespace, Status> {
        self.attached().map(|attached| &*attached.namespace)
    }
}
