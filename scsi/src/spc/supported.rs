//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.

use crate::command::Cdb;
use crate::context::Context;
use crate::forwarding::edit::is_offered;
use crate::lu::{Emulated, Forwarded, OtherCommands};
use crate::plan::{Edit, Plan};
use crate::policy::{
    Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout, UNKNOWN_COMMAND,
};
use crate::row::{CommandType, Data, Row};
use crate::sense::Sense;
use lunar_core::wire::{Writer, be};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission of both commands.
const ASKS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Lunar,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Passes,
    alua: Alua::Standby,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// REPORT SUPPORTED OPERATION CODES
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReportSupportedOperationCodes {
    opcode: u8,
    action: u8,
    options: u8,
    requested_code: u8,
    requested_action: be::U16,
    allocation: be::U32,
    reserved: u8,
    control: u8,
}

/// SERVICE ACTION of REPORT SUPPORTED OPERATION CODES.
const CODES_ACTION: u8 = 0x0c;
/// RCTD: command timeouts descriptors are returned.
const WITH_TIMEOUTS: u8 = 0x80;
/// REPORTING OPTIONS.
const OPTIONS: u8 = 0x07;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CommandDescriptor {
    opcode: u8,
    reserved: u8,
    action: be::U16,
    reserved2: u8,
    /// CTDP, SERVACTV.
    flags: u8,
    cdb_length: be::U16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TimeoutsDescriptor {
    length: be::U16,
    reserved: u8,
    specific: u8,
    nominal: be::U32,
    recommended: be::U32,
}

impl TimeoutsDescriptor {
    fn of(policy: &Policy) -> Self {
        let (nominal, recommended) = policy.admission.timeout.seconds();
        let length = (size_of::<Self>() - 2) as u16;
        Self {
            length: length.into(),
            reserved: 0,
            specific: 0,
            nominal: nominal.into(),
            recommended: recommended.into(),
        }
    }
}

/// Bytes of a CDB of a vendor-specific group, whose length only the process knows: the most that every transport has.
const VENDOR_CDB_BYTES: usize = 16;

fn is_supported(row: &Row, lu: &Emulated) -> bool {
    row.policy.admission.needs.is_none_or(|capability| (capability.is_met)(lu))
}

/// Whether the process behind the unit has the commands with this operation code, of which Lunar has none.
fn is_of_others(cx: &Context<'_>, lu: &Emulated, code: u8) -> bool {
    let has = |others: &OtherCommands| others.device.has_command(OpCode(code));
    cx.device.commands.rows_of(code).is_empty() && lu.others.as_ref().is_some_and(has)
}

/// The length of such a command.
fn length_of_others(code: u8) -> u16 {
    let length = Cdb::new(&[code]).and_then(|cdb| cdb.length());
    length.unwrap_or(VENDOR_CDB_BYTES) as u16
}

/// Writes the descriptors of all commands (SPC-4 6.35.2): those of Lunar, and those of the process behind the unit.
fn report_all(cx: &mut Context<'_>, lu: &Emulated, timeouts: bool) {
    let rows = cx.device.commands.rows().iter().filter(|row| is_supported(row, lu));
    let own = rows.map(|row| (row.policy.code, row.length as u16, &row.policy));
    let others = (0..=u8::MAX).filter(|code| is_of_others(cx, lu, *code));
    let others = others.map(|code| (Code::of(OpCode(code)), length_of_others(code), &UNKNOWN_COMMAND));
    let all: Vec<(Code, u16, &Policy)> = own.chain(others).collect();
    let out = &mut cx.out;
    out.zeros(4);
    for (Code { op, action }, length, policy) in all {
        out.put(&CommandDescriptor {
            opcode: op.0,
            reserved: 0,
            action: action.unwrap_or(0).into(),
            reserved2: 0,
            flags: u8::from(timeouts) << 1 | u8::from(action.is_some()),
            cdb_length: length.into(),
        });
        if timeouts {
            out.put(&TimeoutsDescriptor::of(policy));
        }
    }
    let length = (out.written() - 4) as u32;
    out.patch(0, &length.to_be_bytes());
}

/// Writes the descriptor of one command, or of none (SPC-4 6.35.3).
fn report_one(out: &mut Writer<'_>, row: Option<&Row>, timeouts: bool) {
    const NOT_SUPPORTED: u8 = 0b001;
    const AS_STANDARD: u8 = 0b011;
    let Some(row) = row else {
        out.bytes(&[0, NOT_SUPPORTED, 0, 0]);
        return;
    };
    out.bytes(&[0, u8::from(timeouts) << 7 | AS_STANDARD]).bytes(&(row.length as u16).to_be_bytes());
    row.usage(out);
    if timeouts {
        out.put(&TimeoutsDescriptor::of(&row.policy));
    }
}

/// Writes the descriptor of a command of the process behind the unit. Only the process knows which bits it evaluates.
fn report_other(out: &mut Writer<'_>, code: u8, timeouts: bool) {
    const AS_VENDOR: u8 = 0b101;
    let length = length_of_others(code);
    out.bytes(&[0, u8::from(timeouts) << 7 | AS_VENDOR]).bytes(&length.to_be_bytes()).bytes(&[code]);
    (1..length).for_each(|_| _ = out.bytes(&[0xff]));
    if timeouts {
        out.put(&TimeoutsDescriptor::of(&UNKNOWN_COMMAND));
    }
}

impl CommandType for ReportSupportedOperationCodes {
    const POLICY: Policy = Policy {
        name: "REPORT SUPPORTED OPERATION CODES",
        clause: "SPC-4 6.35",
        code: Code::with_action(OpCode::MAINTENANCE_IN, CODES_ACTION),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::MAINTENANCE_IN.0,
        action: CODES_ACTION,
        options: WITH_TIMEOUTS | OPTIONS,
        requested_code: 0xff,
        requested_action: be::U16::MAX_VALUE,
        allocation: be::U32::MAX_VALUE,
        reserved: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        if let Some(lu) = cx.lu()?.forwarded() {
            return self.run_forwarded(cx, lu);
        }
        let lu = cx.emulated()?;
        let timeouts = self.options & WITH_TIMEOUTS != 0;
        let all = cx.device.commands.rows_of(self.requested_code);
        let has_actions = all.first().is_some_and(|row| row.policy.code.action.is_some());
        let requested = self.requested_action.get();
        let by_action = |row: &&Row| row.policy.code.action.unwrap_or(0) == requested;
        let row = match self.options & OPTIONS {
            0 => {
                report_all(cx, lu, timeouts);
                return Ok(Plan::Answer);
            }
            1 | 3 if is_of_others(cx, lu, self.requested_code) => {
                report_other(&mut cx.out, self.requested_code, timeouts);
                return Ok(Plan::Answer);
            }
            1 if has_actions => return Err(Sense::bit_in_cdb(offset_of!(Self, options), 2)),
            1 => all.first(),
            2 if !has_actions && !all.is_empty() => return Err(Sense::bit_in_cdb(offset_of!(Self, options), 2)),
            2 | 3 => all.iter().find(by_action),
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, options), 2)),
        };
        report_one(&mut cx.out, row.filter(|row| is_supported(row, lu)), timeouts);
        Ok(Plan::Answer)
    }
}

