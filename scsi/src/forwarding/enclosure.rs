//! Enclosures: the commands of SES-3 that a device executes.

use super::rows::device_rows;
use crate::lu::DeviceState;
use crate::peripheral::PeripheralType;
use crate::row::{CommandTable, DeviceType, ModeHeader, Row, merged};
use crate::sense::Asc;
use crate::spc::table as spc;

const COMMANDS: &[Row] = device_rows![
    0x1c, "RECEIVE DIAGNOSTIC RESULTS", "SPC-4", 6, In, ASKS;
    0x1d, "SEND DIAGNOSTIC", "SPC-4", 6, Out, CONTROLS;
];

/// Enclosures.
pub(crate) static ENCLOSURE: DeviceType = DeviceType {
    code: PeripheralType::ENCLOSURE,
    name: "Enclosures",
    standard: None,
    media: &[],
    state: || DeviceState::None,
    commands: CommandTable::new(&[]),
    unsupported: Asc::INVALID_COMMAND_OPERATION_CODE,
    vpd: spc::VPD_FORWARDED,
    mode: &[],
    mode_header: ModeHeader::NONE,
    log: &[],
    forwarded: CommandTable::new(merged!(merge_commands: [
        Row; spc::ANYWHERE, spc::WELL_KNOWN, spc::BASIC, spc::FULL, COMMANDS
    ])),
};
