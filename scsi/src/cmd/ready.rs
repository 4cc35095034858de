//! TEST UNIT READY, REQUEST SENSE, START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL.

use crate::context::Context;
use crate::lu::{Change, LogicalUnit, MediumState};
use crate::nexus::{Addressee, Held};
use crate::plan::Plan;
use crate::sense::{Asc, Sense, SenseKey};
use crate::table::{
    Alua, Code, CommandType, Data, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Timeout,
};
use crate::tray::Move;
use lunar_core::medium::MediumKind;
use lunar_core::step::Step;
use std::mem::offset_of;
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
        gates: Gates {
            reach: Reach::WellKnown,
            needs: Needs::Nothing,
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

/// DESC: descriptor format.
const DESCRIPTOR: u8 = 0x01;

impl CommandType for RequestSense {
    const POLICY: Policy = Policy {
        name: "REQUEST SENSE",
        clause: "SPC-4 6.39",
        code: Code::of(OpCode::REQUEST_SENSE),
        effect: Effect::None,
        gates: Gates {
            reach: Reach::Anywhere,
            needs: Needs::Nothing,
            // It tells it itself, as data.
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
            Addressee::Disk(itl) => match itl.take_attention().or_else(|| itl.lu.tray().sense(itl.lu.kind)) {
                Some(sense) => sense,
                None if itl.lu.medium() != MediumState::Ready => itl.lu.medium().sense(&itl.lu),
                None if itl.lu.stopped() => Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_START_REQUIRED),
                None => Sense::NONE,
            },
            Addressee::WellKnown => Sense::NONE,
            Addressee::Nobody => Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED),
        };
        cx.out.bytes(&sense.data(self.flags & DESCRIPTOR != 0));
        Ok(Plan::Answer)
    }
}

/// START STOP UNIT
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct StartStopUnit {
    opcode: u8,
    immediate: u8,
    reserved: u8,
    modifier: u8,
    flags: u8,
    control: u8,
}

/// POWER CONDITION.
const POWER_CONDITION: u8 = 0xf0;
/// NO_FLUSH: what is cached need not go to the medium first.
const NO_FLUSH: u8 = 0x04;
/// LOEJ. On a fixed disk there is nothing to load or to eject: refused after admission, for a unit that is not ready
/// says so first.
const LOAD_EJECT: u8 = 0x02;
/// START.
const START: u8 = 0x01;

impl CommandType for StartStopUnit {
    const POLICY: Policy = Policy {
        name: "START STOP UNIT",
        clause: "SBC-3 5.25",
        code: Code::of(OpCode::START_STOP_UNIT),
        effect: Effect::None,
        gates: Gates {
            reach: Reach::Unit,
            needs: Needs::Nothing,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Long,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::START_STOP_UNIT.0,
        // IMMED: an answer before the work is done is allowed, not promised.
        immediate: 0x01,
        reserved: 0,
        modifier: 0,
        flags: POWER_CONDITION | NO_FLUSH | LOAD_EJECT | START,
        control: 0,
    };
    const DATA: Data<Self> = Data::None;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.disk()?;
        if lu.kind != MediumKind::Fixed {
            return self.of_medium(lu);
        }
        let stopped = match (self.flags & POWER_CONDITION) >> 4 {
            0 if self.flags & LOAD_EJECT != 0 => return Err(Sense::bit_in_cdb(offset_of!(Self, flags), 1)),
            // START_VALID: START decides.
            0 => self.flags & START == 0,
            // ACTIVE.
            1 => false,
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, flags), 7)),
        };
        if stopped == lu.stopped() {
            return Ok(Plan::Done);
        }
        let flush = stopped && self.flags & NO_FLUSH == 0;
        Ok(Plan::Change { flush, keep: None, change: Change::Stopped(stopped) })
    }
}

