//! The commands and pages of CD and DVD drives (MMC-6).

use super::{disc, drive, mode, read_cd};
use crate::lu::DeviceState;
use crate::page::{ModeRow, VpdRow};
use crate::peripheral::PeripheralType;
use crate::row::{CommandTable, DeviceType, ModeHeader, Row, group, merged};
use crate::sbc::{capacity, read_write, start_stop};
use crate::sense::Asc;
use crate::spc::table as spc;
use lunar_core::medium::MediumKind;

/// The commands of MMC-6.
pub(crate) const COMMANDS: &[Row] = group![
    Row: start_stop::StartStopUnit,
    start_stop::PreventAllowMediumRemoval,
    capacity::ReadCapacity10,
    read_write::Read10,
    drive::Seek10,
    disc::ReadTocPmaAtip,
    drive::GetConfiguration,
    drive::GetEventStatusNotification,
    disc::ReadDiscInformation,
    disc::ReadTrackInformation,
    read_write::Read12,
    disc::ReadDiscStructure,
    read_cd::ReadCdMsf,
    drive::MechanismStatus,
    read_cd::ReadCd,
];

const MODE: &[ModeRow] = group![ModeRow: mode::ErrorRecovery, mode::Capabilities];

/// CD and DVD drives.
pub static DRIVE: DeviceType = DeviceType {
    code: PeripheralType::CD_DVD,
    name: "CD and DVD drives",
    standard: Some(0x04e0),
    media: &[MediumKind::Optical],
    state: || DeviceState::None,
    commands: CommandTable::new(merged!(merge_commands: [Row; spc::ANYWHERE, spc::WELL_KNOWN, spc::BASIC, COMMANDS])),
    unsupported: Asc::INVALID_COMMAND_OPERATION_CODE,
    vpd: merged!(merge_vpd: [VpdRow; spc::VPD_BASIC]),
    mode: merged!(merge_mode: [ModeRow; spc::MODE_BASIC, MODE]),
    mode_header: ModeHeader::NONE,
    log: &[],
    forwarded: CommandTable::new(
        merged!(merge_commands: [Row; spc::ANYWHERE, spc::WELL_KNOWN, spc::BASIC, spc::FULL, COMMANDS]),
    ),
};
