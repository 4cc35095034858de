//! MODE SENSE and MODE SELECT.

use crate::change::Change;
use crate::context::Context;
use crate::lu::Emulated;
use crate::page::ModeRow;
use crate::pages::mode::{self, PageControl, Selection};
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::wire::{Cursor, Writer, be};
use lunar_unit::Record;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission of MODE SENSE.
const PARAMETERS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Standby,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// Admission of MODE SELECT.
const SELECTS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::DeviceThenAttention(Asc::MODE_PARAMETERS_CHANGED),
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Standby,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// DBD, byte 1 of MODE SENSE: no block descriptors.
const DBD: u8 = 0x08;
/// LLBAA, byte 1 of MODE SENSE(10): long block descriptors are accepted.
const LLBAA: u8 = 0x10;
/// PF, byte 1 of MODE SELECT: the pages have the format of the standard.
const PF: u8 = 0x10;
/// SP, byte 1 of MODE SELECT: the values are saved.
const SP: u8 = 0x01;
/// LONGLBA in the header of MODE SENSE(10) and MODE SELECT(10).
const LONG_LBA: u8 = 0x01;

/// Short LBA mode parameter block descriptor (SBC-3 6.5.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ShortBlockDescriptor {
    blocks: be::U32,
    block_length: be::U32,
}

/// Long LBA mode parameter block descriptor (SBC-3 6.5.2.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LongBlockDescriptor {
    blocks: be::U64,
    reserved: [u8; 4],
    block_length: be::U32,
}

/// The format of the block descriptor in an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Descriptor {
    None,
    Short,
    Long,
}

impl Descriptor {
    /// This one, if logical units of the device type have block descriptors.
    fn of(self, cx: &Context<'_>) -> Self {
        if cx.device.mode_header.block_descriptor.is_some() { self } else { Self::None }
    }

    fn length(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Short => size_of::<ShortBlockDescriptor>() as u8,
            Self::Long => size_of::<LongBlockDescriptor>() as u8,
        }
    }

    fn write(self, (blocks, block_length): (u64, u32), out: &mut Writer<'_>) {
        let block_length = block_length.into();
        match self {
            Self::None => {}
            Self::Short => {
                let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).into();
                out.put(&ShortBlockDescriptor { blocks, block_length });
            }
            Self::Long => {
                out.put(&LongBlockDescriptor { blocks: blocks.into(), reserved: [0; 4], block_length });
            }
        }
    }
}

/// Number of blocks and block length of the addressed logical unit; zeroes if its device type has no block descriptors.
fn blocks(cx: &Context<'_>) -> Result<(u64, u32), Sense> {
    let lu = cx.emulated()?;
    Ok(cx.device.mode_header.block_descriptor.map_or((0, 0), |blocks| blocks(lu)))
}

/// Writes the pages of a PAGE CODE with PC (`page`) and a SUBPAGE CODE.
fn pages(cx: &mut Context<'_>, lu: &Emulated, page: u8, subpage: u8) -> Result<(), Sense> {
    let control = PageControl::of(page >> 6);
    if control == PageControl::Saved && !mode::can_save(&lu.unit) {
        return Err(Sense::illegal(Asc::SAVING_NOT_SUPPORTED));
    }
    let page = page & PAGE_CODE;
    let is_page = |row: &&ModeRow| row.is_of(lu) && (page == ALL_PAGES || page == row.page);
    let is_subpage = |row: &&ModeRow| subpage == ALL_SUBPAGES || subpage == row.subpage;
    let known = cx.device.mode.iter().any(|row| is_page(&row));
    let mut rows = cx.device.mode.iter().filter(is_page).filter(is_subpage).peekable();
    if !known {
        return Err(Sense::bit_in_cdb(offset_of!(ModeSense6, page), 5));
    }
    // With PAGE CODE 3Fh, only subpages 00h and FFh are valid (SPC-4 6.13.1).
    if rows.peek().is_none() || page == ALL_PAGES && !matches!(subpage, 0 | ALL_SUBPAGES) {
        return Err(Sense::in_cdb(offset_of!(ModeSense6, subpage)));
    }
    let mut out = std::mem::replace(&mut cx.out, Writer::new(&mut []));
    rows.for_each(|row| row.write(cx, lu, control, &mut out));
    cx.out = out;
    Ok(())
}

