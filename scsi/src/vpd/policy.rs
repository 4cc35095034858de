//! Mode page policy.

use super::VpdPage;
use crate::context::Context;
use crate::lu::LogicalUnit;
use crate::table::Reach;
use lunar_core::wire::Writer;
use zerocopy::{Immutable, IntoBytes};

/// One mode page policy descriptor: all initiators share each mode page of a disk, and no two disks share one.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ModePagePolicy {
    page: u8,
    subpage: u8,
    /// MLUS, MODE PAGE POLICY.
    policy: u8,
    reserved: u8,
}

/// POLICY PAGE CODE and POLICY SUBPAGE CODE: all that are there.
const ALL: (u8, u8) = (0x3f, 0xff);
/// MODE PAGE POLICY: shared.
const SHARED: u8 = 0;

impl VpdPage for ModePagePolicy {
    const PAGE: u8 = 0x87;
    const NAME: &'static str = "Mode Page Policy";
    const CLAUSE: &'static str = "SPC-4 7.8.9";
    const REACH: Reach = Reach::Unit;

    fn write(_cx: &Context<'_>, _lu: &LogicalUnit, out: &mut Writer<'_>) {
        let (page, subpage) = ALL;
        out.put(&Self { page, subpage, policy: SHARED, reserved: 0 });
    }
}
