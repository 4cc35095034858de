//! The one place that decides whether a request may run now.

use crate::attachment::Attachment;
use crate::request::{Error, Request};
use crate::table::{Admission, Gate, Policy, Reservation};
use crate::unit::BlockUnit;
use lunar_core::unit::Unit;
use lunar_unit::MediumState;
use lunar_unit::reserve::Held;

/// Decides whether a client may execute a command with this admission on its unit now.
///
/// # Errors
/// The error of a refused request.
#[inline]
pub fn admit(admission: &Admission, attachment: &Attachment, unit: &BlockUnit) -> Result<(), Error> {
    if admission.inaccessible == Gate::Stops && !attachment.is_active() {
        return Err(Error::NotReady);
    }
    admit_medium(admission, unit)?;
    let conflicts = match attachment.held() {
        Held::None => false,
        Held::WriteExclusive => admission.reservation == Reservation::Conflict,
        // A reservation by RESERVE(6) or RESERVE(10) excludes all other clients.
        Held::Spc2 | Held::ExclusiveAccess => admission.reservation != Reservation::Passes,
    };
    if conflicts {
        return Err(Error::Conflict);
    }
    if admission.write_protect == Gate::Stops && attachment.is_read_only(unit) {
        return Err(Error::ReadOnly);
    }
    Ok(())
}

/// Decides whether the state and the position of the medium admit a command.
#[inline]
fn admit_medium(admission: &Admission, unit: &BlockUnit) -> Result<(), Error> {
    let gate = match unit.medium() {
        MediumState::Ready => Gate::Passes,
        medium if medium.is_rewriting() => admission.rewrite,
        _ => admission.unformatted,
    };
    let is_removed = admission.removed == Gate::Stops && unit.unit.medium.is_removed();
    if is_removed || gate == Gate::Stops { Err(Error::NotReady) } else { Ok(()) }
}

/// Checks the ranges of a request: their number, alignment and lengths, and the end of the unit.
///
/// # Errors
/// [`Error::Invalid`].
#[inline]
pub fn check_ranges(policy: &Policy, request: &Request<'_>, unit: &Unit) -> Result<(), Error> {
    let (block, capacity) = (u64::from(unit.geometry.block_size), unit.geometry.bytes());
    let is_valid = policy.ranges.contains(&request.ranges.len())
        && request.ranges.iter().all(|range| {
            let end = range.offset.checked_add(range.len);
            let is_within = end.is_some_and(|end| end <= capacity) && range.len <= policy.bytes_max;
            is_within && range.offset.is_multiple_of(block) && range.len.is_multiple_of(block)
        });
    if is_valid { Ok(()) } else { Err(Error::Invalid) }
}
