//! Mode pages: one type per page, one row per type (SPC-4 7.5, SBC-4 6.5, MMC-6 7).

mod connection;
mod control;
mod disk;
mod drive;
mod exceptions;
mod power;
mod provisioning;
mod select;

use crate::context::Context;
use crate::lu::{LogicalUnit, ModeValues};
use crate::table::{Needs, Reach};
use lunar_core::unit::Unit;
use lunar_core::wire::Writer;
use std::ops::Range;
use zerocopy::{Immutable, IntoBytes};

pub(crate) use select::Selection;

/// Mode parameters of a unit whose initiators have saved none, after power on.
#[must_use]
pub fn default_values(unit: &Unit) -> ModeValues {
    ModeValues {
        write_cache: unit.traits().write_cache,
        descriptor_sense: false,
        write_protect: false,
        single_attention: false,
        thresholds: Default::default(),
        application_tags_owned: false,
    }
}

/// PC: which values MODE SENSE asks for (SPC-4 6.13.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageControl {
    /// As they are.
    Current,
    /// Ones where MODE SELECT may change them.
    Changeable,
    /// As they are where none were saved.
    Default,
    /// As they were saved; the defaults if they never were.
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

/// A bit of a page that MODE SELECT may change.
pub struct Parameter {
    /// Its byte, counted from the first one behind the page's header.
    pub byte: usize,
    /// The bit.
    pub mask: u8,
    /// Where its value is.
    pub value: fn(&mut ModeValues) -> &mut bool,
    /// Whether it may be changed for this unit.
    pub changeable: fn(&Unit) -> bool,
}

/// A number of a page that MODE SELECT may change: four bytes.
pub struct Number {
    /// Its first byte, counted from the first one behind the page's header.
    pub byte: usize,
    /// Where its value is.
    pub value: fn(&mut ModeValues) -> &mut u32,
    /// Whether it may be changed for this unit.
    pub changeable: fn(&Unit) -> bool,
}

impl Number {
    fn place(&self) -> Range<usize> {
        self.byte..self.byte + 4
    }
}

/// A mode page: its bytes from behind its header on.
pub trait ModePage: IntoBytes + Immutable + Sized + 'static {
    /// PAGE CODE.
    const PAGE: u8;
    /// SUBPAGE CODE; 0 for pages in page_0 format.
    const SUBPAGE: u8;
    /// Its name in the standard.
    const NAME: &'static str;
    /// Where the standard has it.
    const CLAUSE: &'static str;
    /// Which units have it.
    const REACH: Reach;
    /// What a unit must be capable of to have it.
    const NEEDS: Needs;
    /// What MODE SELECT may change of it.
    const PARAMETERS: &'static [Parameter];
    /// Numbers that MODE SELECT may change of it: few pages have any.
    const NUMBERS: &'static [Number] = &[];

    /// The page; zeroes where its parameters are.
    fn fixed(cx: &Context<'_>) -> Self;
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
    /// Which units have it.
    pub reach: Reach,
    needs: Needs,
    parameters: &'static [Parameter],
    numbers: &'static [Number],
    /// Bytes behind the header.
    length: usize,
    fixed: fn(&Context<'_>, &mut Writer<'_>),
}

/// Every mode page, in ascending order: all pages at once are in that order.
pub static PAGES: &[PageRow] = &[
    row::<disk::ErrorRecovery>(),
    row::<connection::DisconnectReconnect>(),
    row::<disk::Caching>(),
    row::<control::Control>(),
    row::<control::ControlExtension>(),
    row::<disk::ApplicationTag>(),
    row::<connection::ProtocolSpecificLogicalUnit>(),
    row::<connection::ProtocolSpecificPort>(),
    row::<power::PowerCondition>(),
    row::<exceptions::Exceptions>(),
    row::<provisioning::Provisioning>(),
    row::<drive::Capabilities>(),
];

/// Bytes of the longest page behind its header.
const BODY_BYTES_MAX: usize = 40;

const fn row<P: ModePage>() -> PageRow {
    assert!(size_of::<P>() <= BODY_BYTES_MAX);
    PageRow {
        page: P::PAGE,
        subpage: P::SUBPAGE,
        name: P::NAME,
        clause: P::CLAUSE,
        reach: P::REACH,
        needs: P::NEEDS,
        parameters: P::PARAMETERS,
        numbers: P::NUMBERS,
        length: size_of::<P>(),
        fixed: |cx, out| {
            out.put(&P::fixed(cx));
        },
    }
}

/// PS: the page can be saved.
const SAVEABLE: u8 = 0x80;
/// SPF: the page is in sub_page format.
const SUBPAGE_FORMAT: u8 = 0x40;
/// PAGE CODE.
const PAGE_CODE: u8 = 0x3f;

impl PageRow {
    /// Whether a unit has the page.
    #[must_use]
    pub fn is_of(&self, lu: &LogicalUnit) -> bool {
        self.reach.covers(lu.kind) && (self.needs == Needs::Nothing || lu.provisioning())
    }

