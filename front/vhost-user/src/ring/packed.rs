//! Packed rings (virtio 1.3, 2.8).

use super::Part;
use super::chain::{Broken, Chain, DESCRIPTOR_LEN, Descriptor, INDIRECT, NEXT, Table, WRITE};
use lunar_guest::memory::Memory;
use std::sync::atomic::{Ordering, fence};
use zerocopy::FromBytes;

/// Flags of a descriptor: available, and used. Each is compared with a wrap counter.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// Offset of the flags in a descriptor.
const FLAGS: usize = 14;
/// The wrap counter in an offset of an event suppression structure, and in the base of a ring.
const WRAP: u16 = 1 << 15;
/// Bytes of an event suppression structure: offset and wrap counter, then flags.
const EVENT_LEN: usize = 4;
/// Flags of an event suppression structure: notify, do not, notify at that descriptor.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;

/// Bytes of the parts of a ring of this size: descriptors, driver event, device event.
#[must_use]
pub fn lengths(size: u16) -> [usize; 3] {
    [usize::from(size) * DESCRIPTOR_LEN, EVENT_LEN, EVENT_LEN]
}

/// A place in a ring, and the value of the wrap counter there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Position {
    at: u16,
    wrap: bool,
}

impl Position {
    fn of(base: u16) -> Self {
        Self { at: base & !WRAP, wrap: base & WRAP != 0 }
    }

    fn base(self) -> u16 {
        self.at | if self.wrap { WRAP } else { 0 }
    }

    fn advance(&mut self, entries: u16, size: u16) {
        // Neither is more than the size of the ring, which is at most 32,768.
        let next = u32::from(self.at) + u32::from(entries);
        if next >= u32::from(size) {
            self.wrap = !self.wrap;
            self.at = (next - u32::from(size)) as u16;
        } else {
            self.at = next as u16;
        }
    }
}

/// A packed ring.
#[derive(Debug)]
pub struct PackedRing {
    size: u16,
    has_event_index: bool,
    descriptors: Part,
    driver_event: Part,
    device_event: Part,
    next: Position,
    used: Position,
    /// Entries that were returned since the driver was notified last; `None`: it never was.
    unsignalled: Option<u32>,
    /// The descriptors of the chain that was taken last, for the record of requests in progress.
    taken: Vec<Descriptor>,
}

impl PackedRing {
    /// A ring that continues at this base: available, and used in the upper half.
    ///
    /// # Errors
    /// [`Broken::Size`], [`Broken::Unreachable`].
    pub(super) fn new(size: u16, base: u32, has_event_index: bool, parts: [Part; 3]) -> Result<Self, Broken> {
        let [descriptors, driver_event, device_event] = parts;
        let (next, used) = (Position::of(base as u16), Position::of((base >> 16) as u16));
        let is_aligned = [&descriptors, &driver_event, &device_event].iter().all(|part| part.window.load(0).is_some());
        if !is_aligned {
            return Err(Broken::Unreachable);
        }
        if next.at >= size || used.at >= size {
            return Err(Broken::Size);
        }
        Ok(Self {
            size,
            has_event_index,
            descriptors,
            driver_event,
            device_event,
            next,
            used,
            unsignalled: None,
            taken: Vec::new(),
        })
    }

    /// Moves the ring to another mapping of its memory.
    pub(super) fn relocate(&mut self, parts: [Part; 3]) {
        [self.descriptors, self.driver_event, self.device_event] = parts;
    }

    /// The next entries with their wrap counters: available, and used in the upper half.
    #[must_use]
    pub fn base(&self) -> u32 {
        u32::from(self.next.base()) | u32::from(self.used.base()) << 16
    }

    fn flags(&self, at: u16) -> Option<u16> {
        self.descriptors.window.load_u16(usize::from(at) * DESCRIPTOR_LEN + FLAGS)
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let is_available =
            |flags: u16| (flags & AVAILABLE != 0) == self.next.wrap && (flags & USED != 0) != self.next.wrap;
        self.flags(self.next.at).is_some_and(is_available)
    }

    /// The next chain. [`Broken`] ends the ring.
    pub(super) fn next(&mut self, memory: &Memory) -> Result<Option<Chain>, Broken> {
        if !self.has_work() {
            return Ok(None);
        }
        let (mut chain, mut position) = (Chain::default(), self.next);
        self.taken.clear();
        loop {
            let mut bytes = [0; DESCRIPTOR_LEN];
            if !self.descriptors.window.read(usize::from(position.at) * DESCRIPTOR_LEN, &mut bytes) {
                return Err(Broken::Unreachable);
            }
            let descriptor = Descriptor::read_from_bytes(&bytes).map_err(|_| Broken::Unreachable)?;
            position.advance(1, self.size);
            self.taken.push(descriptor);
            if append(memory, &mut chain, &descriptor)? {
                self.next = position;
                return Ok(Some(chain));
            }
            if chain.entries >= self.size {
                return Err(Broken::Long);
            }
        }
    }

