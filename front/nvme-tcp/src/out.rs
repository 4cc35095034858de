//! What waits to be sent: headers written one behind the other into memory of the arena's reserve, data between them
//! untouched. All that is queued at the end of a turn leaves in one send.

use crate::wire::{COMMON_LEN, Common, DATA_DIGEST, DIGEST_LEN, Digest, HEADER_DIGEST, Pdu, digest};
use lunar_core::mem::{Arena, Buf, PAGE, Sg, Slice};
use lunar_core::wire::round_up;
use zerocopy::FromBytes;

/// Which digests are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digests {
    /// Of headers.
    pub header: bool,
    /// Of data.
    pub data: bool,
}

/// The queue to the peer.
#[derive(Debug)]
pub struct Out {
    arena: Arena,
    /// Its first `written` bytes are queued but not cut off yet; all others are free.
    block: Option<Buf>,
    written: usize,
    queue: Sg,
    /// Pieces of the last send: most likely the next has as many.
    pieces: usize,
    starved: bool,
    /// Digests of what is queued from now on.
    pub(crate) digests: Digests,
    /// Bytes that data to the host is aligned to.
    pub(crate) alignment: usize,
}

impl Out {
    /// An empty queue; takes no memory before the first header.
    #[must_use]
    pub fn new(arena: Arena) -> Self {
        let (queue, digests) = (Sg::default(), Digests::default());
        Self { arena, block: None, written: 0, queue, pieces: 0, starved: false, digests, alignment: 4 }
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

    /// Queues bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }

    /// Queues a PDU without data.
    #[inline(always)]
    pub fn header<P: Pdu>(&mut self, pdu: P) {
        let digest_len = if self.digests.header { DIGEST_LEN } else { 0 };
        self.place(pdu, 0, size_of::<P>() + digest_len, 0);
    }

    /// Queues a PDU with its data, which stays where it is.
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
        self.place(pdu, offset, offset + len + trailer, offset - head);
        self.cut();
        let mut sum = Digest::default();
        // Nearly always it is one piece.
        if data.pieces().len() == 1 {
            self.piece(data.pop(), &mut sum);
        } else {
            data.into_pieces().for_each(|piece| self.piece(Some(piece), &mut sum));
        }
        if self.digests.data {
            self.write(&sum.bytes());
        }
    }

    #[inline(always)]
    fn piece(&mut self, piece: Option<Slice>, sum: &mut Digest) {
        let Some(piece) = piece else { return };
        if self.digests.data {
            sum.update(&piece);
        }
        self.queue.push(piece);
    }

    /// Writes a header, never over the end of a block: so its fields are stored where they will lie. Put together
    /// elsewhere and copied, they would be read before their stores have retired.
    #[inline(always)]
    fn place<P: Pdu>(&mut self, pdu: P, offset: usize, len: usize, pad: usize) {
        const NOTHING: [u8; 128] = [0; 128];
        if self.room() < size_of::<P>() && !self.refill() {
            return;
        }
        let flags = if self.digests.header { HEADER_DIGEST } else { 0 }
            | if self.digests.data && offset > 0 { DATA_DIGEST } else { 0 };
        let Some(block) = &mut self.block else { return };
        let Ok((place, _)) = P::mut_from_prefix(&mut block[self.written..]) else { return };
        *place = pdu;
        if let Ok((common, _)) = Common::mut_from_prefix(place.as_mut_bytes()) {
            // Offsets have at most 128 bytes; what is sent at once is far below 32 bits.
            common.data_offset = offset as u8;
            common.len = (len as u32).into();
            common.flags |= flags;
        }
        self.written += size_of::<P>();
        if self.digests.header {
            let digest = digest(place.as_bytes());
            self.write(&digest);
        }
        if pad > 0 {
            self.write(&NOTHING[..pad]);
        }
    }

    /// Bytes that are left of the block.
    #[inline]
    fn room(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.len() - self.written)
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
        self.block = self.arena.take_reserved(PAGE);
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
            self.queue.push(block.split_to(self.written).share());
        }
        self.written = 0;
    }
}

const _: () = assert!(COMMON_LEN == size_of::<Common>());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{C2hData, R2t};
    use lunar_core::mem::BLOCK_MAX;

    #[test]
    fn data_is_not_copied_and_lengths_count_all() {
        let arena = Arena::new(BLOCK_MAX);
        let mut out = Out::new(arena.clone());
        let data = arena.copy(b"12345").expect("room");
        out.header(R2t::blank(0));
        out.data(C2hData::blank(0), data.clone().into());
        let sent = out.take();
        assert!(std::ptr::eq(sent.pieces()[1].as_ptr(), data.as_ptr()));
        let bytes = sent.to_vec();
        assert_eq!(
            (bytes.len(), &bytes[..8], &bytes[24..32]),
            (53, &[9, 0, 24, 0, 24, 0, 0, 0][..], &[7, 0, 24, 24, 29, 0, 0, 0][..])
        );
    }

    #[test]
    fn digests_and_alignment() {
        let arena = Arena::new(BLOCK_MAX);
        let mut out = Out::new(arena.clone());
        out.digests = Digests { header: true, data: true };
        out.alignment = 32;
        out.data(C2hData::blank(0), arena.copy(b"12345").expect("room").into());
        let bytes = out.take().to_vec();
        assert_eq!(&bytes[..8], &[7, 3, 24, 32, 41, 0, 0, 0]);
        assert_eq!(
            (&bytes[24..28], &bytes[28..32], &bytes[37..]),
            (&digest(&bytes[..24])[..], &[0; 4][..], &digest(b"12345")[..])
        );
    }

    #[test]
    fn without_memory_it_starves() {
        let arena = Arena::new(BLOCK_MAX);
        let mut out = Out::new(arena.clone());
        let held: Vec<Buf> = std::iter::from_fn(|| arena.take_reserved(1)).collect();
        out.header(R2t::blank(0));
        assert!(out.is_starved());
        drop(held);
    }
}
