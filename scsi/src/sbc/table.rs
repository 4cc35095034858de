//! The commands and pages of direct access block devices (SBC-3).

use super::{
    atomic, cache, capacity, defects, format, lba_status, log, mode, provisioning, read_write, start_stop, token,
    verify, vpd,
};
use crate::lu::{DeviceState, Emulated};
use crate::nexus::ItlNexus;
use crate::page::{LogRow, ModeRow, VpdRow};
use crate::peripheral::PeripheralType;
use crate::row::{CommandTable, DeviceType, ModeHeader, Row, group, merged};
use crate::sbc::state::DiskState;
use crate::sense::Asc;
use crate::spc::table as spc;
use lunar_core::medium::MediumKind;

/// The commands of SBC-3.
pub(crate) const COMMANDS: &[Row] = group![
    Row: format::FormatUnit,
    read_write::Read6,
    read_write::Write6,
    start_stop::StartStopUnit,
    start_stop::PreventAllowMediumRemoval,
    capacity::ReadCapacity10,
    read_write::Read10,
    read_write::Write10,
    read_write::WriteAndVerify10,
    verify::Verify10,
    cache::PreFetch10,
    cache::SynchronizeCache10,
    defects::ReadDefectData10,
    provisioning::WriteSame10,
    provisioning::Unmap,
    format::Overwrite,
    format::BlockErase,
    format::ExitFailureMode,
    read_write::Read32,
    verify::Verify32,
    read_write::Write32,
    read_write::WriteAndVerify32,
    provisioning::WriteSame32,
    lba_status::GetLbaStatus32,
    token::PopulateToken,
    token::WriteUsingToken,
    read_write::Read16,
    verify::CompareAndWrite,
    read_write::Write16,
    atomic::OrWrite16,
    read_write::WriteAndVerify16,
    verify::Verify16,
    cache::PreFetch16,
    cache::SynchronizeCache16,
    provisioning::WriteSame16,
    atomic::WriteAtomic16,
    capacity::ReadCapacity16,
    lba_status::GetLbaStatus16,
    read_write::Read12,
    read_write::Write12,
    read_write::WriteAndVerify12,
    verify::Verify12,
    defects::ReadDefectData12,
];

const VPD: &[VpdRow] = group![VpdRow: vpd::Limits, vpd::Characteristics, vpd::Provisioning];

const MODE: &[ModeRow] = group![
    ModeRow: mode::disk::ErrorRecovery,
    mode::disk::Caching,
    mode::disk::ApplicationTag,
    mode::provisioning::Provisioning,
];

const LOG: &[LogRow] = group![LogRow: log::Provisioning];

/// DEVICE-SPECIFIC PARAMETER: write-protected (SBC-3 6.5.1).
const WP: u8 = 0x80;
/// DEVICE-SPECIFIC PARAMETER: DPO and FUA are evaluated (SBC-3 6.5.1).
const DPOFUA: u8 = 0x10;

fn device_specific(itl: &ItlNexus) -> u8 {
    if itl.write_protected() { WP | DPOFUA } else { DPOFUA }
}

fn block_descriptor(lu: &Emulated) -> (u64, u32) {
    let geometry = lu.unit.geometry;
    (geometry.blocks, geometry.block_size)
}

/// Disks with fixed and with removable media.
pub static DISK: DeviceType = DeviceType {
    code: PeripheralType::DISK,
    name: "Disks",
    standard: Some(0x04c0),
    media: &[MediumKind::Fixed, MediumKind::Removable],
    state: || DeviceState::Disk(DiskState::default()),
    commands: CommandTable::new(
        merged!(merge_commands: [Row; spc::ANYWHERE, spc::WELL_KNOWN, spc::BASIC, spc::FULL, COMMANDS]),
    ),
    unsupported: Asc::INVALID_COMMAND_OPERATION_CODE,
    vpd: merged!(merge_vpd: [VpdRow; spc::VPD_BASIC, spc::VPD_FULL, VPD]),
    mode: merged!(merge_mode: [ModeRow; spc::MODE_BASIC, spc::MODE_FULL, MODE]),
    mode_header: ModeHeader { device_specific, block_descriptor: Some(block_descriptor) },
    log: merged!(merge_log: [LogRow; spc::LOG, LOG]),
    forwarded: CommandTable::new(
        merged!(merge_commands: [Row; spc::ANYWHERE, spc::WELL_KNOWN, spc::BASIC, spc::FULL, COMMANDS]),
    ),
};
