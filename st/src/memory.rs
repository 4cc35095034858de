//! The memory of the sequences of a port: bytes of its own, or memory of the arena that a store fills or has filled.

use crate::event::{Id, Memory, Place, VcId};
use lunar_core::mem::{Sg, SgMut};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The memory of a sequence.
#[derive(Debug)]
pub enum Chunk {
    /// Bytes for any use.
    Bytes(Vec<u8>),
    /// Memory to fill, for a Transfer from the peer.
    Room(SgMut),
    /// Memory that others read, too, for a Transfer to the peer.
    Data(Sg),
    /// Bytes that others have, too, for a Transfer to the peer.
    Shared(Rc<[u8]>),
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl Chunk {
    /// Copies the bytes from `at` on into all of `to`; returns whether there are so many.
    pub(crate) fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        match self {
            Self::Bytes(bytes) => {
                let part = at.checked_add(to.len()).and_then(|end| bytes.get(at..end));
                part.map(|part| to.copy_from_slice(part)).is_some()
            }
            Self::Room(room) => room.copy_to(at, to) == to.len(),
            Self::Data(data) => data.copy_to(at, to) == to.len(),
            Self::Shared(bytes) => {
                let part = at.checked_add(to.len()).and_then(|end| bytes.get(at..end));
                part.map(|part| to.copy_from_slice(part)).is_some()
            }
        }
    }

    /// Copies all of `from` to the bytes from `at` on; returns whether they may be written, and there are so many.
    pub(crate) fn copy_from(&mut self, at: usize, from: &[u8]) -> bool {
        match self {
            Self::Bytes(bytes) => {
                let part = at.checked_add(from.len()).and_then(|end| bytes.get_mut(at..end));
                part.map(|part| part.copy_from_slice(from)).is_some()
            }
            Self::Room(room) => room.copy_from(at, from) == from.len(),
            Self::Data(_) | Self::Shared(_) => false,
        }
    }
}

/// The memory of all sequences.
#[derive(Debug, Default)]
pub(crate) struct Chunks(pub(crate) BTreeMap<(VcId, Id), Chunk>);

impl Chunks {
    /// The memory of a place, and the offset there.
    pub(crate) fn at(&mut self, place: Place) -> Option<(&mut Chunk, usize)> {
        let chunk = self.0.get_mut(&(place.vc, place.id))?;
        Some((chunk, usize::try_from(place.offset).ok()?))
    }
}

impl Memory for Chunks {
    fn place(&mut self, place: Place, bytes: &[u8]) {
        // The engine has checked the place: memory of this length was given for the sequence.
        let is_placed = self.at(place).is_some_and(|(chunk, at)| chunk.copy_from(at, bytes));
        assert!(is_placed, "memory of a live sequence");
    }

    fn change(&mut self, place: Place, len: usize, change: &mut dyn FnMut(&mut [u8])) {
        let (chunk, at) = self.at(place).expect("memory of a live region");
        let mut word = [0; size_of::<u64>()];
        let word = &mut word[..len];
        let is_inside = chunk.copy_to(at, word);
        change(word);
        assert!(is_inside && chunk.copy_from(at, word), "the engine has checked the place");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::{Arena, BLOCK_MAX};

    #[test]
    fn all_kinds_of_memory_hold_bytes_within_their_bounds() {
        let arena = Arena::new(4 * BLOCK_MAX);
        let room = || arena.take_sg(2 * BLOCK_MAX).expect("room");
        let len = room().len();
        let mut read = [0; 4];
        for mut chunk in [Chunk::Bytes(vec![0; len]), Chunk::Room(room())] {
            // Across the border of two pieces.
            assert!(chunk.copy_from(BLOCK_MAX - 2, &[1, 2, 3, 4]) && chunk.copy_to(BLOCK_MAX - 2, &mut read));
            assert_eq!(read, [1, 2, 3, 4]);
            assert!(chunk.copy_from(len - 4, &[0; 4]) && !chunk.copy_from(len - 3, &[0; 4]));
            assert!(!chunk.copy_to(len - 3, &mut read) && !chunk.copy_to(usize::MAX, &mut read));
        }
        let mut room = room();
        room.copy_from(0, &[9; 4]);
        for mut data in [Chunk::Data(room.share()), Chunk::Shared(Rc::from([9; 4]))] {
            read.fill(0);
            assert!(data.copy_to(0, &mut read) && !data.copy_from(0, &read));
            assert_eq!(read, [9; 4]);
            assert!(!data.copy_to(usize::MAX, &mut read));
        }
    }
}
