//! Pages of what disks have.

use super::{ModePage, Parameter};
use crate::context::Context;
use crate::table::{Needs, Reach};
use lunar_core::wire::be;
use std::mem::offset_of;
use zerocopy::{Immutable, IntoBytes};

/// Read-write error recovery.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ErrorRecovery {
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

/// AWRE, ARRE: what lies beneath replaces bad blocks by itself. A disc has none to replace them with.
const REALLOCATES: u8 = 0x80 | 0x40;

impl ModePage for ErrorRecovery {
    const PAGE: u8 = 0x01;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Read-Write Error Recovery";
    const CLAUSE: &'static str = "SBC-4 6.5.10";
    const REACH: Reach = Reach::Unit;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[];

    fn fixed(cx: &Context<'_>) -> Self {
        let is_disk = cx.disk().is_ok_and(|lu| Reach::Disk.covers(lu.kind));
        Self {
            flags: if is_disk { REALLOCATES } else { 0 },
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
pub(super) struct Caching {
    /// IC, ABPF, CAP, DISC, SIZE, WCE, MF, RCD.
    flags: u8,
    retention: u8,
    /// Pre-fetch and cache segments: nothing is told or set.
    rest: [be::U16; 8],
}

impl ModePage for Caching {
    const PAGE: u8 = 0x08;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Caching";
    const CLAUSE: &'static str = "SBC-4 6.5.6";
    const REACH: Reach = Reach::Disk;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[
        // WCE
        Parameter {
            byte: offset_of!(Self, flags),
            mask: 0x04,
            value: |values| &mut values.write_cache,
            changeable: |unit| unit.traits().write_cache,
        },
    ];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { flags: 0, retention: 0, rest: Default::default() }
    }
}

/// Application tag: units have no protection information, so there is no descriptor.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ApplicationTag {
    reserved: [u8; 12],
}

impl ModePage for ApplicationTag {
    const PAGE: u8 = 0x0a;
    const SUBPAGE: u8 = 0x02;
    const NAME: &'static str = "Application Tag";
    const CLAUSE: &'static str = "SBC-4 6.5.3";
    const REACH: Reach = Reach::Disk;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self { reserved: [0; 12] }
    }
}
