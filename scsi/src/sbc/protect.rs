//! Protection information in commands (SBC-5 4.21): the meaning of the PROTECT fields.

use crate::lu::Emulated;
use crate::plan::Plan;
use crate::sbc::block_range::{Blocks, PROTECT, Tags};
use crate::sense::{Asc, Sense};
use lunar_core::metadata::MetadataStore;
use lunar_core::protection::{Checks, Kind, Terms};
use lunar_core::step::{Protected, Step};

/// The name of the metadata record of the protection type of a unit.
pub(crate) const KEPT_AS: &str = "protection";

/// The protection type of the blocks of a unit when it was last served; `None` if they never had one.
///
/// # Errors
/// When the record is no known type: a later version wrote it.
pub fn kept(keep: &dyn MetadataStore) -> Result<Option<Kind>, &'static str> {
    match keep.load(KEPT_AS).as_deref() {
        None => Ok(None),
        Some([number]) => Kind::of(*number).map(Some).ok_or("its protection type is not known"),
        Some(_) => Err("its stored protection type is not valid"),
    }
}

/// Saves the protection type.
///
/// # Errors
/// Errors of [`MetadataStore::save`].
pub async fn keep(keep: &dyn MetadataStore, kind: Kind) -> Result<(), lunar_core::io::Fault> {
    keep.save(KEPT_AS, vec![kind as u8]).await
}

/// The kind of a PROTECT field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// RDPROTECT: blocks are read and sent.
    Read,
    /// WRPROTECT, ORPROTECT.
    Write,
    /// VRPROTECT of a command without Data-Out.
    Verify,
    /// VRPROTECT of a command that compares Data-Out.
    Compare,
}

/// Application tag and reference tag.
const TAGS: Checks = Checks { guard: false, application: true, reference: true };
const GUARD: Checks = Checks { guard: true, application: false, reference: false };

/// The checks of a PROTECT field that is not zero (SBC-3 tables 66, 94, 96, 107); `None` for a reserved value.
fn checks(field: u8) -> Option<Checks> {
    match field {
        1 | 5 => Some(Checks::ALL),
        2 => Some(TAGS),
        3 => Some(Checks::NONE),
        4 => Some(GUARD),
        _ => None,
    }
}

/// The terms of a PROTECT field on a unit whose blocks are protected; `None` for a reserved value.
fn terms(field: u8, about: About, tags: Option<Tags>) -> Option<Terms> {
    let plain = match tags {
        Some(Tags { first, application, mask }) => Terms { first: Some(first), application, mask, ..Terms::PLAIN },
        None => Terms::PLAIN,
    };
    if field == 0 {
        return Some(plain);
    }
    let checks = checks(field)?;
    Some(match about {
        About::Read => Terms { carried: true, kept: checks, ..plain },
        About::Write => Terms { carried: true, sent: checks, kept: checks, ..plain },
        About::Verify => Terms { kept: checks, ..plain },
        // Fields that are not checked are compared (SBC-3 table 110).
        About::Compare => {
            let compared = if field == 3 { Checks::ALL } else { checks };
            Terms { carried: true, sent: checks, kept: Checks::NONE, compared, ..plain }
        }
    })
}

/// The terms of a command's PROTECT field and tags; `None` for the terms of a plain command.
///
/// # Errors
/// INVALID FIELD IN CDB; INVALID COMMAND OPERATION CODE for a CDB without tags on a unit of protection type 2.
pub(crate) fn asked<C: Blocks>(lu: &Emulated, cdb: &C, about: About) -> Result<Option<Terms>, Sense> {
    let field = cdb.flags() >> PROTECT.trailing_zeros();
    let tags = cdb.tags();
    let kind = lu.protection();
    if field != 0 && kind == Kind::Two && tags.is_none() {
        return Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE));
    }
    if field == 0 && tags.is_none() {
        return Ok(None);
    }
    let terms = terms(field, about, tags).filter(|_| kind != Kind::None);
    terms.map(Some).ok_or(const { Sense::bit_in_cdb(C::FLAGS_AT, 7) })
}

/// Plans a step of a command that has a PROTECT field.
///
/// # Errors
/// As [`asked`].
#[inline(always)]
pub(crate) fn planned<C: Blocks>(lu: &Emulated, cdb: &C, about: About, step: Step) -> Result<Plan, Sense> {
    // The common case: no PROTECT field and no tags.
    if !C::HAS_TAGS && cdb.flags() & PROTECT == 0 {
        return Ok(Plan::Do(step));
    }
    planned_with_terms(lu, cdb, about, step)
}

#[cold]
fn planned_with_terms<C: Blocks>(lu: &Emulated, cdb: &C, about: About, step: Step) -> Result<Plan, Sense> {
    Ok(Plan::Do(match asked(lu, cdb, about)? {
        Some(terms) => Step::Protected(Box::new(Protected { step, terms, other: terms })),
        None => step,
    }))
}

#[cfg(test)]
#[path = "protect_tests.rs"]
mod tests;
