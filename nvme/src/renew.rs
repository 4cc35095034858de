//! Format NVM: a whole namespace is written anew, while no command of any command set touches its medium.

use crate::command::{Refusal, Status};
use crate::fault;
use crate::history::Happened;
use crate::identify::SANITIZE;
use crate::namespace::Namespace;
use crate::queue::Queue;
use crate::subsystem::{Renewing, Sanitizing, Subsystem};
use lunar_core::io::Fault;
use lunar_core::medium::{Content, Work};
use lunar_core::range::Span;
use lunar_core::step::{self, Failure, Tools, blank, turn};

impl Subsystem {
    /// Begins to sanitize these namespaces, as dwords 10 and 11 ask for. Returns when all have begun.
    ///
    /// # Errors
    /// How the command ends; some may have begun.
    pub(crate) async fn sanitize(
        &self,
        queue: &Queue,
        all: Vec<(u32, Sanitizing)>,
        asked: [u32; 2],
        tools: &Tools,
    ) -> Result<(), Refusal> {
        if !matches!(all.first(), Some((_, Sanitizing::Exit))) {
            self.note(&queue.controller, Happened::Sanitizes { capable: SANITIZE, asked });
        }
        for (id, how) in all {
            let namespace = &queue.attached(id).ok_or(Status::INVALID_NAMESPACE)?.namespace;
            let begun = self.everywhere.sanitize(namespace.unit.id, how, tools.arena.clone()).await;
            begun.map_err(|fault| match fault {
                Fault::Protocol => Status::SANITIZE_FAILED,
                other => fault::transfer(other),
            })?;
        }
        Ok(())
    }

    /// Writes zeroes over a namespace, and brings them to the medium. Returns when it is done.
    ///
    /// # Errors
    /// How the command ends that could not do it, or not all of it.
    pub(crate) async fn format(&self, namespace: &Namespace, tools: &mut Tools) -> Result<(), Refusal> {
        let unit = &namespace.unit;
        let Some(work) = unit.medium.begin() else { return Err(Status::FORMATTING.into()) };
        // Before anything is gone.
        self.everywhere.keep(unit.id, Renewing::Begun).await.map_err(fault::transfer)?;
        unit.medium.set_content(Content::Unformatted);
        self.everywhere.renewing(unit.id, Renewing::Begun).await;
        // Nobody is admitted any more, and who was before does not enter; who is inside is waited for.
        drop(unit.exclusive.hold(unit.id, Span { start: 0, end: unit.geometry.bytes() }).await);
        let mut result = rewrite(namespace, &work, tools).await;
        // A work that nobody knows to be done would have to be done again.
        if result.is_ok() {
            let kept = self.everywhere.keep(unit.id, Renewing::Done).await;
            result = kept.map_err(|fault| Failure::Fault { fault, at: 0 });
        }
        let state = if result.is_ok() { Renewing::Done } else { Renewing::Failed };
        match state {
            Renewing::Done => unit.medium.set_content(Content::Whole),
            // Where that cannot be kept either, it counts as interrupted.
            _ => drop(self.everywhere.keep(unit.id, state).await),
        }
        self.everywhere.renewing(unit.id, state).await;
        drop(work);
        result.map_err(|failure| fault::status(failure, true).into())
    }
}

/// Zeroes, which no protection information protects, up to the medium. What is kept beside goes first: whenever this
/// ends, no block that is left fails a check.
async fn rewrite(namespace: &Namespace, work: &Work, tools: &mut Tools) -> Result<(), Failure> {
    let unit = &namespace.unit;
    let size = unit.geometry.bytes();
    blank(unit, tools).await?;
    step::rewrite(unit, &[], namespace.deallocates(), tools, async |done| {
        work.set_progress(done, size);
        turn().await;
    })
    .await
}
