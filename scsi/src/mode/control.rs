//! The control mode page.

use super::ModePage;
use crate::lu::{LogicalUnit, ModeValues};
use lunar_core::wire::be;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Control (SPC-4 7.5.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Control {
    code: u8,
    length: u8,
    /// TST, TMF_ONLY, DPICZ, D_SENSE, GLTSD, RLEC.
    sets: u8,
    /// QUEUE ALGORITHM MODIFIER, NUAR, QERR.
    queue: u8,
    /// RAC, UA_INTLCK_CTRL, SWP.
    protect: u8,
    /// ATO, TAS, ATMPE, RWWP, AUTOLOAD MODE.
    abort: u8,
    obsolete: [u8; 2],
    busy_timeout: be::U16,
    self_test_time: be::U16,
}

/// TST = 001b: a task set for each nexus.
const TASK_SET_PER_NEXUS: u8 = 0x20;
const D_SENSE: u8 = 0x04;
/// GLTSD: no log parameters are saved.
const GLTSD: u8 = 0x02;
/// QUEUE ALGORITHM MODIFIER = 1: SIMPLE commands may be reordered.
const UNRESTRICTED: u8 = 0x10;
const SWP: u8 = 0x08;

impl Control {
    fn new(sets: u8, queue: u8, protect: u8) -> Self {
        Self {
            code: Self::PAGE,
            length: (size_of::<Self>() - 2) as u8,
            sets,
            queue,
            protect,
            abort: 0,
            obsolete: [0; 2],
            busy_timeout: 0.into(),
            self_test_time: 0.into(),
        }
    }
}

impl ModePage for Control {
    const PAGE: u8 = 0x0a;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Control";
    const CLAUSE: &'static str = "SPC-4 7.5.8";

    fn of(values: ModeValues) -> Self {
        let sense = if values.descriptor_sense { D_SENSE } else { 0 };
        let protect = if values.write_protect { SWP } else { 0 };
        Self::new(TASK_SET_PER_NEXUS | GLTSD | sense, UNRESTRICTED, protect)
    }

    fn changeable(_lu: &LogicalUnit) -> Self {
        Self::new(D_SENSE, 0, SWP)
    }

    fn select(&self, values: &mut ModeValues) {
        values.descriptor_sense = self.sets & D_SENSE != 0;
        values.write_protect = self.protect & SWP != 0;
    }
}
