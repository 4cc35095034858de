//! The control mode page and its subpages.

use crate::context::Context;
use crate::page::{ModePage, Number, Parameter};
use crate::policy::Capability;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{Immutable, IntoBytes};

/// Control.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Control {
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

/// TST = 001b: each nexus has a task set of its own.
const TASK_SET_PER_NEXUS: u8 = 0x20;
/// GLTSD: no log parameters are saved.
const GLTSD: u8 = 0x02;
/// QUEUE ALGORITHM MODIFIER = 1: SIMPLE commands may be reordered without restriction.
const UNRESTRICTED: u8 = 0x10;

impl ModePage for Control {
    const PAGE: u8 = 0x0a;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Control";
    const CLAUSE: &'static str = "SPC-4 7.5.8";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[
        // D_SENSE
        Parameter {
            byte: offset_of!(Self, sets),
            mask: 0x04,
            value: |values| &mut values.descriptor_sense,
            changeable: |_| true,
        },
        // SWP
        Parameter {
            byte: offset_of!(Self, protect),
            mask: 0x08,
            value: |values| &mut values.write_protect,
            changeable: |_| true,
        },
        // ATO
        Parameter {
            byte: offset_of!(Self, abort),
            mask: 0x80,
            value: |values| &mut values.application_tags_owned,
            changeable: |unit| unit.protection.is_some(),
        },
    ];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self {
            sets: TASK_SET_PER_NEXUS | GLTSD,
            queue: UNRESTRICTED,
            protect: 0,
            abort: 0,
            obsolete: [0; 2],
            busy_timeout: 0.into(),
            self_test_time: 0.into(),
        }
    }
}

/// Control extension.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ControlExtension {
    /// TCMOS, SCSIP, IALUAE.
    flags: u8,
    /// INITIAL COMMAND PRIORITY.
    priority: u8,
    /// MAXIMUM SENSE DATA LENGTH: zero, so the limit of the Extended INQUIRY Data page applies.
    sense_length: u8,
    reserved: [u8; 25],
}

/// TCMOS, SCSIP: the timestamp follows the clock of this server until SET TIMESTAMP sets it.
const CLOCK: u8 = 0x04 | 0x02;
/// IALUAE: implicit asymmetric access transitions are enabled.
const IMPLICIT: u8 = 0x01;

impl ModePage for ControlExtension {
    const PAGE: u8 = 0x0a;
    const SUBPAGE: u8 = 0x01;
    const NAME: &'static str = "Control Extension";
    const CLAUSE: &'static str = "SPC-4 7.5.9";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { flags: CLOCK | IMPLICIT, priority: 0, sense_length: 0, reserved: [0; 25] }
    }
}
