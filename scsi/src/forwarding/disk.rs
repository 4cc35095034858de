//! Devices with blocks other than disks, CD and DVD drives: they have the commands of disks, and some of their own.

use super::rows::device_rows;
use crate::lu::DeviceState;
use crate::peripheral::PeripheralType;
use crate::row::{CommandTable, DeviceType, ModeHeader, Row, merged};
use crate::sbc::table as sbc;
use crate::sense::Asc;
use crate::spc::table as spc;

const OPTICAL: &[Row] = device_rows![
    0x07, "REASSIGN BLOCKS", "SBC-3", 6, Out, REWRITES;
    0x2c, "ERASE(10)", "SBC", 10, None, REWRITES;
    0x2d, "READ UPDATED BLOCK(10)", "SBC", 10, In, READS;
    0x38, "MEDIUM SCAN", "SBC", 10, Out, READS;
    0x3d, "UPDATE BLOCK", "SBC", 10, Out, WRITES;
    0xac, "ERASE(12)", "SBC", 12, None, REWRITES;
];

const ZONES: &[Row] = device_rows![
    0x07, "REASSIGN BLOCKS", "SBC-3", 6, Out, REWRITES;
    0x94, "ZBC OUT", "ZBC", 16, None, WRITES;
    0x95, "ZBC IN", "ZBC", 16, In, ASKS;
];

/// A device type with blocks.
macro_rules! blocks {
    ($code:ident, $name:literal, $($group:expr),*) => {
        DeviceType {
            code: PeripheralType::$code,
            name: $name,
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
                Row; spc::ANYWHERE, spc::WELL_KNOWN, spc::BASIC, spc::FULL, sbc::COMMANDS $(, $group)*
            ])),
        }
    };
}

/// Optical memory devices.
pub(crate) static OPTICAL_MEMORY: DeviceType = blocks!(OPTICAL_MEMORY, "Optical memory devices", OPTICAL);
/// Simplified direct access devices (RBC).
pub(crate) static SIMPLE_DISK: DeviceType = blocks!(SIMPLE_DISK, "Simplified disks (RBC)",);
/// Host managed zoned block devices.
pub(crate) static ZONED_DISK: DeviceType = blocks!(ZONED, "Host managed zoned disks", ZONES);
