//! Medium changers: the commands of SMC-3 that a device executes.

use super::REMOVAL;
use super::rows::device_rows;
use crate::lu::DeviceState;
use crate::peripheral::PeripheralType;
use crate::row::{CommandTable, DeviceType, ModeHeader, Row, merged};
use crate::sense::Asc;
use crate::spc::table as spc;

const COMMANDS: &[Row] = device_rows![
    0x07, "INITIALIZE ELEMENT STATUS", "SMC-3", 6, None, MOVES;
    0x1b, "OPEN/CLOSE IMPORT/EXPORT ELEMENT", "SMC-3", 6, None, MOVES;
    0x2b, "POSITION TO ELEMENT", "SMC-3", 10, None, MOVES;
    0x37, "INITIALIZE ELEMENT STATUS WITH RANGE", "SMC-3", 10, None, MOVES;
    0x44, "REPORT VOLUME TYPES SUPPORTED", "SMC-3", 10, In, ASKS;
    0x8c, "READ ATTRIBUTE", "SPC-4", 16, In, READS;
    0x8d, "WRITE ATTRIBUTE", "SPC-4", 16, Out, WRITES;
    0xa5, "MOVE MEDIUM", "SMC-3", 12, None, MOVES;
    0xa6, "EXCHANGE MEDIUM", "SMC-3", 12, None, MOVES;
    0xb5, "REQUEST VOLUME ELEMENT ADDRESS", "SMC-3", 12, In, ASKS;
    0xb6, "SEND VOLUME TAG", "SMC-3", 12, Out, CONTROLS;
    0xb8, "READ ELEMENT STATUS", "SMC-3", 12, In, ASKS;
];

/// Medium changers.
pub(crate) static CHANGER: DeviceType = DeviceType {
    code: PeripheralType::CHANGER,
    name: "Medium changers",
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
        Row; spc::ANYWHERE, spc::WELL_KNOWN, spc::BASIC, spc::FULL, REMOVAL, COMMANDS
    ])),
};
