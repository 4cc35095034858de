//! REPORT TARGET PORT GROUPS and SET TARGET PORT GROUPS.

use crate::access::{AluaState, status_code};
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::wire::be;
use lunar_unit::access::{AccessChange, GroupAccess};
use lunar_unit::{AccessState, UnitChange};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// REPORT TARGET PORT GROUPS
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReportTargetPortGroups {
    opcode: u8,
    action: u8,
    reserved: [u8; 4],
    allocation: be::U32,
    reserved2: u8,
    control: u8,
}

/// Service action of both.
const ACTION: u8 = 0x0a;
/// PARAMETER DATA FORMAT: 000b, or 001b with an extended header.
const FORMAT: u8 = 0xe0;
/// The extended header format.
const EXTENDED: u8 = 0x20;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Group {
    /// PREF, asymmetric access state.
    state: u8,
    /// States that the group supports.
    supported: u8,
    id: be::U16,
    reserved: u8,
    /// The cause of the state.
    status: u8,
    vendor: u8,
    ports: u8,
}

/// PREF.
const PREFERRED: u8 = 0x80;
/// T_SUP, O_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP.
const SUPPORTED: u8 = 0x80 | 0x40 | 0x08 | 0x04 | 0x02 | 0x01;
/// IMPLICIT TRANSITION TIME in seconds: how long a transition is waited for.
const TRANSITION_SECONDS: u8 = 60;

impl CommandType for ReportTargetPortGroups {
    const POLICY: Policy = Policy {
        name: "REPORT TARGET PORT GROUPS",
        clause: "SPC-4 6.37",
        code: Code::with_action(OpCode::MAINTENANCE_IN, ACTION),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Lunar,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Passes,
            alua: Alua::Every,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::MAINTENANCE_IN.0,
        action: FORMAT | ACTION,
        reserved: [0; 4],
        allocation: be::U32::MAX_VALUE,
        reserved2: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.lu()?;
        cx.out.zeros(4);
        match self.action & FORMAT {
            0 => {}
            EXTENDED => {
                cx.out.bytes(&[0x10, TRANSITION_SECONDS, 0, 0]);
            }
            _ => return Err(Sense::bit_in_cdb(1, 7)),
        }
        let ports = cx.target.ports_of_same_device(cx.nexus.name.target_port);
        let mut groups: Vec<u16> = ports.iter().map(|port| port.group).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            let GroupAccess { state, cause, preferred } = lu.access(group);
            let members = ports.iter().filter(|port| port.group == group).take(usize::from(u8::MAX));
            cx.out.put(&Group {
                state: AluaState::of(state).0 | if preferred { PREFERRED } else { 0 },
                supported: SUPPORTED,
                id: group.into(),
                reserved: 0,
                status: status_code(cause),
                vendor: 0,
                // At most 255 are written.
                ports: members.clone().count() as u8,
            });
            for port in members {
                cx.out.zeros(2).bytes(&port.relative.to_be_bytes());
            }
        }
        let length = (cx.out.written() - 4) as u32;
        cx.out.patch(0, &length.to_be_bytes());
        Ok(Plan::Answer)
    }
}

/// SET TARGET PORT GROUPS
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SetTargetPortGroups {
    opcode: u8,
    action: u8,
    reserved: [u8; 4],
    length: be::U32,
    reserved2: u8,
    control: u8,
}

/// A descriptor of SET TARGET PORT GROUPS (SPC-4 6.45).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StateDescriptor {
    /// ASYMMETRIC ACCESS STATE.
    state: u8,
    reserved: u8,
    /// TARGET PORT GROUP; the TARGET PORT for a state of ports.
    whose: be::U16,
}

/// ASYMMETRIC ACCESS STATE.
const STATE: u8 = 0x0f;
/// Bytes before the first descriptor.
const HEADER_BYTES: usize = 4;
/// Most descriptors: more than any target has groups, so that the list stays small.
const DESCRIPTORS_MAX: usize = 1024;

impl SetTargetPortGroups {
    /// Whether the list has an allowed length. If not, none of it is pulled.
    fn fits(&self) -> bool {
        self.length.get() as usize <= HEADER_BYTES + DESCRIPTORS_MAX * size_of::<StateDescriptor>()
    }
}

/// The group of the descriptor at byte `at` of the list, and the requested state.
fn wanted(cx: &Context<'_>, descriptor: &StateDescriptor, at: usize) -> Result<(u16, AccessState), Sense> {
    let whose = Sense::in_list(at + offset_of!(StateDescriptor, whose));
    if descriptor.state & !STATE != 0 {
        return Err(Sense::bit_in_list(at, 7));
    }
    if descriptor.reserved != 0 {
        return Err(Sense::in_list(at + offset_of!(StateDescriptor, reserved)));
    }
    let ports = cx.target.ports_of_same_device(cx.nexus.name.target_port);
    let state = AluaState(descriptor.state).state().ok_or_else(|| Sense::bit_in_list(at, 3))?;
    match state {
        AccessState::ActiveOptimized
        | AccessState::ActiveNonOptimized
        | AccessState::Standby
        | AccessState::Unavailable => {
            let found = ports.iter().find(|port| port.group == descriptor.whose.get());
            found.map(|port| (port.group, state)).ok_or(whose)
        }
        // Ports go offline, not groups (SPC-4 5.15.2.4.6); a group with one port goes offline with it.
        AccessState::Offline => {
            let group = cx.target.port(descriptor.whose.get()).ok_or(whose)?.group;
            match ports.iter().filter(|port| port.group == group).count() {
                1 => Ok((group, state)),
                _ => Err(whose),
            }
        }
        AccessState::Transitioning => Err(Sense::bit_in_list(at, 3)),
    }
}

impl CommandType for SetTargetPortGroups {
    const POLICY: Policy = Policy {
        name: "SET TARGET PORT GROUPS",
        clause: "SPC-4 6.45",
        code: Code::with_action(OpCode::MAINTENANCE_OUT, ACTION),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Lunar,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Settled,
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
    const DATA: Data<Self> = Data::List(|cdb| if cdb.fits() { cdb.length.get() } else { 0 });

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        const SHORT: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        cx.lu()?;
        if !self.fits() {
            return Err(Sense::in_cdb(offset_of!(Self, length)));
        }
        if self.length.get() == 0 {
            return Ok(Plan::Done);
        }
        let (header, descriptors) = list.split_at_checked(HEADER_BYTES).ok_or(SHORT)?;
        if list.len() < self.length.get() as usize {
            return Err(SHORT);
        }
        if let Some(byte) = header.iter().position(|byte| *byte != 0) {
            return Err(Sense::in_list(byte));
        }
        let wishes = <[StateDescriptor]>::ref_from_bytes(descriptors).map_err(|_| SHORT)?;
        let change = |(number, descriptor): (usize, &StateDescriptor)| {
            let (group, state) = wanted(cx, descriptor, HEADER_BYTES + number * size_of::<StateDescriptor>())?;
            Ok(AccessChange::explicit(group, state))
        };
        let changes = wishes.iter().enumerate().map(change).collect::<Result<Vec<_>, Sense>>()?;
        Ok(Plan::Propose(Box::new(UnitChange::Access(changes))))
    }
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
