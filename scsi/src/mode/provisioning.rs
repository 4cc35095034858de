//! The logical block provisioning mode page: thresholds.

use super::{ModePage, Number, Parameter};
use crate::context::Context;
use crate::table::{Needs, Reach};
use crate::thin::{Resource, is_counted};
use lunar_core::wire::be;
use std::mem::{offset_of, size_of};
use zerocopy::{Immutable, IntoBytes};

/// Logical block provisioning: one soft threshold for each resource. Of a unit that does not count its space none can
/// be enabled; THRESHOLD EXPONENT of the VPD page says so, too.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Provisioning {
    /// SITUA.
    flags: u8,
    reserved: [u8; 11],
    thresholds: [Descriptor; Resource::ALL.len()],
}

/// SBC-4 6.5.9.2
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Descriptor {
    /// ENABLED, THRESHOLD TYPE (000b: soft), THRESHOLD ARMING.
    flags: u8,
    resource: u8,
    reserved: [u8; 2],
    count: be::U32,
}

/// SITUA: one nexus is told, not all.
const SINGLE: u8 = 0x01;
/// ENABLED.
const ENABLED: u8 = 0x80;
/// THRESHOLD ARMING: reached from above.
const DECREASING: u8 = 0;
/// THRESHOLD ARMING: reached from below.
const INCREASING: u8 = 1;

/// Where the descriptor of a resource is.
const fn descriptor(at: usize) -> usize {
    offset_of!(Provisioning, thresholds) + at * size_of::<Descriptor>()
}

impl ModePage for Provisioning {
    const PAGE: u8 = 0x1c;
    const SUBPAGE: u8 = 0x02;
    const NAME: &'static str = "Logical Block Provisioning";
    const CLAUSE: &'static str = "SBC-4 6.5.9";
    const REACH: Reach = Reach::Disk;
    const NEEDS: Needs = Needs::Provisioning;
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            byte: offset_of!(Self, flags),
            mask: SINGLE,
            value: |values| &mut values.single_attention,
            changeable: is_counted,
        },
        Parameter {
            byte: descriptor(0) + offset_of!(Descriptor, flags),
            mask: ENABLED,
            value: |values| &mut values.thresholds[0].enabled,
            changeable: is_counted,
        },
        Parameter {
            byte: descriptor(1) + offset_of!(Descriptor, flags),
            mask: ENABLED,
            value: |values| &mut values.thresholds[1].enabled,
            changeable: is_counted,
        },
    ];
    const NUMBERS: &'static [Number] = &[
        Number {
            byte: descriptor(0) + offset_of!(Descriptor, count),
            value: |values| &mut values.thresholds[0].count,
            changeable: is_counted,
        },
        Number {
            byte: descriptor(1) + offset_of!(Descriptor, count),
            value: |values| &mut values.thresholds[1].count,
            changeable: is_counted,
        },
    ];

    fn fixed(_cx: &Context<'_>) -> Self {
        let thresholds = Resource::ALL.map(|resource| {
            let flags = if resource == Resource::Available { DECREASING } else { INCREASING };
            Descriptor { flags, resource: resource as u8, reserved: [0; 2], count: 0.into() }
        });
        Self { flags: 0, reserved: [0; 11], thresholds }
    }
}
