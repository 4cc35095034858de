//! ORWRITE and WRITE ATOMIC.

use super::block_range::{
    ATOMIC_WRITES, Block16, Blocks, Bytes, DPO, FUA, FUA_NV, GROUP, PROTECT, WRITES, durable, range, within,
};
use super::limits::{TRANSFER_BYTES_MAX, atomic_blocks_max};
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sbc::protect::{About, planned};
use crate::sense::Sense;
use lunar_core::step::Step;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ORWRITE(16)
pub type OrWrite16 = Block16<{ OpCode::ORWRITE_16.0 }>;

impl CommandType for OrWrite16 {
    const POLICY: Policy = Policy {
        name: "ORWRITE(16)",
        clause: "SBC-3 5.5",
        code: Code::of(OpCode::ORWRITE_16),
        effect: Effect::Write,
        admission: WRITES,
    };
    const USAGE: Self = Self::usage(PROTECT | DPO | FUA | FUA_NV);
    const DATA: Data<Self> = Data::Out;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let Bytes { offset, len } = range(lu, self, TRANSFER_BYTES_MAX)?;
        planned(lu, self, About::Write, Step::OrWrite { offset, len, durable: durable(lu, self.flags) })
    }
}

/// WRITE ATOMIC(16). ATOMIC BOUNDARY must be zero: no boundary is supported.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct WriteAtomic16 {
    opcode: u8,
    flags: u8,
    lba: be::U64,
    boundary: be::U16,
    length: be::U16,
    group: u8,
    control: u8,
}

impl Blocks for WriteAtomic16 {
    const LBA_AT: usize = offset_of!(Self, lba);
    const LENGTH_AT: usize = offset_of!(Self, length);
    fn lba(&self) -> u64 {
        self.lba.get()
    }
    fn count(&self) -> u64 {
        self.length.get().into()
    }
    fn flags(&self) -> u8 {
        self.flags
    }
}

impl CommandType for WriteAtomic16 {
    const POLICY: Policy = Policy {
        name: "WRITE ATOMIC(16)",
        clause: "SBC-4",
        code: Code::of(OpCode::WRITE_ATOMIC_16),
        effect: Effect::Write,
        admission: Admission {
            needs: Some(&ATOMIC_WRITES),
            forwarded: Forwarding::Device,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Stops,
            write_protect: Gate::Stops,
            timeout: Timeout::Transfer,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::WRITE_ATOMIC_16.0,
        flags: PROTECT | DPO | FUA,
        lba: be::U64::MAX_VALUE,
        boundary: be::U16::ZERO,
        length: be::U16::MAX_VALUE,
        group: GROUP,
        control: 0,
    };
    const DATA: Data<Self> = Data::Out;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let Bytes { offset, len } = within(lu, self.lba.get(), self.length.get().into())?;
        if u64::from(self.length.get()) > atomic_blocks_max(&lu.unit) {
            return Err(Sense::in_cdb(offset_of!(Self, length)));
        }
        planned(lu, self, About::Write, Step::WriteAtomic { offset, len, durable: durable(lu, self.flags) })
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Status;
    use crate::sense::Asc;
    use crate::testing::{BLOCKS, Ended, Rig};
    use lunar_core::io::{Op, Traits};

    fn or_write(rig: &Rig, flags: u8, lba: u16, count: u8, out: &[u8]) -> Ended {
        let [high, low] = lba.to_be_bytes();
        rig.run(&[0x8b, flags, 0, 0, 0, 0, 0, 0, high, low, 0, 0, 0, count, 0, 0], out, 0)
    }

    #[test]
    fn orwrite_ors_its_data_into_the_blocks() {
        let rig = Rig::default();
        rig.memory.bytes.borrow_mut()[512..1536].fill(0x0f);
        let ended = or_write(&rig, 0x08, 1, 3, &[0xa5; 1536]);
        assert_eq!((ended.status, ended.wanted), (Status::GOOD, 1536));
        let bytes = rig.memory.bytes.borrow();
        assert!(bytes[512..1536].iter().all(|byte| *byte == 0xaf));
        assert!(bytes[1536..2048].iter().all(|byte| *byte == 0xa5));
        assert_eq!((bytes[511], bytes[2048]), (0, 0));
        assert_eq!(rig.memory.asked.take(), [Op::Read, Op::Write { durable: true }]);
        assert_eq!(or_write(&rig, 0, 0, 0, &[]).status, Status::GOOD);
    }

    #[test]
    fn orwrite_checks_its_fields_and_limits() {
        let rig = Rig::default();
        let asc = |ended: Ended| Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]]));
        assert_eq!(asc(or_write(&rig, 0, 2047, 2, &[0; 1024])), Asc::LBA_OUT_OF_RANGE);
        assert_eq!(asc(or_write(&rig, 0, 2049, 0, &[])), Asc::LBA_OUT_OF_RANGE);
        assert_eq!(or_write(&rig, 0x20, 0, 1, &[0; 512]).sense[15..], [0xcf, 0, 1], "ORPROTECT");
        assert_eq!(rig.memory.asked.take(), []);
    }

    fn atomic(rig: &Rig, flags: u8, lba: u16, count: u8, out: &[u8]) -> Ended {
        let [high, low] = lba.to_be_bytes();
        rig.run(&[0x9c, flags, 0, 0, 0, 0, 0, 0, high, low, 0, 0, 0, count, 0, 0], out, 0)
    }

    #[test]
    fn an_atomic_write_is_one_write() {
        let rig = Rig::default();
        let ended = atomic(&rig, 0x18, 3, 64, &[7; 64 * 512]);
        assert_eq!((ended.status, ended.wanted), (Status::GOOD, 64 * 512));
        assert_eq!(rig.memory.asked.take(), [Op::Write { durable: true }]);
        assert_eq!(rig.memory.bytes.borrow().iter().filter(|byte| **byte == 7).count(), 64 * 512);
        assert_eq!(atomic(&rig, 0, 0, 0, &[]).status, Status::GOOD);
    }

    #[test]
    fn an_atomic_write_is_complete_or_refused() {
        let rig = Rig::default();
        let asc = |ended: &Ended| Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]]));
        assert_eq!(atomic(&rig, 0, 0, 65, &[0; 65 * 512]).sense[12..], [0x24, 0, 0, 0xc0, 0, 12]);
        let less = atomic(&rig, 0, 0, 4, &[0; 1024]);
        assert_eq!((asc(&less), less.wanted), (Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT, 2048));
        assert_eq!(asc(&atomic(&rig, 0, BLOCKS as u16, 1, &[0; 512])), Asc::LBA_OUT_OF_RANGE);
        let boundary = rig.run(&[0x9c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 8, 0, 0], &[0; 4096], 0);
        assert_eq!(boundary.sense[12..], [0x24, 0, 0, 0xcb, 0, 11]);
        let plain = Rig::new(Traits { atomic_write: 0, ..Rig::traits() });
        assert_eq!(asc(&atomic(&plain, 0, 0, 1, &[0; 512])), Asc::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!((rig.memory.asked.take(), plain.memory.asked.take()), (vec![], vec![]));
    }
}
