//! Vital product data: how INQUIRY writes a page (SPC-4 7.8).

use crate::context::Context;
use crate::lu::LogicalUnit;
use crate::nexus::{Addressee, ItlNexus};
use crate::page::VpdRow;
use crate::sense::Sense;
use lunar_core::wire::Writer;
use lunar_unit::AccessState;

/// PERIPHERAL QUALIFIER 001b: the logical unit exists, but cannot be reached through this target port.
const NOT_CONNECTED: u8 = 0x20;

/// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE of a logical unit (SPC-4 5.15.2.4.5).
pub(crate) fn peripheral(itl: &ItlNexus) -> u8 {
    let code = itl.lu.device_type.0;
    match itl.access() {
        AccessState::Unavailable | AccessState::Offline => NOT_CONNECTED | code,
        _ => code,
    }
}

/// The pages of a logical unit that Lunar writes: all of them, or those that name a forwarded logical unit.
fn rows(cx: &Context<'_>, lu: &LogicalUnit) -> impl Iterator<Item = &'static VpdRow> {
    let is_emulated = lu.emulated().is_some();
    cx.device.vpd.iter().filter(move |row| is_emulated || row.in_forwarded)
}

/// The page codes of [`rows`], in ascending order.
pub(crate) fn codes(cx: &Context<'_>, lu: &LogicalUnit) -> impl Iterator<Item = u8> {
    rows(cx, lu).map(|row| row.page)
}

/// Writes a page to `cx.out`. Returns whether Lunar writes this page of the logical unit.
///
/// # Errors
/// Errors of the page.
pub(crate) fn write(cx: &mut Context<'_>, page: u8) -> Result<bool, Sense> {
    let Addressee::Unit(itl) = cx.addressee else { return Ok(false) };
    let Some(row) = rows(cx, &itl.lu).find(|row| row.page == page) else { return Ok(false) };
    let mut out = std::mem::replace(&mut cx.out, Writer::new(&mut []));
    out.bytes(&[peripheral(itl), page, 0, 0]);
    (row.write)(cx, &mut out)?;
    // Pages are far shorter than 64 KiB.
    let length = (out.written() - 4) as u16;
    out.patch(2, &length.to_be_bytes());
    cx.out = out;
    Ok(true)
}

#[cfg(test)]
#[path = "vpd_tests.rs"]
mod tests;
