//! The list of vital product data pages.

use crate::context::Context;
use crate::page::VpdPage;
use crate::sense::Sense;
use lunar_core::wire::Writer;

/// Supported VPD pages.
pub(crate) struct Supported;

impl VpdPage for Supported {
    const PAGE: u8 = 0x00;
    const NAME: &'static str = "Supported VPD Pages";
    const CLAUSE: &'static str = "SPC-4 7.8.16";
    const IN_FORWARDED: bool = false;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        cx.device.vpd.iter().for_each(|row| {
            out.bytes(&[row.page]);
        });
        Ok(())
    }
}
