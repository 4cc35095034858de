//! Split rings (virtio 1.3, 2.7).

use super::Part;
use super::chain::{Broken, Chain, DESCRIPTOR_LEN, Descriptor, INDIRECT, NEXT, Table, WRITE};
use crate::config::CHAIN_MAX;
use lunar_guest::memory::Memory;
use std::sync::atomic::{Ordering, fence};
use zerocopy::FromBytes;

/// The flag of the available ring: the driver wants no notification.
pub const NO_INTERRUPT: u16 = 1;
/// The flag of the used ring: the device wants no notification.
pub const NO_NOTIFY: u16 = 1;
/// Offset of the index in the available and the used ring.
pub const INDEX: usize = 2;
/// Offset of the entries in the available and the used ring.
pub const ENTRIES: usize = 4;
/// Bytes of an entry of the available ring.
pub const AVAILABLE_LEN: usize = 2;
/// Bytes of an entry of the used ring.
pub const USED_LEN: usize = 8;

/// Bytes of the parts of a ring of this size: descriptor table, available ring, used ring.
#[must_use]
pub fn lengths(size: u16, has_event_index: bool) -> [usize; 3] {
    let (size, event) = (usize::from(size), if has_event_index { 2 } else { 0 });
    [size * DESCRIPTOR_LEN, ENTRIES + size * AVAILABLE_LEN + event, ENTRIES + size * USED_LEN + event]
}

/// The first descriptor of the chain so many after the next one is prefetched.
const DESCRIPTORS_AHEAD: u16 = 4;
/// The header, or the table of descriptors, of the chain so many after the next one is prefetched. Its descriptor was
/// prefetched two chains earlier: the work for two chains takes longer than a line from another processor.
const HEADERS_AHEAD: u16 = 2;

/// A split ring.
#[derive(Debug)]
pub struct SplitRing {
    size: u16,
    has_event_index: bool,
    descriptors: Part,
    available: Part,
    used: Part,
    /// The next index of the available ring.
    next: u16,
    /// The index of the available ring when it was read last: chains before it need no further read of a line that the
    /// driver writes all the time.
    seen: u16,
    /// The next index of the used ring.
    used_index: u16,
    /// The used index when the driver was notified last; `None`: never.
    signalled: Option<u16>,
}

impl SplitRing {
    /// A ring that continues at this index of the available ring.
    ///
    /// # Errors
    /// [`Broken::Size`], [`Broken::Unreachable`].
    pub(super) fn new(size: u16, next: u16, has_event_index: bool, parts: [Part; 3]) -> Result<Self, Broken> {
        if !size.is_power_of_two() {
            return Err(Broken::Size);
        }
        let [descriptors, available, used] = parts;
        let used_index = used.window.load_u16(INDEX).ok_or(Broken::Unreachable)?;
        // Indices are read all the time: their alignment is checked once.
        available.window.load_u16(INDEX).ok_or(Broken::Unreachable)?;
        // The used index is never ahead of the next available index, which is ahead by no more than the ring has
        // entries. A front-end that has lost its device may name an older index: what was returned is not taken again.
        let next = if next.wrapping_sub(used_index) <= size { next } else { used_index };
        let (seen, signalled) = (next, None);
        Ok(Self { size, has_event_index, descriptors, available, used, next, seen, used_index, signalled })
    }

    /// Moves the ring to another mapping of its memory.
    pub(super) fn relocate(&mut self, parts: [Part; 3]) {
        [self.descriptors, self.available, self.used] = parts;
        self.seen = self.next;
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// The next index of the available ring.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.next
    }

    /// The next index of the used ring.
    pub(super) fn used_index(&self) -> u16 {
        self.used_index
    }

    /// Continues at this index of the available ring.
    pub(super) fn set_base(&mut self, next: u16) {
        (self.next, self.seen) = (next, next);
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.available.window.load_u16(INDEX).is_some_and(|index| index != self.next)
    }

