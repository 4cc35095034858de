//! Sector contents that identify the write, so that a read can be checked.

use crate::model::{Value, ZEROES};
use lunar_load::pattern;
pub use lunar_reactor::sim::SECTOR;
use std::ops::Range;

/// The bytes of some sectors that one write fills.
#[must_use]
pub fn fill(seed: u64, sectors: Range<usize>, value: Value) -> Vec<u8> {
    let mut bytes = vec![0; sectors.len() * SECTOR];
    if value != ZEROES {
        for (block, sector) in bytes.chunks_mut(SECTOR).zip(sectors) {
            pattern::fill(block, seed, sector as u64, value);
        }
    }
    bytes
}

/// The values of the sectors from `first` on.
///
/// # Errors
/// A sector has contents that no write wrote there: it is torn, or it belongs to another place.
pub fn read(seed: u64, first: usize, bytes: &[u8]) -> Result<Vec<Value>, String> {
    let blocks = bytes.chunks(SECTOR).zip(first..);
    blocks
        .map(|(block, sector)| match pattern::check(block, seed, sector as u64) {
            Ok(value) => Ok(value),
            Err(pattern::Mismatch::Zeroes) => Ok(ZEROES),
            Err(why) => Err(format!("sector {sector} has contents that no write wrote there: {why}")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_read() {
        let bytes = fill(7, 3..6, 42);
        assert_eq!(read(7, 3, &bytes), Ok(vec![42; 3]));
        assert_eq!(read(7, 0, &fill(7, 0..2, ZEROES)), Ok(vec![ZEROES; 2]));
    }

    #[test]
    fn other_places_and_torn_sectors_are_found() {
        let mut bytes = fill(7, 3..4, 42);
        assert!(read(7, 4, &bytes).is_err());
        assert!(read(8, 3, &bytes).is_err());
        bytes[300..].copy_from_slice(&fill(7, 3..4, 43)[300..]);
        assert!(read(7, 3, &bytes).is_err());
    }
}
