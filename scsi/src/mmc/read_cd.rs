//! READ CD and READ CD MSF: the user data of data sectors.

use super::disc;
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Code, Effect, OpCode, Policy};
use crate::row::{CommandType, Data};
use crate::sbc::block_range::{READS, within};
use crate::sbc::limits::TRANSFER_BYTES_MAX;
use crate::sense::{Asc, Sense};
use lunar_core::step::Step;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// EXPECTED SECTOR TYPE.
const SECTOR_TYPE: u8 = 0x1c;
/// Byte 9: the parts of a sector that are transferred: sync, headers, user data, EDC and ECC, C2 errors.
const MAIN_CHANNEL: u8 = 0xfe;
/// User data: the only part that an image contains.
const USER_DATA: u8 = 0x10;
/// Byte 10: the sub-channels that are transferred.
const SUB_CHANNEL: u8 = 0x07;

/// Offsets of bytes 9 and 10, which both CDBs share.
const MAIN_AT: usize = 9;
const SUB_AT: usize = 10;

/// Plans a read of `count` blocks from `lba` on, if an image contains the requested parts.
fn read(cx: &Context<'_>, kind: u8, main: u8, sub: u8, lba: u64, count: u64) -> Result<Plan, Sense> {
    let lu = cx.emulated()?;
    match (kind & SECTOR_TYPE) >> 2 {
        // Any type, or mode 1.
        0 | 2 => {}
        // CD-DA, mode 2 and its forms.
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
        admission: READS,
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
        admission: READS,
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
        // The ending address is the one after the last block.
        let end = disc::lba(self.end).ok_or(Sense::in_cdb(offset_of!(Self, end)))?;
        let count = end.checked_sub(start).ok_or(Sense::in_cdb(offset_of!(Self, end)))?;
        read(cx, self.kind, self.main, self.sub, start, count)
    }
}

#[cfg(test)]
#[path = "read_cd_tests.rs"]
mod tests;
