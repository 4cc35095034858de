//! PDUs that wait to be sent: headers with their lengths, padding and digests.

use crate::wire::{COMMON_LEN, Common, DATA_DIGEST, DIGEST_LEN, Digest, HEADER_DIGEST, Pdu, digest};
use lunar_core::mem::{Arena, Sg};
use lunar_core::wire::round_up;
pub use lunar_stream::digest::Digests;
use lunar_stream::send_queue::SendQueue;
use zerocopy::FromBytes;

/// The PDUs that wait to be sent to one host.
#[derive(Debug)]
pub struct PduQueue {
    /// The queued bytes.
    pub queue: SendQueue,
    /// The digests of PDUs that are queued from now on.
    pub(crate) digests: Digests,
    /// The alignment of data sent to the host, in bytes.
    pub(crate) alignment: usize,
}

impl PduQueue {
    /// An empty queue. It takes no memory before the first header.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        Self { queue: SendQueue::new(arena), digests: Digests::default(), alignment: 4 }
    }

    /// Queues a PDU without data.
    #[inline(always)]
    pub fn header<P: Pdu>(&mut self, pdu: P) {
        let digest_len = if self.digests.header { DIGEST_LEN } else { 0 };
        self.push_header(pdu, 0, size_of::<P>() + digest_len, 0);
    }

    /// Queues a PDU with its data, which is not copied.
    #[inline(always)]
    pub fn data<P: Pdu>(&mut self, pdu: P, mut data: Sg) {
        let len = data.len();
        if len == 0 {
            return self.header(pdu);
        }
        let digest_len = if self.digests.header { DIGEST_LEN } else { 0 };
        let head = size_of::<P>() + digest_len;
        let offset = round_up(head, self.alignment);
        let trailer = if self.digests.data { DIGEST_LEN } else { 0 };
        self.push_header(pdu, offset, offset + len + trailer, offset - head);
        let mut sum = Digest::new();
        let has_digest = self.digests.data;
        self.queue.payload(&mut data, len, |piece| {
            if has_digest {
                sum.update(piece);
            }
        });
        if has_digest {
            self.queue.write(&sum.bytes());
        }
    }

    #[inline(always)]
    fn push_header<P: Pdu>(&mut self, pdu: P, offset: usize, len: usize, pad: usize) {
        const PADDING: [u8; 128] = [0; 128];
        let Some(push_header) = self.queue.header(pdu) else { return };
        if let Ok((common, _)) = Common::mut_from_prefix(push_header.as_mut_bytes()) {
            // Offsets are at most 128; a PDU is far shorter than 4 GiB.
            common.data_offset = offset as u8;
            common.len = (len as u32).into();
            common.flags |= if self.digests.header { HEADER_DIGEST } else { 0 };
            common.flags |= if self.digests.data && offset > 0 { DATA_DIGEST } else { 0 };
        }
        if self.digests.header {
            let digest = digest(push_header.as_bytes());
            self.queue.write(&digest);
        }
        if pad > 0 {
            self.queue.write(&PADDING[..pad]);
        }
    }
}

const _: () = assert!(COMMON_LEN == size_of::<Common>());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{C2hData, R2t};
    use lunar_core::mem::BLOCK_MAX;

    #[test]
    fn data_is_not_copied_and_lengths_include_it() {
        let arena = Arena::new(BLOCK_MAX);
        let mut out = PduQueue::new(arena.clone());
        let data = arena.copy(b"12345").expect("room");
        out.header(R2t::blank(0));
        out.data(C2hData::blank(0), data.clone().into());
        let sent = out.queue.take();
        assert!(std::ptr::eq(sent.pieces()[1].as_ptr(), data.as_ptr()));
        let bytes = sent.to_vec();
        assert_eq!(
            (bytes.len(), &bytes[..8], &bytes[24..32]),
            (53, &[9, 0, 24, 0, 24, 0, 0, 0][..], &[7, 0, 24, 24, 29, 0, 0, 0][..])
        );
    }

    #[test]
    fn digests_and_alignment_are_included() {
        let arena = Arena::new(BLOCK_MAX);
        let mut out = PduQueue::new(arena.clone());
        out.digests = Digests { header: true, data: true };
        out.alignment = 32;
        out.data(C2hData::blank(0), arena.copy(b"12345").expect("room").into());
        let bytes = out.queue.take().to_vec();
        assert_eq!(&bytes[..8], &[7, 3, 24, 32, 41, 0, 0, 0]);
        assert_eq!(
            (&bytes[24..28], &bytes[28..32], &bytes[37..]),
            (&digest(&bytes[..24])[..], &[0; 4][..], &digest(b"12345")[..])
        );
    }
}
