//! START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL.

use crate::change::Change;
use crate::context::Context;
use crate::lu::Emulated;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use lunar_core::medium::MediumKind;
use lunar_core::step::Step;
use lunar_unit::UnitChange;
use lunar_unit::removal::request::{Motion, RemovalChange};
use lunar_unit::reserve::Held;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
/// NO_FLUSH: cached data need not be written to the medium.
const NO_FLUSH: u8 = 0x04;
/// LOEJ. A fixed disk refuses it after admission, for a unit that is not ready reports that first.
const LOAD_EJECT: u8 = 0x02;
/// START.
const START: u8 = 0x01;

impl CommandType for StartStopUnit {
    const POLICY: Policy = Policy {
        name: "START STOP UNIT",
        clause: "SBC-3 5.25",
        code: Code::of(OpCode::START_STOP_UNIT),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Device,
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
        // IMMED: the status may be returned before the work is done. Lunar does the work first.
        immediate: 0x01,
        reserved: 0,
        modifier: 0,
        flags: POWER_CONDITION | NO_FLUSH | LOAD_EJECT | START,
        control: 0,
    };
    const DATA: Data<Self> = Data::None;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        if lu.kind != MediumKind::Fixed {
            return self.removable(lu);
        }
        let stopped = match (self.flags & POWER_CONDITION) >> 4 {
            0 if self.flags & LOAD_EJECT != 0 => return Err(Sense::bit_in_cdb(offset_of!(Self, flags), 1)),
            // START_VALID: the START bit is valid.
            0 => self.flags & START == 0,
            // ACTIVE.
            1 => false,
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, flags), 7)),
        };
        if stopped == lu.is_stopped() {
            return Ok(Plan::Done);
        }
        let flush = stopped && self.flags & NO_FLUSH == 0;
        Ok(Plan::Change { flush, record: None, change: Change::Stopped(stopped) })
    }
}

impl StartStopUnit {
    /// START STOP UNIT of a unit with a removable medium. Such a unit is never stopped: it would start with the next
    /// command that accesses the medium (MMC-6 6.42). Power conditions have no effect.
    fn removable(&self, lu: &Emulated) -> Result<Plan, Sense> {
        if self.flags & POWER_CONDITION != 0 {
            return Ok(Plan::Done);
        }
        let is_start = self.flags & START != 0;
        if self.flags & LOAD_EJECT != 0 {
            return Ok(Plan::Move(if is_start { Motion::Load } else { Motion::Eject }));
        }
        match lu.tray_sense() {
            Some(sense) if is_start => Err(sense),
            None if !is_start && self.flags & NO_FLUSH == 0 && !lu.unit.read_only => Ok(Plan::Do(Step::Flush)),
            _ => Ok(Plan::Done),
        }
    }
}

/// PREVENT ALLOW MEDIUM REMOVAL. It has no effect on fixed media.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PreventAllowMediumRemoval {
    opcode: u8,
    reserved: [u8; 3],
    prevent: u8,
    control: u8,
}

/// PREVENT: one bit since SBC-3; the second bit, for changers, is obsolete.
const PREVENT: u8 = 0x01;

impl CommandType for PreventAllowMediumRemoval {
    const POLICY: Policy = Policy {
        name: "PREVENT ALLOW MEDIUM REMOVAL",
        clause: "SBC-3 5.10",
        code: Code::of(OpCode::PREVENT_ALLOW_MEDIUM_REMOVAL),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Counted,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            // Only PREVENT conflicts with a reservation, which `run` checks.
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
        if cx.emulated()?.kind == MediumKind::Fixed {
            return Ok(Plan::Done);
        }
        let name = cx.nexus.name.clone();
        let change = match self.prevent & PREVENT {
            0 => RemovalChange::Allow(name),
            _ if itl.held() != Held::None => return Ok(Plan::Conflict),
            _ => RemovalChange::Prevent(name),
        };
        Ok(Plan::Propose(Box::new(UnitChange::Removal(change))))
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Status;
    use crate::testing::Rig;
    use lunar_core::io::Op;

    #[test]
    fn a_stop_flushes_the_cache_unless_no_flush_is_set() {
        let rig = Rig::default();
        let start_stop = |flags: u8| rig.run(&[0x1b, 0, 0, 0, flags, 0], &[], 0);
        assert_eq!(start_stop(0).status, Status::GOOD);
        assert_eq!(rig.memory.asked.take(), [Op::Flush]);
        assert_eq!(start_stop(0x10).status, Status::GOOD);
        assert_eq!(start_stop(4).status, Status::GOOD);
        assert_eq!(rig.memory.asked.take(), [], "NO_FLUSH");
        assert_eq!(start_stop(1).status, Status::GOOD);
        assert_eq!(start_stop(0x70).sense[15..], [0xcf, 0, 4]);
        assert_eq!(start_stop(2).sense[15..], [0xc9, 0, 4], "LOEJ on a fixed disk");
    }
}
