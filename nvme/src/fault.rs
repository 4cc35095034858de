//! The status codes of faults of stores and transports.

use crate::command::Status;
use lunar_core::io::Fault;
use lunar_core::protection::Field;
use lunar_core::step::{Failure, Step};
use lunar_core::tally::Event;
use lunar_unit::MediumState;

/// Whether a step changes the medium.
pub(crate) fn writes(step: &Step) -> bool {
    match step {
        Step::Protected(protected) => writes(&protected.step),
        step => !matches!(step, Step::Read { .. } | Step::Compare { .. } | Step::Verify { .. }),
    }
}

/// The status of a command whose step failed.
pub(crate) fn status(failure: Failure, writes: bool) -> Status {
    match failure {
        Failure::Miscompare { .. } => Status::COMPARE_FAILURE,
        // The host transfers no protection information, so the medium is damaged.
        Failure::Protection { .. } => Status::READ_ERROR,
        Failure::Fault { fault: Fault::Marked, .. } | Failure::Origin { fault: Fault::Marked, .. } => {
            Status::READ_ERROR
        }
        Failure::Fault { fault: Fault::Medium, .. } if writes => Status::WRITE_FAULT,
        Failure::Fault { fault: Fault::Medium, .. } | Failure::Origin { fault: Fault::Medium, .. } => {
            Status::READ_ERROR
        }
        Failure::Fault { fault, .. } | Failure::Origin { fault, .. } => transfer(fault),
    }
}

/// The byte of the medium that failed, if known.
pub(crate) fn place(step: &Step, failure: Failure) -> Option<u64> {
    let at = match failure {
        Failure::Fault { fault: Fault::Medium | Fault::Marked, at }
        | Failure::Protection { at, .. }
        | Failure::Miscompare { at } => at,
        Failure::Fault { .. } | Failure::Origin { .. } => return None,
    };
    match step {
        // The offset counts protection information between the blocks, so it is no offset of data.
        Step::Protected(_) if matches!(failure, Failure::Miscompare { .. }) => None,
        Step::Protected(protected) => place(&protected.step, failure),
        Step::Read { offset, .. }
        | Step::Write { offset, .. }
        | Step::WriteAtomic { offset, .. }
        | Step::Compare { offset, .. }
        | Step::CompareWrite { offset, .. }
        | Step::Verify { offset, .. }
        | Step::Fill { offset, .. } => Some(offset + at),
        _ => None,
    }
}

/// The status after a failed check of protection information that the host sees.
pub(crate) fn check(field: Field) -> Status {
    match field {
        Field::Guard => Status::GUARD_CHECK,
        Field::Application => Status::APPLICATION_CHECK,
        Field::Reference => Status::REFERENCE_CHECK,
    }
}

/// The status after a fault that belongs to no block.
pub(crate) fn transfer(fault: Fault) -> Status {
    match fault {
        Fault::NoSpace => Status::CAPACITY,
        Fault::Aborted | Fault::Cleared => Status::ABORTED,
        // The host sent too much data, damaged data, or none.
        Fault::Protocol | Fault::Timeout => Status::TRANSPORT_ERROR,
        Fault::NoMemory | Fault::NotReady => Status::NOT_READY,
        Fault::Conflict => Status::RESERVATION_CONFLICT,
        // As of commands after the store was found to be unavailable.
        Fault::Gone => Status::INACCESSIBLE,
        Fault::Medium | Fault::Marked | Fault::Unsupported | Fault::Os(_) => Status::INTERNAL_ERROR,
    }
}

/// The event to count for a failure: only those of the medium and of space have one.
pub(crate) fn event(failure: Failure, writes: bool) -> Option<Event> {
    match failure {
        Failure::Protection { .. } => Some(Event::ReadError),
        Failure::Fault { fault: Fault::Medium, .. } => Some(if writes { Event::WriteError } else { Event::ReadError }),
        Failure::Fault { fault: Fault::NoSpace, .. } => Some(Event::SpaceError),
        _ => None,
    }
}

/// The status of a namespace whose medium is rewritten.
pub(crate) fn rewrite_status(medium: MediumState) -> Status {
    match medium {
        MediumState::Sanitizing { .. } => Status::SANITIZE_IN_PROGRESS,
        _ => Status::FORMATTING,
    }
}