    /// The descriptors of the chain that was taken last.
    pub(super) fn taken(&self) -> &[Descriptor] {
        &self.taken
    }

    /// The used index with its wrap counter.
    pub(super) fn used(&self) -> (u16, bool) {
        (self.used.at, self.used.wrap)
    }

    /// The used index after a chain of so many entries is returned.
    pub(super) fn used_after(&self, entries: u16) -> (u16, bool) {
        let mut used = self.used;
        used.advance(entries, self.size);
        (used.at, used.wrap)
    }

    /// Whether a chain was returned at this index.
    pub(super) fn is_returned(&self, (at, wrap): (u16, bool)) -> bool {
        self.flags(at).is_some_and(|flags| (flags & AVAILABLE != 0, flags & USED != 0) == (wrap, wrap))
    }

    /// Continues at this used index, with so many entries in progress behind it.
    pub(super) fn resume(&mut self, (at, wrap): (u16, bool), entries: u16) {
        self.used = Position { at, wrap };
        self.next = self.used;
        self.next.advance(entries, self.size);
    }

    /// Returns a chain that occupies `entries`, and of which `len` bytes were written.
    pub(super) fn publish(&mut self, memory: &Memory, (id, entries): (u16, u16), len: u32) {
        let at = usize::from(self.used.at) * DESCRIPTOR_LEN;
        let mut bytes = [0; 6];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..].copy_from_slice(&id.to_le_bytes());
        let written = if len > 0 { WRITE } else { 0 };
        let flags = if self.used.wrap { AVAILABLE | USED } else { 0 } | written;
        // The parts were checked when they were located: only memory that was lost meanwhile makes these fail.
        let _ = self.descriptors.window.write(at + 8, &bytes);
        let _ = self.descriptors.window.store_u16(at + FLAGS, flags);
        self.descriptors.mark(memory, at, DESCRIPTOR_LEN);
        self.used.advance(entries, self.size);
        if let Some(count) = &mut self.unsignalled {
            *count = count.saturating_add(entries.into());
        }
    }

    fn set_event(&self, memory: &Memory, flags: u16) {
        let _ = self.device_event.window.store_u16(0, self.next.base());
        let _ = self.device_event.window.store_u16(2, flags);
        self.device_event.mark(memory, 0, EVENT_LEN);
    }

    /// Asks the driver to notify; returns whether nothing has become available meanwhile.
    pub(super) fn arm(&self, memory: &Memory) -> bool {
        self.set_event(memory, if self.has_event_index { AT_DESCRIPTOR } else { ENABLE });
        fence(Ordering::SeqCst);
        !self.has_work()
    }

    /// Asks the driver not to notify.
    pub(super) fn disarm(&self, memory: &Memory) {
        self.set_event(memory, DISABLE);
    }

    /// The next notification is not suppressed by an event that lies behind.
    pub(super) fn forget_signal(&mut self) {
        self.unsignalled = None;
    }

    /// Whether the driver wants to be notified of what was returned since the last time.
    pub(super) fn take_signal(&mut self) -> bool {
        let count = self.unsignalled.replace(0);
        fence(Ordering::SeqCst);
        let Some(flags) = self.driver_event.window.load_u16(2) else { return true };
        let Some(count) = count else { return true };
        match flags {
            DISABLE => false,
            AT_DESCRIPTOR if self.has_event_index => {
                let Some(event) = self.driver_event.window.load_u16(0).map(Position::of) else { return true };
                // How many entries were returned from the one of the event on: not above zero if it lies ahead.
                let lap = if event.wrap == self.used.wrap { 0 } else { i32::from(self.size) };
                let since = i32::from(self.used.at) + lap - i32::from(event.at);
                since > 0 && i64::from(since) <= i64::from(count)
            }
            _ => true,
        }
    }
}

/// Appends a descriptor of the ring; returns whether it is the last of its chain.
pub(super) fn append(memory: &Memory, chain: &mut Chain, descriptor: &Descriptor) -> Result<bool, Broken> {
    let (address, len, flags) = (descriptor.address.get(), descriptor.len.get(), descriptor.fourth.get());
    chain.entries += 1;
    if flags & INDIRECT != 0 {
        if flags & NEXT != 0 || chain.entries > 1 {
            return Err(Broken::Table);
        }
        follow(memory, Table::new(address, len)?, chain)?;
    } else {
        chain.push(address, len, flags & WRITE != 0)?;
    }
    chain.id = descriptor.third.get();
    Ok(flags & NEXT == 0)
}

/// Appends the descriptors of a table: all of them, in their order.
fn follow(memory: &Memory, table: Table, chain: &mut Chain) -> Result<(), Broken> {
    for at in 0..table.count {
        let descriptor = table.get(memory, at)?;
        let flags = descriptor.fourth.get();
        if flags & INDIRECT != 0 {
            return Err(Broken::Table);
        }
        chain.push(descriptor.address.get(), descriptor.len.get(), flags & WRITE != 0)?;
    }
    Ok(())
}
