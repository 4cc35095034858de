//! Rings of requests in guest memory, split and packed: what has become available, and what was returned.

pub mod chain;
pub mod inflight;
pub mod inflight_packed;
pub mod packed;
pub mod split;

use crate::wire::feature;
use chain::Descriptor;
pub use chain::{Broken, Chain};
use inflight::InflightRecord;
use inflight_packed::{Left, PackedRecord};
use lunar_guest::memory::Memory;
use lunar_guest::window::Window;
use packed::PackedRing;
use split::SplitRing;
use std::collections::VecDeque;

/// A part of a ring in guest memory.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its bytes.
    pub window: Window,
    /// The guest address of the first, for the dirty log.
    pub address: u64,
}

impl Part {
    /// Records that `len` bytes from `at` on were written.
    #[inline]
    fn mark(&self, memory: &Memory, at: usize, len: usize) {
        if memory.is_logged() {
            memory.mark(self.address + at as u64, len as u64);
        }
    }
}

/// Bytes of the parts of a ring of this size: descriptors, available, used. With packed rings the last two are the
/// event suppression structures of the driver and the device.
#[must_use]
pub fn lengths(features: u64, size: u16) -> [usize; 3] {
    match features & feature::RING_PACKED {
        0 => split::lengths(size, features & feature::EVENT_IDX != 0),
        _ => packed::lengths(size),
    }
}

#[derive(Debug)]
enum Kind {
    Split(SplitRing),
    Packed(PackedRing),
}

/// A chain that is returned in the order in which it was taken.
#[derive(Debug)]
struct Ordered {
    id: u16,
    entries: u16,
    /// Bytes that were written, once its request has ended.
    written: Option<u32>,
}

/// The record of requests in progress.
#[derive(Debug)]
enum Record {
    Split(InflightRecord),
    Packed(PackedRecord),
}

/// A request of a process before this one.
#[derive(Debug)]
enum Repeated {
    /// In a split ring: its head.
    Head(u16),
    /// In a packed ring: copies of its descriptors.
    Copies(Vec<Descriptor>),
}

/// A ring that is started.
#[derive(Debug)]
pub struct Ring {
    kind: Kind,
    size: u16,
    /// Entries of the chains that were taken and not returned.
    entries: u32,
    /// With IN_ORDER: the chains that were taken and not returned.
    order: Option<VecDeque<Ordered>>,
    record: Option<Record>,
    /// Chains of a process before this one, which come first.
    repeated: VecDeque<Repeated>,
    /// Whether something was returned since the driver was notified last, or the ring has just started: a driver whose
    /// notification was lost with another process waits for one.
    is_signal_due: bool,
    is_broken: bool,
}

