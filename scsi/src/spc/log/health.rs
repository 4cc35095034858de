//! Log pages for monitoring: temperature and informational exceptions.

use crate::context::Context;
use crate::lu::Emulated;
use crate::page::{LogPage, LogParameters};
use crate::policy::Capability;

/// TEMPERATURE: not available.
const NO_TEMPERATURE: u8 = 0xff;

/// Temperature.
pub(crate) struct Temperature;

impl LogPage for Temperature {
    const PAGE: u8 = 0x0d;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Temperature";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(_cx: &Context<'_>, _lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        out.list(0x0000, &[0, NO_TEMPERATURE]);
        out.list(0x0001, &[0, NO_TEMPERATURE]);
    }
}

/// Informational exceptions.
pub(crate) struct InformationalExceptions;

impl LogPage for InformationalExceptions {
    const PAGE: u8 = 0x2f;
    const SUBPAGE: u8 = 0x00;
    const NAME: &'static str = "Informational Exceptions";
    const CLAUSE: &'static str = "SPC-4 7.3";
    const NEEDS: Option<&'static Capability> = None;
    const MEASURES: bool = false;
    const SAVES: bool = false;

    fn write(_cx: &Context<'_>, _lu: &Emulated, out: &mut LogParameters<'_, '_>) {
        // ASC and ASCQ are zero: no failure is predicted.
        out.list(0x0000, &[0, 0, NO_TEMPERATURE, 0]);
    }
}
