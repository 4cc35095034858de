//! The commands and pages of SPC-4, in groups from which device types compose their tables.

use super::{
    buffer, clock, copy, copy_results, information, inquiry, log, log_sense, luns, mode, mode_sense, persistent, ports,
    ready, reserve, supported, vpd,
};
use crate::lu::DeviceState;
use crate::page::{LogRow, ModeRow, VpdRow};
use crate::peripheral::PeripheralType;
use crate::row::{CommandTable, DeviceType, ModeHeader, Row, group, merged};
use crate::sense::Asc;

/// Commands that are answered even for a LUN without a logical unit (SPC-4 6.6.2, SAM-5 5.11).
pub(crate) const ANYWHERE: &[Row] = group![Row: ready::RequestSense, inquiry::Inquiry, luns::ReportLuns];

/// Further commands of every logical unit, the well-known one included.
pub(crate) const WELL_KNOWN: &[Row] = group![Row: ready::TestUnitReady];

/// Further commands of every logical unit except the well-known one.
pub(crate) const BASIC: &[Row] = group![
    Row: mode_sense::ModeSelect6,
    mode_sense::ModeSense6,
    mode_sense::ModeSelect10,
    mode_sense::ModeSense10,
];

/// All other commands of SPC-4.
pub(crate) const FULL: &[Row] = group![
    Row: reserve::Reserve6,
    reserve::Release6,
    buffer::WriteBuffer,
    buffer::ReadBuffer10,
    log_sense::LogSelect,
    log_sense::LogSense,
    reserve::Reserve10,
    reserve::Release10,
    persistent::ReadKeys,
    persistent::ReadReservation,
    persistent::ReportCapabilities,
    persistent::ReadFullStatus,
    persistent::Register,
    persistent::Reserve,
    persistent::Release,
    persistent::Clear,
    persistent::Preempt,
    persistent::PreemptAndAbort,
    persistent::RegisterAndIgnoreExistingKey,
    persistent::RegisterAndMove,
    copy::ExtendedCopyLid1,
    copy::ExtendedCopyLid4,
    copy::CopyOperationAbort,
    copy_results::ReceiveCopyStatusLid1,
    copy_results::ReceiveCopyOperatingParameters,
    copy_results::ReceiveCopyFailureDetailsLid1,
    copy_results::ReceiveCopyStatusLid4,
    copy_results::ReceiveRodTokenInformation,
    copy_results::ReportAllRodTokens,
    buffer::ReadBuffer16,
    information::ReportIdentifyingInformation,
    ports::ReportTargetPortGroups,
    supported::ReportSupportedOperationCodes,
    supported::ReportSupportedTaskManagementFunctions,
    clock::ReportTimestamp,
    information::SetIdentifyingInformation,
    ports::SetTargetPortGroups,
    clock::SetTimestamp,
];

/// Vital product data pages of every logical unit.
pub(crate) const VPD_BASIC: &[VpdRow] = group![
    VpdRow: vpd::supported::Supported,
    vpd::identification::SerialNumber,
    vpd::identification::DeviceIdentification,
    vpd::policy::ModePagePolicy,
    vpd::identification::ScsiPorts,
];

/// All other vital product data pages of SPC-4.
pub(crate) const VPD_FULL: &[VpdRow] = group![VpdRow: vpd::extended::Extended, vpd::copy::ThirdPartyCopy];

/// Vital product data pages that Lunar writes for a forwarded logical unit, instead of the device: names and target
/// ports are Lunar's.
pub(crate) const VPD_FORWARDED: &[VpdRow] =
    group![VpdRow: vpd::identification::DeviceIdentification, vpd::identification::ScsiPorts];

/// Mode pages of every logical unit.
pub(crate) const MODE_BASIC: &[ModeRow] = group![ModeRow: mode::power::PowerCondition];

/// All other mode pages of SPC-4.
pub(crate) const MODE_FULL: &[ModeRow] = group![
    ModeRow: mode::connection::DisconnectReconnect,
    mode::control::Control,
    mode::control::ControlExtension,
    mode::connection::ProtocolSpecificLogicalUnit,
    mode::connection::ProtocolSpecificPort,
    mode::exceptions::Exceptions,
];

/// Log pages of every logical unit that has LOG SENSE.
pub(crate) const LOG: &[LogRow] = group![
    LogRow: log::supported::Supported,
    log::supported::SupportedSubpages,
    log::counters::WriteErrors,
    log::counters::ReadErrors,
    log::counters::VerifyErrors,
    log::health::Temperature,
    log::client::ApplicationClient,
    log::counters::Performance,
    log::health::InformationalExceptions,
];

/// The well-known logical unit REPORT LUNS (SPC-4 8.2).
pub static WELL_KNOWN_UNIT: DeviceType = DeviceType {
    code: PeripheralType::WELL_KNOWN,
    name: "Well-known logical unit REPORT LUNS",
    standard: None,
    media: &[],
    state: || DeviceState::None,
    commands: CommandTable::new(merged!(merge_commands: [Row; ANYWHERE, WELL_KNOWN])),
    unsupported: Asc::INVALID_COMMAND_OPERATION_CODE,
    vpd: &[],
    mode: &[],
    mode_header: ModeHeader::NONE,
    log: &[],
    forwarded: CommandTable::new(&[]),
};

/// A LUN without a logical unit.
pub static NO_UNIT: DeviceType = DeviceType {
    code: PeripheralType::UNKNOWN,
    name: "LUN without a logical unit",
    standard: None,
    media: &[],
    state: || DeviceState::None,
    commands: CommandTable::new(merged!(merge_commands: [Row; ANYWHERE])),
    unsupported: Asc::LOGICAL_UNIT_NOT_SUPPORTED,
    vpd: &[],
    mode: &[],
    mode_header: ModeHeader::NONE,
    log: &[],
    forwarded: CommandTable::new(&[]),
};

/// Forwarded logical units of a device type that has no folder here: the commands of SPC-4.
pub static OTHER: DeviceType = DeviceType {
    code: PeripheralType::UNKNOWN,
    name: "Forwarded logical units of other device types",
    standard: None,
    media: &[],
    state: || DeviceState::None,
    commands: CommandTable::new(&[]),
    unsupported: Asc::INVALID_COMMAND_OPERATION_CODE,
    vpd: VPD_FORWARDED,
    mode: &[],
    mode_header: ModeHeader::NONE,
    log: &[],
    forwarded: CommandTable::new(merged!(merge_commands: [Row; ANYWHERE, WELL_KNOWN, BASIC, FULL])),
};
