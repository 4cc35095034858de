//! Mode pages of disks: error recovery, caching, application tags.

use crate::context::Context;
use crate::page::{ModePage, Number, Parameter};
use crate::policy::Capability;
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{Immutable, IntoBytes};

/// Read-write error recovery.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ErrorRecovery {
    /// AWRE, ARRE, TB, RC, EER, PER, DTE, DCR.
    flags: u8,
    read_retries: u8,
    obsolete: [u8; 3],
    /// LBPERE.
    provisioning: u8,
    write_retries: u8,
    reserved: u8,
    time_limit: be::U16,
}

/// AWRE, ARRE: the store replaces bad blocks by itself.
const REALLOCATES: u8 = 0x80 | 0x40;

impl ModePage for ErrorRecovery {
    const PAGE: u8 = 0x01;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Read-Write Error Recovery";
    const CLAUSE: &'static str = "SBC-4 6.5.10";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self {
            flags: REALLOCATES,
            read_retries: 0,
            obsolete: [0; 3],
            provisioning: 0,
            write_retries: 0,
            reserved: 0,
            time_limit: 0.into(),
        }
    }
}

/// Caching.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Caching {
    /// IC, ABPF, CAP, DISC, SIZE, WCE, MF, RCD.
    flags: u8,
    retention: u8,
    /// Pre-fetch and cache segments: zero, not reported and not changeable.
    rest: [be::U16; 8],
}

impl ModePage for Caching {
    const PAGE: u8 = 0x08;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Caching";
    const CLAUSE: &'static str = "SBC-4 6.5.6";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[
        // WCE
        Parameter {
            byte: offset_of!(Self, flags),
            mask: 0x04,
            value: |values| &mut values.write_cache,
            changeable: |unit| unit.traits().write_cache,
        },
    ];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { flags: 0, retention: 0, rest: Default::default() }
    }
}

/// Application tag. No application tags are assigned to ranges of blocks, so the page has no descriptors.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ApplicationTag {
    reserved: [u8; 12],
}

impl ModePage for ApplicationTag {
    const PAGE: u8 = 0x0a;
    const SUBPAGE: u8 = 0x02;
    const NAME: &'static str = "Application Tag";
    const CLAUSE: &'static str = "SBC-4 6.5.3";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { reserved: [0; 12] }
    }
}
