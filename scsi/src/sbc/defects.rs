//! READ DEFECT DATA: disks have no defects, so the lists are empty.

use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use lunar_core::wire::be;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT of the CDB; PLISTV, GLISTV and the format of the data have the same
/// bits.
const LISTS: u8 = 0x10 | 0x08 | 0x07;

/// Admission of READ DEFECT DATA.
const ASKS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::WriteExclusivePasses,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// READ DEFECT DATA(10)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadDefectData10 {
    opcode: u8,
    reserved: u8,
    lists: u8,
    reserved2: [u8; 4],
    allocation: be::U16,
    control: u8,
}

impl CommandType for ReadDefectData10 {
    const POLICY: Policy = Policy {
        name: "READ DEFECT DATA(10)",
        clause: "SBC-3 5.17",
        code: Code::of(OpCode::READ_DEFECT_DATA_10),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_DEFECT_DATA_10.0,
        reserved: 0,
        lists: LISTS,
        reserved2: [0; 4],
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        cx.out.bytes(&[0, self.lists, 0, 0]);
        Ok(Plan::Answer)
    }
}

/// READ DEFECT DATA(12). ADDRESS DESCRIPTOR INDEX is past the end of an empty list, so the data is its header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadDefectData12 {
    opcode: u8,
    lists: u8,
    index: be::U32,
    allocation: be::U32,
    reserved: u8,
    control: u8,
}

impl CommandType for ReadDefectData12 {
    const POLICY: Policy = Policy {
        name: "READ DEFECT DATA(12)",
        clause: "SBC-3 5.18",
        code: Code::of(OpCode::READ_DEFECT_DATA_12),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_DEFECT_DATA_12.0,
        lists: LISTS,
        index: be::U32::MAX_VALUE,
        allocation: be::U32::MAX_VALUE,
        reserved: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        cx.out.bytes(&[0, self.lists]).zeros(6);
        Ok(Plan::Answer)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Rig;

    #[test]
    fn the_lists_are_empty_in_the_requested_format() {
        let rig = Rig::default();
        for format in [0x00, 0x0d, 0x1d, 0x10] {
            let ten = rig.run(&[0x37, 0, format, 0, 0, 0, 0, 0, 64, 0], &[], 64);
            assert_eq!(ten.data, [0, format, 0, 0]);
            let twelve = rig.run(&[0xb7, format, 0, 0, 0, 9, 0, 0, 0, 64, 0, 0], &[], 64);
            assert_eq!(twelve.data, [0, format, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(rig.run(&[0x37, 0, 0x0d, 0, 0, 0, 0, 0, 3, 0], &[], 3).data, [0, 0x0d, 0]);
    }
}
