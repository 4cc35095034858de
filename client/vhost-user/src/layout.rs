//! The places of rings and requests in the memory that is shared with the back-end.
//!
//! For each ring: its three parts; then for each slot the parts of its request besides the data; then the data of each
//! slot. A slot has always the same descriptors, so a driver keeps no list of free ones.

use crate::disk::PIECES_MAX;
use lunar_core::mem::PAGE;
use lunar_vhost_user::config::RING_SIZE_MAX;
use lunar_vhost_user::ring::split::lengths;

/// Descriptors of a slot besides those of the data: what the device reads before it, and its answer.
const PARTS: u16 = 2;
/// The most descriptors of a slot.
pub const STRIDE_MAX: u16 = PIECES_MAX as u16 + PARTS;

/// The room of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The most pieces of the data: up to [`PIECES_MAX`].
    pub pieces: usize,
    /// Bytes of the parts of a request besides its data. Whole cache lines keep the slots apart.
    pub control: usize,
}

/// The layout of the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    queues: u16,
    slots: u16,
    buffer: usize,
    room: Room,
}

/// The places of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The parts of the request besides its data.
    pub control: usize,
    /// The data.
    pub data: usize,
}

impl Layout {
    /// A layout for so many queues, with so many slots for requests with `buffer` bytes of data each, and one slot
    /// without data. Slots with fewer pieces make smaller rings. `None`: there is no such ring.
    #[must_use]
    pub fn with_room(queues: u16, slots: u16, buffer: usize, room: Room) -> Option<Self> {
        let room = Room { pieces: room.pieces.clamp(1, PIECES_MAX), ..room };
        let descriptors = slots.checked_add(1)?.checked_mul(room.pieces as u16 + PARTS)?;
        let is_fit = queues > 0 && slots > 0 && descriptors <= RING_SIZE_MAX && room.control <= PAGE;
        // Twice as much as a process has is not reached before the sum is checked.
        let data = (buffer as u64).checked_mul(u64::from(slots))?.checked_mul(queues.into())?;
        let buffer = buffer.checked_next_multiple_of(PAGE)?;
        (is_fit && data < 1 << 46).then_some(Self { queues, slots, buffer, room })
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
        // No more than STRIDE_MAX.
        self.room.pieces as u16 + PARTS
    }

    /// The room of a slot.
    #[must_use]
    pub fn room(&self) -> Room {
        self.room
    }

    /// Bytes of the data of a slot.
    #[must_use]
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// Entries of each ring.
    #[must_use]
    pub fn ring_size(&self) -> u16 {
        (self.slots() * self.stride()).next_power_of_two()
    }

    /// Bytes of a part of a ring, or of the controls, with what aligns the next one.
    fn aligned(len: usize) -> usize {
        len.next_multiple_of(PAGE)
    }

    fn ring_lengths(&self) -> [usize; 3] {
        lengths(self.ring_size(), false).map(Self::aligned)
    }

    fn queue_len(&self) -> usize {
        let controls = Self::aligned(usize::from(self.slots()) * self.room.control);
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
        let datas = controls + Self::aligned(usize::from(self.slots()) * self.room.control);
        let control = controls + usize::from(slot) * self.room.control;
        Place { control, data: datas + usize::from(slot.min(self.slots - 1)) * self.buffer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Room for so many pieces, and for the parts of a request of a disk.
    fn room(pieces: usize) -> Room {
        Room { pieces, control: 128 }
    }

    fn layout(queues: u16, slots: u16, buffer: usize) -> Option<Layout> {
        Layout::with_room(queues, slots, buffer, room(PIECES_MAX))
    }

    #[test]
    fn rings_have_limits() {
        assert_eq!(layout(1, 128, 4096).map(|layout| layout.ring_size()), Some(2048));
        let small = Layout::with_room(1, 128, 4096, room(1));
        assert_eq!(small.map(|layout| (layout.ring_size(), layout.stride())), Some((512, 3)));
        assert!(layout(4, 2048, 512 << 10).is_some_and(|layout| layout.ring_size() == 32768));
        for (queues, slots, buffer) in [(0, 1, 4096), (1, 0, 4096), (1, 4096, 4096), (1, 1, usize::MAX)] {
            assert_eq!(layout(queues, slots, buffer), None);
        }
        assert_eq!(Layout::with_room(1, 1, 4096, Room { pieces: 1, control: PAGE + 1 }), None);
    }

    proptest! {
        #[test]
        fn no_two_places_overlap(
            (queues, slots) in (1_u16..4, 1_u16..40),
            buffer in 1_usize..20_000,
            (pieces, control) in (0_usize..9, 1_usize..300),
        ) {
            let layout = Layout::with_room(queues, slots, buffer, Room { pieces, control }).expect("a small one");
            let mut all = Vec::new();
            for queue in 0..queues {
                all.extend(layout.ring(queue).into_iter().zip(lengths(layout.ring_size(), false)));
                for slot in 0..layout.slots() {
                    let place = layout.place(queue, slot);
                    all.push((place.control, control));
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
