//! REPORT TARGET PORT GROUPS.

use crate::context::Context;
use crate::nexus::AluaState;
use crate::plan::Plan;
use crate::sense::Sense;
use crate::table::{
    Alua, Code, CommandType, Data, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Timeout,
};
use lunar_core::wire::be;
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

/// Service action of REPORT TARGET PORT GROUPS.
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
    /// States that the group may be in.
    supported: u8,
    id: be::U16,
    reserved: u8,
    /// Why it is in this state: nobody changed it.
    status: u8,
    vendor: u8,
    ports: u8,
}

/// T_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP.
const SUPPORTED: u8 = 0x80 | 0x08 | 0x04 | 0x02 | 0x01;
/// IMPLICIT TRANSITION TIME in seconds: how long a transition is waited for.
const TRANSITION_SECONDS: u8 = 60;

impl CommandType for ReportTargetPortGroups {
    const POLICY: Policy = Policy {
        name: "REPORT TARGET PORT GROUPS",
        clause: "SPC-4 6.37",
        code: Code::with_action(OpCode::MAINTENANCE_IN, ACTION),
        effect: Effect::None,
        gates: Gates {
            reach: Reach::Disk,
            needs: Needs::Nothing,
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
        let own = cx.target.port(cx.nexus.name.target_port).map(|port| port.group);
        let state = cx.itl()?.alua();
        cx.out.zeros(4);
        match self.action & FORMAT {
            0 => {}
            EXTENDED => {
                cx.out.bytes(&[0x10, TRANSITION_SECONDS, 0, 0]);
            }
            _ => return Err(Sense::bit_in_cdb(1, 7)),
        }
        let ports = &cx.target.config().ports;
        let mut groups: Vec<u16> = ports.iter().map(|port| port.group).collect();
        groups.sort_unstable();
        groups.dedup();
        for id in groups {
            let members = ports.iter().filter(|port| port.group == id).take(usize::from(u8::MAX));
            let state = if Some(id) == own { state } else { AluaState::ACTIVE_OPTIMIZED };
            cx.out.put(&Group {
                state: state.0,
                supported: SUPPORTED,
                id: id.into(),
                reserved: 0,
                status: 0,
                vendor: 0,
                // At most 255 are taken.
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

#[cfg(test)]
mod tests {
    use crate::fuzzing::Rig;
    use crate::nexus::AluaState;

    #[test]
    fn golden() {
        let rig = Rig::default();
        let report = |format: u8| rig.run(&[0xa3, format | 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256).data;
        let group = [0, 0x8f, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(report(0), [&[0, 0, 0, 16][..], &group].concat());
        assert_eq!(report(0x20), [&[0, 0, 0, 20, 0x10, 60, 0, 0][..], &group].concat());
        rig.nexus.itl(0).expect("there").set_alua(AluaState::STANDBY);
        assert_eq!(report(0)[4], 2);
        assert_eq!(rig.run(&[0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256).sense[15..], [0xcf, 0, 1]);
    }
}
