//! Mode pages: one type per page, one row per type (SPC-4 7.5, SBC-3 6.5).

mod caching;
mod control;
mod exceptions;
mod recovery;

use crate::lu::{LogicalUnit, ModeValues};
use crate::sense::{Asc, Sense};
use lunar_core::unit::Unit;
use lunar_core::wire::Writer;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Mode parameters after power on.
#[must_use]
pub fn default_values(unit: &Unit) -> ModeValues {
    ModeValues { write_cache: unit.traits().write_cache, descriptor_sense: false, write_protect: false }
}

/// PC: which values MODE SENSE asks for (SPC-4 6.13.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageControl {
    /// As they are.
    Current,
    /// Ones where MODE SELECT may change them.
    Changeable,
    /// As they are after power on.
    Default,
    /// As they were saved: nothing is.
    Saved,
}

impl PageControl {
    /// The meaning of the two bits.
    #[must_use]
    pub fn of(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Current,
            1 => Self::Changeable,
            2 => Self::Default,
            _ => Self::Saved,
        }
    }
}

/// A mode page: its bytes from the page code on.
pub trait ModePage: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Sized + 'static {
    /// PAGE CODE.
    const PAGE: u8;
    /// SUBPAGE CODE; 0 for pages in page_0 format.
    const SUBPAGE: u8;
    /// Its name in the standard.
    const NAME: &'static str;
    /// Where the standard has it.
    const CLAUSE: &'static str;

    /// The page for these values.
    fn of(values: ModeValues) -> Self;
    /// Ones where MODE SELECT may change it; code and length as they are.
    fn changeable(lu: &LogicalUnit) -> Self;
    /// Takes over what may be changed.
    fn select(&self, values: &mut ModeValues);
}

/// A mode page in the table.
pub struct PageRow {
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Its name in the standard.
    pub name: &'static str,
    /// Where the standard has it.
    pub clause: &'static str,
    length: usize,
    write: fn(&LogicalUnit, PageControl, &mut Writer<'_>),
    select: Select,
}

/// Takes a page over, or names the byte and bit that must not change.
type Select = fn(&LogicalUnit, &[u8], &mut ModeValues) -> Result<(), (usize, u8)>;

impl PageRow {
    /// Writes the page.
    pub fn write(&self, lu: &LogicalUnit, control: PageControl, out: &mut Writer<'_>) {
        (self.write)(lu, control, out);
    }
}

const fn row<P: ModePage>() -> PageRow {
    PageRow {
        page: P::PAGE,
        subpage: P::SUBPAGE,
        name: P::NAME,
        clause: P::CLAUSE,
        length: size_of::<P>(),
        write: write::<P>,
        select: select::<P>,
    }
}

fn write<P: ModePage>(lu: &LogicalUnit, control: PageControl, out: &mut Writer<'_>) {
    let page = match control {
        PageControl::Current | PageControl::Saved => P::of(lu.mode()),
        PageControl::Changeable => P::changeable(lu),
        PageControl::Default => P::of(default_values(&lu.unit)),
    };
    out.put(&page);
}

fn select<P: ModePage>(lu: &LogicalUnit, page: &[u8], values: &mut ModeValues) -> Result<(), (usize, u8)> {
    let (now, changeable) = (P::of(*values), P::changeable(lu));
    let fixed = now.as_bytes().iter().zip(changeable.as_bytes());
    let wrong = page.iter().zip(fixed).map(|(new, (now, changeable))| (new ^ now) & !changeable);
    // Code and length were looked at already; PS is reserved here.
    if let Some((at, bits)) = wrong.enumerate().skip(2).find(|(_, bits)| *bits != 0) {
        return Err((at, bits.checked_ilog2().map_or(7, |bit| bit as u8)));
    }
    if let Ok(page) = P::ref_from_bytes(page) {
        page.select(values);
    }
    Ok(())
}

/// Every mode page, in ascending order: all pages at once are in that order.
pub static PAGES: &[PageRow] = &[
    row::<recovery::Recovery>(),
    row::<caching::Caching>(),
    row::<control::Control>(),
    row::<exceptions::Exceptions>(),
];

/// MODE SELECT's pages, one after the other; nothing is changed unless all are well.
pub struct Selection<'a> {
    lu: &'a LogicalUnit,
    list: &'a [u8],
    at: usize,
    /// What they come to.
    pub values: ModeValues,
}

/// SPF: the page is in sub_page format.
const SUBPAGE_FORMAT: u8 = 0x40;
/// PAGE CODE.
const PAGE_CODE: u8 = 0x3f;

impl<'a> Selection<'a> {
    /// The pages from byte `at` of the list on.
    #[must_use]
    pub fn new(lu: &'a LogicalUnit, list: &'a [u8], at: usize) -> Self {
        Self { lu, list, at, values: lu.mode() }
    }

    /// Goes through all pages.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR, INVALID FIELD IN PARAMETER LIST.
    pub fn apply(&mut self) -> Result<(), Sense> {
        const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        while self.at < self.list.len() {
            let rest = &self.list[self.at..];
            let &[code, length] = rest.first_chunk().ok_or(SHORT)?;
            if code & SUBPAGE_FORMAT != 0 {
                return Err(Sense::bit_in_list(self.at, 6));
            }
            let row = PAGES.iter().find(|row| row.page == code & PAGE_CODE && row.subpage == 0);
            let row = row.ok_or_else(|| Sense::bit_in_list(self.at, 5))?;
            if usize::from(length) + 2 != row.length {
                return Err(Sense::in_list(self.at + 1));
            }
            let page = rest.get(..row.length).ok_or(SHORT)?;
            (row.select)(self.lu, page, &mut self.values)
                .map_err(|(byte, bit)| Sense::bit_in_list(self.at + byte, bit))?;
            self.at += row.length;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "mode_tests.rs"]
mod tests;
