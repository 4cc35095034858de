//! Admission: the only place that decides whether a command may run now.

use crate::command::Status;
use crate::fault::rewrite_status;
use crate::namespace::{AnaState, Attached};
use crate::path::Kind;
use crate::policy::{Admission, CommandScope, Gate, Persistent};
use crate::queue::Queue;
use crate::row::Row;
use lunar_unit::MediumState;
use lunar_unit::reserve::Held;

/// Decides whether the command of `row` may run now, on the namespace that it names, if it names one that exists.
///
/// # Errors
/// The status of the refused command.
pub fn admit(row: &Row, queue: &Queue, namespace: Option<&Attached>) -> Result<(), Status> {
    let admission = &row.policy.admission;
    if !admission.transport.has(queue.controller.path.memory) {
        return Err(Status::INVALID_OPCODE);
    }
    if admission.discovery == Gate::Stops && queue.controller.kind == Kind::Discovery {
        return Err(Status::INVALID_OPCODE);
    }
    if admission.unauthenticated == Gate::Stops && !queue.passes() {
        return Err(Status::AUTHENTICATION_REQUIRED);
    }
    if admission.disabled == Gate::Stops && !queue.controller.is_enabled() {
        return Err(Status::SEQUENCE_ERROR);
    }
    match (admission.scope, namespace) {
        (CommandScope::Namespace, None) => Err(Status::INVALID_NAMESPACE),
        (CommandScope::Controller, _) | (_, None) => Ok(()),
        (_, Some(namespace)) => pass(admission, namespace),
    }
}

/// Decides whether a command with this admission may use a namespace.
///
/// # Errors
/// The status of the refused command.
pub fn pass(admission: &Admission, attached: &Attached) -> Result<(), Status> {
    let namespace = &attached.namespace;
    if admission.inaccessible == Gate::Stops {
        match attached.access() {
            AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED => {}
            AnaState::CHANGE => return Err(Status::TRANSITION),
            AnaState::PERSISTENT_LOSS => return Err(Status::PERSISTENT_LOSS),
            _ => return Err(Status::INACCESSIBLE),
        }
    }
    match namespace.medium() {
        MediumState::Ready => {}
        medium if medium.is_rewriting() && admission.rewrite == Gate::Stops => return Err(rewrite_status(medium)),
        MediumState::SanitizeFailed { .. } if admission.rewrite == Gate::Stops => return Err(Status::SANITIZE_FAILED),
        MediumState::Formatting | MediumState::FormatCorrupted | MediumState::FormatFailed
            if admission.unformatted == Gate::Stops =>
        {
            return Err(Status::NOT_READY);
        }
        _ => {}
    }
    let conflicts = match attached.held() {
        Held::None => false,
        Held::WriteExclusive => admission.persistent == Persistent::Conflict,
        // An SPC-2 reservation excludes every other nexus.
        Held::Spc2 | Held::ExclusiveAccess => admission.persistent != Persistent::Passes,
    };
    if conflicts {
        return Err(Status::RESERVATION_CONFLICT);
    }
    if admission.write_protect == Gate::Stops && attached.read_only {
        return Err(Status::WRITE_PROTECTED);
    }
    Ok(())
}
