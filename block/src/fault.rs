//! What a failed step means to a client.

use crate::request::Error;
use crate::table::Flow;
use lunar_core::io::Fault;
use lunar_core::step::{Failure, Step};
use lunar_core::tally::Event;

/// How a request ends whose step failed.
pub(crate) fn error(failure: Failure) -> Error {
    match failure {
        Failure::Fault { fault, .. } | Failure::Origin { fault, .. } => of_fault(fault),
        // The client neither sends protection information nor asks for any: what is on the medium is damaged.
        Failure::Protection { .. } | Failure::Miscompare { .. } => Error::IoError,
    }
}

/// How a request ends after a fault.
pub(crate) fn of_fault(fault: Fault) -> Error {
    match fault {
        Fault::NoSpace => Error::NoSpace,
        Fault::Unsupported => Error::Unsupported,
        Fault::NoMemory => Error::NotReady,
        Fault::Medium
        | Fault::Marked
        | Fault::Gone
        | Fault::Aborted
        | Fault::Cleared
        | Fault::Timeout
        | Fault::Protocol
        | Fault::Os(_) => Error::IoError,
    }
}

/// The statistics event of a failure: only errors of the medium have one.
pub(crate) fn event(failure: Failure, flow: Flow) -> Option<Event> {
    match failure {
        Failure::Protection { .. } => Some(Event::ReadError),
        Failure::Fault { fault: Fault::Medium, .. } => {
            Some(if flow == Flow::In { Event::ReadError } else { Event::WriteError })
        }
        _ => None,
    }
}

/// Bytes that a step moves between the client and the unit.
pub(crate) fn moved(step: &Step) -> u64 {
    match step {
        Step::Read { len, .. } | Step::Write { len, .. } => *len,
        _ => 0,
    }
}
