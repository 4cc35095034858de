//! The informational exceptions control mode page.

use crate::context::Context;
use crate::page::{ModePage, Number, Parameter};
use crate::policy::Capability;
use lunar_core::wire::be;
use zerocopy::{Immutable, IntoBytes};

/// Informational exceptions control.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Exceptions {
    /// PERF, EBF, EWASC, DEXCPT, TEST, EBACKERR, LOGERR.
    flags: u8,
    /// MRIE: how exceptions are reported.
    method: u8,
    interval: be::U32,
    count: be::U32,
}

/// DEXCPT: no exceptions are reported. Errors of a store are reported by the commands that encounter them.
const DISABLED: u8 = 0x08;

impl ModePage for Exceptions {
    const PAGE: u8 = 0x1c;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Informational Exceptions Control";
    const CLAUSE: &'static str = "SPC-4 7.5.13";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { flags: DISABLED, method: 0, interval: 0.into(), count: 0.into() }
    }
}
