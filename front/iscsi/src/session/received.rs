//! Received payload in the order of arrival. A piece that follows the last one in the same block is joined with it.

use lunar_core::mem::{Sg, SgMut, Slice};
use smallvec::SmallVec;

/// Received bytes that were not pulled.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// One piece of unsolicited and one of solicited data. More pieces occur only with more sequences.
    pieces: SmallVec<[Slice; 2]>,
    len: usize,
}

impl Received {
    /// The number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a piece.
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

    /// Appends all pieces of `sg`.
    pub(super) fn append(&mut self, sg: Sg) {
        sg.into_pieces().for_each(|part| self.push(part));
    }

    /// Removes the first `len` bytes. There must be that many.
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

    /// Copies the bytes to `memory`, which has as many, and keeps that instead.
    pub(super) fn move_to(&mut self, mut memory: SgMut) {
        let mut at = 0;
        for piece in &self.pieces {
            memory.copy_from(at, piece);
            at += piece.len();
        }
        self.clear();
        self.append(memory.share());
    }

    /// Drops everything.
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
    fn adjacent_pieces_are_joined_and_bytes_are_taken_from_the_front() {
        let arena = Arena::new(BLOCK_MAX);
        let mut block = arena.take(100).expect("room");
        block.iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
        let mut received = Received::default();
        received.push(arena.copy(b"ab").expect("room"));
        received.push(block.split_to(10).share());
        received.append(Sg::from(block.split_to(10).share()));
        received.push(block.split_to(0).share());
        assert_eq!((received.len(), received.pieces.len()), (22, 2));
        assert_eq!(received.take(1).to_vec(), b"a");
        assert_eq!(received.take(3).to_vec(), [b'b', 0, 1]);
        assert_eq!(received.take(18).to_vec(), (2..20).collect::<Vec<u8>>());
        assert_eq!((received.len(), received.take(0).len()), (0, 0));
        received.push(block.share());
        received.clear();
        assert_eq!((received.len(), arena.used()), (0, 0));
    }
}
