//! The places of rings and requests in the memory that is shared with the back-end.
//!
//! For each ring: its three parts; then for each slot the header, the range, the status and the identity of its
//! request; then the data of each slot. A slot has always the same descriptors, so a driver keeps no list of free ones.

use crate::disk::PIECES_MAX;
use lunar_core::mem::PAGE;
use lunar_vhost_user::blk::{HEADER_LEN, IDENTITY_LEN, Segment};
use lunar_vhost_user::config::RING_SIZE_MAX;
use lunar_vhost_user::ring::split::lengths;

/// The most descriptors of a slot: header, pieces of the data, status.
pub const STRIDE_MAX: u16 = PIECES_MAX as u16 + 2;
/// Bytes of the parts of a request besides its data: two cache lines. The second has the end of the identity, which no
/// read or write uses.
const CONTROL: usize = 128;
/// Offsets in them: the header is at their start.
const SEGMENT_AT: usize = HEADER_LEN;
const STATUS_AT: usize = SEGMENT_AT + size_of::<Segment>();
const IDENTITY_AT: usize = STATUS_AT + 4;
const _: () = assert!(IDENTITY_AT + IDENTITY_LEN <= CONTROL);

/// The layout of the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    queues: u16,
    slots: u16,
    buffer: usize,
    stride: u16,
}

/// The places of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The header.
    pub header: usize,
    /// The range of a discard or a write of zeroes.
    pub segment: usize,
    /// The status.
    pub status: usize,
    /// The answer to the question for the identity.
    pub identity: usize,
    /// The data.
    pub data: usize,
}

impl Layout {
    /// A layout for so many queues, with so many slots for requests with `buffer` bytes of data each, and one slot
    /// without data. `None`: there is no such ring.
    #[must_use]
    pub fn new(queues: u16, slots: u16, buffer: usize) -> Option<Self> {
        Self::with_pieces(queues, slots, buffer, PIECES_MAX)
    }

    /// The same for requests whose data has at most `pieces` pieces: the rings are smaller.
    #[must_use]
    pub fn with_pieces(queues: u16, slots: u16, buffer: usize, pieces: usize) -> Option<Self> {
        let stride = pieces.clamp(1, PIECES_MAX) as u16 + 2;
        let descriptors = slots.checked_add(1)?.checked_mul(stride)?;
        let is_fit = queues > 0 && slots > 0 && descriptors <= RING_SIZE_MAX;
        // Twice as much as a process has is not reached before the sum is checked.
        let data = (buffer as u64).checked_mul(u64::from(slots))?.checked_mul(queues.into())?;
        let buffer = buffer.checked_next_multiple_of(PAGE)?;
        (is_fit && data < 1 << 46).then_some(Self { queues, slots, buffer, stride })
    }

    /// Queues.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Slots of a queue, with the one that has no data, which is the last.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.slots + 1
    }

    /// The slot without data.
    #[must_use]
    pub fn last(&self) -> u16 {
        self.slots
    }

    /// Descriptors of a slot.
    #[must_use]
    pub fn stride(&self) -> u16 {
        self.stride
    }

    /// The most pieces of the data of a request.
    #[must_use]
    pub fn pieces(&self) -> usize {
        usize::from(self.stride - 2)
    }

    /// Bytes of the data of a slot.
    #[must_use]
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// Entries of each ring.
    #[must_use]
    pub fn ring_size(&self) -> u16 {
        (self.slots() * self.stride).next_power_of_two()
    }

    /// Bytes of a part of a ring, or of the controls, with what aligns the next one.
    fn aligned(len: usize) -> usize {
        len.next_multiple_of(PAGE)
    }

    fn ring_lengths(&self) -> [usize; 3] {
        lengths(self.ring_size(), false).map(Self::aligned)
    }

    fn queue_len(&self) -> usize {
        let controls = Self::aligned(usize::from(self.slots()) * CONTROL);
        self.ring_lengths().iter().sum::<usize>() + controls + usize::from(self.slots) * self.buffer
    }

    /// Bytes of all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue_len() * usize::from(self.queues)
    }

    /// Whether there is nothing in it: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parts of a ring: descriptors, available, used.
    #[must_use]
    pub fn ring(&self, queue: u16) -> [usize; 3] {
        let [descriptors, available, _] = self.ring_lengths();
        let start = usize::from(queue) * self.queue_len();
        [start, start + descriptors, start + descriptors + available]
    }

    /// The places of a slot. The last slot has no data.
    #[must_use]
    pub fn place(&self, queue: u16, slot: u16) -> Place {
        let controls = usize::from(queue) * self.queue_len() + self.ring_lengths().iter().sum::<usize>();
        let header = controls + usize::from(slot) * CONTROL;
        let datas = controls + Self::aligned(usize::from(self.slots()) * CONTROL);
        let data = datas + usize::from(slot.min(self.slots - 1)) * self.buffer;
        Place { header, segment: header + SEGMENT_AT, status: header + STATUS_AT, identity: header + IDENTITY_AT, data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rings_have_limits() {
        assert_eq!(Layout::new(1, 128, 4096).map(|layout| layout.ring_size()), Some(2048));
        assert_eq!(Layout::with_pieces(1, 128, 4096, 1).map(|layout| layout.ring_size()), Some(512));
        assert!(Layout::new(4, 2048, 512 << 10).is_some_and(|layout| layout.ring_size() == 32768));
        for (queues, slots, buffer) in [(0, 1, 4096), (1, 0, 4096), (1, 4096, 4096), (1, 1, usize::MAX)] {
            assert_eq!(Layout::new(queues, slots, buffer), None);
        }
    }

    proptest! {
        #[test]
        fn no_two_places_overlap(queues in 1_u16..4, slots in 1_u16..40, buffer in 1_usize..20_000) {
            let layout = Layout::new(queues, slots, buffer).expect("a small one");
            let mut all = Vec::new();
            for queue in 0..queues {
                all.extend(layout.ring(queue).into_iter().zip(lengths(layout.ring_size(), false)));
                for slot in 0..layout.slots() {
                    let place = layout.place(queue, slot);
                    all.extend([(place.header, 16), (place.segment, 16), (place.status, 1)]);
                    all.push((place.identity, IDENTITY_LEN));
                    if slot != layout.last() {
                        all.push((place.data, layout.buffer()));
                    }
                }
            }
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            prop_assert!(all.last().is_some_and(|(at, len)| at + len <= layout.len()));
            prop_assert!(layout.place(0, 0).data.is_multiple_of(PAGE));
        }
    }
}
