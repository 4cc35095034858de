//! Mode pages: how MODE SENSE writes them, how MODE SELECT and saved values are read (SPC-4 7.5).

mod select;

use crate::change::ModeValues;
use crate::context::Context;
use crate::lu::Emulated;
use crate::page::{MODE_BODY_BYTES_MAX, ModeRow};
use lunar_core::unit::Unit;
use lunar_core::wire::Writer;

pub(crate) use select::Selection;

/// PC: the values that MODE SENSE requests (SPC-4 6.13.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageControl {
    /// Current values.
    Current,
    /// Changeable values: ones where MODE SELECT may change the page.
    Changeable,
    /// Default values.
    Default,
    /// Saved values; the default values if none were saved.
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

/// PS: the page can be saved.
const SAVEABLE: u8 = 0x80;
/// SPF: the page is in sub_page format.
const SUBPAGE_FORMAT: u8 = 0x40;
/// PAGE CODE.
const PAGE_CODE: u8 = 0x3f;
/// Bytes of the longer page header.
const HEADER_BYTES_MAX: usize = 4;

impl ModeRow {
    /// Whether a logical unit of a device type that lists the page has it.
    #[must_use]
    pub fn is_of(&self, lu: &Emulated) -> bool {
        self.needs.is_none_or(|capability| (capability.is_met)(lu))
    }

    /// Writes the page.
    pub fn write(&self, cx: &Context<'_>, lu: &Emulated, control: PageControl, out: &mut Writer<'_>) {
        let body = match control {
            PageControl::Current => self.body(cx, lu.mode()),
            PageControl::Default => self.body(cx, ModeValues::default_of(&lu.unit)),
            PageControl::Saved => self.body(cx, lu.saved_mode().unwrap_or_else(|| ModeValues::default_of(&lu.unit))),
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
        if self.subpage == 0 { 2 } else { HEADER_BYTES_MAX }
    }

    /// The page with these values.
    fn body(&self, cx: &Context<'_>, values: ModeValues) -> [u8; MODE_BODY_BYTES_MAX] {
        let mut body = [0; MODE_BODY_BYTES_MAX];
        (self.fixed)(cx, &mut Writer::new(&mut body));
        self.put(values, &mut body);
        body
    }

    /// Ones where MODE SELECT may change the page.
    fn changeable(&self, unit: &Unit) -> [u8; MODE_BODY_BYTES_MAX] {
        let mut body = [0; MODE_BODY_BYTES_MAX];
        let changeable = self.parameters.iter().filter(|parameter| (parameter.changeable)(unit));
        changeable.for_each(|parameter| body[parameter.byte] |= parameter.mask);
        let changeable = self.numbers.iter().filter(|number| (number.changeable)(unit));
        changeable.for_each(|number| body[number.place()].fill(0xff));
        body
    }

    /// Writes the values into a page.
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

    /// Reads the changeable values from a page.
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

/// Whether values can be saved: not for a unit whose metadata is lost with the process.
pub(crate) fn can_save(unit: &Unit) -> bool {
    unit.metadata.is_durable()
}

/// The name under which a unit stores saved values.
pub(crate) const KEPT_AS: &str = "mode-pages";

/// Saved values as a unit stores them: the pages of `rows` that can be saved. Only their parameters and numbers count.
pub(crate) fn to_keep(rows: &[ModeRow], values: ModeValues) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in rows.iter().filter(|row| !row.parameters.is_empty()) {
        let mut page = [0; MODE_BODY_BYTES_MAX + HEADER_BYTES_MAX];
        let mut out = Writer::new(&mut page);
        row.header(0, &mut out);
        row.put(values, &mut page[row.header_bytes()..]);
        bytes.extend(&page[..row.header_bytes() + row.length]);
    }
    bytes
}

/// The saved values that a unit has stored; `None` if it has none. Unknown pages and pages of another length are
/// skipped: another version may have saved them.
pub(crate) fn load(rows: &'static [ModeRow], unit: &Unit) -> Option<ModeValues> {
    let kept = unit.metadata.load(KEPT_AS)?;
    let mut values = ModeValues::default_of(unit);
    let mut rest = &kept[..];
    while let Some(found) = Found::first(rows, rest) {
        if let (Some(row), Some(body)) = (found.row, rest.get(found.header..found.header + found.length))
            && body.len() == row.length
        {
            row.take(unit, body, &mut values);
        }
        rest = rest.get(found.header + found.length..).unwrap_or_default();
    }
    Some(values)
}

/// The header of a page.
struct Found {
    /// The page that the header names, if it is known.
    row: Option<&'static ModeRow>,
    /// Bytes of the header.
    header: usize,
    /// PAGE LENGTH: bytes after the header.
    length: usize,
}

impl Found {
    /// The header at the start of `bytes`; `None` if they are too few.
    fn first(rows: &'static [ModeRow], bytes: &[u8]) -> Option<Self> {
        let (subpage, header, length) = match *bytes {
            [first, length, ..] if first & SUBPAGE_FORMAT == 0 => (0, 2, length.into()),
            [_, subpage, high, low, ..] => (subpage, HEADER_BYTES_MAX, u16::from_be_bytes([high, low])),
            _ => return None,
        };
        let page = bytes[0] & PAGE_CODE;
        // Subpage 0 has the short header only.
        let matches = |row: &&ModeRow| row.page == page && row.subpage == subpage && row.header_bytes() == header;
        Some(Self { row: rows.iter().find(matches), header, length: length.into() })
    }
}

#[cfg(test)]
#[path = "mode_tests.rs"]
mod tests;
