//! The parts of page tables: vital product data, mode pages, log pages.
//!
//! A page is a type with one `impl`. A device type lists its pages; no fact of a page has a default.

use crate::change::ModeValues;
use crate::context::Context;
use crate::lu::Emulated;
use crate::plan::LogValues;
use crate::policy::Capability;
use crate::sense::Sense;
use lunar_core::unit::Unit;
use lunar_core::wire::Writer;
use std::ops::Range;
use zerocopy::{Immutable, IntoBytes};

/// A page of vital product data (SPC-4 7.8).
pub trait VpdPage {
    /// PAGE CODE.
    const PAGE: u8;
    /// Name in the standard.
    const NAME: &'static str;
    /// Clause of the standard, with its edition.
    const CLAUSE: &'static str;
    /// Whether Lunar instead of the device writes the page of a forwarded logical unit, because Lunar names units and
    /// ports.
    const IN_FORWARDED: bool;

    /// Writes the bytes after the header of four bytes.
    ///
    /// # Errors
    /// [`Context::emulated`] for a page of emulated logical units only.
    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense>;
}

/// A page of vital product data in a table.
#[derive(Clone, Copy)]
pub struct VpdRow {
    /// PAGE CODE.
    pub page: u8,
    /// Name in the standard.
    pub name: &'static str,
    /// Clause of the standard, with its edition.
    pub clause: &'static str,
    /// Whether Lunar writes the page of a forwarded logical unit.
    pub in_forwarded: bool,
    /// Writes the bytes after the header.
    pub(crate) write: fn(&Context<'_>, &mut Writer<'_>) -> Result<(), Sense>,
}

impl VpdRow {
    /// The row of a page type.
    #[must_use]
    pub const fn of<P: VpdPage>() -> Self {
        Self { page: P::PAGE, name: P::NAME, clause: P::CLAUSE, in_forwarded: P::IN_FORWARDED, write: P::write }
    }

    /// The number by which rows are sorted.
    pub(crate) const fn key(&self) -> u32 {
        self.page as u32
    }
}

/// A bit of a mode page that MODE SELECT may change.
pub struct Parameter {
    /// Byte of the page, counted from the first one after the page's header.
    pub byte: usize,
    /// The bit.
    pub mask: u8,
    /// The field of the value.
    pub value: fn(&mut ModeValues) -> &mut bool,
    /// Whether the bit is changeable for this unit.
    pub changeable: fn(&Unit) -> bool,
}

/// A number of four bytes in a mode page that MODE SELECT may change.
pub struct Number {
    /// First byte of the number, counted from the first one after the page's header.
    pub byte: usize,
    /// The field of the value.
    pub value: fn(&mut ModeValues) -> &mut u32,
    /// Whether the number is changeable for this unit.
    pub changeable: fn(&Unit) -> bool,
}

impl Number {
    /// The bytes of the number.
    pub(crate) fn place(&self) -> Range<usize> {
        self.byte..self.byte + 4
    }
}

/// A mode page (SPC-4 7.5): its bytes after its header.
pub trait ModePage: IntoBytes + Immutable + Sized + 'static {
    /// PAGE CODE.
    const PAGE: u8;
    /// SUBPAGE CODE; 0 for pages in page_0 format.
    const SUBPAGE: u8;
    /// Name in the standard.
    const NAME: &'static str;
    /// Clause of the standard, with its edition.
    const CLAUSE: &'static str;
    /// The capability that a logical unit must have to have the page.
    const NEEDS: Option<&'static Capability>;
    /// Bits that MODE SELECT may change.
    const PARAMETERS: &'static [Parameter];
    /// Numbers that MODE SELECT may change.
    const NUMBERS: &'static [Number];

    /// The page with zeroes in place of its parameters and numbers.
    fn fixed(cx: &Context<'_>) -> Self;
}

/// Bytes of the longest mode page after its header.
pub(crate) const MODE_BODY_BYTES_MAX: usize = 40;

/// A mode page in a table.
#[derive(Clone, Copy)]
pub struct ModeRow {
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Name in the standard.
    pub name: &'static str,
    /// Clause of the standard, with its edition.
    pub clause: &'static str,
    /// The capability that a logical unit must have to have the page.
    pub needs: Option<&'static Capability>,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) numbers: &'static [Number],
    /// Bytes after the header.
    pub(crate) length: usize,
    /// Writes the page with zeroes in place of its parameters and numbers.
    pub(crate) fixed: fn(&Context<'_>, &mut Writer<'_>),
}

impl ModeRow {
    /// The row of a page type.
    #[must_use]
    pub const fn of<P: ModePage>() -> Self {
        assert!(size_of::<P>() <= MODE_BODY_BYTES_MAX);
        Self {
            page: P::PAGE,
            subpage: P::SUBPAGE,
            name: P::NAME,
            clause: P::CLAUSE,
            needs: P::NEEDS,
            parameters: P::PARAMETERS,
            numbers: P::NUMBERS,
            length: size_of::<P>(),
            fixed: |cx, out| {
                out.put(&P::fixed(cx));
            },
        }
    }

    /// The number by which rows are sorted.
    pub(crate) const fn key(&self) -> u32 {
        (self.page as u32) << 8 | self.subpage as u32
    }
}

/// Writes the parameters of a log page.
pub struct LogParameters<'a, 'b> {
    pub(crate) out: &'a mut Writer<'b>,
    /// Parameters of lower codes are left out.
    pub(crate) from: u16,
    pub(crate) values: LogValues,
}

/// A log page (SPC-4 7.3).
pub trait LogPage {
    /// PAGE CODE.
    const PAGE: u8;
    /// SUBPAGE CODE.
    const SUBPAGE: u8;
    /// Name in the standard.
    const NAME: &'static str;
    /// Clause of the standard, with its edition.
    const CLAUSE: &'static str;
    /// The capability that a logical unit must have to have the page.
    const NEEDS: Option<&'static Capability>;
    /// Whether the page reports used and available space, which is measured before the page is written.
    const MEASURES: bool;
    /// Whether the values can be saved, if the unit can save values.
    const SAVES: bool;

    /// Writes the parameters after the header of four bytes.
    fn write(cx: &Context<'_>, lu: &Emulated, out: &mut LogParameters<'_, '_>);
}

/// A log page in a table.
#[derive(Clone, Copy)]
pub struct LogRow {
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Name in the standard.
    pub name: &'static str,
    /// Clause of the standard, with its edition.
    pub clause: &'static str,
    /// The capability that a logical unit must have to have the page.
    pub needs: Option<&'static Capability>,
    /// Whether space is measured before the page is written.
    pub(crate) measures: bool,
    /// Whether the values can be saved, if the unit can save values.
    pub(crate) saves: bool,
    /// Writes the parameters after the header.
    pub(crate) write: fn(&Context<'_>, &Emulated, &mut LogParameters<'_, '_>),
}

impl LogRow {
    /// The row of a page type.
    #[must_use]
    pub const fn of<P: LogPage>() -> Self {
        Self {
            page: P::PAGE,
            subpage: P::SUBPAGE,
            name: P::NAME,
            clause: P::CLAUSE,
            needs: P::NEEDS,
            measures: P::MEASURES,
            saves: P::SAVES,
            write: P::write,
        }
    }

    /// The number by which rows are sorted.
    pub(crate) const fn key(&self) -> u32 {
        (self.page as u32) << 8 | self.subpage as u32
    }
}
