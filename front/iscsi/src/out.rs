//! What waits to be sent: headers and short answers written one behind the other into memory of the arena's
//! reserve, payload between them untouched. All that is queued at the end of a turn leaves in one send.

use crate::wire::{BHS_LEN, DIGEST_LEN, Digest, Pdu, U24, padded};
use lunar_core::mem::{Arena, Buf, Sg, Slice};
use zerocopy::IntoBytes;

/// Headers are written into blocks of this many bytes: one page, the smallest that the arena has.
const BLOCK_LEN: usize = lunar_core::mem::PAGE;

/// Which digests are on (13.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digests {
    /// Of headers.
    pub header: bool,
    /// Of data segments.
    pub data: bool,
}

/// The queue to the peer.
#[derive(Debug)]
pub struct Out {
    arena: Arena,
    /// Its first `written` bytes are queued but not yet cut off; all others are free.
    block: Option<Buf>,
    written: usize,
    queue: Sg,
    /// Pieces of the last send: most likely the next has as many.
    pieces: usize,
    starved: bool,
    /// Digests of what is queued from now on.
    pub(crate) digests: Digests,
}

impl Out {
    /// An empty queue; takes no memory before the first header.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self {
            arena,
            block: None,
            written: 0,
            queue: Sg::default(),
            pieces: 0,
            starved: false,
            digests: Digests::default(),
        }
    }

    /// Bytes that wait.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queue.len() + self.written
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

    /// Queues a PDU with a data segment that is written like a header: short, or made up on the spot.
    pub fn short<P: Pdu>(&mut self, header: P, data: &[&[u8]]) {
        let len = data.iter().map(|part| part.len()).sum();
        self.header(header, len);
        if len == 0 {
            return;
        }
        let mut digest = Digest::new();
        for part in data {
            self.write(part);
            if self.digests.data {
                digest.update(part);
            }
        }
        self.trailer(len, digest);
    }

    /// Queues a PDU with a data segment that stays where it is: the first `len` bytes of `data`, which keeps the rest.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline(always)]
    pub fn payload<P: Pdu>(&mut self, header: P, data: &mut Sg, len: usize) {
        self.header(header, len);
        if len > 0 {
            self.body(data, len);
        }
    }

    /// Writes a header, never over the end of a block: so its fields are stored where they will lie. Put together
    /// elsewhere and copied, they would be read before their stores have retired, which costs more than all the rest.
    #[inline(always)]
    fn header<P: Pdu>(&mut self, header: P, data_len: usize) {
        if self.room() < BHS_LEN && !self.refill() {
            return;
        }
        let Some(block) = &mut self.block else { return };
        let Ok((place, _)) = P::mut_from_prefix(&mut block[self.written..]) else { return };
        *place = header;
        // Every format has the length at the same place: the common header says where.
        place.as_mut_bytes()[5..8].copy_from_slice(U24::new(data_len).as_bytes());
        self.written += BHS_LEN;
        if self.digests.header {
            let digest = crate::wire::digest(place.as_bytes());
            self.write(&digest);
        }
    }

    fn body(&mut self, data: &mut Sg, len: usize) {
        self.cut();
        let mut digest = Digest::new();
        // Nearly always it is one piece, all of it.
        if data.len() == len && data.pieces().len() == 1 {
            self.piece(data.pop(), &mut digest);
        } else {
            data.split_to(len).into_pieces().for_each(|piece| self.piece(Some(piece), &mut digest));
        }
        self.trailer(len, digest);
    }

    #[inline(always)]
    fn piece(&mut self, piece: Option<Slice>, digest: &mut Digest) {
        let Some(piece) = piece else { return };
        if self.digests.data {
            digest.update(&piece);
        }
        self.queue.push(piece);
    }

    /// Bytes that are left of the block.
    #[inline]
    fn room(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.len() - self.written)
    }

    fn trailer(&mut self, len: usize, mut digest: Digest) {
        let pad = padded(len) - len;
        if self.digests.data {
            let mut bytes = [0; 3 + DIGEST_LEN];
            bytes[pad..pad + DIGEST_LEN].copy_from_slice(&digest.pad(len).bytes());
            self.write(&bytes[..pad + DIGEST_LEN]);
        } else if pad > 0 {
            self.write(&[0; 3][..pad]);
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
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
    use crate::wire::{NopIn, digest};
    use lunar_core::mem::BLOCK_MAX;

    fn out() -> (Arena, Out) {
        let arena = Arena::new(BLOCK_MAX);
        (arena.clone(), Out::new(arena))
    }

    #[test]
    fn headers_lie_together_and_payload_is_not_copied() {
        let (arena, mut out) = out();
        let payload = arena.copy(b"12345").expect("room");
        out.short(NopIn::blank(), &[]);
        out.short(NopIn::blank(), &[b"ab", b"cd"]);
        out.payload(NopIn::blank(), &mut payload.clone().into(), 5);
        out.short(NopIn::blank(), &[]);
        assert_eq!(out.queued_bytes(), 48 + 52 + 48 + 8 + 48);
        let sg = out.take();
        assert_eq!((sg.len(), out.queued_bytes()), (204, 0));
        let lens: Vec<usize> = sg.pieces().iter().map(|piece| piece.len()).collect();
        assert_eq!(lens, [48 + 52 + 48, 5, 3 + 48]);
        assert!(std::ptr::eq(sg.pieces()[1].as_ptr(), payload.as_ptr()));
        let bytes = sg.to_vec();
        assert_eq!((&bytes[53..56], &bytes[96..100], &bytes[153..156]), (&[0, 0, 4][..], &b"abcd"[..], &[0; 3][..]));
    }

    #[test]
    fn digests_follow_header_and_padded_data() {
        let (arena, mut out) = out();
        out.digests = Digests { header: true, data: true };
        out.short(NopIn::blank(), &[b"ab", b"c"]);
        let mut data = arena.copy(b"abcd").expect("room").into();
        out.payload(NopIn::blank(), &mut data, 3);
        assert_eq!(data.to_vec(), b"d");
        let bytes = out.take().to_vec();
        assert_eq!(bytes.len(), 2 * (48 + 4 + 4 + 4));
        assert_eq!(bytes[..60], bytes[60..]);
        assert_eq!(bytes[48..52], digest(&bytes[..48]));
        assert_eq!(bytes[56..60], digest(b"abc\0"));
    }

    #[test]
    fn headers_lie_in_one_block_each() {
        let (_arena, mut out) = out();
        for _ in 0..200 {
            out.short(NopIn::blank(), &[]);
        }
        let sg = out.take();
        // 85 headers to a page.
        assert_eq!(sg.pieces().iter().map(|piece| piece.len()).collect::<Vec<_>>(), [85 * 48, 85 * 48, 30 * 48]);
        assert!(!out.is_starved());
    }

    #[test]
    fn without_memory_it_starves() {
        let (arena, mut out) = out();
        let held: Vec<Buf> = std::iter::from_fn(|| arena.take_reserved(1)).collect();
        out.short(NopIn::blank(), &[]);
        assert!(out.is_starved());
        drop(held);
    }
}