impl Ring {
    /// A ring with these features and this base.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn new(
        features: u64,
        (size, base): (u16, u32),
        parts: [Part; 3],
        record: Option<Window>,
    ) -> Result<Self, Broken> {
        let has_event_index = features & feature::EVENT_IDX != 0;
        let ring = |kind| Self {
            kind,
            size,
            entries: 0,
            order: (features & feature::IN_ORDER != 0).then(VecDeque::new),
            record: None,
            repeated: VecDeque::new(),
            is_signal_due: true,
            is_broken: false,
        };
        if features & feature::RING_PACKED != 0 {
            let mut packed = PackedRing::new(size, base, has_event_index, parts)?;
            let Some(window) = record else { return Ok(ring(Kind::Packed(packed))) };
            let is_returned = |used| packed.is_returned(used);
            let (record, left) = PackedRecord::open(window, features, (size, packed.used()), is_returned)?;
            let Left { used, chains } = left.unwrap_or_else(|| Left { used: packed.used(), chains: Vec::new() });
            if !chains.is_empty() || used != packed.used() {
                let entries: usize = chains.iter().map(Vec::len).sum();
                let entries = u16::try_from(entries).ok().filter(|entries| *entries <= size);
                packed.resume(used, entries.ok_or(Broken::Descriptor)?);
            }
            let repeated = chains.into_iter().map(Repeated::Copies).collect();
            return Ok(Self { record: Some(Record::Packed(record)), repeated, ..ring(Kind::Packed(packed)) });
        }
        // The upper half has a meaning for packed rings only.
        let mut split = SplitRing::new(size, base as u16, has_event_index, parts)?;
        let Some(window) = record else { return Ok(ring(Kind::Split(split))) };
        let used = split.used_index();
        let (record, left) = InflightRecord::open(window, features, size, used)?;
        if !left.is_empty() {
            // A front-end that was not told the base knows the used index alone.
            split.set_base(used.wrapping_add(left.len() as u16));
        }
        let repeated = left.into_iter().map(Repeated::Head).collect();
        Ok(Self { record: Some(Record::Split(record)), repeated, ..ring(Kind::Split(split)) })
    }

    /// Moves the ring to another mapping of its memory.
    pub fn relocate(&mut self, parts: [Part; 3]) {
        match &mut self.kind {
            Kind::Split(ring) => ring.relocate(parts),
            Kind::Packed(ring) => ring.relocate(parts),
        }
    }

    /// The base with which the ring continues later.
    #[must_use]
    pub fn base(&self) -> u32 {
        match &self.kind {
            Kind::Split(ring) => ring.base().into(),
            Kind::Packed(ring) => ring.base(),
        }
    }

    /// Whether a chain has become available.
    #[inline]
    #[must_use]
    pub fn has_work(&self) -> bool {
        if self.is_broken {
            return false;
        }
        match &self.kind {
            Kind::Split(ring) => ring.has_work() || !self.repeated.is_empty(),
            Kind::Packed(ring) => ring.has_work() || !self.repeated.is_empty(),
        }
    }

    /// Takes the next chain.
    ///
    /// # Errors
    /// [`Broken`]: no chain is taken from this ring any more.
    #[inline]
    pub fn take(&mut self, memory: &Memory) -> Result<Option<Chain>, Broken> {
        if self.is_broken {
            return Ok(None);
        }
        let taken = self.next(memory);
        match &taken {
            // A driver cannot have more in progress than the ring has, but a hostile guest makes entries available that
            // were not returned: the requests would need more and more memory.
            Ok(Some(chain)) if !self.count(chain.entries) => {
                self.is_broken = true;
                return Err(Broken::Index);
            }
            Ok(Some(chain)) => {
                match (&mut self.record, &self.kind) {
                    _ if chain.is_repeated => {}
                    (Some(Record::Split(record)), _) => record.take(chain.id),
                    (Some(Record::Packed(record)), Kind::Packed(ring)) => record.take(chain.id, ring.taken()),
                    _ => {}
                }
                if let Some(order) = &mut self.order {
                    order.push_back(Ordered { id: chain.id, entries: chain.entries, written: None });
                }
            }
            Ok(None) => {}
            Err(_) => self.is_broken = true,
        }
        taken
    }

    /// Counts the entries of a chain; returns whether the ring has as many.
    #[inline]
    fn count(&mut self, entries: u16) -> bool {
        self.entries += chain::occupied(entries);
        self.entries <= u32::from(self.size)
    }

    #[inline]
    fn next(&mut self, memory: &Memory) -> Result<Option<Chain>, Broken> {
        match (&mut self.kind, self.repeated.pop_front()) {
            (Kind::Split(ring), None) => ring.next(memory),
            (Kind::Packed(ring), None) => ring.next(memory),
            (Kind::Split(ring), Some(Repeated::Head(head))) => {
                Ok(Some(Chain { is_repeated: true, ..ring.chain(memory, head)? }))
            }
            (_, Some(Repeated::Copies(descriptors))) => {
                let mut chain = Chain { is_repeated: true, ..Chain::default() };
                for descriptor in &descriptors {
                    packed::append(memory, &mut chain, descriptor)?;
                }
                Ok(Some(chain))
            }
            // A ring has requests of its own kind only.
            (Kind::Packed(_), Some(Repeated::Head(_))) => Err(Broken::Descriptor),
        }
    }

    /// Ends the ring: a request in it is not one of its device.
    pub fn break_down(&mut self) {
        self.is_broken = true;
    }

    /// Whether no chain is taken any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns a chain that was taken, by its identifier and the entries that it occupies; `len` bytes were written.
    pub fn put_back(&mut self, memory: &Memory, (id, entries): (u16, u16), len: u32) {
        let Some(mut order) = self.order.take() else { return self.publish(memory, (id, entries), len) };
        if let Some(own) = order.iter_mut().find(|own| own.id == id && own.written.is_none()) {
            own.written = Some(len);
        }
        while let Some(Ordered { id, entries, written: Some(len) }) = order.front() {
            self.publish(memory, (*id, *entries), *len);
            order.pop_front();
        }
        self.order = Some(order);
    }

    fn publish(&mut self, memory: &Memory, (id, entries): (u16, u16), len: u32) {
        self.is_signal_due = true;
        self.entries = self.entries.saturating_sub(chain::occupied(entries));
        match (&mut self.kind, &mut self.record) {
            (Kind::Packed(ring), Some(Record::Packed(record))) => {
                let after = ring.used_after(entries);
                record.returning(id, after);
                ring.publish(memory, (id, entries), len);
                record.returned(id, after);
            }
            (Kind::Packed(ring), _) => ring.publish(memory, (id, entries), len),
            (Kind::Split(ring), Some(Record::Split(record))) => {
                record.returning(id);
                ring.publish(memory, id, len);
                record.returned(id, ring.used_index());
            }
            (Kind::Split(ring), _) => ring.publish(memory, id, len),
        }
    }

    /// Asks the driver to notify; returns whether nothing has become available meanwhile.
    #[must_use]
    pub fn arm(&self, memory: &Memory) -> bool {
        self.is_broken
            || match &self.kind {
                Kind::Split(ring) => ring.arm(memory) && self.repeated.is_empty(),
                Kind::Packed(ring) => ring.arm(memory) && self.repeated.is_empty(),
            }
    }

    /// Asks the driver not to notify.
    pub fn disarm(&self, memory: &Memory) {
        match &self.kind {
            Kind::Split(ring) => ring.disarm(memory),
            Kind::Packed(ring) => ring.disarm(memory),
        }
    }

    /// Whether the driver wants to be notified of what was returned since the last time.
    pub fn take_signal(&mut self) -> bool {
        if !std::mem::take(&mut self.is_signal_due) {
            return false;
        }
        match &mut self.kind {
            Kind::Split(ring) => ring.take_signal(),
            Kind::Packed(ring) => ring.take_signal(),
        }
    }

    /// The driver could not be notified: it will be.
    pub fn signal_again(&mut self) {
        self.is_signal_due = true;
        // An index that the driver named must not be behind the next notification.
        match &mut self.kind {
            Kind::Split(ring) => ring.forget_signal(),
            Kind::Packed(ring) => ring.forget_signal(),
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
