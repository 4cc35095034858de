//! The caching mode page.

use super::ModePage;
use crate::lu::{LogicalUnit, ModeValues};
use lunar_core::wire::be;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Caching (SBC-3 6.5.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Caching {
    code: u8,
    length: u8,
    /// IC, ABPF, CAP, DISC, SIZE, WCE, MF, RCD.
    flags: u8,
    retention: u8,
    /// Pre-fetch and cache segments: nothing is told or set.
    rest: [be::U16; 8],
}

const WCE: u8 = 0x04;

impl Caching {
    fn new(flags: u8) -> Self {
        Self { code: Self::PAGE, length: (size_of::<Self>() - 2) as u8, flags, retention: 0, rest: Default::default() }
    }
}

impl ModePage for Caching {
    const PAGE: u8 = 0x08;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Caching";
    const CLAUSE: &'static str = "SBC-3 6.5.6";

    fn of(values: ModeValues) -> Self {
        Self::new(if values.write_cache { WCE } else { 0 })
    }

    fn changeable(lu: &LogicalUnit) -> Self {
        Self::new(if lu.unit.traits().write_cache { WCE } else { 0 })
    }

    fn select(&self, values: &mut ModeValues) {
        values.write_cache = self.flags & WCE != 0;
    }
}
