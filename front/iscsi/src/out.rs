//! What waits to be sent: headers and short answers written one behind the other into memory of the arena's
//! reserve, payload between them untouched. All that is queued at the end of a turn leaves in one send.

use crate::wire::{DIGEST_LEN, Digest, Pdu, U24, padded};
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
    starved: bool,
    /// Digests of what is queued from now on.
    pub(crate) digests: Digests,
}

impl Out {
    /// An empty queue; takes no memory before the first header.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self { arena, block: None, written: 0, queue: Sg::default(), starved: false, digests: Digests::default() }
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
        std::mem::take(&mut self.queue)
    }

    /// Whether there was no memory for a header: what is queued has a hole, the connection cannot go on.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.starved
    }

    /// Queues a PDU with a data segment that is written like a header: short, or made up on the spot.
    pub fn short<P: Pdu>(&mut self, mut header: P, data: &[&[u8]]) {
        let len = data.iter().map(|part| part.len()).sum();
        self.header(&mut header, len);
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

    /// Queues a PDU with a data segment that stays where it is.
    pub fn payload<P: Pdu>(&mut self, mut header: P, data: Sg) {
        let len = data.len();
        self.header(&mut header, len);
        if len == 0 {
            return;
        }
        self.cut();
        let mut digest = Digest::new();
        for piece in data.into_pieces() {
            if self.digests.data {
                digest.update(&piece);
            }
            self.queue.push(piece);
        }
        self.trailer(len, digest);
    }

    fn header<P: Pdu>(&mut self, header: &mut P, data_len: usize) {
        // Every format has the length at the same place: the common header says where.
        header.as_mut_bytes()[5..8].copy_from_slice(U24::new(data_len).as_bytes());
        self.write(header.as_bytes());
        if self.digests.header {
            self.write(&crate::wire::digest(header.as_bytes()));
        }
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
            if self.block.as_ref().is_none_or(|block| block.len() == self.written) && !self.refill() {
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
    fn cut(&mut self) {
        if self.written == 0 {
            return;
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
        out.payload(NopIn::blank(), payload.clone().into());
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
        out.payload(NopIn::blank(), arena.copy(b"abc").expect("room").into());
        let bytes = out.take().to_vec();
        assert_eq!(bytes.len(), 2 * (48 + 4 + 4 + 4));
        assert_eq!(bytes[..60], bytes[60..]);
        assert_eq!(bytes[48..52], digest(&bytes[..48]));
        assert_eq!(bytes[56..60], digest(b"abc\0"));
    }

    #[test]
    fn blocks_are_filled_to_the_last_byte() {
        let (_arena, mut out) = out();
        for _ in 0..200 {
            out.short(NopIn::blank(), &[]);
        }
        let sg = out.take();
        assert_eq!((sg.len(), sg.pieces().len()), (200 * 48, 3));
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
