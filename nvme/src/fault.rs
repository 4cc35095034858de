//! What a fault of a store or a transport means to a host.

use crate::command::Status;
use lunar_core::io::Fault;
use lunar_core::step::{Failure, Step};
use lunar_core::tally::Event;

/// Whether a step changes the medium.
pub(crate) fn writes(step: &Step) -> bool {
    !matches!(step, Step::Read { .. } | Step::Compare { .. } | Step::Verify { .. })
}

/// How a command ends whose step failed.
pub(crate) fn status(failure: Failure, writes: bool) -> Status {
    match failure {
        Failure::Miscompare { .. } => Status::COMPARE_FAILURE,
        // Hosts send none and ask for none: what is on the medium is damaged.
        Failure::Protection { .. } => Status::READ_ERROR,
        Failure::Fault { fault: Fault::Medium, .. } if writes => Status::WRITE_FAULT,
        Failure::Fault { fault: Fault::Medium, .. } | Failure::Origin { fault: Fault::Medium, .. } => {
            Status::READ_ERROR
        }
        Failure::Fault { fault, .. } | Failure::Origin { fault, .. } => transfer(fault),
    }
}

/// How a command ends after a fault that no block is to blame for.
pub(crate) fn transfer(fault: Fault) -> Status {
    match fault {
        Fault::NoSpace => Status::CAPACITY,
        Fault::Aborted | Fault::Cleared => Status::ABORTED,
        // The host sent something else, or damaged, or nothing.
        Fault::Protocol | Fault::Timeout => Status::TRANSPORT_ERROR,
        Fault::NoMemory => Status::NOT_READY,
        Fault::Gone | Fault::Medium | Fault::Unsupported | Fault::Os(_) => Status::INTERNAL_ERROR,
    }
}

/// What is counted of a failure: those of the medium.
pub(crate) fn event(failure: Failure, writes: bool) -> Option<Event> {
    match failure {
        Failure::Protection { .. } => Some(Event::ReadError),
        Failure::Fault { fault: Fault::Medium, .. } => Some(if writes { Event::WriteError } else { Event::ReadError }),
        _ => None,
    }
}
