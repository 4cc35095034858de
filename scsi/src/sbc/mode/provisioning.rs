//! The logical block provisioning mode page: thresholds.

use crate::context::Context;
use crate::page::{ModePage, Number, Parameter};
use crate::policy::Capability;
use crate::sbc::block_range::THIN;
use crate::sbc::thin::is_counted;
use crate::sbc::threshold::Resource;
use lunar_core::wire::be;
use std::mem::{offset_of, size_of};
use zerocopy::{Immutable, IntoBytes};

/// Logical block provisioning: one soft threshold for each resource. No threshold can be enabled on a unit that does
/// not measure its space, whose THRESHOLD EXPONENT in the VPD page is zero.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Provisioning {
    /// SITUA.
    flags: u8,
    reserved: [u8; 11],
    thresholds: [Descriptor; Resource::ALL.len()],
}

/// Threshold descriptor (SBC-4 6.5.9.2).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Descriptor {
    /// ENABLED, THRESHOLD TYPE (000b: soft), THRESHOLD ARMING.
    flags: u8,
    resource: u8,
    reserved: [u8; 2],
    count: be::U32,
}

/// SITUA: the unit attention of a threshold is established for one nexus only.
const SINGLE: u8 = 0x01;
/// ENABLED.
const ENABLED: u8 = 0x80;
/// THRESHOLD ARMING: armed for decreasing.
const DECREASING: u8 = 0;
/// THRESHOLD ARMING: armed for increasing.
const INCREASING: u8 = 1;

/// Offset of the descriptor of a resource.
const fn descriptor(at: usize) -> usize {
    offset_of!(Provisioning, thresholds) + at * size_of::<Descriptor>()
}

impl ModePage for Provisioning {
    const PAGE: u8 = 0x1c;
    const SUBPAGE: u8 = 0x02;
    const NAME: &'static str = "Logical Block Provisioning";
    const CLAUSE: &'static str = "SBC-4 6.5.9";
    const NEEDS: Option<&'static Capability> = Some(&THIN);
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
