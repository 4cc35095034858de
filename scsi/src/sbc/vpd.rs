//! Vital product data of disks: block limits, block device characteristics, logical block provisioning.

use crate::context::Context;
use crate::page::VpdPage;
use crate::sbc::limits::{
    UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, VERIFY_BYTES_MAX, atomic_blocks_max, compare_and_write_blocks_max,
    transfer_blocks_max, write_same_blocks_max,
};
use crate::sbc::thin;
use crate::sense::Sense;
use lunar_core::step::PIECE_BYTES;
use lunar_core::wire::{Writer, be};
use zerocopy::{Immutable, IntoBytes};

/// Block limits without the header.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Limits {
    flags: u8,
    compare_and_write_max: u8,
    granularity: be::U16,
    transfer_max: be::U32,
    optimal: be::U32,
    prefetch_max: be::U32,
    unmap_max: be::U32,
    unmap_descriptors_max: be::U32,
    unmap_granularity: be::U32,
    unmap_alignment: be::U32,
    write_same_max: be::U64,
    atomic_max: be::U32,
    atomic_alignment: be::U32,
    atomic_granularity: be::U32,
    atomic_with_boundary_max: be::U32,
    atomic_boundary_max: be::U32,
}

/// WSNZ: WRITE SAME of length zero is refused.
const WSNZ: u8 = 0x01;
/// UGAVALID: UNMAP GRANULARITY ALIGNMENT is valid; it is zero.
const ALIGNMENT_VALID: u32 = 0x8000_0000;

/// A limit in 32 bits; FFFFFFFFh if it does not fit.
fn short(value: u64) -> be::U32 {
    u32::try_from(value).unwrap_or(u32::MAX).into()
}

impl VpdPage for Limits {
    const PAGE: u8 = 0xb0;
    const NAME: &'static str = "Block Limits";
    const CLAUSE: &'static str = "SBC-3 6.6.3";
    const IN_FORWARDED: bool = false;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        let lu = cx.emulated()?;
        let (unit, traits) = (&lu.unit, lu.unit.traits());
        let block = lu.block_size();
        let physical = 1u16 << unit.geometry.physical_exponent.min(15);
        let optimal = match traits.optimal_io {
            0 => PIECE_BYTES as u64,
            bytes => bytes.into(),
        };
        let transfer_max = transfer_blocks_max(unit);
        let unmap = |value: u64| if lu.provisioning() { short(value) } else { 0.into() };
        out.put(&Self {
            flags: WSNZ,
            // At most 255: COMPARE_AND_WRITE_BLOCKS_MAX.
            compare_and_write_max: compare_and_write_blocks_max(unit) as u8,
            granularity: physical.into(),
            transfer_max: short(transfer_max),
            optimal: short((optimal / u64::from(block)).clamp(1, transfer_max)),
            prefetch_max: short(VERIFY_BYTES_MAX / u64::from(block)),
            unmap_max: unmap(UNMAP_BLOCKS_MAX),
            unmap_descriptors_max: unmap(UNMAP_DESCRIPTORS_MAX as u64),
            unmap_granularity: unmap(u64::from(traits.unmap_granularity / block).max(1)),
            unmap_alignment: unmap(ALIGNMENT_VALID.into()),
            write_same_max: write_same_blocks_max(unit).into(),
            atomic_max: short(atomic_blocks_max(unit)),
            // Zero: any alignment and granularity, no boundaries.
            atomic_alignment: 0.into(),
            atomic_granularity: 0.into(),
            atomic_with_boundary_max: 0.into(),
            atomic_boundary_max: 0.into(),
        });
        Ok(())
    }
}

/// Block device characteristics without the header.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Characteristics {
    rotation: be::U16,
    product: u8,
    /// WABEREQ, WACEREQ, NOMINAL FORM FACTOR.
    form: u8,
    /// ZONED, FUAB, VBULS.
    flags: u8,
    reserved: [u8; 55],
}

/// VBULS: VERIFY with BYTCHK 01b works on unmapped blocks (SBC-3 6.6.2).
const VERIFIES_UNMAPPED: u8 = 0x01;
/// MEDIUM ROTATION RATE: not reported.
const UNKNOWN_RATE: u16 = 0;
/// MEDIUM ROTATION RATE: non-rotating.
const NON_ROTATING: u16 = 1;

/// WABEREQ = 01b: blocks can be read after a SANITIZE block erase without being written first.
const ERASED_READS: u8 = 0x40;

impl VpdPage for Characteristics {
    const PAGE: u8 = 0xb1;
    const NAME: &'static str = "Block Device Characteristics";
    const CLAUSE: &'static str = "SBC-3 6.6.2";
    const IN_FORWARDED: bool = false;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        let lu = cx.emulated()?;
        let rotation = if lu.unit.traits().rotational { UNKNOWN_RATE } else { NON_ROTATING };
        let flags = if lu.provisioning() { VERIFIES_UNMAPPED } else { 0 };
        let form = if lu.provisioning() { ERASED_READS } else { 0 };
        out.put(&Self { rotation: rotation.into(), product: 0, form, flags, reserved: [0; 55] });
        Ok(())
    }
}

/// Logical block provisioning without the header.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Provisioning {
    threshold_exponent: u8,
    /// LBPU, LBPWS, LBPWS10, LBPRZ, ANC_SUP, DP.
    flags: u8,
    kind: u8,
    reserved: u8,
}

/// LBPU, LBPWS, LBPWS10: UNMAP, WRITE SAME(16) and WRITE SAME(10) unmap blocks.
const UNMAPS: u8 = 0x80 | 0x40 | 0x20;
/// LBPRZ = 001b: unmapped blocks read as zeroes.
const READS_ZEROES: u8 = 0x04;
/// PROVISIONING TYPE: fully provisioned or not reported.
const FULL: u8 = 0;
/// PROVISIONING TYPE: resource provisioned.
const RESOURCE: u8 = 1;
/// PROVISIONING TYPE: thin provisioned.
const THIN: u8 = 2;

impl VpdPage for Provisioning {
    const PAGE: u8 = 0xb2;
    const NAME: &'static str = "Logical Block Provisioning";
    const CLAUSE: &'static str = "SBC-3 6.6.4";
    const IN_FORWARDED: bool = false;

    fn write(cx: &Context<'_>, out: &mut Writer<'_>) -> Result<(), Sense> {
        let lu = cx.emulated()?;
        let traits = lu.unit.traits();
        let zeroes = if traits.unmap_zeroes { READS_ZEROES } else { 0 };
        let (flags, kind) = match (lu.provisioning(), traits.thin) {
            (false, _) => (0, FULL),
            (true, false) => (UNMAPS | zeroes, RESOURCE),
            (true, true) => (UNMAPS | zeroes, THIN),
        };
        out.put(&Self { threshold_exponent: thin::exponent(&lu.unit), flags, kind, reserved: 0 });
        Ok(())
    }
}
