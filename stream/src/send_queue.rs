//! Bytes that wait to be sent. Headers and short replies are written into memory of the arena's reserve, one after the
//! other; payload between them is not copied. All that is queued at the end of a turn leaves in one send.

use lunar_core::mem::{Arena, Buf, PAGE, Sg, Slice};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a block for headers: one page, the smallest block of the arena.
const BLOCK_LEN: usize = PAGE;

/// The bytes that wait to be sent to one peer.
#[derive(Debug)]
pub struct SendQueue {
    arena: Arena,
    /// The block that headers are written into. Its first `written` bytes are queued but not yet split off; the others
    /// are free.
    block: Option<Buf>,
    written: usize,
    queue: Sg,
    /// Pieces of the last send, which the next one most likely has as well.
    pieces: usize,
    lacks_memory: bool,
}

impl SendQueue {
    /// An empty queue. It takes no memory before the first header.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self { arena, block: None, written: 0, queue: Sg::default(), pieces: 0, lacks_memory: false }
    }

    /// The number of queued bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len() + self.written
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all queued bytes, for one send.
    #[must_use]
    pub fn take(&mut self) -> Sg {
        self.cut();
        self.pieces = self.queue.pieces().len();
        std::mem::take(&mut self.queue)
    }

    /// Whether there was no memory for a header: the queued bytes have a gap, and the connection cannot go on.
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Queues a header within one block, and returns it so that the caller can complete it in place; `None` without
    /// memory. Its fields are stored directly where they are sent from: a header that is built elsewhere and copied
    /// would be loaded before its stores retire, which costs more than all the rest.
    #[inline(always)]
    pub fn header<H: FromBytes + IntoBytes + KnownLayout + Immutable>(&mut self, header: H) -> Option<&mut H> {
        if self.room() < size_of::<H>() && !self.refill() {
            return None;
        }
        let (place, _) = H::mut_from_prefix(&mut self.block.as_mut()?[self.written..]).ok()?;
        *place = header;
        self.written += size_of::<H>();
        Some(place)
    }

    /// Queues a copy of `bytes`.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.room() == 0 && !self.refill() {
                return;
            }
            let Some(block) = &mut self.block else { return };
            let count = bytes.len().min(block.len() - self.written);
            block[self.written..self.written + count].copy_from_slice(&bytes[..count]);
            self.written += count;
            bytes = &bytes[count..];
        }
    }

    /// Queues the first `len` bytes of `data` without copying them; `data` keeps the rest. Calls `look` with each piece
    /// in order.
    ///
    /// # Panics
    /// When `data` has fewer than `len` bytes.
    #[inline]
    pub fn payload(&mut self, data: &mut Sg, len: usize, mut look: impl FnMut(&[u8])) {
        self.cut();
        // Almost always `data` is one piece and all of it is queued.
        if data.len() == len && data.pieces().len() == 1 {
            if let Some(piece) = data.pop() {
                look(&piece);
                self.queue.push(piece);
            }
            return;
        }
        for piece in data.split_to(len).into_pieces() {
            look(&piece);
            self.queue.push(piece);
        }
    }

    /// Free bytes of the block.
    #[inline]
    fn room(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.len() - self.written)
    }

    fn refill(&mut self) -> bool {
        self.cut();
        self.block = self.arena.take_reserved(BLOCK_LEN);
        self.lacks_memory |= self.block.is_none();
        self.block.is_some()
    }

    /// Moves the bytes written since the last call to the queue.
    #[inline]
    fn cut(&mut self) {
        if self.written == 0 {
            return;
        }
        if self.queue.is_empty() {
            self.queue.reserve(self.pieces);
        }
        if let Some(block) = &mut self.block {
            let part: Slice = block.split_to(self.written).share();
            self.queue.push(part);
        }
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::BLOCK_MAX;

    type Header = [u8; 48];

    fn queue() -> (Arena, SendQueue) {
        let arena = Arena::new(BLOCK_MAX);
        (arena.clone(), SendQueue::new(arena))
    }

    #[test]
    fn headers_share_a_block_and_payload_is_not_copied() {
        let (arena, mut queue) = queue();
        let payload = arena.copy(b"12345").expect("room");
        queue.header([1_u8; 48]).expect("room")[47] = 9;
        queue.write(b"abcd");
        let mut seen = Vec::new();
        let mut data = Sg::from(payload.clone());
        queue.payload(&mut data, 4, |piece| seen.extend_from_slice(piece));
        queue.payload(&mut data, 1, |piece| seen.extend_from_slice(piece));
        assert!(queue.header([2_u8; 48]).is_some());
        assert_eq!((seen.as_slice(), data.len(), queue.len()), (&b"12345"[..], 0, 105));
        let sg = queue.take();
        assert!(queue.is_empty());
        assert_eq!(sg.pieces().iter().map(|piece| piece.len()).collect::<Vec<_>>(), [52, 4, 1, 48]);
        assert!(std::ptr::eq(sg.pieces()[1].as_ptr(), payload.as_ptr()));
        assert_eq!(sg.to_vec(), [&[1; 47][..], b"\x09abcd12345", &[2; 48]].concat());
    }

    #[test]
    fn a_header_does_not_span_two_blocks() {
        let (_arena, mut queue) = queue();
        for _ in 0..200 {
            let _: Option<&mut Header> = queue.header([0; 48]);
        }
        let sg = queue.take();
        // A page holds 85 headers.
        assert_eq!(sg.pieces().iter().map(|piece| piece.len()).collect::<Vec<_>>(), [85 * 48, 85 * 48, 30 * 48]);
        assert!(!queue.lacks_memory());
    }

    #[test]
    fn a_queue_without_memory_is_starved() {
        let (arena, mut queue) = queue();
        let held: Vec<Buf> = std::iter::from_fn(|| arena.take_reserved(1)).collect();
        assert!(queue.header([0_u8; 48]).is_none() && queue.lacks_memory());
        drop(held);
    }
}
