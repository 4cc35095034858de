//! Limits of requests, which transports advertise to their clients.

use lunar_core::unit::Unit;

/// Most bytes that one read or write moves: the length that NBD clients send to a server that advertises no limit.
/// Requests are executed in pieces, so the limit bounds the time of one request, and not its memory.
pub const TRANSFER_BYTES_MAX: u64 = 32 << 20;
/// Most pieces of memory that hold the data of one request: a store moves as many with one system call (UIO_MAXIOV).
pub const SEGMENTS_MAX: u32 = 1024;
/// Most bytes of one range of a discard: this bounds the time of one request where deallocation is slow.
pub const DISCARD_BYTES_MAX: u64 = 1 << 30;
/// Most ranges of one discard: a guest merges a few dozen of them while one request is in progress.
pub const DISCARD_RANGES_MAX: usize = 32;
/// Most bytes of one write of zeroes: a store without such an operation writes this number of bytes.
pub const WRITE_ZEROES_BYTES_MAX: u64 = 512 << 20;
/// Most extents of one answer: 16 KiB in the formats of the transports. A client continues with a request from the end
/// of the last one.
pub const EXTENTS_MAX: usize = 1024;

/// The limits of one client at one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of the unit.
    pub capacity: u64,
    /// Bytes of a logical block: all ranges are aligned to it.
    pub block_size: u32,
    /// Bytes of a physical block.
    pub physical_block_size: u32,
    /// Optimal length of a request in bytes; zero: no preference.
    pub optimal_io_size: u32,
    /// See [`TRANSFER_BYTES_MAX`].
    pub transfer_bytes_max: u64,
    /// See [`SEGMENTS_MAX`].
    pub segments_max: u32,
    /// See [`DISCARD_BYTES_MAX`]; zero: discard is not supported.
    pub discard_bytes_max: u64,
    /// See [`DISCARD_RANGES_MAX`].
    pub discard_ranges_max: usize,
    /// Granularity of deallocation in bytes. Parts of a range that do not fill such a unit stay allocated.
    pub discard_granularity: u32,
    /// See [`WRITE_ZEROES_BYTES_MAX`].
    pub write_zeroes_bytes_max: u64,
    /// Whether a write of zeroes can deallocate the space.
    pub write_zeroes_may_unmap: bool,
    /// Whether the unit refuses every change.
    pub read_only: bool,
    /// Whether the data of a completed write may be lost at a power failure before a flush.
    pub has_write_cache: bool,
    /// Whether the medium rotates.
    pub is_rotational: bool,
}

impl Limits {
    /// The limits of a client that may only read if `read_only`.
    #[must_use]
    pub fn of(unit: &Unit, read_only: bool) -> Self {
        let (traits, geometry) = (unit.traits(), &unit.geometry);
        let can_unmap = traits.unmap_granularity > 0;
        Self {
            capacity: geometry.bytes(),
            block_size: geometry.block_size,
            physical_block_size: geometry.block_size << geometry.physical_exponent,
            optimal_io_size: traits.optimal_io,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            segments_max: SEGMENTS_MAX,
            discard_bytes_max: if can_unmap { DISCARD_BYTES_MAX } else { 0 },
            discard_ranges_max: DISCARD_RANGES_MAX,
            discard_granularity: traits.unmap_granularity,
            write_zeroes_bytes_max: WRITE_ZEROES_BYTES_MAX,
            write_zeroes_may_unmap: can_unmap,
            read_only: read_only || unit.read_only,
            has_write_cache: traits.write_cache,
            is_rotational: traits.rotational,
        }
    }
}
