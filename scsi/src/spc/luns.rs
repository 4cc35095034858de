//! REPORT LUNS.

use crate::context::Context;
use crate::lun::Lun;
use crate::nexus::Addressee;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// REPORT LUNS
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReportLuns {
    opcode: u8,
    reserved: u8,
    select: u8,
    reserved2: [u8; 3],
    allocation: be::U32,
    reserved3: u8,
    control: u8,
}

lunar_core::codes! {
    /// SELECT REPORT (SPC-4 6.33, SPC-5 6.35).
    struct Select(u8) {
        DISKS = 0x00, WELL_KNOWN = 0x01, ALL = 0x02, ADMINISTRATIVE = 0x10, TOP_LEVEL = 0x11, CONGLOMERATE = 0x12,
    }
}

impl CommandType for ReportLuns {
    const POLICY: Policy = Policy {
        name: "REPORT LUNS",
        clause: "SPC-4 6.33",
        code: Code::of(OpCode::REPORT_LUNS),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Lunar,
            attention: Gate::Passes,
            spc2: Gate::Passes,
            persistent: Persistent::Passes,
            alua: Alua::Every,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::REPORT_LUNS.0,
        reserved: 0,
        select: 0xff,
        reserved2: [0; 3],
        allocation: be::U32::MAX_VALUE,
        reserved3: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        // LUN 0 answers even without a logical unit, so that an initiator can begin its discovery (SPC-4 6.33).
        if matches!(cx.addressee, Addressee::NoUnit) && cx.command.lun.number() != Some(0) {
            return Err(Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED));
        }
        let (disks, well_known) = match Select(self.select) {
            Select::DISKS | Select::TOP_LEVEL => (true, false),
            Select::WELL_KNOWN => (false, true),
            Select::ALL => (true, true),
            // No logical unit is administrative or has subsidiary logical units.
            Select::ADMINISTRATIVE | Select::CONGLOMERATE => (false, false),
            _ => return Err(Sense::in_cdb(offset_of!(Self, select))),
        };
        cx.out.zeros(8);
        if disks {
            cx.nexus.each(|itl| {
                cx.out.put(&Lun::from_number(itl.lun));
            });
        }
        if well_known {
            cx.out.put(&Lun::REPORT_LUNS);
        }
        // At most LUNS_MAX + 1 LUNs of eight bytes.
        let length = (cx.out.written() - 8) as u32;
        cx.out.patch(0, &length.to_be_bytes());
        cx.nexus.each(|itl| itl.forget_attention(Asc::REPORTED_LUNS_DATA_CHANGED));
        Ok(Plan::Answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Status;
    use crate::testing::{Memory, Rig};

    fn report(rig: &Rig, select: u8) -> Vec<u8> {
        rig.run(&[0xa0, 0, select, 0, 0, 0, 0, 0, 16, 0, 0, 0], &[], 4096).data
    }

    #[test]
    fn select_report_chooses_which_luns_are_listed() {
        let rig = Rig::default();
        let unit = |id| Rig::unit(id, Rig::traits(), std::rc::Rc::new(Memory::default()));
        rig.target.add_unit(300, unit(1));
        rig.target.add_unit(2, unit(2));
        let disks = [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x41, 0x2c, 0, 0, 0, 0, 0, 0];
        let known = Lun::REPORT_LUNS.0;
        assert_eq!(report(&rig, 0), [&[0, 0, 0, 24, 0, 0, 0, 0][..], &disks].concat());
        assert_eq!(report(&rig, 1), [&[0, 0, 0, 8, 0, 0, 0, 0][..], &known].concat());
        assert_eq!(report(&rig, 2), [&[0, 0, 0, 32, 0, 0, 0, 0][..], &disks, &known].concat());
        assert_eq!(report(&rig, 0x10), [0; 8]);
        assert_eq!(rig.run(&[0xa0, 0, 3, 0, 0, 0, 0, 0, 16, 0, 0, 0], &[], 16).sense[15..], [0xc0, 0, 2]);
    }

    #[test]
    fn report_luns_clears_the_unit_attention_of_a_changed_inventory() {
        let rig = Rig::default();
        rig.target.add_unit(1, Rig::unit(1, Rig::traits(), std::rc::Rc::new(Memory::default())));
        let itl = rig.nexus.itl(0).expect("LUN exists");
        assert_eq!(itl.attention(), Some((Asc::REPORTED_LUNS_DATA_CHANGED, 1)));
        assert_eq!(report(&rig, 0).len(), 24);
        assert_eq!(itl.attention(), None);
    }

    #[test]
    fn lun_0_answers_even_without_a_logical_unit() {
        let rig = Rig::default();
        rig.target.remove_unit(0);
        assert_eq!(report(&rig, 0), [0; 8]);
        rig.lun.set(Lun::from_number(1));
        assert_eq!(rig.run(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0], &[], 16).status, Status::CHECK_CONDITION);
    }
}
