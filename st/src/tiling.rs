//! Tiling: how a run of bytes is cut into STUs. No STU crosses the boundary of a buffer, and all but the first and the
//! last one have the full length.

/// A run of bytes in the buffers of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiling {
    /// The offset of the first byte in its buffer.
    offset: u32,
    /// The index of its buffer.
    bufx: u32,
    /// The number of bytes.
    len: u32,
    /// The full length of an STU, as a power of two.
    stu: u8,
    /// The length of a buffer, as a power of two; not shorter than an STU.
    buffer: u8,
}

/// One STU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Its buffer, and the offset in it.
    pub bufx: u32,
    /// See there.
    pub offset: u32,
    /// The offset of its first byte in the run.
    pub at: u32,
    /// Its bytes.
    pub len: u32,
}

impl Tiling {
    /// The tiling of `len` bytes that begin in this buffer at this offset; `None` if the offset is not in the buffer.
    #[must_use]
    pub fn new((bufx, offset): (u32, u32), len: u32, (stu, buffer): (u8, u8)) -> Option<Self> {
        let fits = stu <= buffer && buffer < 32 && u64::from(offset) < 1 << buffer;
        fits.then_some(Self { offset, bufx, len, stu, buffer })
    }

    /// The buffer of the first byte.
    #[must_use]
    pub fn bufx(&self) -> u32 {
        self.bufx
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.len
    }

    /// The bytes before the first byte in its STU.
    fn lead(&self) -> u64 {
        u64::from(self.offset) & ((1 << self.stu) - 1)
    }

    /// The number of STUs; one of no bytes for no bytes.
    #[must_use]
    pub fn count(&self) -> u32 {
        // At most 2^32 bytes in STUs of at least one byte.
        (self.lead() + u64::from(self.len)).div_ceil(1 << self.stu).clamp(1, u64::from(u32::MAX)) as u32
    }

    /// The STU of this index; `None` if there are not so many.
    #[must_use]
    pub fn tile(&self, index: u32) -> Option<Tile> {
        if index >= self.count() {
            return None;
        }
        let full = 1_u64 << self.stu;
        let start = (u64::from(index) * full).saturating_sub(self.lead());
        let end = ((u64::from(index) + 1) * full - self.lead()).min(self.len.into());
        let place = u64::from(self.offset) + start;
        Some(Tile {
            bufx: self.bufx.wrapping_add((place >> self.buffer) as u32),
            offset: (place & ((1 << self.buffer) - 1)) as u32,
            at: start as u32,
            len: (end - start) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tiles_cover_a_run_exactly(
            offset in 0_u32..1 << 16, len in 1_u32..300_000, stu in 8_u8..15, more in 0_u8..2, bufx in any::<u32>(),
        ) {
            let buffer = (stu + more).max(12);
            let offset = offset & ((1 << buffer) - 1);
            let tiling = Tiling::new((bufx, offset), len, (stu, buffer)).expect("inside");
            let (mut at, mut place) = (0, u64::from(offset));
            for index in 0..tiling.count() {
                let tile = tiling.tile(index).expect("one of them");
                prop_assert_eq!(tile.at, at);
                prop_assert_eq!(u64::from(tile.bufx.wrapping_sub(bufx)) << buffer | u64::from(tile.offset), place);
                prop_assert!(tile.offset + tile.len <= 1 << buffer, "within one buffer");
                prop_assert!(tile.len > 0 && tile.len <= 1 << stu);
                let is_end = index == 0 || index + 1 == tiling.count();
                prop_assert!(is_end || tile.len == 1 << stu);
                at += tile.len;
                place += u64::from(tile.len);
            }
            prop_assert_eq!(at, len);
            prop_assert_eq!(tiling.tile(tiling.count()), None);
        }
    }

    #[test]
    fn extremes_are_tiled_or_refused() {
        assert_eq!(Tiling::new((0, 1 << 12), 1, (10, 12)), None);
        assert_eq!(Tiling::new((0, 0), 1, (13, 12)), None);
        let empty = Tiling::new((3, 0), 0, (10, 12)).expect("inside");
        assert_eq!((empty.count(), empty.tile(0)), (1, Some(Tile { bufx: 3, offset: 0, at: 0, len: 0 })));
        let large = Tiling::new((u32::MAX, 4095), u32::MAX, (8, 12)).expect("inside");
        let last = large.tile(large.count() - 1).expect("one of them");
        assert_eq!(u64::from(last.at) + u64::from(last.len), u64::from(u32::MAX));
    }
}
