//! MODE SENSE and MODE SELECT.

use crate::context::Context;
use crate::lu::{Change, LogicalUnit};
use crate::mode::{self, PageControl, Selection};
use crate::plan::Plan;
use crate::sense::{Asc, Sense};
use crate::table::{
    Alua, Code, CommandType, Data, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Timeout,
};
use lunar_core::wire::{Cursor, Writer, be};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What stops both.
const PARAMETERS: Gates = Gates {
    reach: Reach::Disk,
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

fn device_specific(lu: &LogicalUnit) -> u8 {
    if lu.write_protected() { WP | DPOFUA } else { DPOFUA }
}

/// The pages that `page` and `subpage` name, in the form that `control` names.
fn pages(lu: &LogicalUnit, page: u8, subpage: u8, out: &mut Writer<'_>) -> Result<(), Sense> {
    let control = PageControl::of(page >> 6);
    if control == PageControl::Saved {
        return Err(Sense::illegal(Asc::SAVING_NOT_SUPPORTED));
    }
    let (page, mut found, mut known) = (page & PAGE_CODE, false, false);
    for row in mode::PAGES {
        let is_page = page == ALL_PAGES || page == row.page;
        known |= is_page;
        if is_page && (subpage == ALL_SUBPAGES || subpage == row.subpage) {
            found = true;
            row.write(lu, control, out);
        }
    }
    match (known, found) {
        (_, true) => Ok(()),
        (true, false) => Err(Sense::in_cdb(offset_of!(ModeSense6, subpage))),
        (false, false) => Err(Sense::bit_in_cdb(offset_of!(ModeSense6, page), 5)),
    }
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
        let descriptor = if self.flags & DBD == 0 { Descriptor::Short } else { Descriptor::None };
        cx.out.bytes(&[0, 0, device_specific(lu), descriptor.length()]);
        descriptor.write(lu, &mut cx.out);
        pages(lu, self.page, self.subpage, &mut cx.out)?;
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
        };
        let long = if descriptor == Descriptor::Long { LONG_LBA } else { 0 };
        cx.out.bytes(&[0, 0, 0, device_specific(lu), long, 0, 0, descriptor.length()]);
        descriptor.write(lu, &mut cx.out);
        pages(lu, self.page, self.subpage, &mut cx.out)?;
        let length = (cx.out.written() - 2) as u16;
        cx.out.patch(0, &length.to_be_bytes());
        Ok(Plan::Answer)
    }
}

const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

/// The parameter list behind its header: block descriptors that must say what is, then pages.
fn select(cx: &Context<'_>, list: &[u8], at: usize, length: usize, long: bool) -> Result<Plan, Sense> {
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
    let mut selection = Selection::new(lu, list, list.len() - cursor.rest().len());
    selection.apply()?;
    let (before, after) = (lu.mode(), selection.values);
    if before == after {
        return Ok(Plan::Done);
    }
    // What is cached goes to the medium when the cache is switched off (SBC-3 6.5.6).
    Ok(Plan::Change { flush: before.write_cache && !after.write_cache, change: Change::Mode(after) })
}

/// A list of the length that the CDB tells, pages in the standard's form.
fn whole(list: &[u8], length: usize, flags: u8) -> Result<bool, Sense> {
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
    // SP is refused: nothing is saved.
    const USAGE: Self = Self { opcode: OpCode::MODE_SELECT_6.0, flags: PF, reserved: [0; 2], length: 0xff, control: 0 };
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        if !whole(list, self.length.into(), self.flags)? {
            return Ok(Plan::Done);
        }
        let [_, _, _, descriptors] = *list.first_chunk().ok_or(SHORT)?;
        select(cx, list, 4, descriptors.into(), false)
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
    const USAGE: Self =
        Self { opcode: OpCode::MODE_SELECT_10.0, flags: PF, reserved: [0; 5], length: be::U16::MAX_VALUE, control: 0 };
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.get().into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        if !whole(list, self.length.get().into(), self.flags)? {
            return Ok(Plan::Done);
        }
        let [_, _, _, _, long, _, high, low] = *list.first_chunk().ok_or(SHORT)?;
        select(cx, list, 8, u16::from_be_bytes([high, low]).into(), long & LONG_LBA != 0)
    }
}