    /// The next chain. [`Broken`] ends the ring.
    #[inline]
    pub(super) fn next(&mut self, memory: &Memory) -> Result<Option<Chain>, Broken> {
        if self.seen == self.next {
            let index = self.available.window.load_u16(INDEX).ok_or(Broken::Unreachable)?;
            if index.wrapping_sub(self.next) > self.size {
                return Err(Broken::Index);
            }
            self.seen = index;
        }
        let ahead = self.seen.wrapping_sub(self.next);
        if ahead == 0 {
            return Ok(None);
        }
        let head = self.head(self.next).ok_or(Broken::Unreachable)?;
        self.look_ahead(memory, ahead);
        let chain = self.chain(memory, head)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(chain))
    }

    /// The head in an entry of the available ring.
    #[inline]
    fn head(&self, index: u16) -> Option<u16> {
        self.available.window.load_u16(ENTRIES + self.slot(index) * AVAILABLE_LEN)
    }

    /// Prefetches descriptors and headers of the chains after the next one, of which there are `ahead` with it: the
    /// guest has just written them on another processor. Nothing is checked: it is a hint.
    #[inline]
    fn look_ahead(&self, memory: &Memory, ahead: u16) {
        let place = |head: u16| usize::from(head) * DESCRIPTOR_LEN;
        if ahead > DESCRIPTORS_AHEAD
            && let Some(head) = self.head(self.next.wrapping_add(DESCRIPTORS_AHEAD))
        {
            self.descriptors.window.prefetch(place(head), false);
        }
        let mut address = [0; 8];
        if ahead > HEADERS_AHEAD
            && let Some(head) = self.head(self.next.wrapping_add(HEADERS_AHEAD))
            && self.descriptors.window.read(place(head), &mut address)
            && let Some((region, at)) = memory.region(u64::from_le_bytes(address), 1)
        {
            region.prefetch(at, false);
        }
    }

    /// The chain with this head. Each descriptor is copied once, because the guest may change it at any time.
    pub(super) fn chain(&self, memory: &Memory, head: u16) -> Result<Chain, Broken> {
        let (mut chain, mut at) = (Chain::new(head), head);
        // A chain has no more descriptors than its ring: a longer one is a loop.
        for _ in 0..self.size {
            if at >= self.size {
                return Err(Broken::Descriptor);
            }
            let mut bytes = [0; DESCRIPTOR_LEN];
            if !self.descriptors.window.read(usize::from(at) * DESCRIPTOR_LEN, &mut bytes) {
                return Err(Broken::Unreachable);
            }
            let descriptor = Descriptor::read_from_bytes(&bytes).map_err(|_| Broken::Unreachable)?;
            let (address, len, flags) = (descriptor.address.get(), descriptor.len.get(), descriptor.third.get());
            if flags & INDIRECT != 0 {
                if flags & NEXT != 0 {
                    return Err(Broken::Table);
                }
                follow(memory, Table::new(address, len)?, &mut chain)?;
                return Ok(chain);
            }
            chain.push(address, len, flags & WRITE != 0)?;
            if flags & NEXT == 0 {
                return Ok(chain);
            }
            at = descriptor.fourth.get();
        }
        Err(Broken::Long)
    }

    /// Returns a chain, of which `len` bytes were written.
    #[inline]
    pub(super) fn publish(&mut self, memory: &Memory, id: u16, len: u32) {
        let at = ENTRIES + self.slot(self.used_index) * USED_LEN;
        let mut entry = [0; USED_LEN];
        entry[..4].copy_from_slice(&u32::from(id).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        self.used_index = self.used_index.wrapping_add(1);
        // The parts were checked when they were located: only memory that was lost meanwhile makes these fail.
        let _ = self.used.window.write(at, &entry);
        self.used.mark(memory, at, entry.len());
        let _ = self.used.window.store_u16(INDEX, self.used_index);
        self.used.mark(memory, INDEX, 2);
    }

    /// Asks the driver to notify; returns whether nothing has become available meanwhile.
    pub(super) fn arm(&self, memory: &Memory) -> bool {
        if self.has_event_index {
            self.set_available_event(memory, self.next);
        } else {
            let _ = self.used.window.store_u16(0, 0);
            self.used.mark(memory, 0, 2);
        }
        fence(Ordering::SeqCst);
        !self.has_work()
    }

    /// Asks the driver not to notify.
    pub(super) fn disarm(&self, memory: &Memory) {
        // With event indices, the last one that was asked for lies behind.
        if !self.has_event_index {
            let _ = self.used.window.store_u16(0, NO_NOTIFY);
            self.used.mark(memory, 0, 2);
        }
    }

    fn set_available_event(&self, memory: &Memory, index: u16) {
        let at = ENTRIES + usize::from(self.size) * USED_LEN;
        let _ = self.used.window.store_u16(at, index);
        self.used.mark(memory, at, 2);
    }

    /// The next notification is not suppressed.
    pub(super) fn forget_signal(&mut self) {
        self.signalled = None;
    }

    /// Whether the driver wants to be notified of what was returned since the last time.
    pub(super) fn take_signal(&mut self) -> bool {
        let new = self.used_index;
        let old = self.signalled.replace(new);
        fence(Ordering::SeqCst);
        if !self.has_event_index {
            return self.available.window.load_u16(0).is_none_or(|flags| flags & NO_INTERRUPT == 0);
        }
        let Some(old) = old else { return true };
        let at = ENTRIES + usize::from(self.size) * AVAILABLE_LEN;
        let Some(event) = self.available.window.load_u16(at) else { return true };
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
    }
}

/// Appends the descriptors of a table.
fn follow(memory: &Memory, table: Table, chain: &mut Chain) -> Result<(), Broken> {
    let mut at = 0;
    for _ in 0..table.count.min(CHAIN_MAX as u32 + 1) {
        let descriptor = table.get(memory, at)?;
        let flags = descriptor.third.get();
        if flags & INDIRECT != 0 {
            return Err(Broken::Table);
        }
        chain.push(descriptor.address.get(), descriptor.len.get(), flags & WRITE != 0)?;
        if flags & NEXT == 0 {
            return Ok(());
        }
        at = descriptor.fourth.get().into();
    }
    Err(Broken::Long)
}
