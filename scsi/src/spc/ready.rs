//! TEST UNIT READY, REQUEST SENSE.

use crate::context::Context;
use crate::lu::LogicalUnit;
use crate::nexus::Addressee;
use crate::plan::{Edit, Plan};
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// TEST UNIT READY
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TestUnitReady {
    opcode: u8,
    reserved: [u8; 4],
    control: u8,
}

impl CommandType for TestUnitReady {
    const POLICY: Policy = Policy {
        name: "TEST UNIT READY",
        clause: "SPC-4 6.47",
        code: Code::of(OpCode::TEST_UNIT_READY),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Device,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Passes,
            alua: Alua::Active,
            not_ready: Gate::Stops,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self { opcode: OpCode::TEST_UNIT_READY.0, reserved: [0; 4], control: 0 };
    const DATA: Data<Self> = Data::None;

    fn run(&self, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        Ok(Plan::Done)
    }
}

/// REQUEST SENSE
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestSense {
    opcode: u8,
    flags: u8,
    reserved: [u8; 2],
    allocation: u8,
    control: u8,
}

/// DESC: sense data in descriptor format.
const DESCRIPTOR: u8 = 0x01;

impl CommandType for RequestSense {
    const POLICY: Policy = Policy {
        name: "REQUEST SENSE",
        clause: "SPC-4 6.39",
        code: Code::of(OpCode::REQUEST_SENSE),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Lunar,
            // The unit attention is returned as data.
            attention: Gate::Passes,
            spc2: Gate::Passes,
            persistent: Persistent::Passes,
            alua: Alua::Every,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self =
        Self { opcode: OpCode::REQUEST_SENSE.0, flags: DESCRIPTOR, reserved: [0; 2], allocation: 0xff, control: 0 };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let sense = match cx.addressee {
            Addressee::Unit(itl) => match (itl.take_attention(), &*itl.lu) {
                (Some(sense), _) => sense,
                (None, LogicalUnit::Emulated(lu)) => lu.state_sense().unwrap_or(Sense::NONE),
                (None, LogicalUnit::Forwarded(_)) => return Ok(Plan::Forward(Edit::None)),
            },
            Addressee::WellKnown => Sense::NONE,
            Addressee::NoUnit => Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED),
        };
        cx.out.bytes(&sense.data(self.flags & DESCRIPTOR != 0));
        Ok(Plan::Answer)
    }
}

#[cfg(test)]
mod tests {
    use crate::lun::Lun;
    use crate::sense::Asc;
    use crate::testing::Rig;

    #[test]
    fn request_sense_returns_the_pending_condition() {
        let rig = Rig::default();
        let sense = |flags: u8, length: u8| rig.run(&[3, flags, 0, 0, length, 0], &[], 252).data;
        assert_eq!(sense(0, 252), [0x70, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sense(1, 252), [0x72, 0, 0, 0, 0, 0, 0, 0]);
        rig.nexus.itl(0).expect("LUN exists").establish_unit_attention(Asc::MODE_PARAMETERS_CHANGED);
        assert_eq!(sense(1, 4), [0x72, 6, 0x2a, 1]);
        assert_eq!(sense(1, 4), [0x72, 0, 0, 0]);
        rig.run(&[0x1b, 0, 0, 0, 0, 0], &[], 0);
        assert_eq!(sense(1, 4), [0x72, 2, 4, 2]);
        rig.lun.set(Lun::from_number(9));
        assert_eq!(sense(1, 4), [0x72, 5, 0x25, 0]);
    }
}
