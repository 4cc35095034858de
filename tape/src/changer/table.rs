//! The table of commands of a changer.

use super::Changer;
use crate::scsi::{Answer, Cdb, DataIn, DataOut, Needs, Row};

const fn row(
    name: &'static str,
    code: u8,
    usage: &'static [u8],
    needs: Needs,
    run: fn(&mut Changer, &Cdb<'_>, DataOut<'_>, &mut DataIn<'_>) -> Answer,
) -> Row<Changer> {
    Row { name, code, action: None, usage, needs, run }
}

const STATUS: &[u8] = &[0x1f, 0xff, 0xff, 0xff, 0xff, 0x03, 0xff, 0xff, 0xff, 0];
const CODES: &[u8] = &[0x1f, 0x07, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0];

/// All commands. No cartridge is inverted, so INVERT is a reserved bit.
pub(super) static ROWS: &[Row<Changer>] = &[
    row("TEST UNIT READY", 0x00, &[0, 0, 0, 0], Needs::NoMedium, Changer::nothing),
    row("REQUEST SENSE", 0x03, &[0x01, 0, 0, 0xff], Needs::Nothing, Changer::request_sense),
    row("INITIALIZE ELEMENT STATUS", 0x07, &[0, 0, 0, 0], Needs::NoMedium, Changer::nothing),
    row("INQUIRY", 0x12, &[0x01, 0xff, 0xff, 0xff], Needs::Nothing, Changer::inquire),
    row("MODE SENSE(6)", 0x1a, &[0x08, 0xff, 0xff, 0xff], Needs::NoMedium, Changer::mode_sense),
    row("PREVENT ALLOW MEDIUM REMOVAL", 0x1e, &[0, 0, 0, 0x03], Needs::NoMedium, Changer::prevent_allow),
    row(
        "POSITION TO ELEMENT",
        0x2b,
        &[0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0],
        Needs::NoMedium,
        Changer::position_to_element,
    ),
    row(
        "INITIALIZE ELEMENT STATUS WITH RANGE",
        0x37,
        &[0x03, 0xff, 0xff, 0, 0, 0xff, 0xff, 0],
        Needs::NoMedium,
        Changer::nothing,
    ),
    row("MODE SENSE(10)", 0x5a, &[0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff], Needs::NoMedium, Changer::mode_sense),
    Row {
        name: "REPORT SUPPORTED OPERATION CODES",
        code: 0xa3,
        action: Some(0x0c),
        usage: CODES,
        needs: Needs::NoMedium,
        run: Changer::report_codes,
    },
    row("MOVE MEDIUM", 0xa5, &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0], Needs::NoMedium, Changer::move_medium),
    row(
        "EXCHANGE MEDIUM",
        0xa6,
        &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        Needs::NoMedium,
        Changer::exchange_medium,
    ),
    row(
        "REQUEST VOLUME ELEMENT ADDRESS",
        0xb5,
        &[0x1f, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0],
        Needs::NoMedium,
        Changer::request_volume_element_address,
    ),
    row(
        "SEND VOLUME TAG",
        0xb6,
        &[0x0f, 0xff, 0xff, 0, 0x1f, 0, 0, 0xff, 0xff, 0],
        Needs::NoMedium,
        Changer::send_volume_tag,
    ),
    row("READ ELEMENT STATUS", 0xb8, STATUS, Needs::NoMedium, Changer::read_element_status),
];
