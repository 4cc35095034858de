//! Test data: random choices from a seed, and data that identifies the write that it comes from.

/// A small random number generator (xorshift): the same seed gives the same tests.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to `end` - 1.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[2]
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }
}

/// Data that identifies its write: place and generation in every 16 bytes.
pub(crate) fn pattern(place: u64, generation: u64, length: usize) -> Vec<u8> {
    let mut unit = [0; 16];
    unit[..8].copy_from_slice(&place.to_be_bytes());
    unit[8..].copy_from_slice(&generation.to_be_bytes());
    let mut whole = unit.repeat(length.div_ceil(unit.len()));
    whole.truncate(length);
    whole
}
