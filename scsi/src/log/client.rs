//! The application client log page: what initiators leave for each other and for whoever looks for what went wrong.

use super::{CHANGEABLE_BITS, LogPage, Parameters, SUBPAGE_FORMAT};
use crate::lu::LogicalUnit;
use crate::mode::can_save;
use crate::sense::{Asc, Sense};
use lunar_core::unit::Unit;
use lunar_core::wire::{Cursor, be};
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// General usage parameters: as many as there must be at least (SPC-4 7.3.3), and no more.
const COUNT: usize = 64;
/// Bytes of each, neither more nor less (SPC-4 7.3.3).
const VALUE_BYTES: usize = 0xfc;
/// Bytes of all.
pub(crate) const BYTES: usize = COUNT * VALUE_BYTES;
/// The name that a unit keeps saved values under.
pub(crate) const KEPT_AS: &str = "application-client-log";

/// Application client.
pub(super) struct ApplicationClient;

impl LogPage for ApplicationClient {
    const PAGE: u8 = 0x0f;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Application Client";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const SAVES: bool = true;

    fn write(lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        let values = lu.client_log();
        let empty = [0; VALUE_BYTES];
        let control = Parameters::control_of_list(can_save(&lu.unit));
        for (code, at) in (0..COUNT as u16).zip((0..).step_by(VALUE_BYTES)) {
            let value = values.get(at..at + VALUE_BYTES).filter(|_| out.is_current()).unwrap_or(&empty);
            out.bytes(code, control, value);
        }
    }
}

/// What a unit has saved; nothing if it is not what was.
#[must_use]
pub(crate) fn load(unit: &Unit) -> Arc<[u8]> {
    let kept = unit.keep.load(KEPT_AS).filter(|kept| matches!(kept.len(), 0 | BYTES));
    kept.unwrap_or_default().into()
}

/// The header of a page in LOG SELECT's list (SPC-4 7.3.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PageHeader {
    /// DS, SPF, PAGE CODE.
    page: u8,
    subpage: u8,
    length: be::U16,
}

/// The header of a parameter (SPC-4 7.3.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ParameterHeader {
    code: be::U16,
    /// DU, TSD, ETC, TMC, FORMAT AND LINKING.
    control: u8,
    length: u8,
}

/// DS: the page is not saved.
const NOT_SAVED: u8 = 0x80;

/// What LOG SELECT's list comes to.
#[derive(Debug)]
pub(crate) struct Selected {
    /// All values.
    pub(crate) values: Arc<[u8]>,
    /// Whether they may be saved (DS).
    pub(crate) saves: bool,
}

/// Takes over the pages of LOG SELECT's list: of all pages there are it is the one whose values can be set.
///
/// # Errors
/// PARAMETER LIST LENGTH ERROR, INVALID FIELD IN PARAMETER LIST.
pub(crate) fn select(lu: &LogicalUnit, list: &[u8]) -> Result<Selected, Sense> {
    const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let before = lu.client_log();
    let mut values = if before.is_empty() { vec![0; BYTES] } else { before.to_vec() };
    let (mut saves, mut last) = (true, None);
    let mut cursor = Cursor::new(list);
    while !cursor.rest().is_empty() {
        let at = list.len() - cursor.rest().len();
        let header: &PageHeader = cursor.take().map_err(|_| SHORT)?;
        if header.page & !NOT_SAVED & !SUBPAGE_FORMAT != ApplicationClient::PAGE {
            return Err(Sense::bit_in_list(at, 5));
        }
        if header.page & SUBPAGE_FORMAT != 0 {
            return Err(Sense::bit_in_list(at, 6));
        }
        if header.subpage != 0 {
            return Err(Sense::in_list(at + offset_of!(PageHeader, subpage)));
        }
        saves &= header.page & NOT_SAVED == 0;
        let length = usize::from(header.length.get());
        let page = cursor.bytes(length).map_err(|_| SHORT)?;
        parameters(page, at + size_of::<PageHeader>(), &mut values, &mut last)?;
    }
    Ok(Selected { values: values.into(), saves })
}

/// Takes over the parameters of a page that begins at byte `start` of the list, in ascending order (SPC-4 6.7).
fn parameters(page: &[u8], start: usize, values: &mut [u8], last: &mut Option<u16>) -> Result<(), Sense> {
    const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let mut cursor = Cursor::new(page);
    while !cursor.rest().is_empty() {
        let at = start + page.len() - cursor.rest().len();
        let header: &ParameterHeader = cursor.take().map_err(|_| SHORT)?;
        let code = header.code.get();
        let place = usize::from(code) * VALUE_BYTES;
        let is_next = last.replace(code).is_none_or(|last| last < code);
        let Some(value) = values.get_mut(place..place + VALUE_BYTES).filter(|_| is_next) else {
            return Err(Sense::in_list(at));
        };
        if header.control & !CHANGEABLE_BITS != Parameters::control_of_list(true) {
            return Err(Sense::in_list(at + offset_of!(ParameterHeader, control)));
        }
        if usize::from(header.length) != VALUE_BYTES {
            return Err(Sense::in_list(at + offset_of!(ParameterHeader, length)));
        }
        let new: &[u8; VALUE_BYTES] = cursor.take().map_err(|_| SHORT)?;
        value.copy_from_slice(new);
    }
    Ok(())
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
