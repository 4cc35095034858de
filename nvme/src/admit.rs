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
        return Err(not_enabled(queue));
    }
    match (admission.scope, namespace) {
        (CommandScope::Namespace, None) => Err(Status::INVALID_NAMESPACE),
        (CommandScope::Controller, _) | (_, None) => Ok(()),
        (_, Some(namespace)) => pass(admission, namespace),
    }
}

/// The status of a command that needs an enabled controller. The end of a controller deletes all of its queues, and a
/// reset deletes the I/O queues (NVMe Base 2.0 3.7.2). Commands may still arrive until the transport has ended the
/// queue; they succeed when the host retries them on another queue. Only on the admin queue of a controller that is not
/// enabled does the host violate the sequence.
fn not_enabled(queue: &Queue) -> Status {
    if queue.id > 0 || queue.controller.is_over() { Status::QUEUE_DELETED } else { Status::SEQUENCE_ERROR }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{Rig, entry};

    const DISABLED: u64 = 0x46_0000;
    const SHUTDOWN: u64 = 0x46_4001;

    /// The statuses of a Read, of a Read of a namespace that does not exist, and of an Identify Controller.
    fn statuses(rig: &Rig) -> [Status; 3] {
        let status = |queue, sqe| rig.run(queue, &sqe, &[]).status.code();
        [
            status(&rig.io, entry(0x02, 1, &[0, 0, 0])),
            status(&rig.io, entry(0x02, 9, &[0, 0, 0])),
            status(&rig.admin, entry(0x06, 0, &[1])),
        ]
    }

    #[test]
    fn commands_of_queues_that_a_reset_or_the_end_of_the_controller_deletes_may_be_retried() {
        let rig = Rig::default();
        assert_eq!(statuses(&rig), [Status::SUCCESS, Status::INVALID_NAMESPACE, Status::SUCCESS]);
        for configuration in [DISABLED, SHUTDOWN] {
            let rig = Rig::default();
            rig.admin.controller.set_property(0x14, false, configuration).expect("a valid configuration");
            assert_eq!(statuses(&rig), [Status::QUEUE_DELETED, Status::QUEUE_DELETED, Status::SEQUENCE_ERROR]);
        }
        rig.admin.controller.end();
        assert_eq!(statuses(&rig), [Status::QUEUE_DELETED; 3]);
        assert!(Status::QUEUE_DELETED.is_transient());
    }

    #[test]
    fn the_first_half_of_a_fused_operation_on_a_deleted_queue_has_the_reason() {
        let rig = Rig::default();
        let mut halves = [entry(0x05, 1, &[0, 0, 0]), entry(0x01, 1, &[0, 0, 0])];
        (halves[0].flags, halves[1].flags) = (1, 2);
        rig.admin.controller.end();
        let ended = rig.run_fused([&halves[0], &halves[1]], [&[0; 512], &[0; 512]]).map(|half| half.status.code());
        assert_eq!(ended, [Status::QUEUE_DELETED, Status::FUSED_FAILED]);
    }
}
