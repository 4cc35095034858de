//! The informational exceptions control mode page.

use super::ModePage;
use crate::lu::{LogicalUnit, ModeValues};
use lunar_core::wire::be;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Informational exceptions control (SPC-4 7.5.13, SBC-3 6.5.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Exceptions {
    code: u8,
    length: u8,
    /// PERF, EBF, EWASC, DEXCPT, TEST, EBACKERR, LOGERR.
    flags: u8,
    /// MRIE: how exceptions are reported.
    method: u8,
    interval: be::U32,
    count: be::U32,
}

/// DEXCPT: no exception is reported; a store that fails says so with each command.
const DISABLED: u8 = 0x08;

impl Exceptions {
    fn new(flags: u8) -> Self {
        Self {
            code: Self::PAGE,
            length: (size_of::<Self>() - 2) as u8,
            flags,
            method: 0,
            interval: 0.into(),
            count: 0.into(),
        }
    }
}

impl ModePage for Exceptions {
    const PAGE: u8 = 0x1c;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Informational Exceptions Control";
    const CLAUSE: &'static str = "SPC-4 7.5.13";

    fn of(_values: ModeValues) -> Self {
        Self::new(DISABLED)
    }

    fn changeable(_lu: &LogicalUnit) -> Self {
        Self::new(0)
    }

    fn select(&self, _values: &mut ModeValues) {}
}
