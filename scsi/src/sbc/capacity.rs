//! READ CAPACITY.

use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{
    Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, SERVICE_ACTION_BITS, Timeout,
};
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use lunar_core::protection::Kind;
use lunar_core::wire::be;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission of READ CAPACITY.
const ASKS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Passes,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// READ CAPACITY(10). LBA and PMI are obsolete: they must be zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadCapacity10 {
    opcode: u8,
    reserved: [u8; 8],
    control: u8,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Capacity10 {
    last_lba: be::U32,
    block_length: be::U32,
}

impl CommandType for ReadCapacity10 {
    const POLICY: Policy = Policy {
        name: "READ CAPACITY(10)",
        clause: "SBC-3 5.15",
        code: Code::of(OpCode::READ_CAPACITY_10),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self { opcode: OpCode::READ_CAPACITY_10.0, reserved: [0; 8], control: 0 };
    const DATA: Data<Self> = Data::Answer(|_| size_of::<Capacity10>() as u32);

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let geometry = cx.emulated()?.unit.geometry;
        // FFFFFFFFh if the address does not fit 32 bits: initiators then send READ CAPACITY(16).
        let last_lba = u32::try_from(geometry.blocks - 1).unwrap_or(u32::MAX).into();
        cx.out.put(&Capacity10 { last_lba, block_length: geometry.block_size.into() });
        cx.itl()?.capacity_read();
        Ok(Plan::Answer)
    }
}

/// READ CAPACITY(16). LBA and PMI are obsolete: they must be zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadCapacity16 {
    opcode: u8,
    action: u8,
    reserved: [u8; 8],
    allocation: be::U32,
    reserved2: u8,
    control: u8,
}

/// Service action of READ CAPACITY(16).
const ACTION: u8 = 0x10;
const _: () = assert!(ACTION & !SERVICE_ACTION_BITS == 0);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Capacity16 {
    last_lba: be::U64,
    block_length: be::U32,
    /// P_TYPE, PROT_EN.
    protection: u8,
    /// Logical blocks per physical block exponent.
    exponent: u8,
    /// LBPME, LBPRZ, lowest aligned LBA.
    provisioning: be::U16,
    reserved: [u8; 16],
}

/// LBPME: logical block provisioning management is enabled.
const LBPME: u16 = 0x8000;
/// PROT_EN: blocks have protection information. The bits above it are P_TYPE.
const PROTECTED: u8 = 0x01;
/// LBPRZ: unmapped blocks read as zeroes.
const LBPRZ: u16 = 0x4000;

impl CommandType for ReadCapacity16 {
    const POLICY: Policy = Policy {
        name: "READ CAPACITY(16)",
        clause: "SBC-3 5.16",
        code: Code::with_action(OpCode::SERVICE_ACTION_IN_16, ACTION),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::SERVICE_ACTION_IN_16.0,
        action: ACTION,
        reserved: [0; 8],
        allocation: be::U32::MAX_VALUE,
        reserved2: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let geometry = lu.unit.geometry;
        let provisioning = match (lu.provisioning(), lu.unit.traits().unmap_zeroes) {
            (true, true) => LBPME | LBPRZ,
            (true, false) => LBPME,
            (false, _) => 0,
        };
        cx.out.put(&Capacity16 {
            last_lba: (geometry.blocks - 1).into(),
            block_length: geometry.block_size.into(),
            protection: match lu.protection() {
                Kind::None => 0,
                kind => (kind as u8 - Kind::One as u8) << 1 | PROTECTED,
            },
            exponent: geometry.physical_exponent & 0x0f,
            provisioning: provisioning.into(),
            reserved: [0; 16],
        });
        cx.itl()?.capacity_read();
        Ok(Plan::Answer)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Rig;
    use lunar_core::io::Traits;

    #[test]
    fn capacity_and_provisioning_are_reported() {
        let rig = Rig::default();
        assert_eq!(rig.run(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8).data, [0, 0, 7, 0xff, 0, 0, 2, 0]);
        let sixteen = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
        let mut expected = vec![0, 0, 0, 0, 0, 0, 7, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0];
        expected.resize(32, 0);
        assert_eq!(rig.run(&sixteen, &[], 32).data, expected);
        let thick = Rig::new(Traits { unmap_granularity: 0, physical_block: 512, ..Rig::traits() });
        assert_eq!(thick.run(&sixteen, &[], 32).data[12..16], [0; 4]);
    }
}
