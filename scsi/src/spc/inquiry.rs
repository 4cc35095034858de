//! INQUIRY: standard data, and vital product data by [`crate::pages::vpd`].

use crate::context::Context;
use crate::nexus::{Addressee, ItlNexus};
use crate::pages::vpd;
use crate::plan::{Edit, Plan};
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use crate::spc::copy::ExtendedCopyLid1;
use crate::spc::designator::{PROTOCOL_FCP, PROTOCOL_ISCSI, PROTOCOL_SRP, ascii};
use crate::spc::ports::ReportTargetPortGroups;
use lunar_core::medium::MediumKind;
use lunar_core::mem::SgMut;
use lunar_core::wire::be;
use std::collections::BTreeSet;
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

/// EVPD: a vital product data page is requested instead of the standard data.
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

/// RMB: the medium is removable.
const REMOVABLE: u8 = 0x80;
/// PERIPHERAL QUALIFIER 011b and device type 1Fh: the LUN has no logical unit.
const NOBODY: u8 = 0x7f;
/// VERSION: SPC-4, the newest version that common initiators know. Features of later standards are reported by their
/// pages.
const VERSION_SPC_4: u8 = 0x06;
/// HISUP (hierarchical LUNs), RESPONSE DATA FORMAT 2.
const HIERARCHICAL: u8 = 0x10 | 0x02;
/// TPGS = 11b: implicit and explicit asymmetric access.
const IMPLICIT_AND_EXPLICIT: u8 = 0x30;
/// 3PC: third-party copies are supported.
const THIRD_PARTY_COPY: u8 = 0x08;
/// PROTECT: protection information is supported.
const PROTECTION: u8 = 0x01;
/// MULTIP: more than one target port.
const MULTI_PORT: u8 = 0x10;
/// CMDQUE.
const QUEUING: u8 = 0x02;

/// FCP-4, of no version.
const FCP_4: u16 = 0x0a40;
const SRP: u16 = 0x0940;
/// Version descriptors of all logical units (SPC-4 6.6.2.2). A device type adds the one of its command standard.
const SAM_5: u16 = 0x00a0;
const SPC_4: u16 = 0x0460;
const ISCSI: u16 = 0x0960;

/// MULTIP, if the target device has more than one port.
fn multi_port(cx: &Context<'_>) -> u8 {
    if cx.target.ports_of_same_device(cx.nexus.name.target_port).len() > 1 { MULTI_PORT } else { 0 }
}

fn standard(cx: &Context<'_>) -> Standard {
    let lu = cx.addressee.itl().and_then(|itl| itl.lu.emulated());
    let names = lu.map(|lu| &lu.unit.identity);
    let device = match cx.addressee {
        Addressee::Unit(itl) => vpd::peripheral(itl),
        Addressee::WellKnown => cx.device.code.0,
        Addressee::NoUnit => NOBODY,
    };
    let transport = match cx.target.port(cx.nexus.name.target_port).map(|port| port.protocol) {
        Some(PROTOCOL_ISCSI) => Some(ISCSI),
        Some(PROTOCOL_FCP) => Some(FCP_4),
        Some(PROTOCOL_SRP) => Some(SRP),
        _ => None,
    };
    let versions = [Some(SAM_5), Some(SPC_4), cx.device.standard, transport];
    let mut standards = [be::U16::ZERO; 8];
    standards.iter_mut().zip(versions.into_iter().flatten()).for_each(|(to, version)| *to = version.into());
    let has = |code, flag| if cx.device.commands.has(code) { flag } else { 0 };
    let is_protected = lu.is_some_and(|lu| lu.unit.protection.is_some());
    Standard {
        device,
        removable: if lu.is_some_and(|lu| lu.kind != MediumKind::Fixed) { REMOVABLE } else { 0 },
        version: VERSION_SPC_4,
        format: HIERARCHICAL,
        additional: (size_of::<Standard>() - offset_of!(Standard, groups)) as u8,
        groups: has(ReportTargetPortGroups::POLICY.code, IMPLICIT_AND_EXPLICIT)
            | has(ExtendedCopyLid1::POLICY.code, THIRD_PARTY_COPY)
            | if is_protected { PROTECTION } else { 0 },
        ports: multi_port(cx),
        queue: QUEUING,
        vendor: ascii(names.map_or("LUNAR", |names| &names.vendor)),
        product: ascii(names.map_or("", |names| &names.product)),
        revision: ascii(names.map_or("", |names| &names.revision)),
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
    const USAGE: Self =
        Self { opcode: OpCode::INQUIRY.0, flags: EVPD, page: 0xff, allocation: be::U16::MAX_VALUE, control: 0 };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let evpd = self.flags & EVPD != 0;
        let is_forwarded = cx.addressee.itl().is_some_and(|itl| itl.lu.forwarded().is_some());
        match (evpd, self.page) {
            (false, 0) if is_forwarded => Ok(Plan::Forward(Edit::StandardInquiry)),
            (false, 0) => {
                let data = standard(cx);
                cx.out.put(&data);
                Ok(Plan::Answer)
            }
            (true, page) if vpd::write(cx, page)? => Ok(Plan::Answer),
            (true, SUPPORTED_PAGES) if is_forwarded => Ok(Plan::Forward(Edit::SupportedPages)),
            (true, _) if is_forwarded => Ok(Plan::Forward(Edit::Page)),
            _ => Err(Sense::in_cdb(offset_of!(Self, page))),
        }
    }
}

