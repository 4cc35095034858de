//! UNMAP and WRITE SAME.

use super::block::{
    Block10, Block16, Blocks, GROUP, LONG_WRITES, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BYTES_MAX,
    within,
};
use crate::context::Context;
use crate::plan::Plan;
use crate::sense::{Asc, Sense};
use crate::table::{Alua, Code, CommandType, Data, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Timeout};
use lunar_core::step::Step;
use lunar_core::wire::{Cursor, be};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// UNMAP
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Unmap {
    opcode: u8,
    anchor: u8,
    reserved: [u8; 4],
    group: u8,
    length: be::U16,
    control: u8,
}

/// The parameter list's header (SBC-3 5.28.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UnmapHeader {
    data_length: be::U16,
    descriptors_length: be::U16,
    reserved: [u8; 4],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UnmapDescriptor {
    lba: be::U64,
    count: be::U32,
    reserved: [u8; 4],
}

impl CommandType for Unmap {
    const POLICY: Policy = Policy {
        name: "UNMAP",
        clause: "SBC-3 5.28",
        code: Code::of(OpCode::UNMAP),
        effect: Effect::Write,
        gates: Gates {
            reach: Reach::Disk,
            needs: Needs::Provisioning,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Stops,
            write_protect: Gate::Stops,
            timeout: Timeout::Long,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::UNMAP.0,
        // ANCHOR is refused: no unit anchors blocks (ANC_SUP is zero).
        anchor: 0,
        reserved: [0; 4],
        group: GROUP,
        length: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.get().into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        if self.length.get() == 0 {
            return Ok(Plan::Done);
        }
        if list.len() < usize::from(self.length.get()) {
            return Err(SHORT);
        }
        let mut cursor = Cursor::new(list);
        let header: &UnmapHeader = cursor.take().map_err(|_| SHORT)?;
        let length = usize::from(header.descriptors_length.get());
        let descriptors = cursor.rest().get(..length).ok_or(SHORT)?;
        // A length that is no multiple of a descriptor's is cut to one (SBC-3 5.28.2).
        let whole = descriptors.len() - descriptors.len() % size_of::<UnmapDescriptor>();
        let descriptors = <[UnmapDescriptor]>::ref_from_bytes(&descriptors[..whole]).map_err(|_| SHORT)?;
        if descriptors.len() > UNMAP_DESCRIPTORS_MAX {
            return Err(Sense::in_list(offset_of!(UnmapHeader, descriptors_length)));
        }
        let ranges = ranges(cx, descriptors)?;
        Ok(if ranges.is_empty() { Plan::Done } else { Plan::Do(Step::Unmap(ranges)) })
    }
}

/// The descriptors as bytes of the unit; those of no blocks left out.
fn ranges(cx: &Context<'_>, descriptors: &[UnmapDescriptor]) -> Result<Vec<(u64, u64)>, Sense> {
    let lu = cx.disk()?;
    let mut ranges = Vec::new();
    let mut blocks = 0;
    for (at, descriptor) in descriptors.iter().enumerate() {
        let bytes = within(lu, descriptor.lba.get(), descriptor.count.get().into())?;
        blocks += u64::from(descriptor.count.get());
        if blocks > UNMAP_BLOCKS_MAX {
            let at = size_of::<UnmapHeader>() + at * size_of::<UnmapDescriptor>();
            return Err(Sense::in_list(at + offset_of!(UnmapDescriptor, count)));
        }
        if bytes.len > 0 {
            ranges.push((bytes.offset, bytes.len));
        }
    }
    Ok(ranges)
}

/// WRITE SAME(10)
pub type WriteSame10 = Block10<{ OpCode::WRITE_SAME_10.0 }>;
/// WRITE SAME(16)
pub type WriteSame16 = Block16<{ OpCode::WRITE_SAME_16.0 }>;

/// Byte 1: the blocks may be unmapped instead.
const UNMAP: u8 = 0x08;
/// Byte 1, WRITE SAME(16): no data, the blocks are zeroed.
const NO_DATA: u8 = 0x01;

/// WRITE SAME of any layout. `pattern` is the block, or empty for zeroes. A length of zero means to the end (WSNZ is zero).
fn write_same<C: Blocks>(cx: &Context<'_>, cdb: &C, no_data: bool, pattern: &[u8]) -> Result<Plan, Sense> {
    let lu = cx.disk()?;
    let unmap = cdb.flags() & UNMAP != 0;
    if unmap && !lu.provisioning() {
        return Err(Sense::bit_in_cdb(1, 3));
    }
    // Initiators that unmap so may leave the block out; without UNMAP a block that does not come is no zeroes.
    if pattern.is_empty() && !unmap && !no_data {
        return Err(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    let named = within(lu, cdb.lba(), cdb.count())?;
    let offset = named.offset;
    let len = if cdb.count() == 0 { lu.unit.geometry.bytes() - offset } else { named.len };
    if len > WRITE_SAME_BYTES_MAX {
        return Err(Sense::in_cdb(C::LENGTH_AT));
    }
    if len == 0 {
        return Ok(Plan::Done);
    }
    let is_zero = pattern.iter().all(|byte| *byte == 0);
    let pattern = if is_zero { Vec::new() } else { pattern.to_vec() };
    let fill = Step::Fill { offset, len, pattern, unmap };
    // A fill leaves durability to a flush.
    Ok(if lu.mode().write_cache { Plan::Do(fill) } else { Plan::Both(fill, Step::Flush) })
}

impl CommandType for WriteSame10 {
    const POLICY: Policy = Policy {
        name: "WRITE SAME(10)",
        clause: "SBC-3 5.43",
        code: Code::of(Self::OP),
        effect: Effect::Write,
        gates: LONG_WRITES,
    };
    const USAGE: Self = Self::usage(UNMAP);
    const DATA: Data<Self> = Data::Block(|_| true);

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        write_same(cx, self, false, list)
    }
}

impl CommandType for WriteSame16 {
    const POLICY: Policy = Policy {
        name: "WRITE SAME(16)",
        clause: "SBC-3 5.44",
        code: Code::of(Self::OP),
        effect: Effect::Write,
        gates: LONG_WRITES,
    };
    const USAGE: Self = Self::usage(UNMAP | NO_DATA);
    const DATA: Data<Self> = Data::Block(|cdb| cdb.flags & NO_DATA == 0);

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        write_same(cx, self, self.flags & NO_DATA != 0, list)
    }
}
