//! The informational exceptions control mode page.

use super::{ModePage, Parameter};
use crate::context::Context;
use crate::table::{Needs, Reach};
use lunar_core::wire::be;
use zerocopy::{Immutable, IntoBytes};

/// Informational exceptions control.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Exceptions {
    /// PERF, EBF, EWASC, DEXCPT, TEST, EBACKERR, LOGERR.
    flags: u8,
    /// MRIE: how exceptions are reported.
    method: u8,
    interval: be::U32,
    count: be::U32,
}

/// DEXCPT: no exception is reported; a store that fails says so with each command.
const DISABLED: u8 = 0x08;

impl ModePage for Exceptions {
    const PAGE: u8 = 0x1c;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Informational Exceptions Control";
    const CLAUSE: &'static str = "SPC-4 7.5.13";
    const REACH: Reach = Reach::Disk;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { flags: DISABLED, method: 0, interval: 0.into(), count: 0.into() }
    }
}
