//! What waits to be sent: headers and short answers written one behind the other into memory of the arena's reserve,
//! payload between them untouched. All that is queued at the end of a turn leaves in one send.

use lunar_core::mem::{Arena, Buf, PAGE, Sg, Slice};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Headers are written into blocks of this many bytes: one page, the smallest that the arena has.
const BLOCK_LEN: usize = PAGE;

/// The queue to the peer.
#[derive(Debug)]
pub struct SendQueue {
    arena: Arena,
    /// Its first `written` bytes are queued but not yet cut off; all others are free.
    block: Option<Buf>,
    written: usize,
    queue: Sg,
    /// Pieces of the last send: most likely the next has as many.
    pieces: usize,
    starved: bool,
}

impl SendQueue {
    /// An empty queue; takes no memory before the first header.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self { arena, block: None, written: 0, queue: Sg::default(), pieces: 0, starved: false }
    }

    /// Bytes that wait.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len() + self.written
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything that waits, for one send.
    #[must_use]
    pub fn take(&mut self) -> Sg {
        self.cut();
        self.pieces = self.queue.pieces().len();
        std::mem::take(&mut self.queue)
    }

    /// Whether there was no memory for a header: what is queued has a hole, the connection cannot go on.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.starved
    }

    /// Queues a header, never over the end of a block: so its fields are stored where they will lie. Put together
    /// elsewhere and copied, they would be read before their stores have retired, which costs more than all the rest.
    /// What is not known before is filled in there; `None` without memory.
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

    /// Queues bytes as they are.
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

    /// Queues payload that stays where it is: the first `len` bytes of `data`, which keeps the rest. `look` sees each
    /// piece, in their order.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    pub fn payload(&mut self, data: &mut Sg, len: usize, mut look: impl FnMut(&[u8])) {
        self.cut();
        // Nearly always it is one piece, all of it.
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

    /// Bytes that are left of the block.
    #[inline]
    fn room(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.len() - self.written)
    }

    fn refill(&mut self) -> bool {
        self.cut();
        self.block = self.arena.take_reserved(BLOCK_LEN);
        self.starved |= self.block.is_none();
        self.block.is_some()
    }

    /// Queues what was written since the last cut.
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
    fn headers_lie_together_and_payload_is_not_copied() {
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
    fn headers_lie_in_one_block_each() {
        let (_arena, mut queue) = queue();
        for _ in 0..200 {
            let _: Option<&mut Header> = queue.header([0; 48]);
        }
        let sg = queue.take();
        // 85 headers to a page.
        assert_eq!(sg.pieces().iter().map(|piece| piece.len()).collect::<Vec<_>>(), [85 * 48, 85 * 48, 30 * 48]);
        assert!(!queue.is_starved());
    }

    #[test]
    fn without_memory_it_starves() {
        let (arena, mut queue) = queue();
        let held: Vec<Buf> = std::iter::from_fn(|| arena.take_reserved(1)).collect();
        assert!(queue.header([0_u8; 48]).is_none() && queue.is_starved());
        drop(held);
    }
}
