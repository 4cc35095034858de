//! Log pages: one type per page, one row per type (SPC-4 7.3, SBC-3 6.4).

mod counters;
mod health;

use crate::lu::LogicalUnit;
use lunar_core::wire::Writer;

/// A log page.
pub trait LogPage {
    /// PAGE CODE.
    const PAGE: u8;
    /// SUBPAGE CODE.
    const SUBPAGE: u8;
    /// Its name in the standard.
    const NAME: &'static str;
    /// Where the standard has it.
    const CLAUSE: &'static str;

    /// Writes what follows the four bytes of the header.
    fn write(lu: &LogicalUnit, out: &mut Parameters<'_, '_>);
}

/// A page in the table.
pub struct PageRow {
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Its name in the standard.
    pub name: &'static str,
    /// Where the standard has it.
    pub clause: &'static str,
    write: fn(&LogicalUnit, &mut Parameters<'_, '_>),
}

const fn row<P: LogPage>() -> PageRow {
    PageRow { page: P::PAGE, subpage: P::SUBPAGE, name: P::NAME, clause: P::CLAUSE, write: P::write }
}

/// Every page, in ascending order, as pages 00h list them.
pub static PAGES: &[PageRow] = &[
    row::<Supported>(),
    row::<SupportedSubpages>(),
    row::<counters::WriteErrors>(),
    row::<counters::ReadErrors>(),
    row::<counters::VerifyErrors>(),
    row::<health::Temperature>(),
    row::<counters::Performance>(),
    row::<health::InformationalExceptions>(),
];

/// Which values are asked for (PC): of counters there are two kinds, and no thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Values {
    /// What was counted.
    Current,
    /// What is there after a reset: zeroes.
    Default,
}

/// Writes the parameters of a page.
pub struct Parameters<'a, 'b> {
    out: &'a mut Writer<'b>,
    /// Parameters of lower codes are left out.
    from: u16,
    values: Values,
}

/// FORMAT AND LINKING of a parameter, with TSD: it is not saved (SPC-4 7.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// An unbounded data counter.
    Counter = 0x20 | 0x02,
    /// A list in binary.
    List = 0x20 | 0x03,
}

impl Parameters<'_, '_> {
    fn put(&mut self, code: u16, form: Form, value: &[u8]) {
        if code >= self.from {
            // Values here are a few dozen bytes.
            self.out.bytes(&code.to_be_bytes()).bytes(&[form as u8, value.len() as u8]).bytes(value);
        }
    }

    /// A list in binary.
    fn list(&mut self, code: u16, value: &[u8]) {
        self.put(code, Form::List, value);
    }

    /// A counter.
    fn counter(&mut self, code: u16, value: u64) {
        self.put(code, Form::Counter, &self.value(value).to_be_bytes());
    }

    fn value(&self, current: u64) -> u64 {
        if self.values == Values::Current { current } else { 0 }
    }
}

/// SPF: there is a subpage code.
const SUBPAGE_FORMAT: u8 = 0x40;
/// DS: the page is not saved.
const NOT_SAVED: u8 = 0x80;

/// Finds a page.
#[must_use]
pub(crate) fn find(page: u8, subpage: u8) -> Option<&'static PageRow> {
    PAGES.iter().find(|row| (row.page, row.subpage) == (page, subpage))
}

impl PageRow {
    /// Writes the page with its parameters from code `from` on; tells whether there is any.
    pub(crate) fn write(&self, lu: &LogicalUnit, values: Values, from: u16, out: &mut Writer<'_>) -> bool {
        let format = if self.subpage == 0 { 0 } else { SUBPAGE_FORMAT };
        let saved = if self.page == 0 { 0 } else { NOT_SAVED };
        out.bytes(&[saved | format | self.page, self.subpage, 0, 0]);
        (self.write)(lu, &mut Parameters { out, from, values });
        // Pages are far shorter than 64 KiB.
        let length = (out.written() - 4) as u16;
        out.patch(2, &length.to_be_bytes());
        length > 0
    }
}

/// Supported log pages.
struct Supported;

impl LogPage for Supported {
    const PAGE: u8 = 0x00;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Supported Log Pages";
    const CLAUSE: &'static str = "SPC-4 7.3";

    fn write(_lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        PAGES.iter().filter(|row| row.subpage == 0).for_each(|row| {
            out.out.bytes(&[row.page]);
        });
    }
}

/// Supported log pages and subpages.
struct SupportedSubpages;

impl LogPage for SupportedSubpages {
    const PAGE: u8 = 0x00;
    const SUBPAGE: u8 = 0xff;
    const NAME: &'static str = "Supported Log Pages and Subpages";
    const CLAUSE: &'static str = "SPC-4 7.3";

    fn write(_lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        PAGES.iter().for_each(|row| {
            out.out.bytes(&[row.page, row.subpage]);
        });
    }
}
