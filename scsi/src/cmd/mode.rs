//! MODE SENSE and MODE SELECT.

use crate::context::Context;
use crate::lu::{Change, LogicalUnit};
use crate::mode::{self, PageControl, PageRow, Selection};
use crate::nexus::ItlNexus;
use crate::plan::{Kept, Plan};
use crate::sense::{Asc, Sense};
use crate::table::{
    Alua, Code, CommandType, Data, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Timeout,
};
use lunar_core::wire::{Cursor, Writer, be};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What stops both.
const PARAMETERS: Gates = Gates {
    reach: Reach::Unit,
    needs: Needs::Nothing,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Standby,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// Byte 1 of MODE SENSE: no block descriptors.
const DBD: u8 = 0x08;
/// Byte 1 of MODE SENSE(10): long block descriptors are welcome.
const LLBAA: u8 = 0x10;
/// Byte 1 of MODE SELECT: pages are as in the standard.
const PF: u8 = 0x10;
/// Byte 1 of MODE SELECT: the values are saved, too.
const SP: u8 = 0x01;
/// DEVICE-SPECIFIC PARAMETER: write-protected.
const WP: u8 = 0x80;
/// DEVICE-SPECIFIC PARAMETER: DPO and FUA are evaluated.
const DPOFUA: u8 = 0x10;
/// LONGLBA in the header of MODE SENSE(10) and MODE SELECT(10).
const LONG_LBA: u8 = 0x01;

/// SBC-3 6.5.2.2
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ShortBlockDescriptor {
    blocks: be::U32,
    block_length: be::U32,
}

/// SBC-3 6.5.2.3
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongBlockDescriptor {
    blocks: be::U64,
    reserved: [u8; 4],
    block_length: be::U32,
}

/// Which block descriptor an answer has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Descriptor {
    None,
    Short,
    Long,
}

impl Descriptor {
    /// This one, where the unit has any.
    fn of(self, lu: &LogicalUnit) -> Self {
        if Reach::Disk.covers(lu.kind) { self } else { Self::None }
    }

    fn length(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Short => size_of::<ShortBlockDescriptor>() as u8,
            Self::Long => size_of::<LongBlockDescriptor>() as u8,
        }
    }

    fn write(self, lu: &LogicalUnit, out: &mut Writer<'_>) {
        let geometry = lu.unit.geometry;
        let block_length = geometry.block_size.into();
        match self {
            Self::None => {}
            Self::Short => {
                let blocks = u32::try_from(geometry.blocks).unwrap_or(u32::MAX).into();
                out.put(&ShortBlockDescriptor { blocks, block_length });
            }
            Self::Long => {
                out.put(&LongBlockDescriptor { blocks: geometry.blocks.into(), reserved: [0; 4], block_length });
            }
        }
    }
}

/// A drive has nothing to tell here, and no block descriptors (MMC-6 7.2).
fn device_specific(lu: &LogicalUnit, itl: &ItlNexus) -> u8 {
    if !Reach::Disk.covers(lu.kind) {
        return 0;
    }
    if itl.write_protected() { WP | DPOFUA } else { DPOFUA }
}

/// Writes the pages that `page` and `subpage` name, in the form that PC names.
fn pages(cx: &mut Context<'_>, lu: &LogicalUnit, page: u8, subpage: u8) -> Result<(), Sense> {
    let control = PageControl::of(page >> 6);
    if control == PageControl::Saved && !mode::can_save(&lu.unit) {
        return Err(Sense::illegal(Asc::SAVING_NOT_SUPPORTED));
    }
    let page = page & PAGE_CODE;
    let is_page = |row: &&PageRow| row.is_of(lu) && (page == ALL_PAGES || page == row.page);
    let is_subpage = |row: &&PageRow| subpage == ALL_SUBPAGES || subpage == row.subpage;
    let known = mode::PAGES.iter().any(|row| is_page(&row));
    let mut rows = mode::PAGES.iter().filter(is_page).filter(is_subpage).peekable();
    if !known {
        return Err(Sense::bit_in_cdb(offset_of!(ModeSense6, page), 5));
    }
    // All pages are asked for without their subpages, or with all of them (SPC-4 6.13.1).
    if rows.peek().is_none() || page == ALL_PAGES && !matches!(subpage, 0 | ALL_SUBPAGES) {
        return Err(Sense::in_cdb(offset_of!(ModeSense6, subpage)));
    }
    let mut out = std::mem::replace(&mut cx.out, Writer::new(&mut []));
    rows.for_each(|row| row.write(cx, lu, control, &mut out));
    cx.out = out;
    Ok(())
}

