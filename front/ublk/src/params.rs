//! The parameters of a device, from the limits of its volume.

use crate::wire::{Params, SECTOR, attribute, present};
use lunar_blk::Limits;

/// The most bytes of one request, for which each tag has memory. Longer requests of programs become several.
pub const TRANSFER_BYTES: u32 = 512 << 10;
/// Blocks that the kernel's block layer supports: from a sector to its smallest page.
pub const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=4096;

/// The parameters of a device with requests of at most `transfer` bytes.
#[must_use]
pub fn params(limits: &Limits, transfer: u32) -> Params {
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR).unwrap_or(u32::MAX);
    let shift = |bytes: u32| bytes.max(1).ilog2() as u8;
    let physical = limits.physical_block_size.max(limits.block_size);
    let discards = limits.discard_bytes_max > 0 && !limits.read_only;
    let when = |is_so: bool, attribute: u32| if is_so { attribute } else { 0 };
    let optimal = limits.optimal_io_size;
    let is_fit = optimal.is_power_of_two() && optimal > physical;
    Params {
        // The kernel takes a structure of any length that has the parameters that are present.
        len: size_of::<Params>() as u32,
        types: present::BASIC | present::DISCARD,
        attributes: when(limits.read_only, attribute::READ_ONLY)
            | when(limits.is_rotational, attribute::ROTATIONAL)
            | when(limits.has_write_cache, attribute::VOLATILE_CACHE | attribute::FUA),
        logical_shift: shift(limits.block_size),
        physical_shift: shift(physical),
        optimal_shift: shift(if is_fit { optimal } else { physical }),
        minimum_shift: shift(physical),
        sectors_max: sectors(transfer.into()),
        chunk_sectors: 0,
        sectors: limits.capacity / SECTOR,
        boundary_mask: 0,
        discard_alignment: 0,
        // The kernel refuses zero, also where nothing can be discarded.
        discard_granularity: limits.discard_granularity.max(limits.block_size),
        discard_sectors_max: if discards { sectors(limits.discard_bytes_max) } else { 0 },
        zeroes_sectors_max: if limits.read_only { 0 } else { sectors(limits.write_zeroes_bytes_max) },
        discard_segments_max: 1,
        reserved: 0,
        pad: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            capacity: 1 << 30,
            block_size: 512,
            physical_block_size: 4096,
            optimal_io_size: 0,
            transfer_bytes_max: 32 << 20,
            segments_max: 1024,
            discard_bytes_max: 1 << 30,
            discard_ranges_max: 32,
            discard_granularity: 4096,
            write_zeroes_bytes_max: 512 << 20,
            write_zeroes_may_unmap: true,
            read_only: false,
            has_write_cache: true,
            is_rotational: false,
        }
    }

    #[test]
    fn a_volume_with_a_cache_gets_flushes_and_discards() {
        let made = params(&limits(), TRANSFER_BYTES);
        assert_eq!(made.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
        assert_eq!((made.logical_shift, made.physical_shift, made.sectors), (9, 12, 1 << 21));
        assert_eq!((made.sectors_max, made.discard_sectors_max, made.zeroes_sectors_max), (1024, 1 << 21, 1 << 20));
        assert_eq!((made.discard_segments_max, made.discard_granularity), (1, 4096));
    }

    #[test]
    fn a_volume_that_is_read_only_gets_no_changes() {
        let made = params(&Limits { read_only: true, has_write_cache: false, ..limits() }, TRANSFER_BYTES);
        assert_eq!(made.attributes, attribute::READ_ONLY);
        assert_eq!((made.discard_sectors_max, made.zeroes_sectors_max), (0, 0));
    }

    #[test]
    fn the_kernel_takes_the_parameters_of_every_volume() {
        for (block_size, physical_block_size) in [(512, 512), (4096, 512), (4096, 4096), (4096, 16384)] {
            for (granularity, optimal_io_size) in [(0, 0), (512, 1), (65536, 1 << 20), (1 << 20, 3 << 10)] {
                let discard_bytes_max = if granularity > 0 { 1 << 30 } else { 0 };
                let discard_granularity = granularity;
                let of = Limits { block_size, physical_block_size, ..limits() };
                let of = Limits { discard_bytes_max, discard_granularity, optimal_io_size, ..of };
                let made = params(&of, TRANSFER_BYTES);
                assert!((9..=12).contains(&made.logical_shift) && made.logical_shift <= made.physical_shift);
                assert!(u64::from(made.sectors_max) * SECTOR <= TRANSFER_BYTES.into());
                assert!(made.discard_granularity > 0 && made.optimal_shift >= made.minimum_shift);
                assert_eq!(made.discard_sectors_max > 0, granularity > 0);
            }
        }
    }
}