impl ReportSupportedOperationCodes {
    /// For a forwarded logical unit, Lunar reports the commands that it executes or refuses, and the device all others.
    fn run_forwarded(&self, cx: &mut Context<'_>, lu: &Forwarded) -> Result<Plan, Sense> {
        let action = self.requested_action.get();
        let rows = cx.device.forwarded.rows_of(self.requested_code);
        let row = rows.iter().find(|row| row.policy.code.action.unwrap_or(0) == action);
        match (self.options & OPTIONS, row) {
            (1..=3, row) if !is_offered(row, lu) => report_one(&mut cx.out, None, false),
            (1..=3, Some(row)) if row.policy.admission.forwarded == Forwarding::Lunar => {
                report_one(&mut cx.out, Some(row), self.options & WITH_TIMEOUTS != 0);
            }
            _ => return Ok(Plan::Forward(Edit::None)),
        }
        Ok(Plan::Answer)
    }
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReportSupportedTaskManagementFunctions {
    opcode: u8,
    action: u8,
    options: u8,
    reserved: [u8; 3],
    allocation: be::U32,
    reserved2: u8,
    control: u8,
}

/// SERVICE ACTION of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
const FUNCTIONS_ACTION: u8 = 0x0d;
/// REPD: extended parameter data is returned.
const EXTENDED: u8 = 0x80;
/// ATS, ATSS, CTSS, LURS, QTS. TRS is obsolete, but reports the target resets of iSCSI.
const FUNCTIONS: u8 = 0x80 | 0x40 | 0x10 | 0x08 | 0x04 | 0x02;
/// QAES, QTSS, ITNRS.
const MORE_FUNCTIONS: u8 = 0x04 | 0x02 | 0x01;
/// TIMEOUT in units of 100 ms: a function waits for I/O in progress (SPC-4 6.36.3).
const FUNCTION_TIMEOUT: u32 = 600;

impl CommandType for ReportSupportedTaskManagementFunctions {
    const POLICY: Policy = Policy {
        name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        clause: "SPC-4 6.36",
        code: Code::with_action(OpCode::MAINTENANCE_IN, FUNCTIONS_ACTION),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Lunar,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Passes,
            alua: Alua::Standby,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::MAINTENANCE_IN.0,
        action: FUNCTIONS_ACTION,
        options: EXTENDED,
        reserved: [0; 3],
        allocation: be::U32::MAX_VALUE,
        reserved2: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        if self.allocation.get() < 4 {
            return Err(Sense::in_cdb(offset_of!(Self, allocation)));
        }
        let extended = self.options & EXTENDED != 0;
        cx.out.bytes(&[FUNCTIONS, MORE_FUNCTIONS, 0, if extended { 12 } else { 0 }]);
        if extended {
            // TMFTMOV: all functions have the long timeout. The long and the short timeout follow.
            cx.out.bytes(&[0x01, 0, 0, 0]);
            cx.out.bytes(&FUNCTION_TIMEOUT.to_be_bytes()).bytes(&FUNCTION_TIMEOUT.to_be_bytes());
        }
        Ok(Plan::Answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sbc::block_range::PROTECTION_TYPE_2;
    use crate::sbc::table::DISK;
    use crate::testing::{Ended, Rig};
    use lunar_core::io::Traits;

    fn rows_of_disks() -> impl Iterator<Item = &'static Row> {
        DISK.commands.rows().iter()
    }

    fn report(rig: &Rig, options: u8, code: u8, action: u16) -> Ended {
        let [high, low] = action.to_be_bytes();
        rig.run(&[0xa3, 0x0c, options, code, high, low, 0, 0, 0x40, 0, 0, 0], &[], 16384)
    }

    #[test]
    fn all_commands_of_a_unit_are_reported() {
        let rig = Rig::default();
        let all = report(&rig, 0, 0, 0).data;
        let count = rows_of_disks().filter(|row| row.policy.admission.needs != Some(&PROTECTION_TYPE_2)).count();
        assert_eq!(all.len(), 4 + 8 * count);
        assert_eq!(all[4..12], [0, 0, 0, 0, 0, 0, 0, 6]);
        assert_eq!(u32::from_be_bytes([all[0], all[1], all[2], all[3]]) as usize, all.len() - 4);
        let timed = report(&rig, 0x80, 0, 0).data;
        assert_eq!(timed.len(), 4 + 20 * count);
        assert_eq!(timed[4..24], [0, 0, 0, 0, 0, 2, 0, 6, 0, 10, 0, 0, 0, 0, 0, 1, 0, 0, 0, 10]);
        let service = all[4..].chunks(8).find(|row| row[0] == 0x9e).expect("READ CAPACITY(16)");
        assert_eq!(service, [0x9e, 0, 0, 0x10, 0, 1, 0, 16]);
        let thick = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
        assert!(!report(&thick, 0, 0, 0).data[4..].chunks(8).any(|row| row[0] == 0x42));
        assert_eq!(report(&thick, 1, 0x42, 0).data, [0, 1, 0, 0]);
    }

    #[test]
    fn one_command_is_reported_by_code_and_service_action() {
        let rig = Rig::default();
        let read = [0x28, 0xfa, 0xff, 0xff, 0xff, 0xff, 0x3f, 0xff, 0xff, 0];
        assert_eq!(report(&rig, 1, 0x28, 0).data, [&[0, 3, 0, 10][..], &read].concat());
        let timed = [0, 10, 0, 0, 0, 0, 0, 10, 0, 0, 0, 60];
        assert_eq!(report(&rig, 0x81, 0x28, 0).data, [&[0, 0x83, 0, 10][..], &read, &timed].concat());
        let capacity = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
        for options in [2, 3] {
            assert_eq!(report(&rig, options, 0x9e, 0x10).data, [&[0, 3, 0, 16][..], &capacity].concat());
        }
        assert_eq!(report(&rig, 3, 0x28, 0).data[..2], [0, 3]);
        for (options, code, action) in [(1, 0x77, 0), (2, 0x77, 0), (3, 0x9e, 0x1f), (3, 0x28, 1)] {
            assert_eq!(report(&rig, options, code, action).data, [0, 1, 0, 0]);
        }
        for (options, code) in [(1, 0x9e), (2, 0x28), (4, 0x28)] {
            assert_eq!(report(&rig, options, code, 0).sense[15..], [0xca, 0, 2]);
        }
    }

    #[test]
    fn every_row_is_reported_the_same_in_every_format() {
        let rig = Rig::protected(lunar_core::protection::Kind::Two);
        for timeouts in [0, WITH_TIMEOUTS] {
            let all = report(&rig, timeouts, 0, 0).data;
            let mut rest = &all[4..];
            for row in rows_of_disks() {
                let Code { op, action } = row.policy.code;
                let (name, length) = (row.policy.name, row.length as u8);
                let described = if timeouts == 0 { 8 } else { 20 };
                let (descriptor, others) = rest.split_at(described);
                rest = others;
                let flags = u8::from(timeouts != 0) << 1 | u8::from(action.is_some());
                let [high, low] = action.unwrap_or(0).to_be_bytes();
                assert_eq!(descriptor[..8], [op.0, 0, high, low, 0, flags, 0, length], "{name}");
                let mut one = vec![0; row.length];
                row.usage(&mut Writer::new(&mut one));
                let header = [0, 3 | if timeouts == 0 { 0 } else { 0x80 }, 0, length];
                let expected = [&header[..], &one, &descriptor[8..]].concat();
                let (fitting, other) = if action.is_some() { (2, 1) } else { (1, 2) };
                for options in [fitting, 3] {
                    assert_eq!(report(&rig, timeouts | options, op.0, action.unwrap_or(0)).data, expected, "{name}");
                }
                let refused = report(&rig, timeouts | other, op.0, action.unwrap_or(0));
                assert_eq!(refused.sense[15..], [0xca, 0, 2], "{name}");
                let (nominal, recommended) = row.policy.admission.timeout.seconds();
                if timeouts != 0 {
                    let seconds = |at: usize| u32::from_be_bytes(descriptor[at..at + 4].try_into().expect("four"));
                    assert_eq!((seconds(12), seconds(16)), (nominal, recommended), "{name}");
                }
            }
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn commands_without_a_row_are_reported_as_unsupported() {
        let rig = Rig::protected(lunar_core::protection::Kind::Two);
        for op in 0..=255 {
            for action in 0..64 {
                let told = report(&rig, 3, op, action).data[1];
                let is_row = |row: &&Row| row.policy.code.op.0 == op && row.policy.code.action.unwrap_or(0) == action;
                assert_eq!(told == 3, rows_of_disks().any(|row| is_row(&row)), "{op:02x}/{action:02x}");
                assert!(matches!(told, 1 | 3));
            }
        }
    }

    #[test]
    fn supported_task_management_functions_are_reported() {
        let rig = Rig::default();
        let report =
            |options: u8, length: u8| rig.run(&[0xa3, 0x0d, options, 0, 0, 0, 0, 0, 0, length, 0, 0], &[], 255);
        assert_eq!(report(0, 4).data, [0xde, 7, 0, 0]);
        assert_eq!(report(0x80, 16).data, [0xde, 7, 0, 12, 1, 0, 0, 0, 0, 0, 2, 0x58, 0, 0, 2, 0x58]);
        assert_eq!(report(0, 3).sense[15..], [0xc0, 0, 6]);
    }
}
