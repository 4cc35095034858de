//! READ CD and READ CD MSF: the user data of data sectors.

use super::block::{READS, TRANSFER_BYTES_MAX, within};
use super::disc;
use crate::context::Context;
use crate::plan::Plan;
use crate::sense::{Asc, Sense};
use crate::table::{Code, CommandType, Data, Effect, Gates, OpCode, Policy, Reach};
use lunar_core::step::Step;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What stops both.
const READS_DISC: Gates = Gates { reach: Reach::Optical, ..READS };
/// EXPECTED SECTOR TYPE.
const SECTOR_TYPE: u8 = 0x1c;
/// Byte 9: what of a sector is moved: sync, headers, user data, EDC and ECC, C2 errors.
const MAIN_CHANNEL: u8 = 0xfe;
/// Of these, user data: all that an image has.
const USER_DATA: u8 = 0x10;
/// Byte 10: which sub-channels are moved.
const SUB_CHANNEL: u8 = 0x07;

/// Offsets of the last bytes, which both have at the same place.
const MAIN_AT: usize = 9;
const SUB_AT: usize = 10;

/// So many blocks from `lba` on, if what is asked for of them is there.
fn read(cx: &Context<'_>, kind: u8, main: u8, sub: u8, lba: u64, count: u64) -> Result<Plan, Sense> {
    let lu = cx.disk()?;
    match (kind & SECTOR_TYPE) >> 2 {
        // Any; mode 1.
        0 | 2 => {}
        // Audio, mode 2 and its forms.
        1 | 3 | 4 | 5 => return Err(Sense::illegal(Asc::ILLEGAL_MODE_FOR_THIS_TRACK)),
        _ => return Err(Sense::bit_in_cdb(1, 4)),
    }
    if main & !USER_DATA != 0 {
        return Err(Sense::in_cdb(MAIN_AT));
    }
    if sub != 0 {
        return Err(Sense::bit_in_cdb(SUB_AT, 2));
    }
    let bytes = within(lu, lba, count)?;
    if main == 0 || bytes.len == 0 {
        return Ok(Plan::Done);
    }
    if bytes.len > TRANSFER_BYTES_MAX {
        return Err(Sense::in_cdb(offset_of!(ReadCd, count)));
    }
    Ok(Plan::Do(Step::Read { offset: bytes.offset, len: bytes.len }))
}

/// READ CD
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadCd {
    opcode: u8,
    kind: u8,
    lba: be::U32,
    count: [u8; 3],
    main: u8,
    sub: u8,
    control: u8,
}

impl CommandType for ReadCd {
    const POLICY: Policy = Policy {
        name: "READ CD",
        clause: "MMC-6 6.19",
        code: Code::of(OpCode::READ_CD),
        effect: Effect::Read,
        gates: READS_DISC,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_CD.0,
        kind: SECTOR_TYPE,
        lba: be::U32::MAX_VALUE,
        count: [0xff; 3],
        main: MAIN_CHANNEL,
        sub: SUB_CHANNEL,
        control: 0,
    };
    const DATA: Data<Self> = Data::In;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let [high, middle, low] = self.count;
        let count = u32::from_be_bytes([0, high, middle, low]);
        read(cx, self.kind, self.main, self.sub, self.lba.get().into(), count.into())
    }
}

/// READ CD MSF
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadCdMsf {
    opcode: u8,
    kind: u8,
    reserved: u8,
    start: [u8; 3],
    end: [u8; 3],
    main: u8,
    sub: u8,
    control: u8,
}

impl CommandType for ReadCdMsf {
    const POLICY: Policy = Policy {
        name: "READ CD MSF",
        clause: "MMC-6 6.20",
        code: Code::of(OpCode::READ_CD_MSF),
        effect: Effect::Read,
        gates: READS_DISC,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_CD_MSF.0,
        kind: SECTOR_TYPE,
        reserved: 0,
        start: [0xff; 3],
        end: [0xff; 3],
        main: MAIN_CHANNEL,
        sub: SUB_CHANNEL,
        control: 0,
    };
    const DATA: Data<Self> = Data::In;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let start = disc::lba(self.start).ok_or(Sense::in_cdb(offset_of!(Self, start)))?;
        // The first block that is not read.
        let end = disc::lba(self.end).ok_or(Sense::in_cdb(offset_of!(Self, end)))?;
        let count = end.checked_sub(start).ok_or(Sense::in_cdb(offset_of!(Self, end)))?;
        read(cx, self.kind, self.main, self.sub, start, count)
    }
}

#[cfg(test)]
#[path = "read_cd_tests.rs"]
mod tests;
