//! The table of commands of a drive.

use super::{Drive, not_ready};
use crate::scsi::{Answer, Cdb, Common, DataIn, DataOut, Device, Needs, Row, Sense};

const fn row(
    name: &'static str,
    code: u8,
    usage: &'static [u8],
    needs: Needs,
    run: fn(&mut Drive, &Cdb<'_>, DataOut<'_>, &mut DataIn<'_>) -> Answer,
) -> Row<Drive> {
    Row { name, code, action: None, usage, needs, run }
}

const fn action(number: u8, row: Row<Drive>) -> Row<Drive> {
    Row { name: row.name, code: row.code, action: Some(number), usage: row.usage, needs: row.needs, run: row.run }
}

/// Bits of a CDB of 16 bytes with a partition, a logical object and a length.
const OBJECT: [u8; 14] = [0x03, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
const READ_16: &[u8] = &OBJECT;
const WRITE_16: &[u8] = &with_first(0x0d);
const FILEMARKS_16: &[u8] = &with_first(0x0f);
const ERASE_16: &[u8] = &[0x0f, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];
const LOCATE_16: &[u8] = &[0x3b, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];
const SPACE_16: &[u8] = &[0x0f, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0];
const ATTRIBUTE: &[u8] = &[0x1f, 0, 0, 0, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];

const fn with_first(first: u8) -> [u8; 14] {
    let mut bits = OBJECT;
    bits[0] = first;
    bits
}

/// All commands.
static ROWS: &[Row<Drive>] = &[
    row("TEST UNIT READY", 0x00, &[0, 0, 0, 0], Needs::Medium, Drive::test_unit_ready),
    row("REWIND", 0x01, &[0x01, 0, 0, 0], Needs::Medium, Drive::rewind),
    row("REQUEST SENSE", 0x03, &[0x01, 0, 0, 0xff], Needs::Nothing, Drive::request_sense),
    row("READ BLOCK LIMITS", 0x05, &[0, 0, 0, 0], Needs::NoMedium, Drive::read_block_limits),
    row("READ(6)", 0x08, &[0x03, 0xff, 0xff, 0xff], Needs::Medium, Drive::read_6),
    row("WRITE(6)", 0x0a, &[0x01, 0xff, 0xff, 0xff], Needs::Medium, Drive::write_6),
    row("WRITE FILEMARKS(6)", 0x10, &[0x01, 0xff, 0xff, 0xff], Needs::Medium, Drive::write_filemarks_6),
    row("SPACE(6)", 0x11, &[0x0f, 0xff, 0xff, 0xff], Needs::Medium, Drive::space_6),
    row("INQUIRY", 0x12, &[0x01, 0xff, 0xff, 0xff], Needs::Nothing, Drive::inquire),
    row("MODE SELECT(6)", 0x15, &[0x11, 0, 0, 0xff], Needs::NoMedium, Drive::mode_select),
    row("ERASE(6)", 0x19, &[0x03, 0, 0, 0], Needs::Medium, Drive::erase_6),
    row("MODE SENSE(6)", 0x1a, &[0x08, 0xff, 0xff, 0xff], Needs::NoMedium, Drive::mode_sense),
    row("LOAD UNLOAD", 0x1b, &[0x01, 0, 0, 0x0f], Needs::NoMedium, Drive::load_unload),
    row("SEND DIAGNOSTIC", 0x1d, &[0x14, 0, 0xff, 0xff], Needs::NoMedium, Drive::send_diagnostic),
    row("PREVENT ALLOW MEDIUM REMOVAL", 0x1e, &[0, 0, 0, 0x03], Needs::NoMedium, Drive::prevent_allow),
    row("LOCATE(10)", 0x2b, &[0x07, 0, 0xff, 0xff, 0xff, 0xff, 0, 0xff], Needs::Medium, Drive::locate_10),
    row("READ POSITION", 0x34, &[0x1f, 0, 0, 0, 0, 0, 0xff, 0xff], Needs::Medium, Drive::read_position),
    row("REPORT DENSITY SUPPORT", 0x44, &[0x03, 0, 0, 0, 0, 0, 0xff, 0xff], Needs::NoMedium, Drive::report_density),
    row("LOG SENSE", 0x4d, &[0x01, 0xff, 0xff, 0, 0, 0, 0xff, 0xff], Needs::NoMedium, Drive::log_sense),
    row("MODE SELECT(10)", 0x55, &[0x11, 0, 0, 0, 0, 0, 0xff, 0xff], Needs::NoMedium, Drive::mode_select),
    row("MODE SENSE(10)", 0x5a, &[0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff], Needs::NoMedium, Drive::mode_sense),
    row("WRITE FILEMARKS(16)", 0x80, FILEMARKS_16, Needs::Medium, Drive::write_filemarks_16),
    row("READ(16)", 0x88, READ_16, Needs::Medium, Drive::read_16),
    row("WRITE(16)", 0x8a, WRITE_16, Needs::Medium, Drive::write_16),
    action(0x00, row("READ ATTRIBUTE, values", 0x8c, ATTRIBUTE, Needs::NoMedium, Drive::read_attribute)),
    action(0x01, row("READ ATTRIBUTE, list", 0x8c, ATTRIBUTE, Needs::NoMedium, Drive::read_attribute)),
    row("SPACE(16)", 0x91, SPACE_16, Needs::Medium, Drive::space_16),
    row("LOCATE(16)", 0x92, LOCATE_16, Needs::Medium, Drive::locate_16),
    row("ERASE(16)", 0x93, ERASE_16, Needs::Medium, Drive::erase_16),
    row(
        "SECURITY PROTOCOL IN",
        0xa2,
        &[0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0],
        Needs::NoMedium,
        Drive::security_in,
    ),
    action(
        0x0c,
        row(
            "REPORT SUPPORTED OPERATION CODES",
            0xa3,
            &[0x1f, 0x07, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
            Needs::NoMedium,
            Drive::report_codes,
        ),
    ),
    row(
        "SECURITY PROTOCOL OUT",
        0xb5,
        &[0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0],
        Needs::NoMedium,
        Drive::security_out,
    ),
];

impl Device for Drive {
    fn rows() -> &'static [Row<Self>] {
        ROWS
    }

    fn common(&mut self) -> &mut Common {
        &mut self.common
    }

    fn medium(&self) -> Result<(), Sense> {
        if self.is_loaded() { Ok(()) } else { Err(not_ready(&self.medium)) }
    }
}