/// PAGE CODE; the two bits above it are PC.
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
        admission: PARAMETERS,
    };
    const USAGE: Self =
        Self { opcode: OpCode::MODE_SENSE_6.0, flags: DBD, page: 0xff, subpage: 0xff, allocation: 0xff, control: 0 };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let descriptor = if self.flags & DBD == 0 { Descriptor::Short } else { Descriptor::None }.of(cx);
        cx.out.bytes(&[0, 0, (cx.device.mode_header.device_specific)(cx.itl()?), descriptor.length()]);
        descriptor.write(blocks(cx)?, &mut cx.out);
        pages(cx, lu, self.page, self.subpage)?;
        // All pages together are shorter than 256 bytes, as a test checks.
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
        admission: PARAMETERS,
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
        let lu = cx.emulated()?;
        let descriptor = match self.flags & (DBD | LLBAA) {
            0 => Descriptor::Short,
            LLBAA => Descriptor::Long,
            _ => Descriptor::None,
        }
        .of(cx);
        let long = if descriptor == Descriptor::Long { LONG_LBA } else { 0 };
        cx.out.bytes(&[0, 0, 0, (cx.device.mode_header.device_specific)(cx.itl()?), long, 0, 0, descriptor.length()]);
        descriptor.write(blocks(cx)?, &mut cx.out);
        pages(cx, lu, self.page, self.subpage)?;
        let length = (cx.out.written() - 2) as u16;
        cx.out.patch(0, &length.to_be_bytes());
        Ok(Plan::Answer)
    }
}

const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

/// Plans the parameter list after its header: a block descriptor, which must not change the blocks, and pages.
fn select(cx: &Context<'_>, list: &[u8], at: usize, length: usize, long: bool, save: bool) -> Result<Plan, Sense> {
    let lu = cx.emulated()?;
    let mut cursor = Cursor::new(list.get(at..).ok_or(SHORT)?);
    let (blocks, block_length) = match (length, long) {
        (0, _) => (0, 0),
        (8, false) => {
            let descriptor: &ShortBlockDescriptor = cursor.take().map_err(|_| SHORT)?;
            // The fifth byte is reserved: BLOCK LENGTH has 24 bits.
            (u64::from(descriptor.blocks.get()), descriptor.block_length.get() & 0x00ff_ffff)
        }
        (16, true) => {
            let descriptor: &LongBlockDescriptor = cursor.take().map_err(|_| SHORT)?;
            (descriptor.blocks.get(), descriptor.block_length.get())
        }
        _ => return Err(Sense::in_list(at - 1)),
    };
    let own = self::blocks(cx)?;
    let keeps_blocks = blocks == 0 || blocks == own.0 || !long && blocks >= u64::from(u32::MAX);
    if !keeps_blocks {
        return Err(Sense::in_list(at));
    }
    if block_length != 0 && block_length != own.1 {
        return Err(Sense::in_list(at + if long { 12 } else { 5 }));
    }
    let mut selection = Selection::new(cx, lu, list, list.len() - cursor.rest().len());
    selection.apply()?;
    let (before, after) = (lu.mode(), selection.values);
    let save = save && lu.saved_mode() != Some(after);
    if before == after && !save {
        return Ok(Plan::Done);
    }
    // Switching the cache off writes cached data to the medium (SBC-4 6.5.6).
    let flush = before.write_cache && !after.write_cache;
    let record = save.then(|| Box::new(Record::required(mode::KEPT_AS, mode::to_keep(cx.device.mode, after))));
    Ok(Plan::Change { flush, record, change: Change::Mode(after) })
}

/// MEDIUM TYPE must be zero (SBC-4 6.5.1). MODE DATA LENGTH and WP are ignored (SPC-4 7.5.5).
fn medium_type(value: u8, at: usize) -> Result<(), Sense> {
    if value == 0 { Ok(()) } else { Err(Sense::in_list(at)) }
}

/// Checks SP, PF and the length of a parameter list. Returns whether there is a list.
fn whole(cx: &Context<'_>, list: &[u8], length: usize, flags: u8) -> Result<bool, Sense> {
    if flags & SP != 0 && !mode::can_save(&cx.emulated()?.unit) {
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
        admission: SELECTS,
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
        admission: SELECTS,
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
