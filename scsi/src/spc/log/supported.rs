//! The lists of log pages.

use crate::context::Context;
use crate::lu::Emulated;
use crate::page::{LogPage, LogParameters};
use crate::pages::log::of;
use crate::policy::Capability;

/// Supported log pages.
pub(crate) struct Supported;

impl LogPage for Supported {
    const PAGE: u8 = 0x00;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Supported Log Pages";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        of(cx, lu).filter(|row| row.subpage == 0).for_each(|row| {
            out.out.bytes(&[row.page]);
        });
    }
}

/// Supported log pages and subpages.
pub(crate) struct SupportedSubpages;

impl LogPage for SupportedSubpages {
    const PAGE: u8 = 0x00;
    const SUBPAGE: u8 = 0xff;
    const NAME: &'static str = "Supported Log Pages and Subpages";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        of(cx, lu).for_each(|row| {
            out.out.bytes(&[row.page, row.subpage]);
        });
    }
}
