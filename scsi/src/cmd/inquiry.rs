//! INQUIRY; the vital product data is in [`crate::vpd`].

use crate::access::AluaState;
use crate::context::Context;
use crate::nexus::{Addressee, ItlNexus};
use crate::plan::Plan;
use crate::sense::Sense;
use crate::table::{
    Alua, Code, CommandType, Data, Effect, Gate, Gates, Needs, OpCode, Persistent, Policy, Reach, Timeout,
};
use crate::vpd;
use lunar_core::medium::MediumKind;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// INQUIRY
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Inquiry {
    opcode: u8,
    flags: u8,
    page: u8,
    allocation: be::U16,
    control: u8,
}

/// EVPD: a page of vital product data instead of the standard data.
const EVPD: u8 = 0x01;

/// Standard INQUIRY data (SPC-4 6.6.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Standard {
    device: u8,
    removable: u8,
    version: u8,
    format: u8,
    additional: u8,
    /// SCCS, ACC, TPGS, 3PC, PROTECT.
    groups: u8,
    /// ENCSERV, MULTIP.
    ports: u8,
    /// CMDQUE.
    queue: u8,
    vendor: [u8; 8],
    product: [u8; 16],
    revision: [u8; 4],
    vendor_specific: [u8; 20],
    reserved: [u8; 2],
    standards: [be::U16; 8],
    reserved2: [u8; 22],
}

/// A direct access block device that is connected.
pub(crate) const DISK: u8 = 0x00;
/// PERIPHERAL QUALIFIER 001b: a disk that is there, but not by this way.
const NOT_CONNECTED: u8 = 0x20;
/// A CD or DVD drive.
const DRIVE: u8 = 0x05;
/// RMB: the medium can be taken out.
const REMOVABLE: u8 = 0x80;
/// A well-known logical unit.
const WELL_KNOWN: u8 = 0x1e;
/// PERIPHERAL QUALIFIER 011b, device type unknown: nobody has this LUN.
const NOBODY: u8 = 0x7f;
/// VERSION: SPC-4, the newest that initiators know; what later standards add is announced page by page.
const SPC_4: u8 = 0x06;
/// HISUP (LUNs are structured as SAM says), RESPONSE DATA FORMAT 2.
const HIERARCHICAL: u8 = 0x10 | 0x02;
/// TPGS = 11b: implicit and explicit asymmetric access.
const IMPLICIT_AND_EXPLICIT: u8 = 0x30;
/// 3PC: third-party copies.
const THIRD_PARTY_COPY: u8 = 0x08;
/// PROTECT: protection information can be kept.
const PROTECTION: u8 = 0x01;
/// MULTIP: more than one target port.
const MULTI_PORT: u8 = 0x10;
/// CMDQUE.
const QUEUING: u8 = 0x02;

lunar_core::codes! {
    /// Version descriptors (SPC-4 6.6.2.2).
    struct Version(u16) { SAM_5 = 0x00a0, SPC_4 = 0x0460, SBC_3 = 0x04c0, MMC_6 = 0x04e0, ISCSI = 0x0960 }
}

/// ASCII, left-aligned, filled up with blanks (SPC-4 4.3.1).
pub(crate) fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let printable = text.bytes().filter(|byte| matches!(byte, 0x20..=0x7e));
    field.iter_mut().zip(printable).for_each(|(to, from)| *to = from);
    field
}

/// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE of a unit (SPC-4 5.15.2.4.5).
pub(crate) fn peripheral(itl: &ItlNexus) -> u8 {
    let device = match itl.lu.kind {
        MediumKind::Fixed | MediumKind::Removable => DISK,
        MediumKind::Optical => DRIVE,
    };
    match itl.alua() {
        AluaState::UNAVAILABLE | AluaState::OFFLINE => NOT_CONNECTED | device,
        _ => device,
    }
}

