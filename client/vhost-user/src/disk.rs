//! The features of a disk, and its limits from the configuration space (virtio 1.3, 5.2.4).

use crate::Defect;
use crate::features::{ACKNOWLEDGEMENTS, VIRTIO, require};
use lunar_blk::Limits;
use lunar_blk::limits::SEGMENTS_MAX;
use lunar_vhost_user::blk::{ConfigSpace, SECTOR, feature as own};
use lunar_vhost_user::wire::{feature, protocol};

/// Blocks that can be served: from a sector to the smallest page.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=4096;
/// The largest physical block, as a power of two of logical ones: longer ones are no useful hint.
const EXPONENT_MAX: u8 = 10;
/// Pieces of the data of a request: each has a descriptor.
pub const PIECES_MAX: usize = 6;
/// The shortest piece: a page. Requests are cut into pieces of this alignment.
const PIECE_MIN: usize = 4096;

/// The features to accept of those that are offered; without `flushes`, the back-end has every write on the medium
/// when it ends.
///
/// # Errors
/// [`Defect::Lacks`].
pub fn features(offered: u64, flushes: bool) -> Result<u64, Defect> {
    require(offered, &VIRTIO)?;
    let cache = if flushes { own::FLUSH | own::CONFIG_WCE } else { 0 };
    let taken = own::SIZE_MAX | own::SEG_MAX | own::RO | own::BLK_SIZE | own::TOPOLOGY | own::MQ | own::DISCARD;
    let taken = taken | own::WRITE_ZEROES | feature::VERSION_1 | feature::PROTOCOL_FEATURES | cache;
    Ok(offered & taken)
}

/// The features of the protocol to accept of those that are offered.
///
/// # Errors
/// [`Defect::Lacks`].
pub fn protocol_features(offered: u64) -> Result<u64, Defect> {
    require(offered, &[(protocol::CONFIG, "a configuration space"), ACKNOWLEDGEMENTS])?;
    Ok(offered & (protocol::CONFIG | protocol::REPLY_ACK | protocol::MQ | protocol::BACKEND_REQ))
}

/// A disk, as its back-end describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Its limits.
    pub limits: Limits,
    /// The most bytes of one piece of the data of a request, and the most pieces.
    pub pieces: (usize, usize),
}

impl Shape {
    /// The disk of a configuration space, with the features that were accepted.
    ///
    /// # Errors
    /// [`Defect::Space`].
    pub fn of(features: u64, space: &ConfigSpace) -> Result<Self, Defect> {
        let has = |feature: u64| features & feature != 0;
        let block_size = if has(own::BLK_SIZE) { space.blk_size.get() } else { 512 };
        if !BLOCK_SIZES.contains(&block_size) || !block_size.is_power_of_two() {
            return Err(Defect::Space("block size"));
        }
        let block = u64::from(block_size);
        let capacity = space.capacity.get().checked_mul(SECTOR).map(|bytes| bytes / block * block);
        // The kernel counts bytes in signed numbers.
        let capacity = capacity.filter(|bytes| *bytes > 0 && i64::try_from(*bytes).is_ok());
        let capacity = capacity.ok_or(Defect::Space("capacity"))?;
        let exponent = if has(own::TOPOLOGY) { space.physical_block_exponent } else { 0 };
        let exponent = if exponent <= EXPONENT_MAX { exponent } else { 0 };
        let optimal = if has(own::TOPOLOGY) { space.opt_io_size.get().checked_mul(block_size) } else { None };
        let whole = |sectors: u32| u64::from(sectors) * SECTOR / block * block;
        let granularity = space.discard_sector_alignment.get().checked_mul(SECTOR as u32);
        let granularity = granularity.filter(|bytes| *bytes >= block_size && bytes.is_multiple_of(block_size));
        let read_only = has(own::RO);
        let limits = Limits {
            capacity,
            block_size,
            physical_block_size: block_size << exponent,
            optimal_io_size: optimal.unwrap_or(0),
            transfer_bytes_max: lunar_blk::limits::TRANSFER_BYTES_MAX,
            segments_max: SEGMENTS_MAX,
            discard_bytes_max: if has(own::DISCARD) { whole(space.max_discard_sectors.get()) } else { 0 },
            discard_ranges_max: 1,
            discard_granularity: granularity.unwrap_or(block_size),
            write_zeroes_bytes_max: match has(own::WRITE_ZEROES) {
                true => whole(space.max_write_zeroes_sectors.get()),
                false => 0,
            },
            write_zeroes_may_unmap: space.write_zeroes_may_unmap != 0,
            read_only,
            has_write_cache: has(own::FLUSH) && (!has(own::CONFIG_WCE) || space.writeback != 0),
            is_rotational: false,
        };
        Ok(Self { limits, pieces: pieces(features, space)? })
    }

    /// The most bytes of the data of a request, up to `most`.
    #[must_use]
    pub fn transfer(&self, most: usize) -> usize {
        let (len, count) = self.pieces;
        len.saturating_mul(count).min(most)
    }
}

