//! The one place that decides whether a request may run now.

use crate::attachment::Attachment;
use crate::request::{Error, Request};
use crate::table::{Admission, Gate, Policy, Reservation};
use crate::unit::BlockUnit;
use lunar_core::medium::Content;
use lunar_core::reserve::Held;
use lunar_core::unit::Unit;

/// Decides whether a client may do what has these gates to its unit now.
///
/// # Errors
/// How a request ends if it may not.
#[inline]
pub fn admit(gates: &Admission, attachment: &Attachment, unit: &BlockUnit) -> Result<(), Error> {
    if gates.inaccessible == Gate::Stops && !attachment.is_active() {
        return Err(Error::NotReady);
    }
    usable(gates, &unit.unit)?;
    let conflicts = match unit.held() {
        Held::None => false,
        Held::WriteExclusive => gates.reservation == Reservation::Conflict,
        // A reservation by RESERVE(6) or RESERVE(10) excludes all other clients.
        Held::Spc2 | Held::ExclusiveAccess => gates.reservation != Reservation::Passes,
    };
    if conflicts {
        return Err(Error::Conflict);
    }
    if gates.write_protect == Gate::Stops && attachment.is_read_only(unit) {
        return Err(Error::ReadOnly);
    }
    Ok(())
}

/// Whether the medium is in a state for it.
#[inline]
fn usable(gates: &Admission, unit: &Unit) -> Result<(), Error> {
    let medium = &unit.medium;
    let is_stopped = gates.removed == Gate::Stops && medium.is_out()
        || gates.rewrite == Gate::Stops && medium.is_worked_on()
        || gates.unformatted == Gate::Stops && medium.content() != Content::Whole;
    if is_stopped { Err(Error::NotReady) } else { Ok(()) }
}

/// Checks the ranges of a request: how many they are, their alignment and lengths, and the end of the unit.
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
