//! Log pages: one type per page, one row per type (SPC-4 7.3, SBC-3 6.4).

pub(crate) mod client;
mod counters;
mod health;
mod provisioning;

use crate::lu::LogicalUnit;
use crate::mode::can_save;
use crate::sense::Sense;
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
    /// Whether it tells how much space there is, which is measured first.
    const MEASURES: bool = false;
    /// Whether its values can be saved, where anything can.
    const SAVES: bool = false;

    /// Whether a disk has it: nearly all pages are of all disks.
    fn is_of(lu: &LogicalUnit) -> bool {
        let _ = lu;
        true
    }

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
    /// Whether space is measured first.
    pub(crate) measures: bool,
    saves: bool,
    is_of: fn(&LogicalUnit) -> bool,
    write: fn(&LogicalUnit, &mut Parameters<'_, '_>),
}

const fn row<P: LogPage>() -> PageRow {
    PageRow {
        page: P::PAGE,
        subpage: P::SUBPAGE,
        name: P::NAME,
        clause: P::CLAUSE,
        measures: P::MEASURES,
        saves: P::SAVES,
        is_of: P::is_of,
        write: P::write,
    }
}

/// Every page, in ascending order, as pages 00h list them.
pub static PAGES: &[PageRow] = &[
    row::<Supported>(),
    row::<SupportedSubpages>(),
    row::<counters::WriteErrors>(),
    row::<counters::ReadErrors>(),
    row::<counters::VerifyErrors>(),
    row::<provisioning::Provisioning>(),
    row::<health::Temperature>(),
    row::<client::ApplicationClient>(),
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

/// TSD: the parameter is not saved (SPC-4 7.3.2).
const NOT_KEPT: u8 = 0x20;
/// Bits of a parameter's control byte that LOG SELECT may have either way: they say what the device does by itself (DU,
/// TSD).
const CHANGEABLE_BITS: u8 = 0x80 | NOT_KEPT;

/// FORMAT AND LINKING of a parameter (SPC-4 7.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// An unbounded data counter.
    Counter = 0x02,
    /// A list in binary.
    List = 0x03,
}

impl Parameters<'_, '_> {
    fn put(&mut self, code: u16, form: Form, value: &[u8]) {
        self.bytes(code, NOT_KEPT | form as u8, value);
    }

    /// A parameter with this control byte.
    fn bytes(&mut self, code: u16, control: u8, value: &[u8]) {
        if code >= self.from {
            // Values are shorter than 256 bytes.
            self.out.bytes(&code.to_be_bytes()).bytes(&[control, value.len() as u8]).bytes(value);
        }
    }

    /// The control byte of a list in binary, which can be saved or not.
    fn control_of_list(saved: bool) -> u8 {
        if saved { Form::List as u8 } else { NOT_KEPT | Form::List as u8 }
    }

    fn is_current(&self) -> bool {
        self.values == Values::Current
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
        if self.is_current() { current } else { 0 }
    }
}

/// SPF: there is a subpage code.
const SUBPAGE_FORMAT: u8 = 0x40;
/// DS: the page is not saved.
const NOT_SAVED: u8 = 0x80;

/// Finds a page of a disk.
#[must_use]
pub(crate) fn find(lu: &LogicalUnit, page: u8, subpage: u8) -> Option<&'static PageRow> {
    PAGES.iter().filter(|row| (row.is_of)(lu)).find(|row| (row.page, row.subpage) == (page, subpage))
}

/// What LOG SENSE asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// PAGE CODE.
    pub(crate) page: u8,
    /// SUBPAGE CODE.
    pub(crate) subpage: u8,
    /// PC.
    pub(crate) values: Values,
    /// PARAMETER POINTER: parameters of lower codes are left out.
    pub(crate) from: u16,
}

impl Ask {
    /// Writes the page.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB when it has no parameter from there on.
    pub(crate) fn answer(&self, lu: &LogicalUnit, out: &mut Writer<'_>) -> Result<(), Sense> {
        let is_there = find(lu, self.page, self.subpage).is_some_and(|row| row.write(lu, self.values, self.from, out));
        if is_there || self.from == 0 { Ok(()) } else { Err(Sense::in_cdb(POINTER_AT)) }
    }
}

/// Byte of LOG SENSE's CDB that PARAMETER POINTER begins with.
pub(crate) const POINTER_AT: usize = 5;

impl PageRow {
    /// Writes the page with its parameters from code `from` on; tells whether there is any.
    pub(crate) fn write(&self, lu: &LogicalUnit, values: Values, from: u16, out: &mut Writer<'_>) -> bool {
        let format = if self.subpage == 0 { 0 } else { SUBPAGE_FORMAT };
        let saved = if self.page == 0 || self.saves && can_save(&lu.unit) { 0 } else { NOT_SAVED };
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

    fn write(lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        PAGES.iter().filter(|row| row.subpage == 0 && (row.is_of)(lu)).for_each(|row| {
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

    fn write(lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        PAGES.iter().filter(|row| (row.is_of)(lu)).for_each(|row| {
            out.out.bytes(&[row.page, row.subpage]);
        });
    }
}
