//! The state of a medium after each step of a rewrite, as a pure function.

use super::record;
use super::request::{Rewrite, RewriteChange, RewriteKind};
use crate::change::{Denial, Effects, Record};
use crate::medium::MediumState;
use lunar_core::range::Epoch;

/// Makes a change. Every new state of the medium begins an epoch: commands that were admitted before have no effect
/// any more.
///
/// # Errors
/// [`Denial::RewriteInProgress`], [`Denial::SanitizeRequired`]: nothing has changed then.
pub(crate) fn apply(medium: &mut MediumState, epoch: &mut Epoch, change: &RewriteChange) -> Result<Effects, Denial> {
    let (next, record) = match (change, *medium) {
        (RewriteChange::Begin(_) | RewriteChange::ExitFailureMode, state) if state.is_rewriting() => {
            return Err(Denial::RewriteInProgress);
        }
        (
            RewriteChange::Begin(Rewrite { kind: RewriteKind::Format { .. }, .. }),
            MediumState::SanitizeFailed { .. },
        )
        | (RewriteChange::ExitFailureMode, MediumState::SanitizeFailed { can_exit: false }) => {
            return Err(Denial::SanitizeRequired);
        }
        (RewriteChange::Begin(rewrite) | RewriteChange::Resume(rewrite), _) => {
            (rewrite.kind.in_progress(), record::in_progress(rewrite))
        }
        (RewriteChange::Advance(rewrite), state) if state.is_rewriting() => {
            return Ok(Effects { record: Some(record::in_progress(rewrite)), ..Effects::none() });
        }
        (RewriteChange::Done, state) if state.is_rewriting() => (MediumState::Ready, record::ready()),
        (RewriteChange::ExitFailureMode, MediumState::SanitizeFailed { can_exit: true }) => {
            (MediumState::Ready, record::ready())
        }
        (RewriteChange::Failed, MediumState::Formatting) => after_failure(MediumState::FormatFailed),
        (RewriteChange::Failed, MediumState::Sanitizing { can_exit }) => {
            after_failure(MediumState::SanitizeFailed { can_exit })
        }
        (
            RewriteChange::Advance(_) | RewriteChange::Done | RewriteChange::Failed | RewriteChange::ExitFailureMode,
            _,
        ) => return Ok(Effects::none()),
    };
    *medium = next;
    *epoch = epoch.next();
    Ok(Effects { record: Some(record), epoch: Some(*epoch), ..Effects::published() })
}

fn after_failure(state: MediumState) -> (MediumState, Record) {
    (state, record::failed(state))
}
