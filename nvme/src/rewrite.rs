//! Format NVM and Sanitize. The rewrite itself is the unit's, for all command sets: [`lunar_unit::rewrite`].

use crate::command::{Refusal, Status};
use crate::fault;
use crate::history::Happened;
use crate::identify::SANITIZE;
use crate::namespace::Namespace;
use crate::plan::SanitizeAction;
use crate::queue::{Queue, Task};
use crate::subsystem::Subsystem;
use lunar_core::mem::Arena;
use lunar_unit::rewrite::request::{Pass, Rewrite, RewriteKind};
use lunar_unit::rewrite::task::{RewriteError, Until};

impl Subsystem {
    /// Begins to sanitize these namespaces, as dwords 10 and 11 ask for. Returns when all have begun.
    ///
    /// # Errors
    /// How the command ends; some may have begun.
    pub(crate) async fn sanitize(
        &self,
        queue: &Queue,
        all: Vec<(u32, SanitizeAction)>,
        asked: [u32; 2],
        arena: &Arena,
    ) -> Result<(), Refusal> {
        if !matches!(all.first(), Some((_, SanitizeAction::ExitFailureMode))) {
            self.note(&queue.controller, Happened::Sanitizes { capable: SANITIZE, asked });
        }
        let units = &self.config().units;
        for (id, action) in all {
            let attached = queue.attached(id).ok_or(Status::INVALID_NAMESPACE)?;
            let namespace = &attached.namespace;
            let done = match action {
                SanitizeAction::ExitFailureMode => units.exit_failure_mode(&namespace.unit).await,
                SanitizeAction::Begin(rewrite) => {
                    // It goes on when the command is aborted, so nothing but its begin is waited for.
                    let waits = (Until::Begun, || false);
                    units.rewrite(&namespace.unit, Some(queue.name()), rewrite, arena, waits).await
                }
            };
            done.map_err(|error| status(namespace, error))?;
        }
        Ok(())
    }

    /// Writes zeroes over a namespace. Returns when that is done, or when the command is aborted.
    ///
    /// # Errors
    /// How the command ends if it is not done.
    pub(crate) async fn format(
        &self,
        queue: &Queue,
        task: &Task,
        namespace: &Namespace,
        arena: &Arena,
    ) -> Result<(), Refusal> {
        let pass = Pass { pattern: Vec::new(), unmap: namespace.deallocates() };
        let rewrite = Rewrite { kind: RewriteKind::Format { protection: None }, passes: vec![pass] };
        let waits = (Until::Ended, || task.aborted());
        let done = self.config().units.rewrite(&namespace.unit, Some(queue.name()), rewrite, arena, waits).await;
        done.map_err(|error| status(namespace, error).into())
    }
}

fn status(namespace: &Namespace, error: RewriteError) -> Status {
    match error {
        RewriteError::Busy => fault::rewrite_status(namespace.medium()),
        RewriteError::SanitizeRequired => Status::SANITIZE_FAILED,
        RewriteError::Metadata(fault) => fault::transfer(fault),
        RewriteError::Failed(failure) => fault::status(failure, true),
    }
}
