//! The commands, by family.

pub mod identify;
pub mod io;
pub mod space;

use crate::request::{ByteRange, Error, Request};
use crate::table::{Admission, Gate, Reservation};

/// The admission of commands that read the medium.
const READS: Admission = Admission {
    reservation: Reservation::WriteExclusivePasses,
    inaccessible: Gate::Stops,
    removed: Gate::Stops,
    rewrite: Gate::Stops,
    unformatted: Gate::Stops,
    write_protect: Gate::Passes,
};

/// The admission of commands that change the medium.
const WRITES: Admission = Admission {
    reservation: Reservation::Conflict,
    inaccessible: Gate::Stops,
    removed: Gate::Stops,
    rewrite: Gate::Stops,
    unformatted: Gate::Stops,
    write_protect: Gate::Stops,
};

/// The range of a request that has exactly one.
fn only(request: &Request<'_>) -> Result<ByteRange, Error> {
    match request.ranges {
        [range] => Ok(*range),
        _ => Err(Error::Invalid),
    }
}