fn pieces(features: u64, space: &ConfigSpace) -> Result<(usize, usize), Defect> {
    let len = match (features & own::SIZE_MAX, space.size_max.get()) {
        // A limit of 0 allows no request. QEMU's storage daemon says it, and takes pieces of any length.
        (0, _) | (_, 0) => usize::MAX,
        (_, len) => len as usize,
    };
    let count = match features & own::SEG_MAX {
        0 => PIECES_MAX,
        _ => (space.seg_max.get() as usize).min(PIECES_MAX),
    };
    let len = len / PIECE_MIN * PIECE_MIN;
    if len == 0 || count == 0 { Err(Defect::Space("limits of requests")) } else { Ok((len, count)) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lunar_vhost_user::blk::{self, config_space};
    use lunar_vhost_user::virtio::{FEATURES, PROTOCOL};
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    fn limits() -> Limits {
        Limits {
            capacity: 1 << 30,
            block_size: 4096,
            physical_block_size: 16384,
            optimal_io_size: 65536,
            transfer_bytes_max: lunar_blk::limits::TRANSFER_BYTES_MAX,
            segments_max: SEGMENTS_MAX,
            discard_bytes_max: 1 << 30,
            discard_ranges_max: 1,
            discard_granularity: 8192,
            write_zeroes_bytes_max: 512 << 20,
            write_zeroes_may_unmap: true,
            read_only: false,
            has_write_cache: true,
            is_rotational: false,
        }
    }

    #[test]
    fn a_disk_of_lunar_keeps_its_limits() {
        let (offered, space) = (FEATURES | blk::features(&limits(), 4), config_space(&limits(), 4, true));
        let accepted = features(offered, true).expect("all that is needed");
        let shape = Shape::of(accepted, &space).expect("a disk");
        assert_eq!(shape.limits, limits());
        assert!(shape.transfer(512 << 10) == 512 << 10 && shape.pieces.0 < 512 << 10);
        assert_eq!(protocol_features(PROTOCOL).map(|features| features & protocol::STATUS), Ok(0));
    }

    #[test]
    fn a_driver_without_flushes_has_no_cache() {
        let (offered, space) = (FEATURES | blk::features(&limits(), 1), config_space(&limits(), 1, true));
        let accepted = features(offered, false).expect("all that is needed");
        assert_eq!(accepted & (own::FLUSH | own::CONFIG_WCE), 0);
        assert!(!Shape::of(accepted, &space).expect("a disk").limits.has_write_cache);
        let through = config_space(&limits(), 1, false);
        let accepted = features(offered, true).expect("all that is needed");
        assert!(!Shape::of(accepted, &through).expect("a disk").limits.has_write_cache);
    }

    #[test]
    fn a_limit_of_0_for_pieces_is_none() {
        let accepted = features(FEATURES | blk::features(&limits(), 1), true).expect("all that is needed");
        let space = ConfigSpace { size_max: 0.into(), ..config_space(&limits(), 1, true) };
        assert_eq!(Shape::of(accepted, &space).map(|shape| shape.transfer(1 << 17)), Ok(1 << 17));
    }

    #[test]
    fn back_ends_that_are_no_disks_are_refused() {
        assert_eq!(features(feature::VERSION_1, true), Err(Defect::Lacks("the features of vhost-user")));
        assert_eq!(protocol_features(protocol::CONFIG), Err(Defect::Lacks("acknowledgements")));
        let accepted = features(FEATURES | blk::features(&limits(), 1), true).expect("all that is needed");
        let good = config_space(&limits(), 1, true);
        for (space, what) in [
            (ConfigSpace { capacity: 0.into(), ..good }, "capacity"),
            (ConfigSpace { capacity: u64::MAX.into(), ..good }, "capacity"),
            (ConfigSpace { blk_size: 0.into(), ..good }, "block size"),
            (ConfigSpace { blk_size: 3000.into(), ..good }, "block size"),
            (ConfigSpace { size_max: 4095.into(), ..good }, "limits of requests"),
            (ConfigSpace { seg_max: 0.into(), ..good }, "limits of requests"),
        ] {
            assert_eq!(Shape::of(accepted, &space), Err(Defect::Space(what)));
        }
    }

    proptest! {
        /// For every configuration space, the limits are ones that the kernel takes.
        #[test]
        fn any_disk_has_sound_limits(bytes in prop::collection::vec(any::<u8>(), 96), features in any::<u64>()) {
            let space = ConfigSpace::read_from_bytes(&bytes[..]).expect("96 bytes");
            if let Ok(shape) = Shape::of(features, &space) {
                let Limits { capacity, block_size, physical_block_size, discard_granularity, .. } = shape.limits;
                prop_assert!(capacity > 0 && capacity.is_multiple_of(block_size.into()));
                prop_assert!(physical_block_size >= block_size && discard_granularity >= block_size);
                prop_assert!(shape.transfer(1 << 19) >= 4096 && shape.transfer(1 << 19) <= 1 << 19);
            }
        }
    }
}
