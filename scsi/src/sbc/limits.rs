//! Limits of commands with a range of blocks, which VPD page B0h advertises.

use lunar_core::step::PIECE_BYTES;
use lunar_core::unit::Unit;

/// MAXIMUM TRANSFER LENGTH in bytes. 65,536 blocks of 4 KiB: initiators need not split their largest requests. Memory
/// does not grow with it, because data moves in pieces.
pub const TRANSFER_BYTES_MAX: u64 = 256 << 20;
/// Longest range of VERIFY without data and of PRE-FETCH in bytes: both move no data.
pub const VERIFY_BYTES_MAX: u64 = 1 << 30;
/// MAXIMUM COMPARE AND WRITE LENGTH in blocks: the largest value of its field of one byte, within [`PIECE_BYTES`].
pub const COMPARE_AND_WRITE_BLOCKS_MAX: u64 = 255;
/// MAXIMUM WRITE SAME LENGTH in bytes: bounds the bytes that one command writes to a store without an operation for
/// zeroes.
pub const WRITE_SAME_BYTES_MAX: u64 = 512 << 20;
/// MAXIMUM UNMAP LBA COUNT: bounds the time of one command on stores that unmap slowly.
pub const UNMAP_BLOCKS_MAX: u64 = 1 << 20;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT: the parameter list with its header fits one page of memory.
pub const UNMAP_DESCRIPTORS_MAX: usize = 255;

/// MAXIMUM TRANSFER LENGTH in blocks.
#[must_use]
pub fn transfer_blocks_max(unit: &Unit) -> u64 {
    TRANSFER_BYTES_MAX / u64::from(unit.geometry.block_size)
}

/// MAXIMUM COMPARE AND WRITE LENGTH in blocks.
#[must_use]
pub fn compare_and_write_blocks_max(unit: &Unit) -> u64 {
    COMPARE_AND_WRITE_BLOCKS_MAX.min(PIECE_BYTES as u64 / u64::from(unit.geometry.block_size))
}

/// MAXIMUM ATOMIC TRANSFER LENGTH in blocks: the store's promise, within one piece. 0: WRITE ATOMIC is not supported.
#[must_use]
pub fn atomic_blocks_max(unit: &Unit) -> u64 {
    let bytes = u64::from(unit.traits().atomic_write).min(PIECE_BYTES as u64);
    (bytes / u64::from(unit.geometry.block_size)).min(u16::MAX.into())
}

/// MAXIMUM WRITE SAME LENGTH in blocks.
#[must_use]
pub fn write_same_blocks_max(unit: &Unit) -> u64 {
    WRITE_SAME_BYTES_MAX / u64::from(unit.geometry.block_size)
}
