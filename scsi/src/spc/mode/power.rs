//! The power condition mode page.

use crate::context::Context;
use crate::page::{ModePage, Number, Parameter};
use crate::policy::Capability;
use lunar_core::wire::be;
use zerocopy::{Immutable, IntoBytes};

/// Power condition. Logical units have no idle or standby conditions, so all timers are disabled and unchangeable.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct PowerCondition {
    /// PM_BG_PRECEDENCE, STANDBY_Y.
    standby_y: u8,
    /// IDLE_C, IDLE_B, IDLE_A, STANDBY_Z.
    enabled: u8,
    /// Idle_a, standby_z, idle_b, idle_c, standby_y.
    timers: [be::U32; 5],
    reserved: [u8; 15],
    /// CCF IDLE, CCF STANDBY, CCF STOPPED.
    check_conditions: u8,
}

impl ModePage for PowerCondition {
    const PAGE: u8 = 0x1a;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Power Condition";
    const CLAUSE: &'static str = "SPC-4 7.5.14";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { standby_y: 0, enabled: 0, timers: Default::default(), reserved: [0; 15], check_conditions: 0 }
    }
}
