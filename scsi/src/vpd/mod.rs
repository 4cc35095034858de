//! Vital product data: one type per page, one row per type (SPC-4 7.8, SBC-3 6.6).

mod block;
mod copy;
mod extended;
mod identification;
mod policy;

use crate::cmd::inquiry::peripheral;
use crate::context::Context;
use crate::lu::LogicalUnit;
use crate::nexus::Addressee;
use crate::table::Reach;
use lunar_core::wire::Writer;

pub(crate) use identification::{DesignatorHeader, PROTOCOL_ISCSI, is_named, naa_designator};

/// A page of vital product data.
pub trait VpdPage {
    /// PAGE CODE.
    const PAGE: u8;
    /// Its name in the standard.
    const NAME: &'static str;
    /// Where the standard has it.
    const CLAUSE: &'static str;
    /// Which units have it.
    const REACH: Reach;

    /// Writes what follows the four bytes of the header.
    fn write(cx: &Context<'_>, lu: &LogicalUnit, out: &mut Writer<'_>);
}

/// A page in the table.
pub struct PageRow {
    /// PAGE CODE.
    pub page: u8,
    /// Its name in the standard.
    pub name: &'static str,
    /// Where the standard has it.
    pub clause: &'static str,
    /// Which units have it.
    pub reach: Reach,
    write: fn(&Context<'_>, &LogicalUnit, &mut Writer<'_>),
}

const fn row<P: VpdPage>() -> PageRow {
    PageRow { page: P::PAGE, name: P::NAME, clause: P::CLAUSE, reach: P::REACH, write: P::write }
}

/// Every page, in ascending order, as page 00h lists them.
pub static PAGES: &[PageRow] = &[
    row::<Supported>(),
    row::<identification::SerialNumber>(),
    row::<identification::DeviceIdentification>(),
    row::<extended::Extended>(),
    row::<policy::ModePagePolicy>(),
    row::<identification::ScsiPorts>(),
    row::<copy::ThirdPartyCopy>(),
    row::<block::Limits>(),
    row::<block::Characteristics>(),
    row::<block::Provisioning>(),
];

/// Writes a page to `cx.out`; `None` if there is none.
pub(crate) fn write(cx: &mut Context<'_>, page: u8) -> Option<()> {
    let Addressee::Disk(itl) = cx.addressee else { return None };
    let row = PAGES.iter().find(|row| row.page == page && row.reach.covers(itl.lu.kind))?;
    let mut out = std::mem::replace(&mut cx.out, Writer::new(&mut []));
    out.bytes(&[peripheral(itl), page, 0, 0]);
    (row.write)(cx, &itl.lu, &mut out);
    // Pages are far shorter than 64 KiB.
    let length = (out.written() - 4) as u16;
    out.patch(2, &length.to_be_bytes());
    cx.out = out;
    Some(())
}

/// Supported VPD pages.
struct Supported;

impl VpdPage for Supported {
    const PAGE: u8 = 0x00;
    const NAME: &'static str = "Supported VPD Pages";
    const CLAUSE: &'static str = "SPC-4 7.8.16";
    const REACH: Reach = Reach::Unit;

    fn write(_cx: &Context<'_>, lu: &LogicalUnit, out: &mut Writer<'_>) {
        PAGES.iter().filter(|row| row.reach.covers(lu.kind)).for_each(|row| {
            out.bytes(&[row.page]);
        });
    }
}

#[cfg(test)]
#[path = "vpd_tests.rs"]
mod tests;