fn standard(cx: &Context<'_>) -> Standard {
    let (device, names) = match cx.addressee {
        Addressee::Disk(itl) => (peripheral(itl), Some(&itl.lu.unit.identity)),
        Addressee::WellKnown => (WELL_KNOWN, None),
        Addressee::Nobody => (NOBODY, None),
    };
    let kind = match cx.addressee {
        Addressee::Disk(itl) => Some(itl.lu.kind),
        _ => None,
    };
    let is_disk = kind.is_some_and(|kind| Reach::Disk.covers(kind));
    let mut standards = [be::U16::ZERO; 8];
    let commands = if kind == Some(MediumKind::Optical) { Version::MMC_6 } else { Version::SBC_3 };
    let versions = [Version::SAM_5, Version::SPC_4, commands, Version::ISCSI];
    let is_iscsi = cx.target.port(cx.nexus.name.target_port).is_some_and(|port| port.protocol == vpd::PROTOCOL_ISCSI);
    let known = if is_iscsi { versions.len() } else { versions.len() - 1 };
    standards.iter_mut().zip(&versions[..known]).for_each(|(to, version)| *to = version.0.into());
    Standard {
        device,
        removable: if matches!(kind, None | Some(MediumKind::Fixed)) { 0 } else { REMOVABLE },
        version: SPC_4,
        format: HIERARCHICAL,
        additional: (size_of::<Standard>() - offset_of!(Standard, groups)) as u8,
        // The operation codes of a drive mean other things: it cannot be asked about groups or for copies.
        groups: match cx.addressee {
            Addressee::Disk(itl) if is_disk && itl.lu.unit.protection.is_some() => {
                IMPLICIT_AND_EXPLICIT | THIRD_PARTY_COPY | PROTECTION
            }
            Addressee::Disk(_) if is_disk => IMPLICIT_AND_EXPLICIT | THIRD_PARTY_COPY,
            _ => 0,
        },
        ports: if cx.target.ports_beside(cx.nexus.name.target_port).len() > 1 { MULTI_PORT } else { 0 },
        queue: QUEUING,
        vendor: text(names.map_or("LUNAR", |names| &names.vendor)),
        product: text(names.map_or("", |names| &names.product)),
        revision: text(names.map_or("", |names| &names.revision)),
        vendor_specific: [0; 20],
        reserved: [0; 2],
        standards,
        reserved2: [0; 22],
    }
}

impl CommandType for Inquiry {
    const POLICY: Policy = Policy {
        name: "INQUIRY",
        clause: "SPC-4 6.6",
        code: Code::of(OpCode::INQUIRY),
        effect: Effect::None,
        gates: Gates {
            reach: Reach::Anywhere,
            needs: Needs::Nothing,
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
        Self { opcode: OpCode::INQUIRY.0, flags: EVPD, page: 0xff, allocation: be::U16::MAX_VALUE, control: 0 };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let evpd = self.flags & EVPD != 0;
        match (evpd, self.page) {
            (false, 0) => {
                let data = standard(cx);
                cx.out.put(&data);
            }
            (true, page) => vpd::write(cx, page).ok_or(Sense::in_cdb(offset_of!(Self, page)))?,
            (false, _) => return Err(Sense::in_cdb(offset_of!(Self, page))),
        }
        Ok(Plan::Answer)
    }
}

#[cfg(test)]
mod tests {
    use crate::access::AluaState;
    use crate::command::Status;
    use crate::fuzzing::Rig;
    use crate::lun::Lun;

    fn inquiry(rig: &Rig) -> Vec<u8> {
        rig.run(&[0x12, 0, 0, 1, 4, 0], &[], 260).data
    }

    #[test]
    fn golden_standard() {
        let mut expected = vec![0x00, 0x00, 0x06, 0x12, 91, 0x38, 0x10, 0x02];
        expected.extend(*b"LUNAR   disk            0001");
        expected.extend([0; 22]);
        expected.extend([0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
        expected.resize(96, 0);
        assert_eq!(inquiry(&Rig::default()), expected);
    }

    #[test]
    fn a_lun_that_nobody_has() {
        let rig = Rig::default();
        rig.lun.set(Lun::from_number(5));
        assert_eq!(inquiry(&rig)[0], 0x7f);
        rig.lun.set(Lun::REPORT_LUNS);
        assert_eq!(inquiry(&rig)[0], 0x1e);
    }

    #[test]
    fn a_disk_that_cannot_be_reached_is_not_connected() {
        let rig = Rig::default();
        let itl = rig.nexus.itl(0).expect("there");
        for (state, qualifier) in [
            (AluaState::UNAVAILABLE, 0x20),
            (AluaState::OFFLINE, 0x20),
            (AluaState::STANDBY, 0),
            (AluaState::TRANSITIONING, 0),
            (AluaState::ACTIVE_NON_OPTIMIZED, 0),
        ] {
            itl.set_alua(state);
            assert_eq!(inquiry(&rig)[0], qualifier, "{state:?}");
            assert_eq!(rig.run(&[0x12, 1, 0x83, 1, 0, 0], &[], 256).data[0], qualifier, "{state:?}");
        }
    }

    #[test]
    fn a_page_without_evpd_is_an_error() {
        let ended = Rig::default().run(&[0x12, 0, 1, 1, 0, 0], &[], 256);
        assert_eq!((ended.status, &ended.sense[15..]), (Status::CHECK_CONDITION, &[0xc0, 0, 2][..]));
    }
}