    /// Writes the page.
    pub fn write(&self, cx: &Context<'_>, lu: &LogicalUnit, control: PageControl, out: &mut Writer<'_>) {
        let body = match control {
            PageControl::Current => self.body(cx, lu.mode()),
            PageControl::Default => self.body(cx, default_values(&lu.unit)),
            PageControl::Saved => self.body(cx, lu.saved_mode().unwrap_or_else(|| default_values(&lu.unit))),
            PageControl::Changeable => self.changeable(&lu.unit),
        };
        let saveable = !self.parameters.is_empty() && can_save(&lu.unit);
        self.header(if saveable { SAVEABLE } else { 0 }, out);
        out.bytes(&body[..self.length]);
    }

    /// SPC-4 7.5.7
    fn header(&self, saveable: u8, out: &mut Writer<'_>) {
        // Pages are shorter than 256 bytes.
        let length = self.length as u8;
        match self.subpage {
            0 => out.bytes(&[saveable | self.page, length]),
            subpage => out.bytes(&[saveable | SUBPAGE_FORMAT | self.page, subpage, 0, length]),
        };
    }

    fn header_bytes(&self) -> usize {
        if self.subpage == 0 { 2 } else { 4 }
    }

    /// The page for these values.
    fn body(&self, cx: &Context<'_>, values: ModeValues) -> [u8; BODY_BYTES_MAX] {
        let mut body = [0; BODY_BYTES_MAX];
        (self.fixed)(cx, &mut Writer::new(&mut body));
        self.put(values, &mut body);
        body
    }

    /// Ones where MODE SELECT may change it.
    fn changeable(&self, unit: &Unit) -> [u8; BODY_BYTES_MAX] {
        let mut body = [0; BODY_BYTES_MAX];
        let changeable = self.parameters.iter().filter(|parameter| (parameter.changeable)(unit));
        changeable.for_each(|parameter| body[parameter.byte] |= parameter.mask);
        let changeable = self.numbers.iter().filter(|number| (number.changeable)(unit));
        changeable.for_each(|number| body[number.place()].fill(0xff));
        body
    }

    /// Puts values into a page.
    fn put(&self, mut values: ModeValues, body: &mut [u8]) {
        for parameter in self.parameters {
            if *(parameter.value)(&mut values) {
                body[parameter.byte] |= parameter.mask;
            }
        }
        for number in self.numbers {
            body[number.place()].copy_from_slice(&(number.value)(&mut values).to_be_bytes());
        }
    }

    /// Takes values from a page.
    fn take(&self, unit: &Unit, body: &[u8], values: &mut ModeValues) {
        for parameter in self.parameters.iter().filter(|parameter| (parameter.changeable)(unit)) {
            *(parameter.value)(values) = body[parameter.byte] & parameter.mask != 0;
        }
        for number in self.numbers.iter().filter(|number| (number.changeable)(unit)) {
            let bytes = body[number.place()].iter();
            *(number.value)(values) = bytes.fold(0, |value, byte| value << 8 | u32::from(*byte));
        }
    }
}

/// Whether values can be saved: not for a unit that is forgotten with its process.
pub(crate) fn can_save(unit: &Unit) -> bool {
    unit.keep.outlives()
}

/// The name that a unit keeps saved values under.
pub(crate) const KEPT_AS: &str = "mode-pages";

/// Saved values as a unit keeps them: the pages that can be saved, of which only the parameters count.
pub(crate) fn to_keep(values: ModeValues) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in PAGES.iter().filter(|row| !row.parameters.is_empty()) {
        let mut page = [0; BODY_BYTES_MAX + 4];
        let mut out = Writer::new(&mut page);
        row.header(0, &mut out);
        row.put(values, &mut page[row.header_bytes()..]);
        bytes.extend(&page[..row.header_bytes() + row.length]);
    }
    bytes
}

/// The saved values that a unit has kept; `None` if it has none. Pages that are not known, or that are not of their
/// length, are passed over: another version may have saved them.
pub(crate) fn load(unit: &Unit) -> Option<ModeValues> {
    let kept = unit.keep.load(KEPT_AS)?;
    let mut values = default_values(unit);
    let mut rest = &kept[..];
    while let Some(found) = Found::first(rest) {
        if let (Some(row), Some(body)) = (found.row, rest.get(found.header..found.header + found.length))
            && body.len() == row.length
        {
            row.take(unit, body, &mut values);
        }
        rest = rest.get(found.header + found.length..).unwrap_or_default();
    }
    Some(values)
}

/// What the header of a page says.
struct Found {
    /// The page that it names.
    row: Option<&'static PageRow>,
    /// Bytes of the header.
    header: usize,
    /// Bytes that it says are behind it.
    length: usize,
}

impl Found {
    /// The header that `bytes` begin with; `None` if they are too few.
    fn first(bytes: &[u8]) -> Option<Self> {
        let (subpage, header, length) = match *bytes {
            [first, length, ..] if first & SUBPAGE_FORMAT == 0 => (0, 2, length.into()),
            [_, subpage, high, low, ..] => (subpage, 4, u16::from_be_bytes([high, low])),
            _ => return None,
        };
        let page = bytes[0] & PAGE_CODE;
        // Subpage 0 has the short header only.
        let matches = |row: &&PageRow| row.page == page && row.subpage == subpage && row.header_bytes() == header;
        Some(Self { row: PAGES.iter().find(matches), header, length: length.into() })
    }
}

#[cfg(test)]
#[path = "mode_tests.rs"]
mod tests;
