//! Extended INQUIRY data.

use crate::context::Context;
use crate::page::VpdPage;
use crate::sense::{SENSE_BYTES_MAX, Sense};
use lunar_core::wire::Writer;
use zerocopy::{Immutable, IntoBytes};

/// Extended INQUIRY data without the header.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Extended {
    /// ACTIVATE MICROCODE, SPT, GRD_CHK, APP_CHK, REF_CHK.
    protection: u8,
    /// UASK_SUP, GROUP_SUP, PRIOR_SUP, HEADSUP, ORDSUP, SIMPSUP.
    attributes: u8,
    /// WU_SUP, CRD_SUP, NV_SUP, V_SUP.
    cache: u8,
    rest: [u8; 6],
    /// MAXIMUM SUPPORTED SENSE DATA LENGTH.
    sense_length: u8,
    reserved: [u8; 50],
}

/// SPT: protection types 1, 2 and 3 are supported.
const ALL_TYPES: u8 = 0x38;
/// GRD_CHK, APP_CHK, REF_CHK.
const ALL_CHECKS: u8 = 0x04 | 0x02 | 0x01;
/// HEADSUP, ORDSUP, SIMPSUP.
const ATTRIBUTES: u8 = 0x04 | 0x02 | 0x01;
/// V_SUP: the logical unit has a volatile cache.
const VOLATILE: u8 = 0x01;

impl VpdPage for Extended {
    const PAGE: u8 = 0x86;
    const NAME: &'static str = "Extended INQUIRY Data";
    const CLAUSE: &'static str = "SPC-4 7.8.7";
    const IN_FORWARDED: bool = false;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        let lu = cx.emulated()?;
        out.put(&Self {
            protection: if lu.unit.protection.is_some() { ALL_TYPES | ALL_CHECKS } else { 0 },
            attributes: ATTRIBUTES,
            cache: if lu.unit.traits().write_cache { VOLATILE } else { 0 },
            rest: [0; 6],
            sense_length: SENSE_BYTES_MAX as u8,
            reserved: [0; 50],
        });
        Ok(())
    }
}
