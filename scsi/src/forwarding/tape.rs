//! Tape drives: the commands of SSC-4 that a device executes.
//!
//! All nexuses have one position in common. Therefore a read conflicts with a persistent reservation of the type Write
//! Exclusive, too: it would move the position of the holder.

use super::REMOVAL;
use super::rows::device_rows;
use crate::lu::DeviceState;
use crate::peripheral::PeripheralType;
use crate::row::{CommandTable, DeviceType, ModeHeader, Row, merged};
use crate::sense::Asc;
use crate::spc::table as spc;

const COMMANDS: &[Row] = device_rows![
    0x01, "REWIND", "SSC-4", 6, None, MOVES;
    0x04, "FORMAT MEDIUM", "SSC-4", 6, Out, REFUSED;
    0x05, "READ BLOCK LIMITS", "SSC-4", 6, In, ASKS;
    0x08, "READ(6)", "SSC-4", 6, In, READS_ON;
    0x0a, "WRITE(6)", "SSC-4", 6, Out, WRITES;
    0x0b, "SET CAPACITY", "SSC-4", 6, None, REFUSED;
    0x0f, "READ REVERSE(6)", "SSC-4", 6, In, READS_ON;
    0x10, "WRITE FILEMARKS(6)", "SSC-4", 6, None, REWRITES;
    0x11, "SPACE(6)", "SSC-4", 6, None, MOVES;
    0x13, "VERIFY(6)", "SSC-4", 6, Out, MOVES;
    0x14, "RECOVER BUFFERED DATA", "SSC-4", 6, In, READS_ON;
    0x19, "ERASE(6)", "SSC-4", 6, None, REWRITES;
    0x1b, "LOAD UNLOAD", "SSC-4", 6, None, MOVES;
    0x2b, "LOCATE(10)", "SSC-4", 10, None, MOVES;
    0x34, "READ POSITION", "SSC-4", 10, In, ASKS;
    0x44, "REPORT DENSITY SUPPORT", "SSC-4", 10, In, ASKS;
    0x80, "WRITE FILEMARKS(16)", "SSC-4", 16, None, REWRITES;
    0x81, "READ REVERSE(16)", "SSC-4", 16, In, READS_ON;
    0x82, "ALLOW OVERWRITE", "SSC-4", 16, None, CONTROLS;
    0x88, "READ(16)", "SSC-4", 16, In, READS_ON;
    0x8a, "WRITE(16)", "SSC-4", 16, Out, WRITES;
    0x8c, "READ ATTRIBUTE", "SPC-4", 16, In, READS;
    0x8d, "WRITE ATTRIBUTE", "SPC-4", 16, Out, WRITES;
    0x8f, "VERIFY(16)", "SSC-4", 16, Out, MOVES;
    0x91, "SPACE(16)", "SSC-4", 16, None, MOVES;
    0x92, "LOCATE(16)", "SSC-4", 16, None, MOVES;
    0x93, "ERASE(16)", "SSC-4", 16, None, REWRITES;
    0xa2, "SECURITY PROTOCOL IN", "SPC-4", 12, In, ASKS;
    0xb5, "SECURITY PROTOCOL OUT", "SPC-4", 12, Out, CONTROLS;
];

/// Tape drives.
pub(crate) static TAPE: DeviceType = DeviceType {
    code: PeripheralType::TAPE,
    name: "Tape drives",
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
