//! A split ring, as its driver has it (virtio 1.3, 2.7). The driver keeps its own copies of all indices: the back-end,
//! which may write to the ring at any time, changes none of them.

use crate::Defect;
use crate::layout::Layout;
use lunar_core::mem::Region;
use lunar_guest::window::Window;
use lunar_vhost_user::ring::chain::{DESCRIPTOR_LEN, NEXT, WRITE};
use lunar_vhost_user::ring::split::{AVAILABLE_LEN, ENTRIES, INDEX, NO_INTERRUPT, NO_NOTIFY, USED_LEN, lengths};
use std::sync::atomic::{Ordering, fence};

/// A piece of the memory of a request: its place, its bytes, and whether the back-end writes there.
pub type Piece = (usize, usize, bool);

/// A split ring.
#[derive(Debug)]
pub struct DriverRing {
    size: u16,
    descriptors: Window,
    available: Window,
    used: Window,
    /// The available index, of which the back-end has seen `published`.
    next: u16,
    published: u16,
    /// The used index up to which the driver has looked.
    seen: u16,
}

impl DriverRing {
    /// The ring of a queue in the shared memory. `None`: the memory is too short.
    #[must_use]
    pub fn new(memory: &Region, layout: &Layout, queue: u16) -> Option<Self> {
        let size = layout.ring_size();
        let [descriptors, available, used] = layout.ring(queue);
        let [descriptors_len, available_len, used_len] = lengths(size, false);
        Some(Self {
            size,
            descriptors: Window::new(memory, descriptors, descriptors_len)?,
            available: Window::new(memory, available, available_len)?,
            used: Window::new(memory, used, used_len)?,
            next: 0,
            published: 0,
            seen: 0,
        })
    }

    /// Returns to the first state, for another back-end. Nothing is in progress afterwards.
    pub fn reset(&mut self) {
        (self.next, self.published, self.seen) = (0, 0, 0);
        for part in [&self.available, &self.used] {
            // The parts lie within the memory, which is writable.
            let _ = part.store_u16(0, 0) && part.store_u16(INDEX, 0);
        }
    }

    /// Writes a chain of descriptors, the first of which is `head`; the others follow it.
    pub fn describe(&self, head: u16, pieces: &[Piece]) {
        for (place, (at, len, is_written)) in (head..).zip(pieces) {
            let is_last = place - head == pieces.len() as u16 - 1;
            let flags = if *is_written { WRITE } else { 0 } | if is_last { 0 } else { NEXT };
            let mut bytes = [0; DESCRIPTOR_LEN];
            bytes[..8].copy_from_slice(&(*at as u64).to_le_bytes());
            // A piece is shorter than 4 GiB.
            bytes[8..12].copy_from_slice(&(*len as u32).to_le_bytes());
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            bytes[14..].copy_from_slice(&if is_last { 0 } else { place + 1 }.to_le_bytes());
            let _ = self.descriptors.write(usize::from(place) * DESCRIPTOR_LEN, &bytes);
        }
    }

    /// Makes a chain available with the next [`DriverRing::publish`].
    pub fn offer(&mut self, head: u16) {
        let slot = usize::from(self.next & (self.size - 1));
        let _ = self.available.write(ENTRIES + slot * AVAILABLE_LEN, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the back-end what was offered; returns whether it wants to be notified of it.
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        let _ = self.available.store_u16(INDEX, self.next);
        // The back-end clears its flag, and then looks at the index once more.
        fence(Ordering::SeqCst);
        self.used.load_u16(0).is_none_or(|flags| flags & NO_NOTIFY == 0)
    }

    /// Whether the back-end has returned a chain.
    #[must_use]
    pub fn has_returned(&self) -> bool {
        self.used.load_u16(INDEX).is_some_and(|index| index != self.seen)
    }

    /// The head of the next chain that the back-end has returned. `in_progress`: those that it has.
    ///
    /// # Errors
    /// [`Defect::Ring`]: it has returned more than it had, or what is no descriptor.
    pub fn returned(&mut self, in_progress: u16) -> Result<Option<u16>, Defect> {
        let index = self.used.load_u16(INDEX).ok_or(Defect::Ring)?;
        match index.wrapping_sub(self.seen) {
            0 => return Ok(None),
            count if count > in_progress => return Err(Defect::Ring),
            _ => {}
        }
        let mut entry = [0; USED_LEN];
        let slot = usize::from(self.seen & (self.size - 1));
        if !self.used.read(ENTRIES + slot * USED_LEN, &mut entry) {
            return Err(Defect::Ring);
        }
        self.seen = self.seen.wrapping_add(1);
        let id = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        u16::try_from(id).ok().filter(|head| *head < self.size).map(Some).ok_or(Defect::Ring)
    }

    /// Asks the back-end to notify, or not to; returns whether nothing was returned meanwhile.
    pub fn ask_to_notify(&self, notify: bool) -> bool {
        let _ = self.available.store_u16(0, if notify { 0 } else { NO_INTERRUPT });
        if notify {
            // The back-end returns a chain, and then looks at the flag.
            fence(Ordering::SeqCst);
        }
        !self.has_returned()
    }
}
