//! The application client log page: values that initiators store for each other and for diagnosis.

use crate::context::Context;
use crate::lu::Emulated;
use crate::page::{LogPage, LogParameters};
use crate::pages::log::{CHANGEABLE_BITS, SUBPAGE_FORMAT};
use crate::pages::mode::can_save;
use crate::policy::Capability;
use crate::sense::{Asc, Sense};
use lunar_core::unit::Unit;
use lunar_core::wire::{Cursor, be};
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// General usage parameters: the number that the standard requires at least (SPC-4 7.3.3).
const COUNT: usize = 64;
/// Bytes of a value, which are fixed (SPC-4 7.3.3).
const VALUE_BYTES: usize = 0xfc;
/// Bytes of all values.
pub(crate) const BYTES: usize = COUNT * VALUE_BYTES;
/// The name under which a unit stores saved values.
pub(crate) const KEPT_AS: &str = "application-client-log";

/// Application client.
pub(crate) struct ApplicationClient;

impl LogPage for ApplicationClient {
    const PAGE: u8 = 0x0f;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Application Client";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = true;

    fn write(_cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        let values = lu.client_log();
        let empty = [0; VALUE_BYTES];
        let control = LogParameters::control_of_list(can_save(&lu.unit));
        for (code, at) in (0..COUNT as u16).zip((0..).step_by(VALUE_BYTES)) {
            let value = values.get(at..at + VALUE_BYTES).filter(|_| out.is_current()).unwrap_or(&empty);
            out.bytes(code, control, value);
        }
    }
}

/// The saved values of a unit; empty if there are none or if they have another length.
#[must_use]
pub(crate) fn load(unit: &Unit) -> Arc<[u8]> {
    let kept = unit.metadata.load(KEPT_AS).filter(|kept| matches!(kept.len(), 0 | BYTES));
    kept.unwrap_or_default().into()
}

/// The header of a page in the parameter list of LOG SELECT (SPC-4 7.3.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PageHeader {
    /// DS, SPF, PAGE CODE.
    page: u8,
    subpage: u8,
    length: be::U16,
}

/// The header of a log parameter (SPC-4 7.3.2).
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

/// The values that the parameter list of LOG SELECT sets.
#[derive(Debug)]
pub(crate) struct Selected {
    /// All values.
    pub(crate) values: Arc<[u8]>,
    /// Whether the values may be saved: no page had DS set.
    pub(crate) saves: bool,
}

/// Reads the pages of the parameter list of LOG SELECT. The application client page is the only one with changeable
/// values.
///
/// # Errors
/// PARAMETER LIST LENGTH ERROR, INVALID FIELD IN PARAMETER LIST.
pub(crate) fn select(lu: &Emulated, list: &[u8]) -> Result<Selected, Sense> {
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

/// Reads the parameters of a page, which start at byte `start` of the list, in ascending order (SPC-4 6.7).
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
        if header.control & !CHANGEABLE_BITS != LogParameters::control_of_list(true) {
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