/// PAGE CODE; PC is in the two bits above.
const PAGE_CODE: u8 = 0x3f;
/// PAGE CODE: all pages.
const ALL_PAGES: u8 = 0x3f;
/// SUBPAGE CODE: all subpages.
const ALL_SUBPAGES: u8 = 0xff;

/// MODE SENSE(6)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ModeSense6 {
    opcode: u8,
    flags: u8,
    page: u8,
    subpage: u8,
    allocation: u8,
    control: u8,
}

impl CommandType for ModeSense6 {
    const POLICY: Policy = Policy {
        name: "MODE SENSE(6)",
        clause: "SPC-4 6.13",
        code: Code::of(OpCode::MODE_SENSE_6),
        effect: Effect::None,
        gates: PARAMETERS,
    };
    const USAGE: Self =
        Self { opcode: OpCode::MODE_SENSE_6.0, flags: DBD, page: 0xff, subpage: 0xff, allocation: 0xff, control: 0 };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.disk()?;
        let descriptor = if self.flags & DBD == 0 { Descriptor::Short } else { Descriptor::None }.of(lu);
        cx.out.bytes(&[0, 0, device_specific(lu, cx.itl()?), descriptor.length()]);
        descriptor.write(lu, &mut cx.out);
        pages(cx, lu, self.page, self.subpage)?;
        // The pages are far shorter than 256 bytes, which a test holds.
        let length = (cx.out.written() - 1) as u8;
        cx.out.patch(0, &[length]);
        Ok(Plan::Answer)
    }
}

/// MODE SENSE(10)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ModeSense10 {
    opcode: u8,
    flags: u8,
    page: u8,
    subpage: u8,
    reserved: [u8; 3],
    allocation: be::U16,
    control: u8,
}

impl CommandType for ModeSense10 {
    const POLICY: Policy = Policy {
        name: "MODE SENSE(10)",
        clause: "SPC-4 6.14",
        code: Code::of(OpCode::MODE_SENSE_10),
        effect: Effect::None,
        gates: PARAMETERS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::MODE_SENSE_10.0,
        flags: LLBAA | DBD,
        page: 0xff,
        subpage: 0xff,
        reserved: [0; 3],
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.disk()?;
        let descriptor = match self.flags & (DBD | LLBAA) {
            0 => Descriptor::Short,
            LLBAA => Descriptor::Long,
            _ => Descriptor::None,
        }
        .of(lu);
        let long = if descriptor == Descriptor::Long { LONG_LBA } else { 0 };
        cx.out.bytes(&[0, 0, 0, device_specific(lu, cx.itl()?), long, 0, 0, descriptor.length()]);
        descriptor.write(lu, &mut cx.out);
        pages(cx, lu, self.page, self.subpage)?;
        let length = (cx.out.written() - 2) as u16;
        cx.out.patch(0, &length.to_be_bytes());
        Ok(Plan::Answer)
    }
}

const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

