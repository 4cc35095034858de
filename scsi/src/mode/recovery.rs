//! The read-write error recovery mode page.

use super::ModePage;
use crate::lu::{LogicalUnit, ModeValues};
use lunar_core::wire::be;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Read-write error recovery (SBC-3 6.5). All zeroes: what a store recovers from it keeps to itself, and nothing is
/// tried again. It is there for those who read it before they format.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Recovery {
    code: u8,
    length: u8,
    /// AWRE, ARRE, TB, RC, EER, PER, DTE.
    flags: u8,
    read_retries: u8,
    obsolete: [u8; 3],
    /// LBPERE, MWR.
    thin: u8,
    write_retries: u8,
    reserved: u8,
    time_limit: be::U16,
}

impl ModePage for Recovery {
    const PAGE: u8 = 0x01;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Read-Write Error Recovery";
    const CLAUSE: &'static str = "SBC-3 6.5";

    fn of(_values: ModeValues) -> Self {
        Self {
            code: Self::PAGE,
            length: (size_of::<Self>() - 2) as u8,
            flags: 0,
            read_retries: 0,
            obsolete: [0; 3],
            thin: 0,
            write_retries: 0,
            reserved: 0,
            time_limit: 0.into(),
        }
    }

    fn changeable(lu: &LogicalUnit) -> Self {
        Self::of(lu.mode())
    }

    fn select(&self, _values: &mut ModeValues) {}
}
