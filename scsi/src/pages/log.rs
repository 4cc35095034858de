//! Log pages: how LOG SENSE writes them (SPC-4 7.3).

use crate::context::{Call, Context};
use crate::lu::Emulated;
use crate::page::{LogParameters, LogRow};
use crate::pages::mode::can_save;
use crate::plan::{LogRequest, LogValues};
use crate::sense::Sense;
use crate::target::Target;
use lunar_core::step::{self, SlotContext};
use lunar_core::wire::Writer;

/// TSD: the parameter is not saved (SPC-4 7.3.2).
const NOT_KEPT: u8 = 0x20;
/// DU and TSD of a parameter's control byte: LOG SELECT ignores them, because they describe actions of the device
/// itself.
pub(crate) const CHANGEABLE_BITS: u8 = 0x80 | NOT_KEPT;

/// FORMAT AND LINKING of a parameter (SPC-4 7.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// An unbounded data counter.
    Counter = 0x02,
    /// A list in binary.
    List = 0x03,
}

impl LogParameters<'_, '_> {
    fn put(&mut self, code: u16, form: Form, value: &[u8]) {
        self.bytes(code, NOT_KEPT | form as u8, value);
    }

    /// Writes a parameter with this control byte.
    pub(crate) fn bytes(&mut self, code: u16, control: u8, value: &[u8]) {
        if code >= self.from {
            // Values are shorter than 256 bytes.
            self.out.bytes(&code.to_be_bytes()).bytes(&[control, value.len() as u8]).bytes(value);
        }
    }

    /// The control byte of a list in binary, which can be saved or not.
    pub(crate) fn control_of_list(saved: bool) -> u8 {
        if saved { Form::List as u8 } else { NOT_KEPT | Form::List as u8 }
    }

    /// Whether the counted values are requested.
    pub(crate) fn is_current(&self) -> bool {
        self.values == LogValues::Current
    }

    /// Writes a list in binary.
    pub(crate) fn list(&mut self, code: u16, value: &[u8]) {
        self.put(code, Form::List, value);
    }

    /// Writes a counter.
    pub(crate) fn counter(&mut self, code: u16, value: u64) {
        self.put(code, Form::Counter, &self.value(value).to_be_bytes());
    }

    /// A counted value, or its default.
    pub(crate) fn value(&self, current: u64) -> u64 {
        if self.is_current() { current } else { 0 }
    }
}

/// SPF: the page has a subpage code.
pub(crate) const SUBPAGE_FORMAT: u8 = 0x40;
/// DS: the page is not saved.
const NOT_SAVED: u8 = 0x80;
/// Offset of PARAMETER POINTER in the CDB of LOG SENSE.
pub(crate) const POINTER_AT: usize = 5;

/// The log pages of a logical unit.
pub(crate) fn of<'a>(cx: &Context<'_>, lu: &'a Emulated) -> impl Iterator<Item = &'static LogRow> + use<'a> {
    cx.device.log.iter().filter(|row| row.needs.is_none_or(|capability| (capability.is_met)(lu)))
}

/// Finds a page of a logical unit.
#[must_use]
pub(crate) fn find(cx: &Context<'_>, lu: &Emulated, page: u8, subpage: u8) -> Option<&'static LogRow> {
    of(cx, lu).find(|row| (row.page, row.subpage) == (page, subpage))
}

/// Writes the page that LOG SENSE requests to `cx.out`.
///
/// # Errors
/// INVALID FIELD IN CDB when the page has no parameter from PARAMETER POINTER on.
pub(crate) fn answer(cx: &mut Context<'_>, lu: &Emulated, request: &LogRequest) -> Result<(), Sense> {
    let mut out = std::mem::replace(&mut cx.out, Writer::new(&mut []));
    let row = find(cx, lu, request.page, request.subpage);
    let has_parameter = row.is_some_and(|row| write(row, cx, lu, request, &mut out));
    cx.out = out;
    if has_parameter || request.from == 0 { Ok(()) } else { Err(Sense::in_cdb(POINTER_AT)) }
}

impl Target {
    /// Measures the space of the store, and writes a log page about it to `self.scratch`.
    pub(crate) async fn log(
        &self,
        call: Call<'_>,
        lu: &Emulated,
        request: &LogRequest,
        amount: u32,
        slot: &mut SlotContext,
    ) -> Result<(), Sense> {
        lu.device.set_space(step::space(&lu.unit, slot).await);
        let mut scratch = self.answer_memory(amount);
        let mut cx = call.context(self, Writer::new(&mut scratch));
        answer(&mut cx, lu, request)?;
        let kept = cx.out.kept();
        scratch.truncate(kept);
        Ok(())
    }
}

/// Writes a page; returns whether it has a parameter.
fn write(row: &LogRow, cx: &Context<'_>, lu: &Emulated, request: &LogRequest, out: &mut Writer<'_>) -> bool {
    let format = if row.subpage == 0 { 0 } else { SUBPAGE_FORMAT };
    let saved = if row.page == 0 || row.saves && can_save(&lu.unit) { 0 } else { NOT_SAVED };
    out.bytes(&[saved | format | row.page, row.subpage, 0, 0]);
    (row.write)(cx, lu, &mut LogParameters { out, from: request.from, values: request.values });
    // Pages are far shorter than 64 KiB.
    let length = (out.written() - 4) as u16;
    out.patch(2, &length.to_be_bytes());
    length > 0
}
