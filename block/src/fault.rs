//! The error that a client receives for a failed step.

use crate::request::Error;
use crate::table::Code;
use lunar_core::io::Fault;
use lunar_core::step::{Failure, Step};
use lunar_core::tally::Event;

/// The error of a request whose step failed.
pub(crate) fn error(failure: Failure) -> Error {
    match failure {
        Failure::Fault { fault, .. } | Failure::Origin { fault, .. } => of_fault(fault),
        // The client neither sends nor requests protection information: the data on the medium is damaged.
        Failure::Protection { .. } | Failure::Miscompare { .. } => Error::IoError,
    }
}

/// The error of a request after a fault.
pub(crate) fn of_fault(fault: Fault) -> Error {
    match fault {
        Fault::NoSpace => Error::NoSpace,
        Fault::Unsupported => Error::Unsupported,
        Fault::NoMemory | Fault::NotReady => Error::NotReady,
        Fault::Conflict => Error::Conflict,
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

/// The statistics event of a failure: only errors of the medium and of space have one.
pub(crate) fn event(failure: Failure, code: Code) -> Option<Event> {
    match failure {
        Failure::Protection { .. } => Some(Event::ReadError),
        Failure::Fault { fault: Fault::Medium, .. } => Some(match code {
            Code::Read => Event::ReadError,
            Code::Verify => Event::VerifyError,
            _ => Event::WriteError,
        }),
        Failure::Fault { fault: Fault::NoSpace, .. } => Some(Event::SpaceError),
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
