//! Parts of payload that arrived one after the other: neighbours in one block become one piece again.

use lunar_core::mem::{Sg, Slice};
use smallvec::SmallVec;

/// Bytes in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// One piece of what came unasked, one of what was asked for: more only with more bursts.
    pieces: SmallVec<[Slice; 2]>,
    len: usize,
}

impl Joined {
    /// Bytes in all pieces.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a part.
    pub(super) fn push(&mut self, part: Slice) {
        if part.is_empty() {
            return;
        }
        self.len += part.len();
        let apart = match self.pieces.last_mut() {
            Some(last) => last.join(part),
            None => Some(part),
        };
        self.pieces.extend(apart);
    }

    /// Appends all parts of `sg`.
    pub(super) fn append(&mut self, sg: Sg) {
        sg.into_pieces().for_each(|part| self.push(part));
    }

    /// Takes the first `len` bytes, of which there are as many.
    pub(super) fn take(&mut self, len: usize) -> Sg {
        debug_assert!(len <= self.len, "{len} of {} bytes", self.len);
        let mut sg = Sg::default();
        let mut whole = 0;
        for piece in &self.pieces {
            if sg.len() + piece.len() > len {
                break;
            }
            sg.push(piece.clone());
            whole += 1;
        }
        self.pieces.drain(..whole);
        let rest = len - sg.len();
        if rest > 0
            && let Some(piece) = self.pieces.first_mut()
        {
            sg.push(piece.split_to(rest));
        }
        self.len -= len;
        sg
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::{Arena, BLOCK_MAX};

    #[test]
    fn neighbours_become_one_and_parts_come_off_the_front() {
        let arena = Arena::new(BLOCK_MAX);
        let mut block = arena.take(100).expect("room");
        block.iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
        let mut joined = Joined::default();
        joined.push(arena.copy(b"ab").expect("room"));
        joined.push(block.split_to(10).share());
        joined.append(Sg::from(block.split_to(10).share()));
        joined.push(block.split_to(0).share());
        assert_eq!((joined.len(), joined.pieces.len()), (22, 2));
        assert_eq!(joined.take(1).to_vec(), b"a");
        assert_eq!(joined.take(3).to_vec(), [b'b', 0, 1]);
        assert_eq!(joined.take(18).to_vec(), (2..20).collect::<Vec<u8>>());
        assert_eq!((joined.len(), joined.take(0).len()), (0, 0));
        joined.push(block.share());
        joined.clear();
        assert_eq!((joined.len(), arena.used()), (0, 0));
    }
}
