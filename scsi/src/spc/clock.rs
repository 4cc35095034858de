//! REPORT TIMESTAMP and SET TIMESTAMP: the clock of a logical unit (SPC-4 5.2.17).

use crate::change::Change;
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Service action of both commands.
const ACTION: u8 = 0x0f;
/// Bytes of a timestamp: milliseconds since 1970-01-01 00:00 UTC.
const TIMESTAMP_BYTES: usize = 6;

/// TIMESTAMP ORIGIN: the clock was set by SET TIMESTAMP.
const SET: u8 = 0b010;
/// TIMESTAMP ORIGIN: the clock was set by other means. It is the clock of this server.
const OTHERWISE: u8 = 0b011;

/// REPORT TIMESTAMP
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReportTimestamp {
    opcode: u8,
    action: u8,
    reserved: [u8; 4],
    allocation: be::U32,
    reserved2: u8,
    control: u8,
}

impl CommandType for ReportTimestamp {
    const POLICY: Policy = Policy {
        name: "REPORT TIMESTAMP",
        clause: "SPC-4 6.38",
        code: Code::with_action(OpCode::MAINTENANCE_IN, ACTION),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Device,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Passes,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::MAINTENANCE_IN.0,
        action: ACTION,
        reserved: [0; 4],
        allocation: be::U32::MAX_VALUE,
        reserved2: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let now = (cx.target.config().clock.0)();
        let (origin, now) = match cx.emulated()?.clock() {
            Some(behind) => (SET, now.wrapping_add_signed(behind)),
            None => (OTHERWISE, now),
        };
        let [_, _, timestamp @ ..] = now.to_be_bytes();
        cx.out.bytes(&[0, 10, origin, 0]).bytes(&timestamp).zeros(2);
        Ok(Plan::Answer)
    }
}

/// SET TIMESTAMP
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SetTimestamp {
    opcode: u8,
    action: u8,
    reserved: [u8; 4],
    length: be::U32,
    reserved2: u8,
    control: u8,
}

/// The parameter list of SET TIMESTAMP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Timestamp {
    reserved: [u8; 4],
    timestamp: [u8; TIMESTAMP_BYTES],
    reserved2: [u8; 2],
}

impl CommandType for SetTimestamp {
    const POLICY: Policy = Policy {
        name: "SET TIMESTAMP",
        clause: "SPC-4 6.46",
        code: Code::with_action(OpCode::MAINTENANCE_OUT, ACTION),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::DeviceThenAttention(Asc::TIMESTAMP_CHANGED),
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::MAINTENANCE_OUT.0,
        action: ACTION,
        reserved: [0; 4],
        length: be::U32::MAX_VALUE,
        reserved2: 0,
        control: 0,
    };
    // Bytes after the parameter list are not pulled.
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.get().min(size_of::<Timestamp>() as u32));

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        cx.emulated()?;
        if self.length.get() == 0 {
            return Ok(Plan::Done);
        }
        let list = Timestamp::ref_from_bytes(list).map_err(|_| Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))?;
        let reserved = [
            (offset_of!(Timestamp, reserved), &list.reserved[..]),
            (offset_of!(Timestamp, reserved2), &list.reserved2),
        ];
        for (at, bytes) in reserved {
            if let Some(byte) = bytes.iter().position(|byte| *byte != 0) {
                return Err(Sense::in_list(at + byte));
            }
        }
        let mut timestamp = [0; 8];
        timestamp[8 - TIMESTAMP_BYTES..].copy_from_slice(&list.timestamp);
        let now = (cx.target.config().clock.0)();
        let behind = u64::from_be_bytes(timestamp).wrapping_sub(now).cast_signed();
        Ok(Plan::Change { flush: false, record: None, change: Change::Clock(behind) })
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Status;
    use crate::sense::Asc;
    use crate::testing::{Ended, NOW, Rig};

    fn report(rig: &Rig) -> Vec<u8> {
        rig.run(&[0xa3, 0x0f, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0], &[], 12).data
    }

    fn set(rig: &Rig, list: &[u8]) -> Ended {
        let length = u8::try_from(list.len()).expect("short");
        rig.run(&[0xa4, 0x0f, 0, 0, 0, 0, 0, 0, 0, length, 0, 0], list, 0)
    }

    #[test]
    fn a_set_timestamp_is_reported_by_its_unit_alone() {
        let rig = Rig::default();
        let nexus = rig.target.nexus(Rig::name("b"));
        let other = nexus.itl(0).expect("LUN exists");
        while other.take_attention().is_some() {}
        let [_, _, a, b, c, d, e, f] = NOW.to_be_bytes();
        assert_eq!(report(&rig), [0, 10, 3, 0, a, b, c, d, e, f, 0, 0]);
        for timestamp in [[0, 0, 0, 0, 0, 1], [0xff; 6]] {
            let list = [&[0; 4][..], &timestamp, &[0; 2]].concat();
            assert_eq!(set(&rig, &list).status, Status::GOOD);
            assert_eq!(report(&rig), [&[0, 10, 2, 0][..], &timestamp, &[0, 0]].concat());
        }
        assert_eq!(other.attention(), Some((Asc::TIMESTAMP_CHANGED, 1)));
        assert_eq!(rig.nexus.itl(0).expect("LUN exists").attention(), None);
    }

    #[test]
    fn invalid_timestamps_change_nothing() {
        let rig = Rig::default();
        assert_eq!(set(&rig, &[]).status, Status::GOOD);
        assert_eq!(set(&rig, &[0; 11]).sense[12], 0x1a);
        assert_eq!(set(&rig, &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]).sense[12..], [0x26, 0, 0, 0x80, 0, 2]);
        assert_eq!(set(&rig, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]).sense[12..], [0x26, 0, 0, 0x80, 0, 11]);
        assert_eq!(report(&rig)[2], 3, "TIMESTAMP ORIGIN");
    }
}