impl StartStopUnit {
    /// A unit whose medium can be taken out is never stopped: it starts again with the next command that needs it
    /// (MMC-6 6.42), which nobody could tell. No power condition changes anything, either.
    fn of_medium(&self, lu: &LogicalUnit) -> Result<Plan, Sense> {
        if self.flags & POWER_CONDITION != 0 {
            return Ok(Plan::Done);
        }
        let is_start = self.flags & START != 0;
        if self.flags & LOAD_EJECT != 0 {
            return Ok(Plan::Move(if is_start { Move::Load } else { Move::Eject }));
        }
        match lu.tray().sense(lu.kind) {
            Some(sense) if is_start => Err(sense),
            None if !is_start && self.flags & NO_FLUSH == 0 && !lu.unit.read_only => Ok(Plan::Do(Step::Flush)),
            _ => Ok(Plan::Done),
        }
    }
}

/// PREVENT ALLOW MEDIUM REMOVAL. Where no medium can be removed there is nothing to prevent and nothing to remember.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PreventAllowMediumRemoval {
    opcode: u8,
    reserved: [u8; 3],
    prevent: u8,
    control: u8,
}

/// PREVENT: one bit since SBC-3; the other, for changers, is obsolete.
const PREVENT: u8 = 0x01;

impl CommandType for PreventAllowMediumRemoval {
    const POLICY: Policy = Policy {
        name: "PREVENT ALLOW MEDIUM REMOVAL",
        clause: "SBC-3 5.10",
        code: Code::of(OpCode::PREVENT_ALLOW_MEDIUM_REMOVAL),
        effect: Effect::None,
        gates: Gates {
            reach: Reach::Unit,
            needs: Needs::Nothing,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            // Conflict with PREVENT only: decided below.
            persistent: Persistent::Passes,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self =
        Self { opcode: OpCode::PREVENT_ALLOW_MEDIUM_REMOVAL.0, reserved: [0; 3], prevent: PREVENT, control: 0 };
    const DATA: Data<Self> = Data::None;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let itl = cx.itl()?;
        if itl.lu.kind == MediumKind::Fixed {
            return Ok(Plan::Done);
        }
        if self.prevent & PREVENT == 0 {
            itl.lu.shared.allow(Some(&cx.nexus.name));
        } else if itl.held() != Held::None {
            return Ok(Plan::Conflict);
        } else {
            itl.lu.shared.prevent(&cx.nexus.name);
        }
        Ok(Plan::Done)
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Status;
    use crate::fuzzing::Rig;
    use crate::lun::Lun;
    use crate::sense::Asc;
    use lunar_core::io::Op;

    #[test]
    fn request_sense_tells_what_waits() {
        let rig = Rig::default();
        let sense = |flags: u8, length: u8| rig.run(&[3, flags, 0, 0, length, 0], &[], 252).data;
        assert_eq!(sense(0, 252), [0x70, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sense(1, 252), [0x72, 0, 0, 0, 0, 0, 0, 0]);
        rig.nexus.itl(0).expect("there").attend(Asc::MODE_PARAMETERS_CHANGED);
        assert_eq!(sense(1, 4), [0x72, 6, 0x2a, 1]);
        assert_eq!(sense(1, 4), [0x72, 0, 0, 0]);
        rig.run(&[0x1b, 0, 0, 0, 0, 0], &[], 0);
        assert_eq!(sense(1, 4), [0x72, 2, 4, 2]);
        rig.lun.set(Lun::from_number(9));
        assert_eq!(sense(1, 4), [0x72, 5, 0x25, 0]);
    }

    #[test]
    fn a_stop_brings_the_cache_to_the_medium() {
        let rig = Rig::default();
        let start_stop = |flags: u8| rig.run(&[0x1b, 0, 0, 0, flags, 0], &[], 0);
        assert_eq!(start_stop(0).status, Status::GOOD);
        assert_eq!(rig.memory.asked.take(), [Op::Flush]);
        assert_eq!(start_stop(0x10).status, Status::GOOD);
        assert_eq!(start_stop(4).status, Status::GOOD);
        assert_eq!(rig.memory.asked.take(), [], "NO_FLUSH");
        assert_eq!(start_stop(1).status, Status::GOOD);
        assert_eq!(start_stop(0x70).sense[15..], [0xcf, 0, 4]);
        assert_eq!(start_stop(2).sense[15..], [0xc9, 0, 4], "LOEJ: nothing to eject");
    }
}
