//! Mode page policy.

use crate::context::Context;
use crate::page::VpdPage;
use crate::sense::Sense;
use lunar_core::wire::Writer;
use zerocopy::{Immutable, IntoBytes};

/// The only mode page policy descriptor: all nexuses share each mode page of a logical unit.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ModePagePolicy {
    page: u8,
    subpage: u8,
    /// MLUS, MODE PAGE POLICY.
    policy: u8,
    reserved: u8,
}

/// POLICY PAGE CODE and POLICY SUBPAGE CODE: all pages and subpages.
const ALL: (u8, u8) = (0x3f, 0xff);
/// MODE PAGE POLICY: shared.
const SHARED: u8 = 0;

impl VpdPage for ModePagePolicy {
    const PAGE: u8 = 0x87;
    const NAME: &'static str = "Mode Page Policy";
    const CLAUSE: &'static str = "SPC-4 7.8.9";
    const IN_FORWARDED: bool = false;

    fn write(_cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        let (page, subpage) = ALL;
        out.put(&Self { page, subpage, policy: SHARED, reserved: 0 });
        Ok(())
    }
}
