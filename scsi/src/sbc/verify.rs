//! VERIFY and COMPARE AND WRITE.

use super::block_range::{
    Block10, Block12, Block16, Block32, Blocks, Bytes, DPO, FUA, FUA_NV, GROUP, PROTECT, READS, TAGGED_READS, WRITES,
    durable, range, within,
};
use super::limits::{TRANSFER_BYTES_MAX, VERIFY_BYTES_MAX, compare_and_write_blocks_max};
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Code, Effect, OpCode, Policy};
use crate::row::{CommandType, Data};
use crate::sbc::protect::{About, planned};
use crate::sense::Sense;
use lunar_core::step::Step;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// VERIFY(10)
pub type Verify10 = Block10<{ OpCode::VERIFY_10.0 }>;
/// VERIFY(12)
pub type Verify12 = Block12<{ OpCode::VERIFY_12.0 }>;
/// VERIFY(16)
pub type Verify16 = Block16<{ OpCode::VERIFY_16.0 }>;

/// VERIFY(32)
pub type Verify32 = Block32<0x000a>;

/// BYTCHK (SBC-3 5.29): the data that the blocks are compared with.
const BYTE_CHECK: u8 = 0x06;

/// Plans VERIFY of any layout. BYTCHK 00b: the blocks are read; 01b: the blocks are compared with Data-Out; 11b: each
/// block is compared with the only block of Data-Out.
fn verify<C: Blocks>(cx: &Context<'_>, cdb: &C) -> Result<Plan, Sense> {
    let lu = cx.emulated()?;
    let check = (cdb.flags() & BYTE_CHECK) >> 1;
    let max = if check == 1 { TRANSFER_BYTES_MAX } else { VERIFY_BYTES_MAX };
    let Bytes { offset, len } = range(lu, cdb, max)?;
    let (about, step) = match check {
        0 => (About::Verify, Step::Verify { offset, len }),
        1 => (About::Compare, Step::Compare { offset, len, block: None }),
        3 => (About::Compare, Step::Compare { offset, len, block: Some(lu.block_size()) }),
        _ if len == 0 => return Ok(Plan::Done),
        _ => return Err(const { Sense::bit_in_cdb(C::FLAGS_AT, 2) }),
    };
    let plan = planned(lu, cdb, about, step)?;
    Ok(if len == 0 { Plan::Done } else { plan })
}

/// Implements VERIFY of one layout.
macro_rules! verify {
    ($command:ty, $name:literal, $clause:literal, $admission:expr) => {
        impl CommandType for $command {
            const POLICY: Policy =
                Policy { name: $name, clause: $clause, code: Self::CODE, effect: Effect::Read, admission: $admission };
            const USAGE: Self = Self::usage(PROTECT | DPO | BYTE_CHECK);
            const DATA: Data<Self> = Data::Out;

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                verify(cx, self)
            }
        }
    };
}

verify!(Verify10, "VERIFY(10)", "SBC-3 5.29", READS);
verify!(Verify12, "VERIFY(12)", "SBC-3 5.30", READS);
verify!(Verify16, "VERIFY(16)", "SBC-3 5.31", READS);
verify!(Verify32, "VERIFY(32)", "SBC-3 5.32", TAGGED_READS);

/// COMPARE AND WRITE
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CompareAndWrite {
    opcode: u8,
    flags: u8,
    lba: be::U64,
    reserved: [u8; 3],
    count: u8,
    group: u8,
    control: u8,
}

impl Blocks for CompareAndWrite {
    const LBA_AT: usize = offset_of!(Self, lba);
    const LENGTH_AT: usize = offset_of!(Self, count);
    fn lba(&self) -> u64 {
        self.lba.get()
    }
    fn count(&self) -> u64 {
        self.count.into()
    }
    fn flags(&self) -> u8 {
        self.flags
    }
}

impl CommandType for CompareAndWrite {
    const POLICY: Policy = Policy {
        name: "COMPARE AND WRITE",
        clause: "SBC-3 5.2",
        code: Code::of(OpCode::COMPARE_AND_WRITE),
        effect: Effect::Write,
        admission: WRITES,
    };
    const USAGE: Self = Self {
        opcode: OpCode::COMPARE_AND_WRITE.0,
        flags: PROTECT | DPO | FUA | FUA_NV,
        lba: be::U64::MAX_VALUE,
        reserved: [0; 3],
        count: 0xff,
        group: GROUP,
        control: 0,
    };
    const DATA: Data<Self> = Data::Out;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let Bytes { offset, len } = within(lu, self.lba.get(), self.count.into())?;
        if u64::from(self.count) > compare_and_write_blocks_max(&lu.unit) {
            return Err(Sense::in_cdb(offset_of!(Self, count)));
        }
        match (len, cx.command.data_out) {
            (0, 0) => Ok(Plan::Done),
            // NUMBER OF LOGICAL BLOCKS is zero and Data-Out is not: one of the two is wrong.
            (0, _) => Err(Sense::in_cdb(offset_of!(Self, count))),
            _ => {
                let step = Step::CompareWrite { offset, len, durable: durable(lu, self.flags) };
                planned(lu, self, About::Write, step)
            }
        }
    }
}
