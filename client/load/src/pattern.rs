//! Test patterns: each logical block contains the seed, its LBA, the number of the write (generation), filler and a
//! checksum of all of that.
//!
//! Each logical block is checked alone, so a torn write is found block by block.

use lunar_core::wire::le::U64;
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u64 = u64::from_le_bytes(*b"LunarPat");
const HEAD_LEN: usize = 32;
const SUM_LEN: usize = 8;
/// An odd number near 2^64 divided by the golden ratio: its multiples are distributed evenly.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: U64,
    seed: U64,
    lba: U64,
    generation: U64,
}

const _: () = assert!(size_of::<Head>() == HEAD_LEN);

/// The reason why a block is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// The block contains zeroes.
    Zeroes,
    /// The block contains no pattern.
    Foreign,
    /// The block was written by a run with this seed.
    Seed(u64),
    /// The pattern is that of another LBA.
    Lba(u64),
    /// The checksum is wrong: the block is a mixture of two writes, or corrupted.
    Checksum,
    /// The block was written by an older or another write than expected.
    Generation {
        /// The number of the write that the block contains.
        found: u64,
        /// The number of the expected write.
        wanted: u64,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeroes => f.write_str("zeroes"),
            Self::Foreign => f.write_str("no pattern"),
            Self::Seed(seed) => write!(f, "the pattern of another run (seed {seed})"),
            Self::Lba(lba) => write!(f, "the block of LBA {lba}"),
            Self::Checksum => f.write_str("a pattern with a wrong checksum"),
            Self::Generation { found, wanted } => write!(f, "write {found} instead of write {wanted}"),
        }
    }
}

/// Fills one logical block with its pattern.
///
/// # Panics
/// If the block is shorter than 40 bytes (head and checksum).
pub fn fill(block: &mut [u8], seed: u64, lba: u64, generation: u64) {
    let head = Head { magic: MAGIC.into(), seed: seed.into(), lba: lba.into(), generation: generation.into() };
    let (body, sum) = block.split_at_mut(block.len() - SUM_LEN);
    body[..HEAD_LEN].copy_from_slice(head.as_bytes());
    let mut word = (seed ^ lba.rotate_left(32) ^ generation).wrapping_mul(STEP);
    for chunk in body[HEAD_LEN..].chunks_mut(8) {
        word = word.wrapping_add(STEP);
        chunk.copy_from_slice(&(word ^ word >> 29).to_le_bytes()[..chunk.len()]);
    }
    sum.copy_from_slice(U64::from(u64::from(crc32c::crc32c(body))).as_bytes());
}

/// Checks one logical block. Returns the number of the write that it contains.
///
/// # Errors
/// The reason why the block is wrong.
pub fn check(block: &[u8], seed: u64, lba: u64) -> Result<u64, Mismatch> {
    let (head, _) = Head::ref_from_prefix(block).map_err(|_| Mismatch::Foreign)?;
    let (body, sum) = block.split_at_checked(block.len().saturating_sub(SUM_LEN)).ok_or(Mismatch::Foreign)?;
    if head.magic != MAGIC {
        return Err(if block.iter().all(|byte| *byte == 0) { Mismatch::Zeroes } else { Mismatch::Foreign });
    }
    if *sum != *U64::from(u64::from(crc32c::crc32c(body))).as_bytes() {
        return Err(Mismatch::Checksum);
    }
    if head.seed != seed {
        return Err(Mismatch::Seed(head.seed.get()));
    }
    if head.lba != lba {
        return Err(Mismatch::Lba(head.lba.get()));
    }
    Ok(head.generation.get())
}

/// Splits data that arrives in pieces into logical blocks. Only a block that spans two pieces is copied.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    held: Vec<u8>,
    /// The LBA of the next block.
    next: u64,
}

impl Blocks {
    /// Sets the LBA of the first block of the next piece.
    pub fn start(&mut self, lba: u64) {
        self.held.clear();
        self.next = lba;
    }

    /// Takes a piece; calls `each` with the LBA and the bytes of every block that is complete.
    pub fn feed(&mut self, mut part: &[u8], block_size: usize, mut each: impl FnMut(u64, &[u8])) {
        if !self.held.is_empty() {
            let (front, rest) = part.split_at((block_size - self.held.len()).min(part.len()));
            self.held.extend_from_slice(front);
            part = rest;
            if self.held.len() < block_size {
                return;
            }
            each(self.next, &self.held);
            self.next += 1;
            self.held.clear();
        }
        let blocks = part.chunks_exact(block_size);
        self.held.extend_from_slice(blocks.remainder());
        for block in blocks {
            each(self.next, block);
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(seed: u64, lba: u64, generation: u64) -> Vec<u8> {
        let mut block = vec![0xa5; 512];
        fill(&mut block, seed, lba, generation);
        block
    }

    #[test]
    fn a_block_identifies_its_write() {
        assert_eq!(check(&block(1, 2, 3), 1, 2), Ok(3));
        assert_eq!(check(&block(1, 2, 3), 9, 2), Err(Mismatch::Seed(1)));
        assert_eq!(check(&block(1, 2, 3), 1, 4), Err(Mismatch::Lba(2)));
        assert_eq!(check(&[0; 512], 1, 2), Err(Mismatch::Zeroes));
        assert_eq!(check(&[7; 512], 1, 2), Err(Mismatch::Foreign));
        assert_eq!(check(&[0; 7], 1, 2), Err(Mismatch::Foreign));
    }

    #[test]
    fn a_mixture_of_two_writes_is_detected() {
        let (mut torn, new) = (block(1, 2, 3), block(1, 2, 4));
        torn[..256].copy_from_slice(&new[..256]);
        assert_eq!(check(&torn, 1, 2), Err(Mismatch::Checksum));
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_detected(at in 0usize..4096 * 8, seed: u64, lba: u64, generation: u64) {
            let mut block = vec![0; 4096];
            fill(&mut block, seed, lba, generation);
            prop_assert_eq!(check(&block, seed, lba), Ok(generation));
            block[at / 8] ^= 1 << (at % 8);
            prop_assert!(check(&block, seed, lba).is_err());
        }

        #[test]
        fn blocks_are_found_in_any_pieces(count in 1u64..6, cuts in prop::collection::vec(1usize..1500, 1..40)) {
            let data: Vec<u8> = (0..count).flat_map(|at| block(5, 100 + at, at)).collect();
            let (mut blocks, mut got) = (Blocks::default(), Vec::new());
            blocks.start(100);
            let (mut rest, mut cuts) = (&data[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (part, next) = rest.split_at((*cuts.next().expect("cycle")).min(rest.len()));
                blocks.feed(part, 512, |lba, block| got.push(check(block, 5, lba)));
                rest = next;
            }
            prop_assert_eq!(got, (0..count).map(Ok).collect::<Vec<_>>());
        }
    }
}