/// Page code of the list of supported VPD pages.
const SUPPORTED_PAGES: u8 = 0x00;

/// Bytes of INQUIRY data that [`edit`] may change: the fixed part of standard data, or a full list of VPD pages.
const EDITED_BYTES_MAX: usize = 4 + 256;

/// Edits the INQUIRY data of a device, whose first `moved` bytes are valid. Returns the number of valid bytes after it.
pub(crate) fn edit(cx: &Context<'_>, itl: &ItlNexus, edit: Edit, data: &mut SgMut, moved: usize) -> usize {
    if edit == Edit::None {
        return moved;
    }
    let mut bytes = [0; EDITED_BYTES_MAX];
    let head = data.copy_to(0, &mut bytes).min(moved);
    let bytes = &mut bytes[..head];
    if let Some(device) = bytes.first_mut() {
        *device = vpd::peripheral(itl);
    }
    match edit {
        Edit::StandardInquiry => edit_standard(cx, bytes),
        Edit::SupportedPages => return data.copy_from(0, &with_own_pages(cx, itl, bytes)).max(moved),
        Edit::Page | Edit::None => {}
    }
    data.copy_from(0, bytes);
    moved
}

/// Corrects the fields of standard INQUIRY data that describe ports, task sets and copies.
fn edit_standard(cx: &Context<'_>, bytes: &mut [u8]) {
    /// NORMACA: the device supports ACA conditions, which Lunar refuses.
    const NORMACA: u8 = 0x20;
    let mut set = |at: usize, mask: u8, value: u8| {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = *byte & !mask | value;
        }
    };
    set(offset_of!(Standard, format), NORMACA, 0);
    set(offset_of!(Standard, groups), IMPLICIT_AND_EXPLICIT | THIRD_PARTY_COPY, IMPLICIT_AND_EXPLICIT);
    set(offset_of!(Standard, ports), MULTI_PORT, multi_port(cx));
}

/// The list of supported VPD pages of a device with those that Lunar writes.
fn with_own_pages(cx: &Context<'_>, itl: &ItlNexus, bytes: &[u8]) -> Vec<u8> {
    let Some((header, pages)) = bytes.split_at_checked(size_of::<[u8; 4]>()) else { return bytes.to_vec() };
    let length = u16::from_be_bytes([header[2], header[3]]).into();
    if pages.len() < length {
        // The allocation length has truncated the list.
        return bytes.to_vec();
    }
    let pages: BTreeSet<u8> = pages[..length].iter().copied().chain(vpd::codes(cx, &itl.lu)).collect();
    // At most 256 page codes.
    let [high, low] = (pages.len() as u16).to_be_bytes();
    [header[0], header[1], high, low].into_iter().chain(pages).collect()
}

#[cfg(test)]
mod tests {
    use crate::command::Status;
    use crate::lun::Lun;
    use crate::testing::Rig;
    use lunar_unit::AccessState;

    fn inquiry(rig: &Rig) -> Vec<u8> {
        rig.run(&[0x12, 0, 0, 1, 4, 0], &[], 260).data
    }

    #[test]
    fn standard_data_of_a_disk() {
        let mut expected = vec![0x00, 0x00, 0x06, 0x12, 91, 0x38, 0x10, 0x02];
        expected.extend(*b"LUNAR   disk            0001");
        expected.extend([0; 22]);
        expected.extend([0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
        expected.resize(96, 0);
        assert_eq!(inquiry(&Rig::default()), expected);
    }

    #[test]
    fn a_lun_without_a_logical_unit_has_no_device_type() {
        let rig = Rig::default();
        rig.lun.set(Lun::from_number(5));
        assert_eq!(inquiry(&rig)[0], 0x7f);
        rig.lun.set(Lun::REPORT_LUNS);
        assert_eq!(inquiry(&rig)[0], 0x1e);
    }

    #[test]
    fn an_unavailable_or_offline_port_reports_the_unit_as_not_connected() {
        let rig = Rig::default();
        let itl = rig.nexus.itl(0).expect("LUN exists");
        for (state, qualifier) in [
            (AccessState::Unavailable, 0x20),
            (AccessState::Offline, 0x20),
            (AccessState::Standby, 0),
            (AccessState::Transitioning, 0),
            (AccessState::ActiveNonOptimized, 0),
        ] {
            itl.set_access(state);
            assert_eq!(inquiry(&rig)[0], qualifier, "{state:?}");
            assert_eq!(rig.run(&[0x12, 1, 0x83, 1, 0, 0], &[], 256).data[0], qualifier, "{state:?}");
        }
    }

    #[test]
    fn a_page_code_without_evpd_is_refused() {
        let ended = Rig::default().run(&[0x12, 0, 1, 1, 0, 0], &[], 256);
        assert_eq!((ended.status, &ended.sense[15..]), (Status::CHECK_CONDITION, &[0xc0, 0, 2][..]));
    }
}
