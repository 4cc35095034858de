//! PDUs that wait to be sent: headers with their lengths, padding and digests.

use crate::wire::{DIGEST_LEN, Digest, Pdu, U24, digest, padded};
use lunar_core::mem::{Arena, Sg};
pub use lunar_stream::digest::Digests;
use lunar_stream::send_queue::SendQueue;
use zerocopy::IntoBytes;

/// The PDUs that wait to be sent to one initiator.
#[derive(Debug)]
pub struct PduQueue {
    /// The queued bytes.
    pub queue: SendQueue,
    /// The digests of PDUs that are queued from now on.
    pub(crate) digests: Digests,
}

impl PduQueue {
    /// An empty queue. It takes no memory before the first header.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self { queue: SendQueue::new(arena), digests: Digests::default() }
    }

    /// Queues a PDU with a copy of a short data segment.
    pub fn short<P: Pdu>(&mut self, header: P, data: &[&[u8]]) {
        let len = data.iter().map(|part| part.len()).sum();
        self.header(header, len);
        if len == 0 {
            return;
        }
        let mut digest = Digest::new();
        for part in data {
            self.queue.write(part);
            if self.digests.data {
                digest.update(part);
            }
        }
        self.trailer(len, digest);
    }

    /// Queues a PDU with a data segment that is not copied: the first `len` bytes of `data`, which keeps the rest.
    ///
    /// # Panics
    /// When `data` has fewer than `len` bytes.
    #[inline(always)]
    pub fn payload<P: Pdu>(&mut self, header: P, data: &mut Sg, len: usize) {
        self.header(header, len);
        if len > 0 {
            self.body(data, len);
        }
    }

    #[inline(always)]
    fn header<P: Pdu>(&mut self, header: P, data_len: usize) {
        let Some(place) = self.queue.header(header) else { return };
        // All formats have DataSegmentLength at the same offset.
        place.as_mut_bytes()[5..8].copy_from_slice(U24::new(data_len).as_bytes());
        if self.digests.header {
            let digest = digest(place.as_bytes());
            self.queue.write(&digest);
        }
    }

    fn body(&mut self, data: &mut Sg, len: usize) {
        let mut digest = Digest::new();
        let has_digest = self.digests.data;
        self.queue.payload(data, len, |piece| {
            if has_digest {
                digest.update(piece);
            }
        });
        self.trailer(len, digest);
    }

    fn trailer(&mut self, len: usize, mut digest: Digest) {
        let pad = padded(len) - len;
        if self.digests.data {
            let mut bytes = [0; 3 + DIGEST_LEN];
            bytes[pad..pad + DIGEST_LEN].copy_from_slice(&digest.pad(len).bytes());
            self.queue.write(&bytes[..pad + DIGEST_LEN]);
        } else if pad > 0 {
            self.queue.write(&[0; 3][..pad]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::NopIn;
    use lunar_core::mem::BLOCK_MAX;

    fn out() -> (Arena, PduQueue) {
        let arena = Arena::new(BLOCK_MAX);
        (arena.clone(), PduQueue::new(arena))
    }

    #[test]
    fn headers_share_a_block_and_payload_is_not_copied() {
        let (arena, mut out) = out();
        let payload = arena.copy(b"12345").expect("room");
        out.short(NopIn::blank(), &[]);
        out.short(NopIn::blank(), &[b"ab", b"cd"]);
        out.payload(NopIn::blank(), &mut payload.clone().into(), 5);
        out.short(NopIn::blank(), &[]);
        assert_eq!(out.queue.len(), 48 + 52 + 48 + 8 + 48);
        let sg = out.queue.take();
        assert_eq!((sg.len(), out.queue.len()), (204, 0));
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
        let bytes = out.queue.take().to_vec();
        assert_eq!(bytes.len(), 2 * (48 + 4 + 4 + 4));
        assert_eq!(bytes[..60], bytes[60..]);
        assert_eq!(bytes[48..52], digest(&bytes[..48]));
        assert_eq!(bytes[56..60], digest(b"abc\0"));
    }
}
