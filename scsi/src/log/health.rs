//! What monitoring looks at: temperature, informational exceptions.

use super::{LogPage, Parameters};
use crate::lu::LogicalUnit;

/// TEMPERATURE: none is measured.
const NO_TEMPERATURE: u8 = 0xff;

/// Temperature.
pub(super) struct Temperature;

impl LogPage for Temperature {
    const PAGE: u8 = 0x0d;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Temperature";
    const CLAUSE: &'static str = "SPC-4 7.3";

    fn write(_lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        out.list(0x0000, &[0, NO_TEMPERATURE]);
        out.list(0x0001, &[0, NO_TEMPERATURE]);
    }
}

/// Informational exceptions.
pub(super) struct InformationalExceptions;

impl LogPage for InformationalExceptions {
    const PAGE: u8 = 0x2f;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Informational Exceptions";
    const CLAUSE: &'static str = "SPC-4 7.3";

    fn write(_lu: &LogicalUnit, out: &mut Parameters<'_, '_>) {
        // ASC and ASCQ zero: nothing fails that has not failed yet.
        out.list(0x0000, &[0, 0, NO_TEMPERATURE, 0]);
    }
}
