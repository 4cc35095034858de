//! The one place that decides whether a command may run now.

use crate::command::Status;
use crate::controller::Kind;
use crate::namespace::{Access, Attached};
use crate::queue::Queue;
use crate::table::{Gate, Gates, Persistent, Reach, Row};
use lunar_core::medium::Content;
use lunar_core::reserve::Held;

/// Decides whether the command of `row` may run now, for the namespace that it names, if it names one that is there.
///
/// # Errors
/// How the command ends if it may not.
pub fn admit(row: &Row, queue: &Queue, namespace: Option<&Attached>) -> Result<(), Status> {
    let gates = &row.policy.gates;
    if !gates.transport.has(queue.controller.path.memory) {
        return Err(Status::INVALID_OPCODE);
    }
    if gates.discovery == Gate::Stops && queue.controller.kind == Kind::Discovery {
        return Err(Status::INVALID_OPCODE);
    }
    if gates.unproven == Gate::Stops && !queue.passes() {
        return Err(Status::AUTHENTICATION_REQUIRED);
    }
    if gates.disabled == Gate::Stops && !queue.controller.is_enabled() {
        return Err(Status::SEQUENCE_ERROR);
    }
    match (gates.reach, namespace) {
        (Reach::Namespace, None) => Err(Status::INVALID_NAMESPACE),
        (Reach::Controller, _) | (_, None) => Ok(()),
        (_, Some(namespace)) => pass(gates, namespace),
    }
}

/// Decides whether what has these gates may be done to a namespace.
///
/// # Errors
/// How it ends if it may not.
pub fn pass(gates: &Gates, attached: &Attached) -> Result<(), Status> {
    let namespace = &attached.namespace;
    if gates.inaccessible == Gate::Stops {
        match attached.access() {
            Access::OPTIMIZED | Access::NON_OPTIMIZED => {}
            Access::CHANGE => return Err(Status::TRANSITION),
            Access::PERSISTENT_LOSS => return Err(Status::PERSISTENT_LOSS),
            _ => return Err(Status::INACCESSIBLE),
        }
    }
    if gates.renewal == Gate::Stops && namespace.unit.medium.is_worked_on() {
        return Err(match namespace.unit.medium.content() {
            Content::Unsanitized => Status::SANITIZE_IN_PROGRESS,
            _ => Status::FORMATTING,
        });
    }
    match namespace.unit.medium.content() {
        Content::Unsanitized if gates.renewal == Gate::Stops => return Err(Status::SANITIZE_FAILED),
        Content::Unformatted if gates.unformatted == Gate::Stops => return Err(Status::NOT_READY),
        _ => {}
    }
    let conflicts = match attached.held() {
        Held::None => false,
        Held::WriteExclusive => gates.persistent == Persistent::Conflict,
        // SPC-2 reservations keep all others out.
        Held::Spc2 | Held::ExclusiveAccess => gates.persistent != Persistent::Passes,
    };
    if conflicts {
        return Err(Status::RESERVATION_CONFLICT);
    }
    if gates.write_protect == Gate::Stops && attached.read_only {
        return Err(Status::WRITE_PROTECTED);
    }
    Ok(())
}
