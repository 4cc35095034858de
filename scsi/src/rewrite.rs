//! FORMAT UNIT and SANITIZE. The unit executes the rewrite, for all command sets: [`lunar_unit::rewrite`].

use crate::admit::Refusal;
use crate::fault;
use crate::lu::Emulated;
use crate::medium::state_sense;
use crate::nexus::Nexus;
use crate::sense::Sense;
use crate::target::Target;
use lunar_core::port::Transfer;
use lunar_core::step::SlotContext;
use lunar_unit::MediumState;
use lunar_unit::rewrite::request::Rewrite;
use lunar_unit::rewrite::task::{RewriteError, Until};

impl Emulated {
    /// The refusal of a command that finds a rewrite in progress. Another core may have begun it, and its message may
    /// not have arrived: then the refusal is that of `state`.
    pub(crate) fn rewrite_in_progress(&self, state: MediumState) -> Sense {
        match self.medium() {
            MediumState::Ready => state_sense(state, self.shared.progress()),
            _ => self.medium_sense(),
        }
    }
}

impl Target {
    /// Rewrites the medium of a logical unit. Returns when the rewrite has ended or, with IMMED, begun; in any case
    /// when the command is aborted.
    pub(crate) async fn rewrite<T: Transfer>(
        &self,
        nexus: &Nexus,
        lu: &Emulated,
        (rewrite, until): (Rewrite, Until),
        transfer: &T,
        slot: &SlotContext,
    ) -> Result<(), Refusal> {
        let kind = rewrite.kind;
        let waits = (until, || transfer.aborted());
        let done = self.config.units.rewrite(&lu.unit, Some(&nexus.name), rewrite, &slot.arena, waits).await;
        done.map_err(|error| match error {
            RewriteError::Busy => lu.rewrite_in_progress(kind.in_progress()).into(),
            RewriteError::SanitizeRequired => lu.medium_sense().into(),
            RewriteError::Metadata(fault) => fault::transfer(fault),
            RewriteError::Failed(_) => state_sense(kind.failed(), 0).into(),
        })
    }

    /// SANITIZE (EXIT FAILURE MODE).
    pub(crate) async fn exit_failure_mode(&self, lu: &Emulated) -> Result<(), Refusal> {
        let left = self.config.units.exit_failure_mode(&lu.unit).await;
        left.map_err(|error| match error {
            // A SANITIZE of another core has begun.
            RewriteError::Busy => state_sense(MediumState::Sanitizing { can_exit: false }, 0).into(),
            RewriteError::SanitizeRequired => lu.medium_sense().into(),
            RewriteError::Metadata(fault) => fault::transfer(fault),
            RewriteError::Failed(_) => lu.medium_sense().into(),
        })
    }
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