/// The parameter list behind its header: block descriptors that must say what is, then pages.
fn select(cx: &Context<'_>, list: &[u8], at: usize, length: usize, long: bool, save: bool) -> Result<Plan, Sense> {
    let lu = cx.disk()?;
    let mut cursor = Cursor::new(list.get(at..).ok_or(SHORT)?);
    let (blocks, block_length) = match (length, long) {
        (0, _) => (0, 0),
        (8, false) => {
            let descriptor: &ShortBlockDescriptor = cursor.take().map_err(|_| SHORT)?;
            // The fifth byte is reserved: the length has 24 bits.
            (u64::from(descriptor.blocks.get()), descriptor.block_length.get() & 0x00ff_ffff)
        }
        (16, true) => {
            let descriptor: &LongBlockDescriptor = cursor.take().map_err(|_| SHORT)?;
            (descriptor.blocks.get(), descriptor.block_length.get())
        }
        _ => return Err(Sense::in_list(at - 1)),
    };
    let geometry = lu.unit.geometry;
    let keeps_blocks = blocks == 0 || blocks == geometry.blocks || !long && blocks >= u64::from(u32::MAX);
    if !keeps_blocks {
        return Err(Sense::in_list(at));
    }
    if block_length != 0 && block_length != geometry.block_size {
        return Err(Sense::in_list(at + if long { 12 } else { 5 }));
    }
    let mut selection = Selection::new(cx, lu, list, list.len() - cursor.rest().len());
    selection.apply()?;
    let (before, after) = (lu.mode(), selection.values);
    let save = save && lu.saved_mode() != Some(after);
    if before == after && !save {
        return Ok(Plan::Done);
    }
    // What is cached goes to the medium when the cache is switched off (SBC-4 6.5.6).
    let flush = before.write_cache && !after.write_cache;
    let keep = save.then(|| Box::new(Kept { name: mode::KEPT_AS, bytes: mode::to_keep(after) }));
    Ok(Plan::Change { flush, keep, change: Change::Mode { values: after, save } })
}

/// MEDIUM TYPE is zero (SBC-4 6.5.1); MODE DATA LENGTH and WP are not looked at (SPC-4 7.5.5).
fn medium_type(value: u8, at: usize) -> Result<(), Sense> {
    if value == 0 { Ok(()) } else { Err(Sense::in_list(at)) }
}

/// A list of the length that the CDB tells, pages in the standard's form.
fn whole(cx: &Context<'_>, list: &[u8], length: usize, flags: u8) -> Result<bool, Sense> {
    if flags & SP != 0 && !mode::can_save(&cx.disk()?.unit) {
        return Err(Sense::bit_in_cdb(1, 0));
    }
    if length == 0 {
        return Ok(false);
    }
    if flags & PF == 0 {
        return Err(Sense::bit_in_cdb(1, 4));
    }
    if list.len() < length { Err(SHORT) } else { Ok(true) }
}

/// MODE SELECT(6)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ModeSelect6 {
    opcode: u8,
    flags: u8,
    reserved: [u8; 2],
    length: u8,
    control: u8,
}

impl CommandType for ModeSelect6 {
    const POLICY: Policy = Policy {
        name: "MODE SELECT(6)",
        clause: "SPC-4 6.11",
        code: Code::of(OpCode::MODE_SELECT_6),
        effect: Effect::None,
        gates: PARAMETERS,
    };
    const USAGE: Self =
        Self { opcode: OpCode::MODE_SELECT_6.0, flags: PF | SP, reserved: [0; 2], length: 0xff, control: 0 };
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        if !whole(cx, list, self.length.into(), self.flags)? {
            return Ok(Plan::Done);
        }
        let [_, medium, _, descriptors] = *list.first_chunk().ok_or(SHORT)?;
        medium_type(medium, 1)?;
        select(cx, list, 4, descriptors.into(), false, self.flags & SP != 0)
    }
}

/// MODE SELECT(10)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ModeSelect10 {
    opcode: u8,
    flags: u8,
    reserved: [u8; 5],
    length: be::U16,
    control: u8,
}

impl CommandType for ModeSelect10 {
    const POLICY: Policy = Policy {
        name: "MODE SELECT(10)",
        clause: "SPC-4 6.12",
        code: Code::of(OpCode::MODE_SELECT_10),
        effect: Effect::None,
        gates: PARAMETERS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::MODE_SELECT_10.0,
        flags: PF | SP,
        reserved: [0; 5],
        length: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.get().into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        if !whole(cx, list, self.length.get().into(), self.flags)? {
            return Ok(Plan::Done);
        }
        let [_, _, medium, _, long, _, high, low] = *list.first_chunk().ok_or(SHORT)?;
        medium_type(medium, 2)?;
        let descriptors = u16::from_be_bytes([high, low]).into();
        select(cx, list, 8, descriptors, long & LONG_LBA != 0, self.flags & SP != 0)
    }
}
