//! READ, WRITE, WRITE AND VERIFY.

use super::block_range::{
    Block10, Block12, Block16, Block32, Bytes, DPO, FUA, FUA_NV, PROTECT, READS, TAGGED_READS, TAGGED_WRITES, WRITES,
    durable, range, within,
};
use super::limits::TRANSFER_BYTES_MAX;
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Code, Effect, OpCode, Policy};
use crate::row::{CommandType, Data};
use crate::sbc::protect::{About, planned};
use crate::sense::Sense;
use lunar_core::step::Step;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// READ(10)
pub type Read10 = Block10<{ OpCode::READ_10.0 }>;
/// READ(12)
pub type Read12 = Block12<{ OpCode::READ_12.0 }>;
/// READ(16)
pub type Read16 = Block16<{ OpCode::READ_16.0 }>;
/// WRITE(10)
pub type Write10 = Block10<{ OpCode::WRITE_10.0 }>;
/// WRITE(12)
pub type Write12 = Block12<{ OpCode::WRITE_12.0 }>;
/// WRITE(16)
pub type Write16 = Block16<{ OpCode::WRITE_16.0 }>;
/// WRITE AND VERIFY(10)
pub type WriteAndVerify10 = Block10<{ OpCode::WRITE_AND_VERIFY_10.0 }>;
/// WRITE AND VERIFY(12)
pub type WriteAndVerify12 = Block12<{ OpCode::WRITE_AND_VERIFY_12.0 }>;
/// WRITE AND VERIFY(16)
pub type WriteAndVerify16 = Block16<{ OpCode::WRITE_AND_VERIFY_16.0 }>;
/// READ(32)
pub type Read32 = Block32<0x0009>;
/// WRITE(32)
pub type Write32 = Block32<0x000b>;
/// WRITE AND VERIFY(32)
pub type WriteAndVerify32 = Block32<0x000c>;

/// A CDB of six bytes. TRANSFER LENGTH zero means 256 blocks.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Block6<const OP: u8> {
    opcode: u8,
    lba: [u8; 3],
    length: u8,
    control: u8,
}

/// READ(6)
pub type Read6 = Block6<{ OpCode::READ_6.0 }>;
/// WRITE(6)
pub type Write6 = Block6<{ OpCode::WRITE_6.0 }>;

impl<const OP: u8> Block6<OP> {
    const USAGE: Self = Self { opcode: OP, lba: [0x1f, 0xff, 0xff], length: 0xff, control: 0 };

    fn range(&self, cx: &Context<'_>) -> Result<Bytes, Sense> {
        let [high, middle, low] = self.lba;
        let lba = u32::from_be_bytes([0, high & 0x1f, middle, low]);
        let count = if self.length == 0 { 256 } else { self.length.into() };
        within(cx.emulated()?, lba.into(), count)
    }
}

impl CommandType for Read6 {
    const POLICY: Policy = Policy {
        name: "READ(6)",
        clause: "SBC-2 5.7",
        code: Code::of(OpCode::READ_6),
        effect: Effect::Read,
        admission: READS,
    };
    const USAGE: Self = Self::USAGE;
    const DATA: Data<Self> = Data::In;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let Bytes { offset, len } = self.range(cx)?;
        Ok(Plan::Do(Step::Read { offset, len }))
    }
}

impl CommandType for Write6 {
    const POLICY: Policy = Policy {
        name: "WRITE(6)",
        clause: "SBC-2 5.25",
        code: Code::of(OpCode::WRITE_6),
        effect: Effect::Write,
        admission: WRITES,
    };
    const USAGE: Self = Self::USAGE;
    const DATA: Data<Self> = Data::Out;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let Bytes { offset, len } = self.range(cx)?;
        Ok(Plan::Do(Step::Write { offset, len, durable: durable(cx.emulated()?, 0) }))
    }
}

/// Implements READ of one layout.
macro_rules! read {
    ($command:ty, $name:literal, $clause:literal, $admission:expr) => {
        impl CommandType for $command {
            const POLICY: Policy =
                Policy { name: $name, clause: $clause, code: Self::CODE, effect: Effect::Read, admission: $admission };
            const USAGE: Self = Self::usage(PROTECT | DPO | FUA | FUA_NV);
            const DATA: Data<Self> = Data::In;

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                let lu = cx.emulated()?;
                let Bytes { offset, len } = range(lu, self, TRANSFER_BYTES_MAX)?;
                planned(lu, self, About::Read, Step::Read { offset, len })
            }
        }
    };
}

/// Implements WRITE of one layout.
macro_rules! write {
    ($command:ty, $name:literal, $clause:literal, $admission:expr) => {
        impl CommandType for $command {
            const POLICY: Policy =
                Policy { name: $name, clause: $clause, code: Self::CODE, effect: Effect::Write, admission: $admission };
            const USAGE: Self = Self::usage(PROTECT | DPO | FUA | FUA_NV);
            const DATA: Data<Self> = Data::Out;

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                let lu = cx.emulated()?;
                let Bytes { offset, len } = range(lu, self, TRANSFER_BYTES_MAX)?;
                let step = Step::Write { offset, len, durable: durable(lu, self.flags) };
                planned(lu, self, About::Write, step)
            }
        }
    };
}

/// BYTCHK of WRITE AND VERIFY, one bit: the blocks are compared with Data-Out after they were written to the medium.
const BYTE_CHECK: u8 = 0x02;

/// Implements WRITE AND VERIFY of one layout.
macro_rules! write_and_verify {
    ($command:ty, $name:literal, $clause:literal, $admission:expr) => {
        impl CommandType for $command {
            const POLICY: Policy =
                Policy { name: $name, clause: $clause, code: Self::CODE, effect: Effect::Write, admission: $admission };
            const USAGE: Self = Self::usage(PROTECT | DPO | BYTE_CHECK);
            const DATA: Data<Self> = Data::Out;

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                let lu = cx.emulated()?;
                let Bytes { offset, len } = range(lu, self, TRANSFER_BYTES_MAX)?;
                let step = Step::WriteVerify { offset, len, compare: self.flags & BYTE_CHECK != 0 };
                planned(lu, self, About::Write, step)
            }
        }
    };
}

read!(Read10, "READ(10)", "SBC-3 5.11", READS);
read!(Read12, "READ(12)", "SBC-3 5.12", READS);
read!(Read16, "READ(16)", "SBC-3 5.13", READS);
write!(Write10, "WRITE(10)", "SBC-3 5.33", WRITES);
write!(Write12, "WRITE(12)", "SBC-3 5.34", WRITES);
write!(Write16, "WRITE(16)", "SBC-3 5.35", WRITES);
write_and_verify!(WriteAndVerify10, "WRITE AND VERIFY(10)", "SBC-3 5.37", WRITES);
write_and_verify!(WriteAndVerify12, "WRITE AND VERIFY(12)", "SBC-3 5.38", WRITES);
write_and_verify!(WriteAndVerify16, "WRITE AND VERIFY(16)", "SBC-3 5.39", WRITES);
read!(Read32, "READ(32)", "SBC-3 5.14", TAGGED_READS);
write!(Write32, "WRITE(32)", "SBC-3 5.36", TAGGED_WRITES);
write_and_verify!(WriteAndVerify32, "WRITE AND VERIFY(32)", "SBC-3 5.40", TAGGED_WRITES);
